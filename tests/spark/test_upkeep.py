"""Cadence and upkeep on real Delta tables: when it commits, checkpoints beside commits, compaction, maintenance."""

from __future__ import annotations

import queue as queues
import threading
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from buffer_delta.config import LoaderConfig
from buffer_delta.delta.table import DeltaTarget
from buffer_delta.delta.txn import Txn
from buffer_delta.load.loader import Loader
from buffer_delta.load.progress import Progress
from tests.nets import HANGS_S
from tests.spark.queues import assert_exactly_once, numbered, produce

pytestmark = pytest.mark.spark

JSON = {"type": "json", "schema": "id BIGINT"}


def config(folder: Path, **settings: Any) -> LoaderConfig:
    base = {"store": str(folder / "queue"), "table": str(folder / "table"), "format": JSON, "gc_enabled": False}
    return LoaderConfig(**base | settings)


def checkpoints(table: Path) -> list[int]:
    return sorted(int(path.name[:20]) for path in (table / "_delta_log").glob("*.checkpoint*.parquet"))


def operations(spark: SparkSession, table: Path) -> list[str]:
    return [row.operation for row in DeltaTable.forPath(spark, str(table)).history().orderBy("version").collect()]


def test_should_not_commit_again_within_the_interval_unless_a_range_is_full(
    spark: SparkSession, tmp_path: Path
) -> None:
    produce(tmp_path / "queue", numbered(2))
    seen: queues.Queue[Progress] = queues.Queue()
    settings = config(tmp_path, commit_interval_s=3600, trigger_interval_s=0.02, max_batches_per_commit=5)
    loader = Loader(spark, settings, on_progress=seen.put)
    running = threading.Thread(target=loader.run, kwargs={"handle_signals": False})
    running.start()
    try:
        first = seen.get(timeout=HANGS_S)
        assert (first.first, first.last) == (0, 1)
        produce(tmp_path / "queue", numbered(3, start=20))  # as many as would be a commit of their own
        produce(tmp_path / "queue", numbered(2, start=50))
        full = seen.get(timeout=HANGS_S)
        assert (full.first, full.last) == (2, 6), "one commit, as soon as the range is full"
    finally:
        loader.stop()
        running.join(HANGS_S)
    assert_exactly_once(spark, tmp_path / "table", 70)


def test_should_compact_with_the_hadoop_settings_of_the_session(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as keys, which may be given to a session that runs, and again when they are new."""
    table = tmp_path / "table"
    target = DeltaTarget(spark, str(table))
    for number in range(2):
        target.write(spark.range(1), Txn("app", number, number, 1, 1), target.look("app"))
    made: list[SparkSession] = []
    begin = SparkSession.newSession
    monkeypatch.setattr(SparkSession, "newSession", lambda given: made.append(begin(given)) or made[-1])
    try:
        for key in ("old", "new"):
            spark.conf.set("fs.s3a.access.key", key)
            target.upkeep.compact(1 << 20)
            hadoop = made[-1]._jsparkSession.sessionState().newHadoopConf()
            assert hadoop.get("fs.s3a.access.key") == key
    finally:
        spark.conf.unset("fs.s3a.access.key")


@pytest.mark.thorough
def test_should_make_checkpoints_beside_the_commits_and_leave_none_out(spark: SparkSession, tmp_path: Path) -> None:
    produce(tmp_path / "queue", numbered(7))
    table = tmp_path / "table"
    inside: list[list[int]] = []
    settings = config(tmp_path, max_batches_per_commit=1, table_properties={"delta.checkpointInterval": "3"})
    loader = Loader(
        spark,
        settings,
        reached=lambda step: inside.append(checkpoints(table)) if step.startswith("appended") else None,
    )
    loader.run(available_now=True)
    assert inside[2] == [], "version 3 was committed without waiting for its checkpoint"
    assert checkpoints(table), "it was made all the same, before the process ended"
    assert (table / "_delta_log" / "_last_checkpoint").exists()
    assert_exactly_once(spark, table, 70)
    spark.sql(f"OPTIMIZE delta.`{table}`")
    assert DeltaTarget(spark, str(table)).look("nobody").position == -1, "read from checkpoint and commits together"
    assert_exactly_once(spark, table, 70)


def test_should_compact_what_it_wrote_without_touching_exactly_once(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    produce(tmp_path / "queue", numbered(4))
    settings = config(tmp_path, max_batches_per_commit=1, compact_every_commits=4, app_id="app")
    Loader(spark, settings).run(available_now=True)
    assert operations(spark, table) == ["CREATE TABLE", *["WRITE"] * 4, "OPTIMIZE"]
    assert len(spark.read.format("delta").load(str(table)).inputFiles()) == 1
    state = DeltaTarget(spark, str(table)).look("app")
    assert (state.position, state.rewrite) == (3, None), "nothing took rows back"
    default = str(1 << 30)
    assert spark.conf.get("spark.databricks.delta.optimize.maxFileSize", default) == default, "the session is as it was"
    produce(tmp_path / "queue", numbered(2, start=40))
    Loader(spark, settings).run(available_now=True)
    spark.sql(f"OPTIMIZE delta.`{table}`")
    spark.sql(f"VACUUM delta.`{table}`")
    produce(tmp_path / "queue", numbered(1, start=60))
    Loader(spark, settings).run(available_now=True)
    rows = DeltaTable.forPath(spark, str(table)).history().orderBy("version").collect()
    assert [txn.last for row in rows if (txn := Txn.from_note(row.userMetadata))] == [0, 1, 2, 3, 4, 5, 6]
    assert_exactly_once(spark, table, 70)


@pytest.mark.thorough
def test_should_load_into_tables_that_compact_themselves(spark: SparkSession, tmp_path: Path) -> None:
    """Delta's own `optimizeWrite` and `autoCompact`, as the docs recommend them."""
    produce(tmp_path / "queue", numbered(6))
    properties = {"delta.autoOptimize.optimizeWrite": "true", "delta.autoOptimize.autoCompact": "true"}
    spark.conf.set("spark.databricks.delta.autoCompact.minNumFiles", "3")
    try:
        Loader(spark, config(tmp_path, max_batches_per_commit=1, table_properties=properties)).run(available_now=True)
    finally:
        spark.conf.unset("spark.databricks.delta.autoCompact.minNumFiles")
    assert "OPTIMIZE" in operations(spark, tmp_path / "table"), "inside our own commits"
    assert_exactly_once(spark, tmp_path / "table", 60)
