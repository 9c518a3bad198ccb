"""The section `plan`: what a loader has promised to do with a queue, written before it does it. Pure.

    app_id, tables   what the queue feeds: one queue feeds one app
    born             false until the loader that made it has seen that no consumer was here before it
    next_sequence    the queue's, when last seen by a plan
    last_location    of the batch at the end of the range
    range            what a loader is committing, or committed last (`Plan`). It is never shrunk, grown or split by a
                     later loader: that one replays exactly this range, so whichever commit comes second is skipped.
                     `entries` and `rules` are absent until there is something to say, also from older releases
    blocked          why an operator must look, under `dlq_strategy = block`

Every decision is a function from the ledger that stands to the one that shall stand; the very same object means that
there is nothing to write. `buffer.journal` reads, asks one of them, and writes, as often as that takes. So each of
them must be right on whatever a crash, a lost reply or another loader left behind; what a caller has to remember of
its earlier writes (`sent`, `unsettled`) is an argument.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from buffer.errors import CorruptLedger, Fenced, LedgerLost, QueueBound
from buffer.ledger.entries import Entries, spans
from buffer.ledger.envelope import Envelope, Fields, WrongField, keyed_by_sequence, reasons, typed
from buffer.ledger.reasons import plain

SECTIONS_OBEYED: tuple[str, ...] = ("clients",)
"""Sections beside its own that a loader obeys: its consumer keeps the marks of what leaves the queue."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One range of sequences that goes into the tables as one transaction each."""

    after: int
    """What the tables had committed when it was made, -1 for nothing: `first - 1` unless a gap was accepted."""
    first: int
    last: int
    attempts: int = 1
    digest: str = ""
    """Of everything that decides where a record goes: a half-committed plan must meet the same one."""
    table_ids: Mapping[str, str | None] = field(default_factory=dict)
    """The identity each table had when the plan was made; None if it did not exist yet."""
    quarantined: Mapping[int, str] | None = None
    """Batches of the range that go to the dead letters whole, and why. None: not decided yet."""
    entries: Entries = field(default_factory=dict)
    """Single entries that go there, decided together with the batches."""
    rules: str | None = None
    """Names the tables' own rules (constraints, partitioning) under which that was decided; None: not known."""

    def tried_again(self) -> Plan:
        return dataclasses.replace(self, attempts=self.attempts + 1)

    def forgiven(self) -> Plan:
        """With no attempts counted: an operator has fixed what failed."""
        return dataclasses.replace(self, attempts=0)

    def undecided(self) -> Plan:
        """With nothing decided about its batches, and no attempts counted."""
        return dataclasses.replace(self, quarantined=None, entries={}, rules=None, attempts=0)

    def split(self, quarantined: Mapping[int, str], entries: Entries | None = None, rules: str | None = None) -> Plan:
        return dataclasses.replace(self, quarantined=_plain(quarantined), entries=dict(entries or {}), rules=rules)


def _plain(batches: Mapping[int, str]) -> dict[int, str]:
    return {sequence: plain(reason) for sequence, reason in batches.items()}


@dataclass(frozen=True, slots=True)
class Blocked:
    """A range that cannot be loaded and, by configuration, must not be skipped."""

    first: int
    last: int
    reason: str
    batches: Mapping[int, str] = field(default_factory=dict)
    """Which batches cannot be read, and why."""
    entries: Entries = field(default_factory=dict)
    """… and which single entries fail every time."""


