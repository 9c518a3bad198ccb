"""The producer on stores that misbehave: nothing doubles, nothing is lost without a word, nothing wedges."""

from __future__ import annotations

import gc
import pickle
import threading
import tracemalloc
from collections.abc import Callable, Sequence

import pytest

from buffer.errors import (
    AppendOutcomeUnknown,
    BufferQueueError,
    StorageError,
    StoreUnusable,
)
from buffer.produce import intake
from buffer.produce.durability import Durable
from buffer.produce.upload import UPLOAD_ATTEMPTS_MAX
from buffer.store import Lost, Store, open_store
from buffer.testing import Fault, FaultyStore, ManualClock
from tests.nets import HANGS_S, wait_until
from tests.produce.producer_support import (
    HeldStore,
    Line,
    batches_of,
    entries_of,
    make_producer,
    outcomes,
)

MANIFEST = "ingest/manifest"


# Lost replies


@pytest.mark.parametrize("kind", ["memory", "local"])
@pytest.mark.parametrize(
    "faults",
    [
        [Fault.after("put_if_absent")],
        [Fault.after("put_if_absent", Lost)],
        [Fault.after("put_if_match"), Fault.after("put_if_match", Lost)],
        [Fault.before("put_if_match", times=3)],
        [Fault.late("put_if_match", after_calls=2), Fault.late("put_if_absent", after_calls=3)],
        [Fault.throttle("put_if_absent", times=2), Fault.before("get_if_changed", times=2)],
        [Fault.after("put", times=2), Fault.before("put", skip=1, times=2)],
        [Fault.before("get", times=2)],
    ],
)
def test_should_neither_double_nor_lose_when_replies_are_lost(
    store_factory: Callable[[str], object], kind: str, faults: Sequence[Fault]
) -> None:
    inner = store_factory(kind).open()
    store = FaultyStore(inner, faults)
    with make_producer(store, flush_size_bytes=1) as producer:
        for index in range(5):
            producer.produce([b"%d" % index]).watcher.await_durable(HANGS_S)
    assert store.unused == []
    assert entries_of(inner) == [b"%d" % index for index in range(5)]


@pytest.mark.parametrize("seed", range(8))
def test_should_keep_every_promise_under_random_faults(seed: int) -> None:
    inner = open_store("memory://")
    store = FaultyStore(inner, seed=seed, rate=0.2)
    clock = ManualClock(seed=seed)
    with make_producer(store, clock=clock, flush_size_bytes=1) as producer:
        handles = [producer.produce([b"%d" % index]) for index in range(100)]
        for handle in handles:
            handle.watcher.wait(HANGS_S)
        store.heal()
        results = [handle.watcher.result() for handle in handles]
        if any(isinstance(result, BufferQueueError) for result in results):
            with pytest.raises(BufferQueueError):
                producer.flush()
    found = entries_of(inner)
    assert sorted(set(found)) == sorted(found), "nothing doubles"
    for index, result in enumerate(results):
        if isinstance(result, Durable):
            assert b"%d" % index in found
        elif not isinstance(result, AppendOutcomeUnknown):
            assert b"%d" % index not in found
    assert found == [b"%d" % index for index in sorted(map(int, found))], "produce order"
    assert sum(isinstance(result, Durable) for result in results) > 50


# Uploads that fail


def test_should_fail_only_the_handles_of_a_batch_that_cannot_be_uploaded() -> None:
    inner = open_store("memory://")

    class Refusing(HeldStore):
        def put(self, location: str, data: bytes | memoryview) -> None:
            if b"bad" in bytes(data):
                raise StoreUnusable("no space", location=location, retryable=False)
            self.store.put(location, data)

    with make_producer(Refusing(inner), flush_size_bytes=1) as producer:
        handles = [producer.produce([entry]) for entry in (b"good 1", b"bad", b"good 2")]
        assert handles[2].watcher.await_durable(HANGS_S).sequence == 1
        with pytest.raises(StoreUnusable, match="no space"):
            handles[1].watcher.await_durable(HANGS_S)
        assert isinstance(handles[1].watcher.result(), StoreUnusable)
        with pytest.raises(StoreUnusable, match=r"1 batches \(1 entries\) could not be made durable.*no space"):
            producer.flush()
        producer.flush()  # it was reported
    assert entries_of(inner) == [b"good 1", b"good 2"]


def test_should_retry_an_upload_under_the_same_name_a_bounded_number_of_times() -> None:
    store = FaultyStore(open_store("memory://"), [Fault.before("put", times=UPLOAD_ATTEMPTS_MAX - 1)])
    line = Line(store)
    line.upload(b"one")
    line.committer.commit()
    puts = [call.location for call in store.history if call.op == "put"]
    assert len(puts) == UPLOAD_ATTEMPTS_MAX
    assert len(set(puts)) == 1
    store.add(Fault.before("put", times=UPLOAD_ATTEMPTS_MAX))
    failed = line.upload(b"two")
    assert outcomes(failed) == [StorageError]
    assert store.unused == []
    assert line.committer.is_idle
    assert batches_of(store) == [[b"one"]]
    assert 0 < sum(line.clock.sleeps) < 2 * UPLOAD_ATTEMPTS_MAX * 5


