"""Acks in order from the first one on. A consumer that is fenced, or whose queue was replaced, stays put."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from buffer.consume.consumer import Consumer
from buffer.errors import (
    CorruptBatch,
    CorruptManifest,
    Fenced,
    InvalidInput,
    ManifestLost,
    OutOfOrderAck,
    QueueAheadOfConsumer,
    QueueBehindConsumer,
)
from buffer.ledger.plan import Ledger
from buffer.names import ledger_path
from buffer.store.base import Store
from tests.consume.consumer_support import (
    CALLS,
    MANIFEST,
    Tapped,
    assert_no_collectors,
    busy_consumer,
    collectors,
    config,
    fill,
    manifest_of,
    marks,
)

# Acking


def test_should_reject_the_first_ack_out_of_order(store: Store) -> None:
    """The reference takes any first ack. Ours must be the first batch handed out."""
    fill(store, 3)
    consumer = Consumer.new(config(store))
    consumer.next_descriptors(3)
    with pytest.raises(OutOfOrderAck) as caught:
        consumer.ack(1)
    assert caught.value.expected == 0
    assert consumer.last_acked is None
    consumer.ack(0)
    assert consumer.last_acked == 0


def test_should_reject_the_first_ack_that_does_not_follow_last_acked(store: Store) -> None:
    fill(store, 4)
    consumer = Consumer.new(config(store), 1)
    consumer.next_descriptors(4)
    for wrong in (1, 3):
        with pytest.raises(OutOfOrderAck):
            consumer.ack(wrong)
    consumer.ack(2)
    assert consumer.last_acked == 2


def test_should_reject_acks_of_what_was_not_handed_out(store: Store) -> None:
    fill(store, 3)
    consumer = Consumer.new(config(store))
    for ack in (consumer.ack, consumer.ack_through):
        with pytest.raises(OutOfOrderAck, match="not handed out"):
            ack(0)
    consumer.next_descriptors(2)
    with pytest.raises(OutOfOrderAck, match="not handed out"):
        consumer.ack_through(2)
    assert consumer.last_acked is None
    assert len(manifest_of(store)) == 3


def test_should_mix_ack_and_ack_through(store: Store) -> None:
    fill(store, 6)
    consumer = Consumer.new(config(store))
    consumer.next_descriptors(6)
    consumer.ack(0)
    consumer.ack_through(3)
    consumer.ack(4)
    consumer.ack(5)
    consumer.flush()
    assert consumer.last_acked == 5
    assert len(manifest_of(store)) == 0


def test_should_ack_in_order_from_many_threads(memory: Store) -> None:
    fill(memory, 150)
    consumer = Consumer.new(config(memory))
    consumer.next_descriptors(150)

    def work(rest: range) -> None:
        for sequence in rest:
            while True:
                try:
                    consumer.ack(sequence)
                    break
                except OutOfOrderAck:
                    time.sleep(0)

    threads = [threading.Thread(target=work, args=(range(i, 150, 3),)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert consumer.last_acked == 149
    assert len(manifest_of(memory)) == 50


# Fencing


@pytest.mark.parametrize("pending", [True, False], ids=["with-pending-acks", "all-flushed"])
@pytest.mark.parametrize("call", CALLS)
def test_should_raise_fenced_from_every_call_and_keep_state(store: Store, call: str, pending: bool) -> None:
    """The reference's ack looks at nothing but its own memory; ours fails."""
    consumer = busy_consumer(store, gc_enabled=True)
    if not pending:
        consumer.flush()
    newer = Consumer.new(config(store))
    before, held = marks(consumer), manifest_of(store)
    for _ in range(2):
        with pytest.raises(Fenced):
            CALLS[call](consumer)
        assert marks(consumer) == before
    assert manifest_of(store) == held
    assert newer.next_descriptors(1)[0].sequence == held.first_sequence


def test_should_raise_fenced_from_the_ack_that_would_dequeue(memory: Store) -> None:
    fill(memory, 120)
    consumer = Consumer.new(config(memory))
    consumer.next_descriptors(120)
    for sequence in range(99):
        consumer.ack(sequence)
    Consumer.new(config(memory))
    with pytest.raises(Fenced):
        consumer.ack(99)
    assert consumer.last_acked == 98
    assert len(manifest_of(memory)) == 120


def test_should_say_fenced_rather_than_missing_when_the_successor_collected_the_batch(store: Store) -> None:
    (descriptor,) = fill(store)
    tapped = Tapped(store)
    consumer = Consumer.new(config(tapped))

    def take_over(operation: str, location: str) -> None:
        if location == descriptor.location:
            tapped.tap = None
            successor = Consumer.new(config(store), 0)
            successor.close()
            store.delete_many([descriptor.location])

    tapped.tap = take_over
    with pytest.raises(Fenced):
        consumer.next_batch()


def test_should_stop_the_collector_when_fenced(memory: Store) -> None:
    consumer = Consumer.new(config(memory, gc_enabled=True))
    assert collectors() == 1
    Consumer.new(config(memory))
    with pytest.raises(Fenced):
        consumer.flush()
    assert_no_collectors()


