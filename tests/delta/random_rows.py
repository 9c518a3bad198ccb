"""Random tables, as Hypothesis draws them: columns of every type that Delta has and Arrow writes, and hard values."""

from __future__ import annotations

import datetime as dt
import decimal
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

UTC = dt.UTC
_EXACT = decimal.Context(prec=40)
NAMES = ["a", "B", "snake_case", "with space", "dots.in.it", "é", "x-y", "`tick`", 'q"uote', "list", "element", "key"]

_MICROS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
_EPOCH = dt.datetime(1970, 1, 1)


def _moment(micros: int) -> dt.datetime:
    return _EPOCH + dt.timedelta(microseconds=micros)


def _whole(bits: int) -> st.SearchStrategy[int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.integers(low, high) | st.sampled_from([low, high, 0, -1])


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.builds(
    lambda head, tail: head * 31 + tail,
    st.sampled_from(["a", "é", "\U0010ffff"]),
    st.text(st.sampled_from("a\x7f\x80é\ufffd\U0010fffe\U0010ffff"), max_size=40),
)
_FLAT: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), _whole(8)),
    (pa.int16(), _whole(16)),
    (pa.int32(), _whole(32)),
    (pa.int64(), _whole(64)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats() | st.sampled_from([0.0, -0.0, float("nan"), float("inf"), 1e-7, 1e22])),
    (pa.string(), _TEXT),
    (pa.binary(), st.binary(max_size=6)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), _MICROS.map(lambda micros: _moment(micros).replace(tzinfo=UTC))),
    (pa.timestamp("us"), _MICROS.map(_moment)),
    *(
        (
            pa.decimal128(precision, scale),
            st.integers(-(10**precision) + 1, 10**precision - 1).map(
                lambda number, scale=scale: Decimal(number).scaleb(-scale, context=_EXACT)
            ),
        )
        for precision, scale in ((5, 2), (9, 9), (18, 0), (19, 4), (38, 10))
    ),
]


def _column(
    depth: int, names: tuple[str, ...] = tuple(NAMES)
) -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    flat = st.sampled_from(_FLAT)
    if depth == 0:
        return flat
    inner = _column(depth - 1, names)
    lists = inner.map(lambda each: (pa.list_(pa.field("element", each[0])), st.lists(st.none() | each[1], max_size=3)))
    maps = st.tuples(st.sampled_from([_FLAT[4], _FLAT[7]]), inner).map(
        lambda each: (
            pa.map_(each[0][0], each[1][0]),
            st.dictionaries(each[0][1], st.none() | each[1][1], max_size=3).map(lambda found: list(found.items())),
        )
    )
    structs = st.dictionaries(st.sampled_from(names), inner, min_size=1, max_size=3).map(_struct)
    return st.one_of(flat, flat, lists, maps, structs)


def _struct(fields: dict[str, tuple[pa.DataType, Any]]) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    kind = pa.struct([pa.field(name, each[0]) for name, each in fields.items()])
    return kind, st.fixed_dictionaries({name: st.none() | each[1] for name, each in fields.items()})


@st.composite
def tables(
    draw: st.DrawFn, *, columns_max: int = 4, rows_max: int = 8, depth: int = 2, names: list[str] = NAMES
) -> pa.Table:
    """A table of one or more chunks."""
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=columns_max, unique_by=str.lower))
    rows = draw(st.integers(1, rows_max))
    arrays, fields = [], []
    for name in chosen:
        kind, values = draw(_column(depth, tuple(names)))
        nulls = draw(st.sampled_from([st.none() | values, values, st.none()]))
        arrays.append(pa.array(draw(st.lists(nulls, min_size=rows, max_size=rows)), kind))
        fields.append(pa.field(name, kind))
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    cut = draw(st.integers(0, rows))
    return pa.concat_tables([table.slice(0, cut), table.slice(cut)])
