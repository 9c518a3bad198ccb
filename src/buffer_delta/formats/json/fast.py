"""JSON many records at a time, with Arrow's C++ parser. Agrees with `records`, or leaves the record to it.

The parser reads a *stream* of objects: it would take two objects in one entry for two records, and half an object
at the end of an entry together with the next one. And it must never meet a bare `null` between objects, nor a
hundred thousand open brackets: both crash the process. So `suspects` first finds, for a whole chunk at once, the
entries that might not be one object, and they are looked at singly. For the rest it holds:

    an entry begins with `{` and ends with `}`, and inside it every `}` is followed by `,` `}` or `]`; entries are
    joined by newlines, which cannot be part of a string. So at the end of an entry the parser is outside of any
    string, and at depth 0: deeper, it would refuse the `{` that comes next. Nor can it be at depth 0 earlier: it
    would refuse the `,` `}` or `]`. Hence where the parser succeeds, each entry is exactly one record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from buffer_delta.formats.entries import Indices, offsets_of
from buffer_delta.formats.json.reading import DEPTH_MAX
from buffer_delta.formats.json.records import decode_base64
from buffer_delta.formats.numbers import Mismatch
from buffer_delta.formats.variant import is_variant

_WHITESPACE = np.zeros(256, bool)
_WHITESPACE[[0x20, 0x09, 0x0A, 0x0D]] = True
_CLOSERS = np.zeros(256, bool)
_CLOSERS[[ord(","), ord("}"), ord("]")]] = True
_AFTER_VALUE = _WHITESPACE | _CLOSERS
_BLANKS_MAX = 16  # beyond that an entry is looked at singly

_ROW = re.compile(r" in row (\d+)")
STUMBLES_MIN = 8
RECORDS_PER_STUMBLE = 64  # finding one more stumble costs a call of the parser


def suspects(entries: pa.BinaryArray) -> Indices:
    """The entries that may be something else than one JSON object of bounded depth, in order."""
    if len(entries) == 0:
        return np.zeros(0, np.int64)
    offsets = offsets_of(entries)
    begins, ends = offsets[:-1], offsets[1:]
    values = entries.buffers()[2]
    if values is None or offsets[0] == offsets[-1]:
        return np.arange(len(entries))
    data = np.frombuffer(values, np.uint8)
    marked = ~_framed(data, begins, ends)
    region = data[offsets[0] : offsets[-1]]
    if region.min() == 0:  # a zero byte is never JSON, and ends the text for the parser
        marked[np.searchsorted(ends, np.flatnonzero(region == 0) + offsets[0], side="right")] = True
    # An entry that is framed ends with a `}`: where there are no others, none is closed early.
    if marked.any() or np.count_nonzero(region == ord("}")) != len(entries):
        marked[_closed_early(data, region, offsets)] = True
    if (ends - begins).max() > 2 * DEPTH_MAX:  # shorter ones cannot be that deep
        opened = np.flatnonzero((region == ord("{")) | (region == ord("["))) + offsets[0]
        marked |= np.diff(np.searchsorted(opened, offsets)) > DEPTH_MAX
    return np.flatnonzero(marked)


def _framed(
    data: npt.NDArray[np.uint8], begins: npt.NDArray[np.int32], ends: npt.NDArray[np.int32]
) -> npt.NDArray[np.bool_]:
    """Which entries begin with `{` and end with `}`, blanks aside."""
    first, last = begins.copy(), ends - 1
    top = len(data) - 1
    if (last > first).all() and (data[first] == ord("{")).all() and (data[last] == ord("}")).all():
        return np.ones(len(ends), bool)
    for _ in range(_BLANKS_MAX):
        blank = _WHITESPACE[data[np.clip(last, 0, top)]] & (last > first)
        if not blank.any():
            break
        last -= blank
    for _ in range(_BLANKS_MAX):
        blank = _WHITESPACE[data[np.clip(first, 0, top)]] & (last > first)
        if not blank.any():
            break
        first += blank
    opens, closes = data[np.clip(first, 0, top)] == ord("{"), data[np.clip(last, 0, top)] == ord("}")
    framed: npt.NDArray[np.bool_] = (last > first) & opens & closes
    return framed


def _closed_early(
    data: npt.NDArray[np.uint8], region: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int32]
) -> Indices:
    """Entries with a `}` that is followed by something other than `,` `}` `]` or the entry's end."""
    ends = offsets[1:]
    after = np.flatnonzero(region == ord("}")) + offsets[0] + 1
    top = len(data) - 1
    after = after[~_CLOSERS[data[np.minimum(after, top)]]]
    for _ in range(_BLANKS_MAX):
        after = after[ends[np.searchsorted(ends, after, side="left")] != after]
        blank = _WHITESPACE[data[np.minimum(after, top)]]
        if not blank.any():
            break
        after = after + blank
        after = after[~(blank & _CLOSERS[data[np.minimum(after, top)]])]
    return np.unique(np.searchsorted(ends, after, side="right"))


