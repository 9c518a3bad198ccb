"""`buffer-delta load` and `status` on a real Delta table, in the one Spark session of the suite."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from buffer.clock import SystemClock, make_ulid
from buffer.config import ConsumerConfig, ProducerConfig
from buffer.consume.consumer import Consumer
from buffer.manifest import Manifest
from buffer.produce.producer import Producer
from buffer_delta.cli import app, cli
from buffer_delta.cli.app import EXIT_CODES
from buffer_delta.config import LoaderConfig
from buffer_delta.errors import SparkUnusable
from buffer_delta.load.loader import Loader
from tests.cli.cli_support import InProcess, fill
from tests.spark.queues import assert_exactly_once, numbered

_stolen: list[str] = []
"""The store whose queue `steal` takes over: a transform gets nothing but the rows."""


def steal(frame: DataFrame) -> DataFrame:
    """A transform in the middle of which another consumer claims the queue."""
    for store in _stolen:
        Consumer.new(ConsumerConfig(store=store, gc_enabled=False)).close()
    return frame


def failing(_frame: DataFrame) -> DataFrame:
    return SparkSession.builder.getOrCreate().read.text("/no/such/folder")


class Place:
    """A queue and a table in a folder of their own."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.queue, self.table, self.dead = folder / "queue", folder / "events", folder / "dead"
        self.run = InProcess(capfd, cli, "buffer-delta", EXIT_CODES)

    def load(self, *args: object) -> Any:
        return self.run(
            *("load", "--store", self.queue, "--table", self.table, "--available-now", "--fenced-wait-s", 0.5),
            *("--set", "gc_enabled=false", "--set", "retry_attempts=1", *args),
        )

    def load_json(self, *args: object) -> Any:
        return self.load("--format", "json", "--schema", "id BIGINT", *args)


def test_should_list_the_files_that_no_commit_names(place: Place) -> None:
    fill(place.queue, [b'{"id": 1}'])
    assert place.load_json("--writer", "arrow").code == 0
    clean = place.run("status", "--store", place.queue, "--orphans")
    assert "no orphans: every data file is in some version of its table" in clean.out
    left = place.table / "part-00000-left-by-an-attempt.c000.snappy.parquet"
    left.write_bytes(b"x" * 77)
    said = place.run("status", "--store", place.queue, "--orphans")
    assert said.code == 0
    assert "1 file that no version refers to" in said.out
    (row,) = (line for line in said.out.splitlines() if left.name in line)
    assert " 77 " in row
    told = json.loads(place.run("status", "--store", place.queue, "--orphans", "--json").out)
    ((_, files),) = told["orphans"].items()
    assert [(each["path"], each["size_bytes"]) for each in files] == [(left.name, 77)]
    assert "orphans" not in json.loads(place.run("status", "--store", place.queue, "--json").out)


@pytest.fixture
def place(tmp_path: Path, spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, capfd)


def test_should_load_exactly_once_and_tell_its_progress(place: Place, spark: SparkSession) -> None:
    fill(place.queue, *numbered(3))
    ran = place.load_json("--json", "--max-batches-per-commit", 2)
    assert ran.code == 0, ran.err
    lines = [json.loads(line) for line in ran.out.splitlines()]
    *commits, total = lines
    assert [(line["event"], line["first"], line["last"], line["rows"]) for line in commits] == [
        ("commit", 0, 1, 20),
        ("commit", 2, 2, 10),
    ]
    assert (total["event"], total["commits"], total["batches"], total["rows"]) == ("done", 2, 3, 30)
    idle = place.load_json("--json").json()
    assert (idle["event"], idle["commits"], idle["rows"], idle["deleted"]) == ("done", 0, 0, 0)
    again = place.load_json()
    assert (again.code, again.out) == (0, "there was nothing to load\n")
    assert_exactly_once(spark, place.table, 30)


class TwentyMinutesAgo(SystemClock):
    def new_ulid(self) -> str:
        return make_ulid(self.now_ms() - 20 * 60 * 1000, os.urandom(10))