# Durable state that does not fit


@pytest.mark.parametrize("last_acked", [3, 4, 2**64])
def test_should_raise_when_last_acked_is_beyond_the_queue(store: Store, last_acked: int) -> None:
    fill(store, 3)
    before = manifest_of(store)
    with pytest.raises(QueueBehindConsumer) as caught:
        Consumer.new(config(store), last_acked)
    assert (caught.value.last_acked, caught.value.next_sequence) == (last_acked, 3)
    assert manifest_of(store) == before, "nothing was claimed"


def test_should_raise_when_last_acked_meets_an_empty_store(store: Store) -> None:
    with pytest.raises(QueueBehindConsumer):
        Consumer.new(config(store), 0)
    assert list(store.list("ingest")) == []


def test_should_never_restart_at_0_when_the_manifest_is_lost(store: Store) -> None:
    consumer = busy_consumer(store)
    before = marks(consumer)
    store.delete_many([MANIFEST])
    for call in CALLS.values():
        with pytest.raises(ManifestLost):
            call(consumer)
        assert marks(consumer) == before
    with pytest.raises(ManifestLost):
        consumer.close()
    assert [item.location for item in store.list("ingest") if item.location == MANIFEST] == []


def test_should_never_restart_at_0_beside_a_ledger(store: Store) -> None:
    ledger = Ledger(queue_id="Q", born=True, epoch=4, next_sequence=9)
    store.put(ledger_path(MANIFEST), ledger.to_bytes())
    with pytest.raises(ManifestLost) as caught:
        Consumer.new(config(store))
    assert caught.value.seen_next_sequence == 9
    assert [item.location for item in store.list("ingest")] == [ledger_path(MANIFEST)]


def test_should_raise_when_the_manifest_went_back(store: Store) -> None:
    fill(store, 2)
    consumer = Consumer.new(config(store))
    backup = store.get(MANIFEST).data
    fill(store, 2)
    consumer.next_descriptors(4)
    store.put(MANIFEST, backup)
    with pytest.raises(ManifestLost) as caught:
        consumer.ack_through(1)
    assert (caught.value.next_sequence, caught.value.seen_next_sequence) == (2, 4)
    assert consumer.last_acked is None


def test_should_raise_when_the_manifest_of_a_drained_queue_went_back(store: Store) -> None:
    fill(store, 2)
    consumer = Consumer.new(config(store))
    backup = store.get(MANIFEST).data
    fill(store, 2)
    consumer.next_descriptors(4)
    consumer.ack_through(3)
    store.put(MANIFEST, backup)
    with pytest.raises(ManifestLost):
        consumer.next_batch()


def test_should_not_skip_in_silence_what_another_consumer_dequeued(store: Store) -> None:
    fill(store, 5)
    Consumer.new(config(store), 2)
    consumer = Consumer.new(config(store), 0)
    for read in (consumer.next_batch, lambda: next(consumer.batches())):
        with pytest.raises(QueueAheadOfConsumer, match="last_acked=2") as caught:
            read()
        assert (caught.value.expected, caught.value.first_sequence) == (1, 3)
    assert consumer.cursor == 1


def test_should_show_a_gap_in_descriptors_and_let_the_caller_decide(store: Store) -> None:
    fill(store, 5)
    Consumer.new(config(store), 2)
    consumer = Consumer.new(config(store), 0)
    assert [d.sequence for d in consumer.next_descriptors(10)] == [3, 4]
    consumer.ack_through(4)
    assert consumer.last_acked == 4
    assert len(consumer) == 0


@pytest.mark.parametrize("wrong", [-1, True, "3", 1.0])
def test_should_name_a_last_acked_that_cannot_be(memory: Store, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match=r"last_acked=.*None if there is none"):
        Consumer.new(config(memory), wrong)


def test_should_refuse_a_negative_number_of_descriptors(memory: Store) -> None:
    with pytest.raises(InvalidInput, match="-1"):
        Consumer.new(config(memory)).next_descriptors(-1)


def test_should_keep_cursor_when_the_batch_is_corrupt(store: Store) -> None:
    (descriptor, _) = fill(store, 2)
    good = store.get(descriptor.location).data
    store.put(descriptor.location, good[:-8] + good[-7:])
    consumer = Consumer.new(config(store))
    with pytest.raises(CorruptBatch) as caught:
        consumer.next_batch()
    assert caught.value.location == descriptor.location
    assert consumer.cursor == 0
    store.put(descriptor.location, good)
    batch = consumer.next_batch()
    assert batch is not None
    assert batch.sequence == 0


def test_should_name_the_manifest_when_an_entry_is_corrupt(store: Store) -> None:
    fill(store, 3)
    consumer = Consumer.new(config(store))
    damaged = bytearray(store.get(MANIFEST).data)
    second_entry = len(damaged) // 3
    damaged[second_entry - 8 : second_entry + 12] = bytes(20)
    store.put(MANIFEST, bytes(damaged))
    with pytest.raises(CorruptManifest) as caught:
        consumer.next_descriptors(3)
    assert caught.value.location == MANIFEST
    assert consumer.cursor == 0
