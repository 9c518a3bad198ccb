"""json: what a column takes, and that the fast way and the slow one agree on it."""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from buffer_delta.formats import JsonFormat
from buffer_delta.formats.json import fast
from buffer_delta.formats.json import parse as json_parse
from buffer_delta.formats.json.reading import BadRecord, load, to_text
from buffer_delta.formats.json.records import Columns
from tests.formats.format_support import binary, by_entry, parse
from tests.formats.json_records import NOT_RECORDS, RECORDS

TYPED = JsonFormat(
    "b BOOLEAN, i8 TINYINT, i BIGINT, f FLOAT, d DOUBLE, dec DECIMAL(10, 2), s STRING, bin BINARY, dt DATE, "
    "t TIMESTAMP, n TIMESTAMP_NTZ, l ARRAY<INT>, st STRUCT<x: INT, dt: DATE>, ls ARRAY<STRUCT<x: INT>>, "
    "m MAP<STRING, INT>, lb ARRAY<BINARY>, ld ARRAY<DOUBLE>, sf STRUCT<x: FLOAT, y: ARRAY<DECIMAL(10, 2)>>"
)
FITTING = {
    "b": [("true", True)],
    "i8": [("-128", -128), ("127", 127)],
    "i": [("9223372036854775807", 2**63 - 1), ("-0", 0)],
    "f": [
        *(("1.5", 1.5), ("3", 3.0), ("33554432", 2.0**25), ("16777217.0", 2.0**24), ("NaN", float("nan"))),
        # In the middle of two floats once it was rounded to 64 bits, and not before.
        *(("1.00000005960464477539062500001", 1 + 2.0**-23), ("1.00000017881393432617187499999", 1 + 2.0**-23)),
    ],
    "d": [
        ("0.1", 0.1),
        ("1e5", 1e5),
        ("9007199254740992", 2.0**53),
        ("18446744073709551616", 2.0**64),
        ("9007199254740993.0", 2.0**53),
        ("1e-300", 1e-300),
        ("0e-400", 0.0),
        ("Infinity", float("inf")),
    ],
    "dec": [
        ("1.10", Decimal("1.10")),
        ('"12.5"', Decimal("12.50")),
        ("5", Decimal("5.00")),
        ("1e2", Decimal("100.00")),
    ],
    "s": [
        ('"2024-01-02T03:04:05Z"', "2024-01-02T03:04:05Z"),
        ("1.10", "1.10"),
        ("true", "true"),
        ('{"k": [1]}', '{"k":[1]}'),
    ],
    "bin": [('"aGk="', b"hi"), ('""', b"")],
    "dt": [('"2024-02-29"', "2024-02-29")],
    "t": [
        ('"2024-01-02T03:04:05Z"', "2024-01-02 03:04:05+00:00"),
        ('"2024-01-02T03:04:05+02:00"', "2024-01-02 01:04:05+00:00"),
        ('"2024-01-02 03:04:05.123456"', "2024-01-02 03:04:05.123456+00:00"),
    ],
    "n": [('"2024-01-02T03:04:05"', "2024-01-02 03:04:05")],
    "l": [("[1, null, 2]", [1, None, 2]), ("[]", [])],
    "st": [
        ('{"x": 1, "dt": "2024-02-29"}', "{'x': 1, 'dt': datetime.date(2024, 2, 29)}"),
        ("{}", {"x": None, "dt": None}),
    ],
    "ls": [('[{"x": 1}, null, {}]', [{"x": 1}, None, {"x": None}])],
    "m": [('{"k": 1, "z": null}', [("k", 1), ("z", None)])],
    "lb": [('["aGk="]', [b"hi"])],
    "ld": [("[1, null, 2.5, 1e20]", [1.0, None, 2.5, 1e20]), ("[]", [])],
    "sf": [('{"x": 0, "y": [1e2]}', {"x": 0.0, "y": [Decimal("100.00")]})],
}
MISFITTING = {
    "b": ["1", '"true"'],
    "i8": ["128", "1.0", '"1"', "true"],
    "i": ["9223372036854775808", "1e2", "1.5", "[]"],
    "f": ["1e39", '"1"', "true", "16777217", "1e-50", "-1e-50", "0." + "0" * 50 + "1", "9" * 400],
    "d": ["1e400", '"NaN"', "{}", "1e-400", "9007199254740993", "-9007199254740993", "18446744073709551615"],
    "dec": [
        "1.101",
        "123456789.5",
        '"x"',
        '"NaN"',
        "true",
        "1e-210",
        '"1e-210"',
        "1e-10000000",
        "1e10000000",
        '"1\\u0065-10000000"',
        "0." + "0" * 300 + "1",
        "1" + "0" * 75,
    ],
    "bin": ['"?"', "5", '"a"', '"aGl="'],
    "dt": ['"2024-02-30"', '"yesterday"', "5"],
    "t": ['"2024-01-02T25:00:00Z"', "1700000000", '"x"'],
    "n": ['"2024-01-02T03:04:05Z"'],
    "l": ['{"0": 1}', '[1, "x"]', "5"],
    "st": ["[]", '{"x": "y"}', '{"dt": "x"}', '"x"'],
    "ls": ['[{"x": "y"}]', "[5]"],
    "m": ["[]", '{"k": "x"}'],
    "lb": ['["?"]'],
    "ld": ["[0, 1e-400]", "[1.5, 9007199254740993]", "[[1]]"],
    "sf": ['{"x": 16777217}', '{"x": 1e-50}', '{"y": [1, 1e-210]}'],
}


