"""JSON one record at a time, in Python: the meaning of the format. `fast` must agree with it, only faster.

What a record must be: UTF-8, one JSON object, no name twice in one object (unless both are null), at most DEPTH_MAX
levels. What a column takes from its field:

    BOOLEAN                true, false
    TINYINT … BIGINT       a whole number, without point or exponent, in range
    FLOAT, DOUBLE          a whole number that it holds exactly; a number with point or exponent goes to the nearest
                           value, but not to zero or infinity; NaN, Infinity, -Infinity, which many writers emit
    DECIMAL(p, s)          a number, or a number in a string, that fits without rounding
    STRING                 a string; of anything else its JSON text
    BINARY                 base64, as any encoder writes it
    DATE, TIMESTAMP        a string in ISO 8601; a timestamp without a zone is UTC
    TIMESTAMP_NTZ          the same, without a zone
    ARRAY, STRUCT, MAP     array, object, object
    VARIANT                anything that it holds exactly, see `variant`
    null, no such field    null

An array or a map that would take too many cells for its entry's size (see `cells`) fits no column either.

A field that a column cannot take is a mismatch: the column is null, and the field goes, as it came, to the
rescued column.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from buffer_delta.formats.cells import DENSE, allowed_cells, element_cells, leaves
from buffer_delta.formats.json.reading import BadRecord, decode_plain, has_minus_zero, load, shown, to_text
from buffer_delta.formats.numbers import MinusZero, Mismatch, to_decimal, to_float32, to_float64
from buffer_delta.formats.variant import TEXT_MAX, check_exact, is_variant

_SHOWN_MAX = 80  # characters of a type in an error message
_INT_RANGES = {
    kind: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for kind, bits in ((pa.int8(), 8), (pa.int16(), 16), (pa.int32(), 32), (pa.int64(), 64))
}


_WHOLE = (int, MinusZero)


@dataclass(frozen=True)
class Converted:
    """Records as columns."""

    arrays: list[pa.Array]
    stray: list[dict[str, Any]]
    """For each record the fields without a place: unknown ones, and those that mismatch."""
    mismatches: dict[int, list[str]]
    """What is wrong with the records that have such."""


class Columns:
    """The columns of a schema, ready to take records."""

    def __init__(self, schema: pa.Schema) -> None:
        self._fields = [(f.name, f.type, strayer(f.type)) for f in schema]
        self._names = frozenset(schema.names)

    def convert(self, records: list[dict[str, Any]], sizes: Iterable[int]) -> Converted:
        """`sizes`: the bytes of each record's entry, which decide how many cells its arrays and maps get."""
        stray = [self._unknown(record) for record in records]
        cells = [allowed_cells(size) for size in sizes]
        mismatches: dict[int, list[str]] = {}
        arrays = []
        for name, kind, strays in self._fields:
            values = [record.get(name) for record in records]
            crowded = _crowded(values, kind, cells)
            array, misfits = convert_column([None if r in crowded else v for r, v in enumerate(values)], kind)
            arrays.append(array)
            for row in sorted({*misfits, *crowded}):
                stray[row][name] = values[row]
                wrong = f", which would take {crowded[row]:,} cells" if row in crowded else ""
                error = f"column {name!r} ({shown_type(kind)}) cannot hold {shown(values[row])}{wrong}"
                mismatches.setdefault(row, []).append(error)
            for row, value in enumerate(values if strays else ()):
                rest = strays(value) if strays and value is not None and name not in stray[row] else None
                if rest is not None:
                    stray[row][name] = rest
        return Converted(arrays, stray, mismatches)

    def stray(self, record: dict[str, Any]) -> dict[str, Any]:
        """The fields without a place in a record all of whose columns fit."""
        found = self._unknown(record)
        for name, _, strays in self._fields:
            value = record.get(name) if strays else None
            rest = strays(value) if strays and value is not None else None
            if rest is not None:
                found[name] = rest
        return found

    def _unknown(self, record: dict[str, Any]) -> dict[str, Any]:
        names = self._names
        return {name: value for name, value in record.items() if name not in names and value is not None}


