"""The leases section of the ledger: which batch is held by whom, how often it was delivered, what is finished. Pure.

A sequence above `finished_through` is in one of three places:

    in `finished`   it is done, but something before it is not: each run of these closes one **hole**
    in `batches`    it has a story: leased, delayed, blocked, parking, or given back with a count
    in neither      nobody has touched it: it is available, with a count of 0

So the section grows with what is in flight, kept back or out of order, never with the queue's length, and equal
neighbours are written as one run. What a batch *is* follows from the section and a time: a lease that has run out is
no lease. There is no timer and nobody who sweeps.

**Time** is the greater of the caller's clock and `time_ms`, which every write stores: it never runs backwards, so a
lease that has run out once never holds again, whatever the clocks of the workers say.

**Receipts.** Each worker numbers its writes and leaves the number here. After a lost reply it finds its number, and
knows that this very write stands, whatever others have written on top. Decisions are in `lease_rules.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Self

from buffer.config import LeaseConfig
from buffer.errors import InvalidConfig
from buffer.ledger.entries import INDEX_MAX
from buffer.ledger.envelope import Envelope, Fields, WrongField, typed
from buffer.ledger.ranges import Run, Runs, holds, is_canonical, size

BATCHES_MAX = 1_000_000  # a damaged run must not cost the reader its memory
REASON_MAX = 200  # the section stays small, however long a traceback is


class State(StrEnum):
    """What may happen to a batch next. Whether it is leased, delayed or available is a question of time."""

    OPEN = "open"
    BLOCKED = "blocked"
    PARKING = "parking"


class Phase(StrEnum):
    """Where a sequence stands at a moment."""

    AVAILABLE = "available"
    LEASED = "leased"
    DELAYED = "delayed"
    BLOCKED = "blocked"
    PARKING = "parking"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Handle:
    """A batch under a lease: what `ack`, `nack`, `snooze` and `extend` name."""

    lease_id: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One sequence with a story."""

    count: int = 0
    """Distinct leases that ever covered it."""
    lease: str | None = None
    """Who holds it until `until_ms`; still here afterwards, to say whose lease ran out."""
    until_ms: int = 0
    """The lease's end; or, without a lease, from when on it may be leased again."""
    extra: int = 0
    """Attempts allowed beyond the queue's: from `unblock` and `snooze`."""
    owed: Runs | None = None
    """The entries that are not acked yet. None: all of them."""
    state: State = State.OPEN
    ordinal: int = 0
    """Its number among the parked, given when parking begins; not 0 and not parking: it was copied."""
    then_blocked: bool = False
    """Of a parking batch: it is blocked afterwards, not finished."""
    reason: str = ""
    """Why it came back last."""

    def is_leased(self, now_ms: int) -> bool:
        return self.state is State.OPEN and self.lease is not None and now_ms < self.until_ms

    def phase(self, now_ms: int) -> Phase:
        if self.state is State.BLOCKED:
            return Phase.BLOCKED
        if self.state is State.PARKING:
            return Phase.PARKING
        if now_ms >= self.until_ms:
            return Phase.AVAILABLE
        return Phase.DELAYED if self.lease is None else Phase.LEASED


_UNTOLD = {f.name: f.default for f in dataclasses.fields(Batch)}
"""What a ledger leaves out of a batch."""


FRESH = Batch()


