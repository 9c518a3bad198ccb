"""A queue with leases through its door: what workers see, what is written, who is let in."""

from __future__ import annotations

import gc
import os
from dataclasses import replace

import pytest

import buffer.leases.queue as queues
from buffer.consume.consumer import Consumer
from buffer.errors import (
    AckHoleCapExceeded,
    Closed,
    Fenced,
    InFlightCapExceeded,
    InvalidConfig,
    InvalidHandle,
    InvalidInput,
    LedgerLost,
    QueueBehindConsumer,
    QueueBound,
    QueueFull,
    StorageError,
    StoreUnusable,
)
from buffer.leases.queue import LeaseQueue
from buffer.leases.tidying import LOOK_EVERY
from buffer.leases.values import Delivered
from buffer.ledger.lease_rules import Nack
from buffer.ledger.leases import Phase
from buffer.ledger.plan import Ledger
from buffer.manifest import Manifest
from buffer.store.base import Lost
from buffer.testing import Fault, FaultyStore
from tests.consume.consumer_support import assert_no_collectors, collectors
from tests.leases.lease_support import MANIFEST, TIMEOUT_MS, Counting, Work


def test_should_deliver_each_batch_to_one_of_two_workers() -> None:
    work = Work(4)
    one, two = work.open(), work.open()
    assert [b.sequence for b in one.consume(2)] == [0, 1]
    assert [b.sequence for b in two.consume(9)] == [2, 3]
    assert not one.consume(9)


def test_should_hand_out_entries_and_metadata_as_they_were_produced() -> None:
    work = Work()
    work.fill(1, [b"a", b"", b"c"])
    (batch,) = work.open().consume()
    assert batch.entries == [b"a", b"", b"c"]
    assert list(batch.indices) == [0, 1, 2]
    assert batch.batch.metadata[0].payload == b"m"
    assert (batch.delivery_count, batch.until_ms) == (1, work.clock.now_ms() + TIMEOUT_MS)


def test_should_ack_part_of_a_batch_and_deliver_the_rest() -> None:
    work = Work()
    work.fill(1, [b"%d" % i for i in range(1_000)])
    queue = work.open()
    (batch,) = queue.consume()
    bad = {3, 500, 997}
    queue.ack(batch, entries=[i for i in batch.indices if i not in bad])
    queue.nack(batch)
    (again,) = queue.consume()
    assert list(again.indices) == sorted(bad)
    assert again.entries == [b"3", b"500", b"997"]
    assert not queue.consume(acks=[again])
    assert work.section().finished_through == 0


def test_should_cost_one_manifest_read_and_one_ledger_write_per_cycle_whatever_the_length() -> None:
    costs = []
    for length in (10, 500):
        work = Work(length)
        counting = Counting(work.store)
        queue = work.open(store=counting)  # type: ignore[arg-type]
        held = queue.consume(2)
        for _ in range(3):
            counting.calls.clear()
            held = queue.consume(2, acks=held)
            costs.append(dict(counting.calls))
    cycle = {("get_if_changed", "manifest"): 1, ("put_if_match", "ledger"): 1, ("get_bounded", "batch"): 2}
    assert costs == [cycle] * 6


def test_should_write_nothing_while_it_waits() -> None:
    work = Work()
    queue = work.open()
    before = work.ledger().generation
    assert not queue.consume(wait_ms=5_000)
    assert sum(work.clock.sleeps) >= 5.0
    assert work.ledger().generation == before


def test_should_take_the_finished_prefix_out_of_the_manifest_now_and_then_and_when_idle() -> None:
    work = Work(LOOK_EVERY + 5)
    queue = work.open()
    queue.ack(queue.consume(LOOK_EVERY - 1))
    queue.ack(queue.consume())
    assert work.manifest().first_sequence == 0
    held = queue.consume()
    assert work.manifest().first_sequence == LOOK_EVERY
    queue.ack([*held, *queue.consume(9)])
    assert not queue.consume()
    assert work.manifest().first_sequence == LOOK_EVERY + 5


def test_should_dequeue_on_close() -> None:
    work = Work(2)
    with work.open() as queue:
        queue.ack(queue.consume(2))
    assert len(work.manifest()) == 0
    with pytest.raises(Closed):
        queue.consume()


def test_should_give_back_with_a_delay_of_its_own_for_each() -> None:
    work = Work(2)
    queue = work.open()
    one, two = queue.consume(2)
    queue.nack([Nack(one.handle, 5_000, "later"), Nack(two.handle, 1_000)])
    got = queue.consume(2, wait_ms=2_000)
    assert [b.sequence for b in got] == [1]
    assert [p.reason for p in queue.peek()] == ["later", ""]


