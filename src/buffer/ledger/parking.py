"""What becomes of batches that were delivered often enough: blocked, or parked in a dead-letter queue. Pure.

- Used up (`count` = attempts allowed) is judged by the next consume, never by the verb that gave the batch back.
- **Parking** is a state of its own: neither lease nor ack gets past it, until it is finished. Each batch gets the next
  ordinal, once in its life, and that is its mark in the dead-letter queue. Whoever parks takes on all that are parking,
  lowest first: so no mark overtakes another that is not there yet, and whoever comes second is refused by the marks.
  Taking turns only saves copying twice. A parker that died is replaced once its time is up.
- Finishing needs no right: whoever knows that ordinal n is in the dead-letter queue may say so, at any time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from buffer.errors import InvalidConfig, InvalidInput
from buffer.ledger.lease_steps import (
    Stamp,
    finish,
    holes_exceeded,
    may_finish,
    phase,
    stamped,
    unfinished_batch,
    whole,
    with_batches,
)
from buffer.ledger.leases import REASON_MAX, Batch, Leases, Phase, State
from buffer.ledger.ranges import Runs
from buffer.ledger.reasons import plain

PARKING_MAX = 16  # at once: a parker copies them one by one, and the section stays small
EXPIRED = "its lease ran out"


@dataclass(frozen=True, slots=True)
class ParkOrder:
    """Copy this to the dead-letter queue under the mark `ordinal`, then say `finish_parking`."""

    sequence: int
    ordinal: int
    owed: Runs | None
    count: int
    reason: str


# Judging and parking


def is_used_up(section: Leases, batch: Batch) -> bool:
    return batch.count >= section.config.max_delivery_attempts + batch.extra


def judge(section: Leases, now: int) -> tuple[Leases, tuple[int, ...]]:
    """What was delivered often enough, and is held by nobody, goes the way of the queue's strategy.

    Returns what is blocked from now on. Where there is no room to park, a batch waits for a later look.
    """
    strategy = section.config.dlq_strategy
    blocked: dict[int, Batch] = {}
    parked: dict[int, Batch] = {}
    for sequence, batch in section.batches.items():
        if batch.phase(now) is not Phase.AVAILABLE or not is_used_up(section, batch):
            continue
        reason = batch.reason if batch.lease is None else EXPIRED
        judged = dataclasses.replace(batch, lease=None, until_ms=0, reason=reason)
        if strategy == "block" or (strategy == "block_and_dlq" and batch.ordinal):
            blocked[sequence] = dataclasses.replace(judged, state=State.BLOCKED)
        elif len(parked) < PARKING_MAX:
            parked[sequence] = judged
    section = with_batches(section, blocked)
    for sequence, batch in parked.items():
        if batch.ordinal:  # copied under another strategy: exactly once means not again
            if may_finish(section, now, sequence):
                section = finish(section, {sequence})
        else:
            then_blocked = strategy == "block_and_dlq"
            section = _parking(section, now, sequence, batch, then_blocked=then_blocked) or section
    return section, tuple(blocked)


def _parking(section: Leases, now: int, sequence: int, batch: Batch, *, then_blocked: bool) -> Leases | None:
    """None while there is no room for it, among the parking or the holes."""
    if sum(other.state is State.PARKING for other in section.batches.values()) >= PARKING_MAX:
        return None
    if not then_blocked and not may_finish(section, now, sequence):
        return None
    ordinal = section.ordinals + 1
    batch = dataclasses.replace(
        batch, lease=None, until_ms=0, state=State.PARKING, ordinal=ordinal, then_blocked=then_blocked
    )
    return dataclasses.replace(with_batches(section, {sequence: batch}), ordinals=ordinal)


def take_turn(section: Leases, by: Stamp, now: int) -> tuple[Leases, tuple[ParkOrder, ...]]:
    """Take on what is to be parked, unless somebody is at it."""
    if section.parker is not None and now < section.parker_until_ms:
        return section, ()
    orders = to_be_parked(section)
    if not orders:
        return section, ()
    until = now + section.config.visibility_timeout_ms
    return dataclasses.replace(section, parker=by.lease_id, parker_until_ms=until), orders


def to_be_parked(section: Leases) -> tuple[ParkOrder, ...]:
    """What is on its way to the dead-letter queue, in the order in which it must arrive."""
    orders = (
        ParkOrder(sequence, batch.ordinal, batch.owed, batch.count, batch.reason)
        for sequence, batch in section.batches.items()
        if batch.state is State.PARKING
    )
    return tuple(sorted(orders, key=lambda order: order.ordinal))


def park(
    section: Leases, by: Stamp, waiting: range, sequence: int, reason: str = "given up by hand"
) -> tuple[Leases, tuple[ParkOrder, ...]]:
    """Give a batch up: to the dead-letter queue with it, and go on. Raises InvalidInput, AckHoleCapExceeded.

    No orders: it is there already, or another worker is parking, and whoever consumes next will take it on.
    """
    sequence = whole("sequence", sequence)
    now = section.now_ms(by.clock_ms)
    config = section.config
    if config.dlq is None:
        raise InvalidConfig(
            "this queue has no dead-letter queue: set dlq with `configure` first", key="dlq", value=None
        )
    batch = unfinished_batch(section, waiting, sequence)
    if batch.is_leased(now):
        raise InvalidInput(f"batch {sequence} is held by lease {batch.lease}: ack or nack it, or wait until it ends")
    is_counted = batch.state is State.PARKING and not batch.then_blocked  # among those that will be finished
    if not is_counted and not may_finish(section, now, sequence):
        raise holes_exceeded(config, section.holes)
    if batch.state is not State.PARKING:
        if batch.ordinal:
            return stamped(finish(section, {sequence}), by, now), ()
        told = with_batches(section, {sequence: dataclasses.replace(batch, reason=plain(reason)[:REASON_MAX])})
        parked = _parking(told, now, sequence, told.batches[sequence], then_blocked=False)
        if parked is None:
            raise InvalidInput(f"{PARKING_MAX} batches are being parked: call again when those are done")
        section = parked
    elif batch.then_blocked:
        section = with_batches(section, {sequence: dataclasses.replace(batch, then_blocked=False)})
    section, orders = take_turn(section, by, now)
    return stamped(section, by, now), orders


def resume_parking(section: Leases, by: Stamp) -> tuple[Leases, tuple[ParkOrder, ...]]:
    """What is to be parked, if nobody is at it; the section comes back as it is if there is nothing to do."""
    now = section.now_ms(by.clock_ms)
    taken, orders = take_turn(section, by, now)
    return (stamped(taken, by, now), orders) if orders else (section, ())


def finish_parking(section: Leases, by: Stamp, parker: str, done: Sequence[ParkOrder]) -> Leases:
    """These are in the dead-letter queue. Ends the turn of `parker`, if it is still its own."""
    now = section.now_ms(by.clock_ms)
    finished: set[int] = set()
    changes: dict[int, Batch] = {}
    for order in done:
        batch = section.batches.get(order.sequence)
        if batch is None or batch.state is not State.PARKING or batch.ordinal != order.ordinal:
            continue  # another one finished it
        if batch.then_blocked:
            changes[order.sequence] = dataclasses.replace(batch, state=State.BLOCKED, then_blocked=False)
        else:
            finished.add(order.sequence)
    section = finish(with_batches(section, changes), finished)
    if section.parker == parker:
        section = dataclasses.replace(section, parker=None, parker_until_ms=0)
    return stamped(section, by, now)


def unblock(section: Leases, by: Stamp, sequence: int, attempts: int = 1) -> Leases:
    """Allow `attempts` more deliveries of a blocked batch. Raises InvalidInput."""
    sequence, attempts = whole("sequence", sequence), whole("attempts", attempts, low=1)
    now = section.now_ms(by.clock_ms)
    batch = section.batches.get(sequence)
    if batch is None or batch.state is not State.BLOCKED:
        raise InvalidInput(f"batch {sequence} is not blocked but {phase(section, sequence, now)}; see `stats`")
    extra = max(batch.extra, batch.count - section.config.max_delivery_attempts + attempts)
    return stamped(
        with_batches(section, {sequence: dataclasses.replace(batch, state=State.OPEN, extra=extra)}), by, now
    )
