"""The examples that need no Spark, run as a reader would run them. The others are in `tests/spark`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from buffer.fetch import FetchHandle
from buffer.status import read_manifest
from buffer.store.open import open_store

EXAMPLES = Path(__file__).parent.parent / "examples"
TESTED = {"async_producer.py", "quickstart.py", "loader_job.py", "explore.ipynb"}


def run_example(name: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(EXAMPLES / name), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_should_have_a_test_for_every_example() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")} == TESTED


def test_should_produce_from_many_tasks_at_once(tmp_path: Path) -> None:
    out, err = run_example("async_producer.py", "--store", tmp_path, "--events", 500).communicate(timeout=60)
    assert out.count("500 events are durable") == 4, err
    store = open_store(str(tmp_path))
    batches = map(FetchHandle(store).fetch, read_manifest(store, "ingest/manifest"))
    events = [json.loads(entry) for batch in batches for entry in batch.entries]
    for number in range(1, 5):
        assert [event["id"] for event in events if event["sensor"] == f"sensor-{number}"] == list(range(500))


def test_should_go_on_until_it_is_told_to_stop(tmp_path: Path) -> None:
    with run_example("async_producer.py", "--store", tmp_path, "--for-ever", "--rate", 50) as process:
        deadline = time.monotonic() + 30
        while not (tmp_path / "ingest/manifest").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "events are durable" in out