@dataclass(frozen=True, slots=True)
class Ledger(Envelope):
    """The ledger with the section `plan` opened."""

    SECTION: ClassVar[str | None] = "plan"
    USER: ClassVar[str] = "loader"

    app_id: str | None = None
    tables: tuple[str, ...] = ()
    born: bool = False
    next_sequence: int = 0
    """The queue's, when last seen by a plan: a manifest that is behind it was restored from a backup."""
    last_location: str | None = None
    """Of the batch at `plan.last`: the same sequence with another location gives a restored manifest away."""
    plan: Plan | None = None
    blocked: Blocked | None = None

    @property
    def was_claimed(self) -> bool:
        """Somebody entered with an epoch, so there must have been a manifest."""
        return self.epoch > 0 or self.next_sequence > 0 or self.plan is not None

    @property
    def is_unbound(self) -> bool:
        """No loader was here yet, though somebody else has made the file."""
        return self.app_id is None and not self.born

    @property
    def unusable(self) -> str | None:
        return None if self.born else "it was made anew"

    @classmethod
    def lost(cls, location: str, what: str) -> LedgerLost:
        return LedgerLost(
            f"the ledger {location!r} is lost: {what}. Without it a half-done commit could be repeated. Put it back, "
            "or make sure that no loader runs and pass adopt=True with the app_id that the table was loaded with "
            "(DESCRIBE HISTORY shows it in userMetadata)",
            location=location,
        )

    def check_sections(self, known: Collection[str], *, location: str | None = None) -> None:
        """Raises QueueBound on a queue that workers share by leases, and as the envelope does."""
        if "leases" in self.sections:
            raise QueueBound(
                "workers share this queue by leases: they finish batches in any order, and a loader loads ranges. Load "
                "a queue of its own, or the dead-letter queue of this one"
            )
        Envelope.check_sections(self, known, location=location)

    def section(self) -> dict[str, Any] | None:
        document = {
            "app_id": self.app_id,
            "tables": list(self.tables),
            "born": self.born,
            "next_sequence": self.next_sequence,
            "last_location": self.last_location,
            "range": None if self.plan is None else _document(self.plan),
            "blocked": None if self.blocked is None else _document(self.blocked),
        }
        is_fresh = list(document.values()) == [None, [], False, 0, None, None, None]
        return None if is_fresh else document

    @classmethod
    def opened(cls, header: dict[str, Any], document: dict[str, Any] | None) -> Self:
        if document is None:
            return cls(**header)
        names = ("app_id", "tables", "born", "next_sequence", "last_location", "range", "blocked")
        fields = Fields("plan.", document, names)
        planned, blocked = fields.take("range", dict, None), fields.take("blocked", dict, None)
        return cls(
            **header,
            app_id=fields.take("app_id", str, None),
            tables=tuple(typed(f"plan.tables[{i}]", name, str) for i, name in enumerate(fields.take("tables", list))),
            born=fields.take("born", bool),
            next_sequence=fields.count("next_sequence"),
            last_location=fields.take("last_location", str, None),
            plan=None if planned is None else _plan(planned),
            blocked=None if blocked is None else _blocked(blocked),
        )


_ABSENT: Mapping[str, Any] = {"entries": {}, "rules": None}
"""Fields that are written only where they say something else than this: older releases refuse what they do not know."""


def _document(value: Plan | Blocked) -> dict[str, Any]:
    document = dataclasses.asdict(value)
    return {name: said for name, said in document.items() if name not in _ABSENT or said != _ABSENT[name]}


def _plan(document: dict[str, Any]) -> Plan:
    names = [field.name for field in dataclasses.fields(Plan)]
    fields = Fields("plan.range.", {**_ABSENT, **document}, names)
    table_ids = fields.take("table_ids", dict)
    quarantined = fields.take("quarantined", dict, None)
    plan = Plan(
        after=fields.take("after", int),
        first=fields.take("first", int),
        last=fields.take("last", int),
        attempts=fields.count("attempts"),
        digest=fields.take("digest", str),
        table_ids={name: typed(f"plan.range.table_ids[{name}]", v, str, None) for name, v in table_ids.items()},
        quarantined=None if quarantined is None else reasons("plan.range.quarantined", quarantined),
        entries=_entries("plan.range.entries", fields.take("entries", dict)),
        rules=fields.take("rules", str, None),
    )
    if not -1 <= plan.after < plan.first <= plan.last:
        raise WrongField(f"plan.range {plan.first}..{plan.last} after {plan.after} is not a range")
    return plan


def _blocked(document: dict[str, Any]) -> Blocked:
    names = [field.name for field in dataclasses.fields(Blocked)]
    fields = Fields("plan.blocked.", {"entries": {}, **document}, names)
    return Blocked(
        first=fields.count("first"),
        last=fields.count("last"),
        reason=fields.take("reason", str),
        batches=reasons("plan.blocked.batches", fields.take("batches", dict)),
        entries=_entries("plan.blocked.entries", fields.take("entries", dict)),
    )


def _entries(name: str, document: Mapping[str, Any]) -> Entries:
    found = {}
    for sequence, by_reason in keyed_by_sequence(name, document).items():
        for reason, text in typed(f"{name}[{sequence}]", by_reason, dict).items():
            try:
                spans(typed(f"{name}[{sequence}][{reason}]", text, str))
            except ValueError as error:
                raise WrongField(f"{name}[{sequence}] is {error}") from error
        found[sequence] = by_reason
    return found


