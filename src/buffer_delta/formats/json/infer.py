"""Which columns some JSON records would need: the evolving half of the format `json`.

Numbers are BIGINT or DOUBLE, text is STRING even where it looks like a time: a column must not change its mind
when one record comes that does not look like it. Fields that were null so far are not there yet.

Records are looked at one by one until they bring nothing new; from then on Arrow's parser tells, many at a time,
which ones do: see `stray`. What was seen is kept within `max_columns`, so memory does not grow with the names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from buffer_delta.formats.base import MAX_COLUMNS
from buffer_delta.formats.entries import Indices, chunks, invalid_utf8
from buffer_delta.formats.json import fast as json_fast
from buffer_delta.formats.json.crowds import Crowds
from buffer_delta.formats.json.reading import BadRecord, load
from buffer_delta.formats.json.stray import has_stray
from buffer_delta.formats.merge import merge_schemas
from buffer_delta.formats.names import same_name_key, storable
from buffer_delta.formats.schemas import NESTED_MAX

_INT64_MAX = 2**63 - 1
_FIRST_ROWS = 64  # looked at one by one; then ever more at once
_GROWTH = 8
_SAMPLE = 64
_PARSED_BYTES = 8 << 20
_SINGLY_MAX = 256
_PIECES = 16
_SINGLY_BYTES = 1 << 20  # looked at one by one before what was seen is cut to `max_columns`


def infer(entries: pa.BinaryArray, max_columns: int = MAX_COLUMNS, known: pa.Schema | None = None) -> pa.Schema:
    """The columns of these records, after those that are known already. Those that are bad are passed over."""
    bad = {index for index, _ in invalid_utf8(entries)}
    odd = [index for index in json_fast.suspects(entries).tolist() if index not in bad]
    found = known if known is not None else pa.schema([])
    plain = np.setdiff1d(np.arange(len(entries)), [*bad, *odd]) if bad or odd else np.arange(len(entries))
    start, size = 0, _FIRST_ROWS if not len(found) else len(plain)
    while start < len(plain):
        piece = plain[start : start + size]
        part = entries.slice(piece[0], len(piece)) if not odd and not bad else entries.take(pa.array(piece))
        new = _bringing(part, found)
        found = _grown(found, part.take(pa.array(new)), max_columns)
        start, size = start + size, size * _GROWTH
    return _grown(found, entries.take(pa.array(odd, pa.int64())), max_columns)


def _bringing(entries: pa.BinaryArray, known: pa.Schema) -> Indices:
    """The entries that may need more than the known columns."""
    if not len(known):
        return np.arange(len(entries))
    crowds = Crowds(known)
    crowded = crowds.crowded(entries)
    rest = np.setdiff1d(np.arange(len(entries)), crowded)
    if len(crowded):
        entries = entries.take(pa.array(rest))
    sample = _unlike(entries.slice(0, _SAMPLE), known)
    if len(sample) * 2 > min(_SAMPLE, len(entries)):  # most do: asking the parser would take longer
        return np.union1d(crowded, rest)
    found = [
        rest[start + _unlike(piece, known)] for start, piece in crowds.pieces(entries, _PARSED_BYTES, len(entries) or 1)
    ]
    return np.union1d(crowded, np.concatenate(found)) if found else crowded


def _unlike(entries: pa.BinaryArray, known: pa.Schema) -> Indices:
    everything = np.arange(len(entries))
    if not len(entries):
        return everything
    try:
        read = json_fast.read(entries, known)
        if read.table is None:
            return read.left
        taken = entries if len(read.taken) == len(entries) else entries.take(pa.array(read.taken))
        return np.union1d(read.left, read.taken[has_stray(taken, read.table)])
    except json_fast.TooMany:
        return everything
    except pa.ArrowInvalid:  # some value does not convert: narrow it down
        if len(entries) <= _SINGLY_MAX:
            return everything
    pieces = np.array_split(everything, _PIECES)
    return np.concatenate([piece[_unlike(entries.slice(piece[0], len(piece)), known)] for piece in pieces])


def _grown(known: pa.Schema, entries: pa.BinaryArray, max_columns: int) -> pa.Schema:
    for _, piece in chunks(entries, _SINGLY_BYTES, len(entries) or 1):
        shape = Shape(max_columns)
        for record in _records(piece.to_pylist()):
            shape.see_record(record)
        known = merge_schemas(None, [known, shape.schema()], max_columns=max_columns)
    return known


def _records(entries: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for entry in entries:
        try:
            yield load(entry)
        except BadRecord:
            continue


class Shape:
    """What values of one place looked like so far. As an Arrow type it would be made anew for every value."""

    __slots__ = ("_element", "_fields", "_kind", "_max_fields")

    def __init__(self, max_fields: int) -> None:
        self._kind: pa.DataType | type[dict[Any, Any]] | type[list[Any]] | None = None
        self._fields: dict[str, tuple[str, Shape]] = {}
        self._element: Shape | None = None
        self._max_fields = max_fields

    def see_record(self, record: dict[str, Any]) -> None:
        self._see_fields(record, 0)

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(name, shape.type()) for name, shape in self._fields.values()])

    def see(self, value: Any, depth: int) -> None:
        if value is None or self._kind == pa.string():
            return
        kind = _kind_of(value)
        if self._kind is None:
            self._kind = kind
        elif self._kind != kind:
            self._kind = pa.float64() if {self._kind, kind} == {pa.int64(), pa.float64()} else pa.string()
            self._fields, self._element = {}, None
        if depth > NESTED_MAX or self._kind == pa.string():
            return
        if isinstance(value, dict):
            self._see_fields(value, depth)
        elif isinstance(value, list):
            self._element = self._element or Shape(self._max_fields)
            for inner in value:
                self._element.see(inner, depth + 1)

    def _see_fields(self, value: dict[str, Any], depth: int) -> None:
        """Of two spellings of a name the first with a value counts."""
        for name, inner in value.items():
            if inner is None:
                continue
            key = same_name_key(name)
            there = self._fields.get(key)
            if there is None:
                if len(self._fields) >= self._max_fields or not storable(name):
                    continue
                there = self._fields[key] = (name, Shape(self._max_fields))
            if there[0] == name:
                there[1].see(inner, depth + 1)

    def type(self) -> pa.DataType:
        """Null: no value was seen."""
        if self._kind is dict:
            return pa.struct([pa.field(name, shape.type()) for name, shape in self._fields.values()])
        if self._kind is list:
            return pa.list_(self._element.type() if self._element else pa.null())
        return self._kind if isinstance(self._kind, pa.DataType) else pa.null()


def _kind_of(value: Any) -> Any:
    if isinstance(value, dict):
        return dict
    if isinstance(value, list):
        return list
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if -_INT64_MAX - 1 <= value <= _INT64_MAX else pa.float64()
    return pa.float64() if isinstance(value, float) else pa.string()
