"""The producer through its public door: what is in the store afterwards, and what its callers are told."""

from __future__ import annotations

import threading
import time

import pyarrow as pa
import pytest

from buffer.codec.batch import batch_info, decode_batch
from buffer.errors import InvalidInput
from buffer.model import Metadata
from buffer.produce.durability import Durable
from buffer.store import Store, open_store
from buffer.testing import ManualClock
from tests.nets import HANGS_S
from tests.produce.producer_support import (
    HeldStore,
    await_blocked,
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
        assert full.watcher.await_durable(HANGS_S) == small.watcher.await_durable(HANGS_S)
        assert batches_of(any_store) == [[b"x" * 40, b"x" * 60]]


def test_should_flush_when_interval_elapsed(any_store: Store) -> None:
    with make_producer(any_store, flush_interval_ms=200) as producer:
        started = time.monotonic()
        handle = producer.produce([b"one"])
        handle.watcher.await_durable(HANGS_S)
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
            await_blocked(producer, blocked)
        blocked.join(HANGS_S)
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
