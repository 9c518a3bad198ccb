"""A streaming query into Delta by Spark's own sink, killed at random moments and restarted from its checkpoint."""

from __future__ import annotations

import contextlib
import json
import queue
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest

from buffer.inspect.status import read_manifest
from buffer.store.open import open_store
from tests.spark.processes import LoaderProcess
from tests.spark.queues import STARVED, numbered, produce

pytestmark = [pytest.mark.spark]

BATCHES_PER_LIFE = 5
ENTRIES_PER_BATCH = 10  # of `numbered`
KILL_WITHIN_S = 1.5  # after a commit: about as long as a range takes, so that every step of one may be hit


class QueryProcess(LoaderProcess):
    PROGRAM = "source_process.py"

    def begin(self, folder: Path, *, available_now: bool) -> None:
        options = {"format": "json", "schema": "id BIGINT", "max_batches_per_trigger": "1", "gc_enabled": "false"}
        self._send(
            json.dumps(
                {
                    "store": str(folder / "queue"),
                    "table": str(folder / "table"),
                    "checkpoint": str(folder / "checkpoint"),
                    "options": options,
                    "available_now": available_now,
                }
            )
        )
        self.wait_for("ready")

    def is_alive(self) -> bool:
        """False if the machine was too busy for it. Raises if it ended otherwise."""
        with contextlib.suppress(queue.Empty):
            while (said := self._lines.get_nowait()) is not None and "batch" in json.loads(said):
                continue
            if said is None or STARVED not in said:
                raise AssertionError(f"the query ended: {said}; its log: {self.log.read_text()[-3000:]}")
            return False
        return True


def commits(table: Path) -> list[Path]:
    return sorted((table / "_delta_log").glob("*.json"))


def rows(table: Path) -> list[dict[str, Any]]:
    """What the table holds, read by hand."""
    found: list[dict[str, Any]] = []
    for commit in commits(table):
        for action in map(json.loads, commit.read_text().splitlines()):
            assert "remove" not in action
            if "add" in action:
                part = pq.read_table(table / unquote(action["add"]["path"]), columns=["id", "_sequence", "_index"])
                found += part.to_pylist()
    return found


def finish(folder: Path) -> dict[str, Any]:
    """What the query says after it ran undisturbed. Raises if it ended with another error than a busy machine's."""
    process = QueryProcess(folder)
    try:
        process.begin(folder, available_now=True)
        said = process.wait_for("done", "error")
        assert "done" in said or STARVED in said["error"], said
        return said
    finally:
        process.kill()


def kill_often(folder: Path, kills: int, seed: int) -> None:
    """Produce, start, wait for some commits, kill; in the end let it finish, and count. A failure shows the seed."""
    chance = random.Random(seed)
    produced = 0
    for _ in range(kills):
        produced += produce(folder / "queue", numbered(BATCHES_PER_LIFE, start=produced))
        process = QueryProcess(folder)
        try:
            seen = len(commits(folder / "table"))
            process.begin(folder, available_now=False)
            wanted = seen + chance.randrange(0, BATCHES_PER_LIFE - 1)
            while len(commits(folder / "table")) < wanted and process.is_alive():
                time.sleep(0.01)
            time.sleep(chance.uniform(0, KILL_WITHIN_S))
        finally:
            process.kill()
    while finish(folder) != {"done": True}:
        continue
    found = rows(folder / "table")
    doubled = [place for place, n in Counter((row["_sequence"], row["_index"]) for row in found).items() if n > 1]
    assert doubled == []
    assert sorted(row["id"] for row in found) == list(range(produced))
    manifest = read_manifest(open_store(str(folder / "queue")), "ingest/manifest")
    assert manifest.first_sequence == manifest.next_sequence == produced // ENTRIES_PER_BATCH


@pytest.mark.thorough
def test_should_load_each_entry_once_when_the_query_is_killed_a_few_times(tmp_path: Path) -> None:
    kill_often(tmp_path, kills=3, seed=random.SystemRandom().randrange(1 << 32))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_should_load_each_entry_once_when_the_query_is_killed_often(tmp_path: Path) -> None:
    kill_often(tmp_path, kills=30, seed=random.SystemRandom().randrange(1 << 32))