# Before anything is claimed


@dataclass(frozen=True, slots=True)
class Binding:
    """What a loader was asked to feed. Without an app_id: whatever the ledger names, or a name made of its id."""

    app_id: str | None
    tables: tuple[str, ...]

    def fits(self, ledger: Ledger) -> bool:
        return self.app_id in (None, ledger.app_id) and ledger.tables == self.tables

    def of(self, queue_id: str) -> dict[str, Any]:
        return {"app_id": self.app_id or f"buffer/{queue_id}", "tables": self.tables}


def is_bound(ledger: Ledger | None, binding: Binding, *, location: str) -> bool:
    """Whether the ledger is born and names this binding. Raises QueueBound if it names another."""
    if ledger is None:
        return False
    ledger.check_sections(SECTIONS_OBEYED, location=location)
    if ledger.is_unbound:
        return False
    if not binding.fits(ledger):
        raise _bound_elsewhere(ledger, binding)
    return ledger.born


def bind(ledger: Ledger | None, binding: Binding, *, queue_epoch: int, new_queue_id: str) -> Ledger | None:
    """The next step of a ledger that is not bound yet towards one that is: made, then born.

    None if the queue was consumed before, with nothing to say into what. That is so only if the ledger is still this
    one afterwards: another loader may have given birth to it and claimed since it was read.

    Two steps, because the ledger and the queue's epoch are two objects: a consumer that claims between the look at
    the epoch and the making of the ledger is found by the second look.
    """
    if queue_epoch > 0:
        return None
    if ledger is None:
        return Ledger(queue_id=new_queue_id, **binding.of(new_queue_id))
    if ledger.is_unbound:
        return ledger.changed(**binding.of(ledger.queue_id))
    return ledger.changed(born=True)


def adopt(
    ledger: Ledger | None,
    binding: Binding,
    *,
    committed: int,
    furthest: int,
    digest: str,
    new_queue_id: str,
    location: str,
    may_complete: bool = True,
) -> Ledger:
    """The ledger of a queue that is taken over, whatever it says now.

    `committed` is what every table holds, `furthest` what one of them does: where they differ, a range was committed
    to some tables only. It becomes the plan, to be completed: where a record goes depends on nothing but itself. With
    dead letters that is not so. What of the range was set aside for them is not known any more, and it would be in no
    table if it can be loaded now; so without `may_complete` this raises LedgerLost. A ledger that fits already stays,
    unless a table is ahead of its plan or in the middle of it.
    """
    plan = None
    if furthest > committed:
        plan = Plan(after=committed, first=committed + 1, last=furthest, digest=digest, attempts=0, quarantined={})
    elif furthest >= 0:
        plan = Plan(after=furthest - 1, first=furthest, last=furthest, attempts=0)
    found = ledger or Ledger(queue_id=new_queue_id)
    found.check_sections(SECTIONS_OBEYED, location=location)
    covers = furthest < found.plan.first or furthest == found.plan.last if found.plan else furthest < 0
    if ledger is not None and ledger.born and binding.fits(ledger) and covers:
        return ledger
    if furthest > committed and not may_complete:
        raise _split_unknown(location, committed + 1, furthest)
    return found.changed(**binding.of(found.queue_id), born=True, plan=plan, last_location=None, blocked=None)


def salvaged(data: bytes, error: CorruptLedger) -> Ledger | None:
    """What adopting may still use of a ledger that could not be read: the envelope and the sections of others.

    Raises the error if a newer release wrote it, which knows more than we do.
    """
    if error.version is not None:
        raise error
    try:
        found = Envelope.from_bytes(data)
    except CorruptLedger:
        return None
    others = {name: document for name, document in found.sections.items() if name != Ledger.SECTION}
    return Ledger(found.queue_id, found.generation, found.epoch, others)


# Under an epoch


def enter(ledger: Ledger | None, binding: Binding, *, epoch: int, sent: bool, location: str) -> Ledger:
    """Put an epoch into the ledger, plan kept. Raises Fenced if a newer loader did first.

    The same epoch is ours only if we have `sent` it: nobody else claimed that number and got an answer.
    """
    if ledger is None:
        raise Ledger.lost(location, "it is gone")
    if ledger.unusable:
        raise Ledger.lost(location, ledger.unusable)
    ledger.check_sections(SECTIONS_OBEYED, location=location)
    if not binding.fits(ledger):
        raise _bound_elsewhere(ledger, binding)
    if ledger.epoch == epoch and sent:
        return ledger
    if ledger.epoch >= epoch:
        raise Fenced.by_newer("loader", "ledger", epoch=epoch, current=ledger.epoch)
    return ledger.changed(epoch=epoch)


