"""The two ends with their threads: flush triggers, back-pressure, close, heartbeats."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from buffer.errors import AppendOutcomeUnknown, Closed, InvalidConfig, InvalidInput, StoreUnusable
from buffer.legacy import Collector, CollectorConfig, Ingestor, IngestorConfig, KeyValueEntry
from buffer.legacy.format import decode_batch, decode_consumer_manifest
from buffer.legacy.ingestor import Flusher
from buffer.produce.durability import Durable, WriteHandle
from buffer.produce.intake import Call, Intake
from buffer.store import Store, open_store
from buffer.testing.faulty import Fault, FaultyStore
from tests.interrupted import raising_at
from tests.legacy.legacy_support import pair
from tests.nets import HANGS_S

NEVER_MS = 24 * 3600 * 1000


@pytest.fixture
def store() -> Store:
    return open_store("memory://")


def ingestor(store: Store, **settings: int) -> Ingestor:
    return Ingestor(IngestorConfig(store=store, **settings))


def test_should_collect_what_was_ingested_in_order(store: Store) -> None:
    with ingestor(store, flush_interval_ms=NEVER_MS) as source:
        watchers = [source.ingest([pair(f"{call}.{n}") for n in range(3)]) for call in range(4)]
        assert watchers[0].result() is None
    assert isinstance(watchers[-1].result(), Durable)
    with Collector(CollectorConfig(store=store)) as collector:
        batch = collector.next_batch()
        assert batch is not None
        assert batch.entries == [pair(f"{call}.{n}") for call in range(4) for n in range(3)]
        collector.ack(batch)
        assert collector.next_batch() is None


def test_should_flush_by_time(store: Store) -> None:
    with ingestor(store, flush_interval_ms=1) as source:
        durable = source.ingest([pair("a")]).await_durable(timeout=HANGS_S)
        assert durable.location.startswith("ingest/")
        assert decode_batch(store.get(durable.location).data) == [pair("a")]


def test_should_flush_by_size(store: Store) -> None:
    with ingestor(store, flush_interval_ms=NEVER_MS, flush_size_bytes=100) as source:
        first = source.ingest([KeyValueEntry(b"", bytes(60))])
        assert first.await_durable(timeout=HANGS_S)


def test_should_flush_and_block_when_too_much_is_unflushed(store: Store) -> None:
    """The second call waits until the first is durable, though neither time nor size would flush it."""
    entered = threading.Event()
    go_on = threading.Event()

    class Gate(FaultyStore):
        def put(self, location, data):
            entered.set()
            assert go_on.wait(HANGS_S)
            super().put(location, data)

    with ingestor(Gate(store), flush_interval_ms=NEVER_MS, max_unflushed_bytes=150) as source:
        first = source.ingest([KeyValueEntry(b"", bytes(60))])
        assert first.result() is None
        done: list[object] = []
        caller = threading.Thread(target=lambda: done.append(source.ingest([KeyValueEntry(b"", bytes(60))])))
        caller.start()
        assert entered.wait(HANGS_S), "the call that waits has triggered the flush"
        assert not done
        go_on.set()
        caller.join(HANGS_S)
        assert len(done) == 1
        assert isinstance(first.result(), Durable)


def test_should_accept_one_call_larger_than_the_limit(store: Store) -> None:
    with ingestor(store, flush_interval_ms=1, max_unflushed_bytes=10) as source:
        assert source.ingest([KeyValueEntry(b"k", bytes(1000))]).await_durable(timeout=HANGS_S)


def test_should_tell_watchers_and_close_of_a_failure(store: Store) -> None:
    refused = StoreUnusable("no room", retryable=False)
    source = ingestor(FaultyStore(store, [Fault.before("put", refused)]), flush_interval_ms=1)
    watcher = source.ingest([pair("a")])
    with pytest.raises(StoreUnusable, match="no room"):
        watcher.await_durable(timeout=HANGS_S)
    assert source.ingest([pair("b")]).await_durable(timeout=HANGS_S), "the next one is tried anew"
    with pytest.raises(StoreUnusable):
        source.close()
    source.close()
    with pytest.raises(Closed):
        source.ingest([pair("c")])


def test_should_tell_watchers_of_a_panic_and_go_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A native library may raise what is no Exception: whoever waits must not wait for ever."""

    class Panic(BaseException):
        pass

    source = ingestor(store, flush_interval_ms=1)
    with monkeypatch.context() as patch:
        patch.setattr(Flusher, "_upload", lambda *_: (_ for _ in ()).throw(Panic("out of memory")))
        watcher = source.ingest([pair("a")])
        with pytest.raises(AppendOutcomeUnknown, match="Panic: out of memory"):
            watcher.await_durable(timeout=HANGS_S)
    assert source.ingest([pair("b")]).await_durable(timeout=HANGS_S)
    with pytest.raises(AppendOutcomeUnknown):
        source.close()


