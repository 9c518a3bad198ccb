"""JSON many records at a time, with Arrow's C++ parser. Agrees with `json_records`, or leaves the record to it.

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
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from buffer_delta.formats.base import Indices, offsets_of
from buffer_delta.formats.json_records import DEPTH_MAX, Mismatch, decode_base64

_WHITESPACE = np.zeros(256, bool)
_WHITESPACE[[0x20, 0x09, 0x0A, 0x0D]] = True
_CLOSERS = np.zeros(256, bool)
_CLOSERS[[ord(","), ord("}"), ord("]")]] = True
_BLANKS_MAX = 16  # beyond that an entry is looked at singly

_ROW = re.compile(r" in row (\d+)")
STUMBLES_MIN = 8
RECORDS_PER_STUMBLE = 64  # finding one more stumble costs a call of the parser
_CHANGED = re.compile(r"Column\(/([^/)]*)[^)]*\) changed from")


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
    if not region.all():  # a zero byte is never JSON, and ends the text for the parser
        marked[np.searchsorted(ends, np.flatnonzero(region == 0) + offsets[0], side="right")] = True
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


class ConflictOutside(Exception):
    """Fields that are no columns have values of several kinds, which Arrow's inference cannot take."""


class TooMany(Exception):
    """The parser stumbles over so many records that looking at each of them is faster."""


@dataclass(frozen=True)
class Read:
    """The records that the parser took, and those that it stumbled over, both by index."""

    table: pa.Table | None
    taken: Indices
    left: Indices


def read(entries: pa.BinaryArray, schema: pa.Schema | None, *, infer: bool) -> Read:
    """Parse entries none of which is suspect.

    With `infer`, fields that are no column come as columns after those of the schema; a conflict among them raises
    ConflictOutside. Raises ArrowInvalid if some value does not convert (Arrow does not say whose), and TooMany.
    """
    reader = _Reader(pc.binary_join_element_wise(entries, b"", b"\n"), schema, infer)
    everything = np.arange(len(entries))
    try:
        return Read(reader.parse(0), everything, everything[:0])
    except pa.ArrowInvalid as error:
        left = reader.stumbles(error)
    taken = np.setdiff1d(everything, left)
    if not len(taken):
        return Read(None, taken, left)
    rest = read(entries.take(pa.array(taken)), schema, infer=infer)
    return Read(rest.table, taken[rest.taken], np.union1d(left, taken[rest.left]))


class _Reader:
    def __init__(self, lines: pa.BinaryArray, schema: pa.Schema | None, infer: bool) -> None:
        self._names = frozenset(schema.names) if schema is not None else None
        self._infer = infer
        self._offsets = offsets_of(lines)
        self._text = lines.buffers()[2]
        self._options = pj.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="infer" if infer else "ignore"
        )

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
            column, row = _CHANGED.search(str(error)), _ROW.search(str(error))
            if self._infer and self._names is not None and column and column[1] not in self._names:
                raise ConflictOutside(column[1])
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
    if pa.types.is_map(kind) or (pa.types.is_binary(kind) and not top):
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


def trim(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
    """The column without the fields that its type does not have, and which rows had some. None: no row."""
    if column.type == kind or not pa.types.is_nested(kind):
        return column, None
    if pa.types.is_struct(kind):
        return _trim_struct(column, kind)
    inner, marks = trim(column.values, kind.value_type)
    trimmed = pa.ListArray.from_arrays(column.offsets, inner, mask=column.is_null() if column.null_count else None)
    if marks is None:
        return trimmed, None
    rows = np.zeros(len(column), bool)
    rows[np.searchsorted(column.offsets.to_numpy(), np.flatnonzero(marks), side="right") - 1] = True
    return trimmed, rows


def _trim_struct(column: pa.StructArray, kind: pa.StructType) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
    rows = np.zeros(len(column), bool)
    wanted = {f.name: f.type for f in kind}
    parts = {}
    for field, values in zip(column.type, column.flatten(), strict=True):
        if field.name in wanted:
            parts[field.name], marks = trim(values, wanted[field.name])
        else:
            marks = values.is_valid().to_numpy(zero_copy_only=False)
        if marks is not None:
            rows |= marks
    fields = [pa.field(name, parts[name].type) for name in wanted]
    trimmed = pa.StructArray.from_arrays(
        [parts[name] for name in wanted], fields=fields, mask=column.is_null() if column.null_count else None
    )
    return trimmed, rows if rows.any() else None


def finish(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column in its wanted type. Raises ArrowInvalid where a value does not fit or wants a closer look."""
    for leaf in _floats(column):
        if not pc.all(pc.is_finite(leaf), min_count=0).as_py():
            raise pa.ArrowInvalid("a number that is not finite")  # `Inf` is none of ours, `NaN` is
    if column.type == kind:
        return column
    if pa.types.is_binary(kind):
        try:
            return pa.array([None if text is None else decode_base64(text) for text in column.to_pylist()], kind)
        except Mismatch as error:
            raise pa.ArrowInvalid("not base64") from error
    cast = column.cast(kind)
    for leaf in _floats(cast):
        if not pc.all(pc.is_finite(leaf), min_count=0).as_py():
            raise pa.ArrowInvalid("a number beyond FLOAT")
    return cast


def _floats(column: pa.Array) -> list[pa.Array]:
    if pa.types.is_floating(column.type):
        return [column]
    if pa.types.is_struct(column.type):
        return [leaf for part in column.flatten() for leaf in _floats(part)]
    if pa.types.is_list(column.type):
        return _floats(column.flatten())
    return []
