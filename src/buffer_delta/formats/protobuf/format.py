"""The format `protobuf`: each entry one message, of a type that is given.

    ProtobufFormat(descriptor_set=Path("events.binpb").read_bytes(), message="shop.Order")
    ProtobufFormat(descriptor_set={"17": …, "18": …}, message="shop.Order", framing="confluent")

The set is what `protoc --include_imports --descriptor_set_out=events.binpb` writes, as bytes or in base64. With
`framing = "confluent"` an entry is read with the set that its number names, and must hold that message; no registry is
asked, and an entry whose number was not given is bad.

The columns are the fields of the message, or of all versions of it together (see `read` for the types); with
`schema` they are those, and a value goes in only if the column holds it exactly (see `fit`). An entry with a field that
its descriptors do not have, with an extension, or with a number that an enum has no name for, is kept whole in
`_rescued_data`, as `{"entry": "<base64>"}`, beside what its columns hold. One with a number that its field cannot hold
is bad (see `wire`).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from buffer.config import reject
from buffer.errors import InvalidConfig
from buffer_delta.formats.base import RESCUED, Format, Parsed, brief
from buffer_delta.formats.cells import all_allowed_cells
from buffer_delta.formats.entries import Indices, as_binary, chunks, offsets_of
from buffer_delta.formats.fit import Fit
from buffer_delta.formats.names import same_name_key
from buffer_delta.formats.options import FormatOptions
from buffer_delta.formats.protobuf.descriptors import DecodeError, message_at, message_class, set_bytes, wrong
from buffer_delta.formats.protobuf.read import Notes, Reader
from buffer_delta.formats.protobuf.wire import check_numbers
from buffer_delta.formats.schemas import arrow_schema, schema_text

FRAMINGS = ("none", "confluent")
PIECE_BYTES = 1 << 20  # of entries as Python objects at once, which take up to 50 times their bytes
PIECE_ENTRIES = 1 << 14
_PATH_MAX = 32  # levels of messages inside of messages
_ID_MAX = (1 << 32) - 1
_UNREADABLE = (DecodeError, UnicodeDecodeError, ValueError, pa.ArrowException)


class BadFrame(ValueError):
    """What stands before the message makes no sense."""


@dataclass(frozen=True, kw_only=True)
class ProtobufOptions(FormatOptions):
    descriptor_set: Any = None
    """The types, as `protoc --include_imports --descriptor_set_out` writes them: bytes, or base64 of them. With
    `framing = "confluent"` a table from the schemas' numbers to such sets."""
    message: str = ""
    """The full name of the message that an entry is, like `shop.Order`."""
    framing: str = "none"
    """What stands before each message: `none`; `confluent`, a zero, the schema's number and which message it is."""
    schema: Any = None
    """DDL, StructType or Arrow schema of the columns, and then an Arrow schema. None: as the messages have them."""
    unknown_fields: str = "rescue"
    """Fields that no column is for: `rescue` the entries that have them, or `ignore` them."""
    rescued_data: str = RESCUED
    """The name of that column."""

    def __post_init__(self) -> None:
        self._check_choice("framing", FRAMINGS)
        self._check_choice("unknown_fields", ("rescue", "ignore"))
        if self.descriptor_set is None:
            raise wrong("it must be given: what `protoc --include_imports --descriptor_set_out=…` writes")
        if not isinstance(self.message, str) or not self.message:
            raise reject("message", self.message, "the full name of the message that an entry is, like 'shop.Order'")
        if not isinstance(self.rescued_data, str) or not self.rescued_data:
            raise reject("rescued_data", self.rescued_data, "the name of a column")
        object.__setattr__(self, "descriptor_set", self._keyed(self.descriptor_set))
        if self.schema is not None:
            object.__setattr__(self, "schema", arrow_schema(self.schema))

    def _keyed(self, given: Any) -> dict[int, bytes]:
        """The sets by the numbers that entries name; 0 where they name none."""
        if self.framing == "none":
            return {0: set_bytes(given)}
        if isinstance(given, str):
            try:
                given = json.loads(given)
            except ValueError as error:
                raise wrong(f"it is no JSON table: {error}") from error
        if not isinstance(given, Mapping) or not given:
            raise wrong("with framing='confluent' it is a table from the schemas' numbers to sets: {'17': …}")
        keys = {str(key) for key in given}
        bad = next((key for key in keys if not (key.isascii() and key.isdecimal()) or int(key) > _ID_MAX), None)
        if bad is not None:
            raise reject("descriptor_set", bad, "the number of a schema in the registry")
        return {int(str(key)): set_bytes(one) for key, one in given.items()}