@pytest.mark.parametrize("column", FITTING)
def test_should_give_each_column_what_it_takes(column: str) -> None:
    for text, expected in FITTING[column]:
        for entries in ([f'{{"{column}": {text}}}'], [f'{{"{column}": {text}}}', '{"b": true}', "bad"]):
            found = by_entry(parse(TYPED, *entries), len(entries))[0]
            assert isinstance(found, dict)
            assert found["_rescued_data"] is None
            value = found[column]
            assert value == expected or str(value) == str(expected), text
            assert all(found[name] is None for name in TYPED.schema.names if name != column)


@pytest.mark.parametrize("column", MISFITTING)
def test_should_rescue_what_a_column_cannot_take(column: str) -> None:
    strict = JsonFormat(
        pa.schema(list(TYPED.schema)[:-1]), rescued_data=None, on_mismatch="dead_letter", unknown_fields="ignore"
    )
    for text in MISFITTING[column]:
        entry = f'{{"{column}": {text}, "s": "kept"}}'
        (found,) = parse(TYPED, entry).rows.to_pylist()
        assert found[column] is None, text
        assert found["s"] == "kept"
        assert found["_rescued_data"] == to_text(load(f'{{"{column}": {text}}}'.encode()))
        (bad,) = parse(strict, entry).bad
        assert f"column '{column}'" in bad[1]


def test_should_look_singly_only_at_numbers_that_may_have_been_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bytes] = []

    def watch(entry: bytes) -> dict[str, Any]:
        looked.append(entry)
        return load(entry)

    monkeypatch.setattr(json_parse, "load", watch)
    entries = [f'{{"d":{i % 3},"l":[0.0,{i}],"c":{i}.5,"u":"3e-4, 3e4"}}' for i in range(5000)]
    entries[10] = '{"d":9007199254740993}'
    entries[20] = '{"l":[0.5,1e-400]}'
    entries[30] = '{"c":1e-210}'
    entries[40] = '{"d":1e300}'
    form = JsonFormat("d DOUBLE, l ARRAY<DOUBLE>, c DECIMAL(10, 2), u STRING")
    found = by_entry(parse(form, *entries), len(entries))
    assert sorted(looked) == sorted(entries[i].encode() for i in (10, 20, 30, 40))
    rescued = {i: one["_rescued_data"] for i, one in found.items() if one["_rescued_data"]}  # type: ignore[index]
    assert rescued == {i: entries[i] for i in (10, 20, 30)}
    assert found[40]["d"] == 1e300  # type: ignore[index]  # a row, not an error