@dataclass(frozen=True, slots=True)
class QueueSeen:
    """What a new plan tells of the queue."""

    next_sequence: int
    last_location: str


def planned(ledger: Ledger, plan: Plan, *, seen: QueueSeen, over: Collection[Plan | None], location: str) -> Ledger:
    """Write a new plan over one that is finished. `over` are the plans that may stand there now; see `revised`."""
    return _replaced(
        ledger, plan, over, location, next_sequence=seen.next_sequence, last_location=seen.last_location, blocked=None
    )


def revised(ledger: Ledger, plan: Plan, *, over: Collection[Plan | None], location: str) -> Ledger:
    """Count an attempt, or decide the split, of a plan. `over` are the plans that may stand there now: the one we
    acted on, and those that we sent without an answer and did not act on. Any other is a stranger's."""
    return _replaced(ledger, plan, over, location)


def _replaced(ledger: Ledger, plan: Plan, over: Collection[Plan | None], location: str, **also: Any) -> Ledger:
    ledger.check_sections(SECTIONS_OBEYED, location=location)
    if ledger.plan == plan:
        return ledger
    if ledger.plan not in over:
        raise Ledger.lost(location, f"its plan {ledger.plan} was written by something that is not a loader")
    return ledger.changed(plan=plan, **also)


def blocked_by(ledger: Ledger, blocked: Blocked, *, location: str) -> Ledger:
    ledger.check_sections(SECTIONS_OBEYED, location=location)
    blocked = dataclasses.replace(blocked, reason=plain(blocked.reason), batches=_plain(blocked.batches))
    return ledger if ledger.blocked == blocked else ledger.changed(blocked=blocked)


# By an operator, without an epoch


def unblocked(ledger: Ledger | None, *, skip: bool) -> Ledger | None:
    """With the blocked range free to be tried again, or its bad batches and entries sent to the dead letters."""
    if ledger is None or ledger.blocked is None or ledger.plan is None:
        return ledger
    plan = ledger.plan.forgiven()
    if skip:
        plan = plan.split(ledger.blocked.batches, ledger.blocked.entries)
    return ledger.changed(blocked=None, plan=plan)


def replanned(ledger: Ledger | None) -> Ledger | None:
    """With nothing decided about the planned range, so that the next start may load it in another way."""
    if ledger is None or ledger.plan is None or ledger.plan.quarantined is None:
        return ledger
    return ledger.changed(plan=ledger.plan.undecided())


# Refusing


def _bound_elsewhere(ledger: Ledger, binding: Binding) -> QueueBound:
    return QueueBound(
        f"this queue feeds the app {ledger.app_id!r} into {list(ledger.tables)}; it was asked to feed "
        f"{binding.app_id or 'the same app'!r} into {list(binding.tables)}. One queue feeds one app: another one's "
        "acks would drop what this one never loaded. Use those settings, another queue, or adopt=True with an "
        "explicit app_id to take this queue over",
        app_id=binding.app_id,
        tables=binding.tables,
        bound_app_id=ledger.app_id,
        bound_tables=ledger.tables,
    )


def _split_unknown(location: str, first: int, last: int) -> LedgerLost:
    return LedgerLost(
        f"the batches {first}..{last} are in some tables and not in all, and only the ledger {location!r} as it was "
        "then says which of their entries were set aside for the dead letters: adopting the queue could lose those. "
        "Put that ledger back and start without adopt. If there is none, compare the tables on that range, then pass "
        "on_gap='skip' together with adopt=True once: what is not set aside again goes to the tables that lack the "
        "range, and to no other",
        location=location,
        first=first,
        last=last,
    )


def used_before(location: str) -> LedgerLost:
    return LedgerLost(
        f"the queue was consumed before, and there is no ledger {location!r} that says into what: either it was "
        "deleted, and a half-done commit could be repeated, or a consumer without tables reads this queue, and what "
        "it acked is gone. Put the ledger back, or use a queue of its own for each consumer and loader; or, if no "
        "other one runs, pass adopt=True with the app_id that the table was loaded with (DESCRIBE HISTORY shows it in "
        "userMetadata), or with a new one for a new table",
        location=location,
    )