def stray_texts(entries: list[bytes], columns: Columns) -> list[str | None]:
    """The fields without a place, as JSON, of entries all of which Arrow has parsed. Raises BadRecord.

    Mostly there are only strings and whole numbers, and Python's own parser and writer do. But a number with a point
    must keep its digits.
    """
    texts: list[str | None] = []
    for at, entry in enumerate(entries):
        try:
            text = entry.decode()
            stray = columns.stray(decode_plain(text))
        except ValueError as error:  # Arrow lets things pass in fields that it was given no type for
            raise BadRecord(str(error)) from error
        if not all(map(_is_exact, stray.values())) or has_minus_zero(text):
            exact = (columns.stray(load(entry)) for entry in entries[at:])  # those after it will be no different
            return texts + [to_text(stray) if stray else None for stray in exact]
        texts.append(json.dumps(stray, ensure_ascii=False, separators=(",", ":")) if stray else None)
    return texts


def _is_exact(value: Any) -> bool:
    return isinstance(value, str | int) or (isinstance(value, list) and all(isinstance(v, str | int) for v in value))


def shown_type(kind: pa.DataType) -> str:
    text = str(kind)
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"


# What a type takes


def _crowded(values: list[Any], kind: pa.DataType, cells: list[int]) -> dict[int, int]:
    """The rows whose arrays and maps take more than is left of their cells, and how many; the others use them up."""
    if element_cells(kind) <= DENSE:
        return {}
    found = {}
    for row, value in enumerate(values):
        needed = cells_inside(value, kind)
        if needed > cells[row]:
            found[row] = needed
        else:
            cells[row] -= needed
    return found


def cells_inside(value: Any, kind: pa.DataType) -> int:
    """The cells of the elements of all lists and maps in a value; of one that mismatches the type, of what fits it."""
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return sum(cells_inside(value[f.name], f.type) for f in kind if value.get(f.name) is not None)
    if pa.types.is_list(kind) and isinstance(value, list):
        inner, held = kind.value_type, value
    elif pa.types.is_map(kind) and isinstance(value, dict):
        inner, held = kind.item_type, list(value.values())
    else:
        return 0
    return len(held) * leaves(inner) + (sum(cells_inside(v, inner) for v in held) if element_cells(inner) else 0)