@dataclass(frozen=True, slots=True)
class Receipt:
    """A worker's last write."""

    number: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class Leases:
    config: LeaseConfig
    epoch: int = 0
    """Of the manifest, claimed by the first worker and shared by all: a newer claim fences every one of them."""
    time_ms: int = 0
    finished_through: int = -1
    finished: Runs = ()
    batches: dict[int, Batch] = field(default_factory=dict)
    """By sequence, ascending."""
    ordinals: int = 0
    """How many were ever given a number for parking."""
    parker: str | None = None
    """Whoever copies the parking batches now, as a lease id; the others leave them alone until its time is up."""
    parker_until_ms: int = 0
    receipts: Mapping[str, Receipt] = field(default_factory=dict)

    @property
    def holes(self) -> int:
        """Gaps in what is finished: something unfinished stands before each run."""
        return len(self.finished)

    @property
    def furthest(self) -> int:
        """The last sequence that the section tells of; -1: it tells of none."""
        last_finished = self.finished[-1][1] if self.finished else self.finished_through
        return max(last_finished, next(reversed(self.batches), -1))

    def now_ms(self, clock_ms: int) -> int:
        return max(clock_ms, self.time_ms)

    def depth(self, next_sequence: int) -> int:
        """Batches that are not finished."""
        return max(0, next_sequence - 1 - self.finished_through) - size(self.finished)

    def has_receipt(self, worker: str, number: int) -> bool:
        """This very write of this worker landed."""
        receipt = self.receipts.get(worker)
        return receipt is not None and receipt.number == number

    def to_json(self) -> dict[str, Any]:
        return {
            "config": {**dataclasses.asdict(self.config), "max_depth": self.config.max_depth or None},
            "epoch": self.epoch,
            "time_ms": self.time_ms,
            "finished_through": self.finished_through,
            "finished": [list(run) for run in self.finished],
            "batches": [[first, last, _batch_json(batch)] for first, last, batch in _in_runs(self.batches)],
            "ordinals": self.ordinals,
            "parker": self.parker,
            "parker_until_ms": self.parker_until_ms,
            "receipts": {worker: [receipt.number, receipt.time_ms] for worker, receipt in self.receipts.items()},
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Leases:
        """Raises WrongField: a guess could deliver twice, or never."""
        fields = Fields("leases.", document, [f.name for f in dataclasses.fields(cls)])
        section = cls(
            config=_config(fields.take("config", dict)),
            epoch=fields.count("epoch"),
            time_ms=fields.count("time_ms"),
            finished_through=_count("leases.finished_through", document["finished_through"], low=-1),
            finished=_runs("leases.finished", document["finished"]),
            batches=_batches(fields.take("batches", list)),
            ordinals=fields.count("ordinals"),
            parker=fields.take("parker", str, None),
            parker_until_ms=fields.count("parker_until_ms"),
            receipts=_receipts(fields.take("receipts", dict)),
        )
        _check(section)
        return section


# Writing: only what differs from a batch without a story, and equal neighbours once.


def _in_runs(batches: Mapping[int, Batch]) -> list[tuple[int, int, Batch]]:
    runs: list[tuple[int, int, Batch]] = []
    for sequence, batch in batches.items():
        if runs and runs[-1][1] + 1 == sequence and runs[-1][2] == batch:
            runs[-1] = (runs[-1][0], sequence, batch)
        else:
            runs.append((sequence, sequence, batch))
    return runs


def _batch_json(batch: Batch) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, default in _UNTOLD.items():
        value = getattr(batch, name)
        if value != default:
            values[name] = [list(run) for run in value] if name == "owed" else value
    return values


# Reading


def _runs(name: str, value: Any) -> Runs:
    return tuple(_run(f"{name}[{i}]", item) for i, item in enumerate(typed(name, value, list)))


def _run(name: str, value: Any) -> Run:
    first, last = _list(name, value, 2)
    return _count(f"{name}[0]", first), _count(f"{name}[1]", last)


def _list(name: str, value: Any, length: int) -> list[Any]:
    items: list[Any] = typed(name, value, list)
    if len(items) != length:
        raise WrongField(f"{name} has {len(items)} items, not {length}")
    return items


def _count(name: str, value: Any, low: int = 0) -> int:
    number: int = typed(name, value, int)
    if number < low:
        raise WrongField(f"{name} is {number}, below {low}")
    return number


def _config(value: dict[str, Any]) -> LeaseConfig:
    Fields("leases.config.", value, LeaseConfig.setting_names())
    try:
        return LeaseConfig(**{**value, "max_depth": value["max_depth"] or 0})  # null: no limit
    except InvalidConfig as error:
        raise WrongField(f"leases.config.{error.key}: {error}") from error


def _batches(value: list[Any]) -> dict[int, Batch]:
    batches: dict[int, Batch] = {}
    above = -1
    for i, item in enumerate(value):
        name = f"leases.batches[{i}]"
        first, last, document = _list(name, item, 3)
        first, last = _run(name, [first, last])
        if not above < first <= last:
            raise WrongField(f"{name} is {first}..{last}, which is not a range above {above}")
        if len(batches) + last - first >= BATCHES_MAX:
            raise WrongField(f"{name} is {first}..{last}: a ledger tells of {BATCHES_MAX:,} batches at most")
        batches.update(dict.fromkeys(range(first, last + 1), _batch(name, typed(f"{name}[2]", document, dict))))
        above = last
    return batches


def _batch(name: str, value: dict[str, Any]) -> Batch:
    fields = Fields(f"{name}.", {**_UNTOLD, **value}, _UNTOLD.keys())
    owed = fields.take("owed", list, None)
    batch = Batch(
        count=fields.count("count"),
        lease=fields.take("lease", str, None),
        until_ms=fields.count("until_ms"),
        extra=fields.count("extra"),
        owed=None if owed is None else _runs(f"{name}.owed", owed),
        state=_state(f"{name}.state", fields.take("state", str, State)),
        ordinal=fields.count("ordinal"),
        then_blocked=fields.take("then_blocked", bool),
        reason=fields.take("reason", str),
    )
    if batch.owed is not None and not (batch.owed and is_canonical(batch.owed, low=0)):
        raise WrongField(f"{name}.owed is {owed}: not ranges that ascend and do not touch")
    if batch.owed is not None and batch.owed[-1][1] > INDEX_MAX:
        raise WrongField(f"{name}.owed goes up to {batch.owed[-1][1]:,}, and no batch has an entry above {INDEX_MAX:,}")
    return batch


def _state(name: str, value: str) -> State:
    try:
        return State(value)
    except ValueError as error:
        raise WrongField(f"{name} is {value!r}, not one of {', '.join(State)}") from error


def _receipts(value: dict[str, Any]) -> dict[str, Receipt]:
    receipts: dict[str, Receipt] = {}
    for worker, item in value.items():
        name = f"leases.receipts[{worker}]"
        number, time_ms = _list(name, item, 2)
        receipts[worker] = Receipt(_count(f"{name}[0]", number), _count(f"{name}[1]", time_ms))
    return receipts


def _check(section: Leases) -> None:
    """What holds between the fields."""
    low = section.finished_through + 1
    if not is_canonical(section.finished, low=low + 1):
        raise WrongField(f"leases.finished is {section.finished}: not ranges above {low} that ascend and do not touch")
    first = next(iter(section.batches), low)
    if first < low:
        raise WrongField(f"leases.batches has {first}, which is finished: finished_through is {low - 1}")
    for sequence in _both(section.finished, section.batches):
        raise WrongField(f"leases.batches has {sequence}, which leases.finished has, too")
    for sequence, batch in section.batches.items():
        if batch.ordinal > section.ordinals or (batch.state is State.PARKING and not batch.ordinal):
            raise WrongField(f"leases.batches, {sequence}: ordinal is {batch.ordinal}, not 1 to {section.ordinals}")


def _both(finished: Runs, batches: Mapping[int, Batch]) -> Iterator[int]:
    """Sequences in both. No run is walked: a damaged one may be endless."""
    return (sequence for sequence in batches if holds(finished, sequence))


def known_sequences(ledger: Envelope) -> int:
    """How many sequences the leases in a ledger surely speak of, for those who pass by."""
    through = (ledger.sections.get("leases") or {}).get("finished_through")
    return through + 1 if type(through) is int else 0  # whoever opens the section says what is wrong with it


@dataclass(frozen=True, slots=True)
class LeaseLedger(Envelope):
    """The ledger with the section `leases` opened."""

    SECTION: ClassVar[str | None] = "leases"
    USER: ClassVar[str] = "worker"

    leases: Leases | None = None

    @classmethod
    def way_out(cls) -> str:
        return (
            "Put it back. There is no other copy of what workers have finished, and how often each batch was "
            "delivered. To begin anew with all that the queue holds, stop all who use it, delete the ledger, and open "
            "the queue with adopt=True; marks of client ids are gone with it"
        )

    def section(self) -> dict[str, Any] | None:
        return None if self.leases is None else self.leases.to_json()

    @classmethod
    def opened(cls, header: dict[str, Any], document: dict[str, Any] | None) -> Self:
        return cls(**header, leases=None if document is None else Leases.from_json(document))
