"""The loader on real Delta tables, in one process."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from buffer.consume.consumer import Consumer
from buffer.errors import Fenced, StorageError
from buffer.manifest import Manifest
from buffer.store.open import open_store
from buffer_delta.config import LoaderConfig
from buffer_delta.delta.txn import Txn
from buffer_delta.load.loader import Loader
from buffer_delta.load.progress import Progress
from tests.nets import HANGS_S
from tests.spark.queues import assert_exactly_once, ids, numbered, produce

pytestmark = pytest.mark.spark

JSON = {"type": "json", "schema": "id BIGINT"}


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    return tmp_path / "queue"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


def config(queue: Path, table: Path, **settings: Any) -> LoaderConfig:
    return LoaderConfig(
        **{"store": str(queue), "table": str(table), "format": JSON, "gc_enabled": False, "retry_max_s": 0.1} | settings
    )


def load(spark: SparkSession, queue: Path, table: Path, **settings: Any) -> Progress | None:
    return Loader(spark, config(queue, table, **settings)).run(available_now=True)


def history(spark: SparkSession, table: Path) -> list[Txn]:
    """The stories that our commits told, oldest first."""
    rows = DeltaTable.forPath(spark, str(table)).history().orderBy("version").collect()
    return [txn for row in rows if (txn := Txn.from_note(row.userMetadata))]


def test_should_load_a_queue_exactly_once_with_provenance(spark: SparkSession, queue: Path, table: Path) -> None:
    produce(queue, numbered(5))
    progress = load(spark, queue, table)
    assert progress is not None
    assert (progress.first, progress.last, progress.rows) == (0, 4, 50)
    assert progress.files >= 1
    assert progress.lag_batches == 0
    assert_exactly_once(spark, table, 50)
    row = spark.read.format("delta").load(str(table)).where("id = 23").first()
    assert row is not None
    assert (row._sequence, row._index, bytes(row._entry_metadata)) == (2, 3, b"made by a test")
    assert row._ingested_at is not None


def test_should_load_only_what_is_new_after_a_restart(spark: SparkSession, queue: Path, table: Path) -> None:
    produce(queue, numbered(2))
    load(spark, queue, table)
    produce(queue, numbered(2, start=20))
    progress = load(spark, queue, table)
    assert progress is not None
    assert (progress.first, progress.last) == (2, 3)
    assert_exactly_once(spark, table, 40)
    assert load(spark, queue, table) is None


def test_should_wait_for_a_queue_that_does_not_exist_yet(spark: SparkSession, queue: Path, table: Path) -> None:
    assert load(spark, queue, table) is None
    produce(queue, numbered(1))
    load(spark, queue, table)
    assert_exactly_once(spark, table, 10)


def test_should_tell_the_story_in_the_history(spark: SparkSession, queue: Path, table: Path) -> None:
    produce(queue, numbered(5))
    load(spark, queue, table, max_batches_per_commit=2, app_id="my-app")
    story = history(spark, table)
    assert [(txn.first, txn.last, txn.entries) for txn in story] == [(0, 1, 2), (2, 3, 2), (4, 4, 1)]
    assert {(txn.app_id, txn.epoch) for txn in story} == {("my-app", 1)}


def test_should_keep_a_commit_within_max_bytes(spark: SparkSession, queue: Path, table: Path) -> None:
    produce(queue, numbered(6, entries=100))
    size = max(o.size for o in open_store(str(queue)).list("ingest") if o.location.endswith(".batch"))
    seen: list[Progress] = []
    Loader(spark, config(queue, table, max_bytes_per_commit=2 * size), on_progress=seen.append).run(available_now=True)
    assert [(p.first, p.last) for p in seen] == [(0, 1), (2, 3), (4, 5)]
    assert all(0 < p.bytes <= 2 * size for p in seen)


def test_should_write_few_files_for_many_small_batches(spark: SparkSession, queue: Path, table: Path) -> None:
    produce(queue, numbered(40))
    progress = load(spark, queue, table)
    assert progress is not None
    assert progress.files == 1


def test_should_load_until_stopped(spark: SparkSession, queue: Path, table: Path) -> None:
    produce(queue, numbered(1))
    loader = Loader(spark, config(queue, table, trigger_interval_s=0.05))
    first = threading.Event()
    loader._on_progress = lambda _progress: first.set()
    thread = threading.Thread(target=loader.run)
    thread.start()
    assert first.wait(HANGS_S)
    produce(queue, numbered(1, start=10))
    while loader.last_progress is None or loader.last_progress.last < 1:
        thread.join(0.05)
        assert thread.is_alive()
    loader.stop()
    thread.join(HANGS_S)
    assert not thread.is_alive()
    assert_exactly_once(spark, table, 20)


def test_should_record_progress_even_if_a_range_gives_no_rows(spark: SparkSession, queue: Path, table: Path) -> None:
    def nothing(frame: DataFrame) -> DataFrame:
        return frame.where("id < 0")

    produce(queue, numbered(3))
    progress = load(spark, queue, table, transform=nothing)
    assert progress is not None
    assert (progress.last, progress.rows) == (2, 0)
    assert load(spark, queue, table, transform=nothing) is None
    assert ids(spark, table) == []


def test_should_apply_a_transform(spark: SparkSession, queue: Path, table: Path) -> None:
    produce(queue, numbered(1))
    load(spark, queue, table, transform=lambda frame: frame.selectExpr("*", "id * 2 AS twice"))
    frame = spark.read.format("delta").load(str(table))
    assert frame.where("twice = 2 * id").count() == 10


@pytest.mark.parametrize("moment", ["planned", "decoded"])
def test_should_notice_that_delta_skipped_the_commit(
    spark: SparkSession, queue: Path, table: Path, moment: str
) -> None:
    produce(queue, numbered(2))
    load(spark, queue, table, app_id="app")
    produce(queue, numbered(2, start=20))

    def another_writer_comes_first(step: str) -> None:
        if step == moment:
            rows = spark.read.format("delta").load(str(table)).limit(0)
            options = {"txnAppId": "app", "txnVersion": "99"}
            rows.write.format("delta").mode("append").options(**options).save(str(table))

    loader = Loader(spark, config(queue, table, app_id="app"), reached=another_writer_comes_first)
    with pytest.raises(Fenced, match="99"):
        loader.run(available_now=True)
    assert ids(spark, table) == list(range(20))
    assert loader.last_progress is None
    left = Manifest.from_bytes(open_store(str(queue)).get("ingest/manifest").data)
    assert (left.first_sequence, left.next_sequence) == (2, 4), "what was not loaded is not acked"


def test_should_tell_its_lag_without_another_look_at_the_queue(
    spark: SparkSession, queue: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that does not answer after the ack must not hide that the range is loaded."""

    def no_answer(_self: Consumer) -> int:
        raise StorageError("the store does not answer")

    produce(queue, numbered(3))
    loader = Loader(spark, config(queue, table, max_batches_per_commit=2))
    monkeypatch.setattr(Consumer, "__len__", no_answer)
    monkeypatch.setattr(Consumer, "lag_seconds", no_answer)
    monkeypatch.setattr(Consumer, "manifest", no_answer)
    progress = loader.run_once()
    loader.close()
    assert progress is not None
    assert (progress.last, progress.rows, progress.lag_batches) == (1, 20, 1)
    assert 0 < progress.lag_seconds < 3600


def test_should_create_the_table_as_asked(spark: SparkSession, queue: Path, table: Path) -> None:
    produce(queue, numbered(1))
    load(
        spark,
        queue,
        table,
        partition_by=["_sequence"],
        table_properties={"delta.appendOnly": "true"},
    )
    detail = DeltaTable.forPath(spark, str(table)).detail().first()
    assert detail is not None
    assert detail.partitionColumns == ["_sequence"]
    assert detail.properties["delta.appendOnly"] == "true"


def test_should_show_itself_in_notebooks(spark: SparkSession, queue: Path, table: Path) -> None:
    produce(queue, numbered(1))
    loader = Loader(spark, config(queue, table))
    assert "not opened" in repr(loader)
    loader.run_once()
    assert "batch 0: 10 rows" in loader._repr_html_()
    assert loader.last_progress is not None
    assert "<table>" in loader.last_progress._repr_html_()
    loader.close()
