"""The consumer through its public door: what the reference implementation tests of its own, row by row.

Where ours differs on purpose the docstring says so. More of our own in test_consumer_state.py.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from buffer.clock import SystemClock
from buffer.codec.batch import encode_batch
from buffer.config import ConsumerConfig
from buffer.consume.consumer import Consumer
from buffer.errors import Fenced, ManifestLost, ObjectNotFound, OutOfOrderAck
from buffer.gc.collector import Collector
from buffer.model import BatchDescriptor, Metadata
from buffer.queue import QueueProducer
from buffer.store.base import Store
from tests.consume.consumer_support import Tapped, config, fill, manifest_of, ulid_at
from tests.servers import StoreAddress


def read(consumer: Consumer) -> int:
    """The sequence of the next batch, which must be there."""
    batch = consumer.next_batch()
    assert batch is not None
    return batch.sequence


def test_should_collect_enqueued_batch(store: Store) -> None:
    (descriptor,) = fill(store, entries=lambda _: [b"a", b"", b"c"])
    batch = Consumer.new(config(store)).next_batch()
    assert batch is not None
    assert batch.entries == [b"a", b"", b"c"]
    assert batch.to_arrow().to_pylist() == batch.entries
    assert (batch.sequence, batch.location, len(batch)) == (0, descriptor.location, 3)


def test_should_collect_metadata_from_queue_entry(store: Store) -> None:
    items = (Metadata(0, 1_700_000_000_000, b"first"), Metadata(2, 1_700_000_000_007, b""))
    fill(store, metadata=items)
    batch = Consumer.new(config(store)).next_batch()
    assert batch is not None
    assert batch.metadata == items


def test_should_return_none_when_queue_empty(store: Store) -> None:
    assert Consumer.new(config(store)).next_batch() is None


def test_should_ack_batch(store: Store) -> None:
    fill(store)
    consumer = Consumer.new(config(store))
    consumer.ack(read(consumer))
    consumer.flush()
    assert len(manifest_of(store)) == 0
    assert len(consumer) == 0


def test_should_next_batch_return_batch_after_last_acked(store: Store) -> None:
    fill(store, 2)
    consumer = Consumer.new(config(store))
    consumer.ack(read(consumer))
    assert read(consumer) == 1


def test_should_next_batch_advance_before_previous_batch_is_acked(store: Store) -> None:
    fill(store, 3)
    consumer = Consumer.new(config(store))
    assert [read(consumer) for _ in range(3)] == [0, 1, 2]
    assert consumer.next_batch() is None


def test_should_next_batch_return_none_when_no_more_entries(store: Store) -> None:
    fill(store)
    consumer = Consumer.new(config(store))
    consumer.ack(read(consumer))
    assert consumer.next_batch() is None
    assert len(manifest_of(store)) == 1, "the ack is not dequeued yet"


def test_should_resume_from_last_acked_sequence(store: Store) -> None:
    fill(store, 2)
    assert read(Consumer.new(config(store), 0)) == 1


def test_should_reject_out_of_order_ack(store: Store) -> None:
    fill(store, 6)
    consumer = Consumer.new(config(store))
    for _ in range(6):
        read(consumer)
    consumer.ack(0)
    with pytest.raises(OutOfOrderAck, match="out-of-order ack") as caught:
        consumer.ack(5)
    assert (caught.value.sequence, caught.value.expected) == (5, 1)
    assert consumer.last_acked == 0


def test_should_batch_dequeue_calls(store: Store) -> None:
    fill(store, 101)
    tapped = Tapped(store)
    consumer = Consumer.new(config(tapped))
    consumer.next_descriptors(101)
    tapped.calls.clear()
    for sequence in range(99):
        consumer.ack(sequence)
    assert {operation for operation, _ in tapped.calls} == {"get_if_changed"}, "a look each, and no write"
    assert len(tapped.calls) == 99
    consumer.ack(99)
    assert tapped.calls[-1][0] == "put_if_match"
    consumer.ack(100)
    assert len(manifest_of(store)) == 1
    consumer.flush()
    assert len(manifest_of(store)) == 0


def test_should_flush_pending_acks(store: Store) -> None:
    """The reference's length counts what is in the manifest; `len` of ours what is not acked, flushed or not."""
    fill(store, 2)
    consumer = Consumer.new(config(store))
    consumer.ack(read(consumer))
    assert (len(consumer.manifest()), len(consumer)) == (2, 1)
    consumer.flush()
    assert (len(consumer.manifest()), len(consumer)) == (1, 1)


