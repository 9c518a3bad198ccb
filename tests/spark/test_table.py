"""DeltaTarget on real Delta tables: positions, appends, conflicts, and what happened to a table meanwhile."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from buffer.errors import InvalidConfig, InvalidInput
from buffer_delta.delta import create, log_files
from buffer_delta.delta.places import path_of
from buffer_delta.delta.preflight import log_store_warnings, retention_warnings
from buffer_delta.delta.state import NO_TABLE, NOTHING, Commit, TableState
from buffer_delta.delta.table import DeltaTarget
from buffer_delta.delta.txn import Txn
from buffer_delta.delta.upkeep import TableUpkeep
from buffer_delta.delta.writers.base import Prepared, StagingWriter
from buffer_delta.delta.writers.spark import Fast, Public
from buffer_delta.errors import ConcurrentCommit, SchemaMismatch
from tests.nets import HANGS_S

APP = "buffer/01TEST"


@pytest.fixture
def target(spark: SparkSession, tmp_path: Path) -> DeltaTarget:
    return DeltaTarget(spark, str(tmp_path / "table"))


@pytest.fixture(params=["fast", "public", "arrow"])
def either(request: pytest.FixtureRequest, target: DeltaTarget, spark: SparkSession) -> DeltaTarget:
    """Every way to write."""
    assert isinstance(target._writer, Fast), "Delta's write command looks different: the slow way would be taken"
    if request.param == "public":
        target._writer = Public(None, target.name)
    return DeltaTarget(spark, target.name, writer="arrow") if request.param == "arrow" else target


@pytest.fixture
def database(spark: SparkSession) -> Iterator[str]:
    spark.sql("CREATE DATABASE lake")
    yield "lake"
    spark.sql("DROP DATABASE lake CASCADE")


def rows(spark: SparkSession, count: int = 3) -> DataFrame:
    return spark.range(0, count, 1, 1)


def txn(last: int, *, first: int = 0, app_id: str = APP) -> Txn:
    return Txn(app_id, first, last, epoch=1, entries=last - first + 1)


def append(target: DeltaTarget, df: DataFrame, last: int, *, first: int = 0, seen: TableState | None = None) -> Commit:
    return target.write(df, txn(last, first=first), seen or target.look(APP))


def position(target: DeltaTarget, app_id: str = APP) -> int | None:
    found = target.look(app_id).position
    return None if found == NOTHING else found


def count(spark: SparkSession, target: DeltaTarget) -> int:
    return spark.read.format("delta").load(target.name).count()


def commit_by_another_process(table: Path, version: int, *, app_id: str, last: int) -> None:
    """What a writer in another process leaves behind: one more file in the log, unknown to this JVM."""
    action = {"txn": {"appId": app_id, "version": last, "lastUpdated": 0}}
    (table / "_delta_log" / f"{version:020d}.json").write_text(json.dumps(action) + "\n")


# Names


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("/data/t", "/data/t"),
        ("./t", "./t"),
        (".hidden", ".hidden"),
        ("data/t", "data/t"),
        ("s3a://bucket/t", "s3a://bucket/t"),
        ("delta.`/data/t`", "/data/t"),
        ("DELTA.`/data/with``tick`", "/data/with`tick"),
        ("events", None),
        ("db.events", None),
        ("cat.db.events", None),
        ("delta.events", None),
    ],
)
def test_should_tell_paths_from_catalog_names(name: str, path: str | None) -> None:
    assert path_of(name) == path


def test_should_refuse_partitioning_with_clustering(spark: SparkSession) -> None:
    with pytest.raises(InvalidInput, match="exclude each other"):
        DeltaTarget(spark, "t", partition_by=["a"], cluster_by=["b"])


# Positions and appends


def test_should_know_nothing_of_a_table_that_is_not_there(target: DeltaTarget) -> None:
    assert target.look(APP) == NO_TABLE
    assert target.schema() is None
    assert not Path(target.name).exists()


def test_should_commit_rows_and_position_in_one_version(spark: SparkSession, either: DeltaTarget) -> None:
    target = either
    commit = append(target, rows(spark, 7), 4)

    assert (commit.rows, commit.files, commit.after.position, commit.skipped) == (7, 1, 4, False)
    assert commit.seconds > 0
    log = Path(target.name, "_delta_log", f"{commit.version:020d}.json").read_text()
    info = json.loads(log.splitlines()[0])["commitInfo"]
    assert Txn.from_note(info["userMetadata"]) == txn(4)
    assert commit.bytes == int(info["operationMetrics"]["numOutputBytes"]) > 0
    assert '"txn"' in log
    assert '"add"' in log
    assert position(target) == 4
    assert position(target, "another") is None


def test_should_report_a_commit_that_delta_skipped(spark: SparkSession, either: DeltaTarget) -> None:
    target = either
    append(target, rows(spark), 20)
    for last in (20, 15):
        commit = append(target, rows(spark), last)
        assert commit.skipped
        assert (commit.version, commit.rows, commit.files, commit.after.position) == (None, 0, 0, 20)
    assert count(spark, target) == 3


def test_should_record_progress_with_no_rows(spark: SparkSession, target: DeltaTarget) -> None:
    append(target, rows(spark), 4)
    commit = append(target, rows(spark, 0), 5, first=5)
    assert not commit.skipped
    assert commit.after.position == position(target) == 5
    assert count(spark, target) == 3


def test_should_see_a_commit_of_another_process_at_once(spark: SparkSession, target: DeltaTarget) -> None:
    append(target, rows(spark), 4)
    assert position(target) == 4
    commit_by_another_process(Path(target.name), 2, app_id=APP, last=9)
    assert position(target) == 9
    assert append(target, rows(spark), 9).skipped


@pytest.mark.thorough
def test_should_notice_that_the_log_was_put_back_and_went_on_elsewhere(
    spark: SparkSession, target: DeltaTarget, tmp_path: Path
) -> None:
    append(target, rows(spark), 4)
    shutil.copytree(target.name, tmp_path / "backup")
    append(target, rows(spark), 9, first=5)
    assert position(target) == 9
    shutil.rmtree(target.name)
    shutil.copytree(tmp_path / "backup", target.name)
    for version in (2, 3):
        commit_by_another_process(Path(target.name), version, app_id="another", last=version)
    assert position(target) == 4


def test_should_find_its_own_commit_among_others(spark: SparkSession, target: DeltaTarget) -> None:
    """Another writer may commit between our write and our look at the log."""
    append(target, rows(spark), 4)
    for version in (2, 3):
        commit_by_another_process(Path(target.name), version, app_id="another", last=version)
    after = target.look(APP)
    assert after.version == 3
    found = target._find(txn(4), 0, after)
    assert found is not None
    assert (found.version, found.rows) == (1, 3)
    assert target._find(txn(4), 1, after) is None


def test_should_read_positions_without_a_job(spark: SparkSession, target: DeltaTarget) -> None:
    append(target, rows(spark), 4)
    target.look(APP)
    assert _jobs(spark, lambda: target.look(APP)) == []
    assert _jobs(spark, lambda: rows(spark).count()) != []


def _jobs(spark: SparkSession, action: Callable[[], Any]) -> list[int]:
    """The jobs that it has run."""
    context, group = spark.sparkContext, f"jobs of {action}"
    context.setJobGroup(group, "")
    try:
        action()
    finally:
        context._jsc.clearJobGroup()
    return list(context.statusTracker().getJobIdsForGroup(group))


def test_should_work_by_catalog_name(spark: SparkSession, database: str) -> None:
    target = DeltaTarget(spark, f"{database}.events")
    assert position(target) is None
    assert target.look(APP).table_id is None
    assert append(target, rows(spark, 5), 4).rows == 5
    assert append(target, rows(spark, 5), 4).skipped
    assert append(target, rows(spark, 0), 5, first=5).after.position == 5
    assert spark.table(f"{database}.events").count() == 5
    by_three_parts = DeltaTarget(spark, f"spark_catalog.{database}.events")
    assert position(by_three_parts) == 5
    assert by_three_parts.look(APP).table_id == target.look(APP).table_id
    assert position(DeltaTarget(spark, f"spark_catalog.{database}.none")) is None
    assert DeltaTarget(spark, "nobody.none").look(APP).table_id is None


def test_should_work_with_a_quoted_path(spark: SparkSession, tmp_path: Path) -> None:
    target = DeltaTarget(spark, f"delta.`{tmp_path}/a #b%20c ü`")
    append(target, rows(spark), 0)
    assert (tmp_path / "a #b%20c ü" / "_delta_log").is_dir()
    assert position(target) == 0


# Creation


def test_should_create_the_table_as_asked(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(0, 4, 1, 1).selectExpr("id", "id % 2 AS part")
    partitioned = DeltaTarget(
        spark,
        str(tmp_path / "p"),
        partition_by=["part"],
        properties={"delta.appendOnly": "true", "team": "me"},
    )
    append(partitioned, df, 0)
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{partitioned.name}`").first()
    assert detail is not None
    assert detail.partitionColumns == ["part"]
    assert detail.properties["delta.appendOnly"] == "true"
    assert detail.properties["team"] == "me"
    clustered = DeltaTarget(spark, str(tmp_path / "c"), cluster_by=["part"])
    append(clustered, df, 0)
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{clustered.name}`").first()
    assert detail is not None
    assert detail.clusteringColumns == ["part"]
    assert append(clustered, df, 1).rows == 4


@pytest.mark.parametrize("spelling", ["{}/", "file://{}", "{}/../table", "delta.`{}//`"])
def test_should_create_the_table_however_its_path_is_spelled(
    spark: SparkSession, tmp_path: Path, spelling: str
) -> None:
    table = tmp_path / "table"
    target = DeltaTarget(spark, spelling.format(table), writer="arrow")
    append(target, rows(spark), last=0)
    append(target, rows(spark), last=1)
    assert spark.read.format("delta").load(str(table)).count() == 6
    assert target.place == DeltaTarget(spark, str(table)).place


def test_should_end_well_when_several_create_the_table_at_once(spark: SparkSession, tmp_path: Path) -> None:
    results: list[Commit | BaseException] = []

    def load(last: int) -> None:
        target = DeltaTarget(spark, str(tmp_path / "t"), properties={"a": "b"})
        try:
            results.append(target.write(rows(spark), txn(last, app_id=f"app{last}"), NO_TABLE))
        except BaseException as error:  # noqa: BLE001  # shown by the assertion below, in the main thread
            results.append(error)

    threads = [threading.Thread(target=load, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(result) for result in results] == [Commit] * 4, results
    assert spark.read.format("delta").load(str(tmp_path / "t")).count() == 12


LEFTOVERS = {
    "nothing": (),
    "everything": (
        "_staged_commits/",
        ".00000000000000000000.json.5e1f.tmp",
        "00000000000000000000.crc",
        ".00000000000000000000.json.crc",
    ),
}
"""What a crash leaves beside the commit that it had not made."""


@pytest.mark.parametrize("leftovers", LEFTOVERS.values(), ids=LEFTOVERS)
@pytest.mark.parametrize("how", ["path", "name", "registered name"])
def test_should_create_a_half_created_table_again(
    spark: SparkSession, tmp_path: Path, how: str, leftovers: tuple[str, ...]
) -> None:
    """A crash before version 0 was in the log. Delta neither reads such a folder nor creates a table in it."""
    name = str(tmp_path / "t") if how == "path" else "t_half"
    warehouse = (spark.conf.get("spark.sql.warehouse.dir") or "").removeprefix("file:")
    folder = tmp_path / "t" if how == "path" else Path(warehouse, "t_half")
    if how == "registered name":
        spark.sql("CREATE TABLE t_half (id BIGINT) USING delta")
        shutil.rmtree(folder)
    try:
        (folder / "_delta_log").mkdir(parents=True)
        for leftover in leftovers:
            path = folder / "_delta_log" / leftover
            path.mkdir() if leftover.endswith("/") else path.write_text("{}")
        target = DeltaTarget(spark, name, properties={"team": "me"})
        assert target.look(APP) == NO_TABLE
        assert append(target, rows(spark), 4).after.position == 4
        assert target.preflight() == []
        found = spark.read.format("delta").load(name) if how == "path" else spark.table(name)
        assert found.count() == 3
        detail = spark.sql(f"DESCRIBE DETAIL {f'delta.`{name}`' if how == 'path' else name}").first()
        assert detail is not None
        assert detail.properties["team"] == "me"
    finally:
        if how != "path":
            spark.sql("DROP TABLE IF EXISTS t_half")
            shutil.rmtree(folder, ignore_errors=True)


def test_should_create_a_table_where_a_drop_has_left_the_locks_of_the_store(
    spark: SparkSession, tmp_path: Path
) -> None:
    target = DeltaTarget(spark, str(tmp_path / "t"), writer="arrow")
    append(target, rows(spark), 0)
    for path in (tmp_path / "t").iterdir():
        if path.name != ".buffer-locks":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert list((tmp_path / "t").iterdir()), "the locks are what Delta stumbles over"
    assert append(target, rows(spark), 0, seen=NO_TABLE).after.position == 0
    assert spark.read.format("delta").load(target.name).count() == 3


def test_should_write_nothing_ahead_into_the_folder_of_a_table_that_is_gone(
    spark: SparkSession, tmp_path: Path
) -> None:
    target = DeltaTarget(spark, str(tmp_path / "t"), writer="arrow")
    append(target, rows(spark), 0)
    another = DeltaTarget(spark, str(tmp_path / "t"), writer="arrow")  # which has written nothing
    assert target.last_sink() is not None
    assert another.last_sink() is not None
    shutil.rmtree(tmp_path / "t")
    assert target.last_sink() is None
    assert another.last_sink() is None
    assert append(target, rows(spark), 0, seen=NO_TABLE).after.position == 0


def test_should_notice_that_another_creation_has_replaced_ours(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on S3, where Spark's log store puts a version without a condition, and Delta's checksum of it after that."""
    first = tmp_path / "t" / "_delta_log" / f"{0:020d}.json"
    theirs = "11111111-2222-3333-4444-555555555555"
    execute, ours = create._execute, []

    def put(file: Path) -> None:
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        file.write_text(file.read_text().replace(ours[0], theirs))

    def both(spark: SparkSession, table_log: Any, *given: Any) -> None:
        execute(spark, table_log, *given)
        ours.append(table_log.newest().table_id)
        put(first)

    monkeypatch.setattr(create, "_execute", both)
    target = DeltaTarget(spark, str(tmp_path / "t"), writer="arrow")
    with pytest.raises(ConcurrentCommit, match="created the table at the same moment"):
        append(target, rows(spark), 0)
    put(first.with_suffix(".crc"))
    assert target.look(APP).table_id == theirs, "looking again finds theirs"
    assert append(target, rows(spark), 0).after.position == 0


