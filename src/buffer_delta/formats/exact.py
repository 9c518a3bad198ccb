"""Arrow columns in another type, without loss: what Arrow's own cast changes without a word is refused.

    numbers and booleans   to each other where they are equal, exactly: 1.0 is 1 and true; 5 is not true, 0.1 as a
                           DOUBLE is not 0.1 as a DECIMAL, nor as a FLOAT
    anything plain         to text; dates and times of the years 0 to 9999, in zones that are whole minutes from UTC:
                           of others Arrow writes anything
    text                   to a number by the rules for JSON (the nearest value, not zero or infinity; a whole number
                           exactly, in decimal digits), to true and false, to dates and times that it spells out
    dates and times        to each other where nothing is dropped: a time of day, a zone, a fraction of a second
    bytes and text         to each other, if they are UTF-8

Numbers and times are not each other: what 1700000000 counts, and from when, is not in the data.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from buffer_delta.formats.ddl import DECIMAL_PRECISION_MAX
from buffer_delta.formats.numbers import Mismatch, Number, to_decimal, to_float32, to_float64

_WHOLE = re.compile(r"[+-]?\d{1,4000}", re.ASCII)  # Python refuses to read longer ones
_DIGITS_MAX = 76  # of a decimal in text: Arrow overflows beyond, and crashes where an exponent is large
_SHOWN_MAX = 80  # characters of a value in a message
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
_LIST_VIEWS = (pa.ListViewType, pa.LargeListViewType)
_AS_IT_IS = frozenset(  # Arrow's cast checks what there is to check
    [
        *((family, "text") for family in ("number", "text", "bytes", "time")),
        *(("text", family) for family in ("bytes", "date", "instant", "wall")),
        *(("bytes", "bytes"), ("date", "date"), ("instant", "instant"), ("wall", "wall"), ("wall", "instant")),
    ]
)
_MOMENTS = ("date", "instant", "wall")
_TEXT_DAYS = (-719_528, 2_932_897)  # from 1970: the first of the year 0, and of the year 10,000
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_MINUTES_PER_DAY = 1440
_THERE_AND_BACK = frozenset([("date", "instant"), ("date", "wall"), ("instant", "date"), ("wall", "date")])


class NotExact(ValueError):
    """A value, or a whole type, that the other type cannot hold as it is."""


def cast_exactly(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The column in that type. Raises NotExact or ArrowException."""
    if types.is_run_end_encoded(column.type):  # which Arrow's own cast does not take
        column = pa.chunked_array([_plain(chunk) for chunk in column.chunks], column.type.value_type)
    if isinstance(column.type, _LIST_VIEWS):  # of which it makes damaged lists
        chunks = [_as_list(chunk) for chunk in column.chunks]
        column = pa.chunked_array(chunks, pa.large_list(column.type.value_type))
    for chunk in column.chunks:
        _check(chunk, kind)
    return column.cast(kind)


def _check(values: pa.Array, kind: pa.DataType) -> None:
    """Raise unless every value, at any depth, is the same in that type."""
    values = _plain(values)
    source = values.type
    if source == kind or types.is_null(source):
        return
    if isinstance(source, _LIST_VIEWS):
        raise NotExact(f"{source} inside of another type is not {kind}")
    if types.is_struct(kind) and types.is_struct(source):
        for field, inner in zip(source, values.flatten(), strict=True):
            _check(inner, kind.field(field.name).type)
    elif types.is_map(source) and types.is_list(kind) and not _is_pair(kind.value_type):
        raise NotExact(f"{source} is not {kind}: a pair is STRUCT<key, value>, in this order")
    elif types.is_map(source) and (types.is_map(kind) or types.is_list(kind)):
        _check(_pairs(values), _pair_type(kind) if types.is_map(kind) else kind.value_type)
    elif types.is_list(kind) and isinstance(source, _LISTS):
        _check(values.flatten(), kind.value_type)
    else:
        _check_leaf(values, kind)


def _as_list(values: pa.Array) -> pa.LargeListArray:
    valid = values.is_valid()
    sizes = np.where(valid.to_numpy(zero_copy_only=False), values.sizes.to_numpy(), 0)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
    return pa.LargeListArray.from_arrays(pa.array(offsets), values.flatten(), mask=pc.invert(valid))


def _pairs(values: pa.MapArray) -> pa.StructArray:
    """Keys and values of all its rows. Arrow cannot flatten a map, but a list."""
    return values.cast(pa.list_(_pair_type(values.type))).flatten()


def _pair_type(kind: pa.MapType) -> pa.DataType:
    return pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])


def _is_pair(kind: pa.DataType) -> bool:
    """Arrow's cast goes by place: with the names the other way round, keys would become values."""
    return bool(types.is_struct(kind)) and [field.name for field in kind] == ["key", "value"]


def _plain(values: pa.Array) -> pa.Array:
    """The values themselves, however they are stored."""
    if isinstance(values.type, pa.BaseExtensionType):
        return _plain(values.storage)
    if types.is_dictionary(values.type):
        return _plain(values.dictionary_decode())
    return _plain(pc.run_end_decode(values)) if types.is_run_end_encoded(values.type) else values


def _check_leaf(values: pa.Array, kind: pa.DataType) -> None:
    pair = (_family(values.type), _family(kind))
    if pair in _AS_IT_IS:
        return
    if pair[0] in _MOMENTS and pair[1] == "text":
        _check_moments(values, kind)
    elif pair in _THERE_AND_BACK:
        _check_equal(values, values.cast(kind).cast(values.type), kind)
    elif pair == ("number", "number"):
        _check_numbers(values, kind)
    elif pair == ("text", "number"):
        _check_texts(values, kind)
    else:
        raise NotExact(f"{values.type} is not {kind}")


