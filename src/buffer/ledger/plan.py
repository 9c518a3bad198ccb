"""The section `plan`: what a loader has promised to do with a queue, written before it does it. Pure.

    app_id           what the queue feeds: one queue feeds one app
    tables, places   where it goes as of the last plan, the main table first: as it was spelled, and where that really
                     is. The main table is bound; the others join and leave with any new plan. `places` is absent from
                     older releases
    born             false until the loader that made it has seen that no consumer was here before it
    next_sequence    the queue's, when last seen by a plan
    last_location    of the batch at the end of the range
    range            what a loader is committing, or committed last (`Plan`). It is never shrunk, grown or split by a
                     later loader: that one replays exactly this range, so whichever commit comes second is skipped.
                     `entries` and `rules` are absent until there is something to say, also from older releases.
                     It names its tables, and is finished with those; see `waits_for` where it names none
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

from buffer.errors import InvalidInput, LedgerLost
from buffer.ledger.entries import ENTRIES_MAX, Entries, count, spans
from buffer.ledger.envelope import Envelope, Fields, WrongField, keyed_by_sequence, reasons, typed
from buffer.ledger.reasons import plain

SECTIONS_OBEYED: tuple[str, ...] = ("clients", "leases")
"""Sections beside its own that a loader obeys: its consumer keeps the marks of what leaves the queue, and skips what
workers have finished (`from_workers.py`)."""


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
    tables: tuple[str, ...] | None = None
    """The places of the tables that it goes to, the main one first. Empty: whoever runs it next may choose. None: an
    older release wrote it, and it goes to all tables that the ledger names."""

    def tried_again(self) -> Plan:
        return dataclasses.replace(self, attempts=self.attempts + 1)

    def forgiven(self) -> Plan:
        """With no attempts counted: an operator has fixed what failed."""
        return dataclasses.replace(self, attempts=0)

    def undecided(self) -> Plan:
        """With nothing decided about its batches and tables, and no attempts counted."""
        return dataclasses.replace(self, quarantined=None, entries={}, rules=None, tables=(), attempts=0)

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
    places: tuple[str, ...] = ()
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
            f"the ledger {location!r} is lost: {what}. Without it a half-done commit could be repeated. "
            f"{cls.way_out()} (DESCRIBE HISTORY shows it in userMetadata)",
            location=location,
        )

    @classmethod
    def way_out(cls) -> str:
        return (
            "Put it back; or, if no loader runs, pass adopt=True (--adopt) with the app_id that the table was loaded "
            "with"
        )

    def section(self) -> dict[str, Any] | None:
        document = {
            "app_id": self.app_id,
            "tables": list(self.tables),
            **({"places": list(self.places)} if self.places else {}),
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
        names = ("app_id", "tables", "places", "born", "next_sequence", "last_location", "range", "blocked")
        fields = Fields("plan.", {"places": [], **document}, names)
        planned, blocked = fields.take("range", dict, None), fields.take("blocked", dict, None)
        return cls(
            **header,
            app_id=fields.take("app_id", str, None),
            tables=_texts("plan.tables", fields.take("tables", list)),
            places=_texts("plan.places", fields.take("places", list)),
            born=fields.take("born", bool),
            next_sequence=fields.count("next_sequence"),
            last_location=fields.take("last_location", str, None),
            plan=None if planned is None else _plan(planned),
            blocked=None if blocked is None else _blocked(blocked),
        )


def waits_for(ledger: Ledger) -> tuple[str, ...]:
    """The tables that must all be at the end of the plan before it is done, by name; empty: the main one tells.

    The release before this one committed the main table first and every other one after it, with or without rows. A
    range that it left half done has its main table at the end and the others behind: were the main table's position
    the frontier there, too, the range would be acked and the others' rows be in no table.
    """
    is_older = ledger.plan is not None and ledger.plan.tables is None and len(ledger.tables) > 1
    return ledger.tables if is_older else ()


def is_for_main_alone(ledger: Ledger) -> bool:
    """Whether the plan goes to the main table and no other. Then it has no split: whichever commit comes first stands,
    and an older loader, which knows of no other table, may make it at any moment."""
    tables = ledger.plan.tables if ledger.plan is not None else ()
    return len(ledger.tables if tables is None else tables) == 1


def may_be_replanned(ledger: Ledger) -> bool:
    """Whether something keeps the next loader from taking the plan on as its own: it is decided, goes to the main table
    alone, or is blocked."""
    if ledger.plan is None:
        return False
    return ledger.plan.quarantined is not None or is_for_main_alone(ledger) or ledger.blocked is not None


_ABSENT: Mapping[str, Any] = {"entries": {}, "rules": None, "tables": None}
"""Fields that are written only where they say something else than this: older releases refuse what they do not know."""


def _document(value: Plan | Blocked) -> dict[str, Any]:
    document = dataclasses.asdict(value)
    if document.get("tables") is not None:
        document["tables"] = list(document["tables"])
    return {name: said for name, said in document.items() if name not in _ABSENT or said != _ABSENT[name]}


def _texts(name: str, found: list[Any]) -> tuple[str, ...]:
    return tuple(typed(f"{name}[{index}]", text, str) for index, text in enumerate(found))


def _plan(document: dict[str, Any]) -> Plan:
    names = [field.name for field in dataclasses.fields(Plan)]
    fields = Fields("plan.range.", {**_ABSENT, **document}, names)
    table_ids = fields.take("table_ids", dict)
    quarantined = fields.take("quarantined", dict, None)
    tables = fields.take("tables", list, None)
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
        tables=None if tables is None else _texts("plan.range.tables", tables),
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
    if (number := count(found)) > ENTRIES_MAX:
        raise WrongField(f"{name} has {number:,} entries, and a range sets aside {ENTRIES_MAX:,} at most")
    return found


# Under an epoch


@dataclass(frozen=True, slots=True)
class QueueSeen:
    """What a new plan tells of the queue."""

    next_sequence: int
    last_location: str


def planned(
    ledger: Ledger,
    plan: Plan,
    *,
    seen: QueueSeen,
    over: Collection[Plan | None],
    location: str,
    names: Mapping[str, Any] | None = None,
    in_flight: bool = False,
) -> Ledger:
    """Write a new plan over one that is finished. `over` are the plans that may stand there now; see `revised`."""
    queue = {"next_sequence": seen.next_sequence, "last_location": seen.last_location}
    return _replaced(ledger, plan, over, location, in_flight=in_flight, **queue, blocked=None, **(names or {}))


def revised(
    ledger: Ledger,
    plan: Plan,
    *,
    over: Collection[Plan | None],
    location: str,
    names: Mapping[str, Any] | None = None,
    in_flight: bool = False,
) -> Ledger:
    """Count an attempt, or decide the split, of a plan. `over` are the plans that may stand there now: the one we
    acted on, and those that we sent without an answer and did not act on. Any other is a stranger's. `names` are what
    the ledger calls the plan's tables, where they are others than before: they join and leave with it.

    `in_flight`: another plan was sent without an answer. A plan that stands already is then written once more: that
    request may have been sent against this very version, and would land on it while we act on ours. (A loader that
    plans 0..1, 0..0 and 0..1 again while no reply comes: it commits 0..1, and its successor would replay 0..0.)"""
    return _replaced(ledger, plan, over, location, in_flight=in_flight, **(names or {}))


def _replaced(
    ledger: Ledger, plan: Plan | None, over: Collection[Plan | None], location: str, *, in_flight: bool, **also: Any
) -> Ledger:
    ledger.check_sections(SECTIONS_OBEYED, location=location)
    if ledger.plan == plan and not in_flight:
        return ledger
    if ledger.plan != plan and ledger.plan not in over:
        raise Ledger.lost(location, f"its plan {ledger.plan} was written by something that is not a loader")
    return ledger.changed(plan=plan, **also)


def withdrawn(ledger: Ledger, plan: Plan, earlier: Plan | None, *, location: str) -> Ledger:
    """With the plan before it in place of one that nobody has begun with."""
    if ledger.plan == earlier:
        return ledger
    return _replaced(ledger, earlier, (plan,), location, in_flight=False, last_location=None)


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


def replanned(ledger: Ledger | None, looked_at: Plan | None = None) -> Ledger | None:
    """With nothing decided about the planned range, so that the next start may load it in another way, also into other
    tables. Several tables with nothing decided yet are free as they are, unless the range is blocked.

    `looked_at` is the plan whose range was found to be in no table; raises InvalidInput if another one stands by now.
    """
    if ledger is None or ledger.plan is None or not may_be_replanned(ledger):
        return ledger
    if looked_at is not None and ledger.plan != looked_at:
        raise InvalidInput(
            "the plan has changed while the tables were looked at, so a loader runs: nothing was changed. Stop every "
            "loader, then run this again"
        )
    return ledger.changed(plan=ledger.plan.undecided(), blocked=None)