def test_should_refuse_to_compact_where_its_commit_could_replace_another(spark: SparkSession) -> None:
    upkeep = TableUpkeep(spark, None, "/t", leaves_checkpoints=True)
    upkeep.check_compaction("file:/t")
    with pytest.raises(InvalidConfig, match=r"compact_every_commits .*S3DynamoDBLogStore"):
        upkeep.check_compaction("s3a://lake/t")


def test_should_not_clean_up_a_log_that_was_more_than_begun(spark: SparkSession, target: DeltaTarget) -> None:
    """A checkpoint without its commits is damage, not a beginning: nothing of it is touched."""
    log = Path(target.name, "_delta_log")
    log.mkdir(parents=True)
    kept = {"_last_checkpoint", ".x.tmp"}
    for name in kept:
        (log / name).write_text("{}")
    with pytest.raises(Exception, match="DELTA_"):
        append(target, rows(spark), 0, seen=NO_TABLE)
    assert {file.name for file in log.iterdir()} == kept


def test_should_not_touch_a_folder_that_holds_something_else(spark: SparkSession, tmp_path: Path) -> None:
    rows(spark).write.parquet(str(tmp_path / "t"))
    target = DeltaTarget(spark, str(tmp_path / "t"))
    with pytest.raises(AnalysisException):
        append(target, rows(spark), 0)


