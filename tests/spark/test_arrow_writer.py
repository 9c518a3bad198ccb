"""Tables whose files Arrow wrote, and Delta's own transaction committed: what Spark sees in them, and who may write."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from buffer.errors import InvalidConfig
from buffer.manifest import Manifest
from buffer.store.open import open_store
from buffer_delta.config import LoaderConfig
from buffer_delta.delta.state import Commit
from buffer_delta.delta.table import DeltaTarget
from buffer_delta.delta.txn import Txn
from buffer_delta.errors import ConcurrentCommit, SchemaMismatch
from buffer_delta.load.loader import Loader
from tests.spark.queues import assert_exactly_once, ids, numbered, produce

pytestmark = pytest.mark.spark

APP = "buffer/01ARROW"
ROWS = """
    SELECT id, CAST(id AS INT) AS small, CONCAT('name ', id) AS name, id % 3 = 0 AS yes,
      CAST(id AS DECIMAL(12, 2)) / 4 AS price, CAST(id AS DECIMAL(30, 5)) AS large,
      DATE'2026-01-01' + CAST(id AS INT) AS day,
      TIMESTAMP'2026-01-01 05:00:00.123456' + MAKE_INTERVAL(0, 0, 0, id) AS at,
      TIMESTAMP_NTZ'1969-12-31 23:59:59.999999' AS local, CAST(CAST(id AS STRING) AS BINARY) AS raw,
      IF(id % 2 = 0, NULL, NAMED_STRUCT('a', NULLIF(id, 7), 'b', IF(id = 9, NULL, ARRAY('x', NULL)))) AS nested,
      MAP(CAST(id AS STRING), id / 8) AS pairs, CASE id % 4 WHEN 0 THEN 'a/b' WHEN 1 THEN 'ü' WHEN 2 THEN '' END AS part
    FROM RANGE(0, 40, 1, 1)
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


def target(spark: SparkSession, table: Path, writer: Any = "arrow", **settings: Any) -> DeltaTarget:
    return DeltaTarget(spark, str(table), writer=writer, **settings)


def append(into: DeltaTarget, rows: DataFrame, last: int = 0) -> Commit:
    return into.write(rows, Txn(APP, last, last, 1), into.look(APP))


def read(spark: SparkSession, table: Path) -> DataFrame:
    return spark.read.format("delta").load(str(table))


def adds(table: Path) -> Iterator[dict[str, Any]]:
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            if "add" in (action := json.loads(line)):
                yield action["add"]


def by_arrow(table: Path) -> list[bool]:
    """Of each file that was ever added, whether Arrow wrote it: Parquet files tell who made them."""
    makers = [pq.read_metadata(table / unquote(add["path"])).created_by for add in adds(table)]
    return ["arrow" in maker for maker in makers]


def files_read(frame: DataFrame) -> int:
    """How many files Spark's scan opened, by its own metrics."""
    frame.collect()
    plan = frame._jdf.queryExecution().executedPlan()
    plan = plan.executedPlan() if plan.getClass().getSimpleName() == "AdaptiveSparkPlanExec" else plan
    leaves = plan.collectLeaves()
    return sum(int(leaves.apply(i).metrics().apply("numFiles").value()) for i in range(leaves.size()))