class ProtobufFormat(Format):
    name: ClassVar[str] = "protobuf"
    Options: ClassVar[type[FormatOptions]] = ProtobufOptions
    options: ProtobufOptions

    def __init__(self, descriptor_set: Any = None, **options: Any) -> None:
        super().__init__(descriptor_set=descriptor_set, **options)
        kinds = [reader.kind for reader in self._readers().values()]
        if not all(pa.types.is_struct(kind) for kind in kinds):
            raise InvalidConfig(f"the message {self.options.message!r} has no fields", key="message")
        ignore = self.options.unknown_fields == "ignore"
        self._fit = Fit(kinds, self.options.schema, ignore=ignore)
        self._rescued = None if ignore else self.options.rescued_data
        if self._rescued is not None and same_name_key(self._rescued) in map(same_name_key, self._fit.schema.names):
            raise reject("rescued_data", self._rescued, "a name that no other column has")

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_made"}

    def _readers(self) -> dict[int, Reader]:
        """Made by the process that reads: message types do not pickle."""
        made: dict[int, Reader] | None = self.__dict__.get("_made")
        if made is None:
            sets, name = self.options.descriptor_set, self.options.message
            made = {key: Reader(message_class(one, name).DESCRIPTOR) for key, one in sets.items()}
            self.__dict__["_made"] = made
        return made

    @property
    def schema(self) -> pa.Schema:
        extra = [] if self._rescued is None else [pa.field(self._rescued, pa.string())]
        return pa.schema([*self._fit.schema, *extra])

    def settings(self) -> dict[str, Any]:
        options = self.options
        return {
            "message": options.message,
            "framing": options.framing,
            "sets": {str(key): hashlib.sha256(one).hexdigest() for key, one in options.descriptor_set.items()},
            "schema": None if options.schema is None else schema_text(options.schema),
            "unknown_fields": options.unknown_fields,
            "rescued_data": self._rescued,
        }

    def parse(self, entries: pa.Array) -> Parsed:
        tables: list[pa.Table] = []
        sources: list[Indices] = []
        bad: dict[int, str] = {}
        for start, piece in chunks(as_binary(entries), PIECE_BYTES, PIECE_ENTRIES):
            for table, rows in self._piece(piece, bad, start):
                tables.append(table)
                sources.append(rows + start)
        if not bad and len(tables) == 1:
            return Parsed(tables[0], None)
        rows = pa.concat_tables(tables) if tables else self.schema.empty_table()
        at = np.concatenate(sources or [np.zeros(0, np.int64)])
        order = np.argsort(at, kind="stable")
        errors = sorted((entry, brief(error)) for entry, error in bad.items())
        return Parsed(rows.take(pa.array(order)) if len(self._readers()) > 1 else rows, at[order], errors)

    def _piece(self, entries: pa.BinaryArray, bad: dict[int, str], start: int) -> Iterator[tuple[pa.Table, Indices]]:
        """The rows of some entries by their schemas, and which entries they are."""
        payloads = entries.to_pylist()
        messages: dict[int, list[Any]] = {}
        places: dict[int, list[int]] = {}
        for index, payload in enumerate(payloads):
            try:
                key, begin = self._framed(payload)
                body = payload[begin:] if begin else payload
                message = message_class(self.options.descriptor_set[key], self.options.message).FromString(body)
                check_numbers(body, message)
            except _UNREADABLE as error:
                bad[start + index] = str(error) or type(error).__name__
                continue
            messages.setdefault(key, []).append(message)
            places.setdefault(key, []).append(index)
        sizes = np.diff(offsets_of(entries)).astype(np.int64)
        for key, found in sorted(messages.items()):
            made = _made(self._readers()[key], found, np.array(places[key], np.int64), sizes)
            table, rows, misfits = self._fit.fitted(made.table, made.rows)
            bad.update((start + row, error) for row, error in [*made.bad, *misfits])
            if self._rescued is not None:
                texts = [_rescued(payloads[row]) if row in made.strays else None for row in rows.tolist()]
                table = table.append_column(self._rescued, pa.array(texts, pa.string()))
            yield table, rows

    def _framed(self, payload: bytes) -> tuple[int, int]:
        """Which set an entry is to be read with, and where its message begins. Raises BadFrame."""
        if self.options.framing == "none":
            return 0, 0
        if len(payload) < 6 or payload[0] != 0:
            raise BadFrame("it does not begin with a zero, a schema's number and the place of a message")
        key = int.from_bytes(payload[1:5], "big")
        if key not in self.options.descriptor_set:
            raise BadFrame(f"it was written with the schema {key}, which is not among those in descriptor_set")
        path, begin = _path(payload, 5)
        found = message_at(self.options.descriptor_set[key], path)
        if found != self.options.message:
            raise BadFrame(f"it holds the message {found or list(path)}, not {self.options.message!r}")
        return key, begin


@dataclass(frozen=True)
class _Made:
    """Messages as a table."""

    table: pa.Table
    rows: Indices
    strays: set[int]
    bad: list[tuple[int, str]]


def _made(reader: Reader, messages: list[Any], rows: Indices, sizes: Indices) -> _Made:
    """All at once; where that fails, as a string that is no text makes it, by halves."""
    schema = pa.schema(list(reader.kind))
    notes = Notes(all_allowed_cells(sizes))
    try:
        table = pa.Table.from_arrays(reader.arrays(messages, rows, notes), schema=schema)
    except _UNREADABLE as error:
        if len(messages) == 1:
            return _Made(schema.empty_table(), rows[:0], set(), [(int(rows[0]), str(error))])
        half = len(messages) // 2
        one, other = (
            _made(reader, messages[:half], rows[:half], sizes),
            _made(reader, messages[half:], rows[half:], sizes),
        )
        tables, found = pa.concat_tables([one.table, other.table]), np.concatenate([one.rows, other.rows])
        return _Made(tables, found, one.strays | other.strays, one.bad + other.bad)
    crowded = np.array([row in notes.crowded for row in rows.tolist()], bool)
    bad = [(row, "its lists and maps would take too much room for its size") for row in rows[crowded].tolist()]
    return _Made(table.filter(pa.array(~crowded)) if bad else table, rows[~crowded], notes.strays, bad)


def _path(payload: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """The places of a message, and where they end; one zero stands for the first message."""
    count, at = _zigzag(payload, at)
    if count == 0:
        return (0,), at
    if not 0 < count <= _PATH_MAX:
        raise BadFrame(f"it names a message {count} levels deep")
    places = []
    for _ in range(count):
        place, at = _zigzag(payload, at)
        places.append(place)
    return tuple(places), at


def _zigzag(payload: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(payload):
            raise BadFrame("it ends before its message begins")
        byte = payload[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at
    raise BadFrame("the place of its message is no number")


def _rescued(payload: bytes) -> str:
    return json.dumps({"entry": base64.b64encode(payload).decode()})