# Conflicts


def _gated(spark: SparkSession, folder: Path) -> DataFrame:
    """A DataFrame whose rows come only after the file `folder/go` was made; it makes `folder/waiting` before."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pathlib
        import time

        pathlib.Path(folder, "waiting").touch()
        deadline = time.monotonic() + HANGS_S
        while not pathlib.Path(folder, "go").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        yield from batches

    return spark.range(0, 3, 1, 1).mapInArrow(wait, "id long")


def _while_writing(folder: Path, write: Callable[[], Any], meanwhile: Callable[[], Any]) -> Any:
    """Run `meanwhile` after `write` has begun its transaction and before it commits; return what `write` did."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(write())
        except BaseException as error:  # noqa: BLE001  # handed to the main thread
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        deadline = time.monotonic() + HANGS_S
        while not (folder / "waiting").exists() and time.monotonic() < deadline and thread.is_alive():
            time.sleep(0.02)
        meanwhile()
    finally:
        (folder / "go").touch()
        thread.join()
    return outcome[0]


def test_should_report_a_concurrent_commit_of_the_same_app(
    spark: SparkSession, either: DeltaTarget, tmp_path: Path
) -> None:
    target = either
    append(target, rows(spark), 4)
    error = _while_writing(
        tmp_path,
        lambda: append(target, _gated(spark, tmp_path), 9, first=5),
        lambda: append(DeltaTarget(spark, target.name), rows(spark), 9, first=5),
    )
    assert isinstance(error, ConcurrentCommit)
    assert (error.reason, error.table, error.last) == ("ConcurrentTransactionException", target.name, 9)
    assert position(target) == 9
    assert count(spark, target) == 6