def test_should_hold_what_spark_would_write(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql(ROWS)
    tables = {writer: tmp_path / writer for writer in ("arrow", "spark")}
    for writer, table in tables.items():
        into = target(spark, table, writer, partition_by=["part"])
        commit = append(into, rows)
        assert (commit.rows, commit.after.position, commit.files) == (40, 0, 3)
        assert by_arrow(table) == [writer == "arrow"] * 3
    ours, theirs = (read(spark, table) for table in tables.values())
    assert ours.schema == theirs.schema
    assert ours.orderBy("id").collect() == theirs.orderBy("id").collect()
    values = [{json.dumps(add["partitionValues"]) for add in adds(table)} for table in tables.values()]
    assert values[0] == values[1]
    found = DeltaTable.forPath(spark, str(tables["arrow"])).history(1).first()
    assert found is not None
    assert (found.operation, found.operationMetrics["numOutputRows"]) == ("WRITE", "40")
    assert Txn.from_note(found.userMetadata) == Txn(APP, 0, 0, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("calendar", ["LEGACY", "EXCEPTION"])
def test_should_hold_old_dates_whatever_calendar_the_reading_session_assumes(
    spark: SparkSession, table: Path, calendar: str
) -> None:
    rows = spark.sql(
        "SELECT DATE'1500-01-01' AS day, TIMESTAMP'0001-01-05 00:00:00' AS at, ARRAY(DATE'1582-10-04') AS nested,"
        " TIMESTAMP_NTZ'1500-01-01 00:00:00' AS ntz"
    )
    append(target(spark, table), rows)
    assert by_arrow(table) == [True]
    text = ["CAST(day AS STRING)", "CAST(at AS STRING)", "CAST(ntz AS STRING)", "CAST(nested AS STRING)"]
    wanted = rows.selectExpr(*text).collect()
    setting = "spark.sql.parquet.datetimeRebaseModeInRead"
    before = spark.conf.get(setting)
    spark.conf.set(setting, calendar)  # the latter is the default of Spark 3
    try:
        assert read(spark, table).selectExpr(*text).collect() == wanted
    finally:
        spark.conf.set(setting, before)


def test_should_let_spark_skip_files_and_keep_house(spark: SparkSession, table: Path) -> None:
    properties = {"delta.enableChangeDataFeed": "true"}
    into = target(spark, table, partition_by=["part"], properties=properties)
    for last in range(3):
        rows = spark.range(last * 10, last * 10 + 10, 1, 1).selectExpr("id", "CAST(id % 2 AS INT) AS part")
        append(into, rows, last)
    frame = read(spark, table)
    assert files_read(frame) == 6
    assert files_read(frame.where("part = 1")) == 3
    assert files_read(frame.where("id >= 20")) == 2
    assert files_read(frame.where("id = 11 AND part = 1")) == 1
    name = f"delta.`{table}`"
    spark.sql(f"DELETE FROM {name} WHERE id = 3")
    spark.sql(f"OPTIMIZE {name}")
    assert read(spark, table).count() == 29
    changes = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1)
    feed = changes.load(str(table)).groupBy("_change_type").count()
    assert {row._change_type: row["count"] for row in feed.collect()} == {"insert": 30, "delete": 1}
    spark.sql(f"RESTORE {name} TO VERSION AS OF 3")
    assert read(spark, table).count() == 30
    into.stage(spark.range(90, 91, 1, 1).selectExpr("id", "0 AS part"), Txn(APP, 9, 9, 1), into.look(APP))
    assert len(into.orphans()) == 1
    keep_check = "spark.databricks.delta.retentionDurationCheck.enabled"
    spark.conf.set(keep_check, "false")
    try:
        spark.sql(f"VACUUM {name} RETAIN 0 HOURS")
    finally:
        spark.conf.unset(keep_check)
    assert into.orphans() == []
    assert read(spark, table).count() == 30


@pytest.mark.thorough
def test_should_leave_row_ids_and_times_to_the_transaction(spark: SparkSession, table: Path) -> None:
    properties = {
        "delta.enableRowTracking": "true",
        "delta.enableInCommitTimestamps": "true",
        "delta.enableDeletionVectors": "true",
    }
    into = target(spark, table, cluster_by=["id"], properties=properties)
    for last in range(2):
        append(into, spark.range(last * 5, last * 5 + 5, 1, 1), last)
    found = list(adds(table))
    assert [add["baseRowId"] for add in found] == [0, 5]
    assert by_arrow(table) == [True, True]
    info = json.loads((table / "_delta_log" / f"{2:020d}.json").read_text().splitlines()[0])["commitInfo"]
    assert info["inCommitTimestamp"] > 0
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 7")
    assert ids(spark, table) == [0, 1, 2, 3, 4, 5, 6, 8, 9]


def test_should_commit_new_columns_with_the_rows_or_refuse_them(spark: SparkSession, table: Path) -> None:
    append(target(spark, table), spark.range(2))
    wider = spark.range(2, 4).selectExpr("CAST(id AS INT) AS id", "NAMED_STRUCT('x', id) AS more")
    with pytest.raises(SchemaMismatch, match="more"):
        append(target(spark, table), wider, 1)
    commit = append(target(spark, table, merge_schema=True), wider, 1)
    assert commit.version == 2
    deeper = spark.range(4, 5).selectExpr("NAMED_STRUCT('y', 'new') AS more", "id AS ID")
    append(target(spark, table, merge_schema=True), deeper, 2)
    found = sorted(read(spark, table).selectExpr("id", "more.x", "more.y").collect())
    assert [tuple(row) for row in found] == [
        (0, None, None),
        (1, None, None),
        (2, 2, None),
        (3, 3, None),
        (4, None, "new"),
    ]
    with pytest.raises(SchemaMismatch, match="id"):
        append(target(spark, table, merge_schema=True), spark.sql("SELECT 'text' AS id"), 3)


def test_should_conflict_with_the_same_apps_other_commit(spark: SparkSession, table: Path) -> None:
    into = target(spark, table)
    append(into, spark.range(1))
    seen = into.look(APP)
    zombie = into.stage(spark.range(1, 3, 1, 1), Txn(APP, 1, 1, 1), seen)
    (orphan,) = into.orphans()
    assert (table / orphan.path).stat().st_size == orphan.size_bytes
    assert append(target(spark, table), spark.range(1, 3), 1).version == 2
    with pytest.raises(ConcurrentCommit):
        zombie.commit()
    assert ids(spark, table) == [0, 1, 2]
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 0")  # the log still tells of that file: it is the history's
    left = {each.path for each in into.orphans()}  # Spark's own DELETE may leave an empty one
    assert orphan.path in left
    assert not left & {add["path"] for add in adds(table)}
    bystander = into.stage(spark.range(3, 4), Txn(APP, 2, 2, 1), into.look(APP))
    spark.range(9, 10).write.format("delta").mode("append").save(str(table))
    assert bystander.commit().version == 5  # a blind append of somebody else's is none of our business


def test_should_put_the_checksum_that_delta_would(spark: SparkSession, table: Path) -> None:
    into = target(spark, table)
    append(into, spark.sql(ROWS), 1)
    commit = append(into, spark.sql(ROWS), 2)
    assert commit.after.snapshot is not None
    put = table / "_delta_log" / f"{commit.version:020d}.crc"
    ours = json.loads(put.read_text())
    assert not put.with_name(f".{put.name}.crc").exists(), "Hadoop did not write it"
    put.unlink()
    log, snapshot = commit.after.snapshot.log, commit.after.snapshot.java
    hook: Any = getattr(spark._jvm.org.apache.spark.sql.delta.hooks, "ChecksumHook$WriteChecksum")  # type: ignore[union-attr]
    hook(spark._jsparkSession, log, ours["txnId"], snapshot)
    assert ours == json.loads(put.read_text())
    assert ours["numFiles"] == 2


def test_should_leave_checksums_to_delta_where_the_session_wants_them_otherwise(
    spark: SparkSession, table: Path
) -> None:
    setting = "spark.databricks.delta.writeChecksumFile.enabled"
    into = target(spark, table)
    append(into, spark.sql(ROWS), 1)
    spark.conf.set(setting, "false")
    try:
        commit = append(into, spark.sql(ROWS), 2)
    finally:
        spark.conf.unset(setting)
    assert commit.after.position == 2
    assert not (table / "_delta_log" / f"{commit.version:020d}.crc").exists()


def test_should_record_progress_without_rows(spark: SparkSession, table: Path) -> None:
    into = target(spark, table)
    append(into, spark.range(1))
    commit = append(into, spark.range(0), 7)
    assert (commit.after.position, commit.rows, commit.files) == (7, 0, 0)


def test_should_say_once_why_spark_writes(spark: SparkSession, table: Path, caplog: pytest.LogCaptureFixture) -> None:
    spark.sql(f"CREATE TABLE delta.`{table}` (id BIGINT) USING delta")
    spark.sql(f"ALTER TABLE delta.`{table}` ADD CONSTRAINT positive CHECK (id >= 0)")
    into = target(spark, table, "auto")
    with caplog.at_level(logging.INFO, "buffer_delta.delta.writers"):
        for last in range(2):
            append(into, spark.range(2), last)
    assert [record.getMessage() for record in caplog.records] == [
        f"{table} is written by Spark's own writer, not by Arrow: CHECK constraints (positive)"
    ]
    assert set(by_arrow(table)) == {False}


def test_should_refuse_arrow_before_anything_is_claimed(spark: SparkSession, tmp_path: Path, table: Path) -> None:
    spark.sql(f"CREATE TABLE delta.`{table}` (id BIGINT, twice BIGINT GENERATED ALWAYS AS (id * 2)) USING delta")
    produce(tmp_path / "queue", numbered(1))
    settings: dict[str, Any] = {"store": str(tmp_path / "queue"), "format": {"type": "json", "schema": "id BIGINT"}}
    with pytest.raises(InvalidConfig, match=r"writer='arrow' cannot write .*: a generated column"):
        Loader(spark, LoaderConfig(table=str(table), writer="arrow", **settings)).run(available_now=True)
    made = LoaderConfig(
        table=str(tmp_path / "new"), writer="arrow", table_properties={"delta.columnMapping.mode": "name"}, **settings
    )
    with pytest.raises(InvalidConfig, match="column mapping"):
        Loader(spark, made).run(available_now=True)
    store = open_store(str(tmp_path / "queue"))
    assert Manifest.from_bytes(store.get("ingest/manifest").data, location="ingest/manifest").epoch == 0


def test_should_load_the_same_with_sparks_writer(spark: SparkSession, tmp_path: Path, table: Path) -> None:
    records = produce(tmp_path / "queue", numbered(3))
    settings: dict[str, Any] = {"format": {"type": "json", "schema": "id BIGINT"}, "gc_enabled": False}
    for writer in ("spark", "arrow"):
        name = tmp_path / writer
        manifest = f"ingest/{writer}"
        (tmp_path / "queue" / manifest).write_bytes((tmp_path / "queue/ingest/manifest").read_bytes())
        config = LoaderConfig(
            store=str(tmp_path / "queue"), table=str(name), manifest_path=manifest, writer=writer, **settings
        )
        Loader(spark, config).run(available_now=True)
        assert_exactly_once(spark, name, records)
        assert set(by_arrow(name)) == {writer == "arrow"}


@pytest.mark.thorough
def test_should_write_through_a_partition_that_is_a_link(spark: SparkSession, tmp_path: Path, table: Path) -> None:
    """As Spark's own writer does: no good row may become a dead letter for where a folder is."""
    spark.sql(f"CREATE TABLE delta.`{table}` (id BIGINT, part STRING) USING delta PARTITIONED BY (part)")
    disk, dead = tmp_path / "disk", tmp_path / "dead"
    disk.mkdir()
    (table / "part=a").symlink_to(disk)
    moved = tmp_path / "log"
    (table / "_delta_log").rename(moved)
    (table / "_delta_log").symlink_to(moved)
    config: dict[str, Any] = {"format": {"type": "json", "schema": "id BIGINT, part STRING"}, "gc_enabled": False}
    config |= {"store": str(tmp_path / "queue"), "table": str(table), "max_delivery_attempts": 1}
    config |= {"dead_letters": str(dead), "dlq_strategy": "skip", "merge_schema": True}
    for first in (0, 2):  # the second time it is known into what the rows go
        batch = [b'{"id": %d, "part": "%s"}' % (first + n, part) for n, part in enumerate((b"a", b"b"))]
        produce(tmp_path / "queue", [batch])
        Loader(spark, LoaderConfig(**config)).run(available_now=True)
    assert sorted((row.id, row.part) for row in read(spark, table).collect()) == [
        (0, "a"),
        (1, "b"),
        (2, "a"),
        (3, "b"),
    ]
    assert set(by_arrow(table)) == {True}
    assert len(list(disk.glob("*.parquet"))) == 2
    assert not dead.exists()
