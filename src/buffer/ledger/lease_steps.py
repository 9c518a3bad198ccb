"""Small steps that the verbs of a leases section are made of (`lease_rules.py`, `parking.py`). Pure."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from heapq import merge
from typing import Any

from buffer.config import YEAR_S, LeaseConfig
from buffer.errors import AckHoleCapExceeded, InvalidInput
from buffer.ledger.leases import FRESH, Batch, Leases, Phase, Receipt, State
from buffer.ledger.ranges import Runs, holds, runs_of, union

DELAY_MAX_MS = YEAR_S * 1000
RECEIPT_KEEP_MS = 600_000  # far longer than a compare-and-swap may try
RECEIPTS_MAX = 1_000  # short-lived workers by the thousand must not fill the ledger


@dataclass(frozen=True, slots=True)
class Stamp:
    """One write: who sends it, its number among that worker's, and the time by its clock."""

    worker: str
    number: int
    clock_ms: int

    @property
    def lease_id(self) -> str:
        """Unique, for a worker never uses a number twice."""
        return f"{self.worker}-{self.number}"


def worst_holes(section: Leases, now_ms: int, also: Iterable[int] = ()) -> int:
    """The most holes there can be, whichever of the leased and parking batches (and `also`) are finished first."""
    open_ends = {s for s, batch in section.batches.items() if batch.is_leased(now_ms) or _will_finish(batch)}
    marks: Iterator[tuple[int, int, bool]] = merge(
        ((first, last, True) for first, last in section.finished),
        ((sequence, sequence, False) for sequence in sorted(open_ends.union(also))),
    )
    never = -(1 << 62)
    inside, outside = 0, never  # the most runs so far, if the last place is finished, and if it is not
    position = section.finished_through
    for first, last, is_finished in marks:
        if first > position + 1:
            inside, outside = never, max(inside, outside)
        inside, outside = max(inside, outside + 1), never if is_finished else max(inside, outside)
        position = last
    return max(inside, outside)


class Holes:
    """Whether one lease more keeps to the cap, however its ack falls among the others."""

    def __init__(self, section: Leases, now: int) -> None:
        self._section = section
        self._now = now
        self._cap = section.config.max_ack_holes
        self._admitted: list[int] = []
        self._bound: int | None = None
        self.refusals = 0

    def admit(self, sequence: int) -> bool:
        if self._bound is None:
            self._bound = worst_holes(self._section, self._now)
        bound = self._bound + 1  # one more lease adds one hole at most: look closer only where that matters
        if bound > self._cap:
            bound = worst_holes(self._section, self._now, (*self._admitted, sequence))
            # Not above the bound before: a cap that was lowered must not stop the batch at the frontier.
            if bound > max(self._cap, self._bound):
                self.refusals += 1
                return False
        self._bound = bound
        self._admitted.append(sequence)
        return True


def may_finish(section: Leases, now_ms: int, sequence: int) -> bool:
    """Finishing this one keeps to the cap of holes; or, where a lowered cap is passed already, makes it no worse."""
    cap = section.config.max_ack_holes
    worst = worst_holes(section, now_ms, (sequence,))
    return worst <= cap or worst <= worst_holes(section, now_ms)


def _will_finish(batch: Batch) -> bool:
    return batch.state is State.PARKING and not batch.then_blocked


def is_finished(section: Leases, sequence: int) -> bool:
    return sequence <= section.finished_through or holds(section.finished, sequence)


def phase(section: Leases, sequence: int, clock_ms: int) -> Phase:
    if is_finished(section, sequence):
        return Phase.FINISHED
    return section.batches.get(sequence, FRESH).phase(section.now_ms(clock_ms))


def unfinished_batch(section: Leases, waiting: range, sequence: int) -> Batch:
    if sequence not in waiting or is_finished(section, sequence):
        raise InvalidInput(f"batch {sequence} is not in the queue or finished: nothing to do")
    return section.batches.get(sequence, FRESH)


def with_batches(section: Leases, changes: Mapping[int, Batch]) -> Leases:
    if not changes:
        return section
    return dataclasses.replace(section, batches=_ascending({**section.batches, **changes}))


def _ascending(batches: dict[int, Batch]) -> dict[int, Batch]:
    return dict(sorted(batches.items()))


def finish(section: Leases, done: Set[int]) -> Leases:
    return settled(section, union(section.finished, runs_of(done))) if done else section


def settled(section: Leases, finished: Runs) -> Leases:
    """With these finished; the frontier moves up through the first run if nothing stands before it."""
    through = section.finished_through
    if finished and finished[0][0] <= through + 1:
        through, finished = max(through, finished[0][1]), finished[1:]
    batches = {s: batch for s, batch in section.batches.items() if s > through and not holds(finished, s)}
    return dataclasses.replace(section, finished_through=through, finished=finished, batches=batches)


def stamped(section: Leases, by: Stamp, now: int) -> Leases:
    """With the time and the receipt of this write."""
    others = [
        (worker, receipt)
        for worker, receipt in section.receipts.items()
        if worker != by.worker and receipt.time_ms + RECEIPT_KEEP_MS > now
    ]
    receipts = dict(others[-(RECEIPTS_MAX - 1) :])
    receipts[by.worker] = Receipt(by.number, now)  # the newest stands last
    return dataclasses.replace(section, time_ms=now, receipts=receipts)


def whole(what: str, value: Any, low: int = 0) -> int:
    """The value as an int that the ledger can hold. Raises InvalidInput.

    Every number of a caller passes through here: one that no reader accepts, 1.5 or True, would stop all workers.
    """
    try:
        number = None if isinstance(value, bool) else int(operator.index(value))
    except TypeError:
        number = None
    if number is None or number < low:
        raise InvalidInput(f"{what} is {value!r}: it must be a whole number, at least {low}")
    return number


def after(now: int, delay_ms: int) -> int:
    delay_ms = whole("a time in ms", delay_ms)
    if not 0 <= delay_ms <= DELAY_MAX_MS:
        raise InvalidInput(f"a time of {delay_ms} ms is too long: between 0 and {DELAY_MAX_MS:,} (a year)")
    return now + delay_ms if delay_ms else 0


def holes_exceeded(config: LeaseConfig, holes: int) -> AckHoleCapExceeded:
    return AckHoleCapExceeded(
        f"{holes} holes among the acked batches, and one more lease could pass max_ack_holes={config.max_ack_holes}: "
        "finish what stands in the holes (see `stats`), wait until its leases end, or raise the cap with `configure`",
        cap=config.max_ack_holes,
        count=holes,
    )