def test_should_report_a_concurrent_change_of_the_table(
    spark: SparkSession, target: DeltaTarget, tmp_path: Path
) -> None:
    append(target, rows(spark), 4)
    error = _while_writing(
        tmp_path,
        lambda: append(target, _gated(spark, tmp_path), 9, first=5),
        lambda: spark.sql(f"ALTER TABLE delta.`{target.name}` SET TBLPROPERTIES ('a' = 'b')"),
    )
    assert isinstance(error, ConcurrentCommit)
    assert error.reason == "MetadataChangedException"
    assert position(target) == 4


# Schemas


@pytest.mark.parametrize("how", ["path", "name", "name public"])
def test_should_name_the_columns_that_do_not_fit(spark: SparkSession, tmp_path: Path, how: str) -> None:
    name = str(tmp_path / "t") if how == "path" else "t_mismatch"
    target = DeltaTarget(spark, name)
    if how == "name public":
        target._writer = Public(name, None)
    append(target, spark.sql("SELECT 1L AS id, 'x' AS name"), 0)
    with pytest.raises(SchemaMismatch, match="merge_schema=True") as caught:
        append(target, spark.sql("SELECT 1L AS id, 'x' AS name, true AS extra"), 1)
    assert caught.value.columns == ("extra",)
    with pytest.raises(SchemaMismatch, match=r"name \(table: string, rows: array<int>\)"):
        append(target, spark.sql("SELECT 1L AS id, array(1) AS name"), 1)
    assert position(target) == 0
    if how != "path":
        spark.sql("DROP TABLE t_mismatch")