def test_should_extend_by_the_queues_own_timeout_unless_told() -> None:
    work = Work(1)
    queue = work.open()
    held = queue.consume()
    work.clock.advance(20)
    queue.extend(held)
    work.clock.advance(20)
    queue.ack(held)
    assert work.section().finished_through == 0


def test_should_snooze_without_losing_an_attempt() -> None:
    work = Work(1)
    queue = work.open()
    for _ in range(5):
        queue.snooze(queue.consume())
    (batch,) = queue.consume()
    assert batch.delivery_count == 6


def test_should_refuse_what_is_not_held_any_more() -> None:
    work = Work(1)
    queue = work.open()
    held = queue.consume()
    work.expire()
    with pytest.raises(InvalidHandle):
        queue.ack(held)
    with pytest.raises(InvalidHandle):
        queue.consume(acks=held)
    (again,) = queue.consume()
    assert again.delivery_count == 2


def test_should_raise_the_caps_that_stand_in_the_way() -> None:
    work = Work(5, max_in_flight=2)
    queue = work.open()
    held = queue.consume(2)
    with pytest.raises(InFlightCapExceeded):
        queue.consume()
    queue.nack(held)
    work = Work(5, max_ack_holes=1)
    queue = work.open()
    assert len(queue.consume(5)) == 3
    with pytest.raises(AckHoleCapExceeded):
        queue.consume(wait_ms=100)


def test_should_say_that_there_is_no_room() -> None:
    work = Work(2, max_depth=2)
    queue = work.open()
    with pytest.raises(QueueFull):
        queue.produce([b"one too many"])
    assert work.manifest().next_sequence == 2
    queue.ack(queue.consume())
    assert queue.produce([b"a", b"b"], b"by a worker").sequence == 2
    assert [b.entries for b in queue.consume(9)] == [[b"1"], [b"a", b"b"]]


def test_should_stop_the_collector_when_it_is_dropped() -> None:
    work = Work()
    queue: LeaseQueue | None = LeaseQueue.open(work.config().replace(gc_enabled=True), work.leases, clock=work.clock)
    assert collectors() == 1
    assert queue is not None
    del queue
    gc.collect()
    assert_no_collectors()


def test_should_wait_for_as_long_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many looks that takes: `wait_ms` may be weeks."""
    work = Work()
    monkeypatch.setattr(queues, "WAITING", replace(queues.WAITING, attempts_max=3))
    assert not work.open().consume(wait_ms=30_000)
    assert sum(work.clock.sleeps) >= 30.0


@pytest.mark.parametrize("call", [{"max_batches": 0}, {"wait_ms": -1}])
def test_should_refuse_a_consume_that_cannot_be_meant(call: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        Work().open().consume(**call)


def test_should_tell_how_the_queue_stands() -> None:
    work = Work(6, max_delivery_attempts=1)
    queue = work.open()
    held = queue.consume(4)
    queue.nack(held.batches[0])
    queue.nack(held.batches[1], delay_ms=60_000)
    queue.ack(held.batches[3])
    queue.consume(1)
    stats = queue.stats()
    assert (stats.depth, stats.available, stats.in_flight, stats.delayed, stats.blocked) == (5, 1, 2, 1, 1)
    assert (stats.holes, stats.finished_through, stats.next_sequence) == (1, -1, 6)
    assert stats.blocked_sequences == (0,)
    assert [p.phase for p in queue.peek()] == [
        *(Phase.BLOCKED, Phase.DELAYED, Phase.LEASED, Phase.LEASED, Phase.AVAILABLE)
    ]


def test_should_tell_when_another_clock_is_fast() -> None:
    work = Work(1)
    queue = work.open()
    queue.consume()
    work.clock.jump_ms(-90_000)
    assert queue.stats().clock_behind_ms == 90_000


def test_should_purge() -> None:
    work = Work(3)
    queue = work.open()
    held = queue.consume()
    assert queue.purge() == 3
    assert len(work.manifest()) == 0
    with pytest.raises(InvalidHandle):
        queue.ack(held)


# Settings and who may come in


def test_should_keep_the_settings_and_refuse_others() -> None:
    work = Work(1)
    work.open()
    assert LeaseQueue.open(work.config(), clock=work.clock).settings == work.leases
    with pytest.raises(InvalidConfig, match="max_in_flight is 1000, not 7") as caught:
        work.open(work.leases.replace(max_in_flight=7))
    assert caught.value.key == "max_in_flight"
    queue = work.open()
    queue.configure(work.leases.replace(max_in_flight=7))
    assert queue.settings.max_in_flight == 7


def test_should_keep_a_setting_that_somebody_else_has_changed_meanwhile() -> None:
    """Two operators change one each: neither undoes the other's, also where it has not seen that."""
    work = Work(1)
    one, other = work.open(), work.open()
    one.configure(max_in_flight=7)
    other.configure(max_depth=9)
    assert one.settings == work.leases.replace(max_in_flight=7, max_depth=9)
    with pytest.raises(InvalidConfig, match="max_inflight"):
        one.configure(max_inflight=7)
    assert one.settings.max_in_flight == 7