def test_should_hold_an_object_for_unreadable_that_is_larger_than_allowed(store: Store) -> None:
    with ingestor(store, flush_interval_ms=1) as source:
        source.ingest([KeyValueEntry(b"k", bytes(200_000))]).await_durable(timeout=HANGS_S)
    settings: dict[str, Any] = {"store": store, "read_tries": 1}
    with Collector.open(**settings, max_batch_bytes=100_000) as collector:
        assert collector.next_batch() is None
        (parked,) = collector.parked().items()
        assert "more than any batch within max_batch_bytes=100,000" in parked[1].why
        collector.unpark(parked[0])
    with Collector.open(**settings) as collector:
        assert collector.next_batch() is not None


def test_should_close_when_a_signal_handler_does_it_in_the_middle_of_a_call(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ingestor(store, flush_interval_ms=NEVER_MS)
    offer = Intake.offer

    def interrupted(intake: Intake, call: Call) -> WriteHandle | None:
        source.close()  # as a handler would, which runs in the thread that holds the lock
        return offer(intake, call)

    monkeypatch.setattr(Intake, "offer", interrupted)
    assert isinstance(source.ingest([pair("a")]).result(), Durable)
    with pytest.raises(Closed):
        source.ingest([pair("b")])


def _ingested(store: Store) -> list[KeyValueEntry]:
    with Collector(CollectorConfig(store=store)) as collector:
        found: list[KeyValueEntry] = []
        while (batch := collector.next_batch()) is not None:
            found += batch.entries
            collector.ack(batch)
        return found


@pytest.mark.parametrize("flush_size_bytes", [1, 1 << 20])
def test_should_keep_a_call_whole_that_a_handler_ends_at_any_moment(flush_size_bytes: int) -> None:
    """It is in its batch or it is not, and `close` flushes the others: Ctrl-C in the middle of a call lost them."""
    moment, ended = 0, False
    while not ended:
        moment += 1
        store = open_store("memory://")
        source = ingestor(store, flush_interval_ms=NEVER_MS, flush_size_bytes=flush_size_bytes)
        source.ingest([pair("a")])
        call = lambda source=source: source.ingest([pair("b"), pair("c")])  # noqa: E731
        ended = not raising_at(moment, call, within="buffer")
        last = source.ingest([pair("d")])
        source.close()
        assert isinstance(last.result(), Durable), moment
        found = _ingested(store)
        assert found in ([pair(x) for x in "abcd"], [pair(x) for x in "ad"]), moment


def test_should_refuse_a_call_by_a_handler_in_the_middle_of_another(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ingestor(store, flush_interval_ms=NEVER_MS)
    offer = Intake.offer

    def interrupted(intake: Intake, call: Call) -> WriteHandle | None:
        with pytest.raises(InvalidInput, match="in the middle of a call of the same Ingestor"):
            source.ingest([pair("handler")])
        return offer(intake, call)

    monkeypatch.setattr(Intake, "offer", interrupted)
    source.ingest([pair("a")])
    source.close()
    assert _ingested(store) == [pair("a")]


@pytest.mark.parametrize("make", [lambda s: Collector(CollectorConfig(store=s)), ingestor], ids=["take", "put"])
def test_should_close_from_a_handler_in_the_middle_of_closing(
    store: Store, make: Callable[[Store], Collector | Ingestor]
) -> None:
    """An event and a thread that is joined have locks, which the handler's own thread may hold at that moment."""
    moment, ended = 0, False
    while not ended:
        moment += 1
        end = make(store)
        ended = not raising_at(moment, lambda end=end: end.close(), act=end.close)
        assert not end._thread.is_alive(), moment
    assert moment > 1


def test_should_not_hide_the_error_that_ended_the_block(store: Store) -> None:
    refused = StoreUnusable("no room", retryable=False)

    def fail() -> None:
        with ingestor(FaultyStore(store, [Fault.before("put", refused)])) as source:
            source.ingest([pair("a")])
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        fail()
    assert "no room" in caught.value.__notes__[0]


def test_should_refuse_calls_in_another_process(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that flushes did not come along into a fork."""
    with ingestor(store) as source:
        with monkeypatch.context() as forked:
            forked.setattr("buffer.legacy.ingestor.os.getpid", lambda: -1)
            with pytest.raises(Closed, match="after the fork"):
                source.ingest([pair("a")])
            source.close()
        assert source.ingest([pair("b")]).await_durable(timeout=HANGS_S), "the parent goes on"


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([], "at least one entry"),
        ([(b"a", b"b")], "entry 0 must be a KeyValueEntry, not tuple"),
        ([pair("a"), KeyValueEntry("k", b"")], "entry 1 must be bytes, not str and bytes"),  # type: ignore[arg-type]
    ],
)
def test_should_refuse_wrong_entries(store: Store, entries: list[KeyValueEntry], says: str) -> None:
    with ingestor(store) as source, pytest.raises(InvalidInput, match=says):
        source.ingest(entries)


@pytest.mark.parametrize("path", ["/lead/manifest.json", "q//manifest.json", "q/manifest.json/", "../m.json"])
def test_should_refuse_paths_that_were_silently_changed_then(path: str) -> None:
    """On purpose: give the key that the object has, `lead/manifest.json` or `%2E%2E/m.json`."""
    with pytest.raises(InvalidConfig, match="a path inside the store"):
        CollectorConfig(store="memory://", manifest_path=path, data_path_prefix="q")


def test_should_have_the_defaults_of_that_time() -> None:
    config = IngestorConfig(store="memory://")
    assert (config.manifest_path, config.data_path_prefix) == ("ingest/manifest.json", "ingest")
    assert (config.flush_interval_ms, config.flush_size_bytes) == (100, 64 << 20)
    reader = CollectorConfig(store="memory://", manifest_path=".hidden")  # at the top of the store
    assert (reader.heartbeat_timeout_ms, reader.done_cleanup_threshold) == (30_000, 100)


@pytest.mark.parametrize(
    ("key", "value"), [("heartbeat_timeout_ms", 2), ("done_cleanup_threshold", 0), ("read_tries", 0)]
)
def test_should_refuse_settings_that_cannot_work(key: str, value: int) -> None:
    with pytest.raises(InvalidConfig, match=key):
        CollectorConfig(store="memory://", **{key: value})


def test_should_refresh_a_claim_by_its_own_heartbeat(store: Store) -> None:
    beats = threading.Semaphore(0)

    class Counting(FaultyStore):
        def put_if_match(self, location, data, version):
            outcome = super().put_if_match(location, data, version)
            beats.release()
            return outcome

    with ingestor(store) as source:
        source.ingest([pair("a")]).await_durable(timeout=HANGS_S)
    with Collector(CollectorConfig(store=Counting(store), heartbeat_timeout_ms=60)) as collector:
        batch = collector.next_batch()
        assert batch is not None
        for _ in range(3):
            assert beats.acquire(timeout=HANGS_S)
        claimed = decode_consumer_manifest(store.get("ingest/manifest.consumer.json").data).claimed
        assert claimed[batch.location] >= batch.claimed_ms + 3
        collector.ack(batch)


def test_should_end_the_heartbeat_with_the_collector(store: Store) -> None:
    collector = Collector(CollectorConfig(store=store, heartbeat_timeout_ms=30))
    collector.close()
    assert not collector._thread.is_alive()
    with pytest.raises(Closed):
        collector.next_batch()
    dropped = Collector(CollectorConfig(store=store, heartbeat_timeout_ms=30))
    thread = dropped._thread
    del dropped
    gc.collect()
    thread.join(HANGS_S)
    assert not thread.is_alive()
