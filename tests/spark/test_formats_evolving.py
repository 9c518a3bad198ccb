"""Columns that follow the data, where it goes too far: too many fields, too deep, names that differ only in case."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from buffer.errors import InvalidConfig
from buffer_delta.formats import ArrowFormat, JsonFormat, merge_schemas
from tests.spark.test_formats import binary, evolve, parse, stream


def test_should_not_grow_without_end_inside_objects() -> None:
    for entries in (
        [f'{{"id": {i}, "m": {{"k{i}": {i}}}}}' for i in range(50)],
        [f'{{"id": {i}, "m": {{"k{i}": {i if i % 2 else "null"}}}, "x": {i if i % 2 else "[]"}}}' for i in range(50)],
        [f'{{"id": {i}, "m": [{{"k{i}": {{"n": {i}}}}}]}}' for i in range(50)],
        ['{"id": 1, "m": [' + ",".join(f'{{"k{i}": 1}}' for i in range(50)) + "]}"],
        ['{"id": 1, "m": {' + ",".join(f'"k{i}": 1' for i in range(50)) + "}}"],
    ):
        settled = evolve(JsonFormat(max_columns=10), None, *entries)
        assert 5 <= leaves(settled.schema) <= 13, settled.schema
        for entry, row in zip(entries, parse(settled, *entries).rows.to_pylist(), strict=True):
            given, kept, rescued = json.loads(entry), row["m"], json.loads(row["_rescued_data"] or "{}").get("m")
            assert values(given["m"]) == values(kept) + values(rescued), "nothing is lost"


def leaves(kind: Any) -> int:
    if isinstance(kind, pa.Schema | pa.StructType):
        return sum(leaves(field.type) for field in kind)
    return leaves(kind.value_type) if isinstance(kind, pa.ListType) else 1


def values(value: Any) -> int:
    """How many values there are in a JSON value."""
    if isinstance(value, dict | list):
        return sum(map(values, value.values() if isinstance(value, dict) else value))
    return 0 if value is None else 1


def test_should_never_drop_a_known_column_for_want_of_room() -> None:
    kinds = {"a": LongType(), "st": StructType([StructField(f"k{i}", LongType()) for i in range(8)])}
    table = StructType([StructField(name, kind) for name, kind in kinds.items()])
    settled = evolve(JsonFormat(max_columns=2), table, '{"new": 1, "a": 1, "st": {"k0": 1, "k9": 2}}')
    assert settled.schema.names == ["a", "st", "_rescued_data"]
    assert leaves(settled.schema) == 10
    (row,) = parse(settled, '{"new": 1, "a": 1, "st": {"k0": 1, "k9": 2}}').rows.to_pylist()
    assert row["_rescued_data"] == '{"new":1,"st":{"k9":2}}'


def test_should_find_new_columns_of_a_table_with_more_than_usual() -> None:
    table = StructType([StructField(f"k{i}", LongType()) for i in range(1200)])
    entry = json.dumps({f"k{i}": i for i in range(1201)})
    assert len(evolve(JsonFormat(max_columns=2000), table, entry).schema) == 1202


@pytest.mark.parametrize(
    ("entries", "kind", "rescued"),
    [
        (['{"s": {"a": 1, "A": 2}}'], "struct<a: int64>", '{"s":{"A":2}}'),
        (['{"s": {"a": 1, "A": 2}}', '{"s": {"a": 1, "b": 1}}'], "struct<a: int64, b: int64>", '{"s":{"A":2}}'),
        (['{"s": {"a": 1, "A": 2}}', '{"s": 1}'], "string", None),
        (['{"s": {"a": null, "A": 2}}'], "struct<A: int64>", None),
        (['{"s": {"a": {"b": 1, "B": 2}}}'], "struct<a: struct<b: int64>>", '{"s":{"a":{"B":2}}}'),
        (['{"s": [{"a": 1, "A": "x"}]}'], "list<item: struct<a: int64>>", '{"s":[{"A":"x"}]}'),
        (['{"s": [{"a": 1, "A": 2}, {"a": 3, "b": 1}]}'], "list<item: struct<a: int64, b: int64>>",
         '{"s":[{"A":2},null]}'),
    ],
)  # fmt: skip
def test_should_not_tell_the_fields_of_an_object_apart_by_case(
    entries: list[str], kind: str, rescued: str | None
) -> None:
    settled = evolve(JsonFormat(), None, *entries)
    assert str(settled.schema.field("s").type) == kind
    assert parse(settled, *entries).rows.to_pylist()[0]["_rescued_data"] == rescued
    known = StructType([StructField("s", StructType([StructField("z", LongType())]))])
    if kind.startswith("struct"):
        grown = evolve(JsonFormat(), known, *entries).schema.field("s").type
        assert str(grown) == kind.replace("struct<", "struct<z: int64, ", 1)


def test_should_take_no_longer_for_objects_that_are_deep() -> None:
    """Twice as long for each level would be for ever."""
    settled = evolve(JsonFormat(), None, '{"a":' * 100 + "1" + "}" * 100)
    assert leaves(settled.schema) == 2


def test_should_refuse_a_schema_with_a_field_twice() -> None:
    with pytest.raises(InvalidConfig, match="twice"):
        JsonFormat("s STRUCT<a: INT, A: INT>")


@pytest.mark.parametrize("kind", ["STRUCT<a: BIGINT>", "ARRAY<STRUCT<a: BIGINT>>", "MAP<STRING, STRUCT<a: BIGINT>>"])
def test_should_not_drop_fields_inside_the_columns_of_a_stream(kind: str) -> None:
    """Arrow's own cast would, without a word."""
    form = ArrowFormat(f"s {kind}")
    wider = ArrowFormat(f"s {kind.replace('BIGINT', 'BIGINT, b: BIGINT')}")
    narrow, wide = (stream(f.schema.empty_table()) for f in (form, wider))
    assert [index for index, _ in parse(form, narrow, wide).bad] == [1]
    assert "'s' has fields beyond" in parse(form, wide).bad[0][1]
    assert parse(wider, narrow, wide).bad == []


