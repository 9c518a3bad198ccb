"""Rows of several tables from one job: a table that gets nothing costs nothing, a wrong guess does no harm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from buffer_delta.config import LoaderConfig
from buffer_delta.delta.log import HELD_MAX
from buffer_delta.delta.table import DeltaTarget
from buffer_delta.delta.table_store import TableStore
from buffer_delta.errors import RowsMissing
from buffer_delta.load.loader import Loader
from buffer_delta.spark import parts, rows
from buffer_delta.spark.jobs import gather
from buffer_delta.spark.parts import PartRows
from tests.spark.queues import ids, produce


def records(*kinds: str, first: int) -> list[bytes]:
    made = ({"id": first + n, "kind": kind} for n, kind in enumerate(kinds))
    return [b"bad" if record["kind"] == "bad" else json.dumps(record).encode() for record in made]


class Tables:
    """A loader into a main table, one route and dead letters; what was sent to each."""

    def __init__(self, spark: SparkSession, folder: Path, writer: str) -> None:
        self.spark = spark
        self.folder = folder
        self.sent: dict[str, list[int]] = {"rest": [], "clicks": []}
        self.bad = 0
        self.count = 0
        config = LoaderConfig(
            store=str(folder / "queue"),
            table=str(folder / "rest"),
            format={"type": "json", "schema": "id BIGINT, kind STRING"},
            route_by="kind",
            routes={"click": str(folder / "clicks")},
            dead_letters=str(folder / "dead"),
            writer=writer,
            gc_enabled=False,
            retry_attempts=1,
        )
        self.loader = Loader(spark, config)

    def load(self, *kinds: str) -> None:
        produce(self.folder / "queue", [records(*kinds, first=self.count)])
        for number, kind in enumerate(kinds, self.count):
            if kind == "bad":
                self.bad += 1
            else:
                self.sent["clicks" if kind == "click" else "rest"].append(number)
        self.count += len(kinds)
        progress = self.loader.run_once()
        assert progress is not None
        assert (progress.rows, progress.dead_letters) == (len(kinds) - kinds.count("bad"), kinds.count("bad"))

    def check(self) -> None:
        for table, sent in self.sent.items():
            assert ids(self.spark, self.folder / table) == sent
        if self.bad:
            assert self.spark.read.format("delta").load(str(self.folder / "dead")).count() == self.bad
        else:
            assert not (self.folder / "dead").exists(), "nothing went there"

    def files(self, table: str) -> int:
        return len(list((self.folder / table).glob("*.parquet")))

    def alter(self, table: str, how: str) -> None:
        self.spark.sql(f"ALTER TABLE delta.`{self.folder / table}` {how}")


@contextmanager
def passes(monkeypatch: pytest.MonkeyPatch, count: int) -> Iterator[None]:
    """So many plain jobs are run over the range."""
    made = 0

    def counting(*given: Any) -> list[bytes]:
        nonlocal made
        made += 1
        return gather(*given)

    with monkeypatch.context() as patch:
        patch.setattr(parts, "gather", counting)
        patch.setattr(rows, "gather", counting)
        yield
    assert made == count


@pytest.mark.thorough
@pytest.mark.parametrize("writer", ["auto", "spark"])
def test_should_cost_one_pass_and_follow_every_change_of_the_tables(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    tables = Tables(spark, tmp_path, writer)
    with tables.loader:
        tables.load("other", "click", "bad")
        tables.load("other", "click", "bad")
        files = {table: tables.files(table) for table in ("rest", "clicks", "dead")}
        with passes(monkeypatch, 1):
            tables.load("other", "other")
        after = {table: tables.files(table) - before for table, before in files.items()}
        assert after == {"rest": 1, "clicks": 0, "dead": 0}, "no file where there are no rows"
        if writer == "auto":
            with passes(monkeypatch, 1):  # written on the way: what was seen last is still so
                tables.load("other", "click", "bad")
        tables.alter("clicks", "ADD COLUMNS (more STRING)")
        tables.alter("rest", "SET TBLPROPERTIES ('delta.dataSkippingNumIndexedCols' = '1')")
        tables.load("click", "other", "click")
        tables.load("click", "bad", "other")
        tables.check()
        tables.alter("clicks", "ADD CONSTRAINT small CHECK (id < 1000000)")
        tables.load("click", "other")
        tables.check()
        tables.count = 1_000_000
        produce(tmp_path / "queue", [records("click", "other", first=tables.count)])
        progress = tables.loader.run_once()
        assert progress is not None
        assert (progress.rows, progress.dead_letters) == (1, 1), "the table refuses it, and it is not lost"
        tables.sent["rest"].append(tables.count + 1)
        tables.bad += 1
    tables.check()


@pytest.mark.thorough
def test_should_try_without_writing_where_the_table_that_was_guessed_has_changed(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the sink that was guessed fails: the table itself has the last word."""
    caplog.set_level("INFO", logger="buffer_delta.spark.parts")
    tables = Tables(spark, tmp_path, "arrow")
    with tables.loader:
        for _ in range(2):
            tables.load("other", "click")
        main = tables.loader._targets[0]
        schema = main.schema()
        assert schema is not None
        guess = main.last_sink(schema)
        assert guess is not None
        (tmp_path / "no-folder").touch()
        moved = replace(guess, table=TableStore(str(tmp_path / "no-folder" / "table")))
        monkeypatch.setattr(DeltaTarget, "last_sink", lambda self, rows=None: moved if self is main else None)
        tables.load("other", "click")
        tables.load("other", "click")
    tables.check()
    assert "trying again without writing" in caplog.text


@pytest.mark.thorough
def test_should_lose_no_row_where_the_job_that_wrote_on_the_way_fails_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put that timed out, say: no table has changed, so what was guessed is what the rows go into."""
    tables = Tables(spark, tmp_path, "auto")
    failures = 0

    def failing(spark: SparkSession, told: Any, groups: Any) -> list[bytes]:
        nonlocal failures
        if told.sinks:
            monkeypatch.setattr(parts, "gather", gather)
            failures += 1
            raise PySparkException("StorageError: the put of a data file timed out")
        return gather(spark, told, groups)

    with tables.loader:
        for _ in range(2):
            tables.load("other", "click", "bad")
        for _ in range(2):
            monkeypatch.setattr(parts, "gather", failing)
            tables.load("other", "click", "bad", "other")
        tables.load("click", "other")
    tables.check()
    assert failures == 2


def test_should_commit_nothing_where_the_files_hold_fewer_rows_than_were_counted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Tables(spark, tmp_path, "spark")
    with tables.loader:
        tables.load("other", "click")
        monkeypatch.setattr(PartRows, "count", 7)
        with pytest.raises(RowsMissing, match="and 7 were counted"):
            tables.load("other", "click")
        monkeypatch.undo()
        assert tables.loader.run_once() is not None
    tables.check()


@pytest.mark.thorough
def test_should_commit_from_a_thread_that_ran_no_query(spark: SparkSession, tmp_path: Path) -> None:
    """Delta asks the thread for its session, which only queries set. More ranges than the log is held for."""
    tables = Tables(spark, tmp_path, "auto")

    def load() -> None:
        with tables.loader:
            for _ in range(HELD_MAX + 2):
                tables.load("other", "click")

    with ThreadPoolExecutor(1) as thread:
        thread.submit(load).result()
    tables.check()
