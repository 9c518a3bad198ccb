"""When the finished prefix leaves the manifest: rarely enough that no cycle pays for the queue's length."""

from __future__ import annotations

import pytest

from buffer.config import ProducerConfig
from buffer.errors import IdempotencyConflict
from buffer.leases.queue import LeaseQueue
from buffer.leases.tidying import LOOK_EVERY, SHARE, Tidying
from buffer.produce.producer import Producer
from buffer.queue import QueueProducer
from tests.leases.lease_support import MANIFEST, Counting, Work


def entries_rewritten(length: int, workers: int) -> float:
    """How many entries dequeues write, for each batch worked off, on a queue that is worked off from there."""
    teams = [Tidying() for _ in range(workers)]
    first = written = 0
    for done in range(length):
        one = teams[done % workers]
        one.moved(done - 1, done)
        left = length - done - 1
        if one.is_due(done + 1 - first, left, idle=False, in_flight=workers):
            first, written = done + 1, written + left
    return written / length


@pytest.mark.parametrize("workers", [1, 8])
@pytest.mark.parametrize("length", [10, 1_000, 10_000, 100_000])
def test_should_write_each_entry_a_fixed_number_of_times_whatever_the_length(length: int, workers: int) -> None:
    assert entries_rewritten(length, workers) <= SHARE


def test_should_leave_it_to_the_one_that_moved_the_frontier_there() -> None:
    busy, other = Tidying(), Tidying()
    busy.moved(LOOK_EVERY - 2, LOOK_EVERY - 1)
    other.moved(LOOK_EVERY - 1, LOOK_EVERY)
    assert not other.is_due(LOOK_EVERY + 1, 50, idle=False, in_flight=2)
    assert busy.is_due(LOOK_EVERY, 50, idle=False, in_flight=2)
    assert not busy.is_due(LOOK_EVERY, 50, idle=False, in_flight=2)


def test_should_give_the_next_one_a_chance_when_that_one_died() -> None:
    other = Tidying()
    other.moved(2 * LOOK_EVERY - 2, 2 * LOOK_EVERY)
    assert other.is_due(2 * LOOK_EVERY + 1, 50, idle=False, in_flight=2)


def test_should_take_out_everything_only_where_nobody_is_at_work() -> None:
    assert Tidying().is_due(1, 10_000, idle=True, in_flight=0)
    assert not Tidying().is_due(1, 10_000, idle=True, in_flight=1)
    assert Tidying().is_due(1_000, 10_000, idle=True, in_flight=1)
    assert not Tidying().is_due(0, 0, idle=True, in_flight=0)


def test_should_not_rewrite_a_long_queue_each_time_one_of_many_workers_in_order_is_done() -> None:
    """The others find nothing to do meanwhile, and have time; but the one that works pays for what they write."""
    work = Work(1, ordering_required=True)
    (only,) = work.descriptors()
    QueueProducer(work.store, MANIFEST, work.clock).append_locations([(only.location, only.metadata)] * 999)
    counting = Counting(work.store)
    one, *others = [work.open(store=counting) for _ in range(3)]  # type: ignore[arg-type]
    held = one.consume()
    counting.calls.clear()
    for _ in range(50):
        held = one.consume(acks=held)
        assert not any(other.consume() for other in others)
    assert counting.calls["put_if_match", "manifest"] == 0
    assert work.section().finished_through == 49


def test_should_read_and_write_a_long_manifest_rarely_with_many_workers() -> None:
    work = Work(1)
    (only,) = work.descriptors()
    QueueProducer(work.store, MANIFEST, work.clock).append_locations([(only.location, only.metadata)] * 3_999)
    counting = Counting(work.store)
    workers: list[LeaseQueue] = [work.open(store=counting) for _ in range(8)]  # type: ignore[arg-type]
    held = [one.consume(10) for one in workers]
    counting.calls.clear()
    for turn in range(40):
        held[turn % 8] = workers[turn % 8].consume(10, acks=held[turn % 8])
    assert work.section().finished_through == 399
    assert counting.calls["put_if_match", "manifest"] == 1
    assert work.manifest().first_sequence == 400


def test_should_keep_a_clients_marks_when_finished_batches_leave() -> None:
    work = Work()
    config = ProducerConfig(store=work.store, manifest_path=MANIFEST, data_path_prefix="jobs")
    with Producer(config, client_id="one", clock=work.clock) as producer:
        for number in range(3):
            producer.produce([b"%d" % number], client_seq=10 * number)
            producer.flush()
    with work.open() as queue:
        queue.ack(list(queue.consume(2)))
        queue.consume()  # with something left: the finished ones leave on close
    assert work.manifest().first_sequence == 2
    with work.open() as queue:
        work.expire()
        queue.ack(list(queue.consume()))
    assert len(work.manifest()) == 0
    assert work.ledger().sections["clients"]["marks"]["one"][:2] == [20, 2]
    with Producer(config, client_id="one", clock=work.clock) as producer:
        assert producer.next_client_seq == 21
        handle = producer.produce([b"2"], client_seq=20)
        assert isinstance(handle.watcher.result(), IdempotencyConflict)
    assert len(work.manifest()) == 0
