"""The loader on a standalone cluster of two workers, with both writers: an executor killed in the middle of a range."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from tests.crash.delta_files import DeltaFiles
from tests.nets import HANGS_S
from tests.spark.cluster import POLL_S, Cluster, running
from tests.spark.queues import numbered, produce

pytestmark = pytest.mark.spark

JOB = Path(__file__).parent / "cluster_load_job.py"
BATCHES = 24
WRITERS = ("arrow", "spark")


def signs_of(folder: Path, task: str) -> list[Path]:
    return [path for path in folder.glob(f"{task}-*") if not path.suffix]


def kill_executor_of(task: str, signs: Path, cluster: Cluster, process: subprocess.Popen[bytes], log: Path) -> None:
    while not (seen := signs_of(signs, task)):
        assert process.poll() is None, log.read_text()[-5000:]
        time.sleep(POLL_S)
    victim = psutil.Process(int(seen[0].read_text()))
    assert {parent.pid for parent in victim.parents()} & set(cluster.workers), "an executor of ours"
    victim.kill()


@pytest.mark.thorough
def test_should_load_each_row_once_with_either_writer_when_executors_are_killed(
    tmp_path: Path, cluster: Cluster
) -> None:
    signs, log = tmp_path / "signs", tmp_path / "job.log"
    signs.mkdir()
    for writer in WRITERS:
        produced = produce(tmp_path / f"queue-{writer}", numbered(BATCHES))
    with running(log, sys.executable, str(JOB), cluster.address, str(tmp_path), str(signs)) as process:
        for writer in WRITERS:
            kill_executor_of(f"{writer}-1", signs, cluster, process, log)
            (signs / f"go-{writer}").touch()
        process.wait(timeout=HANGS_S)
        assert process.returncode == 0, log.read_text()[-5000:]
    tables = [DeltaFiles(tmp_path / f"table-{writer}", ["id"]) for writer in WRITERS]
    for writer, table in zip(WRITERS, tables, strict=True):
        assert len(signs_of(signs, f"{writer}-1")) >= 2, "the killed one was repeated"
        table.refresh()
        assert table.violations == []
        assert table.repeated_positions() == 0
        assert sorted(table.rows()["id"].to_pylist()) == list(range(produced))
        assert list(table.txn.values()) == [BATCHES - 1]
    by_arrow = [
        {"arrow" in pq.read_metadata(path).created_by for path in table.path.glob("*.parquet")} for table in tables
    ]
    assert by_arrow == [{True}, {False}]