def test_should_widen_the_table_when_told_to(spark: SparkSession) -> None:
    target = DeltaTarget(spark, "t_widen", merge_schema=True)
    append(target, spark.sql("SELECT 1L AS id, named_struct('a', 1) AS s"), 0)
    append(target, spark.sql("SELECT 2L AS id, named_struct('a', 1, 'b', 2) AS s, 'x' AS new"), 1)
    schema = target.schema()
    assert schema is not None
    assert schema.simpleString() == "struct<id:bigint,s:struct<a:int,b:int>,new:string>"
    spark.sql("DROP TABLE t_widen")


# What happened to the table meanwhile


def test_should_see_that_a_table_was_dropped_and_made_again(spark: SparkSession, target: DeltaTarget) -> None:
    append(target, rows(spark), 4)
    first = target.look(APP).table_id
    assert first is not None
    assert target.look(APP).table_id == first
    shutil.rmtree(target.name)
    assert target.look(APP).table_id is None
    assert position(target) is None
    append(target, rows(spark), 2)  # as many versions as before: only the id tells them apart
    assert target.look(APP).table_id not in (None, first)
    assert position(target) == 2


def test_should_report_what_took_rows_back(spark: SparkSession) -> None:
    name = "t_rewritten"
    actions = {
        "RESTORE": f"RESTORE TABLE {name} TO VERSION AS OF 0",
        "CREATE OR REPLACE TABLE": f"CREATE OR REPLACE TABLE {name} (id BIGINT) USING delta",
        "overwrite": f"INSERT OVERWRITE {name} VALUES (1L)",
    }
    target = DeltaTarget(spark, name)
    for last, (operation, statement) in enumerate(actions.items()):
        append(target, rows(spark), last, first=last)
        assert target.look(APP).rewrite is None
        spark.sql(statement)
        assert position(target) == last, "Delta keeps the transaction"
        rewrite = target.look(APP).rewrite
        assert rewrite is not None
        assert rewrite.operation == operation
        assert rewrite.version == target.look(APP).version
        assert rewrite.timestamp.startswith("20")
    spark.sql(f"DROP TABLE {name}")


