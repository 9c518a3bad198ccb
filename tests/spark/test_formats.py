"""Formats: what becomes of payload bytes. No Spark session is needed here."""

from __future__ import annotations

import base64
import json
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, StringType, StructField, StructType, TimestampNTZType, TimestampType

from buffer.errors import InvalidConfig
from buffer_delta.formats import (
    ArrowFormat,
    Format,
    JsonFormat,
    Parsed,
    RawFormat,
    TextFormat,
    arrow_schema,
    json_fast,
    json_format,
    merge_schemas,
    resolve_format,
    settle,
)
from buffer_delta.formats.base import chunks
from buffer_delta.formats.ddl import parse_ddl
from buffer_delta.formats.json_records import BadRecord, Columns, load, to_text
from buffer_delta.formats.plain import ROWS_PER_ENTRY_MAX


def parse(form: Format, *entries: bytes | str) -> Parsed:
    return form.parse(binary(*entries))


def binary(*entries: bytes | str) -> pa.BinaryArray:
    return pa.array([e.encode() if isinstance(e, str) else e for e in entries], pa.binary())


def by_entry(parsed: Parsed, count: int) -> dict[int, dict[str, Any] | str]:
    """What became of each entry: its row or its error. Fails if an entry has both, none, or two."""
    entries = np.arange(parsed.rows.num_rows) if parsed.entries is None else parsed.entries
    found: dict[int, dict[str, Any] | str] = {}
    for index, row in [*zip(entries.tolist(), parsed.rows.to_pylist(), strict=True), *parsed.bad]:
        assert index not in found
        found[index] = row
    assert sorted(found) == list(range(count))
    return found


# Names and options


def test_should_make_formats_from_configuration() -> None:
    assert isinstance(resolve_format("raw"), RawFormat)
    assert isinstance(resolve_format("text"), TextFormat)
    assert resolve_format("json").evolving
    assert resolve_format({"type": "json", "schema": "a INT"}).schema.names == ["a", "_rescued_data"]
    form = JsonFormat("a INT")
    assert resolve_format(form) is form


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("jsn", "raw, text, json, arrow"),
        (None, "raw, text, json, arrow"),
        (7, "raw, text, json, arrow"),
        ({"schema": "a INT"}, "raw, text, json, arrow"),
        ({"type": "json", "shema": "a INT"}, "no option 'shema'; it has: schema, rescued_data"),
        ({"type": "raw", "schema": "a INT"}, "it has: none"),
        ({"type": "json", "schema": "a WRONG"}, "unknown type"),
        ({"type": "json", "schema": 5}, "DDL string"),
        ({"type": "json", "schema": "a INT", "on_mismatch": "x"}, "'rescue' or 'dead_letter'"),
        ({"type": "json", "schema": "a INT", "rescued_data": None}, "leaves no column"),
        ({"type": "json", "schema": "a INT, _rescued_data STRING"}, "rename"),
        ({"type": "json", "unknown_fields": "ignore"}, "must stay 'rescue'"),
        ({"type": "json", "on_mismatch": "dead_letter"}, "must stay 'rescue'"),
    ],
)
def test_should_refuse_what_is_no_format(spec: Any, told: str) -> None:
    with pytest.raises(InvalidConfig, match=told):
        resolve_format(spec)


def test_should_name_its_configuration_by_a_stable_digest() -> None:
    assert JsonFormat("a INT").digest() == JsonFormat("`a` int").digest() == JsonFormat("a INTEGER").digest()
    assert JsonFormat("a INT").digest() == "86469ef35a36a567", "plans in ledgers hold it: it must never change"
    different = [
        RawFormat(),
        TextFormat(),
        ArrowFormat(),
        JsonFormat(),
        JsonFormat("a INT"),
        JsonFormat("a INT NOT NULL"),
        JsonFormat("a BIGINT"),
        JsonFormat("a INT", unknown_fields="ignore"),
        JsonFormat("a INT", on_mismatch="dead_letter"),
        JsonFormat("a INT", rescued_data="rest"),
    ]
    assert len({form.digest() for form in different}) == len(different)
    evolved = JsonFormat().with_schema(arrow_schema("a INT"))
    assert evolved.digest() == JsonFormat().digest(), "what it has grown to is no configuration"