@pytest.mark.parametrize(
    "value", ['"oops"', "5", "[1]", "true", '{"p": "oops"}', '{"p": [1]}', '{"p": {"k": [1]}, "q": 5}']
)
@pytest.mark.parametrize("kind", ["STRUCT<p: MAP<STRING, STRING>>", "ARRAY<STRUCT<p: MAP<STRING, STRUCT<x: INT>>>>"])
def test_should_rescue_other_kinds_of_values_from_columns_with_maps(kind: str, value: str) -> None:
    form = JsonFormat(f"e {kind}, a INT")
    entries = ['{"a": 1}', f'{{"a": 2, "e": {value}}}', '{"a": 3, "z": 1}']
    found = by_entry(parse(form, *entries), 3)
    assert [found[i]["a"] for i in range(3)] == [1, 2, 3]  # type: ignore[index]  # rows, not errors
    expected = slowly(form, entries[1].encode())
    assert repr(found[1]) == repr(expected)


def test_should_rescue_fields_without_a_column_just_as_they_were_written() -> None:
    form = JsonFormat("a INT, s STRUCT<x: INT>, l ARRAY<STRUCT<x: INT>>")
    entries = {
        '{"a": 1, "z": 1.10}': '{"z":1.10}',
        '{"a": 1, "z": 123456789012345678901234567890}': '{"z":123456789012345678901234567890}',
        '{"a": 1, "z": null}': None,
        '{"a": 1, "z": []}': '{"z":[]}',
        '{"a": 1, "z": {"k": null, "u": "\\u00e4"}}': '{"z":{"k":null,"u":"ä"}}',
        '{"s": {"x": 1, "y": 2.0}}': '{"s":{"y":2.0}}',
        '{"l": [{"x": 1}, {"x": 2, "y": true}, null]}': '{"l":[null,{"y":true},null]}',
        '{"A": 5}': '{"A":5}',
        '{"": 5}': '{"":5}',
    }
    for batch in (list(entries), [*entries, "bad"], [e for e in entries for _ in range(50)]):
        found = by_entry(parse(form, *batch), len(batch))
        for index, entry in enumerate(batch):
            if entry != "bad":
                assert found[index]["_rescued_data"] == entries[entry]  # type: ignore[index]  # a row, not an error
    ignoring = JsonFormat("a INT", unknown_fields="ignore")
    assert parse(ignoring, '{"a": 1, "z": 1.10}', '{"a": "x", "z": 1}').rows.to_pylist() == [
        {"a": 1, "_rescued_data": None},
        {"a": None, "_rescued_data": '{"a":"x"}'},
    ]


def test_should_rescue_unknown_fields_of_changing_kinds() -> None:
    form = JsonFormat("a INT")
    entries = [f'{{"a": {i}, "z": {value}}}' for i, value in enumerate(["1", '"x"', "[1]", "{}", "true"] * 100)]
    found = by_entry(parse(form, *entries), 500)
    assert [found[i]["a"] for i in range(500)] == list(range(500))  # type: ignore[index]  # rows, not errors
    assert found[2] == {"a": 2, "_rescued_data": '{"z":[1]}'}


def test_should_set_aside_records_that_lack_a_required_column() -> None:
    form = JsonFormat("a INT NOT NULL, b INT")
    found = by_entry(parse(form, '{"a": 1}', '{"b": 1}', '{"a": null}', '{"a": "x"}', '{"a": 2, "b": "y"}'), 5)
    assert [isinstance(found[i], str) for i in range(5)] == [False, True, True, True, False]
    assert "column 'a', which is NOT NULL" in str(found[1])
    assert form.schema.field("a").nullable, "the table's column stays nullable"


