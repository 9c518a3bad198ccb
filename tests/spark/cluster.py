"""A standalone cluster of two workers, for jobs that run in processes of their own: see the fixture `cluster`."""

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
from typing import Any, NamedTuple

import psutil
import pyspark

import buffer_delta
from tests.nets import HANGS_S

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
POLL_S = 0.05
EXECUTOR = "CoarseGrainedExecutorBackend"

JOB_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.1",
    "spark.task.maxFailures": "10",
}
"""For the session of a job: speculation is on, and a killed executor fails nothing."""


class Cluster(NamedTuple):
    address: str
    """Of the master."""
    workers: tuple[int, ...]
    """Process ids. Each has one core, on a host of its own: a speculative twin never runs on the same host."""

    def executor_at(self, port: int) -> psutil.Process | None:
        """The executor whose Python worker has that port. None: it was killed, and its request is what is left."""
        # Two processes may have the same port, towards different addresses.
        for pid in {c.pid for c in psutil.net_connections("tcp") if c.laddr.port == port and c.pid is not None}:
            with contextlib.suppress(psutil.NoSuchProcess):
                family = psutil.Process(pid).parents()
                executor = next((process for process in family if EXECUTOR in " ".join(process.cmdline())), None)
                if executor is not None and {parent.pid for parent in executor.parents()} & set(self.workers):
                    return executor
        return None


def environment(host: str) -> dict[str, str]:
    source, tests = Path(buffer_delta.__file__).parent.parent, Path(__file__).parent.parent.parent
    return {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(source), str(tests), os.environ.get("PYTHONPATH", "")]),
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
        process.wait(timeout=HANGS_S)


def run_job(log: Path, *command: str) -> None:
    """Run a Python program to its end. Fails with what it said last."""
    with running(log, sys.executable, *command) as process:
        process.wait(timeout=HANGS_S)
        assert process.returncode == 0, log.read_text(errors="replace")[-5000:]


def wait_for(what: str, log: Path, process: subprocess.Popen[Any]) -> None:
    while what not in log.read_text(errors="replace"):
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        time.sleep(POLL_S)


@contextmanager
def run_cluster(folder: Path) -> Iterator[Cluster]:
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
        started = []
        for number, host in enumerate(("127.0.0.1", "127.0.0.2")):
            log = folder / f"worker-{number}.log"
            size = ("--cores", "1", "--memory", "600m", "--work-dir", str(folder / f"work-{number}"))
            command = (str(SPARK_CLASS), f"{package}.worker.Worker", *size, *where, host, address)
            started.append((log, stack.enter_context(running(log, *command, host=host))))
        for log, worker in started:
            wait_for("Successfully registered with master", log, worker)
        yield Cluster(address, tuple(worker.pid for _, worker in started))