def test_should_report_what_took_rows_back_while_it_wrote(spark: SparkSession, either: DeltaTarget) -> None:
    """Our commit comes after it, and hides it from every later look: this is the last moment to say it."""
    append(either, rows(spark), 4)
    how = "stage" if isinstance(either._writer, StagingWriter) else "write"
    real = getattr(either._writer, how)

    def somebody_comes_first(prepared: Prepared, txn: Txn) -> Any:
        spark.sql(f"INSERT OVERWRITE delta.`{either.name}` VALUES (1L)")
        return real(prepared, txn)

    setattr(either._writer, how, somebody_comes_first)
    commit = append(either, rows(spark), 9, first=5)
    assert commit.hidden is not None
    assert (commit.version, commit.hidden.operation, commit.hidden.version) == (3, "overwrite", 2)
    assert position(either) == 9
    assert either.look(APP).rewrite is None


def test_should_commit_on_the_very_version_that_was_seen(spark: SparkSession, target: DeltaTarget) -> None:
    """What came after the look conflicts, if it moved the app, or is told, if it took rows back."""
    append(target, rows(spark), 4)
    seen = target.look(APP)
    append(DeltaTarget(spark, target.name), rows(spark), 9, first=5)
    with pytest.raises(ConcurrentCommit):
        append(target, rows(spark), 12, first=5, seen=seen)
    seen = target.look(APP)
    spark.sql(f"INSERT OVERWRITE delta.`{target.name}` VALUES (1L)")
    commit = append(target, rows(spark), 12, first=10, seen=seen)
    assert commit.hidden is not None
    assert count(spark, target) == 4


def test_should_not_load_into_a_table_that_somebody_else_created_and_moved(
    spark: SparkSession, target: DeltaTarget
) -> None:
    append(DeltaTarget(spark, target.name), rows(spark), 4)
    with pytest.raises(ConcurrentCommit):
        append(target, rows(spark), 9, seen=NO_TABLE)
    assert position(target) == 4


@pytest.mark.thorough
def test_should_leave_an_overwrite_of_some_partitions_to_the_user(spark: SparkSession, tmp_path: Path) -> None:
    target = DeltaTarget(spark, str(tmp_path / "table"), partition_by=["part"])
    frame = spark.range(0, 4, 1, 1).selectExpr("id", "id % 2 AS part")
    append(target, frame, 0)
    dynamic = frame.where("part = 1").write.format("delta").mode("overwrite")
    dynamic.option("partitionOverwriteMode", "dynamic").save(target.name)
    assert count(spark, target) == 4
    assert target.look(APP).rewrite is None
    frame.where("part = 1").write.format("delta").mode("overwrite").option("replaceWhere", "part = 1").save(target.name)
    assert target.look(APP).rewrite is None
    append(target, frame, 1, first=1)


def test_should_report_an_overwrite_of_a_table_without_partitions_in_a_dynamic_session(
    spark: SparkSession, target: DeltaTarget
) -> None:
    """Delta notes that only some partitions were overwritten, and replaces the whole table."""
    append(target, rows(spark), 0)
    frame = spark.range(7).write.format("delta").mode("overwrite").option("partitionOverwriteMode", "dynamic")
    frame.save(target.name)
    assert count(spark, target) == 7
    rewrite = target.look(APP).rewrite
    assert rewrite is not None
    assert (rewrite.operation, rewrite.version) == ("overwrite", target.look(APP).version)


