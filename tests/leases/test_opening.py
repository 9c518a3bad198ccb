"""Workers that open a queue at the same time: one claims, the others wait for it, and nobody is fenced by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from buffer.errors import Fenced, StoreUnusable
from buffer.leases.session import LeaseSession
from buffer.ledger.leases import Leases
from buffer.queue import QueueConsumer
from buffer.testing import Fault, FaultyStore
from tests.leases.lease_support import MANIFEST, Work


def claim(work: Work) -> Callable[[], None]:
    """A worker claims the manifest; what is returned puts it into the ledger, as it would do next."""
    epoch = QueueConsumer(work.store, MANIFEST, work.clock).claim().epoch

    def enter() -> None:
        if work.ledger().epoch < epoch:
            entered = replace(work.section(), epoch=epoch)
            work.store.put(f"{MANIFEST}.ledger", work.ledger().changed(epoch=epoch, leases=entered).to_bytes())

    return enter


def at_the_third_pause(monkeypatch: pytest.MonkeyPatch, work: Work, act: Callable[[], None]) -> None:
    pauses = iter(range(2))
    sleep = work.clock.sleep

    def slept(seconds: float) -> None:
        sleep(seconds)
        if next(pauses, None) is None:
            act()

    monkeypatch.setattr(work.clock, "sleep", slept)


@pytest.mark.parametrize("is_new", [True, False])
def test_should_join_the_one_that_has_claimed_and_is_about_to_say_so(
    monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """Where each claimed anew, a pool that starts all at once would claim from each other for ever."""
    work = Work(1)
    if is_new:  # whoever wrote the section died before it claimed
        with pytest.raises(StoreUnusable):
            work.open(store=FaultyStore(work.store, [Fault.before("put_if_match", StoreUnusable("dies"))]))
        assert (work.manifest().epoch, work.section().epoch) == (0, 0)
    else:
        work.open()
    at_the_third_pause(monkeypatch, work, claim(work))
    epoch = work.manifest().epoch
    assert len(work.open().consume()) == 1
    assert work.manifest().epoch == work.section().epoch == epoch


def test_should_not_take_a_worker_that_opens_the_queue_for_another_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(1)
    queue = work.open()
    at_the_third_pause(monkeypatch, work, claim(work))
    assert len(queue.twin().consume()) == 1


def test_should_believe_it_if_it_lasts() -> None:
    work = Work(1)
    queue = work.open()
    claim(work)
    with pytest.raises(Fenced):
        queue.twin()
    assert len(work.open().consume()) == 1


def test_should_not_be_fenced_at_tidying_up_by_a_worker_that_opens_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(2)
    queue = work.open()
    held = queue.consume()
    dequeue, came = LeaseSession.dequeue, []

    def interrupted(session: LeaseSession, leases: Leases) -> None:
        enter = claim(work)
        came.append(enter)
        try:
            dequeue(session, leases)
        finally:
            enter()

    monkeypatch.setattr(LeaseSession, "dequeue", interrupted)
    queue.ack(held)
    queue.nack(queue.consume(), delay_ms=1_000)
    assert not queue.consume(), "which tidies up where nobody is at work"
    assert len(came) == 1
    work.clock.advance(1)
    monkeypatch.undo()
    assert [b.sequence for b in queue.consume()] == [1]
    queue.close()
    assert work.manifest().first_sequence == 1