def test_should_pickle() -> None:
    for form in (RawFormat(), TextFormat(), ArrowFormat("a INT"), JsonFormat("a INT, m MAP<STRING, INT>")):
        copy = pickle.loads(pickle.dumps(form))
        assert copy == form
        assert copy.schema == form.schema


# Schemas


def test_should_read_schemas_in_three_forms() -> None:
    spark = StructType(
        [
            StructField("a", IntegerType(), nullable=False),
            StructField("t", TimestampType()),
            StructField("n", TimestampNTZType()),
            StructField("s", StringType()),
        ]
    )
    arrow = pa.schema(
        [
            pa.field("a", pa.int32(), nullable=False),
            ("t", pa.timestamp("ns", "Europe/Berlin")),
            ("n", pa.timestamp("ms")),
            ("s", pa.large_string()),
        ]
    )
    ddl = "a INT NOT NULL, t TIMESTAMP, n TIMESTAMP_NTZ, s STRING"
    assert arrow_schema(ddl) == arrow_schema(spark) == arrow_schema(arrow)


def test_should_read_nested_types() -> None:
    found = parse_ddl("`we ird`: array<struct<a:int, b: decimal(10,2) NOT NULL>>, m MAP<STRING,map<string,double>>")
    assert found.names == ["we ird", "m"]
    assert found.field(0).type.value_type.field(1).type == pa.decimal128(10, 2)
    assert found.field(1).type.item_type == pa.map_(pa.string(), pa.float64())
    assert parse_ddl("STRUCT<a: INT>") == parse_ddl("a INT COMMENT 'it''s'")


