"""Wrong clocks: none ends a lease early or keeps one for ever, and time never gets far ahead of the store's."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from buffer.errors import InvalidHandle
from buffer.leases.queue import LeaseQueue
from buffer.leases.time import ASK_EVERY_S, CLOCK_AHEAD_MAX_MS
from buffer.store.base import ObjectInfo
from buffer.testing.clock import ManualClock
from tests.leases.lease_support import MANIFEST, TIMEOUT_MS, Counting, Work

YEAR_MS = 365 * 86_400_000
HOUR_MS = 3_600_000


class Told(Counting):
    """The store as a worker sees it; it may be one that tells no times."""

    is_silent = False

    def head(self, location: str) -> ObjectInfo:
        self.calls["head", location.rpartition(".")[2].rpartition("/")[2]] += 1
        found: ObjectInfo = self.store.head(location)
        return replace(found, modified_ms=None) if self.is_silent else found


class Machine(ManualClock):
    """A clock in step with another one, but for what it is off."""

    def __init__(self, right: ManualClock, off_ms: int) -> None:
        super().__init__(seed=off_ms)
        self.right, self.off_ms = right, off_ms

    def now_ms(self) -> int:
        return self.right.now_ms() + self.off_ms

    def monotonic_s(self) -> float:
        return self.right.monotonic_s()

    def sleep(self, seconds: float) -> None:
        self.right.sleep(seconds)


def queue_of(work: Work, store: Told, off_ms: int = 0) -> LeaseQueue:
    return LeaseQueue.open(work.config(store), work.leases, clock=Machine(work.clock, off_ms))  # type: ignore[arg-type]


@pytest.mark.parametrize("off_ms", [YEAR_MS, HOUR_MS, CLOCK_AHEAD_MAX_MS + 1_000])
def test_should_end_no_lease_early_where_a_clock_is_ahead(off_ms: int, caplog: pytest.LogCaptureFixture) -> None:
    work = Work(2)
    store = Told(work.store)
    right, wrong = queue_of(work, store), queue_of(work, store, off_ms)
    (held,) = right.consume()
    with caplog.at_level(logging.WARNING):
        (other,) = wrong.consume(2)
    assert (held.sequence, other.sequence) == (0, 1), "what is held is held"
    assert "clock is" in caplog.text
    assert "set the clock" in caplog.text
    assert work.section().time_ms <= work.clock.now_ms() + CLOCK_AHEAD_MAX_MS
    right.ack(held)
    wrong.ack(other)


@pytest.mark.parametrize("off_ms", [YEAR_MS, -YEAR_MS])
def test_should_not_freeze_the_leases_of_the_dead_for_anybody(off_ms: int) -> None:
    """A worker with a wrong clock dies with a lease, one with a right clock waits no longer than that lease."""
    work = Work(1)
    store = Told(work.store)
    queue_of(work, store, off_ms).consume()
    right = queue_of(work, store)
    assert not right.consume()
    work.clock.advance((TIMEOUT_MS - 1_000) / 1000)
    assert not right.consume()
    work.clock.advance(CLOCK_AHEAD_MAX_MS / 1000 + 2)
    (again,) = right.consume()
    assert again.delivery_count == 2


def test_should_end_the_leases_of_the_dead_also_where_only_a_slow_clock_is_left() -> None:
    work = Work(1)
    store = Told(work.store)
    slow = queue_of(work, store, -HOUR_MS)
    queue_of(work, store).consume()
    assert not slow.consume()
    work.clock.advance(TIMEOUT_MS / 1000)
    (again,) = slow.consume()
    assert again.delivery_count == 2


def test_should_go_on_from_a_time_that_is_far_ahead_already() -> None:
    """As an older release may have left it: time runs on from there, and stands still for nobody."""
    work = Work(2, max_delivery_attempts=9)
    store = Told(work.store)
    queue = queue_of(work, store)
    (held,) = queue.consume()
    ledger = work.ledger()
    assert ledger.leases is not None
    ahead = ledger.changed(leases=replace(ledger.leases, time_ms=ledger.leases.time_ms + YEAR_MS))
    work.store.put(f"{MANIFEST}.ledger", ahead.to_bytes())
    with pytest.raises(InvalidHandle):
        queue.ack(held)  # by that time its lease is over: never two that hold
    (again,) = queue.consume()
    assert again.sequence == held.sequence
    other = queue_of(work, store)
    assert [batch.sequence for batch in other.consume(2)] == [1]
    work.clock.advance(TIMEOUT_MS / 1000)
    assert [batch.sequence for batch in other.consume(2)] == [0, 1]


def test_should_ask_the_store_once_in_a_processs_life() -> None:
    work = Work(6)
    store = Told(work.store)
    queue = queue_of(work, store)
    held = queue.consume()
    assert store.calls["head", "ledger"] == 1
    for _ in range(4):
        work.clock.advance(1)
        held = queue.consume(acks=held)
    assert store.calls["head", "ledger"] == 1


def test_should_write_the_ledger_again_to_learn_the_time_on_a_queue_that_was_idle() -> None:
    work = Work(2)
    store = Told(work.store)
    first = queue_of(work, store)
    (held,) = first.consume()
    first.nack(held, delay_ms=HOUR_MS)
    work.clock.advance(2 * 3600)
    late = queue_of(work, store)
    assert [batch.sequence for batch in late.consume(2)] == [0, 1]
    assert work.section().time_ms == work.clock.now_ms()


def test_should_ask_again_after_a_sleep_of_the_machine() -> None:
    """Its monotonic clock stood still, and its wall clock is right: for a moment nobody can tell."""
    work = Work(2)
    store = Told(work.store)
    queue = queue_of(work, store)
    queue.ack(queue.consume())
    work.clock.jump_ms(8 * HOUR_MS)
    work.clock.advance(ASK_EVERY_S)
    queue.consume()
    assert work.section().time_ms == work.clock.now_ms()


def test_should_believe_the_clock_where_the_store_tells_no_time(caplog: pytest.LogCaptureFixture) -> None:
    work = Work(1)
    store = Told(work.store)
    store.is_silent = True
    with caplog.at_level(logging.WARNING):
        assert queue_of(work, store, YEAR_MS).consume()
    assert "does not say when objects were written" in caplog.text
