"""The rows themselves: numbers that stay unique under a transform, columns of tables that an earlier release made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from buffer_delta.spark.frames import may_multiply
from tests.spark.queues import produce

pytestmark = pytest.mark.spark


def exploded(frame: DataFrame) -> DataFrame:
    return frame.withColumn("item", f.explode("items")).drop("items")


def load(spark: SparkSession, folder: Path, **settings: Any) -> DataFrame:
    config = LoaderConfig(store=str(folder / "queue"), table=str(folder / "table"), gc_enabled=False, **settings)
    Loader(spark, config).run(available_now=True)
    return spark.read.format("delta").load(str(folder / "table"))


def test_should_number_the_rows_of_an_exploding_transform(spark: SparkSession, tmp_path: Path) -> None:
    """And still know whose fault a row is: the entry with the bad item goes to the dead letters, no other."""
    spark.sql(
        f"CREATE TABLE delta.`{tmp_path / 'table'}` (id BIGINT, item BIGINT) USING delta "
        "TBLPROPERTIES ('delta.constraints.small' = 'item < 100')"
    )
    records: list[dict[str, Any]] = [
        {"id": 0, "items": [1, 2, 3]},
        {"id": 1, "items": []},
        {"id": 2, "items": [4, 500]},
    ]
    records += [{"id": 3, "items": [5, 6]}]
    produce(tmp_path / "queue", [[json.dumps(record).encode() for record in records]] * 2)
    table = load(
        spark,
        tmp_path,
        format={"type": "json", "schema": "id BIGINT, items ARRAY<BIGINT>"},
        transform=exploded,
        dead_letters=str(tmp_path / "dead"),
        merge_schema=True,
    )
    found = sorted((row._sequence, row._index, row.id) for row in table.collect())
    assert found == [(batch, n, id) for batch in (0, 1) for n, id in enumerate((0, 0, 0, 3, 3))]
    dead = spark.read.format("delta").load(str(tmp_path / "dead")).collect()
    assert sorted((row._sequence, row._index, json.loads(row.bytes)["id"]) for row in dead) == [(0, 2, 2), (1, 2, 2)]
    assert {bytes(row._entry_metadata) for row in dead} == {b"made by a test"}


@pytest.mark.parametrize("writer", ["arrow", "spark"])
def test_should_make_no_rules_of_what_a_transform_never_leaves_null(
    spark: SparkSession, tmp_path: Path, writer: str
) -> None:
    """Spark's own writer makes a table of such rows without NOT NULL, and later rows may have a null there."""

    def labelled(frame: DataFrame) -> DataFrame:
        label = f.struct(f.lit("env").alias("key"), f.lit("test").alias("value"))
        return exploded(frame).withColumns({"source": f.lit("web"), "labels": f.array(label)})

    produce(tmp_path / "queue", [[b'{"id": 1, "items": [7]}']])
    form = {"type": "json", "schema": "id BIGINT, items ARRAY<BIGINT>"}
    table = load(spark, tmp_path, format=form, transform=labelled, writer=writer)
    assert table.select("id", "item", "source", "labels.value").collect() == [(1, 7, "web", ["test"])]
    assert [field.name for field in table.schema.fields if not field.nullable] == []

    produce(tmp_path / "queue", [[b'{"id": 2, "items": [8]}']])
    table = load(spark, tmp_path, format=form, transform=exploded, columns={"_index": None}, writer=writer)
    assert sorted((row.id, row._index, row.source) for row in table.collect()) == [(1, 0, "web"), (2, None, None)]


def test_should_tell_a_transform_that_may_make_more_rows_by_its_plan(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, [1, 2])], "id INT, items ARRAY<INT>")
    other = spark.createDataFrame([(1, "a")], "id INT, name STRING")

    def same(rows: Any) -> Any:
        return rows

    one_each = [
        frame,
        frame.select("id").where("id > 0"),
        frame.withColumn("n", f.size("items")).dropDuplicates(["id"]).orderBy("id").limit(3).alias("x"),
        frame.repartition(2, "id"),
    ]
    several = [
        exploded(frame),
        frame.join(other, "id"),
        frame.union(frame),
        frame.mapInPandas(same, frame.schema),
        frame.groupBy("id").count(),
        other,
    ]
    assert [may_multiply(frame, made) for made in one_each] == [False] * len(one_each)
    assert [may_multiply(frame, made) for made in several] == [True] * len(several)


def test_should_keep_the_columns_of_tables_that_an_earlier_release_made(spark: SparkSession, tmp_path: Path) -> None:
    """`_metadata` stays, where the table has it; its dead letters get the metadata as a new column."""
    spark.sql(
        f"CREATE TABLE delta.`{tmp_path / 'table'}` (id BIGINT, _rescued_data STRING, _sequence BIGINT, _index INT, "
        "_ingested_at TIMESTAMP, _metadata BINARY) USING delta"
    )
    spark.sql(
        f"CREATE TABLE delta.`{tmp_path / 'dead'}` (_sequence BIGINT, _index INT, _ingested_at TIMESTAMP, "
        "location STRING, error STRING, bytes BINARY) USING delta"
    )
    produce(tmp_path / "queue", [[b'{"id": 7}', b"{"]])
    schema = {"type": "json", "schema": "id BIGINT"}
    table = load(spark, tmp_path, format=schema, dead_letters=str(tmp_path / "dead"))
    assert "_entry_metadata" not in table.columns
    assert [(row.id, bytes(row["_metadata"])) for row in table.collect()] == [(7, b"made by a test")]
    (dead,) = spark.read.format("delta").load(str(tmp_path / "dead")).collect()
    assert bytes(dead._entry_metadata) == b"made by a test"


def test_should_leave_sparks_own_column_of_a_new_table_alone(spark: SparkSession, tmp_path: Path) -> None:
    produce(tmp_path / "queue", [[b"x"]])
    (row,) = load(spark, tmp_path).select("_entry_metadata", "_metadata.file_name").collect()
    assert bytes(row._entry_metadata) == b"made by a test"
    assert row.file_name.endswith(".parquet")
