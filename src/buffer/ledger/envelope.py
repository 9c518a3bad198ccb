"""The ledger's file: a small JSON object beside the manifest (`{manifest_path}.ledger`), readable by a person. Pure.

    {"version": 2, "generation": 7, "queue_id": "01…", "epoch": 3, "plan": {…}}

    generation   counts the writes, so no content ever comes back
    queue_id     made once, with the file
    epoch        the newest that somebody entered with; whoever entered with an older one finds it and stops
    the rest     sections by name, each absent until somebody needs it

Only this project reads it; a queue without one is a valid queue.

**A section is a view.** A module declares a subclass of `Envelope` that opens its one section into fields; the other
sections stay in `sections` as they were read, and are written back with every change. So a new section is a new
module, and this one does not know its name.

**A section that a reader does not know** is kept by whoever only passes by (producers, the collector, `status`, an
operator who changes another section) and refused by whoever would have to obey it: its owner may hold claims on the
queue's entries. So everybody who takes entries out of the queue by the ledger calls `check_sections` with the names
that it does obey, before it promises anything and at every write.

Version 1 was flat: all beyond the envelope was the loader's. It is read as if it had a section `plan`, and the first
write makes it version 2.

The JSON is strict, for a guess could load a range twice: no key twice, no fraction (nobody could keep a foreign one
to the last digit), no endless number, no deep nesting.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn, Self

from buffer.errors import CorruptLedger, LedgerLost

VERSION = 2
DIGITS_MAX = 40  # of a number: 2^64 has 20. Python itself takes thousands, slowly, and then raises
DEPTH_MAX = 32  # of nesting: the file needs 4. Beyond, writing back what could be read might fail
SHOWN_MAX = 80  # characters of a wrong value in a message
WRONG_MAX = 600  # … of all that is wrong: a ledger may have any number of unknown fields

_HEADER = ("generation", "queue_id", "epoch")


@dataclass(frozen=True, slots=True)
class Envelope:
    """The file with no section opened; also the base of the views that open one."""

    SECTION: ClassVar[str | None] = None
    """The name of the section that a view opens."""
    USER: ClassVar[str] = "user of the ledger"
    """Who writes that section, in messages."""

    queue_id: str
    generation: int = 0
    epoch: int = 0
    sections: Mapping[str, Any] = field(default_factory=dict)
    """What was not opened, as JSON values by name."""

    def changed(self, **changes: Any) -> Self:
        """The next generation, with these fields replaced."""
        return dataclasses.replace(self, generation=self.generation + 1, **changes)

    def check_sections(self, known: Collection[str], *, location: str | None = None) -> None:
        """For those who must obey all that is here. Raises CorruptLedger where there is more than `known`."""
        unknown = tuple(sorted(self.sections.keys() - set(known)))
        if unknown:
            raise CorruptLedger(
                f"{_named(location)} has the section {', '.join(map(_shown, unknown))}, which this release does not "
                f"know and a {self.USER} would have to obey: a newer release uses this queue. Upgrade this one",
                location=location,
                version=VERSION,
                sections=unknown,
            )

    # A view's own part

    def section(self) -> dict[str, Any] | None:
        """The opened section as a JSON value; None while there is nothing in it."""
        return None

    @classmethod
    def opened(cls, header: dict[str, Any], _document: dict[str, Any] | None) -> Self:
        """The view, from the envelope's fields and the section, if it is there. Raises WrongField."""
        return cls(**header)

    @property
    def unusable(self) -> str | None:
        """Why this file cannot be the one that its user entered with, if so."""
        return None

    @classmethod
    def lost(cls, location: str, what: str) -> LedgerLost:
        """The error of a user whose ledger is not what it was."""
        return LedgerLost(f"the ledger {location!r} is lost: {what}. {cls.way_out()}", location=location)

    @classmethod
    def way_out(cls) -> str:
        """What the user of this view can do about a ledger that is damaged or lost: a sentence without its end."""
        return "Put it back"

    # Bytes

    def to_document(self) -> dict[str, Any]:
        """As it stands in the file."""
        document: dict[str, Any] = {"version": VERSION, **{name: getattr(self, name) for name in _HEADER}}
        section = self.section()
        if section is not None:
            assert self.SECTION is not None, "a view that opens a section names it"
            document[self.SECTION] = section
        return {**document, **self.sections}

    def to_bytes(self) -> bytes:
        text = json.dumps(self.to_document(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        # Half a surrogate pair (from an undecodable file name in a reason, say) becomes its JSON escape.
        return text.encode("utf-8", "backslashreplace")

    @classmethod
    def from_bytes(cls, data: bytes, *, location: str | None = None) -> Self:
        """Raises CorruptLedger, naming the field, and `location` if given."""
        where = _named(location)
        way_out = cls.way_out()
        try:
            document = _parsed(data)
        except WrongField as error:
            raise CorruptLedger(f"{where} is damaged: {error}. {way_out}", location=location) from error
        except (ValueError, RecursionError) as error:
            raise CorruptLedger(f"{where} is not valid JSON: {error}. {way_out}", location=location) from error
        if not isinstance(document, dict):
            kind = type(document).__name__
            raise CorruptLedger(f"{where} is not a JSON object but a {kind}. {way_out}", location=location)
        version = document.pop("version", None)
        if type(version) is not int or not 1 <= version <= VERSION:
            raise CorruptLedger(
                f"{where} has version {_shown(version)}: this release reads versions 1 to {VERSION}; upgrade it",
                location=location,
                version=version if isinstance(version, int) else None,
            )
        try:
            return cls._from_document(_upgraded(document) if version == 1 else document)
        except WrongField as error:
            raise CorruptLedger(f"{where} is damaged: {error}. {way_out}", location=location) from error

    @classmethod
    def _from_document(cls, document: dict[str, Any]) -> Self:
        sections = {name: typed(name, value, dict) for name, value in document.items() if name not in _HEADER}
        fields = Fields("", {name: document[name] for name in _HEADER if name in document}, _HEADER)
        mine = sections.pop(cls.SECTION, None) if cls.SECTION else None
        header = {
            "generation": fields.count("generation"),
            "queue_id": fields.take("queue_id", str),
            "epoch": fields.count("epoch"),
            "sections": sections,
        }
        return cls.opened(header, mine)


def _upgraded(document: dict[str, Any]) -> dict[str, Any]:
    """Version 1 in the form of version 2."""
    if "range" in document:  # version 1 had none, and here it is what the plan becomes
        raise WrongField("unknown field range")
    header = {name: document.pop(name) for name in _HEADER if name in document}
    return {**header, "plan": {("range" if name == "plan" else name): value for name, value in document.items()}}


def _named(location: str | None) -> str:
    return "the ledger" if location is None else f"the ledger {location!r}"


# Reading: every field must be there, have its type, and mean something. Shared by the sections.


class WrongField(Exception):
    """What is wrong with which field, in a few words whatever stands there. Becomes a CorruptLedger."""

    def __init__(self, what: str) -> None:
        super().__init__(_cut(what, WRONG_MAX))


class Fields:
    """The fields of one JSON object: exactly those that are named."""

    def __init__(self, prefix: str, document: Mapping[str, Any], names: Collection[str]) -> None:
        self._prefix = prefix
        self._document = document
        wanted = set(names)
        for problem, fields in (("missing", wanted - document.keys()), ("unknown", document.keys() - wanted)):
            if fields:
                raise WrongField(f"{problem} field {', '.join(prefix + _cut(name) for name in sorted(fields))}")

    def take(self, name: str, *kinds: type | None) -> Any:
        return typed(self._prefix + name, self._document[name], *kinds)

    def count(self, name: str) -> int:
        value: int = self.take(name, int)
        if value < 0:
            raise WrongField(f"{self._prefix}{name} is {value}, below zero")
        return value


def typed(name: str, value: Any, *kinds: type | None) -> Any:
    """The value, if it has exactly one of these types (`True` is no number); None stands for null."""
    if (None if value is None else type(value)) not in kinds:
        allowed = " or ".join("null" if kind is None else kind.__name__ for kind in kinds)
        raise WrongField(f"{_cut(name)} is {_shown(value)}, not {allowed}")
    return value


def reasons(name: str, document: Mapping[str, Any]) -> dict[int, str]:
    """Reasons by sequence."""
    by_sequence = keyed_by_sequence(name, document)
    return {sequence: typed(f"{name}[{sequence}]", value, str) for sequence, value in by_sequence.items()}


def keyed_by_sequence(name: str, document: Mapping[str, Any]) -> dict[int, Any]:
    """Values by sequence. JSON has only text for keys."""
    for key in document:
        if not (key.isascii() and key.isdecimal() and len(key) <= DIGITS_MAX and str(int(key)) == key):
            raise WrongField(f"{name} has the key {_shown(key)}, which is not a sequence")
    return {int(key): value for key, value in document.items()}


def _parsed(data: bytes) -> Any:
    """The JSON value, strictly. Raises WrongField, ValueError or RecursionError."""
    value = json.loads(data, object_pairs_hook=_object, parse_int=_integer, parse_float=_refuse, parse_constant=_refuse)
    level: list[Any] = [value]
    for _ in range(DEPTH_MAX):
        containers = [outer for outer in level if isinstance(outer, dict | list)]
        if not containers:
            return value
        level = [inner for outer in containers for inner in (outer.values() if isinstance(outer, dict) else outer)]
    raise WrongField(f"it is nested more than {DEPTH_MAX} deep")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for name, value in pairs:
        if name in document:
            raise WrongField(f"it has the key {_shown(name)} twice in one object")
        document[name] = value
    return document


def _integer(digits: str) -> int:
    if len(digits) > DIGITS_MAX:
        raise WrongField(f"it has the number {_cut(digits)}, of {len(digits):,} digits")
    return int(digits)


def _refuse(number: str) -> NoReturn:
    raise WrongField(f"it has the number {_cut(number)}, which is not a whole one")


def _shown(value: Any) -> str:
    return _cut(repr(value))


def _cut(text: str, most: int = SHOWN_MAX) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
