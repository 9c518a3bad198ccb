"""When the producer flushes, whom it lets wait, in which order batches go, and how its life ends."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from contextlib import suppress

import pytest

from buffer.codec.batch import decode_batch
from buffer.errors import Closed, InvalidConfig
from buffer.manifest import Manifest
from buffer.produce.producer import Producer
from buffer.store import Store, open_store
from buffer.testing import ManualClock
from tests import metrics_reader
from tests.nets import HANGS_S, wait_until
from tests.produce.producer_support import (
    NEVER_MS,
    HeldStore,
    await_blocked,
    batches_of,
    entries_of,
    make_producer,
    objects_of,
    queue_of,
)

# Triggers and room


def test_should_flush_on_time_under_steady_load() -> None:
    # One thread that never pauses: the timer must fire all the same.
    store = open_store("memory://")
    with make_producer(store, flush_interval_ms=20) as producer:
        producer.produce([b"entry"]).watcher.await_durable(HANGS_S)  # makes the manifest
        deadline = time.monotonic() + HANGS_S
        flushed = 0
        while flushed < 50 and time.monotonic() < deadline:
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
        assert first.watcher.await_durable(HANGS_S) == second.watcher.await_durable(HANGS_S)


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
            await_blocked(producer, blocked)  # uploaded is not durable
        blocked.join(HANGS_S)
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
            await_blocked(producer, thread)
            assert produced == 1000 // 20
        thread.join(HANGS_S)
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
        blocked.join(HANGS_S)
        assert len(errors) == 1
    closing.join(HANGS_S)
    assert entries_of(inner) == [b"x" * 100]


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
            await_blocked(producer, large, small)  # there is room for it, but not its turn
        large.join(HANGS_S)
        small.join(HANGS_S)
        producer.flush()
    assert entries_of(inner) == [b"x" * 500, b"L" * 900, b"s"]


# Order


def test_should_overlap_uploads_with_appends_and_keep_produce_order(any_store: Store) -> None:
    store = HeldStore(any_store)
    with make_producer(store, flush_size_bytes=1, upload_concurrency=3) as producer:
        producer.produce([b"0"]).watcher.await_durable(HANGS_S)  # makes the manifest, so that later writes replace it
        with store.hold("put_if_match"):
            producer.produce([b"1"])
            store.await_waiting(1)  # the append of 1 is under way …
            for index in range(2, 8):
                producer.produce([b"%d" % index])
            wait_until(lambda: len(objects_of(any_store)) == 8)  # … and all others are uploaded meanwhile
        producer.flush()
        assert entries_of(any_store) == [b"%d" % index for index in range(8)]


def test_should_append_all_that_waits_in_one_write() -> None:
    writes = metrics_reader.value("buffer.manifest_writes", {"role": "producer"})
    inner = open_store("memory://")
    store = HeldStore(inner)
    with make_producer(store, flush_size_bytes=1) as producer:
        with store.hold("put_if_absent"):
            producer.produce([b"0"])
            store.await_waiting(1)
            for index in range(1, 20):
                producer.produce([b"%d" % index])
            wait_until(lambda: len(objects_of(inner)) == 20)
        producer.flush()
    assert entries_of(inner) == [b"%d" % index for index in range(20)]
    assert metrics_reader.value("buffer.manifest_writes", {"role": "producer"}) - writes == 2


def test_should_wait_for_an_earlier_slow_upload_before_appending_later_ones() -> None:
    inner = open_store("memory://")

    class SlowFirst(HeldStore):
        def put(self, location: str, data: bytes | memoryview) -> None:
            if b"slow" in bytes(data):
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
        assert fast.watcher.await_durable(HANGS_S).sequence == 1
    assert entries_of(inner) == [b"slow", b"fast"]


def test_should_serve_many_threads(any_store: Store) -> None:
    threads, calls = 8, 50
    with make_producer(any_store, flush_interval_ms=5, flush_size_bytes=2000, max_buffered_inputs=20) as producer:

        def produce(name: int) -> None:
            for index in range(calls):
                handle = producer.produce([b"%d/%d" % (name, index)], b"%d" % name)
            handle.watcher.await_durable(HANGS_S)

        running = [threading.Thread(target=produce, args=(name,)) for name in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(HANGS_S)
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


def test_should_take_infinity_for_as_long_as_it_takes() -> None:
    store = open_store("memory://")
    producer = make_producer(store)
    producer.produce([b"one"])
    producer.flush(timeout=math.inf)
    producer.produce([b"two"])
    producer.close(timeout=math.inf)
    assert entries_of(store) == [b"one", b"two"]


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
    handle.watcher.await_durable(HANGS_S)
    wait_until(lambda: threading.active_count() <= before)
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
    before = [metrics_reader.value(f"buffer.{name}") for name in names]
    store = open_store("memory://")
    with make_producer(store, compression="zstd") as producer:
        producer.produce([b"x" * 1000, b""])
        producer.flush()
        producer.produce([b"y" * 10])
    written = sum(len(store.get(location).data) for location in objects_of(store))
    counted = [metrics_reader.value(f"buffer.{name}") - b for name, b in zip(names, before, strict=True)]
    assert counted == [2, 3, 1010, written, 2]
