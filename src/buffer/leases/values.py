"""What a queue with leases hands out. Frozen; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from buffer.errors import InvalidInput
from buffer.ledger.lease_rules import Ack, Delivery, Nack
from buffer.ledger.leases import FRESH, Handle, Leases, Phase
from buffer.ledger.ranges import Runs, numbers
from buffer.model import ConsumedBatch


@dataclass(frozen=True, slots=True)
class LeasedBatch:
    """A batch under a lease, with the entries that are owed: all of them, or what earlier leases left."""

    delivery: Delivery
    batch: ConsumedBatch

    @property
    def handle(self) -> Handle:
        return self.delivery.handle

    @property
    def lease_id(self) -> str:
        return self.delivery.handle.lease_id

    @property
    def sequence(self) -> int:
        return self.delivery.handle.sequence

    @property
    def delivery_count(self) -> int:
        """How many leases ever covered it, this one included."""
        return self.delivery.count

    @property
    def until_ms(self) -> int:
        """When the lease ends, unless it is extended."""
        return self.delivery.until_ms

    @property
    def indices(self) -> Sequence[int]:
        """The indices of the entries that are owed."""
        owed = self.delivery.owed
        return range(len(self.batch)) if owed is None else tuple(numbers(owed, below=len(self.batch)))

    @property
    def entries(self) -> list[bytes]:
        """The entries that are owed, in the order of `indices`."""
        if self.delivery.owed is None:
            return self.batch.entries
        return [self.batch.array[index].as_py() for index in self.indices]

    def done(self, entries: Sequence[int] | None = None) -> Ack:
        """An ack of the batch, or of the entries with these indices."""
        return Ack(self.handle, None if entries is None else tuple(entries), len(self.batch))


@dataclass(frozen=True, slots=True)
class Delivered:
    """What one consume brought: batches under one lease, maybe none."""

    batches: tuple[LeasedBatch, ...] = ()
    unreadable: tuple[int, ...] = ()
    """Sequences that could not be fetched or decoded: failed deliveries, given back already."""
    snoozed: tuple[int, ...] = ()
    """Sequences that were given back untouched: the store could not read them for now, or was too slow."""

    @property
    def lease_id(self) -> str | None:
        return self.batches[0].lease_id if self.batches else None

    def __iter__(self) -> Iterator[LeasedBatch]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


@dataclass(frozen=True, slots=True)
class Peeked:
    """An unfinished batch as it stands, without touching it."""

    sequence: int
    location: str
    phase: Phase
    delivery_count: int
    owed: Runs | None = None
    lease_id: str | None = None
    until_ms: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LeaseStats:
    """A queue with leases in numbers, all of batches."""

    depth: int
    """Not finished."""
    available: int
    in_flight: int
    delayed: int
    blocked: int
    parking: int
    parked: int
    """Ever given to the dead-letter queue, or on their way there."""
    holes: int
    finished_through: int
    next_sequence: int
    time_ms: int
    clock_behind_ms: int
    """How far the queue's time is ahead of this machine's clock: another worker's clock is fast by that much."""
    blocked_sequences: tuple[int, ...] = field(default=())
    ready: int = 0
    """Of the available ones those that may be leased now: with `ordering_required` the oldest at most."""


def stats_of(section: Leases, next_sequence: int, clock_ms: int, now_ms: int | None = None) -> LeaseStats:
    """`now_ms` is the queue's time where it is known; else the clock's, if that is not behind the section's."""
    now = section.now_ms(clock_ms if now_ms is None else now_ms)
    counts = dict.fromkeys(Phase, 0)
    blocked: list[int] = []
    for sequence, batch in section.batches.items():
        phase = batch.phase(now)
        counts[phase] += 1
        if phase is Phase.BLOCKED:
            blocked.append(sequence)
    depth = section.depth(next_sequence)
    available = ready = depth - (len(section.batches) - counts[Phase.AVAILABLE])
    if section.config.ordering_required:  # the line waits for its head
        head = section.batches.get(section.finished_through + 1, FRESH)
        is_free = head.phase(now) is Phase.AVAILABLE and not counts[Phase.LEASED]
        ready = min(available, 1) if is_free else 0
    return LeaseStats(
        depth=depth,
        available=available,
        in_flight=counts[Phase.LEASED],
        delayed=counts[Phase.DELAYED],
        blocked=counts[Phase.BLOCKED],
        parking=counts[Phase.PARKING],
        parked=section.ordinals,
        holes=section.holes,
        finished_through=section.finished_through,
        next_sequence=next_sequence,
        time_ms=now,
        clock_behind_ms=max(0, section.time_ms - clock_ms),
        blocked_sequences=tuple(blocked),
        ready=ready,
    )


def peeked(section: Leases, sequence: int, location: str, clock_ms: int) -> Peeked:
    batch = section.batches.get(sequence, FRESH)
    now = section.now_ms(clock_ms)
    phase = batch.phase(now)
    return Peeked(
        sequence=sequence,
        location=location,
        phase=phase,
        delivery_count=batch.count,
        owed=batch.owed,
        lease_id=batch.lease if phase is Phase.LEASED else None,
        until_ms=batch.until_ms if phase in (Phase.LEASED, Phase.DELAYED) else None,
        reason=batch.reason,
    )


# What callers may pass for a handle or an ack

Held = Handle | LeasedBatch
Done = Held | Ack


def acks_of(done: Done | Iterable[Done]) -> list[Ack]:
    return [item if isinstance(item, Ack) else Ack(handle_of(item)) for item in _items(done)]


def nacks_of(failed: Held | Nack | Iterable[Held | Nack], delay_ms: int, reason: str) -> list[Nack]:
    return [item if isinstance(item, Nack) else Nack(handle_of(item), delay_ms, reason) for item in _items(failed)]


def handles_of(held: Held | Iterable[Held]) -> list[Handle]:
    return [handle_of(item) for item in _items(held)]


def handle_of(held: Held) -> Handle:
    if isinstance(held, LeasedBatch):
        return held.handle
    if not isinstance(held, Handle):
        raise InvalidInput(f"{held!r} is nothing that consume handed out: pass a LeasedBatch or its handle")
    return held


def _items(one_or_many: Any) -> list[Any]:
    if isinstance(one_or_many, Ack | Nack | Handle | LeasedBatch):
        return [one_or_many]
    if not isinstance(one_or_many, Iterable):
        raise InvalidInput(f"{one_or_many!r} is nothing that consume handed out: pass a LeasedBatch, or some of them")
    return list(one_or_many)
