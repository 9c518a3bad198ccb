"""JSON through the loader: bad records set aside, new fields, changed types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from buffer_delta.load.progress import Progress
from tests.spark.queues import produce

pytestmark = pytest.mark.spark

RECORDS = 1_000_000
BATCHES = 20
BAD_EVERY = 100


def load(spark: SparkSession, tmp_path: Path, **settings: Any) -> Progress | None:
    settings = {"store": str(tmp_path / "queue"), "table": str(tmp_path / "table"), "gc_enabled": False} | settings
    return Loader(spark, LoaderConfig(**settings)).run(available_now=True)


def rows(spark: SparkSession, tmp_path: Path) -> list[Row]:
    frame = spark.read.format("delta").load(str(tmp_path / "table"))
    return frame.orderBy("_sequence", "_index").collect()


def put(tmp_path: Path, *records: dict[str, Any]) -> None:
    produce(tmp_path / "queue", [[json.dumps(record).encode() for record in records]])


def test_should_set_one_percent_of_bad_records_aside(spark: SparkSession, tmp_path: Path) -> None:
    """1 % of a million: 990,000 rows, 10,000 dead letters that say what and where they were."""

    def record(number: int) -> bytes:
        good = b'{"id": %d, "name": "name %d"}' % (number, number)
        return good[:-3] if number % BAD_EVERY == 7 else good

    size = RECORDS // BATCHES
    batches = ([record(n) for n in range(b * size, (b + 1) * size)] for b in range(BATCHES))
    produce(tmp_path / "queue", batches, compression="zstd", max_buffered_inputs=10)
    progress = load(
        spark,
        tmp_path,
        format={"type": "json", "schema": "id BIGINT, name STRING"},
        dead_letters=str(tmp_path / "dead"),
    )
    assert progress is not None
    assert (progress.rows, progress.dead_letters) == (990_000, 10_000)
    table = spark.read.format("delta").load(str(tmp_path / "table"))
    assert table.where("id = _sequence * 50000 + _index AND name = concat('name ', id)").count() == 990_000
    assert table.select("_sequence", "_index").distinct().count() == 990_000
    dead = spark.read.format("delta").load(str(tmp_path / "dead"))
    assert dead.where("_index % 100 = 7 AND error IS NOT NULL AND bytes IS NOT NULL").count() == 10_000
    assert dead.select("_sequence", "_index").distinct().count() == 10_000
    first = dead.orderBy("_sequence", "_index").first()
    assert first is not None
    assert (first._sequence, first._index, bytes(first.bytes)) == (0, 7, record(7))


def test_should_rescue_bad_records_without_dead_letters(spark: SparkSession, tmp_path: Path) -> None:
    produce(tmp_path / "queue", [[b'{"id": 1}', b"{broken", b'{"id": 3}']])
    progress = load(spark, tmp_path, format={"type": "json", "schema": "id BIGINT"})
    assert progress is not None
    assert progress.rows == 3
    assert [(row._index, row.id) for row in rows(spark, tmp_path)] == [(0, 1), (1, None), (2, 3)]
    assert "{broken" in rows(spark, tmp_path)[1]._rescued_data


def test_should_add_new_fields_as_columns_when_evolving(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, {"a": 1})
    load(spark, tmp_path, format="json")
    put(tmp_path, {"a": 2, "b": "new", "c": {"d": [1.5]}})
    load(spark, tmp_path, format="json")
    first, second = rows(spark, tmp_path)
    assert (first.a, first.b, first.c) == (1, None, None)
    assert (second.a, second.b, second.c.d) == (2, "new", [1.5])
    assert second._rescued_data is None


def test_should_never_lose_a_value_whose_type_changed(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, {"a": 1, "b": "text"})
    load(spark, tmp_path, format="json")
    put(tmp_path, {"a": "no number", "b": 7})
    load(spark, tmp_path, format="json")
    changed = rows(spark, tmp_path)[1]
    assert changed.a is None
    assert json.loads(changed._rescued_data)["a"] == "no number"
    assert changed.b == "7", "a string column takes any value as its text"


def test_should_keep_unknown_fields_in_rescued_data_with_a_given_schema(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, {"a": 1}, {"a": 2, "more": {"x": [1, None]}})
    load(spark, tmp_path, format={"type": "json", "schema": "a BIGINT"})
    plain, rich = rows(spark, tmp_path)
    assert plain._rescued_data is None
    assert json.loads(rich._rescued_data) == {"more": {"x": [1, None]}}
    assert "more" not in rich


def test_should_keep_a_table_readable_whatever_the_names_and_the_depth(spark: SparkSession, tmp_path: Path) -> None:
    """Spark cannot read a table with a name of 50,000 characters, nor one whose schema has 20 million."""
    deep: Any = 1
    for _ in range(90):
        deep = {"d": [deep]}
    hostile = [
        {"id": 1, **{f"{i:03d}" + "n" * 25_000: i for i in range(850)}},
        {"id": 2, "x" * 51_000: 1},
        {"id": 3, "ſ": 1, "S": 2, "\u212a": 3, "k": 4, "\u0130": 5, "i": 6, "nest": {"ς": 7, "Σ": 8}},
        {"id": 4, "deep": deep},
        {"id": 5, "l": [{f"k{i}": 1} for i in range(2000)]},
        {"id": 6, "e": {"p": "oops"}},
    ]
    put(tmp_path, {"id": 0})
    load(spark, tmp_path, format="json")
    put(tmp_path, *hostile)
    load(spark, tmp_path, format="json")
    put(tmp_path, {"id": 7})
    load(spark, tmp_path, format="json")
    found = rows(spark, tmp_path)
    assert [row.id for row in found] == list(range(8))
    rescued = {row.id: json.loads(row._rescued_data or "{}") for row in found}
    assert rescued[1] == {name: value for name, value in hostile[0].items() if name != "id"}
    assert rescued[2] == {"x" * 51_000: 1}
    assert rescued[3] == {"S": 2, "k": 4, "i": 6, "nest": {"Σ": 8}}
    assert rescued[4] == {"deep": deep}
    assert found[3]["nest"]["ς"] == 7
