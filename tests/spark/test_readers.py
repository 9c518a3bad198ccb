"""A table whose files Arrow wrote, read by others: Spark, delta-rs, DuckDB and pyarrow find the same in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import duckdb_extension_delta
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from buffer_delta.delta.table import DeltaTarget
from buffer_delta.delta.txn import Txn

pytestmark = pytest.mark.spark

APP = "buffer/01READERS"
COLUMNS = """
    id, CONCAT('name ', id) AS name, IF(id % 3 = 0, NULL, id % 2 = 0) AS yes, CAST(id AS FLOAT) / 3 AS ratio,
    CAST(id AS DECIMAL(12, 2)) / 4 AS price, CAST(id AS DECIMAL(30, 5)) AS large, CAST(id AS TINYINT) AS tiny,
    DATE'1969-12-30' + CAST(id AS INT) AS day,
    TIMESTAMP'2026-01-01 05:00:00.123456' + MAKE_INTERVAL(0, 0, 0, id) AS at,
    TIMESTAMP_NTZ'1969-12-31 23:59:59.999999' AS local, CAST(CAST(id AS STRING) AS BINARY) AS raw,
    IF(id % 2 = 0, NULL, NAMED_STRUCT('a', NULLIF(id, 7), 'b', IF(id = 9, NULL, ARRAY('x', NULL)))) AS nested,
    MAP(CAST(id AS STRING), id / 8) AS pairs, CAST(NULL AS STRING) AS nothing,
    CASE id % 4 WHEN 0 THEN 'a/b' WHEN 1 THEN 'ü %' WHEN 2 THEN '' END AS part
"""

Read = Callable[[Path, str, int], list[dict[str, Any]]]
"""The rows of a table where a column has at least a value, in the order of `id`."""


def by_spark(spark: SparkSession) -> Read:
    def read(table: Path, column: str, least: int) -> list[dict[str, Any]]:
        frame = spark.read.format("delta").load(str(table)).where(f"`{column}` >= {least}")
        return frame.orderBy("id").toArrow().to_pylist()

    return read


def by_deltalake(table: Path, column: str, least: int) -> list[dict[str, Any]]:
    found = DeltaTable(str(table)).to_pyarrow_dataset().to_table(filter=ds.field(column) >= least)
    return found.sort_by("id").to_pylist()


def by_pyarrow(table: Path, column: str, least: int) -> list[dict[str, Any]]:
    """As who knows Parquet alone, and which files the log names."""
    rows = []
    for path, values in named_files(table).items():
        found = ds.dataset(table / path, format="parquet").to_table(filter=ds.field(column) >= least)
        rows += [row | values for row in found.to_pylist()]
    return sorted(rows, key=lambda row: row["id"])


def by_duckdb(table: Path, column: str, least: int) -> list[dict[str, Any]]:
    folder = Path(duckdb_extension_delta.__file__).parent / "extensions" / f"v{duckdb.__version__}"
    with duckdb.connect(config={"extension_directory": str(table.parent / "duckdb")}) as connection:
        connection.execute(f"LOAD '{folder / 'delta.duckdb_extension'}'")
        connection.execute("SET TimeZone = 'UTC'")
        query = f"SELECT * FROM delta_scan('{table}') WHERE \"{column}\" >= {least} ORDER BY id"
        return connection.execute(query).to_arrow_table().to_pylist()


def named_files(table: Path) -> dict[str, dict[str, str | None]]:
    """The files of the newest version, with their partition values."""
    found: dict[str, dict[str, str | None]] = {}
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                found[unquote(action["add"]["path"])] = action["add"]["partitionValues"]
            if "remove" in action:
                found.pop(unquote(action["remove"]["path"]), None)
    return found


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Readers differ in how Python gets a map, and in the name of UTC; not in what they hold."""
    return [{name: _plain(name, value) for name, value in sorted(row.items())} for row in rows]


