"""The examples that need Spark. Where a session of their own is the point, they are programs; else they share ours."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from pyspark.sql import SparkSession

from tests.cli.cli_support import fill
from tests.nets import HANGS_S
from tests.spark.queues import assert_exactly_once, numbered

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SHORT_LIVED = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For a JVM of seconds: its optimising compiler would only take the cores away from the test."""


def test_should_run_the_quickstart(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["quickstart.py", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "quickstart.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "produced 1000 entries as batch 0 of to-load" in out
    assert "consumed batch 0: 1000 entries" in out
    assert "first run: batch 0: 1,000 rows" in out
    assert "second run: there was nothing left to load" in out
    assert spark.read.format("delta").load(str(tmp_path / "orders")).count() == 1000


def test_should_bring_a_frame_through_a_queue_into_a_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["spark_to_delta.py", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "spark_to_delta.py"), run_name="__main__")
    assert "1000 rows in" in capsys.readouterr().out
    assert_exactly_once(spark, tmp_path / "events", 1000)


@pytest.mark.thorough
def test_should_run_the_streaming_job_twice(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [f"--{name}={tmp_path / name}" for name in ("store", "tables", "checkpoint")]
    monkeypatch.setattr(sys, "argv", ["stream_job.py", *folders])
    for start in (0, 20):
        fill(tmp_path / "store", *numbered(2, start=start))
        runpy.run_path(str(EXAMPLES / "stream_job.py"), run_name="__main__")
    assert capsys.readouterr().out.count("20 events") == 2
    assert_exactly_once(spark, tmp_path / "tables" / "events", 40)


@pytest.mark.thorough
def test_should_load_with_spark_submit(tmp_path: Path, spark: SparkSession) -> None:
    fill(tmp_path / "queue", *numbered(2))
    submit = Path(sys.executable).with_name("spark-submit")
    packages = "io.delta:delta-spark_4.2_2.13:4.4.0"
    done = subprocess.run(
        [
            *(submit, "--master", "local[2]", "--packages", packages, "--conf", "spark.ui.enabled=false"),
            *("--conf", "spark.databricks.delta.snapshotPartitions=2", "--conf", "spark.sql.shuffle.partitions=2"),
            EXAMPLES / "loader_job.py",
            *("--store", tmp_path / "queue", "--table", tmp_path / "events", "--available-now", "--json"),
            *("--format", "json", "--schema", "id BIGINT"),
        ],
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, **SHORT_LIVED},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert '"rows": 20' in done.stdout
    assert_exactly_once(spark, tmp_path / "events", 20)


def run_notebook(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What its cells show. Raises at the first cell that fails."""
    for variable in ("BUFFER_STORE", "EXPLORE_TABLE"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in {**SHORT_LIVED, "TMPDIR": str(folder)}.items():
        monkeypatch.setenv(variable, value)
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
    client = NotebookClient(
        notebook, timeout=HANGS_S, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


@pytest.mark.thorough
def test_should_watch_a_queue_beside_its_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run_notebook("watch.ipynb", tmp_path, monkeypatch)
    kinds = [kind for output in shown for kind in output.get("data", {})]
    assert kinds.count("image/png") == 1


@pytest.mark.thorough
def test_should_run_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run_notebook("explore.ipynb", tmp_path, monkeypatch)
    kinds = [kind for output in shown for kind in output.get("data", {})]
    assert kinds.count("image/png") == 2  # arrival and lag; from produce to table
    html = " ".join(output["data"]["text/html"] for output in shown if "text/html" in output.get("data", {}))
    assert "<caption>Queue</caption>" in html
    assert "<caption>Loader</caption>" in html
    assert "<caption>Progress</caption>" in html
    assert "records in that version" in html