def no_numbers(entries: pa.BinaryArray) -> Indices:
    """The entries that may have `Inf` or `-NaN` where a value stands: numbers to the parser, and no JSON to others."""
    offsets = offsets_of(entries)
    values = entries.buffers()[2] if len(entries) else None
    if values is None:
        return np.zeros(0, np.int64)
    region = np.frombuffer(values, np.uint8)[offsets[0] : offsets[-1]]
    places = np.flatnonzero(region[:-3] == ord("I"))
    ends = _AFTER_VALUE[region[places + 3]]
    infinite = places[(region[places + 1] == ord("n")) & (region[places + 2] == ord("f")) & ends]
    negative = np.flatnonzero((region[:-1] == ord("-")) & (region[1:] == ord("N")))
    places = np.concatenate([infinite, negative])
    return np.unique(np.searchsorted(offsets, places + offsets[0], side="right") - 1)


class TooMany(Exception):
    """The parser stumbles over so many records that looking at each of them is faster."""


@dataclass(frozen=True)
class Read:
    """The records that the parser took, and those that it stumbled over, both by index."""

    table: pa.Table | None
    taken: Indices
    left: Indices


def read(entries: pa.BinaryArray, schema: pa.Schema) -> Read:
    """Parse entries none of which is suspect. Fields that are no column are passed over: see `stray`.

    Raises ArrowInvalid if some value does not convert (Arrow does not say whose), and TooMany.
    """
    reader = _Reader(pc.binary_join_element_wise(entries, b"", b"\n"), schema)
    everything = np.arange(len(entries))
    try:
        return Read(reader.parse(0), everything, everything[:0])
    except pa.ArrowInvalid as error:
        left = reader.stumbles(error)
    taken = np.setdiff1d(everything, left)
    if not len(taken):
        return Read(None, taken, left)
    rest = read(entries.take(pa.array(taken)), schema)
    return Read(rest.table, taken[rest.taken], np.union1d(left, taken[rest.left]))


class _Reader:
    def __init__(self, lines: pa.BinaryArray, schema: pa.Schema) -> None:
        self._offsets = offsets_of(lines)
        self._text = lines.buffers()[2]
        self._options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")

    def parse(self, start: int) -> pa.Table:
        """All records from `start` on. In one block: else rows would be counted per block, and copied."""
        begin, end = int(self._offsets[start]), int(self._offsets[-1])
        options = pj.ReadOptions(use_threads=False, block_size=end - begin + 1)
        table = pj.read_json(pa.BufferReader(self._text.slice(begin, end - begin)), options, self._options)
        if table.num_rows != len(self._offsets) - 1 - start:
            raise pa.ArrowInvalid(f"{table.num_rows} rows of {len(self._offsets) - 1 - start} entries")
        return table

    def stumbles(self, error: pa.ArrowInvalid) -> Indices:
        """The records where the parser stops, one after the other. ArrowInvalid: it does not say which."""
        count = len(self._offsets) - 1
        found: list[int] = []
        start = 0
        while True:
            row = _ROW.search(str(error))
            if len(found) > STUMBLES_MIN and len(found) * RECORDS_PER_STUMBLE > start:
                raise TooMany
            if row is None or start + int(row[1]) >= count:
                raise error
            found.append(start + int(row[1]))
            start = found[-1] + 1
            if start == count:
                return np.array(found)
            try:
                self.parse(start)
            except pa.ArrowInvalid as next_error:
                error = next_error
            else:
                return np.array(found)


