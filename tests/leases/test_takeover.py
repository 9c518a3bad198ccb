"""A consumer takes the queue over from workers, and they from it: who is fenced, and what is skipped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from buffer.consume.consumer import Consumer
from buffer.errors import Fenced, InvalidHandle, ManifestLost, QueueAheadOfConsumer, QueueBound
from buffer.leases import Handle, LeaseQueue
from buffer.ledger.from_workers import check_free, finished_runs
from tests.leases.lease_support import TIMEOUT_MS, Work


def with_holes() -> tuple[Work, LeaseQueue]:
    """0 is done and gone, 2 and 4, 5 are done; 1 is held, 3 given back, 6 untouched."""
    work = Work(7)
    queue = work.open()
    held = {batch.sequence: batch for batch in queue.consume(6)}
    queue.ack([held[0], held[2], held[4], held[5]])
    queue.nack(held[3])
    return work, queue


def test_should_skip_what_workers_have_finished() -> None:
    work, _ = with_holes()
    consumer = Consumer.new(work.config(), clock=work.clock)
    got = []
    while (batch := consumer.next_batch()) is not None:
        got.append(batch.sequence)
        consumer.ack(batch.sequence)
    assert got == [1, 3, 6]
    consumer.flush()
    assert len(work.manifest()) == 0


def test_should_skip_them_in_every_way_of_reading() -> None:
    work, _ = with_holes()
    consumer = Consumer.new(work.config(), clock=work.clock)
    assert [d.sequence for d in consumer.next_descriptors(2)] == [1, 3]
    consumer.ack_through(3)
    assert work.manifest().first_sequence == 4
    assert [d.sequence for d in consumer.next_descriptors(9)] == [6]
    work, _ = with_holes()
    consumer = Consumer.new(work.config(), clock=work.clock)
    with consumer.batches(prefetch=2) as batches:
        seen = list(batches)
        assert [batch.sequence for batch in seen] == [1, 3, 6]
        for batch in reversed(seen):
            batches.ack(batch)
    assert len(work.manifest()) == 0


def test_should_fence_every_verb_of_the_workers() -> None:
    work, queue = with_holes()
    held = Handle(work.section().batches[1].lease or "", 1)
    consumer = Consumer.new(work.config(), clock=work.clock)
    for call in (
        queue.consume,
        lambda: queue.ack(held),
        lambda: queue.extend(held),
        queue.stats,
        queue.purge,
        lambda: queue.unblock(3),
        lambda: queue.configure(work.leases),
    ):
        with pytest.raises(Fenced):
            call()  # type: ignore[operator]
    assert consumer.next_batch() is not None


def test_should_keep_the_ledgers_word_when_the_consumer_says_less() -> None:
    work, _ = with_holes()
    consumer = Consumer.new(work.config(), clock=work.clock)
    assert consumer.next_descriptors(1)[0].sequence == 1
    work, _ = with_holes()
    consumer = Consumer.new(work.config(), 3, clock=work.clock)
    assert consumer.next_descriptors(1)[0].sequence == 6


def test_should_come_back_after_workers_have_finished_and_dequeued_what_comes_next() -> None:
    work = Work(5)
    work.open()
    consumer = Consumer.new(work.config(), clock=work.clock)
    batch = consumer.next_batch()
    assert batch is not None
    consumer.ack_through(batch.sequence)
    with work.open() as queue:
        queue.ack(queue.consume(2))
    assert work.manifest().first_sequence == 3
    consumer = Consumer.new(work.config(), 0, clock=work.clock)
    batch = consumer.next_batch()
    assert batch is not None
    assert batch.sequence == 3


def test_should_still_miss_what_another_consumer_took_behind_the_workers() -> None:
    work = Work(5)
    with work.open() as queue:
        queue.ack(queue.consume(2))
    consumer = Consumer.new(work.config(), clock=work.clock)
    assert consumer.next_descriptors(2)[-1].sequence == 3
    consumer.ack_through(3)
    consumer = Consumer.new(work.config(), 0, clock=work.clock)
    with pytest.raises(QueueAheadOfConsumer, match="sequence 2 is next"):
        consumer.next_batch()


def test_should_go_back_to_the_workers() -> None:
    work, old = with_holes()
    held = Handle(work.section().batches[1].lease or "", 1)
    consumer = Consumer.new(work.config(), clock=work.clock)
    batch = consumer.next_batch()
    assert batch is not None
    consumer.ack_through(batch.sequence)
    queue = work.open()
    with pytest.raises(Fenced):
        consumer.next_batch()
    assert [b.sequence for b in queue.consume(9)] == [3, 6]
    with pytest.raises(InvalidHandle):
        old.ack(held)  # the consumer has dequeued it


def test_should_fence_a_consumer_that_comes_late_to_the_ledger() -> None:
    work, _ = with_holes()
    first = Consumer.new(work.config(), clock=work.clock)
    second = Consumer.new(work.config(), clock=work.clock)
    assert second.epoch > first.epoch
    with pytest.raises(Fenced):
        first.next_batch()
    assert work.ledger().epoch == second.epoch


def test_should_keep_a_loader_out_while_batches_are_leased() -> None:
    work, queue = with_holes()
    with pytest.raises(QueueBound, match="batches 1 are leased: stop the workers, and wait until these leases end"):
        check_free(work.section(), work.clock.now_ms())
    check_free(work.section(), work.clock.now_ms() + TIMEOUT_MS)
    queue.nack(Handle(work.section().batches[1].lease or "", 1), delay_ms=60_000)
    check_free(work.section(), work.clock.now_ms())
    assert finished_runs(work.section()) == ((0, 0), (2, 2), (4, 5))


def test_should_name_a_few_of_many_batches() -> None:
    work = Work(15)
    work.open().consume(15)
    with pytest.raises(QueueBound, match="batches 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 5 more are leased"):
        check_free(work.section(), work.clock.now_ms())


# What workers finished at the end of the queue


def with_a_finished_end(count: int = 10, given_back: int = 5) -> Work:
    work = Work(count)
    with work.open() as queue:
        held = queue.consume(count).batches
        queue.ack(held[given_back:])
        queue.nack(held[:given_back])
    return work


def by_ack_through(consumer: Consumer) -> None:
    consumer.ack_through(consumer.next_descriptors(999)[-1].sequence)


def by_ack_through_in_parts(consumer: Consumer) -> None:
    for one in consumer.next_descriptors(999):
        consumer.ack_through(one.sequence, location=one.location)


def by_ack(consumer: Consumer) -> None:
    while (batch := consumer.next_batch()) is not None:
        consumer.ack(batch.sequence)
    consumer.flush()


def by_iterator(consumer: Consumer) -> None:
    with consumer.batches(prefetch=2) as batches:
        for batch in reversed(list(batches)):
            batches.ack(batch)


def by_close(consumer: Consumer) -> None:
    while (batch := consumer.next_batch()) is not None:
        consumer.ack(batch.sequence)
    consumer.close()


@pytest.mark.parametrize("read", [by_ack_through, by_ack_through_in_parts, by_ack, by_iterator, by_close])
@pytest.mark.parametrize("given_back", [1, 5, 150])
def test_should_leave_nothing_in_the_queue_that_is_done(read: Callable[[Consumer], None], given_back: int) -> None:
    work = with_a_finished_end(given_back + 5, given_back)
    read(Consumer.new(work.config(), clock=work.clock))
    assert len(work.manifest()) == 0
    work.fill(1)
    assert [d.sequence for d in Consumer.new(work.config(), clock=work.clock).next_descriptors(9)] == [given_back + 5]


def test_should_look_at_the_place_of_the_batch_that_is_acked() -> None:
    work = with_a_finished_end()
    consumer = Consumer.new(work.config(), clock=work.clock)
    *_, last = consumer.next_descriptors(100)
    with pytest.raises(ManifestLost):
        consumer.ack_through(last.sequence, location="jobs/another")
    assert len(work.manifest()) == 10
    consumer.ack_through(last.sequence, location=last.location)
    assert len(work.manifest()) == 0


def test_should_dequeue_at_once_what_nothing_is_left_to_ack_for() -> None:
    work = Work(4)
    queue = work.open()
    queue.ack(queue.consume(4))
    assert len(work.manifest()) == 4  # its workers did not come to it
    consumer = Consumer.new(work.config(), clock=work.clock)
    assert len(work.manifest()) == 0
    assert consumer.next_batch() is None
    work.fill(1)
    batch = consumer.next_batch()
    assert batch is not None
    assert batch.sequence == 4


def test_should_dequeue_it_when_a_consumer_died_before_it_did() -> None:
    """As a release did that left it: 5 to 9 are done, and all before them is acked and gone."""
    work = with_a_finished_end()
    consumer = Consumer.new(work.config(), clock=work.clock)
    consumer._position._queue.dequeue(4)
    assert work.manifest().first_sequence == 5
    for last_acked in (None, 4):
        Consumer.new(work.config(), last_acked, clock=work.clock)
        assert len(work.manifest()) == 0


def test_should_keep_what_came_after_it() -> None:
    work = with_a_finished_end()
    consumer = Consumer.new(work.config(), clock=work.clock)
    found = consumer.next_descriptors(100)
    work.fill(2)
    consumer.ack_through(found[-1].sequence)
    assert [d.sequence for d in work.manifest()][-2:] == [10, 11]
    assert [d.sequence for d in consumer.next_descriptors(100)] == [10, 11]
    consumer.ack_through(11)
    assert len(work.manifest()) == 0
