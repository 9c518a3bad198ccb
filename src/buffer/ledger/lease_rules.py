"""What may become of a leases section: every verb as a function from section to section. Pure.

Each takes a `Stamp` (who writes, the number of the write, the clock) and returns the next section with what the
caller learns. Where an error is raised, nothing has moved. The rules:

- A lease holds while now < its end. After that no ack, nack, snooze or extend of it counts, even if nobody else has
  the batch yet: or an answer would depend on who looked first.
- `count` goes up where a lease is granted, and nowhere else.
- What is owed only shrinks; `finished_through` and `time_ms` only grow; an extension never shortens.
- **Holes never exceed their cap**, whatever is acked in whatever order: a lease is granted only if even the worst
  choice of acks keeps to it (`worst_holes`). The batch at the frontier can always be granted, so nothing locks up.
- With `ordering_required` one batch is out at a time, the one at the frontier. A lease over two would let its holder
  start the second while the first comes back.
- A cap that stops a consume does not undo the acks that came with it: it is part of the answer, not an error.

What was delivered often enough is judged and parked in `parking.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge

from buffer.config import LeaseConfig
from buffer.errors import CapExceeded, InFlightCapExceeded, InvalidConfig, InvalidHandle, InvalidInput, QueueFull
from buffer.ledger.lease_steps import (
    Holes,
    Stamp,
    after,
    finish,
    holes_exceeded,
    settled,
    stamped,
    whole,
    with_batches,
)
from buffer.ledger.leases import FRESH, REASON_MAX, Batch, Handle, Leases, Phase, State
from buffer.ledger.parking import EXPIRED, ParkOrder, is_used_up, judge, take_turn
from buffer.ledger.ranges import Runs, difference, runs_of, size, union
from buffer.ledger.reasons import plain

REFUSALS_MAX = 100  # close looks at the holes in one consume: each costs a walk over the section


@dataclass(frozen=True, slots=True)
class Ack:
    """A batch is done, or those entries of it."""

    handle: Handle
    entries: tuple[int, ...] | None = None
    entry_count: int | None = None
    """How many the batch holds; needed with `entries`."""


@dataclass(frozen=True, slots=True)
class Nack:
    """A batch, or what is left of it, failed."""

    handle: Handle
    delay_ms: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Delivery:
    handle: Handle
    count: int
    """This delivery included."""
    owed: Runs | None
    """The entries to work on; None: all."""
    until_ms: int
    timeout_ms: int
    """How long that is from the moment of the lease."""
    expired: str | None = None
    """The lease that had it before and ran out."""


@dataclass(frozen=True, slots=True)
class Grant:
    deliveries: tuple[Delivery, ...] = ()
    orders: tuple[ParkOrder, ...] = ()
    """To be carried out first, in this order; nothing is delivered then."""
    blocked: tuple[int, ...] = ()
    """Used up, and kept back from now on."""
    stopped: CapExceeded | None = None
    """Something could be delivered, but for this cap."""
    changes_at_ms: int | None = None
    """When a lease or a delay ends next: no use in looking again before, if the queue stays as it is."""
    ran_out: int = 0
    """Leases whose batches were delivered again, or judged, because their time was up."""


# Granting


def consume(
    section: Leases, by: Stamp, waiting: range, max_batches: int, acks: Sequence[Ack] = ()
) -> tuple[Leases, Grant]:
    """Ack, judge what is used up, lease up to `max_batches` of the sequences waiting. Raises InvalidHandle.

    The section comes back as it is if there is nothing to write.
    """
    max_batches = whole("max_batches", max_batches)
    now = section.now_ms(by.clock_ms)
    acked = _acked(section, now, acks)
    current, blocked = judge(acked, now)
    ran_out = sum(batch.lease is not None and current.batches.get(s) is not batch for s, batch in acked.batches.items())
    current, orders = take_turn(current, by, now)
    deliveries: tuple[Delivery, ...] = ()
    stopped = None
    if not orders:
        current, deliveries, stopped = _granted(current, by, now, waiting, max_batches)
    ran_out += sum(delivery.expired is not None for delivery in deliveries)
    grant = Grant(deliveries, orders, blocked, stopped, _next_change(current, now), ran_out)
    return (section if current is section else stamped(current, by, now)), grant


def _granted(
    section: Leases, by: Stamp, now: int, waiting: range, max_batches: int
) -> tuple[Leases, tuple[Delivery, ...], CapExceeded | None]:
    in_flight = sum(batch.is_leased(now) for batch in section.batches.values())
    limit = min(max_batches, section.config.max_in_flight - in_flight)
    holes = Holes(section, now)
    chosen: dict[int, Batch] = {}
    stopped: CapExceeded | None = None
    for run, batch in _offers(section, now, waiting, in_flight):
        if limit <= 0:
            stopped = _in_flight_exceeded(section.config, in_flight) if max_batches else None
            break
        for sequence in run:
            if len(chosen) >= limit:
                break
            if not holes.admit(sequence):
                stopped = holes_exceeded(section.config, section.holes)
                break  # the rest of an untouched run would add as much, or more
            chosen[sequence] = batch
        if len(chosen) >= limit or holes.refusals >= REFUSALS_MAX:
            break
    if not chosen:
        return section, (), stopped
    until = now + section.config.visibility_timeout_ms
    changes = {
        sequence: dataclasses.replace(
            batch,
            count=batch.count + 1,
            lease=by.lease_id,
            until_ms=until,
            reason=batch.reason if batch.lease is None else EXPIRED,
        )
        for sequence, batch in chosen.items()
    }
    deliveries = tuple(
        Delivery(Handle(by.lease_id, sequence), batch.count + 1, batch.owed, until, until - now, expired=batch.lease)
        for sequence, batch in chosen.items()
    )
    return with_batches(section, changes), deliveries, None


def _offers(section: Leases, now: int, waiting: range, in_flight: int) -> Iterator[tuple[range, Batch]]:
    """What could be delivered, were there no caps."""
    in_order = section.config.ordering_required
    if in_order and in_flight:
        return
    for run, batch in _unfinished(section, waiting):
        if batch.phase(now) is Phase.AVAILABLE and not is_used_up(section, batch):
            yield (run[:1] if in_order else run), batch
        if in_order:
            return  # the line waits for its head


def _unfinished(section: Leases, waiting: range) -> Iterator[tuple[range, Batch]]:
    """What is not finished, ascending: one sequence with a story, or a run without one. Costs what has a story."""
    position = max(waiting.start, section.finished_through + 1)
    told: Iterator[tuple[int, int, Batch | None]] = merge(
        ((first, last, None) for first, last in section.finished),
        ((sequence, sequence, batch) for sequence, batch in section.batches.items()),
        key=lambda item: item[0],
    )
    for first, last, batch in told:
        if last < position:
            continue
        if first >= waiting.stop:
            break
        if position < first:
            yield range(position, first), FRESH
        if batch is not None:
            yield range(first, first + 1), batch
        position = last + 1
    if position < waiting.stop:
        yield range(position, waiting.stop), FRESH


# Giving back


def ack(section: Leases, by: Stamp, acks: Sequence[Ack]) -> Leases:
    """Raises InvalidHandle, InvalidInput."""
    now = section.now_ms(by.clock_ms)
    return stamped(_acked(section, now, acks), by, now)


def nack(section: Leases, by: Stamp, nacks: Sequence[Nack]) -> Leases:
    """Back to the queue, each after its delay. Raises InvalidHandle."""
    now = section.now_ms(by.clock_ms)
    _check_held(section, now, [nack.handle for nack in nacks])
    changes = {}
    for item in nacks:
        batch = section.batches[item.handle.sequence]
        reason = plain(item.reason)[:REASON_MAX]
        changes[item.handle.sequence] = dataclasses.replace(
            batch, lease=None, until_ms=after(now, item.delay_ms), reason=reason
        )
    return stamped(with_batches(section, changes), by, now)


def refuse(section: Leases, by: Stamp, nacks: Sequence[Nack]) -> Leases:
    """The holder's own settings keep it from reading these. Raises InvalidHandle.

    Failed deliveries, each after its delay; but one that is used up is blocked, whatever the strategy: it was read by
    nobody, so nobody can tell that it is bad, and a worker with wrong settings must not empty the queue.
    """
    given_back = nack(section, by, nacks)
    changes = {}
    for item in nacks:
        batch = given_back.batches[item.handle.sequence]
        if is_used_up(given_back, batch):
            changes[item.handle.sequence] = dataclasses.replace(batch, state=State.BLOCKED, until_ms=0)
    return with_batches(given_back, changes)


def snooze(section: Leases, by: Stamp, handles: Sequence[Handle], delay_ms: int = 0) -> Leases:
    """Back to the queue untouched: the lease stays counted, and one attempt more is allowed. Raises InvalidHandle."""
    now = section.now_ms(by.clock_ms)
    _check_held(section, now, handles)
    changes = {}
    for handle in handles:
        batch = section.batches[handle.sequence]
        changes[handle.sequence] = dataclasses.replace(
            batch, lease=None, until_ms=after(now, delay_ms), extra=batch.extra + 1
        )
    return stamped(with_batches(section, changes), by, now)


def extend(section: Leases, by: Stamp, handles: Sequence[Handle], additional_ms: int) -> Leases:
    """Hold for `additional_ms` from now on, or as long as before if that is longer. Raises InvalidHandle."""
    now = section.now_ms(by.clock_ms)
    _check_held(section, now, handles)
    until = after(now, additional_ms)
    changes = {}
    for handle in handles:
        batch = section.batches[handle.sequence]
        changes[handle.sequence] = dataclasses.replace(batch, until_ms=max(batch.until_ms, until))
    return stamped(with_batches(section, changes), by, now)


def _acked(section: Leases, now: int, acks: Sequence[Ack]) -> Leases:
    if not acks:
        return section
    _check_held(section, now, [ack.handle for ack in acks])
    owed: dict[int, Runs] = {}
    done: set[int] = set()
    for item in acks:
        sequence = item.handle.sequence
        if item.entries is None:
            done.add(sequence)
            continue
        acked = _acked_entries(item)
        if not acked:
            continue  # or the batch would look as if a part of it were done
        left = owed.get(sequence) or section.batches[sequence].owed
        left = difference(left if left is not None else _all(item), acked)
        if left:
            owed[sequence] = left
        else:
            done.add(sequence)
    changes = {s: dataclasses.replace(section.batches[s], owed=left) for s, left in owed.items() if s not in done}
    return finish(with_batches(section, changes), done)


def _all(item: Ack) -> Runs:
    if item.entry_count is None:
        raise InvalidInput(f"an ack of some entries of {item.handle.sequence} must say how many the batch has")
    return ((0, whole("entry_count", item.entry_count, low=1) - 1),)


def _acked_entries(item: Ack) -> Runs:
    entries = [whole("an entry's index", index) for index in item.entries or ()]
    ((_, last),) = _all(item)
    for index in entries:
        if index > last:
            raise InvalidInput(f"batch {item.handle.sequence} has the entries 0 to {last}; there is no entry {index}")
    return runs_of(entries)


def _check_held(section: Leases, now: int, handles: Sequence[Handle]) -> None:
    lost = tuple((h.lease_id, h.sequence) for h in handles if not _is_held(section, now, h))
    if lost:
        raise InvalidHandle(
            f"not held any more (lease, sequence): {', '.join(map(str, lost[:10]))}{' …' if len(lost) > 10 else ''}. "
            "The lease ran out, or the batch was acked or given back. Nothing was changed. Drop this work: what is not "
            "finished is delivered again; extend leases of slow work in time",
            handles=lost,
        )


def _is_held(section: Leases, now: int, handle: Handle) -> bool:
    batch = section.batches.get(handle.sequence)
    return batch is not None and batch.lease == handle.lease_id and batch.is_leased(now)


def purge(section: Leases, by: Stamp, waiting: range) -> tuple[Leases, int]:
    """Finish everything that waits, leased or not, but what is being parked. Returns how many."""
    now = section.now_ms(by.clock_ms)
    parking = runs_of(s for s, batch in section.batches.items() if batch.state is State.PARKING)
    first = max(waiting.start, section.finished_through + 1)
    if first >= waiting.stop:
        return section, 0
    gone = difference(difference(((first, waiting.stop - 1),), section.finished), parking)
    purged = settled(section, union(section.finished, gone))
    if purged.holes > section.config.max_ack_holes:
        raise holes_exceeded(section.config, purged.holes)
    return stamped(purged, by, now), size(gone)


# The section as a whole


def opened(config: LeaseConfig, by: Stamp, epoch: int, first_sequence: int) -> Leases:
    """A section for a queue that had none."""
    return stamped(Leases(config, epoch=epoch, finished_through=first_sequence - 1), by, by.clock_ms)


def claimed(section: Leases, by: Stamp, epoch: int, first_sequence: int) -> Leases:
    """Under a new epoch, after another reader was here: what that one dequeued is finished."""
    now = section.now_ms(by.clock_ms)
    if first_sequence - 1 > section.finished_through:
        passed = ((section.finished_through + 1, first_sequence - 1),)
        section = settled(section, union(section.finished, passed))
    return stamped(dataclasses.replace(section, epoch=epoch), by, now)


def configure(section: Leases, by: Stamp, config: LeaseConfig) -> Leases:
    """Other settings from now on. Raises InvalidConfig: batches on their way to one dead-letter queue stay on it."""
    parking = [s for s, batch in section.batches.items() if batch.state is State.PARKING]
    if parking and config.dlq != section.config.dlq:
        raise InvalidConfig(
            f"batches {parking} are being parked in {section.config.dlq!r}: change dlq when that is done",
            key="dlq",
            value=config.dlq,
        )
    return stamped(dataclasses.replace(section, config=config), by, section.now_ms(by.clock_ms))


def check_depth(section: Leases, next_sequence: int, location: str) -> None:
    """Raises QueueFull if no batch may be added."""
    max_depth, depth = section.config.max_depth, section.depth(next_sequence)
    if max_depth and depth >= max_depth:
        raise QueueFull(
            f"{depth} batches wait in {location!r}, and max_depth is {max_depth}: produce again when workers have "
            "finished some",
            location=location,
            depth=depth,
            max_depth=max_depth,
        )


def _next_change(section: Leases, now: int) -> int | None:
    ends = [batch.until_ms for batch in section.batches.values() if now < batch.until_ms]
    if section.parker is not None and now < section.parker_until_ms:
        ends.append(section.parker_until_ms)
    return min(ends, default=None)


def _in_flight_exceeded(config: LeaseConfig, in_flight: int) -> InFlightCapExceeded:
    return InFlightCapExceeded(
        f"{in_flight} batches are leased, and max_in_flight is {config.max_in_flight}: ack some, wait, or raise the "
        "cap with `configure`",
        cap=config.max_in_flight,
        count=in_flight,
    )
