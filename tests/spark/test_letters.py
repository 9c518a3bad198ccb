"""Dead letters on a real Delta table: listed, shown, and back in the queue exactly once, beside a loader that runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from buffer.clock import SystemClock
from buffer.config import ProducerConfig
from buffer.store.open import open_store
from buffer_delta.cli import cli
from buffer_delta.cli.app import EXIT_CODES
from buffer_delta.config import LoaderConfig
from buffer_delta.letters.home import QueueHome
from buffer_delta.letters.redrive import redrive
from buffer_delta.letters.table import DeltaLetters, LetterTable
from buffer_delta.letters.values import Redriven
from buffer_delta.load.loader import Loader
from tests.cli.cli_support import InProcess
from tests.spark.queues import ids, produce

pytestmark = pytest.mark.spark


class Killed(BaseException):
    """The end of the process: nothing after it runs."""


def killed_at(step: str) -> Callable[[str], None]:
    def reached(found: str) -> None:
        if found == step:
            raise Killed

    return reached


class Place:
    """A queue, its table and its dead letters: six records, of which only the even ones parse."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.queue, self.table, self.dead = spark, folder / "queue", folder / "table", folder / "dead"
        produce(self.queue, [[b'{"id": %d}' % n if n % 2 == 0 else b"[%d]" % n for n in range(6)]])
        self.load()

    def load(self, **settings: Any) -> None:
        config: dict[str, Any] = {"format": {"type": "json", "schema": "id BIGINT"}, "gc_enabled": False}
        config |= {"store": str(self.queue), "table": str(self.table), "dead_letters": str(self.dead)}
        Loader(self.spark, LoaderConfig(**config | settings)).run(available_now=True)

    def redrive(self, where: str | None = None, reached: Callable[[str], None] = lambda _: None) -> Redriven:
        clock, store = SystemClock(), open_store(str(self.queue))
        letters = DeltaLetters(self.spark, str(self.dead), where, clock.now_ms)
        home = QueueHome(letters.client_id, store, ProducerConfig(store=store), clock)
        return redrive(letters, home, clock, reached=reached)

    def letters(self) -> list[tuple[int, int, bytes]]:
        rows = self.spark.read.format("delta").load(str(self.dead)).collect()
        return sorted((row._sequence, row._index, bytes(row.bytes)) for row in rows)


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


@pytest.mark.thorough
def test_should_send_letters_back_once_however_often_it_is_killed(place: Place) -> None:
    """What comes back is still no record: it is a letter again, and counted."""
    assert place.letters() == [(0, n, b"[%d]" % n) for n in (1, 3, 5)]
    for step in ("claimed", "put"):
        with suppress(Killed):
            place.redrive("_index > 1", killed_at(step))
    place.redrive("_index > 1")
    assert place.redrive("_index > 1") == Redriven(0, 0, 0)
    place.load()  # its next commit finds a table with one column more
    assert place.letters() == [(0, 1, b"[1]"), (0, 3, b"[3]"), (0, 5, b"[5]"), (1, 0, b"[3]"), (1, 1, b"[5]")]
    rows = place.spark.read.format("delta").load(str(place.dead)).where("_sequence = 1").collect()
    assert {bytes(row._entry_metadata) for row in rows} == {b"made by a test"}
    assert place.redrive() == Redriven(letters=3, batches=1, finished=0)
    assert SparkSession.getActiveSession() is place.spark, "the session that a redrive works in is nobody else's"
    place.load(format={"type": "json", "schema": "id BIGINT"}, dead_letters=str(place.dead))
    assert [letter[2] for letter in place.letters() if letter[0] == 2] == [b"[1]", b"[3]", b"[5]"]
    counts = place.spark.read.format("delta").load(str(place.dead)).where("redrive IS NOT NULL")
    assert sorted((row._sequence, row.redrive["count"]) for row in counts.collect()) == [
        *((0, 1),) * 3,
        *((1, 2),) * 2,
    ]


