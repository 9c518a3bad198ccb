"""Every step of parking x whoever comes next: each batch is in the dead-letter queue or with the taker, once.

The parker dies at each of its writes, before or after it lands; or it sleeps there, and wakes up after a takeover.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from buffer.consume import takeover
from buffer.consume.consumer import Consumer
from buffer.errors import BufferQueueError, Fenced, QueueBound, StoreUnusable
from buffer.leases.queue import LeaseQueue
from buffer.ledger.binding import Binding
from buffer.ledger.leases import State
from buffer_delta.load.plans import Plans
from tests.leases.lease_support import DEAD, MANIFEST, Dying, Work

BATCHES = 3
WRITES_MAX = 12
"""More than the walk has; the last ones die in what comes after it, or not at all."""


def about_to_park() -> tuple[Work, Dying, LeaseQueue]:
    """Batch 0 and 1 are used up: the next consume of this worker parks them."""
    work = Work(BATCHES, dlq_strategy="skip", dlq=DEAD)
    store = Dying(work.store)
    queue = work.open(store=store)  # type: ignore[arg-type]
    for _ in range(2):
        queue.nack(queue.consume(2), reason="no such customer")
    return work, store, queue


def by_consumer(work: Work) -> list[bytes]:
    got: list[bytes] = []
    with Consumer.new(work.config(), clock=work.clock) as consumer:
        while (batch := consumer.next_batch()) is not None:
            got += batch.entries
            consumer.ack(batch.sequence)
    return got


def by_descriptors(work: Work) -> list[bytes]:
    """As a loader reads."""
    with Consumer.new(work.config(), clock=work.clock) as consumer:
        found = consumer.next_descriptors(99)
        if found:
            consumer.ack_through(found[-1].sequence)
        return [entry for one in found for entry in consumer.fetch_descriptor(one).entries]


def by_worker(work: Work) -> list[bytes]:
    work.expire()
    got: list[bytes] = []
    with work.open() as queue:
        while leased := queue.consume(9):
            for batch in leased:
                if batch.delivery_count <= 2:
                    got += batch.entries
            queue.ack(leased)
        assert queue.stats().depth == 0
    return got


TAKERS = {"consumer": by_consumer, "descriptors": by_descriptors, "worker": by_worker}


def check(work: Work, got: list[bytes]) -> None:
    parked = [entry for entries, _ in work.dead_letters() for entry in entries]
    assert Counter(got + parked) == Counter(b"%d" % n for n in range(BATCHES)), (got, parked)
    assert set(parked) <= {b"0", b"1"}
    assert by_consumer(work) == [], "and nothing comes again"


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("lands", [False, True])
@pytest.mark.parametrize("write", range(WRITES_MAX))
def test_should_neither_lose_nor_double_what_a_dead_parker_left(write: int, lands: bool, taker: str) -> None:
    work, store, queue = about_to_park()
    store.die_at(write, lands=lands)
    with contextlib.suppress(BufferQueueError):
        queue.consume(9)  # and if it lives through that, it dies with a lease in its hands
    check(work, TAKERS[taker](work))


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize("write", range(WRITES_MAX))
def test_should_neither_lose_nor_double_when_the_parker_wakes_up_after_the_takeover(write: int, taker: str) -> None:
    work, store, queue = about_to_park()
    got: list[bytes] = []
    wake_at(store, write, lambda: got.extend(TAKERS[taker](work)))
    with contextlib.suppress(BufferQueueError):
        for batch in queue.consume(9):
            queue.ack(batch)
            got += batch.entries
    with contextlib.suppress(Fenced):
        queue.close()
    got += TAKERS[taker](work)
    check(work, got)


def test_should_be_seen_by_these_tests_when_a_consumer_takes_what_is_being_parked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The copy is in the dead-letter queue, the end state is not written: handed out, it would be there twice."""
    monkeypatch.setattr(takeover, "to_be_parked", lambda _section: ())
    doubled = 0
    for write in range(WRITES_MAX):
        work, store, queue = about_to_park()
        store.die_at(write, lands=True)
        with contextlib.suppress(BufferQueueError):
            queue.consume(9)
        got = by_consumer(work)
        parked = [entry for entries, _ in work.dead_letters() for entry in entries]
        doubled += bool(set(got) & set(parked))
    assert doubled > 0


def wake_at(store: Dying, write: int, act: Callable[[], None]) -> None:
    """The process sleeps right before its n-th write, while `act` happens."""
    left = [write]
    inner = store.store

    class Sleepy:
        def __getattr__(self, name: str) -> Any:
            call = getattr(inner, name)
            if name not in Dying.WRITES:
                return call

            def made(*args: Any, **kwargs: Any) -> Any:
                left[0] -= 1
                if left[0] == -1:
                    act()
                return call(*args, **kwargs)

            return made

    store.store = Sleepy()  # type: ignore[assignment]


@pytest.mark.parametrize("write", [0, 3, 6])
@pytest.mark.parametrize("again", range(10))
def test_should_go_on_where_a_consumer_died_that_finished_the_parking(write: int, again: int) -> None:
    work, store, queue = about_to_park()
    store.die_at(write, lands=True)
    with contextlib.suppress(BufferQueueError):
        queue.consume(9)
    second = Dying(work.store)
    second.die_at(again, lands=False)
    with contextlib.suppress(StoreUnusable):
        Consumer.new(work.config(second), clock=work.clock)  # type: ignore[arg-type]
    check(work, by_consumer(work))


def test_should_refuse_a_loader_while_something_is_being_parked_and_touch_nothing() -> None:
    work, store, queue = about_to_park()
    store.die_at(0, lands=True)
    with contextlib.suppress(StoreUnusable):
        queue.consume(9)
    assert [b.state for b in work.section().batches.values()] == [State.PARKING, State.PARKING]
    before = {path: work.store.get(path).data for path in (MANIFEST, f"{MANIFEST}.ledger")}
    with pytest.raises(QueueBound, match="batches 0, 1 are on the way to the dead-letter queue: let a worker consume"):
        Plans(work.store, MANIFEST, work.clock).bind(Binding("app", ("t",)))
    assert before == {path: work.store.get(path).data for path in before}
    work.expire()
    work.open().consume(9)
    work.expire()
    assert Plans(work.store, MANIFEST, work.clock).bind(Binding("app", ("t",))).born


def test_should_leave_to_the_consumer_what_it_says_it_has_done() -> None:
    """It comes back with `last_acked` from its own results: what left the queue by that is not parked on top."""
    work, store, queue = about_to_park()
    store.die_at(0, lands=True)
    with contextlib.suppress(StoreUnusable):
        queue.consume(9)
    with Consumer.new(work.config(), 0, clock=work.clock) as consumer:
        assert [d.sequence for d in consumer.next_descriptors(9)] == [2]
    assert [entries for entries, _ in work.dead_letters()] == [[b"1"]]
