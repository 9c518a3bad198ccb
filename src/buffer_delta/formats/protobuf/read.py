"""Messages as Arrow arrays: a `Reader` for each message type, made once, which takes many messages at once.

    int32, sint32, sfixed32; uint32, fixed32      INT; BIGINT
    int64, sint64, sfixed64; uint64, fixed64      BIGINT; DECIMAL(20, 0)
    bool, float, double, string, bytes            BOOLEAN, FLOAT, DOUBLE, STRING, BINARY
    an enum                                       STRING, the name of the value
    a message                                     STRUCT; one without fields BOOLEAN, whether it is there
    repeated; map                                 ARRAY; MAP<STRING, …>, other keys as their text

A field that knows whether it is there is null where it is not; one that does not is its default, as the language has
it. What has no place in these columns is reported: fields that the descriptors do not have, extensions, numbers that an
enum has no name for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from buffer.errors import InvalidConfig
from buffer_delta.formats.cells import leaves
from buffer_delta.formats.entries import Indices
from buffer_delta.formats.protobuf.descriptors import UnknownFieldSet, json_text

_PLAIN = {
    **dict.fromkeys(("TYPE_INT32", "TYPE_SINT32", "TYPE_SFIXED32"), pa.int32()),
    **dict.fromkeys(("TYPE_UINT32", "TYPE_FIXED32", "TYPE_INT64", "TYPE_SINT64", "TYPE_SFIXED64"), pa.int64()),
    **dict.fromkeys(("TYPE_UINT64", "TYPE_FIXED64"), pa.decimal128(20, 0)),
    "TYPE_BOOL": pa.bool_(),
    "TYPE_FLOAT": pa.float32(),
    "TYPE_DOUBLE": pa.float64(),
    "TYPE_STRING": pa.string(),
    "TYPE_BYTES": pa.binary(),
    "TYPE_ENUM": pa.string(),
}


@dataclass
class Notes:
    """What was seen in some entries, by their rows."""

    cells: Indices
    """What the lists and maps of each entry may still take."""
    strays: set[int] = field(default_factory=set)
    """Entries with something that no column holds."""
    crowded: set[int] = field(default_factory=set)
    """Entries whose lists and maps would take more room than their size allows."""


Values = list[Any]
Leaf = Callable[[Values, Indices, Notes], pa.Array]


class Reader:
    """Of one message type."""

    def __init__(self, descriptor: Any, inside: tuple[str, ...] = (), texts: frozenset[str] = frozenset()) -> None:
        """`texts`: message types that are kept as JSON. Raises InvalidConfig for a type that no column can hold."""
        if descriptor.full_name in inside:
            raise InvalidConfig(
                f"the message {descriptor.full_name!r} holds itself, which no column can; load it as 'raw'",
                key="message",
                value=descriptor.full_name,
            )
        around = (*inside, descriptor.full_name)
        self._is_extendable = descriptor.is_extendable
        self._fields = [_Field(each, around, texts) for each in descriptor.fields]
        self.kind = pa.struct([pa.field(f.name, f.kind) for f in self._fields]) if self._fields else pa.bool_()

    def arrays(self, messages: Values, rows: Indices, notes: Notes) -> list[pa.Array]:
        """The columns of some messages; `rows` are the entries that they belong to."""
        strays = [len(UnknownFieldSet(message)) > 0 for message in messages]
        if self._is_extendable:
            strays = [stray or _is_extended(message) for stray, message in zip(strays, messages, strict=True)]
        if any(strays):
            notes.strays.update(rows[np.array(strays)].tolist())
        return [each.read(messages, rows, notes) for each in self._fields]

    def read(self, messages: Values, rows: Indices, notes: Notes) -> pa.Array:
        arrays = self.arrays(messages, rows, notes)
        if not arrays:
            return pa.array([True] * len(messages), pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=list(self.kind))


def _is_extended(message: Any) -> bool:
    """Whether it has a field from outside of its type, which the descriptors know and no column is for."""
    return any(field.is_extension for field, _ in message.ListFields())


class _Field:
    def __init__(self, descriptor: Any, around: tuple[str, ...], texts: frozenset[str]) -> None:
        self.name: str = descriptor.name
        self._has_presence = descriptor.has_presence
        entry = descriptor.message_type
        if descriptor.is_repeated and entry is not None and entry.GetOptions().map_entry:
            self._item_kind, self._items = _leaf(entry.fields_by_name["value"], around, texts)
            self.kind = pa.map_(pa.string(), self._item_kind)
            self.read = self._read_maps
        elif descriptor.is_repeated:
            self._item_kind, self._items = _leaf(descriptor, around, texts)
            self.kind = pa.list_(self._item_kind)
            self.read = self._read_lists
        else:
            self.kind, self._items = _leaf(descriptor, around, texts)
            self.read = self._read_one

    def _read_one(self, messages: Values, rows: Indices, notes: Notes) -> pa.Array:
        name = self.name
        if not self._has_presence:
            return self._items([getattr(message, name) for message in messages], rows, notes)
        there = np.array([message.HasField(name) for message in messages], bool)
        values = self._items([getattr(m, name) for m in messages if m.HasField(name)], rows[there], notes)
        if there.all():
            return values
        return values.take(pa.array(np.cumsum(there) - 1, mask=~there))

    def _read_lists(self, messages: Values, rows: Indices, notes: Notes) -> pa.Array:
        held = [getattr(message, self.name) for message in messages]
        counts = self._counts(held, rows, notes)
        flat = [value for values, count in zip(held, counts.tolist(), strict=True) if count for value in values]
        return pa.ListArray.from_arrays(_offsets(counts), self._items(flat, np.repeat(rows, counts), notes))

    def _read_maps(self, messages: Values, rows: Indices, notes: Notes) -> pa.Array:
        held = [getattr(message, self.name) for message in messages]
        counts = self._counts(held, rows, notes)
        pairs = [
            (_key(key), values[key])
            for values, count in zip(held, counts.tolist(), strict=True)
            if count
            for key in sorted(values)  # the library has them in any order
        ]
        keys = pa.array([key for key, _ in pairs], pa.string())
        items = self._items([value for _, value in pairs], np.repeat(rows, counts), notes)
        return pa.MapArray.from_arrays(_offsets(counts), keys, items)

    def _counts(self, held: Values, rows: Indices, notes: Notes) -> Indices:
        """How many items each list or map has: none of those that are too many."""
        counts = np.array([len(values) for values in held], np.int64)
        np.subtract.at(notes.cells, rows, counts * leaves(self._item_kind))
        over = notes.cells[rows] < 0
        if over.any():
            notes.crowded.update(rows[over].tolist())
            counts[over] = 0
        return counts


def _offsets(counts: Indices) -> pa.Array:
    return pa.array(np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).astype(np.int32))


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _leaf(descriptor: Any, around: tuple[str, ...], texts: frozenset[str]) -> tuple[pa.DataType, Leaf]:
    """The type of a field's values, one of them, and how they become an array."""
    if descriptor.message_type is not None and descriptor.message_type.full_name in texts:
        return pa.string(), _json
    if descriptor.message_type is not None:
        inner = Reader(descriptor.message_type, around, texts)
        return inner.kind, inner.read
    names = {getattr(descriptor, name): kind for name, kind in _PLAIN.items()}
    kind = names[descriptor.type]
    if descriptor.enum_type is None:
        return kind, lambda values, _rows, _notes: pa.array(values, kind)
    known = {number: value.name for number, value in descriptor.enum_type.values_by_number.items()}
    return kind, lambda values, rows, notes: _enum(values, rows, notes, known)


def _json(values: Values, rows: Indices, notes: Notes) -> pa.Array:
    """Messages in JSON, as Protocol Buffers define it. What that leaves out is noted."""
    made = [json_text(value) for value in values]
    notes.strays.update(int(row) for row, (_, is_whole) in zip(rows.tolist(), made, strict=True) if not is_whole)
    return pa.array([text for text, _ in made], pa.string())


def _enum(values: Values, rows: Indices, notes: Notes, known: dict[int, str]) -> pa.Array:
    found = [known.get(value) for value in values]
    notes.strays.update(int(row) for row, name in zip(rows.tolist(), found, strict=True) if name is None)
    return pa.array(found, pa.string())