def test_should_collect_garbage_at_its_end_and_leave_spark_alone_on_an_empty_queue(
    place: Place, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As cron runs it: no process lives long enough for a collector's own thread."""

    def trickle(start: int) -> None:
        with Producer(ProducerConfig(store=str(place.queue)), clock=TwentyMinutesAgo()) as producer:
            producer.produce(*numbered(1, start=start))

    def objects() -> int:
        return len(list((place.queue / "ingest").glob("*.batch")))

    collects = ("--set", "gc_enabled=true")
    trickle(0)
    said = place.load_json(*collects).out.splitlines()
    assert said[-1].startswith("loaded 1 batch in 1 commit: 10 rows, ")
    assert objects() == 1, "before its first look it was in the queue"
    trickle(10)
    said = place.load_json(*collects).out.splitlines()
    assert said[-1].endswith("; 1 unreferenced batch deleted")
    assert objects() == 1

    def no_spark(*_args: Any, **_options: Any) -> None:
        raise SparkUnusable("asked for", found="a test")

    monkeypatch.setattr(app, "running_spark", no_spark)
    idle = place.load_json(*collects)
    assert (idle.code, idle.out) == (0, "there was nothing to load\n"), idle.err
    assert objects() == 1, "not yet a day old, and nothing has changed between two looks"
    trickle(20)
    assert place.load_json().code == 1, "with something to load, it is asked for"
    monkeypatch.undo()
    assert place.load_json(*collects).out.splitlines()[-1].endswith("; 1 unreferenced batch deleted")
    assert_exactly_once(spark, place.table, 30)


def test_should_compare_queue_ledger_and_table(place: Place) -> None:
    fill(place.queue, *numbered(2))
    assert place.load_json().code == 0
    fill(place.queue, *numbered(1, start=20))
    status = place.run("status", "--store", place.queue, "--json").json()
    assert status["length"] == 1
    assert (status["plan"]["last"], status["plan"]["state"]) == (1, "dequeued")
    (table,) = status["tables"]
    assert (table["committed"], table["lag_batches"], table["problem"]) == (1, 1, None)
    said = place.run("status", "--store", place.queue)
    assert said.code == 0
    assert str(place.table) in said.out


def test_should_check_tables_and_executors_and_log_commits_as_json(place: Place) -> None:
    fill(place.queue, *numbered(2))
    settings = ("--store", place.queue, "--table", place.table, "--format", "json", "--schema", "id BIGINT")
    checked = place.run("check", *settings, "--json")
    found = {each["what"]: each for each in checked.json()}
    assert checked.code == 0, found
    assert "the loader creates it" in found[f"table {place.table}"]["said"]
    assert found["executors"]["said"] == "one of them has read batch 0: 10 entries"
    assert not place.table.exists(), "nothing is left"
    loaded = place.load_json("--log-format", "json")
    (line,) = [said for text in loaded.err.splitlines() if (said := json.loads(text)).get("event") == "commit"]
    assert (line["rows"], line["rows_total"], line["tables"]) == (20, 20, {str(place.table): 1})
    again = place.run("check", *settings, "--json")
    found = {each["what"]: each for each in again.json()}
    assert "loaded through 1" in found[f"table {place.table}"]["said"]
    place.table.joinpath("_delta_log").rename(place.table / "elsewhere")
    place.queue.joinpath("ingest/manifest").write_bytes(b"garbage")
    broken = place.run("check", *settings, "--json")
    assert broken.code == 1


def test_should_refuse_in_a_check_another_main_table_and_no_other_spelling(place: Place, tmp_path: Path) -> None:
    fill(place.queue, *numbered(2))
    assert place.load_json().code == 0
    settings = ("--store", place.queue, "--format", "json", "--schema", "id BIGINT")

    def checked(table: object) -> tuple[int, str]:
        ran = place.run("check", *settings, "--table", table, "--json")
        found = {each["what"]: each for each in ran.json()}["main table"]
        return ran.code, f"{found['verdict']}: {found['said']}"

    (tmp_path / "link").symlink_to(place.table)
    relative = os.path.relpath(place.table)  # Spark was started in this folder
    for spelling in (place.table, f"{place.table}/", f"file:{place.table}", tmp_path / "link", relative):
        code, said = checked(spelling)
        assert (code, said.startswith("ok: ")) == (0, True), (spelling, said)
    code, said = checked(tmp_path / "other")
    assert (code, said.startswith("wrong: ")) == (1, True), said
    assert "One queue feeds one app and one main table" in said
    place.table.rename(tmp_path / "moved")
    code, said = checked(tmp_path / "moved")
    assert code == 0, said


def test_should_refuse_in_a_check_a_table_that_ends_with_the_session(place: Place) -> None:
    fill(place.queue, *numbered(1))
    settings = ("--store", place.queue, "--format", "json", "--schema", "id BIGINT", "--table", "events_in_memory")
    ran = place.run("check", *settings, "--json")
    (found,) = (each for each in ran.json() if each["what"] == "table events_in_memory")
    assert (ran.code, found["verdict"]) == (1, "wrong")
    assert "in-memory catalog" in found["said"]
    assert place.load("--table", "events_in_memory").code == 2, "as a loader does"


def test_should_end_with_5_where_batches_or_rows_are_gone(place: Place) -> None:
    fill(place.queue, *numbered(2))
    assert place.load_json("--max-batches-per-commit", 1).code == 0
    fill(place.queue, *numbered(2))
    with Consumer.new(ConsumerConfig(store=str(place.queue), gc_enabled=False), 1) as thief:
        thief.next_descriptors(1)
        thief.ack_through(2)
    gap = place.load_json()
    assert gap.code == 5
    assert "on_gap='skip'" in gap.err
    (table,) = place.run("status", "--store", place.queue, "--json").json()["tables"]
    assert table["problem"] == "a gap: the queue goes on at 3"
    assert place.load_json("--on-gap", "skip").code == 0


def test_should_end_with_2_when_the_queue_feeds_another_table(place: Place, tmp_path: Path) -> None:
    fill(place.queue, *numbered(1))
    assert place.load_json().code == 0
    ran = place.load_json("--table", tmp_path / "other")
    assert ran.code == 2
    assert "One queue feeds one app" in ran.err


def test_should_end_with_4_when_blocked_and_go_on_when_unblocked(place: Place, spark: SparkSession) -> None:
    fill(place.queue, *numbered(2))
    location = place.queue / next(iter(Manifest.from_bytes((place.queue / "ingest/manifest").read_bytes()))).location
    whole = location.read_bytes()
    location.write_bytes(b"damaged")
    settings = ("--set", "max_delivery_attempts=1", "--set", "retry_attempts=3", "--set", "retry_max_s=0.01")
    ran = place.load_json(*settings)
    assert ran.code == 4, ran.err
    assert "buffer-delta unblock" in ran.err
    assert "blocked" in place.run("status", "--store", place.queue).out
    location.write_bytes(whole)
    assert place.load_json().code == 4  # until an operator says so
    assert place.run("unblock", "--store", place.queue).code == 0
    assert place.load_json().code == 0
    assert_exactly_once(spark, place.table, 20)


def test_should_wait_before_it_ends_with_3(place: Place) -> None:
    fill(place.queue, *numbered(1))
    _stolen[:] = [str(place.queue)]
    started = time.monotonic()
    ran = place.load_json("--transform", f"{__name__}:steal")
    _stolen.clear()
    assert ran.code == 3, ran.err
    assert time.monotonic() - started > 0.5
    assert "another loader took over; ending in 0.5 s" in ran.err
    assert "Traceback" not in ran.err


def test_should_send_bad_records_to_the_dead_letters(place: Place, spark: SparkSession) -> None:
    fill(place.queue, [b'{"id": 0}', b"not json", b'{"id": 1}'])
    ran = place.load_json("--dead-letters", place.dead, "--json")
    assert ran.code == 0, ran.err
    commit, total = (json.loads(line) for line in ran.out.splitlines())
    assert commit["dead_letters"] == total["dead_letters"] == 1
    assert spark.read.format("delta").load(str(place.dead)).count() == 1


def test_should_say_what_spark_says_in_one_line(place: Place) -> None:
    fill(place.queue, *numbered(1))
    ran = place.load_json("--transform", f"{__name__}:failing")
    assert ran.code == 1
    assert "/no/such/folder" in ran.err
    assert "Traceback" not in ran.err
    assert "at org.apache.spark" not in ran.err


def test_should_let_a_schema_be_rolled_back_that_does_not_fit_the_table(place: Place, spark: SparkSession) -> None:
    """Every table's files are written before the split is decided: what does not fit is found while nothing is."""
    spark.sql(
        f"CREATE TABLE delta.`{place.table}` (id BIGINT, _sequence BIGINT, _index INT, _ingested_at TIMESTAMP, "
        "_metadata BINARY, _rescued_data STRING) USING delta"
    )
    fill(place.queue, *numbered(2))
    dead = ("--dead-letters", place.dead)
    wrong = place.load("--format", "json", "--schema", "id STRING", *dead)
    assert wrong.code == 1, wrong.err
    right = place.load_json(*dead)
    assert right.code == 0, right.err
    assert sorted(row.id for row in spark.read.format("delta").load(str(place.table)).collect()) == list(range(20))


def test_should_not_set_a_range_free_that_a_table_holds(place: Place, spark: SparkSession) -> None:
    fill(place.queue, *numbered(2), [b"no JSON"])
    settings = LoaderConfig(
        store=str(place.queue),
        table=str(place.table),
        dead_letters=str(place.dead),
        format={"type": "json", "schema": "id BIGINT"},
        gc_enabled=False,
    )

    def die(step: str) -> None:
        if step == f"committed {place.dead}":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Loader(spark, settings, reached=die).run(available_now=True)
    before = (place.queue / "ingest/manifest.ledger").read_bytes()
    ran = place.run("unblock", "--store", place.queue, "--replan")
    assert (ran.code, "holds the range 0..2 already" in ran.err) == (2, True)
    assert (place.queue / "ingest/manifest.ledger").read_bytes() == before
    assert place.load_json("--dead-letters", place.dead).code == 0
    assert_exactly_once(spark, place.table, 20)