@pytest.mark.thorough
def test_should_not_send_back_the_beginning_of_an_entry(place: Place) -> None:
    """What is left of it would be another record, and may well be a good one."""
    whole, cut = b'"' + b"w" * (2 << 20) + b'"', b'"' + b"c" * (17 << 20) + b'"'
    produce(place.queue, [[whole, cut]])
    place.load(max_entry_bytes=1 << 20)
    sizes = [len(data) for sequence, _, data in place.letters() if sequence == 1]
    assert sizes == [len(whole), 16 << 20], "the table has all of one, and not of the other"
    assert place.redrive("_sequence = 1") == Redriven(letters=1, batches=1, finished=0)
    assert place.redrive("_sequence = 1") == Redriven(0, 0, 0)
    place.load(max_entry_bytes=1 << 20)
    assert [data for sequence, _, data in place.letters() if sequence == 2] == [whole]


@pytest.mark.thorough
def test_should_send_each_letter_back_once_where_two_and_a_loader_run_at_once(place: Place) -> None:
    """The second one runs in the middle of the first, and the loader commits new letters between their steps."""
    others: list[Redriven] = []

    def between(step: str) -> None:
        if step == "numbered" and not others:
            others.append(place.redrive())
            place.load()
        if step == "claimed":
            produce(place.queue, [[b"late"]])
            place.load()

    first = place.redrive(reached=between)
    assert (others[0].letters, first.letters) == (3, 0), "the one that was slow claims nothing"
    assert sorted(data for sequence, _, data in place.letters() if sequence == 1) == [b"[1]", b"[3]", b"[5]"]
    assert ids(place.spark, place.table) == [0, 2, 4]
    assert place.redrive("bytes = CAST('late' AS BINARY)").letters == 1, "new letters wait for the next redrive"


def test_should_find_a_table_by_its_name_in_the_database_in_use(place: Place) -> None:
    place.spark.sql("CREATE DATABASE parked")
    try:
        place.spark.sql(f"CREATE TABLE parked.letters USING delta LOCATION '{place.dead}'")
        place.spark.catalog.setCurrentDatabase("parked")
        assert LetterTable(place.spark, "letters").identifier == "letters"
    finally:
        place.spark.catalog.setCurrentDatabase("default")
        place.spark.sql("DROP DATABASE parked CASCADE")


def test_should_list_show_and_redrive_on_the_command_line(
    place: Place, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("buffer_delta.letters.table.LETTERS_PER_BATCH_MAX", 2)
    run = InProcess(capfd, cli, "buffer-delta", EXIT_CODES)
    table = ("--dead-letters", place.dead)
    (reason,) = run("dead-letters", "list", *table, "--json").json()["reasons"]
    assert (reason["letters"], reason["sent_back"], reason["again"]) == (3, 0, 0)
    shown = run("dead-letters", "show", 0, 3, *table)
    assert shown.code == 0, shown.err
    assert "[3]" in shown.out
    assert "made by a test" in shown.out
    assert run("dead-letters", "show", 0, 5, *table, "--raw").out == "[5]"
    assert run("dead-letters", "show", 7, *table).code == 2
    wrong = run("redrive", "--store", place.queue, *table, "--where", "no such column")
    assert (wrong.code, "Traceback" in wrong.err) == (1, False)
    config = tmp_path / "buffer.toml"
    config.write_text(
        "[loader]\n"
        + "\n".join(f"{k} = {json.dumps(str(v))}" for k, v in [("store", place.queue), ("table", place.table)])
        + f"\ndead_letters = {json.dumps(str(place.dead))}\n"
    )
    told: list[tuple[str, int | None] | int] = []

    @contextmanager
    def counting(label: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        told.append((label, total))
        yield told.append

    monkeypatch.setattr("buffer_delta.cli.dead_letters.counting", counting)
    monkeypatch.setattr("buffer_delta.cli.dead_letters.is_terminal", lambda _stream: True)
    ran = run("redrive", "--config", config)
    assert (ran.code, ran.out) == (0, "3 letters went back in 2 batches\n"), ran.err
    assert told == [("sending letters back", 3), 2, 1], "a bar on a terminal, one step for each batch"
    assert run("dead-letters", "redrive", "--config", config).out == "there was nothing to send back\n"
    (reason,) = run("dead-letters", "list", *table, "--json").json()["reasons"]
    assert reason["sent_back"] == 3
    assert "as batch 1" in run("dead-letters", "show", 0, 1, *table).out
    assert run("dead-letters", "list", "--dead-letters", place.table).code == 2, "it is another table"