def test_should_not_retry_an_upload_that_cannot_work() -> None:
    store = FaultyStore(open_store("memory://"), [Fault.before("put", StoreUnusable)])
    line = Line(store)
    failed = line.upload(b"one")
    assert outcomes(failed) == [StoreUnusable]
    assert len(store.history) == 1


def test_should_report_failures_of_earlier_batches_on_close() -> None:
    store = FaultyStore(open_store("memory://"), [Fault.before("put", StoreUnusable, times=2)])
    producer = make_producer(store, flush_size_bytes=1)
    handles = [producer.produce([b"one", b"two"]) for _ in range(3)]
    for handle in handles:
        handle.watcher.wait(HANGS_S)
    with pytest.raises(StoreUnusable, match=r"2 batches \(4 entries\) could not be made durable; the first: inj") as e:
        producer.close()
    assert isinstance(e.value.__cause__, StoreUnusable)
    assert pickle.loads(pickle.dumps(e.value)).args == e.value.args
    producer.close()


def test_should_tell_every_flush_that_waited_for_a_failed_batch() -> None:
    faulty = FaultyStore(open_store("memory://"), [Fault.before("put", StoreUnusable)])
    store = HeldStore(faulty)
    producer = make_producer(store)
    raised: list[str] = []

    def flush() -> None:
        try:
            producer.flush()
        except StoreUnusable as error:
            raised.append(str(error))

    with store.hold("put"):
        watcher = producer.produce([b"one"]).batch_watcher
        flushing = [threading.Thread(target=flush) for _ in range(3)]
        for thread in flushing:
            thread.start()
        store.await_waiting(1)
        wait_until(lambda: len(watcher._callbacks) == 3, "for three flushes of the batch")
    for thread in flushing:
        thread.join(HANGS_S)
    assert len(raised) == 3
    producer.close()


def test_should_note_a_failed_close_on_the_error_that_ended_the_block() -> None:
    store = FaultyStore(open_store("memory://"), [Fault.before("put", StoreUnusable)])
    with pytest.raises(KeyError) as caught, make_producer(store) as producer:
        _fail_after(producer.produce, [b"one"])
    assert any("closing the producer failed as well: StoreUnusable" in note for note in caught.value.__notes__)


def _fail_after(call: Callable[..., object], *args: object) -> None:
    call(*args)
    raise KeyError("the application's own")


def test_should_let_go_of_the_bytes_of_a_failed_batch() -> None:
    store = FaultyStore(open_store("memory://"), [Fault.before("put", times=UPLOAD_ATTEMPTS_MAX)])
    line = Line(store)
    tracemalloc.start()
    try:
        failed = line.enlist(b"x" * 1_000_000)
        line.committer.upload(failed)
        gc.collect()  # errors of the attempts before are cycles
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(failed.watcher.result(), StorageError)
    assert size < 200_000, "the error keeps the bytes alive through its traceback"


# Errors outside Exception


class Panic(BaseException):
    """As a native library's arrives."""


class Panicking(HeldStore):
    """Panics at the first calls of these operations."""

    def __init__(self, store: Store, *operations: str) -> None:
        super().__init__(store)
        self.left = list(operations)

    def _pass(self, operation: str) -> None:
        if operation in self.left:
            self.left.remove(operation)
            raise Panic(f"index out of bounds in {operation}")


@pytest.mark.parametrize("threads", [1, 3])
def test_should_settle_and_go_on_when_an_upload_panics(memory: Store, threads: int) -> None:
    store = Panicking(memory, *["put"] * threads)
    producer = make_producer(store, flush_size_bytes=1, upload_concurrency=threads)
    handles = [producer.produce([b"%d" % n]) for n in range(threads + 2)]
    for handle in handles:
        handle.watcher.wait()
    failed = [handle for handle in handles if not isinstance(handle.watcher.result(), Durable)]
    assert len(failed) == threads
    for handle in failed:
        with pytest.raises(BufferQueueError, match="Panic: index out of bounds in put") as caught:
            handle.watcher.await_durable()
        assert isinstance(caught.value.__cause__, Panic) or caught.value.__cause__ is None
    with pytest.raises(BufferQueueError, match=f"{threads} batches"):
        producer.close()
    assert len(entries_of(memory)) == 2


@pytest.mark.parametrize("operation", ["get", "put_if_absent"])
def test_should_settle_and_go_on_when_an_append_panics(memory: Store, operation: str) -> None:
    store = Panicking(memory)
    producer = make_producer(store, flush_size_bytes=1)
    producer._engine.depth.check()  # the look that the first call takes
    store.left.append(operation)
    handle = producer.produce([b"first"])
    with pytest.raises(AppendOutcomeUnknown, match="Panic: index out of bounds"):
        handle.watcher.await_durable()
    producer.produce([b"second"]).watcher.await_durable()
    with pytest.raises(AppendOutcomeUnknown):
        producer.close()
    assert entries_of(memory) == [b"second"]


def test_should_settle_what_cannot_be_encoded(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(*_: object) -> memoryview:
        raise Panic("in the codec")

    monkeypatch.setattr(intake, "encode_batch_parts", panic)
    producer = make_producer(memory)
    handle = producer.produce([b"first"])
    with pytest.raises(BufferQueueError, match="Panic: in the codec"):
        producer.close()
    assert isinstance(handle.watcher.result(), BufferQueueError)