def test_should_rescue_bytes_that_are_like_base64() -> None:
    text = base64.b64encode(b"\x00\xff").decode()
    (found,) = parse(JsonFormat("b BINARY"), f'{{"b": "{text}"}}').rows.to_pylist()
    assert found == {"b": b"\x00\xff", "_rescued_data": None}


# json: both ways agree

_numbers = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["1.10", "-0", "-0.0", "1e5", "1E+2", "0.1e-7", "1e400", "NaN", "-Infinity", "3", "300", "70000"]),
    st.sampled_from(
        ["16777217", "9007199254740993", "18446744073709551615", "1e-50", "1e-400", "1e-210", "-1E-99999999"]
    ),
)
_texts = st.one_of(
    st.text(max_size=12).map(json.dumps),
    st.text(max_size=12).map(lambda s: json.dumps(s, ensure_ascii=False)),
    st.sampled_from(
        [
            *('"2024-01-02"', '"2024-01-02T03:04:05Z"', '"2024-01-02 03:04:05.5"', '"2024-01-02T03:04:05+0130"'),
            *('"2024-01-02T03:04"', '"2024-01-02T03"', '"10000-01-01"', '"2024-13-01"', '"0001-01-01"', '"aGk="'),
            *('"2024-01-02T03:04:05.123456789Z"', '"2024-01-02T03:04:05 Z"', '"2024-01-02T24:00:00Z"'),
            *('"1.5"', '"1.123456789"', '" 1"', '"+1.5"', '".5"', '"5."', '"1e2"', '"-"', '"}{"', '"} x"'),
        ]
    ),
)
_values = st.recursive(
    st.one_of(_numbers, _texts, st.sampled_from(["null", "true", "false"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda v: "[" + ", ".join(v) + "]"),
        st.dictionaries(st.sampled_from(["x", "y", "dt", "k"]), inner, max_size=3).map(
            lambda d: "{" + ",".join(f'"{k}":{v}' for k, v in d.items()) + "}"
        ),
    ),
    max_leaves=5,
)
_records = st.dictionaries(st.sampled_from([*TYPED.schema.names[:-1], "unknown", "other"]), _values, max_size=6).map(
    lambda d: ("{ " + " , ".join(f'"{k}" : {v}' for k, v in d.items()) + "}").encode()
)
_entries = st.one_of(
    _records, _records, _records, st.binary(max_size=8), st.sampled_from([*NOT_RECORDS[:-3], *RECORDS])
)


def slowly(form: JsonFormat, entry: bytes) -> dict[str, Any] | str:
    """What `json_records` alone makes of an entry."""
    columns = pa.schema(list(form.schema)[:-1])
    try:
        converted = Columns(columns).convert([load(entry)], [len(entry)])
    except BadRecord as error:
        return str(error)
    (found,) = pa.Table.from_arrays(converted.arrays, schema=columns).to_pylist()
    (stray,) = converted.stray
    return {**found, "_rescued_data": to_text(stray) if stray else None}


WITHOUT_MAPS = JsonFormat(pa.schema([f for f in TYPED.schema if f.name not in ("m", "lb", "_rescued_data")]))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_entries, min_size=1, max_size=6), st.booleans())
def test_should_give_the_same_rows_fast_and_slowly(entries: list[bytes], maps: bool) -> None:
    form = TYPED if maps else WITHOUT_MAPS
    found = by_entry(parse(form, *entries), len(entries))
    for index, entry in enumerate(entries):
        expected = slowly(form, entry)
        if isinstance(expected, str):
            assert isinstance(found[index], str), (entry, found[index])
        else:
            assert repr(found[index]) == repr(expected), entry  # by repr: NaN is not equal to itself


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(_entries, st.binary(max_size=20)), max_size=8))
def test_should_never_let_the_parser_see_two_records_in_an_entry(entries: list[bytes]) -> None:
    marked = set(fast.suspects(binary(*entries)).tolist())
    for index, entry in enumerate(entries):
        if index not in marked:
            text = entry.strip(b" \t\r\n")
            assert text.startswith(b"{")
            assert text.endswith(b"}")
            assert b"\x00" not in entry
