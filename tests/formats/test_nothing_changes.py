"""For random values and random types: what is in the rows is exactly the source, or the source is set aside.

The judge is `oracle`, which shares nothing with the formats.
"""

from __future__ import annotations

import base64
import json
import math
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from buffer_delta.formats import ArrowFormat, JsonFormat, RawFormat, TextFormat
from tests.formats.format_support import binary, by_entry, evolve, parse, stream
from tests.formats.oracle import SCALARS, accounted, exact

EXAMPLES = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
NAMES = st.sampled_from(["a", "b", "A", "ſ", "s", "x y", "", "n" * 300, "k\\u0065y"])


def _near_the_middle(number: float, side: int) -> str:
    """As far from one float of 32 bits as from the next one, but for so little that 64 bits do not show it."""
    this, following = Decimal(number), Decimal(float(np.nextafter(np.float32(number), np.float32(np.inf))))
    with localcontext(prec=300):
        return format((this + following) / 2 + side * (following - this) * Decimal("1e-20"), "e")


NUMBERS = st.one_of(
    st.builds(_near_the_middle, st.floats(-(2.0**100), 2.0**100, width=32), st.sampled_from([-1, 0, 1])),
    st.integers(-(2**70), 2**70).map(str),
    st.integers(-300, 300).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(-(10**9), 10**9, places=3).map(str),
    st.tuples(st.integers(-99, 99), st.sampled_from("eE"), st.integers(-420, 420)).map(lambda p: f"{p[0]}{p[1]}{p[2]}"),
    st.sampled_from(
        [
            *("-0", "-0.0", "0e0", "1E400", "-1e-400", "1e-10000000", "1e10000000", "NaN", "Infinity", "-Infinity"),
            *("9" * 5000, "0." + "3" * 5000, "9007199254740993", "18446744073709551615", "1.10", "1e-210"),
        ]
    ),
)
STRINGS = st.one_of(
    st.text(max_size=5),
    st.binary(max_size=4).map(lambda b: base64.b64encode(b).decode()),
    st.dates().map(str),
    st.datetimes().map(lambda moment: moment.isoformat()),
    st.datetimes().map(lambda moment: moment.isoformat() + "+02:00"),
    NUMBERS,
    st.sampled_from(['":', '": null', "a : b", "{", "},", "null", "aGl=", "2024-02-30"]),
).map(json.dumps)


def _object(pairs: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f'"{name}": {value}' for name, value in dict(pairs).items()) + "}"


SCALAR_VALUES = st.one_of(NUMBERS, STRINGS, st.sampled_from(["null", "true", "false"]))
VALUES = st.recursive(
    SCALAR_VALUES,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: "[" + ", ".join(items) + "]")
        | st.lists(st.tuples(NAMES, inner), max_size=3).map(_object)
    ),
    max_leaves=6,
)
KINDS = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.one_of(
        inner.map(lambda kind: f"ARRAY<{kind}>"),
        inner.map(lambda kind: f"MAP<STRING, {kind}>"),
        st.lists(inner, min_size=1, max_size=2).map(
            lambda kinds: "STRUCT<" + ", ".join(f"{n}: {k}" for n, k in zip("ab", kinds, strict=False)) + ">"
        ),
    ),
    max_leaves=3,
)
RECORDS = st.lists(st.lists(st.tuples(NAMES, VALUES), max_size=3).map(_object), min_size=1, max_size=5)


def check(form: Any, records: list[str]) -> None:
    found = by_entry(parse(form, *records), len(records))
    for index, record in enumerate(records):
        row = found[index]
        assert isinstance(row, dict), (record, row)
        rest = exact(row["_rescued_data"] or "{}")
        source = exact(record)
        for field in form.schema:
            if field.name != "_rescued_data":
                got = accounted(source.get(field.name), field.type, row[field.name], rest.get(field.name))
                assert got, (record, field, row)
        for name, value in source.items():
            assert name in form.schema.names or rest.get(name) == value, (record, name, row)