# Columns as the parser reads them, and as they should be


def physical(kind: pa.DataType, *, top: bool = True) -> pa.DataType | None:
    """The type to let the parser read, where it does not know the wanted one. None: it cannot read it at all."""
    if pa.types.is_map(kind) or is_variant(kind) or (pa.types.is_binary(kind) and not top):
        return None
    if pa.types.is_date(kind) or pa.types.is_binary(kind) or (pa.types.is_timestamp(kind) and not kind.tz):
        return pa.string()
    if kind == pa.float32():
        return pa.float64()  # narrowed afterwards: both ways round alike
    if pa.types.is_decimal(kind):
        # Arrow reads digits beyond the precision without a word, and overflows while it scales them up. With room
        # to spare neither happens, and the cast afterwards checks.
        return pa.decimal256(76, kind.scale)
    if pa.types.is_list(kind):
        inner = physical(kind.value_type, top=False)
        return pa.list_(inner) if inner is not None else None
    if pa.types.is_struct(kind):
        fields = [(f.name, physical(f.type, top=False)) for f in kind]
        return pa.struct(fields) if all(inner is not None for _, inner in fields) else None
    return kind


def finish(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column in its wanted type. Raises ArrowInvalid where a value does not fit. For floats see `rounded`."""
    if column.type == kind:
        return column
    if pa.types.is_binary(kind):
        try:
            return pa.array([None if text is None else decode_base64(text) for text in column.to_pylist()], kind)
        except Mismatch as error:
            raise pa.ArrowInvalid("not base64") from error
    return column.cast(kind)


# Numbers that the parser reads in another way than `records`: the record is looked at singly

_FLOAT64_WHOLE = 2.0**53  # from here on a whole number may have been rounded
_BEYOND_FLOAT32 = (1 << 29) - 1  # the bits that 64 have and 32 have not, and the first of them alone
_HALF_FLOAT32 = 1 << 28
_FLOAT32_NORMAL = 2.0**-126  # below, a float has fewer of them
_DECIMAL_DOUBTS = (
    # An exponent reads outside of the parser's tables: a wrong value, or a crash. As a number, or in a string.
    r'[:\[,]\s*-?[0-9.]+[eE][-+]?[0-9]+\s*[,\]}]|"[-+]?[0-9.]+[eE][-+]?[0-9]+"'
    r"|[0-9.]{38}"  # so many digits overflow when they are scaled up
    r"|\\u00[2-6]"  # a digit or an `e` in disguise
)
_STEP = 7  # of 38 digits in a row at least five are looked at
_DIGITS_BEFORE_MAX = 12  # before the `e`; with more of them the entry is in doubt
_BLOCK = 1 << 18
_BLOCK_OVERLAP = 64  # longer than what is looked for
_AFTER_EXPONENT = np.zeros(256, bool)
_AFTER_EXPONENT[list(b"+-0123456789")] = True
_BEFORE_NUMBER = np.zeros(256, bool)
_BEFORE_NUMBER[list(b'+-:[," \t\r\n')] = True
_ZERO_DOUBTS = (
    r"[:\[,]\s*-?[0-9.]+[eE]-[0-9]+\s*[,\]}]|0\.0{40}"  # small enough that it may be zero only because of rounding
    r"|[:\[,]\s*-0\s*[,\]}]"  # a whole number, and they have one zero only
)


def has_decimals(kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind) or any(has_decimals(kind.field(at).type) for at in range(kind.num_fields))


def decimal_doubts(entries: pa.BinaryArray) -> Indices:
    """The entries whose decimals must not be left to the parser, whatever their columns."""
    maybe = _maybe_doubtful(entries)
    if not len(maybe):
        return maybe
    doubtful = pc.match_substring_regex(entries.take(pa.array(maybe)), _DECIMAL_DOUBTS)
    found: Indices = maybe[doubtful.to_numpy(zero_copy_only=False)]
    return found


def _maybe_doubtful(entries: pa.BinaryArray) -> Indices:
    """The entries that the expression above may match: told from their bytes, several times as fast as by it."""
    offsets = offsets_of(entries)
    region = np.frombuffer(entries.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    found = [start + at for start in range(0, len(region), _BLOCK) for at in _doubts_in(region, start)]
    if not found:
        return np.zeros(0, np.int64)
    places: Indices = np.unique(np.searchsorted(offsets, np.concatenate(found) + offsets[0], side="right") - 1)
    return places


def _doubts_in(region: npt.NDArray[np.uint8], start: int) -> Iterator[Indices]:
    """Places in a block that the processor's cache holds; mostly there are none."""
    block = region[start : start + _BLOCK + _BLOCK_OVERLAP]
    numeric = (block - 0x2E) < 12  # digits and points, and the slash, which does no harm
    marks = (block | 0x20) == 0x65  # e and E
    marks[1:] &= numeric[:-1]
    if marks[1:].any():
        exponents = np.flatnonzero(marks[1:])
        exponents = exponents[_AFTER_EXPONENT[block[np.minimum(exponents + 2, len(block) - 1)]]]
        for _ in range(_DIGITS_BEFORE_MAX):  # back to where the number begins: words and hashes have letters there
            exponents = np.where(numeric[exponents], np.maximum(exponents, 1) - 1, exponents)
        yield exponents[(exponents == 0) | numeric[exponents] | _BEFORE_NUMBER[block[exponents]]]
    steps = numeric[::_STEP]
    pairs = steps[:-1] & steps[1:]
    fives = pairs[:-3] & pairs[1:-2] & pairs[3:]
    if fives.any():
        yield np.flatnonzero(fives) * _STEP
    escapes = block == 0x5C
    if escapes.any():
        yield np.flatnonzero(escapes)


def zero_doubts(entries: pa.BinaryArray) -> npt.NDArray[np.bool_]:
    """Which of these entries, with a zero in a column of floats, may have been written as something else."""
    found: npt.NDArray[np.bool_] = pc.match_substring_regex(entries, _ZERO_DOUBTS).to_numpy(zero_copy_only=False)
    return found


def rounded(column: pa.Array, kind: pa.DataType) -> npt.NDArray[np.bool_] | None:
    """The rows with floats that are not, or may not be, what `records` makes of the text. None: no row.

    `column` is as the parser read it: with 64 bits.
    """
    return _rows_where(column, kind, _is_rounded)


def zeros(column: pa.Array, kind: pa.DataType) -> npt.NDArray[np.bool_] | None:
    """The rows with a zero among their floats. None: no row."""
    return _rows_where(column, kind, lambda values, _: values == 0)


def _is_rounded(values: npt.NDArray[np.float64], kind: pa.DataType) -> npt.NDArray[np.bool_]:
    marks: npt.NDArray[np.bool_] = ~(np.abs(values) < _FLOAT64_WHOLE)  # and what is not finite: `Inf` is none of ours
    if kind == pa.float32():
        with np.errstate(over="ignore", under="ignore"):
            narrow = values.astype(np.float32)
        marks |= ~np.isfinite(narrow) | ((narrow == 0) & (values != 0))
        # What lies in the middle of two may have been rounded to get there, and would go to the wrong one of them.
        middle = (values.view(np.int64) & _BEYOND_FLOAT32 == _HALF_FLOAT32) | (np.abs(values) < _FLOAT32_NORMAL)
        marks |= (narrow != values) & ((np.floor(values) == values) | middle)
    return marks


def _rows_where(
    column: pa.Array, kind: pa.DataType, test: Callable[[Any, pa.DataType], npt.NDArray[np.bool_]]
) -> npt.NDArray[np.bool_] | None:
    if pa.types.is_floating(kind):
        values = column.fill_null(1.0) if column.null_count else column
        marks = test(values.to_numpy(zero_copy_only=False), kind)
        return marks if marks.any() else None
    if pa.types.is_struct(kind):
        parts = zip(column.flatten(), kind, strict=True)
        found = [inner for values, field in parts if (inner := _rows_where(values, field.type, test)) is not None]
        return np.logical_or.reduce(found) if found else None
    if not pa.types.is_list(kind):
        return None
    inner = _rows_where(column.values, kind.value_type, test)
    if inner is None:
        return None
    rows = np.zeros(len(column), bool)
    rows[np.searchsorted(column.offsets.to_numpy(), np.flatnonzero(inner), side="right") - 1] = True
    return rows