def test_should_need_settings_for_a_queue_without_leases() -> None:
    work = Work(1)
    with pytest.raises(InvalidConfig, match="has no leases yet"):
        LeaseQueue.open(work.config(), clock=work.clock)


def test_should_share_one_epoch_and_write_nothing_to_join() -> None:
    work = Work(1)
    work.open()
    before = work.ledger()
    work.open()
    assert work.ledger() == before
    assert before.epoch == work.section().epoch == work.manifest().epoch == 1


def test_should_be_fenced_when_a_consumer_claims_the_manifest() -> None:
    work = Work(2)
    queue = work.open()
    queue.consume()
    Consumer.new(work.config(), clock=work.clock)
    with pytest.raises(Fenced):
        queue.consume()


def test_should_take_the_queue_back_from_a_consumer() -> None:
    work = Work(3)
    queue = work.open()
    (held,) = queue.consume()
    consumer = Consumer.new(work.config(), clock=work.clock)
    consumer.next_descriptors(1)
    consumer.ack_through(0)
    again = work.open()
    with pytest.raises(Fenced):
        consumer.next_descriptors(1)
    with pytest.raises(InvalidHandle):
        again.ack(held)
    assert [b.sequence for b in again.consume(9)] == [1, 2]


def test_should_refuse_a_queue_that_was_consumed_without_leases() -> None:
    work = Work(2)
    Consumer.new(work.config(), clock=work.clock)
    with pytest.raises(LedgerLost, match="adopt=True"):
        work.open()
    assert [b.sequence for b in work.open(adopt=True).consume(9)] == [0, 1]


def test_should_refuse_a_queue_that_feeds_a_loader() -> None:
    work = Work(1)
    work.store.put(f"{MANIFEST}.ledger", Ledger("01M7JW6V2BKF04N3ANEAY9KR1J", app_id="app", tables=("t",)).to_bytes())
    with pytest.raises(QueueBound, match="feeds the app 'app'"):
        work.open()


def test_should_stop_when_the_ledger_is_gone() -> None:
    work = Work(1)
    queue = work.open()
    work.store.delete_many([f"{MANIFEST}.ledger"])
    with pytest.raises(LedgerLost):
        queue.consume()


def test_should_stop_when_the_manifest_was_restored() -> None:
    work = Work(1)
    old = work.store.get(MANIFEST).data
    work.fill(2)
    queue = work.open()
    queue.consume(3)
    epoch = Manifest.from_bytes(old)
    work.store.put(MANIFEST, epoch.claim().to_bytes())
    with pytest.raises(QueueBehindConsumer):
        work.open().consume()


def test_should_finish_an_opening_that_died_between_the_claim_and_the_ledger() -> None:
    work = Work(1)
    dying = FaultyStore(work.store, [Fault.before("put_if_match", StoreUnusable("dies"), skip=1)])
    with pytest.raises(StoreUnusable):
        work.open(store=dying)
    assert (work.manifest().epoch, work.section().epoch) == (1, 0)
    assert len(work.open().consume()) == 1


# Trouble


@pytest.mark.parametrize("fault", [Fault.after("put_if_match"), Fault.after("put_if_match", Lost)])
def test_should_find_its_own_write_after_a_lost_reply(fault: Fault) -> None:
    work = Work(4)
    faulty = FaultyStore(work.store, [])
    queue = work.open(store=faulty)
    faulty.add(fault)
    held = queue.consume(2)
    assert [(b.sequence, b.delivery_count) for b in held] == [(0, 1), (1, 1)]
    faulty.add(fault)
    more = queue.consume(2, acks=held)
    assert [(b.sequence, b.delivery_count) for b in more] == [(2, 1), (3, 1)]
    faulty.add(fault)
    queue.ack(more)
    assert work.section().finished_through == 3


def test_should_give_back_untouched_what_the_store_fails_to_read() -> None:
    work = Work(2)
    faulty = FaultyStore(work.store, [])
    queue = work.open(store=faulty)
    location = work.descriptors()[1].location
    faulty.add(Fault.before("get", StorageError("away", retryable=True), location=location, times=2))
    first = queue.consume(2)
    assert [b.sequence for b in first] == [0]
    queue.ack(first)
    assert not queue.consume()  # the other one waits
    work.expire()
    with pytest.raises(StorageError, match="away"):
        queue.consume()
    work.expire()
    assert [(b.sequence, b.delivery_count) for b in queue.consume()] == [(1, 3)]
    assert work.section().batches[1].extra == 2