@EXAMPLES
@given(KINDS, KINDS, RECORDS)
def test_should_hold_what_records_say_or_rescue_it(one: str, other: str, records: list[str]) -> None:
    check(JsonFormat(f"a {one}, b {other}"), records)


@EXAMPLES
@given(KINDS, st.lists(VALUES, min_size=1, max_size=4))
def test_should_take_any_value_for_any_column(kind: str, values: list[str]) -> None:
    check(JsonFormat(f"a {kind}"), [f'{{"a":{value}}}' for value in values])


@EXAMPLES
@given(RECORDS, st.integers(0, 3))
def test_should_hold_what_records_say_in_columns_that_follow_them(records: list[str], seen: int) -> None:
    check(evolve(JsonFormat(), None, *records[seen:]), records)


@EXAMPLES
@given(st.lists(st.binary(max_size=8) | st.text(max_size=4).map(str.encode), max_size=6))
def test_should_hold_bytes_and_texts_as_they_are(entries: list[bytes]) -> None:
    assert RawFormat().parse(binary(*entries)).rows["value"].to_pylist() == entries
    found = by_entry(parse(TextFormat(), *entries), len(entries))
    for index, entry in enumerate(entries):
        row = found[index]
        if isinstance(row, dict):
            assert row["value"].encode() == entry
        else:
            assert entry.decode(errors="replace").encode() != entry


ARROW_SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2)),
    (pa.float64(), st.floats(allow_nan=False) | st.integers(-9, 9).map(float)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.decimal128(20, 2), st.decimals(-999, 999, places=2)),
    (pa.decimal256(60, 3), st.decimals(-999, 999, places=3)),
]
WRAPS = ("plain", "list", "struct", "map", "dictionary", "runs", "list view", "fixed")


@st.composite
def columns(draw: st.DrawFn) -> tuple[str, pa.Array, list[Any]]:
    kind, values = draw(st.sampled_from(ARROW_SCALARS))
    wrap = draw(st.sampled_from(WRAPS))
    held = draw(st.lists(st.none() | values, min_size=1, max_size=4))
    plain = pa.array(held, kind)
    count = len(plain)
    match wrap:
        case "list":
            return wrap, pa.ListArray.from_arrays([0, count], plain), held
        case "list view":
            return wrap, pa.ListViewArray.from_arrays([0], [count], plain), held
        case "fixed":
            return wrap, pa.FixedSizeListArray.from_arrays(plain, count), held
        case "struct":
            return wrap, pa.StructArray.from_arrays([plain], ["a"]), held
        case "map":
            return wrap, pa.MapArray.from_arrays([0, count], pa.array([f"k{i}" for i in range(count)]), plain), held
        case "dictionary":
            return wrap, plain.dictionary_encode(), held
        case "runs":
            ends = pa.array(range(1, count + 1), pa.int32())
            return wrap, pa.RunEndEncodedArray.from_arrays(ends, plain), held
    return wrap, plain, held


TARGETS = st.sampled_from(["BOOLEAN", "TINYINT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(5, 1)", "DECIMAL(38, 3)"])


@EXAMPLES
@given(columns(), TARGETS)
def test_should_hold_what_streams_hold_or_set_them_aside(made: tuple[str, pa.Array, list[Any]], target: str) -> None:
    wrap, array, held = made
    kind = {"list": "ARRAY<{}>", "list view": "ARRAY<{}>", "fixed": "ARRAY<{}>", "struct": "STRUCT<a: {}>"}
    kind |= {"map": "MAP<STRING, {}>"}
    parsed = parse(ArrowFormat(f"x {kind.get(wrap, '{}').format(target)}"), stream(pa.table({"x": array})))
    if parsed.bad:
        assert parsed.rows.num_rows == 0
        return
    rows = parsed.rows["x"].to_pylist()
    if "<" in kind.get(wrap, ""):
        (rows,) = ([row["a"] for row in rows],) if wrap == "struct" else rows
    found = [value for _, value in rows] if wrap == "map" else rows
    for source, got in zip(held, found, strict=True):
        assert (source is None) == (got is None)
        assert source is None or got == source or (math.isnan(got) and math.isnan(source))
