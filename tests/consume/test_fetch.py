"""Fetching: retries that end, two reads before a batch is called corrupt, threads and other processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from buffer.codec.batch import decode_batch, encode_batch
from buffer.consume.consumer import Consumer
from buffer.consume.fetch import FETCH_BACKOFF, FetchHandle
from buffer.errors import (
    CorruptBatch,
    InvalidConfig,
    InvalidInput,
    LocationRefused,
    ObjectNotFound,
    StorageError,
    StoreUnusable,
    Throttled,
)
from buffer.model import BatchDescriptor, ConsumedBatch, Metadata
from buffer.names import location_problem
from buffer.store import open_store
from buffer.store.base import Object, Store
from buffer.testing.clock import ManualClock
from buffer.testing.faulty import Fault, FaultyStore
from tests.consume.consumer_support import Tapped, config, fill
from tests.metrics_reader import value

LOCATION = "ingest/01J00000000000000000000000.batch"
DESCRIPTOR = BatchDescriptor(7, LOCATION, (Metadata(0, 5, b"m"),))
ENTRIES = [b"a", b"", b"ccc"]


@pytest.fixture
def store(store: Store) -> Store:
    store.put(LOCATION, encode_batch(ENTRIES))
    return store


@pytest.fixture
def memory(memory: Store) -> Store:
    memory.put(LOCATION, encode_batch(ENTRIES))
    return memory


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


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_should_count_entries_without_reading_them(store: Store, compression: str) -> None:
    """Also of a batch whose block is damaged, or ends whoever decodes it."""
    data = encode_batch(ENTRIES, compression)
    store.put(LOCATION, b"x" * (len(data) - 7) + data[-7:])
    assert FetchHandle(store).count(DESCRIPTOR) == len(ENTRIES)
    for short in (b"short", b""):
        store.put(LOCATION, short)
        with pytest.raises(CorruptBatch, match="footer of 7 bytes"):
            FetchHandle(store).count(DESCRIPTOR)
    with pytest.raises(LocationRefused):
        FetchHandle(store, prefixes=("elsewhere",)).count(DESCRIPTOR)


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
    assert all(0 < pause <= FETCH_BACKOFF.max_s for pause in clock.sleeps)
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
    assert max(clock.sleeps) <= FETCH_BACKOFF.max_s


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
    store = open_store(tmp_path / "store")
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
    store = open_store(tmp_path / "store")
    fill(store)
    handle = FetchHandle(store, max_batch_bytes=123, attempts=2)
    copy = pickle.loads(pickle.dumps(handle))
    assert (copy.max_batch_bytes, copy.attempts, copy.store.url) == (123, 2, store.url)


def test_should_refuse_to_pickle_with_a_memory_store(memory: Store) -> None:
    with pytest.raises(InvalidInput, match="memory"):
        pickle.dumps(FetchHandle(memory))


def test_should_count_what_it_fetches(memory: Store) -> None:
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


# Locations that are not the queue's

OUTSIDE = [
    "other/secret.txt",
    "secret.txt",
    "ingest",
    "ingest2/x.batch",
    "INGEST/x.batch",
    "../secret",
    "../../etc/passwd",
    "ingest/../other/secret.txt",
    "ingest/./x.batch",
    "/ingest/x.batch",
    "/etc/passwd",
    "ingest//x.batch",
    "ingest/x.batch/",
    "ingest/",
    "",
    "ingest/%2e%2e/other/secret.txt",
    "ingest/%2E./secret",
    "ingest/..%2fother%2fsecret.txt",
    "ingest/%252e%252e/secret",
    "ingest/x%2Fy",
    "ingest/x%00y",
    "ingest\\..\\other",
    "ingest/..\\other",
    "ingest/x%5cy",
    "ingest/x\0y",
    "ingest/x\ny",
    "file:///etc/passwd",
    "s3://bucket/key",
]


@pytest.mark.parametrize("location", OUTSIDE)
def test_should_refuse_a_location_outside_the_prefix(store: Store, location: str) -> None:
    reads: list[tuple[str, str]] = []
    tapped = Tapped(store, lambda *call: reads.append(call))
    handle = FetchHandle(tapped, prefixes=("ingest", "100%/a b#"), attempts=1)
    descriptor = BatchDescriptor(7, location)
    for call in (handle.fetch, handle.fetch_arrow, handle.fetch_raw):
        with pytest.raises(LocationRefused, match="sequence 7") as caught:
            call(descriptor)
        assert caught.value.location == location
        assert isinstance(caught.value, CorruptBatch)
        assert not isinstance(caught.value, StorageError)
    assert reads == []
    assert handle.refusal(descriptor)


@pytest.mark.parametrize(
    "location",
    [
        "ingest/01J00000000000000000000000.batch",
        "ingest/01J00000000000000000000000/00000000000000ff",
        "ingest/deeper/still/x",
        "100%/a b#/x.batch",
        "ingest/50%.batch",
        "ingest/a..b",
        "ingest/日本",
    ],
)
def test_should_read_whatever_lies_inside_a_prefix(location: str) -> None:
    assert location_problem(location, ("ingest", "100%/a b#")) is None


def test_should_name_the_setting_that_lets_older_batches_in(store: Store) -> None:
    store.put("old/a.batch", encode_batch(ENTRIES))
    descriptor = BatchDescriptor(7, "old/a.batch")
    with pytest.raises(LocationRefused, match="former_prefixes"):
        FetchHandle(store, prefixes=config(store).prefixes()).fetch(descriptor)
    settings = config(store, former_prefixes=["older", "old"])
    assert settings.former_prefixes == ("older", "old")
    assert FetchHandle(store, prefixes=settings.prefixes()).fetch(descriptor).entries == ENTRIES


def test_should_keep_the_prefixes_when_pickled(tmp_path: Path) -> None:
    handle = FetchHandle(open_store(str(tmp_path / "store")), prefixes=("ingest",))
    again = pickle.loads(pickle.dumps(handle))
    with pytest.raises(LocationRefused):
        again.fetch(BatchDescriptor(7, "other/secret.txt"))


@pytest.mark.parametrize(
    "location", ["a" * 300, "/".join(["a" * 200] * 30), ".buffer-locks/0001", "x/.buffer-tmp-1", "a\ud800"]
)
def test_should_blame_the_data_for_a_location_that_the_store_does_not_accept(tmp_path: Path, location: str) -> None:
    store = open_store(str(tmp_path / "store"))
    store.put(LOCATION, encode_batch(ENTRIES))
    with pytest.raises(LocationRefused):
        FetchHandle(store).fetch(BatchDescriptor(7, location))


def test_should_blame_the_data_for_a_pipe_or_a_link(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    store.put("ingest/a", b"")
    os.mkfifo(tmp_path / "store/ingest/pipe")
    (tmp_path / "store/ingest/link").symlink_to("/etc/passwd")
    (tmp_path / "store/ingest/away").symlink_to("/etc")
    for name in ("pipe", "link", "away/passwd"):
        with pytest.raises(LocationRefused):
            FetchHandle(store, prefixes=("ingest",)).fetch(BatchDescriptor(7, f"ingest/{name}"))


@pytest.mark.parametrize("prefixes", ["old", [""], ["/old"], ["a//b"], [7], ["../x"], 7])
def test_should_refuse_former_prefixes_that_are_no_paths(memory: Store, prefixes: object) -> None:
    with pytest.raises(InvalidConfig, match="former_prefixes"):
        config(memory, former_prefixes=prefixes)


# Sizes


def test_should_not_read_an_object_that_is_too_large_for_a_batch(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    store.put(LOCATION, encode_batch(ENTRIES))
    os.truncate(tmp_path / "store" / LOCATION, 6 << 30)  # sparse; reading it would take 6 GiB
    handle = FetchHandle(store, max_batch_bytes=1 << 20)
    for call in (handle.fetch, handle.fetch_arrow, handle.fetch_raw):
        with pytest.raises(CorruptBatch, match="6,442,450,944 bytes"):
            call(DESCRIPTOR)


def test_should_still_read_a_batch_that_compression_made_larger(store: Store) -> None:
    entry = random.Random(1).randbytes(100_000)
    data = encode_batch([entry], "zstd")
    assert len(data) > 100_004
    store.put(LOCATION, data)
    assert FetchHandle(store, max_batch_bytes=100_004).fetch(DESCRIPTOR).entries == [entry]


def test_should_tell_what_a_batch_expands_to_before_it_does(memory: Store) -> None:
    memory.put(LOCATION, encode_batch([bytes(1_000_000)], "zstd"))
    reserved: list[int] = []
    FetchHandle(memory).fetch_within(DESCRIPTOR, reserved.append)
    assert reserved == [1_000_004]