def test_should_close_flush_and_consume(store: Store) -> None:
    fill(store, 2)
    consumer = Consumer.new(config(store))
    consumer.ack(read(consumer))
    consumer.close()
    assert [entry.sequence for entry in manifest_of(store)] == [1]


def test_should_fence_previous_collector(store: Store) -> None:
    fill(store)
    old = Consumer.new(config(store))
    new = Consumer.new(config(store))
    with pytest.raises(Fenced) as caught:
        old.next_batch()
    assert (caught.value.epoch, caught.value.current_epoch) == (old.epoch, new.epoch)
    assert read(new) == 0


def test_should_iterate_multiple_sequential_batches(store: Store) -> None:
    fill(store, 3)
    consumer = Consumer.new(config(store))
    seen = []
    while (batch := consumer.next_batch()) is not None:
        seen += batch.entries
        consumer.ack(batch.sequence)
    assert seen == [b"0", b"1", b"2"]


def test_should_initialize_none_with_pre_existing_entries(store: Store) -> None:
    fill(store, 6)
    Consumer.new(config(store), 4).close()
    consumer = Consumer.new(config(store))
    assert read(consumer) == 5
    consumer.ack(5)
    assert consumer.last_acked == 5


def test_should_initialize_with_sequence_dequeue_already_processed(store: Store) -> None:
    fill(store, 2)
    Consumer.new(config(store), 0)
    assert [entry.sequence for entry in manifest_of(store)] == [1]


def test_should_next_descriptors_max_zero_return_empty_without_manifest_read(store: Store) -> None:
    fill(store)
    tapped = Tapped(store)
    consumer = Consumer.new(config(tapped))
    tapped.calls.clear()
    assert consumer.next_descriptors(0) == []
    assert tapped.calls == []
    assert read(consumer) == 0


def test_should_next_descriptors_return_contiguous_run_when_available(store: Store) -> None:
    expected = fill(store, 5)
    tapped = Tapped(store)
    consumer = Consumer.new(config(tapped))
    tapped.calls.clear()
    assert consumer.next_descriptors(3) == expected[:3]
    assert tapped.calls == [("get_if_changed", "ingest/manifest")], "one manifest read, no fetch"
    assert consumer.next_descriptors(3) == expected[3:]
    assert consumer.next_descriptors(3) == []


def test_should_next_descriptors_return_fewer_than_max_on_short_manifest(store: Store) -> None:
    expected = fill(store, 2)
    assert Consumer.new(config(store)).next_descriptors(10) == expected


def test_should_fetch_handle_return_same_consumed_batch_as_fetch_descriptor(store: Store) -> None:
    fill(store, metadata=[Metadata(0, 1, b"m")])
    consumer = Consumer.new(config(store))
    (descriptor,) = consumer.next_descriptors(1)
    assert consumer.fetch_handle().fetch(descriptor) == consumer.fetch_descriptor(descriptor)


def test_should_next_batch_not_advance_cursor_on_fetch_failure(store: Store) -> None:
    (descriptor,) = fill(store)
    data = store.get(descriptor.location).data
    store.delete_many([descriptor.location])
    consumer = Consumer.new(config(store))
    with pytest.raises(ObjectNotFound) as caught:
        consumer.next_batch()
    assert caught.value.location == descriptor.location
    assert consumer.cursor == 0
    store.put(descriptor.location, data)
    assert read(consumer) == 0


def test_should_next_batch_not_advance_cursor_when_future_is_dropped(store: Store) -> None:
    """There are no futures to drop here; a fetch that is interrupted is the same thing."""
    (descriptor,) = fill(store)

    def interrupt(operation: str, location: str) -> None:
        if location == descriptor.location:
            raise KeyboardInterrupt

    tapped = Tapped(store, interrupt)
    consumer = Consumer.new(config(tapped))
    with pytest.raises(KeyboardInterrupt):
        consumer.next_batch()
    assert consumer.cursor == 0
    tapped.tap = None
    assert read(consumer) == 0


def test_should_next_batch_advance_cursor_on_successful_fetch(store: Store) -> None:
    fill(store, 2)
    consumer = Consumer.new(config(store))
    for expected in (0, 1):
        assert consumer.cursor == expected
        assert read(consumer) == expected
    assert consumer.cursor == 2


