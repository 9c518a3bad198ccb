"""Tables by name in a catalog that outlives the session: found again, renamed, and named after they were a path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.nets import HANGS_S
from tests.spark.queues import numbered, produce

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("catalog")]

JOB = Path(__file__).with_name("catalog_job.py")
ROOT = Path(__file__).parents[2]
"""It imports from the tests."""


def in_a_session(folder: Path, *steps: dict[str, str]) -> list[Any]:
    """What each step gave, in a process of its own: the suite's own session has a catalog in memory."""
    ran = subprocess.run(
        [sys.executable, str(JOB), str(folder), json.dumps(steps)],
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.thorough
def test_should_find_tables_of_a_lasting_catalog_again_whatever_they_are_called(tmp_path: Path) -> None:
    produce(tmp_path / "queue", numbered(2))
    produce(tmp_path / "other", numbered(1))
    path = str(tmp_path / "by_path")
    first = in_a_session(
        tmp_path, {"load": "events", "queue": "queue"}, {"load": path, "queue": "other"}, {"sql": "SHOW TABLES"}
    )
    assert first[:2] == [list(range(20)), list(range(10))]
    assert [row[1] for row in first[2]] == ["events"]

    produce(tmp_path / "queue", numbered(1, start=20))
    produce(tmp_path / "other", numbered(1, start=10))
    again, _, renamed, _, named, doubled, tables = in_a_session(
        tmp_path,
        {"load": "default.events", "queue": "queue"},
        {"sql": "ALTER TABLE events RENAME TO renamed"},
        {"load": "spark_catalog.default.renamed", "queue": "queue", "produce": "30"},
        {"sql": f"CREATE TABLE named USING delta LOCATION '{path}'"},
        {"load": "named", "queue": "other"},
        {"sql": "SELECT _sequence, _index, count(*) FROM renamed GROUP BY 1, 2 HAVING count(*) > 1"},
        {"sql": "SHOW TABLES"},
    )
    assert again == list(range(30)), "another session finds the table by its name"
    assert (renamed, doubled) == (list(range(40)), []), "a renamed table is the one that was loaded"
    assert named == list(range(20)), "a path and a name of the same table are one table"
    assert [row[1] for row in tables] == ["named", "renamed"]