def test_should_stop_fetching_when_half_of_the_time_is_over() -> None:
    work = Work(10)
    slow = FaultyStore(work.store, [], clock=work.clock)
    queue = work.open(store=slow)
    slow.add(Fault.delay("get", 4.0, times=1_000))
    seen: list[int] = []
    for _ in range(10):
        delivered = queue.consume(10)
        assert all(batch.until_ms > work.clock.now_ms() + TIMEOUT_MS / 3 for batch in delivered)
        seen += [batch.sequence for batch in delivered]
        queue.ack(delivered)
    assert seen == list(range(10))


def test_should_block_what_the_store_never_gives_and_deliver_the_rest() -> None:
    work = Work(3)
    faulty = FaultyStore(work.store, [])
    queue = work.open(store=faulty)
    location = work.descriptors()[0].location
    faulty.add(Fault.before("get", StorageError("403", retryable=False), location=location, times=1_000))
    assert [b.sequence for b in queue.consume()] == [1]
    work.expire()
    assert [b.sequence for b in queue.consume(3)] == [1, 2]
    assert queue.stats().blocked_sequences == (0,)


def test_should_tell_of_all_that_could_not_be_read_before_there_was_something_to_deliver() -> None:
    work = Work(3)
    for descriptor in work.descriptors()[:2]:
        work.store.put(descriptor.location, b"not a batch")
    queue = work.open()
    found = queue.consume()
    assert [batch.sequence for batch in found] == [2]
    assert found.unreadable == (0, 1)
    queue.ack(found)
    assert queue.consume() == Delivered()


def test_should_count_an_unreadable_batch_as_a_failed_delivery_and_spare_the_others() -> None:
    work = Work(4)
    damaged, gone = (work.descriptors()[i].location for i in (1, 2))
    work.store.put(damaged, b"not a batch")
    work.store.delete_many([gone])
    queue = work.open()
    first = queue.consume(4)
    assert [b.sequence for b in first] == [0, 3]
    assert first.unreadable == (1, 2)
    queue.ack(first)
    assert not queue.consume(4)
    stats = queue.stats()
    assert (stats.blocked, stats.depth) == (2, 2)
    reasons = [p.reason for p in queue.peek()]
    assert "CorruptBatch" in reasons[0]
    assert "ObjectNotFound" in reasons[1]
    assert [p.delivery_count for p in queue.peek()] == [2, 2]


def test_should_deliver_in_order_one_at_a_time() -> None:
    work = Work(3, ordering_required=True)
    one, two = work.open(), work.open()
    held = one.consume(5)
    assert [b.sequence for b in held] == [0]
    assert not two.consume(5)
    one.nack(held, delay_ms=1_000)
    assert not two.consume(5)
    assert [b.sequence for b in two.consume(5, wait_ms=2_000)] == [0]


def test_should_need_a_dead_letter_queue_to_park_or_redrive() -> None:
    queue = Work(1).open()
    for call in (lambda: queue.park(0), queue.redrive):
        with pytest.raises(InvalidConfig, match="no dead-letter queue"):
            call()


def test_should_find_its_own_write_also_when_another_worker_claims_and_sees_more_meanwhile() -> None:
    work = Work(2)
    faulty = FaultyStore(work.store, [])
    queue = work.open(store=faulty)
    held = queue.consume()
    other = work.open()

    class Interference(Counting):
        """Right after our write has landed without a word, the queue grows, and another worker leases from it."""

        def put_if_match(self, location: str, *args: object) -> object:
            outcome = self.store.put_if_match(location, *args)  # type: ignore[arg-type]
            if location.endswith(".ledger") and not self.calls["struck", ""]:
                self.calls["struck", ""] += 1
                work.fill(1)
                assert len(other.consume(9)) == 1
                return Lost()
            return outcome

    queue._session._journal._cas._store = Interference(work.store)  # type: ignore[assignment]
    again = queue.consume(acks=held)
    assert [(b.sequence, b.delivery_count) for b in again] == [(1, 1)]
    assert work.section().finished_through == 0


def test_should_refuse_calls_in_a_forked_child_and_work_on_in_the_parent() -> None:
    work = Work(2)
    queue = work.open()
    child = os.fork()
    if child == 0:
        try:
            queue.consume()
        except Closed:
            queue.close()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert [b.sequence for b in queue.consume()] == [0]