def test_should_fetch_handle_clones_fetch_concurrently_without_blocking_owner(store: Store) -> None:
    fill(store, 4)
    consumer = Consumer.new(config(store))
    descriptors = consumer.next_descriptors(4)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(consumer.fetch_handle().fetch, d) for d in descriptors]
        consumer.ack_through(0)
        assert [f.result().entries for f in futures] == [[b"0"], [b"1"], [b"2"], [b"3"]]
    assert consumer.last_acked == 0


def test_should_ack_through_advance_frontier_in_one_call(store: Store) -> None:
    fill(store, 5)
    consumer = Consumer.new(config(store))
    consumer.next_descriptors(5)
    consumer.ack_through(3)
    assert [entry.sequence for entry in manifest_of(store)] == [4]
    assert consumer.last_acked == 3


def test_should_ack_through_reject_non_monotonic_input(store: Store) -> None:
    fill(store, 5)
    consumer = Consumer.new(config(store))
    consumer.next_descriptors(5)
    consumer.ack_through(2)
    for stale in (2, 1):
        with pytest.raises(OutOfOrderAck, match="non-monotonic ack_through"):
            consumer.ack_through(stale)
    assert consumer.last_acked == 2
    assert len(manifest_of(store)) == 2


def test_should_ack_through_only_the_batch_that_was_handed_out(store: Store) -> None:
    """Ours alone: a caller that names the batch is safe from a manifest that was put back meanwhile."""
    fill(store, 3)
    consumer = Consumer.new(config(store))
    taken = consumer.next_descriptors(3)
    with pytest.raises(ManifestLost, match="sequence 1 of"):
        consumer.ack_through(1, location=taken[2].location)
    assert consumer.last_acked is None
    assert len(manifest_of(store)) == 3
    consumer.ack_through(1, location=taken[1].location)
    assert len(manifest_of(store)) == 1


def test_should_ack_through_leave_state_unchanged_on_fence(store: Store) -> None:
    fill(store, 3)
    consumer = Consumer.new(config(store))
    consumer.next_descriptors(3)
    consumer.ack_through(0)
    Consumer.new(config(store))
    with pytest.raises(Fenced):
        consumer.ack_through(2)
    assert consumer.last_acked == 0
    assert len(manifest_of(store)) == 2


def test_should_next_descriptors_surface_fence(store: Store) -> None:
    fill(store)
    consumer = Consumer.new(config(store))
    Consumer.new(config(store))
    with pytest.raises(Fenced):
        consumer.next_descriptors(1)
    assert consumer.cursor == 0


def test_should_next_batch_be_equivalent_to_descriptor_plus_fetch(store: Store) -> None:
    fill(store, metadata=[Metadata(0, 5, b"m")])
    by_batch = Consumer.new(config(store)).next_batch()
    consumer = Consumer.new(config(store))
    (descriptor,) = consumer.next_descriptors(1)
    assert consumer.fetch_descriptor(descriptor) == by_batch


def test_should_descriptor_handout_contract_not_reissue_lost_descriptors(store: Store) -> None:
    handed_out = fill(store, 3)
    consumer = Consumer.new(config(store))
    assert consumer.next_descriptors(2) == handed_out[:2]
    assert consumer.next_descriptors(2) == handed_out[2:]
    assert Consumer.new(config(store)).next_descriptors(3) == handed_out


@pytest.mark.parametrize("prefix", ["a#b", "a%b", "mit Leerzeichen", "日本"])
def test_should_consume_and_collect_below_any_prefix(shared_address: StoreAddress, prefix: str) -> None:
    store = shared_address.open()
    old, new = (f"{prefix}/{ulid}.batch" for ulid in (ulid_at(1), SystemClock().new_ulid()))
    for location in (old, new):
        store.put(location, encode_batch([b"x"]))
    QueueProducer(store, f"{prefix}/manifest", SystemClock()).append_locations([(old, ()), (new, ())])
    settings = ConsumerConfig(
        store=shared_address.url,
        store_options=shared_address.options,
        manifest_path=f"{prefix}/manifest",
        data_path_prefix=prefix,
    )
    with Consumer.new(settings) as consumer:
        assert consumer.next_descriptors(2) == [BatchDescriptor(0, old), BatchDescriptor(1, new)]
        assert consumer.fetch_descriptor(BatchDescriptor(0, old)).entries == [b"x"]
        consumer.ack_through(0)
    collector = Collector(settings.gc())
    collector.collect_once()
    assert collector.collect_once().deleted == (old,)
    assert {item.location for item in store.list(prefix)} == {new, f"{prefix}/manifest"}