def convert_column(values: list[Any], kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    """The values as a column, null where they mismatch; and the rows that do."""
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _convert_times(values, kind)
    convert = converter(kind)
    found: list[Any] = []
    misfits: list[int] = []
    for row, value in enumerate(values):
        try:
            found.append(None if value is None else convert(value))
        except Mismatch:
            found.append(None)
            misfits.append(row)
    return pa.array(found, pa.string() if is_variant(kind) else kind), misfits


def _convert_times(values: list[Any], kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    """All at once where they are all right; narrowed down where not: a cast for each value would take longest."""
    misfits = {row for row, value in enumerate(values) if value is not None and not isinstance(value, str)}
    found = pa.nulls(0, kind)
    todo = [(0, pa.array([None if row in misfits else value for row, value in enumerate(values)], pa.string()))]
    while todo:
        start, texts = todo.pop()
        try:
            found = pa.concat_arrays([found, _cast_times(texts, kind)])
        except Mismatch:
            half = len(texts) // 2
            if half:
                todo += [(start + half, texts[half:]), (start, texts[:half])]
            else:
                misfits.add(start)
                found = pa.concat_arrays([found, pa.nulls(1, kind)])
    return found, sorted(misfits)


def _cast_times(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid as error:
        if not pa.types.is_timestamp(kind) or kind.tz is None:
            raise Mismatch from error
    try:
        return texts.cast(pa.timestamp("us")).cast(kind)  # without a zone it is UTC
    except pa.ArrowInvalid as error:
        raise Mismatch from error


@lru_cache(maxsize=1024)
def converter(kind: pa.DataType) -> Callable[[Any], Any]:
    """A function from a JSON value, not null, to what `pa.array` takes for the type. It raises Mismatch."""
    if kind in _INT_RANGES:
        low, high = _INT_RANGES[kind]
        return lambda value: _checked(value, type(value) in _WHOLE and low <= value <= high)
    if pa.types.is_boolean(kind):
        return lambda value: _checked(value, isinstance(value, bool))
    if pa.types.is_floating(kind):
        return to_float32 if kind == pa.float32() else to_float64
    if pa.types.is_string(kind):
        return lambda value: value if isinstance(value, str) else to_text(value)
    if is_variant(kind):
        return to_variant_text
    if pa.types.is_binary(kind):
        return decode_base64
    if pa.types.is_decimal(kind):
        return lambda value: to_decimal(value, kind)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return lambda value: _cast_times(pa.array([_checked(value, isinstance(value, str))]), kind)[0]
    return _nested_converter(kind)


def to_variant_text(value: Any) -> str:
    """The JSON text of which Spark makes the very same value."""
    check_exact(value)
    text = to_text(value)
    return _checked(text, len(text) <= TEXT_MAX and len(text.encode()) <= TEXT_MAX)  # type: ignore[no-any-return]


def _nested_converter(kind: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_list(kind):
        element = converter(kind.value_type)
        return lambda value: [None if v is None else element(v) for v in _checked(value, isinstance(value, list))]
    if pa.types.is_map(kind):
        item = converter(kind.item_type)
        return lambda value: [
            (k, None if v is None else item(v)) for k, v in _checked(value, isinstance(value, dict)).items()
        ]
    assert pa.types.is_struct(kind), f"{kind} passed the schema's check"
    fields = [(f.name, converter(f.type)) for f in kind]

    def convert_struct(value: Any) -> dict[str, Any]:
        _checked(value, isinstance(value, dict))
        return {name: None if value.get(name) is None else convert(value[name]) for name, convert in fields}

    return convert_struct


@lru_cache(maxsize=1024)
def strayer(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """A function that finds the fields of a value which its type has no place for. None: there cannot be any."""
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        inner = strayer(kind.value_type if pa.types.is_list(kind) else kind.item_type)
        if inner is None:
            return None
        found = inner  # mypy does not carry the narrowing into the functions
        return (lambda v: _stray_list(v, found)) if pa.types.is_list(kind) else (lambda v: _stray_map(v, found))
    if not pa.types.is_struct(kind):
        return None
    fields = {f.name: strayer(f.type) for f in kind}

    def stray_fields(value: dict[str, Any]) -> Any:
        rest = {}
        for name, inside in value.items():
            if inside is None:
                continue
            finder = fields.get(name)
            left = inside if name not in fields else finder(inside) if finder else None
            if left is not None:
                rest[name] = left
        return rest or None

    return stray_fields


def _stray_list(value: list[Any], strays: Callable[[Any], Any]) -> Any:
    rest = [None if v is None else strays(v) for v in value]
    return rest if any(v is not None for v in rest) else None


def _stray_map(value: dict[str, Any], strays: Callable[[Any], Any]) -> Any:
    rest = {k: strays(v) for k, v in value.items() if v is not None}
    return {k: v for k, v in rest.items() if v is not None} or None


def _checked(value: Any, fits: bool) -> Any:
    if not fits:
        raise Mismatch
    return value


def decode_base64(value: Any) -> bytes:
    try:
        found = base64.b64decode(_checked(value, isinstance(value, str)), validate=True)
    except (binascii.Error, ValueError) as error:
        raise Mismatch from error
    _checked(value, base64.b64encode(found).decode() == value)  # else bits after the last byte would be lost
    return found