def _family(kind: pa.DataType) -> str | None:
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind):
        return "number"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "text"
    if types.is_binary(kind) or types.is_large_binary(kind) or kind == pa.binary_view() or _is_fixed(kind):
        return "bytes"
    if types.is_timestamp(kind):
        return "instant" if kind.tz else "wall"
    return "date" if types.is_date(kind) else "time" if types.is_time(kind) else None


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(types.is_fixed_size_binary(kind))


def _check_numbers(values: pa.Array, kind: pa.DataType) -> None:
    if types.is_integer(kind) or (types.is_integer(values.type) and not types.is_boolean(kind)):
        return  # Arrow's cast checks these
    if types.is_decimal(kind) and types.is_decimal(values.type) and not _may_overflow(values.type, kind):
        return  # the same
    _check_equal(values, values.cast(kind), kind)


def _may_overflow(source: pa.DataType, kind: pa.DataType) -> bool:
    """Whether more digits behind the point may make a number one of more than 38: beyond 128 bits Arrow's cast begins
    again at the other end, and what comes of it may well be a number that fits."""
    more = kind.scale - source.scale
    return bool(more > 0 and source.precision + more > DECIMAL_PRECISION_MAX)


def _check_moments(values: pa.Array, kind: pa.DataType) -> None:
    """Of years beyond those with four digits Arrow writes another year, or that it is out of range."""
    given = values.drop_null()
    numbers = given.cast(pa.int32() if types.is_date32(given.type) else pa.int64())
    per_day = 1 if types.is_date32(given.type) else _PER_DAY["ms" if types.is_date64(given.type) else given.type.unit]
    bounds = pc.min_max(numbers)
    for bound in (bounds["min"].as_py(), bounds["max"].as_py()):
        if bound is not None and not _TEXT_DAYS[0] <= bound // per_day < _TEXT_DAYS[1]:
            raise NotExact(f"{kind} cannot hold {bound} ({values.type}), which is outside of the years 0 to 9999")
    if types.is_timestamp(given.type) and given.type.tz:
        _check_local(given, kind, per_day)


def _check_local(values: pa.Array, kind: pa.DataType, per_day: int) -> None:
    """Arrow writes what clocks in the zone show, even where that is beyond 64 bits, and how far they are from UTC, but
    not in seconds: many zones were not whole minutes away before there was railway time."""
    local = pc.local_timestamp(values)
    shown, given = (times.cast(pa.int64()).to_numpy(zero_copy_only=False) for times in (local, values))
    offsets = shown - given  # right even where `shown` began again at the other end of 64 bits
    wrong = np.flatnonzero((offsets % (per_day // _MINUTES_PER_DAY) != 0) | ((offsets > 0) != (shown > given)))
    if len(wrong):
        utc = values.slice(int(wrong[0]), 1).cast(pa.timestamp(values.type.unit, "UTC")).cast(pa.string())[0]
        raise NotExact(f"{kind} cannot hold {utc} in local time with hours and minutes from UTC ({values.type})")


def _check_texts(values: pa.Array, kind: pa.DataType) -> None:
    if types.is_integer(kind):  # Arrow reads all of the text, or refuses it; but 0xFF is -1 to it, in eight bits
        for text in values.drop_null().to_pylist():
            if "x" in text or "X" in text:
                raise NotExact(f"{kind} cannot hold {text[:_SHOWN_MAX]!r}")
        return
    if types.is_boolean(kind):
        _check_equal(values, values.cast(kind).cast(values.type), kind)
        return
    for text in values.drop_null().to_pylist():
        try:
            _read_number(text, kind)
        except Mismatch as error:
            raise NotExact(f"{kind} cannot hold {text[:_SHOWN_MAX]!r}") from error


def _read_number(text: str, kind: pa.DataType) -> Any:
    """Raises Mismatch."""
    if types.is_decimal(kind):
        number = to_decimal(text, kind)
        if len(text) > _DIGITS_MAX or ("e" in text.lower() and len(text.lower().partition("e")[2]) > 3):
            raise Mismatch
        return number
    if not any(sign.isdigit() for sign in text):
        return None  # `inf` and `nan`, or no number at all: Arrow says
    try:
        value = int(text) if _WHOLE.fullmatch(text) else Number(text)
    except ValueError as error:
        raise Mismatch from error
    return to_float32(value) if kind == pa.float32() else to_float64(value)


def _check_equal(values: pa.Array, made: pa.Array, kind: pa.DataType) -> None:
    """Python compares numbers of all kinds exactly; numpy does so for floats, and faster."""
    given, got = values.drop_null(), made.drop_null()
    if given.type == got.type:  # there and back; Python has no dates beyond the year 9999, Arrow has
        wrong = np.flatnonzero(pc.not_equal(given, got).to_numpy(zero_copy_only=False))
    elif types.is_floating(given.type) and types.is_floating(got.type):
        one, other = given.to_numpy(zero_copy_only=False), got.to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero((one != other) & ~(np.isnan(one) & np.isnan(other)))
    else:
        pairs = zip(given.to_pylist(), got.to_pylist(), strict=True)
        wrong = np.flatnonzero([a != b and (a == a or b == b) for a, b in pairs])  # NaN is not equal to itself
    if len(wrong):
        shown = given.slice(int(wrong[0]), 1).cast(pa.string())[0]
        raise NotExact(f"{kind} cannot hold {str(shown)[:_SHOWN_MAX]} ({values.type})")
