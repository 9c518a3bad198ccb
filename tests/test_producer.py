"""The producer through its public door: what is in the store afterwards, and what callers are told and when."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import ExitStack, suppress

import pyarrow as pa
import pytest

from buffer.batch import batch_info, decode_batch
from buffer.durability import Durable
from buffer.errors import Closed, InvalidConfig, InvalidInput
from buffer.manifest import Manifest
from buffer.model import Metadata
from buffer.producer import Producer
from buffer.store import Store, open_store
from buffer.testing import ManualClock
from tests import metrics_reader
from tests.producer_support import (
    NEVER_MS,
    HeldStore,
    batches_of,
    entries_of,
    make_producer,
    objects_of,
    queue_of,
)
from tests.servers import StoreAddress

# What the reference implementation tests


def test_should_ingest_entries_and_enqueue_location(any_store: Store) -> None:
    with make_producer(any_store) as producer:
        producer.produce([b"one"])
        producer.produce([b"two"])
        producer.flush()
        (entry,) = queue_of(any_store)
    assert entry.sequence == 0
    assert entry.location.startswith("ingest/")
    assert entry.location.endswith(".batch")


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_should_write_valid_batch_to_object_store(any_store: Store, compression: str) -> None:
    with make_producer(any_store, compression=compression) as producer:
        producer.produce([b"one", b"two"])
    (location,) = objects_of(any_store)
    data = any_store.get(location).data
    assert decode_batch(data) == [b"one", b"two"]
    assert batch_info(data).compression == compression


def test_should_flush_when_batch_size_exceeded(any_store: Store) -> None:
    with make_producer(any_store, flush_size_bytes=100) as producer:
        small = producer.produce([b"x" * 40])
        full = producer.produce([b"x" * 60])
        assert full.watcher.await_durable(10) == small.watcher.await_durable(10)
        assert batches_of(any_store) == [[b"x" * 40, b"x" * 60]]


def test_should_flush_when_interval_elapsed(any_store: Store) -> None:
    with make_producer(any_store, flush_interval_ms=200) as producer:
        started = time.monotonic()
        handle = producer.produce([b"one"])
        assert handle.watcher.result() is None
        assert queue_of(any_store) == []
        handle.watcher.await_durable(10)
        assert time.monotonic() - started >= 0.2
        assert entries_of(any_store) == [b"one"]


def test_should_not_flush_below_thresholds(any_store: Store) -> None:
    with make_producer(any_store) as producer:
        handle = producer.produce([b"one"])
        with pytest.raises(TimeoutError, match=r"0\.15 s"):
            handle.watcher.await_durable(0.15)
        assert objects_of(any_store) == set()
        producer.flush()
        assert handle.watcher.result() is not None


def test_should_batch_multiple_ingests_into_single_file(any_store: Store) -> None:
    with make_producer(any_store) as producer:
        handles = [producer.produce([b"a", b"b"]), producer.produce([b"c"])]
        producer.flush()
        assert batches_of(any_store) == [[b"a", b"b", b"c"]]
        (entry,) = queue_of(any_store)
        assert [h.watcher.result() for h in handles] == [Durable(0, entry.location)] * 2


def test_should_apply_backpressure_when_buffer_full(any_store: Store) -> None:
    # One call may wait for an uploader, and the only uploader is busy: the third call blocks, and succeeds.
    store = HeldStore(any_store)
    with make_producer(store, max_buffered_inputs=1, flush_size_bytes=1, upload_concurrency=1) as producer:
        with store.hold("put"):
            producer.produce([b"uploading"])
            store.await_waiting(1)
            producer.produce([b"waiting"])
            blocked = threading.Thread(target=producer.produce, args=([b"blocked"],))
            blocked.start()
            blocked.join(0.1)
            assert blocked.is_alive()
        blocked.join(10)
        assert not blocked.is_alive()
        producer.flush()
        assert entries_of(any_store) == [b"uploading", b"waiting", b"blocked"]


def test_should_record_metadata_and_ingestion_time_in_queue_entry(any_store: Store) -> None:
    clock = ManualClock(start_ms=1_234_567)
    with make_producer(any_store, clock=clock) as producer:
        first = producer.produce([b"a", b"b"], b"from sensor 7")
        clock.advance(0.010)
        second = producer.produce([b"c"])
        third = producer.produce([b"d"], metadata=b"last")
        producer.flush()
    (entry,) = queue_of(any_store)
    assert entry.metadata == (
        Metadata(0, 1_234_567, b"from sensor 7"),
        Metadata(2, 1_234_577, b""),
        Metadata(3, 1_234_577, b"last"),
    )
    assert [h.ingestion_time_ms for h in (first, second, third)] == [1_234_567, 1_234_577, 1_234_577]


def test_should_flush_remaining_entries_on_close(any_store: Store) -> None:
    producer = make_producer(any_store)
    handle = producer.produce([b"one"])
    producer.close()
    assert isinstance(handle.watcher.result(), Durable)
    assert entries_of(any_store) == [b"one"]


def test_should_produce_separate_batches_per_flush(any_store: Store) -> None:
    with make_producer(any_store) as producer:
        producer.produce([b"one"])
        producer.flush()
        producer.produce([b"two"])
        producer.flush()
        assert batches_of(any_store) == [[b"one"], [b"two"]]
        assert objects_of(any_store) == {entry.location for entry in queue_of(any_store)}


def test_should_not_flush_empty_batch(any_store: Store) -> None:
    with make_producer(any_store) as producer:
        producer.flush()
    assert list(any_store.list("ingest")) == []


def test_should_preserve_all_empty_entries_batch(any_store: Store) -> None:
    with make_producer(any_store) as producer:
        producer.produce([b"", b"", b""], b"all empty")
    assert batches_of(any_store) == [[b"", b"", b""]]
    (item,) = queue_of(any_store)[0].metadata
    assert (item.start_index, item.payload) == (0, b"all empty")


def test_should_preserve_empty_and_non_empty_entries_in_batch(any_store: Store) -> None:
    with make_producer(any_store) as producer:
        producer.produce([b"", b"a"])
        producer.produce([b"b", b"", b""])
    assert batches_of(any_store) == [[b"", b"a", b"b", b"", b""]]
    assert [item.start_index for item in queue_of(any_store)[0].metadata] == [0, 2]


@pytest.mark.parametrize("metadata", [b"", b"some"])
@pytest.mark.parametrize("entries", [[], (), pa.array([], pa.binary()), pa.chunked_array([], pa.binary())])
def test_should_reject_empty_entries(entries: object, metadata: bytes) -> None:
    store = open_store("memory://")
    with make_producer(store) as producer, pytest.raises(InvalidInput, match="at least one entry"):
        producer.produce(entries, metadata)
    assert list(store.list("ingest")) == []


# Input


@pytest.mark.parametrize(
    ("entries", "what"),
    [
        (["text"], "entry 0 must be bytes, not str"),
        ([b"ok", None], "entry 1 must be bytes, not NoneType"),
        ([b"ok", b"ok", bytearray(b"x")], "entry 2 must be bytes, not bytearray"),
        (b"one", r"not bytes; for a single entry pass \[entry\]"),
        ("one", "not str"),
        (7, "not int"),
        (iter([b"one"]), "not list_iterator"),
        (pa.array(["text"]), "binary or large_binary, not string"),
        (pa.array([1]), "not int64"),
        (pa.array([b"a", None, b"c"]), "entry 1 is null"),
        (pa.chunked_array([[b"a"], [None]], pa.binary()), "entry 1 is null"),
    ],
)
def test_should_reject_wrong_entries_and_say_which(entries: object, what: str) -> None:
    with make_producer(open_store("memory://")) as producer, pytest.raises(InvalidInput, match=what):
        producer.produce(entries)


@pytest.mark.parametrize("entries", [[b"one"], [b"one", b"two"], pa.array([b"one"])])
def test_should_reject_metadata_that_is_not_bytes(entries: object) -> None:
    with (
        make_producer(open_store("memory://")) as producer,
        pytest.raises(InvalidInput, match="metadata must be bytes, not str"),
    ):
        producer.produce(entries, "text")


@pytest.mark.parametrize("entries", [[b"x" * 97], [b"x" * 50, b"x" * 43], pa.array([b"x" * 97])])
def test_should_reject_a_call_larger_than_a_batch(entries: object) -> None:
    store = open_store("memory://")
    with make_producer(store, max_batch_bytes=100) as producer:
        with pytest.raises(InvalidInput, match="max_batch_bytes is 100: split the call"):
            producer.produce(entries)
        producer.produce([b"x" * 96])  # with its length of 4 bytes it fits exactly
    assert batches_of(store) == [[b"x" * 96]]


def test_should_not_let_calls_together_exceed_a_batch() -> None:
    store = open_store("memory://")
    with make_producer(store, max_batch_bytes=100) as producer:
        for index in range(4):
            producer.produce([bytes([index]) * 40])
    assert entries_of(store) == [bytes([index]) * 40 for index in range(4)]
    assert all(len(batch) * 44 <= 100 for batch in batches_of(store))


def test_should_take_lists_tuples_and_arrow_in_one_batch() -> None:
    store = open_store("memory://")
    entries = [
        [b"list"],
        pa.array([b"binary", b"", b"x" * 300]),
        (b"tuple", b"of two"),
        [b"list again"],
        pa.array([b"skipped", b"large", b"sliced", b"skipped"], pa.large_binary()).slice(1, 2),
        pa.chunked_array([[b"chunk 1"], [], [b"chunk 2", b"chunk 3"]], pa.binary()),
    ]
    with make_producer(store) as producer:
        for each in entries:
            producer.produce(each)
    want = [
        *[b"list", b"binary", b"", b"x" * 300, b"tuple", b"of two", b"list again", b"large", b"sliced"],
        *[b"chunk 1", b"chunk 2", b"chunk 3"],
    ]
    assert batches_of(store) == [want]
    assert [item.start_index for item in queue_of(store)[0].metadata] == [0, 1, 4, 6, 7, 9]


def test_should_let_the_caller_reuse_its_list() -> None:
    store = open_store("memory://")
    with make_producer(store) as producer:
        for mine in ([b"one", b"two"], [b"three"]):
            producer.produce(mine)
            mine[0] = b"changed"
            mine.append(b"added")
    assert entries_of(store) == [b"one", b"two", b"three"]


# Triggers and room


def test_should_flush_on_time_under_steady_load() -> None:
    # One thread that never pauses: the timer must fire all the same.
    store = open_store("memory://")
    with make_producer(store, flush_interval_ms=20) as producer:
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            for _ in range(100):
                handle = producer.produce([b"entry"])
        flushed = len(Manifest.from_bytes(store.get("ingest/manifest").data))
        assert flushed >= 50
        producer.flush()
        assert handle.watcher.result() is not None


def test_should_count_the_interval_from_the_first_entry_of_each_batch() -> None:
    clock = ManualClock()
    store = open_store("memory://")
    with make_producer(store, clock=clock, flush_interval_ms=50) as producer:
        first = producer.produce([b"first"])
        clock.advance(0.049)
        second = producer.produce([b"second"])
        with pytest.raises(TimeoutError):
            first.watcher.await_durable(0.2)
        clock.advance(0.001)
        assert first.watcher.await_durable(10) == second.watcher.await_durable(10)


def test_should_block_by_bytes_until_something_is_durable() -> None:
    inner = open_store("memory://")
    store = HeldStore(inner)
    with make_producer(store, max_buffered_bytes=1000) as producer:
        with store.hold("put_if_absent"):
            producer.produce([b"x" * 900])
            blocked = threading.Thread(target=producer.produce, args=([b"y" * 900],))
            blocked.start()
            # Nothing asked for a flush, but nobody else would make room.
            store.await_waiting(1)
            blocked.join(0.1)
            assert blocked.is_alive(), "uploaded is not durable"
        blocked.join(10)
        assert not blocked.is_alive()
        producer.flush()
    assert batches_of(inner) == [[b"x" * 900], [b"y" * 900]]


def test_should_let_one_larger_call_through_alone() -> None:
    store = open_store("memory://")
    with make_producer(store, max_buffered_bytes=100) as producer:
        producer.produce([b"x" * 1000])
        producer.produce([b"small"])
        producer.produce([b"x" * 1000])
    assert entries_of(store) == [b"x" * 1000, b"small", b"x" * 1000]


def test_should_count_entries_of_zero_length_as_buffered() -> None:
    inner = open_store("memory://")
    store = HeldStore(inner)
    produced = 0

    def produce() -> None:
        nonlocal produced
        for _ in range(200):
            producer.produce([b""])
            produced += 1

    with make_producer(store, max_buffered_bytes=1000) as producer:
        thread = threading.Thread(target=produce)
        with store.hold("put"):
            thread.start()
            store.await_waiting(1)
            thread.join(0.1)
            assert produced == 1000 // 20
        thread.join(10)
        assert produced == 200


def test_should_wake_blocked_calls_with_closed() -> None:
    inner = open_store("memory://")
    store = HeldStore(inner)
    producer = make_producer(store, max_buffered_bytes=100)
    errors: list[Exception] = []

    def produce() -> None:
        try:
            producer.produce([b"y" * 100])
        except Closed as error:
            errors.append(error)

    with store.hold("put"):
        producer.produce([b"x" * 100])
        blocked = threading.Thread(target=produce)
        blocked.start()
        store.await_waiting(1)
        closing = threading.Thread(target=producer.close)
        closing.start()
        blocked.join(10)
        assert len(errors) == 1
    closing.join(10)
    assert entries_of(inner) == [b"x" * 100]


# Order


def test_should_overlap_uploads_with_appends_and_keep_produce_order(any_store: Store) -> None:
    store = HeldStore(any_store)
    with make_producer(store, flush_size_bytes=1, upload_concurrency=3) as producer:
        producer.produce([b"0"]).watcher.await_durable(10)  # makes the manifest, so that later writes replace it
        with store.hold("put_if_match"):
            producer.produce([b"1"])
            store.await_waiting(1)  # the append of 1 is under way …
            for index in range(2, 8):
                producer.produce([b"%d" % index])
            deadline = time.monotonic() + 10
            while len(objects_of(any_store)) < 8 and time.monotonic() < deadline:
                time.sleep(0.005)
            assert len(objects_of(any_store)) == 8  # … and all others are uploaded meanwhile
        producer.flush()
        assert entries_of(any_store) == [b"%d" % index for index in range(8)]


def test_should_append_all_that_waits_in_one_write() -> None:
    metrics_reader.reader()
    writes = metrics_reader.value("buffer.manifest_writes", {"role": "producer"})
    inner = open_store("memory://")
    store = HeldStore(inner)
    with make_producer(store, flush_size_bytes=1) as producer:
        with store.hold("put_if_absent"):
            producer.produce([b"0"])
            store.await_waiting(1)
            for index in range(1, 20):
                producer.produce([b"%d" % index])
            while len(objects_of(inner)) < 20:
                time.sleep(0.005)
        producer.flush()
    assert entries_of(inner) == [b"%d" % index for index in range(20)]
    assert metrics_reader.value("buffer.manifest_writes", {"role": "producer"}) - writes == 2


def test_should_wait_for_an_earlier_slow_upload_before_appending_later_ones() -> None:
    inner = open_store("memory://")

    class SlowFirst(HeldStore):
        def put(self, location: str, data: bytes) -> None:
            if b"slow" in data:
                self._pass("slow")
            self.store.put(location, data)

    store = SlowFirst(inner)
    with make_producer(store, flush_size_bytes=1, upload_concurrency=2) as producer:
        with store.hold("slow"):
            producer.produce([b"slow"])
            fast = producer.produce([b"fast"])
            with pytest.raises(TimeoutError):
                fast.watcher.await_durable(0.1)
            assert len(objects_of(inner)) == 1
        assert fast.watcher.await_durable(10).sequence == 1
    assert entries_of(inner) == [b"slow", b"fast"]


def test_should_serve_many_threads(any_store: Store) -> None:
    threads, calls = 8, 50
    with make_producer(any_store, flush_interval_ms=5, flush_size_bytes=2000, max_buffered_inputs=20) as producer:

        def produce(name: int) -> None:
            for index in range(calls):
                handle = producer.produce([b"%d/%d" % (name, index)], b"%d" % name)
            handle.watcher.await_durable(30)

        running = [threading.Thread(target=produce, args=(name,)) for name in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(60)
    found = entries_of(any_store)
    for name in range(threads):
        mine = [entry for entry in found if entry.startswith(b"%d/" % name)]
        assert mine == [b"%d/%d" % (name, index) for index in range(calls)]
    assert len(found) == threads * calls
    for entry in queue_of(any_store):
        entries = decode_batch(any_store.get(entry.location).data)
        for item in entry.metadata:
            assert entries[item.start_index].startswith(item.payload + b"/")


# Life


def test_should_refuse_calls_after_close_and_close_again_in_peace() -> None:
    producer = make_producer(open_store("memory://"))
    producer.close()
    producer.close()
    with pytest.raises(Closed, match="closed"):
        producer.produce([b"one"])
    with pytest.raises(Closed):
        producer.flush()
    with pytest.raises(Closed):
        asyncio.run(producer.produce_async([b"one"]))


def test_should_flush_when_the_block_ends_with_an_error() -> None:
    store = open_store("memory://")
    with suppress(ZeroDivisionError), make_producer(store) as producer:
        producer.produce([b"one"])
        _ = 1 / 0
    assert entries_of(store) == [b"one"]


def test_should_time_out_of_flush_and_close_without_losing_anything() -> None:
    inner = open_store("memory://")
    store = HeldStore(inner)
    producer = make_producer(store)
    with store.hold("put"):
        producer.produce([b"one"])
        with pytest.raises(TimeoutError, match=r"0\.05 s"):
            producer.flush(timeout=0.05)
        with pytest.raises(TimeoutError, match=r"0\.05 s"):
            producer.close(timeout=0.05)
    producer.close()
    assert entries_of(inner) == [b"one"]


def test_should_end_all_threads_on_close() -> None:
    before = threading.active_count()
    producers = [make_producer(open_store("memory://")) for _ in range(3)]
    assert threading.active_count() == before + 3 * 6
    for producer in producers:
        producer.close()
    assert threading.active_count() == before


def test_should_warn_and_flush_in_the_background_when_dropped() -> None:
    before = threading.active_count()
    store = open_store("memory://")
    with pytest.warns(ResourceWarning, match="never closed"):
        handle = make_producer(store).produce([b"one"])
    handle.watcher.await_durable(10)
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before
    assert entries_of(store) == [b"one"]


def test_should_open_by_url_and_name_wrong_settings(tmp_path: object) -> None:
    with Producer.open(store=f"{tmp_path}/queue", flush_interval_ms=NEVER_MS) as producer:
        producer.produce([b"one"])
        assert "queue" in repr(producer)
    assert entries_of(open_store(f"{tmp_path}/queue")) == [b"one"]
    with pytest.raises(InvalidConfig, match="flush_interval_ms"):
        Producer.open(store="memory://", flush_intervall_ms=5)


def test_should_count_what_was_flushed() -> None:
    names = ["batches_flushed", "entries_flushed", "bytes_flushed", "bytes_written", "flush_duration_seconds"]
    metrics_reader.reader()
    before = [metrics_reader.value(f"buffer.{name}") for name in names]
    store = open_store("memory://")
    with make_producer(store, compression="zstd") as producer:
        producer.produce([b"x" * 1000, b""])
        producer.flush()
        producer.produce([b"y" * 10])
    written = sum(len(store.get(location).data) for location in objects_of(store))
    counted = [metrics_reader.value(f"buffer.{name}") - b for name, b in zip(names, before, strict=True)]
    assert counted == [2, 3, 1010, written, 2]


# Places


@pytest.mark.parametrize("prefix", ["a#b", "a%b", "mit Leerzeichen", "日本"])
def test_should_use_any_prefix_as_it_is(shared_address: StoreAddress, prefix: str) -> None:
    path = f"{prefix}/manifest"
    with make_producer(
        shared_address.url,
        store_options=shared_address.options,
        data_path_prefix=prefix,
        manifest_path=path,
    ) as producer:
        for index in range(3):
            producer.produce([b"%d" % index])
            producer.flush()
    store = shared_address.open()
    assert entries_of(store, path) == [b"0", b"1", b"2"]
    assert objects_of(store, prefix) == {entry.location for entry in queue_of(store, path)}
    assert all(entry.location.startswith(f"{prefix}/") for entry in queue_of(store, path))


# asyncio


def test_should_await_handles_in_asyncio() -> None:
    store = open_store("memory://")

    async def main(producer: Producer) -> list[Durable]:
        handles = [await producer.produce_async([b"%d" % index]) for index in range(100)]
        return list(await asyncio.gather(*handles))

    with make_producer(store, flush_interval_ms=10) as producer:
        results = asyncio.run(main(producer))
        again = asyncio.run(_await_one(producer))
    assert {result.location for result in results} <= objects_of(store)
    assert again.sequence == len(queue_of(store)) - 1
    assert entries_of(store) == [*[b"%d" % index for index in range(100)], b"again"]


def test_should_let_the_event_loop_run_while_a_handle_is_awaited() -> None:
    store = HeldStore(open_store("memory://"))

    async def main(producer: Producer) -> Durable:
        with ExitStack() as held:
            held.enter_context(store.hold("put"))
            waiting = asyncio.ensure_future(await producer.produce_async([b"one"]))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            held.close()
            return await waiting

    with make_producer(store, flush_interval_ms=1) as producer:
        assert asyncio.run(main(producer)).sequence == 0


async def _await_one(producer: Producer) -> Durable:
    handle = await producer.produce_async([b"again"])
    assert await handle == await handle.watcher, "a settled handle can be awaited again"
    return await handle


def test_should_not_block_the_event_loop_while_there_is_no_room() -> None:
    inner = open_store("memory://")
    store = HeldStore(inner)

    async def main(producer: Producer) -> int:
        ticks = 0
        with store.hold("put"):
            await producer.produce_async([b"x" * 100])
            waiting = [asyncio.create_task(producer.produce_async([b"%d" % i * 100])) for i in range(3)]
            while ticks < 20:
                await asyncio.sleep(0.002)
                ticks += 1
            assert not any(task.done() for task in waiting)
            waiting[1].cancel()
        for task in (waiting[0], waiting[2]):
            await (await task)
        return ticks

    with make_producer(store, max_buffered_bytes=130, flush_interval_ms=5) as producer:
        asyncio.run(main(producer))
    assert sorted(entries_of(inner)) == sorted([b"x" * 100, b"0" * 100, b"2" * 100])


def test_should_survive_an_event_loop_that_is_gone() -> None:
    inner = open_store("memory://")
    store = HeldStore(inner)

    async def main(producer: Producer) -> None:
        handle = await producer.produce_async([b"one"])
        waiting = asyncio.ensure_future(handle)
        await asyncio.sleep(0)
        waiting.cancel()

    with make_producer(store) as producer:
        with store.hold("put"):
            asyncio.run(main(producer))
        producer.flush()
        producer.produce([b"two"])
    assert entries_of(inner) == [b"one", b"two"]


def test_should_let_calls_in_by_the_order_in_which_they_came() -> None:
    # A large call waits for much room; small ones that come later must not take it away again and again.
    inner = open_store("memory://")
    store = HeldStore(inner)
    with make_producer(store, max_buffered_bytes=1000) as producer:
        with store.hold("put"):
            producer.produce([b"x" * 500])
            large = threading.Thread(target=producer.produce, args=([b"L" * 900],))
            large.start()
            store.await_waiting(1)
            small = threading.Thread(target=producer.produce, args=([b"s"],))
            small.start()
            small.join(0.1)
            assert small.is_alive(), "there is room for it, but not its turn"
        large.join(10)
        small.join(10)
        producer.flush()
    assert entries_of(inner) == [b"x" * 500, b"L" * 900, b"s"]
