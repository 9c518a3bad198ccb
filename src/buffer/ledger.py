"""The ledger: what a loader has promised to do with a queue, written before it does it. Pure.

A small JSON object beside the manifest (`{manifest_path}.ledger`), readable by a person. Only this project reads
it; a queue without one is a valid queue. `generation` counts the writes, so no content ever comes back.

    born     false until the loader that made it has seen that no consumer was here before it
    epoch    the newest epoch a loader entered with; an older loader finds a higher one and stops
    plan     the range a loader is committing, or committed last. A planned range is never shrunk, grown or
             split by a later loader: it replays exactly that range, so whichever commit comes second is skipped
    blocked  why an operator must look, under `dlq_strategy = block`
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from buffer.errors import CorruptLedger

VERSION = 1


def ledger_path(manifest_path: str) -> str:
    return f"{manifest_path}.ledger"


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

    def tried_again(self) -> Plan:
        return dataclasses.replace(self, attempts=self.attempts + 1)

    def forgiven(self) -> Plan:
        """With no attempts counted: an operator has mended what failed."""
        return dataclasses.replace(self, attempts=0)

    def undecided(self) -> Plan:
        """With nothing decided about its batches, and no attempts counted."""
        return dataclasses.replace(self, quarantined=None, attempts=0)

    def split(self, quarantined: Mapping[int, str]) -> Plan:
        return dataclasses.replace(self, quarantined=dict(quarantined))


@dataclass(frozen=True, slots=True)
class Blocked:
    """A range that cannot be loaded and, by configuration, must not be skipped."""

    first: int
    last: int
    reason: str
    batches: Mapping[int, str] = field(default_factory=dict)
    """Which batches cannot be read, and why."""


@dataclass(frozen=True, slots=True)
class Ledger:
    queue_id: str
    app_id: str | None = None
    tables: tuple[str, ...] = ()
    born: bool = False
    generation: int = 0
    epoch: int = 0
    next_sequence: int = 0
    """The queue's, when last seen by a plan: a manifest that is behind it was restored from a backup."""
    last_location: str | None = None
    """Of the batch at `plan.last`: the same sequence with another location gives a restored manifest away."""
    plan: Plan | None = None
    blocked: Blocked | None = None

    @property
    def was_claimed(self) -> bool:
        """A loader entered with an epoch, so there must have been a manifest."""
        return self.epoch > 0 or self.next_sequence > 0 or self.plan is not None

    def changed(self, **changes: Any) -> Self:
        """The next generation, with these fields replaced."""
        return dataclasses.replace(self, generation=self.generation + 1, **changes)

    def to_bytes(self) -> bytes:
        document = {"version": VERSION, **dataclasses.asdict(self)}
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        # Half a surrogate pair (from an undecodable file name in a reason, say) becomes its JSON escape.
        return text.encode("utf-8", "backslashreplace")

    @classmethod
    def from_bytes(cls, data: bytes, *, location: str | None = None) -> Ledger:
        """Raises CorruptLedger, naming the field, and `location` if given."""
        where = "the ledger" if location is None else f"the ledger {location!r}"
        way_out = "Put it back; or, if no loader runs, pass adopt=True with the app_id that the table was loaded with"
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise CorruptLedger(f"{where} is not valid JSON: {error}. {way_out}", location=location) from error
        if not isinstance(document, dict):
            kind = type(document).__name__
            raise CorruptLedger(f"{where} is not a JSON object but a {kind}. {way_out}", location=location)
        version = document.pop("version", None)
        if type(version) is not int or version != VERSION:
            raise CorruptLedger(
                f"{where} has version {version!r}: this release reads version {VERSION}; upgrade it",
                location=location,
                version=version if isinstance(version, int) else None,
            )
        try:
            return _ledger(document)
        except _WrongField as error:
            raise CorruptLedger(f"{where} is damaged: {error}. {way_out}", location=location) from error


# Reading: every field must be there, have its type, and mean something. A guess could load a range twice.


class _WrongField(Exception):
    """What is wrong with which field. Becomes a CorruptLedger."""


def _ledger(document: dict[str, Any]) -> Ledger:
    fields = _Fields("", document, Ledger)
    plan, blocked = fields.take("plan", dict, None), fields.take("blocked", dict, None)
    return Ledger(
        queue_id=fields.take("queue_id", str),
        app_id=fields.take("app_id", str, None),
        tables=tuple(_typed(f"tables[{i}]", name, str) for i, name in enumerate(fields.take("tables", list))),
        born=fields.take("born", bool),
        generation=fields.count("generation"),
        epoch=fields.count("epoch"),
        next_sequence=fields.count("next_sequence"),
        last_location=fields.take("last_location", str, None),
        plan=None if plan is None else _plan(plan),
        blocked=None if blocked is None else _blocked(blocked),
    )


def _plan(document: dict[str, Any]) -> Plan:
    fields = _Fields("plan.", document, Plan)
    table_ids = fields.take("table_ids", dict)
    quarantined = fields.take("quarantined", dict, None)
    plan = Plan(
        after=fields.take("after", int),
        first=fields.take("first", int),
        last=fields.take("last", int),
        attempts=fields.count("attempts"),
        digest=fields.take("digest", str),
        table_ids={name: _typed(f"plan.table_ids[{name}]", v, str, None) for name, v in table_ids.items()},
        quarantined=None if quarantined is None else _reasons("plan.quarantined", quarantined),
    )
    if not -1 <= plan.after < plan.first <= plan.last:
        raise _WrongField(f"plan {plan.first}..{plan.last} after {plan.after} is not a range")
    return plan


def _blocked(document: dict[str, Any]) -> Blocked:
    fields = _Fields("blocked.", document, Blocked)
    return Blocked(
        first=fields.count("first"),
        last=fields.count("last"),
        reason=fields.take("reason", str),
        batches=_reasons("blocked.batches", fields.take("batches", dict)),
    )


def _reasons(name: str, document: dict[str, Any]) -> dict[int, str]:
    """Reasons by sequence. JSON has only text for keys."""
    for key in document:
        if not (key.isascii() and key.isdecimal()):
            raise _WrongField(f"{name} has the key {key!r}, which is not a sequence")
    return {int(key): _typed(f"{name}[{key}]", value, str) for key, value in document.items()}


class _Fields:
    """The fields of one JSON object: exactly those of its class."""

    def __init__(self, prefix: str, document: dict[str, Any], cls: type) -> None:
        self._prefix = prefix
        self._document = document
        names = {field.name for field in dataclasses.fields(cls)}
        for problem, fields in (("missing", names - document.keys()), ("unknown", document.keys() - names)):
            if fields:
                raise _WrongField(f"{problem} field {', '.join(prefix + name for name in sorted(fields))}")

    def take(self, name: str, *kinds: type | None) -> Any:
        return _typed(self._prefix + name, self._document[name], *kinds)

    def count(self, name: str) -> int:
        value: int = self.take(name, int)
        if value < 0:
            raise _WrongField(f"{self._prefix}{name} is {value}, below zero")
        return value


def _typed(name: str, value: Any, *kinds: type | None) -> Any:
    """The value, if it has exactly one of these types (`True` is no number); None stands for null."""
    if (None if value is None else type(value)) not in kinds:
        allowed = " or ".join("null" if kind is None else kind.__name__ for kind in kinds)
        raise _WrongField(f"{name} is {value!r}, not {allowed}")
    return value
