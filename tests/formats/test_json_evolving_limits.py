"""Columns that follow the data, where it goes too far: too many fields, too deep, names that differ only in case."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from buffer.errors import InvalidConfig
from buffer_delta.formats import JsonFormat, merge_schemas
from buffer_delta.formats.schemas import NESTED_MAX
from tests.formats.format_support import binary, evolve, parse


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


@pytest.mark.parametrize(("begin", "end"), [('{"a":', "}"), ('{"a":[', "]}")])
def test_should_rescue_what_is_nested_too_deeply(begin: str, end: str) -> None:
    """Arrow's messages take types 64 levels deep, so no task could send its rows."""
    fitting = NESTED_MAX // len(end)
    for levels, columns in ((fitting, 2), (fitting + 1, 1), (99, 1)):
        entry = begin * levels + "1" + end * levels
        entry = f'{{"x":{entry},"id":1}}'
        settled = evolve(JsonFormat(), None, entry)
        assert settled.schema.names == (["x"] if columns == 2 else []) + ["id", "_rescued_data"]
        assert pa.ipc.read_schema(settled.schema.serialize()) == settled.schema
        (row,) = parse(settled, entry).rows.to_pylist()
        assert (row["_rescued_data"] is None) == (columns == 2)
        assert columns == 2 or json.loads(row["_rescued_data"])["x"] == json.loads(entry)["x"]


def test_should_keep_what_is_shallow_beside_what_is_too_deep() -> None:
    entry = '{"x":{"ok":1,"deep":' + "[" * 90 + "1" + "]" * 90 + "}}"
    settled = evolve(JsonFormat(), None, entry)
    assert str(settled.schema.field("x").type) == "struct<ok: int64>"
    (row,) = parse(settled, entry).rows.to_pylist()
    assert row == {"x": {"ok": 1}, "_rescued_data": '{"x":{"deep":' + "[" * 90 + "1" + "]" * 90 + "}}"}


@pytest.mark.parametrize(
    "name", ["x" * 256, "é" * 128, "x" * 51_000, "new\nline", "bell\x07", "a b", "a=b", ""], ids=lambda n: n[:9]
)
def test_should_rescue_fields_whose_names_no_table_should_have(name: str) -> None:
    entry = json.dumps({"id": 1, name: 2, "s": {"ok": 3, name: 4}}, ensure_ascii=False)
    settled = evolve(JsonFormat(), None, entry)
    assert settled.schema.names == ["id", "s", "_rescued_data"]
    (row,) = parse(settled, entry).rows.to_pylist()
    assert row["s"] == {"ok": 3}
    assert json.loads(row["_rescued_data"]) == {name: 2, "s": {name: 4}}


def test_should_not_let_the_schema_outgrow_what_spark_can_read() -> None:
    """Spark's parser takes strings of 20 million characters, and the whole schema is one."""
    names = [f"{i:05d}" + '"' * 250 for i in range(10_000)]
    entry = json.dumps({name: i for i, name in enumerate(names)})
    settled = evolve(JsonFormat(max_columns=20_000), None, entry)
    fields = [{"name": f.name, "type": "long", "nullable": True, "metadata": {}} for f in settled.schema]
    in_log = json.dumps(json.dumps({"type": "struct", "fields": fields}))
    assert 3_000_000 < len(in_log) < 5_000_000
    (row,) = parse(settled, entry).rows.to_pylist()
    rescued = json.loads(row.pop("_rescued_data"))
    assert {**row, **rescued} == json.loads(entry), "nothing is lost"


def test_should_refuse_a_schema_with_a_field_twice() -> None:
    with pytest.raises(InvalidConfig, match="twice"):
        JsonFormat("s STRUCT<a: INT, A: INT>")


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