def test_should_not_stumble_over_a_log_that_was_cleaned_up(spark: SparkSession, target: DeltaTarget) -> None:
    append(target, rows(spark), 0)
    commit_by_another_process(Path(target.name), 2, app_id="another", last=0)
    position(target)
    target._log._log.checkpoint()
    for version in range(2):
        Path(target.name, "_delta_log", f"{version:020d}.json").unlink()
    again = DeltaTarget(spark, target.name)
    assert position(again) == 0
    assert again.look(APP).rewrite is None


def test_should_compute_the_position_where_a_commit_is_too_large_to_be_read(
    spark: SparkSession, target: DeltaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "ACTIONS_READ_MAX", 1)
    append(target, rows(spark), 4)
    assert position(target) == 4
    assert append(target, rows(spark), 9, first=5).after.position == 9


def test_should_read_a_local_log_as_the_log_store_does(spark: SparkSession, target: DeltaTarget) -> None:
    append(target, rows(spark), 4)
    append(target, rows(spark), 9, first=5)
    java = target._log.java
    direct, through_spark = target._log.files, log_files.ThroughSpark(spark, java, java.logPath())
    assert isinstance(direct, log_files.OnDisk)
    for version in range(4):  # one more than there are
        assert direct.exists(version) == through_spark.exists(version) == (version < 3)
        assert direct.head(version) == through_spark.head(version)
        assert direct.actions(version) == through_spark.actions(version)


def test_should_read_through_the_log_store_that_somebody_chose(
    spark: SparkSession, target: DeltaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target._log, "_has_own_store", True)
    append(target, rows(spark), 4)
    assert append(target, rows(spark), 9, first=5).after.position == 9
    assert isinstance(target._log.files, log_files.ThroughSpark)


@pytest.mark.parametrize("by_name", [False, True])
def test_should_widen_numbers_to_the_table(spark: SparkSession, tmp_path: Path, by_name: bool) -> None:
    name = "t_wider" if by_name else str(tmp_path / "t")
    target = DeltaTarget(spark, name)
    append(target, spark.sql("SELECT 1L AS id, 1.5D AS share"), 0)
    append(target, spark.sql("SELECT 2 AS id, CAST(2.5 AS FLOAT) AS share"), 1)
    found = (spark.table(name) if by_name else spark.read.format("delta").load(name)).orderBy("id").collect()
    assert [tuple(row) for row in found] == [(1, 1.5), (2, 2.5)]
    if by_name:
        spark.sql(f"DROP TABLE {name}")


@pytest.mark.thorough
def test_should_show_new_rows_to_whoever_has_cached_the_table(spark: SparkSession, target: DeltaTarget) -> None:
    append(target, rows(spark, 3), 0)
    cached = spark.read.format("delta").load(target.name).cache()
    assert cached.count() == 3
    append(target, rows(spark, 4), 1)
    assert spark.read.format("delta").load(target.name).count() == 7
    cached.unpersist()


# Preflight


def test_should_warn_about_forgetful_transactions(spark: SparkSession, target: DeltaTarget) -> None:
    append(target, rows(spark), 0)
    assert target.preflight() == []
    spark.sql(
        f"ALTER TABLE delta.`{target.name}` SET TBLPROPERTIES "
        "('delta.setTransactionRetentionDuration' = 'interval 7 days')"
    )
    (warning,) = target.preflight()
    assert "setTransactionRetentionDuration='interval 7 days'" in warning
    assert retention_warnings("t", {}) == []


def test_should_warn_about_logs_that_are_safe_with_one_driver_only() -> None:
    assert log_store_warnings("t", "/data/t", {}) == []
    assert log_store_warnings("t", "file:/data/t", {}) == []
    assert log_store_warnings("t", "abfss://c@a/t", {}) == []
    (warning,) = log_store_warnings("t", "s3a://bucket/t", {})
    assert "one Spark driver" in warning
    single = {"spark.delta.logStore.s3a.impl": "io.delta.storage.S3SingleDriverLogStore"}
    assert log_store_warnings("t", "s3a://bucket/t", single)
    several = {"spark.delta.logStore.s3a.impl": "io.delta.storage.S3DynamoDBLogStore"}
    assert log_store_warnings("t", "s3a://bucket/t", several) == []
