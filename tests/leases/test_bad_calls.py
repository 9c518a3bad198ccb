"""Calls that cannot be meant: a clear error, and above all nothing in the ledger that stops the other workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from buffer.errors import InvalidInput
from buffer.journal import Journal
from buffer.leases.queue import LeaseQueue
from buffer.leases.values import LeasedBatch
from buffer.ledger.leases import LeaseLedger
from tests.leases.lease_support import DEAD, MANIFEST, Work

CALLS: dict[str, Callable[[LeaseQueue, LeasedBatch], object]] = {
    "part of a batch": lambda queue, _: queue.consume(1.5),  # type: ignore[arg-type]
    "as many as text": lambda queue, _: queue.consume("3"),  # type: ignore[arg-type]
    "a wait that is no number": lambda queue, _: queue.consume(1, wait_ms=float("nan")),  # type: ignore[arg-type]
    "acks of nothing": lambda queue, _: queue.consume(acks=None),  # type: ignore[arg-type]
    "ack of a number": lambda queue, _: queue.ack(5),  # type: ignore[arg-type]
    "ack of numbers": lambda queue, _: queue.ack([5]),  # type: ignore[list-item]
    "half an index": lambda queue, held: queue.ack(held, entries=[0.0]),  # type: ignore[list-item]
    "an index of truth": lambda queue, held: queue.ack(held, entries=[False]),
    "an index, not several": lambda queue, held: queue.ack(held, entries=0),  # type: ignore[arg-type]
    "a delay with a fraction": lambda queue, held: queue.nack(held, delay_ms=1500.5),  # type: ignore[arg-type]
    "a reason that is none": lambda queue, held: queue.nack(held, reason=None),  # type: ignore[arg-type]
    "a long snooze": lambda queue, held: queue.snooze(held, delay_ms=90_000.5),  # type: ignore[arg-type]
    "a long extension": lambda queue, held: queue.extend(held, 90_000.5),  # type: ignore[arg-type]
    "half an attempt": lambda queue, _: queue.unblock(2, 1.5),  # type: ignore[arg-type]
    "a batch by name": lambda queue, _: queue.park("2"),  # type: ignore[arg-type]
    "a look at fewer than none": lambda queue, _: queue.peek(-1),
    "a redrive of half a batch": lambda queue, _: queue.redrive(max_batches=1.5),  # type: ignore[arg-type]
    "a speed as text": lambda queue, _: queue.redrive(max_per_second="1"),  # type: ignore[arg-type]
    "settings in a dict": lambda queue, _: queue.configure({"dlq": DEAD}),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", CALLS)
def test_should_refuse_the_call_and_harm_nobody(name: str) -> None:
    work = Work(3, dlq_strategy="skip", dlq=DEAD)
    queue = work.open()
    (held,) = queue.consume()
    before = work.section()
    with pytest.raises(InvalidInput):
        CALLS[name](queue, held)
    assert work.section() == before
    assert [batch.sequence for batch in work.open().consume(2)] == [1, 2]
    queue.ack(held)


def test_should_take_numbers_of_other_libraries_as_the_numbers_that_they_are() -> None:
    class Number:
        def __index__(self) -> int:
            return 90_000

    work = Work(1)
    queue = work.open()
    queue.nack(queue.consume(), delay_ms=Number())  # type: ignore[arg-type]
    assert not work.open().consume()
    assert type(work.section().batches[0].until_ms) is int


def test_should_never_write_a_ledger_that_nobody_could_read() -> None:
    work = Work(1)
    work.open()
    journal = Journal(work.store, MANIFEST, work.clock, LeaseLedger)
    before = work.store.get(f"{MANIFEST}.ledger").data

    def broken(ledger: Any, _sent: bool) -> LeaseLedger:
        changed: LeaseLedger = ledger.changed(epoch=1.5)
        return changed

    with pytest.raises(InvalidInput, match="nothing was written"):
        journal.update(broken)
    seen, ledger = journal.look()
    with pytest.raises(InvalidInput, match="nothing was written"):
        journal.write(seen, broken(ledger, False))
    assert work.store.get(f"{MANIFEST}.ledger").data == before
