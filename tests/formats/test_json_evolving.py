"""json: columns that follow the data."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from buffer.errors import InvalidConfig
from buffer_delta.formats import ArrowFormat, JsonFormat, merge_schemas
from tests.formats.format_support import binary, by_entry, evolve, parse, stream


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
    assert found[2]["_rescued_data"] == '{"bad name":1,"_sequence":5,"big":12345678901234567890}'  # type: ignore[index]  # the same


def test_should_rescue_whole_numbers_that_a_double_cannot_hold() -> None:
    entries = ['{"big": 18446744073709551615}', '{"n": 9007199254740993}', '{"n": 1.5}', '{"n": 3}']
    settled = evolve(JsonFormat(), None, *entries)
    assert [str(f.type) for f in settled.schema][:2] == ["double", "double"]
    assert by_entry(parse(settled, *entries), 4) == {
        0: {"big": None, "n": None, "_rescued_data": '{"big":18446744073709551615}'},
        1: {"big": None, "n": None, "_rescued_data": '{"n":9007199254740993}'},
        2: {"big": None, "n": 1.5, "_rescued_data": None},
        3: {"big": None, "n": 3.0, "_rescued_data": None},
    }


def test_should_leave_columns_alone_that_delta_computes() -> None:
    table = StructType(
        [
            StructField("id", LongType()),
            StructField("twice", LongType(), True, {"delta.generationExpression": "id * 2"}),
            StructField(
                "n", LongType(), True, {"delta.identity.start": 1, "delta.identity.allowExplicitInsert": False}
            ),
            StructField(
                "own", LongType(), True, {"delta.identity.start": 1, "delta.identity.allowExplicitInsert": True}
            ),
        ]
    )
    settled = evolve(JsonFormat(), table, '{"id": 1, "twice": 2}')
    assert settled.schema.names == ["id", "own", "_rescued_data"]
    found = by_entry(parse(settled, '{"id": 1, "twice": 2}', '{"id": 2}'), 2)
    assert [row["_rescued_data"] for row in found.values()] == ['{"twice":2}', None]  # type: ignore[index]  # rows
    # A stream is kept whole: where it has such a column, there is no other place for it.
    streams = [stream(pa.table({"id": [1], "twice": [2]})), stream(pa.table({"id": [2]}))]
    assert evolve(ArrowFormat(), table, *streams).schema.names == ["id", "twice", "own"]
    assert evolve(ArrowFormat(), table, streams[1]).schema.names == ["id", "own"]


def test_should_keep_known_columns_and_rescue_what_they_cannot_take() -> None:
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
    table = StructType([StructField("v", ArrayType(VariantType()))])
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


def test_should_give_hinted_columns_their_types_and_let_the_others_follow() -> None:
    hinted = JsonFormat(schema_hints="amount DECIMAL(18,2), s STRUCT<at: TIMESTAMP>, later DATE")
    entries = [
        '{"amount": 1.5, "s": {"at": "2024-01-02T03:04:05Z", "n": 1}, "id": 7}',
        '{"amount": 0.001, "s": {"at": "soon"}, "id": 8}',
        '{"amount": "12.30"}',
    ]
    settled = evolve(hinted, None, *entries)
    assert [(f.name, str(f.type)) for f in settled.schema] == [
        ("amount", "decimal128(18, 2)"),
        ("s", "struct<at: timestamp[us, tz=UTC], n: int64>"),
        ("later", "date32[day]"),
        ("id", "int64"),
        ("_rescued_data", "string"),
    ]
    found = by_entry(parse(settled, *entries), 3)
    assert [str(found[n]["amount"]) for n in (0, 1)] == ["1.50", "None"]  # type: ignore[index]  # rows, not errors
    assert found[1]["_rescued_data"] == '{"amount":0.001,"s":{"at":"soon"}}'  # type: ignore[index]  # the same
    assert found[1]["id"] == 8  # type: ignore[index]  # the same


def test_should_merge_hints_of_many_tasks_and_leave_a_tables_own_types_alone() -> None:
    hinted = JsonFormat(schema_hints="amount DECIMAL(18,2), m MAP<STRING, INT>")
    parts = [hinted.discover(binary(text)) for text in ('{"amount": "x", "a": 1}', '{"m": {"k": 1}, "b": [1]}', "[]")]
    merged = merge_schemas(None, parts)
    assert [(f.name, str(f.type)) for f in merged] == [
        ("amount", "decimal128(18, 2)"),
        ("m", "map<string, int32>"),
        ("a", "int64"),
        ("b", "list<item: int64>"),
    ]
    table = StructType([StructField("amount", LongType())])
    settled = evolve(hinted, table, '{"amount": 1.5}')
    assert str(settled.schema.field("amount").type) == "int64"
    found = by_entry(parse(settled, '{"amount": 1.5}'), 1)
    assert found[0]["_rescued_data"] == '{"amount":1.5}'  # type: ignore[index]  # a row, not an error


def test_should_refuse_hints_that_cannot_be_followed() -> None:
    for options, says in (
        ({"schema": "a INT", "schema_hints": "b INT"}, "with a schema, put them into that"),
        ({"schema_hints": "a INT NOT NULL"}, "without NOT NULL"),
        ({"schema_hints": "_rescued_data STRING"}, "rescued fields"),
        ({"schema_hints": "`a b` INT"}, "a name that a Delta table can have"),
        ({"schema_hints": "v ARRAY<VARIANT>"}, "not for what is inside of them"),
        ({"schema_hints": "a WHAT"}, "unknown type"),
    ):
        with pytest.raises(InvalidConfig, match=says):
            JsonFormat(**options)
    assert "schema_hints" not in JsonFormat().settings(), "plans of earlier releases hold the digest without"
    assert JsonFormat().digest() != JsonFormat(schema_hints="a INT").digest()