def test_should_set_aside_a_stream_of_other_nested_types() -> None:
    union = pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])])
    fixed = pa.array([[{"a": 1, "b": 2}]], pa.list_(pa.struct([("a", pa.int64()), ("b", pa.int64())]), 1))
    form = ArrowFormat("s ARRAY<STRUCT<a: BIGINT>>")
    bad = parse(form, stream(pa.table({"s": union})), stream(pa.table({"s": fixed}))).bad
    assert [index for index, _ in bad] == [0, 1]


def test_should_find_the_same_fields_however_the_records_are_grouped() -> None:
    """Which batches a task gets depends on the number of cores."""
    form = JsonFormat(max_columns=60)
    entries = [f'{{"m": {{"k{i % 20}": {i}, "{"nN"[i % 2]}": {{"x": 1}}}}, "f{i % 7}": 1}}' for i in range(40)]
    found = []
    for size in (1, 3, 40):
        groups = [form.discover(binary(*entries[at : at + size])) for at in range(0, 40, size)]
        found.append(merge_schemas(None, groups, max_columns=60))
    assert found[0] == found[1] == found[2]
    assert leaves(found[0]) == 28


def test_should_not_let_an_object_take_the_place_of_others() -> None:
    entry = json.dumps({"m": {f"k{i}": 1 for i in range(50)}, "user": {"name": "n", "at": {"x": 1}}, "kind": "a"})
    settled = evolve(JsonFormat(max_columns=10), None, entry)
    assert settled.schema.names == ["m", "user", "kind", "_rescued_data"]
    assert str(settled.schema.field("user").type) == "struct<name: string, at: struct<x: int64>>"
    assert settled.schema.field("m").type.num_fields == 7
    known = StructType([StructField("m", StructType([StructField(f"k{i}", LongType()) for i in range(20)]))])
    assert evolve(JsonFormat(max_columns=10), known, entry).schema.names == ["m", "kind", "_rescued_data"]