def _plain(name: str, value: Any) -> Any:
    if name == "pairs":
        return dict(value)
    if name == "at":
        return value.timestamp()
    return bytes(value) if isinstance(value, bytearray) else value


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files in each of three commits, of which the second has more columns than the first."""
    path = tmp_path_factory.mktemp("readers") / "table"
    into = DeltaTarget(spark, str(path), writer="arrow", partition_by=["part"], merge_schema=True)
    for last in range(3):
        more = "" if last == 0 else ", id * 2 AS later"
        rows = spark.sql(f"SELECT {COLUMNS}{more} FROM RANGE({last * 20}, {last * 20 + 20}, 1, 1)")
        into.write(rows, Txn(APP, last, last, 1), into.look(APP))
    return path


def test_should_hold_the_same_for_every_reader(spark: SparkSession, table: Path) -> None:
    wanted = plain(by_spark(spark)(table, "id", 0))
    assert [row["id"] for row in wanted] == list(range(60))
    assert wanted[9]["nested"] == {"a": 9, "b": None}
    assert wanted[11]["price"] == Decimal("2.750000")
    assert plain(by_deltalake(table, "id", 0)) == wanted
    assert plain(by_duckdb(table, "id", 0)) == wanted
    seen = plain(by_pyarrow(table, "id", 0))
    assert [{"later": None} | row for row in seen] == wanted, "files from before a column was added have none"


def test_should_have_the_types_of_the_table_for_every_reader(spark: SparkSession, table: Path) -> None:
    wanted = spark.read.format("delta").load(str(table)).toArrow().schema
    found = pa.schema(DeltaTable(str(table)).schema().to_arrow())
    assert {f.name: f.type for f in found} == {f.name: f.type for f in wanted}
    files = [table / path for path in named_files(table)]
    kinds = {f.name: f.type for file in files for f in ds.dataset(file, format="parquet").schema}
    assert kinds == {f.name: f.type for f in wanted if f.name != "part"}


@pytest.mark.parametrize(("column", "least", "files"), [("id", 40, 3), ("later", 118, 1), ("tiny", 60, 0)])
def test_should_skip_files_and_find_all_rows(
    spark: SparkSession, table: Path, column: str, least: int, files: int
) -> None:
    wanted = plain(by_spark(spark)(table, column, least))
    assert plain(by_deltalake(table, column, least)) == wanted
    assert plain(by_duckdb(table, column, least)) == wanted
    kept = DeltaTable(str(table)).to_pyarrow_dataset().get_fragments(filter=ds.field(column) >= least)
    assert len(list(kept)) == files, "delta-rs skips by the statistics of the log, too"


@pytest.mark.thorough
def test_should_be_deleted_from_and_compacted_by_others(spark: SparkSession, table: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    source = spark.read.format("delta").load(str(table))
    into = DeltaTarget(spark, str(copy), writer="arrow", partition_by=["part"])
    for last in range(2):
        into.write(source.where(f"id % 2 = {last}").coalesce(1), Txn(APP, last, last, 1), into.look(APP))
    theirs = DeltaTable(str(copy))
    theirs.delete("id >= 10")
    theirs.restore(2)
    assert [row["id"] for row in by_spark(spark)(copy, "id", 0)] == list(range(60))
    assert theirs.delete("id < 10")["num_deleted_rows"] == 10
    theirs.optimize.compact()
    theirs.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert into.look(APP).position == 1, "others keep the app's position"
    wanted = plain(source.where("id >= 10").orderBy("id").toArrow().to_pylist())
    assert plain(by_spark(spark)(copy, "id", 0)) == wanted
    into.write(source.where("id < 10"), Txn(APP, 2, 2, 1), into.look(APP))
    assert [row["id"] for row in by_duckdb(copy, "id", 0)] == list(range(60))


@pytest.mark.thorough
def test_should_be_deleted_from_and_cleaned_up_by_spark_whatever_the_partitions_are_called(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Were these letters encoded in the log and not in the folder, VACUUM would delete files that are in use."""
    path = tmp_path / "table"
    into = DeltaTarget(spark, str(path), writer="arrow", partition_by=["part"])
    for last in range(2):
        rows = (
            f"SELECT id, ELT(id % 3 + 1, 'ü %', '日本', '😀') AS part FROM RANGE({last * 30}, {last * 30 + 30}, 1, 1)"
        )
        into.write(spark.sql(rows), Txn(APP, last, last, 1), into.look(APP))
    name = f"delta.`{path}`"
    assert into.orphans() == []
    spark.sql(f"DELETE FROM {name} WHERE part = '日本' AND id < 30")
    spark.sql(f"DELETE FROM {name} WHERE part = 'ü %'")
    wanted = [id for id in range(60) if id % 3 == 2 or (id % 3 == 1 and id >= 30)]
    vacuum = ("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    spark.conf.set(*vacuum)
    try:
        spark.sql(f"VACUUM {name} RETAIN 0 HOURS")
    finally:
        spark.conf.unset(vacuum[0])
    assert [row["id"] for row in by_spark(spark)(path, "id", 0)] == wanted, "VACUUM took no file that is in use"
    assert len(list(path.rglob("*.parquet"))) == len(named_files(path)), "and every other one"
    assert [row["id"] for row in by_deltalake(path, "id", 0)] == wanted
    assert [row["id"] for row in by_duckdb(path, "id", 0)] == wanted
    kept = DeltaTable(str(path)).to_pyarrow_dataset().get_fragments(filter=ds.field("part") == "日本")
    assert len(list(kept)) == 1, "delta-rs reads the one partition"
