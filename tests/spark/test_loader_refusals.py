"""States that a loader must not go on from: each is refused with the way out, and nothing is committed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from buffer.errors import BufferQueueError, InvalidConfig, LedgerLost, ManifestLost, QueueBehindConsumer
from buffer.manifest import Manifest
from buffer.store.open import open_store
from buffer_delta.config import LoaderConfig
from buffer_delta.delta.writers.transaction import Begun, Transactions
from buffer_delta.errors import LedgerBehind, QueueBound, SequenceGap, TableReplaced, TableRewritten
from buffer_delta.load.loader import Loader
from tests.spark.queues import assert_exactly_once, ids, numbered, produce

pytestmark = pytest.mark.spark

MANIFEST = "ingest/manifest"
LEDGER = "ingest/manifest.ledger"

Load = Callable[..., Any]
Make = Callable[..., Loader]


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    return tmp_path / "queue"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture
def make(spark: SparkSession, queue: Path, table: Path) -> Make:
    def make(reached: Callable[[str], None] | None = None, **settings: Any) -> Loader:
        settings = {
            "store": str(queue),
            "table": str(table),
            "format": {"type": "json", "schema": "id BIGINT"},
            "gc_enabled": False,
            **settings,
        }
        return Loader(spark, LoaderConfig(**settings), reached=reached)

    return make


@pytest.fixture
def load(make: Make) -> Load:
    def load(**settings: Any) -> Any:
        return make(**settings).run(available_now=True)

    return load


def epoch(queue: Path) -> int:
    return Manifest.from_bytes((queue / MANIFEST).read_bytes()).epoch


def refused(queue: Path, load: Load, error: type[BufferQueueError], match: str, **settings: Any) -> None:
    """Refused, before anything was claimed."""
    before = epoch(queue)
    with pytest.raises(error, match=match):
        load(**settings)
    assert epoch(queue) == before


def test_should_refuse_when_the_ledger_was_deleted(spark: SparkSession, queue: Path, table: Path, load: Load) -> None:
    produce(queue, numbered(2))
    load(app_id="app")
    (queue / LEDGER).unlink()
    produce(queue, numbered(1, start=20))
    refused(queue, load, LedgerLost, "adopt=True")
    load(adopt=True, app_id="app")
    assert_exactly_once(spark, table, 30)
    produce(queue, numbered(1, start=30))
    load()
    assert_exactly_once(spark, table, 40)


def test_should_refuse_another_app_id(queue: Path, load: Load) -> None:
    produce(queue, numbered(1))
    load(app_id="one")
    refused(queue, load, QueueBound, "one.*two", app_id="two")


@pytest.mark.thorough
def test_should_refuse_another_main_table_and_let_the_others_change(
    spark: SparkSession, queue: Path, table: Path, tmp_path: Path, load: Load
) -> None:
    """Tables join and leave between ranges; the main one is known by where it is, and by its id where it was moved."""
    settings: dict[str, Any] = {"format": {"type": "json", "schema": "id BIGINT"}}
    produce(queue, numbered(1))
    load(**settings)
    refused(queue, load, QueueBound, "elsewhere", table=str(tmp_path / "elsewhere"), **settings)
    table.rename(tmp_path / "for a while")  # after one range, whose plan was written before there was a table
    load(**settings, table=str(tmp_path / "for a while"))
    (tmp_path / "for a while").rename(table)
    produce(queue, [[b"no JSON"], *numbered(1, start=10)])
    load(**settings, dead_letters=str(tmp_path / "dead"))
    assert spark.read.format("delta").load(str(tmp_path / "dead")).count() == 1
    produce(queue, numbered(1, start=20))
    refused(queue, load, QueueBound, "another", table="./another", **settings)
    link, moved = tmp_path / "link", tmp_path / "moved"
    link.symlink_to(table)
    load(**settings, table=f"file:{link}/")
    produce(queue, numbered(1, start=30))
    table.rename(moved)
    load(**settings, table=str(moved), dead_letters=str(tmp_path / "dead"))
    assert_exactly_once(spark, moved, 40)


@pytest.mark.parametrize("spelling", ["{}/", "delta.`{}`", "file:{}"])
def test_should_refuse_one_table_under_two_names(
    spark: SparkSession, queue: Path, table: Path, load: Load, spelling: str
) -> None:
    """The second would count as loaded once the first is, and its rows would be nowhere."""
    produce(queue, numbered(1))
    refused(queue, load, InvalidConfig, "the same table", dead_letters=spelling.format(table))
    assert not (queue / LEDGER).exists()
    assert not table.exists()


def test_should_not_bind_a_queue_to_a_folder_that_cannot_become_a_table(
    spark: SparkSession, queue: Path, table: Path, load: Load
) -> None:
    """A slip in the first call must not take the queue away from the right table."""
    produce(queue, numbered(1))
    refused(queue, load, InvalidConfig, "cannot be created: its folder holds 'ingest'", table=str(queue))
    load()
    assert_exactly_once(spark, table, 10)
    shutil.rmtree(table / "_delta_log")  # of a queue that is bound, it is told what became of its table
    with pytest.raises(SequenceGap, match="has loaded nothing yet, the queue goes on at 1"):
        load()


def test_should_refuse_one_table_through_a_link(queue: Path, table: Path, tmp_path: Path, load: Load) -> None:
    """A routed record was dropped: the second name's position was the first one's."""
    produce(queue, numbered(1))
    table.mkdir()
    (tmp_path / "link").symlink_to(table)
    more = {"route_by": "id", "routes": {"1": str(tmp_path / "link")}}
    refused(queue, load, InvalidConfig, "the same table", **more)


def test_should_refuse_a_catalog_table_beside_its_own_name(spark: SparkSession, queue: Path, load: Load) -> None:
    produce(queue, numbered(1))
    refused(queue, load, InvalidConfig, "the same table", table="two_names", dead_letters="default.Two_Names")
    spark.sql("CREATE TABLE two_names (id BIGINT) USING delta")
    try:
        location = spark.sql("DESCRIBE DETAIL two_names").first().location
        refused(queue, load, InvalidConfig, "the same table", table="two_names", dead_letters=location)
    finally:
        spark.sql("DROP TABLE two_names")


def test_should_refuse_a_catalog_that_ends_with_the_session(
    spark: SparkSession, queue: Path, tmp_path: Path, load: Load
) -> None:
    """The second start would find no table, and a queue without its batches."""
    produce(queue, numbered(1))
    refused(queue, load, InvalidConfig, "in-memory catalog.*catalogImplementation=hive", table="short_lived")
    location = tmp_path / "outside"
    spark.sql(f"CREATE TABLE lasting (value STRING) USING delta LOCATION '{location}'")  # its files stay
    try:
        refused(queue, load, InvalidConfig, "in-memory catalog", table="lasting", dead_letters="short_lived")
    finally:
        spark.sql("DROP TABLE lasting")


def test_should_refuse_a_manifest_put_back_from_a_backup(queue: Path, tmp_path: Path, load: Load) -> None:
    produce(queue, numbered(2))
    shutil.copy(queue / MANIFEST, tmp_path / "backup")
    load()
    produce(queue, numbered(2, start=20))
    load()
    shutil.copy(tmp_path / "backup", queue / MANIFEST)
    refused(queue, load, ManifestLost, "backup")
    # New batches fill the sequences up again, and still it is not the queue that was loaded.
    produce(queue, numbered(4, start=100))
    refused(queue, load, ManifestLost, "backup")


def test_should_refuse_a_manifest_of_an_earlier_claim(queue: Path, tmp_path: Path, load: Load) -> None:
    """Nothing was added since the backup: only the epoch gives it away."""
    produce(queue, numbered(2))
    load()
    shutil.copy(queue / MANIFEST, tmp_path / "backup")
    load()
    shutil.copy(tmp_path / "backup", queue / MANIFEST)
    refused(queue, load, ManifestLost, "epoch 2")


def test_should_not_ack_batches_that_took_the_place_of_the_loaded_ones(queue: Path, tmp_path: Path, make: Make) -> None:
    """The manifest is put back while the loader commits, and producers go on from there."""
    produce(queue, numbered(1))
    backup = tmp_path / "backup"

    def put_back(step: str) -> None:
        if step == "acked":
            shutil.copy(queue / MANIFEST, backup)
            produce(queue, numbered(2, start=10))
        elif step == "decoded" and backup.exists():
            shutil.copy(backup, queue / MANIFEST)
            produce(queue, numbered(5, start=100))

    loader = make(reached=put_back)
    assert loader.run_once() is not None
    with pytest.raises(ManifestLost, match="sequence 2 of"):
        loader.run_once()
    loader.close()
    assert Manifest.from_bytes((queue / MANIFEST).read_bytes()).first_sequence == 1


def test_should_refuse_a_manifest_that_is_gone(queue: Path, load: Load) -> None:
    produce(queue, numbered(2))
    load()
    (queue / MANIFEST).unlink()
    with pytest.raises(ManifestLost, match="gone"):
        load()
    assert not (queue / MANIFEST).exists()


def test_should_refuse_a_table_that_is_ahead_of_the_queue(queue: Path, tmp_path: Path, load: Load) -> None:
    produce(queue, numbered(5))
    load(app_id="app")
    other = tmp_path / "other"
    produce(other, numbered(2))
    refused(other, load, LedgerBehind, "another queue", store=str(other), app_id="app")
    with pytest.raises(QueueBehindConsumer, match="4"):
        load(store=str(other), app_id="app", adopt=True)


def test_should_refuse_an_app_id_that_another_queue_used(
    spark: SparkSession, queue: Path, table: Path, tmp_path: Path, load: Load
) -> None:
    produce(queue, numbered(2))
    load(app_id="app")
    other = tmp_path / "other"
    produce(other, numbered(8, start=1000))
    refused(other, load, LedgerBehind, "another app_id", store=str(other), app_id="app")
    assert ids(spark, table) == list(range(20))


def test_should_refuse_a_table_in_the_middle_of_the_plan(queue: Path, tmp_path: Path, load: Load) -> None:
    """Two queues under one app_id: what the other one committed must not pass for ours and be dequeued."""
    produce(queue, numbered(4))
    produce(tmp_path / "other", numbered(2, start=100))

    def other_comes_first(step: str) -> None:
        if step == "planned":
            load(store=str(tmp_path / "other"), app_id="app")

    with pytest.raises(LedgerBehind, match=r"middle of the range 0\.\.3"):
        load(reached=other_comes_first, app_id="app")
    refused(queue, load, LedgerBehind, r"middle of the range 0\.\.3", app_id="app")
    assert Manifest.from_bytes((queue / MANIFEST).read_bytes()).first_sequence == 0


@pytest.mark.thorough
def test_should_go_on_after_an_old_ledger_was_put_back_and_adopted(
    spark: SparkSession, queue: Path, table: Path, tmp_path: Path, load: Load
) -> None:
    produce(queue, numbered(2))
    load(app_id="app")
    produce(queue, numbered(4, start=20))

    def die(step: str) -> None:
        if step == "planned":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(reached=die, app_id="app")
    shutil.copy(queue / LEDGER, tmp_path / "backup")  # it plans 2..5
    (queue / LEDGER).unlink()
    load(app_id="app", adopt=True, max_batches_per_commit=1)
    produce(queue, numbered(1, start=60))
    shutil.copy(tmp_path / "backup", queue / LEDGER)
    assert_exactly_once(spark, table, 60)
    load(app_id="app", adopt=True)
    assert_exactly_once(spark, table, 70)


def test_should_refuse_a_queue_that_starts_beyond_the_table(
    spark: SparkSession, queue: Path, table: Path, load: Load
) -> None:
    produce(queue, numbered(2))
    load()
    produce(queue, numbered(3, start=20))
    store = open_store(str(queue))
    seen = store.get(MANIFEST)
    store.put(MANIFEST, Manifest.from_bytes(seen.data).dequeue(3).to_bytes())
    with pytest.raises(SequenceGap, match="on_gap='skip'") as error:
        load()
    assert (error.value.committed, error.value.earliest) == (1, 4)
    assert ids(spark, table) == list(range(20))
    load(on_gap="skip")
    assert ids(spark, table) == [*range(20), *range(40, 50)]


def test_should_refuse_a_table_that_was_dropped_and_made_again(
    spark: SparkSession, queue: Path, table: Path, load: Load
) -> None:
    for start in (0, 10):  # the second plan knows the table's id
        produce(queue, numbered(1, start=start))
        load()
    shutil.rmtree(table)
    refused(queue, load, TableReplaced, "dropped since")
    spark.sql(f"CREATE TABLE delta.`{table}` (id BIGINT) USING delta")
    refused(queue, load, TableReplaced, "made again")
    produce(queue, numbered(1, start=20))
    load(on_gap="skip", merge_schema=True)
    assert ids(spark, table) == list(range(20, 30))


@pytest.mark.parametrize("how", ["RESTORE", pytest.param("REPLACE", marks=pytest.mark.thorough)])
def test_should_report_that_rows_were_taken_back(
    spark: SparkSession, queue: Path, table: Path, load: Load, how: str
) -> None:
    produce(queue, numbered(1))
    load()
    produce(queue, numbered(1, start=10))
    load()
    if how == "RESTORE":
        DeltaTable.forPath(spark, str(table)).restoreToVersion(0)
    else:
        fields = spark.read.format("delta").load(str(table)).schema.fields
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in fields)
        spark.sql(f"CREATE TABLE to_be_replaced USING delta LOCATION '{table}'")
        spark.sql(f"CREATE OR REPLACE TABLE to_be_replaced ({columns}) USING delta LOCATION '{table}'")
        spark.sql("DROP TABLE to_be_replaced")  # the name only: the files stay
    produce(queue, numbered(1, start=20))
    refused(queue, load, TableRewritten, f"(?i){how}")
    load(on_gap="skip")
    load()
    assert set(ids(spark, table)) >= set(range(20, 30))


@pytest.mark.thorough
def test_should_accept_once_that_rows_were_taken_back_from_a_table_that_seldom_gets_any(
    spark: SparkSession, queue: Path, table: Path, load: Load, tmp_path: Path
) -> None:
    """The dead letters get nothing from the range under which it is accepted, nor from those after it."""
    dead = tmp_path / "dead"
    settings: dict[str, Any] = {"format": {"type": "json", "schema": "id BIGINT"}, "dead_letters": str(dead)}
    for start in (0, 10):
        produce(queue, [[b"no JSON"], *numbered(1, start=start)])
        load(**settings)
    DeltaTable.forPath(spark, str(dead)).restoreToVersion(1)
    produce(queue, numbered(1, start=20))
    refused(queue, load, TableRewritten, "RESTORE", **settings)
    load(**settings, on_gap="skip")
    produce(queue, [*numbered(1, start=30), [b"no JSON"]])
    load(**settings)
    assert_exactly_once(spark, table, 40)
    assert spark.read.format("delta").load(str(dead)).count() == 2


@pytest.fixture
def running(spark: SparkSession, queue: Path, table: Path) -> Iterator[Loader]:
    """A loader that has loaded ids 0..19 in two commits, has a backup of the table after the first, and runs on."""
    config = LoaderConfig(
        store=str(queue), table=str(table), format={"type": "json", "schema": "id BIGINT"}, gc_enabled=False
    )
    with Loader(spark, config) as loader:
        for start in (0, 10):
            produce(queue, numbered(1, start=start))
            assert loader.run_once() is not None
            if start == 0:
                shutil.copytree(table, table.with_name("backup"))
        yield loader


@pytest.mark.thorough
def test_should_notice_a_table_put_back_from_a_backup_while_it_runs(queue: Path, table: Path, running: Loader) -> None:
    shutil.rmtree(table)
    shutil.copytree(table.with_name("backup"), table)
    produce(queue, numbered(1, start=20))
    with pytest.raises(SequenceGap, match="through sequence 0"):
        running.run_once()


@pytest.mark.thorough
def test_should_notice_that_rows_were_taken_back_while_it_runs(
    spark: SparkSession, queue: Path, table: Path, running: Loader
) -> None:
    DeltaTable.forPath(spark, str(table)).restoreToVersion(1)
    produce(queue, numbered(1, start=20))
    with pytest.raises(TableRewritten, match="RESTORE"):
        running.run_once()


@pytest.mark.parametrize("how", [pytest.param("RESTORE", marks=pytest.mark.thorough), "overwrite"])
def test_should_notice_that_rows_were_taken_back_while_a_range_was_decoded(
    spark: SparkSession, queue: Path, table: Path, load: Load, how: str
) -> None:
    produce(queue, numbered(2))
    load(max_batches_per_commit=1)
    produce(queue, numbered(1, start=20))

    def take_back(step: str) -> None:
        if step == "decoded" and how == "RESTORE":
            DeltaTable.forPath(spark, str(table)).restoreToVersion(1)
        elif step == "decoded":
            kept = spark.read.format("delta").load(str(table)).where("id < 10").localCheckpoint()
            kept.write.format("delta").mode("overwrite").save(str(table))

    with pytest.raises(TableRewritten, match=how):
        load(reached=take_back)
    with pytest.raises(TableRewritten, match=how):
        load()
    assert ids(spark, table) == list(range(10))


def test_should_tell_at_once_that_rows_were_taken_back_while_it_wrote(
    spark: SparkSession, queue: Path, table: Path, running: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our commit is on top of it, so this is the last moment: the next start sees nothing and goes on."""
    begin = Transactions.begin

    def somebody_comes_first(self: Transactions, *given: Any, **settings: Any) -> Begun:
        kept = spark.read.format("delta").load(str(table)).limit(0)
        kept.write.format("delta").mode("overwrite").save(str(table))
        return begin(self, *given, **settings)

    produce(queue, numbered(1, start=20))
    monkeypatch.setattr(Transactions, "begin", somebody_comes_first)
    with pytest.raises(TableRewritten, match="came after it"):
        running.run_once()
    assert ids(spark, table) == list(range(20, 30))


def test_should_not_refuse_a_replaced_table_again_that_was_accepted_in_the_middle_of_a_plan(
    spark: SparkSession, queue: Path, table: Path, running: Loader, load: Load
) -> None:
    shutil.rmtree(table)
    spark.sql(f"CREATE TABLE delta.`{table}` (id BIGINT) USING delta")
    produce(queue, numbered(1, start=20))
    with pytest.raises(TableReplaced, match="made again"):
        running.run_once()
    running.close()
    refused(queue, load, TableReplaced, "made again")
    load(on_gap="skip", merge_schema=True)
    load()
    assert ids(spark, table) == list(range(20, 30))


def test_should_notice_that_the_table_was_made_again_while_it_runs(
    spark: SparkSession, queue: Path, table: Path, running: Loader
) -> None:
    shutil.rmtree(table)
    spark.sql(f"CREATE TABLE delta.`{table}` (id BIGINT) USING delta")
    produce(queue, numbered(1, start=20))
    with pytest.raises(TableReplaced, match="made again"):
        running.run_once()
