"""Fetching: retries that end, two reads before a batch is called corrupt, threads and other processes."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from buffer.batch import decode_batch, encode_batch
from buffer.consumer import Consumer
from buffer.errors import CorruptBatch, InvalidInput, ObjectNotFound, StorageError, StoreUnusable, Throttled
from buffer.fetch import BACKOFF_MAX_S, FetchHandle
from buffer.model import BatchDescriptor, ConsumedBatch, Metadata
from buffer.store.base import Object, Store
from buffer.testing.clock import ManualClock
from buffer.testing.faulty import Fault, FaultyStore
from tests.consumer_support import KINDS, Tapped, config, fill, make_store
from tests.metrics_reader import reader, value

LOCATION = "ingest/01J00000000000000000000000.batch"
DESCRIPTOR = BatchDescriptor(7, LOCATION, (Metadata(0, 5, b"m"),))
ENTRIES = [b"a", b"", b"ccc"]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    store = make_store(request.param, tmp_path)
    store.put(LOCATION, encode_batch(ENTRIES))
    return store


@pytest.fixture
def memory(tmp_path: Path) -> Store:
    store = make_store("memory", tmp_path)
    store.put(LOCATION, encode_batch(ENTRIES))
    return store


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_should_fetch_entries_arrow_and_raw_bytes(store: Store, compression: str) -> None:
    data = encode_batch(ENTRIES, compression)
    store.put(LOCATION, data)
    handle = FetchHandle(store)
    batch = handle.fetch(DESCRIPTOR)
    assert (batch.sequence, batch.location, batch.metadata) == (7, LOCATION, DESCRIPTOR.metadata)
    assert batch.entries == ENTRIES
    array = handle.fetch_arrow(DESCRIPTOR)
    assert array.type == pa.binary()
    assert array.to_pylist() == ENTRIES
    raw = handle.fetch_raw(DESCRIPTOR)
    assert (raw.descriptor, raw.data) == (DESCRIPTOR, data)
    assert decode_batch(raw.data) == ENTRIES


def test_should_touch_nothing_but_the_batch(memory: Store) -> None:
    tapped = Tapped(memory)
    handle = FetchHandle(tapped)
    handle.fetch(DESCRIPTOR)
    handle.fetch_raw(DESCRIPTOR)
    handle.fetch_arrow(DESCRIPTOR)
    assert tapped.calls == [("get", LOCATION)] * 3


# Stores that fail

CALLS: dict[str, Callable[[FetchHandle], object]] = {
    "fetch": lambda h: h.fetch(DESCRIPTOR),
    "fetch_raw": lambda h: h.fetch_raw(DESCRIPTOR),
    "fetch_arrow": lambda h: h.fetch_arrow(DESCRIPTOR),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", [StorageError, Throttled])
def test_should_retry_what_the_store_calls_retryable(memory: Store, call: str, kind: type[StorageError]) -> None:
    faulty = FaultyStore(memory, [Fault.before("get", kind, times=4)])
    clock = ManualClock()
    CALLS[call](FetchHandle(faulty, attempts=5, clock=clock))
    assert faulty.unused == []
    assert len(clock.sleeps) == 4
    assert all(0 < pause <= BACKOFF_MAX_S for pause in clock.sleeps)
    assert clock.sleeps[-1] > clock.sleeps[0], "pauses grow"


@pytest.mark.parametrize("attempts", [1, 3])
def test_should_give_up_after_its_attempts(memory: Store, attempts: int) -> None:
    faulty = FaultyStore(memory, [Fault.before("get", times=100)])
    clock = ManualClock()
    with pytest.raises(StorageError) as caught:
        FetchHandle(faulty, attempts=attempts, clock=clock).fetch(DESCRIPTOR)
    assert caught.value.location == LOCATION
    assert len(faulty.history) == attempts
    assert len(clock.sleeps) == attempts - 1


def test_should_bound_the_pause_between_attempts(memory: Store) -> None:
    clock = ManualClock()
    with pytest.raises(StorageError):
        FetchHandle(FaultyStore(memory, [Fault.before("get", times=100)]), attempts=20, clock=clock).fetch(DESCRIPTOR)
    assert max(clock.sleeps) <= BACKOFF_MAX_S


def test_should_not_retry_what_cannot_get_better(memory: Store) -> None:
    clock = ManualClock()
    # The second fault calls itself retryable, and is not believed: an object that is gone stays gone.
    faulty = FaultyStore(memory, [Fault.before("get", StoreUnusable), Fault.before("get", ObjectNotFound)])
    for refusal in (StoreUnusable, ObjectNotFound):
        with pytest.raises(refusal):
            FetchHandle(faulty, clock=clock).fetch(DESCRIPTOR)
    missing = BatchDescriptor(8, "ingest/nothing.batch")
    with pytest.raises(ObjectNotFound) as caught:
        FetchHandle(faulty, clock=clock).fetch(missing)
    assert caught.value.location == missing.location
    assert len(faulty.history) == 3
    assert clock.sleeps == []


def test_should_refuse_to_make_no_attempt_at_all(memory: Store) -> None:
    with pytest.raises(InvalidInput, match="attempts=0"):
        FetchHandle(memory, attempts=0)


# Damage


def test_should_name_the_location_of_a_corrupt_batch_after_two_reads(memory: Store) -> None:
    memory.put(LOCATION, encode_batch(ENTRIES)[:-1])
    tapped = Tapped(memory)
    clock = ManualClock()
    with pytest.raises(CorruptBatch, match="sequence 7") as caught:
        FetchHandle(tapped, clock=clock).fetch(DESCRIPTOR)
    assert caught.value.location == LOCATION
    assert LOCATION in str(caught.value)
    assert tapped.calls == [("get", LOCATION)] * 2
    assert clock.sleeps == []


def test_should_recover_from_a_body_that_was_cut_on_the_way(memory: Store) -> None:
    class CutsOnce(Tapped):
        def get(self, location: str) -> Object:
            found = super().get(location)
            return Object(found.data[:-3], found.version) if len(self.calls) == 1 else found

    assert FetchHandle(CutsOnce(memory)).fetch(DESCRIPTOR).entries == ENTRIES


def test_should_pass_damaged_bytes_on_when_asked_for_raw_ones(memory: Store) -> None:
    memory.put(LOCATION, b"damaged")
    assert FetchHandle(memory).fetch_raw(DESCRIPTOR).data == b"damaged"


def test_should_refuse_a_batch_that_expands_too_far(memory: Store) -> None:
    memory.put(LOCATION, encode_batch([bytes(10_000)], "zstd"))
    assert FetchHandle(memory, max_batch_bytes=20_000).fetch(DESCRIPTOR).entries == [bytes(10_000)]
    with pytest.raises(CorruptBatch):
        FetchHandle(memory, max_batch_bytes=9_999).fetch(DESCRIPTOR)


def test_should_keep_the_location_when_the_error_crosses_a_process(memory: Store) -> None:
    memory.put(LOCATION, b"damaged")
    with pytest.raises(CorruptBatch) as caught:
        FetchHandle(memory).fetch(DESCRIPTOR)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.location, str(copy)) == (LOCATION, str(caught.value))


# Threads and processes


def test_should_fetch_from_many_threads_at_once(store: Store) -> None:
    descriptors = fill(store, 40, entries=lambda i: [b"%d" % i] * i)
    handle = FetchHandle(store)
    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(handle.fetch, descriptors))
    assert [batch.entries for batch in batches] == [[b"%d" % i] * i for i in range(40)]


def test_should_fetch_from_other_processes(tmp_path: Path) -> None:
    store = make_store("local", tmp_path)
    descriptors = fill(store, 6, metadata=[Metadata(0, 1, b"m")])
    with Consumer.new(config(store)) as consumer:
        handed_out = consumer.next_descriptors(6)
        handle = consumer.fetch_handle()
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
            fetched = list(pool.map(handle.fetch, handed_out))
            missing = pool.submit(handle.fetch, BatchDescriptor(9, "ingest/nothing.batch"))
            assert isinstance(missing.exception(), ObjectNotFound)
        assert fetched == [handle.fetch(d) for d in descriptors]
        assert all(isinstance(batch, ConsumedBatch) for batch in fetched)
        consumer.ack_through(5)


def test_should_pickle_with_its_store(tmp_path: Path) -> None:
    store = make_store("local", tmp_path)
    fill(store)
    handle = FetchHandle(store, max_batch_bytes=123, attempts=2)
    copy = pickle.loads(pickle.dumps(handle))
    assert (copy.max_batch_bytes, copy.attempts, copy.store.url) == (123, 2, store.url)


def test_should_refuse_to_pickle_with_a_memory_store(memory: Store) -> None:
    with pytest.raises(InvalidInput, match="memory"):
        pickle.dumps(FetchHandle(memory))


def test_should_count_what_it_fetches(memory: Store) -> None:
    reader()
    names = ["batches_collected", "entries_collected", "bytes_collected", "fetch_duration_seconds"]
    before = [value(f"buffer.{name}") for name in names]
    handle = FetchHandle(memory)
    handle.fetch(DESCRIPTOR)
    handle.fetch_raw(DESCRIPTOR)
    with pytest.raises(ObjectNotFound):
        handle.fetch(BatchDescriptor(8, "ingest/nothing.batch"))
    size = len(memory.get(LOCATION).data)
    after = [value(f"buffer.{name}") for name in names]
    assert [now - was for now, was in zip(after, before, strict=True)] == [2, 3, 2 * size, 2]
