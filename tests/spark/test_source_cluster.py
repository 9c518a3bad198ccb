"""The data source on a standalone cluster of two workers: executors killed in the middle, speculation on."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyspark
import pytest

import buffer_delta
from buffer.consume.fetch import FetchHandle
from buffer.inspect.status import read_manifest
from buffer.store.open import open_store
from tests.spark.queues import numbered, produce

pytestmark = pytest.mark.spark

HERE = Path(__file__).parent
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
POLL_S = 0.05
BATCHES = 24


def environment(host: str) -> dict[str, str]:
    source = str(Path(buffer_delta.__file__).parent.parent)
    return {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]),
        "SPARK_LOCAL_IP": host,
        "SPARK_DAEMON_MEMORY": "256m",
    }


@contextmanager
def running(log: Path, *command: str, host: str = "127.0.0.1") -> Iterator[subprocess.Popen[bytes]]:
    """A process and all that it starts, ended with the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment(host), cwd=log.parent, start_new_session=True
        )
    try:
        yield process
    finally:
        family = [process.pid]
        with contextlib.suppress(psutil.NoSuchProcess):
            family += [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(timeout=60)


def wait_for(what: str, log: Path, process: subprocess.Popen[bytes]) -> None:
    while what not in log.read_text(errors="replace"):
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        time.sleep(POLL_S)


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """The address of a master, and the pids of its two workers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    with contextlib.ExitStack() as stack:
        log = folder / "master.log"
        where = ("--webui-port", "0", "--host")
        command = (str(SPARK_CLASS), f"{package}.master.Master", "--port", str(port), *where, "127.0.0.1")
        wait_for("New state: ALIVE", log, stack.enter_context(running(log, *command)))
        workers = []
        for number, host in enumerate(("127.0.0.1", "127.0.0.2")):  # a speculative twin never runs on the same host
            log = folder / f"worker-{number}.log"
            size = ("--cores", "1", "--memory", "600m", "--work-dir", str(folder / f"work-{number}"))
            command = (str(SPARK_CLASS), f"{package}.worker.Worker", *size, *where, host, address)
            worker = stack.enter_context(running(log, *command, host=host))
            wait_for("Successfully registered with master", log, worker)
            workers.append(worker.pid)
        yield address, workers


def test_should_write_each_row_once_when_executors_are_killed(tmp_path: Path) -> None:
    produced = produce(tmp_path / "source", numbered(BATCHES))
    signs = tmp_path / "signs"
    signs.mkdir()
    with cluster(tmp_path) as (address, workers):
        log = tmp_path / "job.log"
        job = (sys.executable, str(HERE / "source_cluster_job.py"), address)
        paths = (str(tmp_path / "source"), str(tmp_path / "target"), str(signs))
        with running(log, *job, *paths) as process:
            while not (seen := [path for path in signs.glob("1-*") if not path.suffix]):
                assert process.poll() is None, log.read_text()[-5000:]
                time.sleep(POLL_S)
            victim = psutil.Process(int(seen[0].read_text()))
            assert {parent.pid for parent in victim.parents()} & set(workers), "an executor of ours"
            victim.kill()
            (signs / "go").touch()
            process.wait(timeout=600)
            assert process.returncode == 0, log.read_text()[-5000:]
    attempts = [path.name for path in signs.iterdir()]
    assert len([name for name in attempts if name.startswith("1-")]) >= 2, "the killed one was repeated"
    assert len([name for name in attempts if name.startswith("0-")]) >= 2
    store = open_store(str(tmp_path / "target"))
    handle = FetchHandle(store)
    entries = [entry for batch in read_manifest(store, "ingest/manifest") for entry in handle.fetch(batch).entries]
    assert entries == [b'{"id":%d}' % number for number in range(produced)]