@pytest.mark.parametrize(
    "wrong",
    [
        *("", "a", "a foo", "a int,", "a int b int", "a array<int", "a int, A string", "a decimal(39)", "<"),
        *("a variant", "a map<int, int>", "a decimal(3, 4)", "a int comment x", "a varchar(x)", "a int not x"),
    ],
)
def test_should_refuse_a_schema_that_makes_no_sense(wrong: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        arrow_schema(wrong)
    assert caught.value.key == "schema"


def test_should_refuse_types_that_cannot_be_loaded() -> None:
    for kind in (pa.uint64(), pa.float16(), pa.duration("s"), pa.struct([]), pa.decimal256(50, 0)):
        with pytest.raises(InvalidConfig, match="column 'x'"):
            arrow_schema(pa.schema([("x", kind)]))


# raw, text, arrow


def test_should_keep_raw_payloads() -> None:
    parsed = parse(RawFormat(), b"", b"\x00\xff", b"x")
    assert parsed.rows["value"].to_pylist() == [b"", b"\x00\xff", b"x"]
    assert (parsed.entries, parsed.bad) == (None, [])


def test_should_set_aside_text_that_is_none() -> None:
    found = by_entry(parse(TextFormat(), "ä", b"\xff", "", b"a\xc3", b"\xed\xa0\x80"), 5)
    assert found[0] == {"value": "ä"}
    assert found[2] == {"value": ""}
    assert found[1] == "not UTF-8: invalid start byte at byte 0"
    assert "not UTF-8" in str(found[3])
    assert "not UTF-8" in str(found[4])
    assert parse(TextFormat(), "a", "b").entries is None


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_should_read_arrow_streams_of_several_rows() -> None:
    one = stream(pa.table({"a": pa.array([1, 2, 3], pa.int32())}))
    two = stream(pa.table({"b": pa.array(["x"]), "a": pa.array([4], pa.int64())}))
    empty = stream(pa.table({"a": pa.array([], pa.int32())}))
    parsed = parse(ArrowFormat("a BIGINT, b STRING"), one, b"no stream", empty, two, two[:-20])
    assert parsed.rows.to_pylist() == [
        {"a": 1, "b": None},
        {"a": 2, "b": None},
        {"a": 3, "b": None},
        {"a": 4, "b": "x"},
    ]
    assert parsed.entries is not None
    assert parsed.entries.tolist() == [0, 0, 0, 3]
    assert [index for index, _ in parsed.bad] == [1, 4]


def test_should_set_aside_arrow_streams_that_do_not_fit() -> None:
    form = ArrowFormat("a INT")
    parsed = parse(
        form,
        stream(pa.table({"a": [1], "z": [2]})),
        stream(pa.table({"a": [2**40]})),
        stream(pa.table({"a": ["x"]})),
        stream(pa.table({"a": [5]})),
    )
    assert parsed.rows["a"].to_pylist() == [5]
    assert [index for index, _ in parsed.bad] == [0, 1, 2]
    assert "['a', 'z']" in parsed.bad[0][1]


def test_should_not_believe_a_stream_that_claims_rows_without_end() -> None:
    nothing = pa.RecordBatch.from_arrays([pa.nulls(ROWS_PER_ENTRY_MAX + 1)], names=["a"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, nothing.schema) as writer:
        writer.write_batch(nothing)
    parsed = parse(ArrowFormat("a INT"), bytes(sink.getvalue()))
    assert "rows in one entry" in parsed.bad[0][1]


def test_should_discover_the_columns_of_arrow_streams() -> None:
    form = ArrowFormat()
    found = form.discover(binary(stream(pa.table({"a": [1]})), b"x", stream(pa.table({"a": [2], "b": ["y"]}))))
    settled = settle(form, None, found)
    assert settled.schema == pa.schema([("a", pa.int64()), ("b", pa.string())])


# json: what is one record


NOT_RECORDS = [
    b"",
    b" \n ",
    b"null",
    b"[1]",
    b"3",
    b'"x"',
    b"true",
    b'{"a":1}{"a":2}',
    b'{"a":1}\n{"a":2}',
    b'{"a":1} null {"a":2}',
    b'{"a":1}null}',
    b'{"a":1},{"a":2}',
    b'{"a":1}}',
    b'{"a":1',
    b'"b":2}',
    b'{"a":1,}',
    b'{"a":01}',
    b'{"a":1}\x00',
    b'\x00{"a":1}',
    b'{"s":"x\x00y"}',
    b'{"s":"line\nbreak"}',
    b'{"s":"\xff"}',
    b'{"s":"\\ud800"}',
    b'{"a":1,"a":2}',
    b'{"x":{"y":1,"y":2}}',
    b"\xef\xbb\xbf{}",
    b"{'a':1}",
    b'{"a":Inf}',
    b'{"d":Inf}',
    b'{"a":1}/**/',
    b'{"x":' + b"[" * 250 + b"]" * 250 + b"}",
    b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    b'{"x":' + b'{"k":' * 200_000 + b"1" + b"}" * 200_000 + b"}",
]
RECORDS = [
    b'{"a":1}',
    b'  {"a":1}\n',
    b'{\n  "a": 1\n}\r\n',
    b'{"a":1, "s":"}x{\\n]["}',
    b'{"x":{"y":[{}]} , "a":1}',
    b"{}",
    b'{"s":"\\u00e4\\ud83d\\ude00"}',
    b'{"d":NaN}',
    b'{"x":' + b"[" * 150 + b"]" * 150 + b"}",
    b'{"x":[' + b"{}," * 300 + b'{"z":[]}]}',
    b" " * 50 + b'{"a":1}' + b" " * 50,
]
FORM = JsonFormat("a INT, s STRING, d DOUBLE")


@pytest.mark.parametrize("entry", NOT_RECORDS, ids=lambda e: repr(e)[:40])
def test_should_set_aside_what_is_not_one_object_and_keep_its_neighbours(entry: bytes) -> None:
    found = by_entry(parse(FORM, '{"a":1}', entry, '{"a":2}'), 3)
    assert [found[0], found[2]] == [row(a=1), row(a=2)]
    assert isinstance(found[1], str)
    assert len(found[1]) < 200


@pytest.mark.parametrize("entry", RECORDS, ids=lambda e: repr(e)[:40])
def test_should_keep_every_way_to_write_an_object(entry: bytes) -> None:
    found = by_entry(parse(FORM, '{"a":1}', entry, '{"a":2}'), 3)
    assert [found[0], found[2]] == [row(a=1), row(a=2)]
    assert isinstance(found[1], dict)


def row(**values: Any) -> dict[str, Any]:
    return {"a": None, "s": None, "d": None, "_rescued_data": None} | values


def test_should_not_be_fooled_by_entries_that_make_up_for_each_other() -> None:
    """Two records in one entry and none in another: the count alone would be right."""
    found = by_entry(parse(FORM, '{"a":1}{"a":2}', '{"a":', "3}", '{"a":4}'), 4)
    assert [isinstance(found[i], str) for i in range(4)] == [True, True, True, False]
    found = by_entry(parse(FORM, "{}{}", b"{}\x00}", "{}"), 3)
    assert [isinstance(found[i], str) for i in range(3)] == [True, True, False]


def test_should_parse_clean_entries_without_looking_at_any_singly(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(entry: bytes) -> dict[str, Any]:
        raise AssertionError(f"looked at {entry!r}")

    monkeypatch.setattr(json_format, "load", refuse)
    entries = [f'{{"a":{i},"s":"x{i}","d":{i}.5}}\n' for i in range(1000)]
    parsed = parse(FORM, *entries)
    assert parsed.entries is None
    assert parsed.rows["a"].to_pylist() == list(range(1000))
    with pytest.raises(AssertionError, match="looked at"):
        parse(FORM, *entries, '{"a":1')


def test_should_look_only_at_the_few_that_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bytes] = []

    def watch(entry: bytes) -> dict[str, Any]:
        looked.append(entry)
        return load(entry)

    monkeypatch.setattr(json_format, "load", watch)
    entries = [f'{{"a":{i}}}' for i in range(20_000)]
    entries[77] = '{"a":"x"}'  # another kind: the parser says which record
    entries[5000] = '{"a":1,,}'  # no JSON
    entries[12_345] = '{"a":3000000000}'  # too large: the parser does not say which
    found = by_entry(parse(FORM, *entries), len(entries))
    assert found[77] == row(_rescued_data='{"a":"x"}')
    assert found[12_345] == row(_rescued_data='{"a":3000000000}')
    assert isinstance(found[5000], str)
    assert found[19_999] == row(a=19_999)
    assert len(looked) < 400


def test_should_take_no_entries_for_no_rows() -> None:
    for form in (RawFormat(), TextFormat(), FORM, ArrowFormat("a INT")):
        parsed = parse(form)
        assert parsed.rows.num_rows == 0
        assert parsed.rows.schema == form.schema


def test_should_parse_slices_and_many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_format, "CHUNK_BYTES", 100)
    entries = binary(*[f'{{"a":{i}}}' if i % 7 else "bad" for i in range(100)]).slice(10, 80)
    found = by_entry(FORM.parse(entries), 80)
    assert [index for index, one in found.items() if isinstance(one, str)] == [i for i in range(80) if not (i + 10) % 7]
    assert found[1] == row(a=11)


def test_should_cut_chunks_by_bytes_and_by_rows() -> None:
    entries = binary("aaaa", "bb", "c", "", "dddddddd", "e")
    assert [(s, c.to_pylist()) for s, c in chunks(entries, 6, 100)] == [
        (0, [b"aaaa", b"bb"]),
        (2, [b"c", b""]),
        (4, [b"dddddddd"]),
        (5, [b"e"]),
    ]
    assert [len(c) for _, c in chunks(entries, 1000, 4)] == [4, 2]
    assert list(chunks(binary(), 10, 10)) == []


# json: what a column takes

TYPED = JsonFormat(
    "b BOOLEAN, i8 TINYINT, i BIGINT, f FLOAT, d DOUBLE, dec DECIMAL(10, 2), s STRING, bin BINARY, dt DATE, "
    "t TIMESTAMP, n TIMESTAMP_NTZ, l ARRAY<INT>, st STRUCT<x: INT, dt: DATE>, ls ARRAY<STRUCT<x: INT>>, "
    "m MAP<STRING, INT>, lb ARRAY<BINARY>"
)
FITTING = {
    "b": [("true", True)],
    "i8": [("-128", -128), ("127", 127)],
    "i": [("9223372036854775807", 2**63 - 1), ("-0", 0)],
    "f": [("1.5", 1.5), ("3", 3.0)],
    "d": [
        ("0.1", 0.1),
        ("1e5", 1e5),
        ("12345678901234567890123", 12345678901234567890123.0),
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
}
MISFITTING = {
    "b": ["1", '"true"'],
    "i8": ["128", "1.0", '"1"', "true"],
    "i": ["9223372036854775808", "1e2", "1.5", "[]"],
    "f": ["1e39", '"1"', "true"],
    "d": ["1e400", '"NaN"', "{}"],
    "dec": ["1.101", "123456789.5", '"x"', '"NaN"', "true"],
    "bin": ['"?"', "5", '"a"'],
    "dt": ['"2024-02-30"', '"yesterday"', "5"],
    "t": ['"2024-01-02T25:00:00Z"', "1700000000", '"x"'],
    "n": ['"2024-01-02T03:04:05Z"'],
    "l": ['{"0": 1}', '[1, "x"]', "5"],
    "st": ["[]", '{"x": "y"}', '{"dt": "x"}', '"x"'],
    "ls": ['[{"x": "y"}]', "[5]"],
    "m": ["[]", '{"k": "x"}'],
    "lb": ['["?"]'],
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


# json: both ways agree

_numbers = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["1.10", "-0", "-0.0", "1e5", "1E+2", "0.1e-7", "1e400", "NaN", "-Infinity", "3", "300", "70000"]),
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
        converted = Columns(columns).convert([load(entry)])
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
    marked = set(json_fast.suspects(binary(*entries)).tolist())
    for index, entry in enumerate(entries):
        if index not in marked:
            text = entry.strip(b" \t\r\n")
            assert text.startswith(b"{")
            assert text.endswith(b"}")
            assert b"\x00" not in entry


# json: columns that follow the data


def evolve(form: JsonFormat, table: StructType | None, *entries: bytes | str) -> Format:
    return settle(form, table, form.discover(binary(*entries)), ["_sequence", "_index"])


def test_should_make_columns_of_what_it_finds() -> None:
    entries = [
        '{"i": 1, "d": 1, "s": "2024-01-02T03:04:05Z", "b": true, "st": {"x": 1}, "l": [{"x": 1}]}',
        '{"d": 1.5, "st": {"y": "z"}, "l": [{"y": 2.5}, null], "e": [], "o": {}, "mixed": 1}',
        '{"mixed": "x", "big": 12345678901234567890, "deep": [[1], [2.5]], "bad name": 1, "_sequence": 5}',
        "not json",
    ]
    settled = evolve(JsonFormat(), None, *entries)
    assert [(f.name, str(f.type)) for f in settled.schema] == [
        ("i", "int64"),
        ("d", "double"),
        ("s", "string"),
        ("b", "bool"),
        ("st", "struct<x: int64, y: string>"),
        ("l", "list<item: struct<x: int64, y: double>>"),
        ("mixed", "string"),
        ("big", "double"),
        ("deep", "list<item: list<item: double>>"),
        ("_rescued_data", "string"),
    ]
    found = by_entry(parse(settled, *entries), 4)
    assert found[1]["mixed"] == "1"  # type: ignore[index]  # a row, not an error
    assert found[1]["_rescued_data"] == '{"e":[],"o":{}}'  # type: ignore[index]  # the same
    assert found[2]["mixed"] == "x"  # type: ignore[index]  # the same
    assert found[2]["_rescued_data"] == '{"bad name":1,"_sequence":5}'  # type: ignore[index]  # the same


def test_should_keep_known_columns_and_rescue_what_they_cannot_take() -> None:
    from pyspark.sql.types import ArrayType, LongType

    table = StructType(
        [
            StructField("_sequence", LongType()),
            StructField("_index", IntegerType()),
            StructField("i", IntegerType()),
            StructField("st", StructType([StructField("x", LongType())])),
            StructField("l", ArrayType(StructType([StructField("x", LongType())]))),
            StructField("_rescued_data", StringType()),
        ]
    )
    entries = [
        '{"i": "text", "st": {"x": 1, "y": true}, "l": [{"z": 1}], "I": 5, "new": "n"}',
        '{"i": 5000000000}',
        '{"i": 7}',
    ]
    settled = evolve(JsonFormat(), table, *entries)
    assert [(f.name, str(f.type)) for f in settled.schema] == [
        ("i", "int32"),
        ("st", "struct<x: int64, y: bool>"),
        ("l", "list<item: struct<x: int64, z: int64>>"),
        ("new", "string"),
        ("_rescued_data", "string"),
    ]
    rows = [by_entry(parse(settled, *entries), 3)[i] for i in range(3)]
    assert rows[0]["_rescued_data"] == '{"I":5,"i":"text"}'
    assert rows[1]["_rescued_data"] == '{"i":5000000000}'
    assert rows[2]["i"] == 7


def test_should_not_grow_without_end() -> None:
    settled = evolve(JsonFormat(max_columns=10), None, *[f'{{"k{i}": {i}}}' for i in range(50)])
    assert len(settled.schema) == 11
    assert parse(settled, '{"k49": 49}').rows.to_pylist()[0]["_rescued_data"] == '{"k49":49}'


def test_should_know_columns_that_it_cannot_fill() -> None:
    from pyspark.sql.types import VariantType

    table = StructType([StructField("v", VariantType())])
    settled = evolve(JsonFormat(), table, '{"v": 1, "a": 2}')
    assert settled.schema.names == ["a", "_rescued_data"]


def test_should_get_along_with_objects_that_are_empty() -> None:
    settled = evolve(JsonFormat(), None, "{}", '{"n": null}')
    assert parse(settled, "{}", '{"n": 1}').rows["_rescued_data"].to_pylist() == [None, '{"n":1}']


def test_should_merge_the_same_way_whatever_comes_first() -> None:
    kinds = [pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.null(), pa.list_(pa.int64())]
    for one in kinds:
        for other in kinds:
            a, b = (pa.schema([("x", kind)]) for kind in (one, other))
            assert merge_schemas(None, [a, b]) == merge_schemas(None, [b, a])


def test_should_find_the_same_columns_in_contradicting_records_fast_and_slowly() -> None:
    entries = [f'{{"a": {value}, "n{i % 3}": 1}}' for i, value in enumerate(["1", '"x"', "[1]", "2.5"] * 200)]
    assert JsonFormat().discover(binary(*entries)) == merge_schemas(
        None, [JsonFormat().discover(binary(entry)) for entry in entries]
    )


def test_should_rescue_bytes_that_are_like_base64() -> None:
    text = base64.b64encode(b"\x00\xff").decode()
    (found,) = parse(JsonFormat("b BINARY"), f'{{"b": "{text}"}}').rows.to_pylist()
    assert found == {"b": b"\x00\xff", "_rescued_data": None}
