"""Where the time goes from a bare start to the first committed row, and what a loader holds in memory when idle.

    python -m benchmarks.startup                       three starts, each in a new process
    python -m benchmarks.startup --idle-s 60           … and memory after a minute without work
    python -m benchmarks.startup --spark-conf spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1

Each phase has its wall time and the CPU time of the JVM in it: on a busy machine only the latter can be compared. An
empty queue is timed too, as `buffer-delta load --available-now` treats it. To reach: the first row committed in less
than 12 s, with a class archive (`buffer-delta prepare`) and nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from buffer import Producer, ProducerConfig

ROWS = 1000
FIRST_ROW_S_MAX = 12.0
STEPS = ("bound", "claimed", "planned", "decoded", "staged", "committed", "acked")


def child(folder: Path, idle_s: float, memory: str | None, conf: dict[str, str]) -> None:
    """One start in this process, which has just begun. Prints its marks as JSON."""
    begun_s = psutil.Process().create_time()
    marks: list[tuple[str, float, float]] = []
    java: list[psutil.Process] = []

    def mark(step: str) -> None:
        cpu = sum(sum(process.cpu_times()[:2]) for process in java)
        marks.append((step.partition(" ")[0], time.time() - begun_s, cpu))

    from buffer_delta.config import LoaderConfig
    from buffer_delta.load.loader import Loader
    from buffer_delta.spark.session import spark_session

    mark("imports")
    spark = spark_session("startup", memory=memory, config=conf, data_source=False)
    java += [process for process in psutil.Process().children(recursive=True) if "java" in process.name()]
    mark("session")
    config = LoaderConfig(
        store=str(folder / "queue"), table=str(folder / "table"), format={"type": "json", "schema": "id BIGINT"}
    )
    Loader(spark, config, reached=mark).run(available_now=True)
    memory_mb = {"after the first commit": _memory_mb()}
    if idle_s:
        time.sleep(idle_s)
        memory_mb[f"idle for {idle_s:g} s"] = _memory_mb()
    rows = spark.read.format("delta").load(str(folder / "table")).count()
    assert rows == ROWS, f"{rows} rows"
    spark.stop()
    print(json.dumps({"marks": marks, "memory_mb": memory_mb}))


def _memory_mb() -> dict[str, float]:
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    java = sum(p.memory_info().rss for p in family if "java" in p.name())
    python = sum(p.memory_info().rss for p in family if "python" in p.name())
    return {"JVM": java / 1e6, "Python": python / 1e6}


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    with Producer(ProducerConfig(store=str(folder / "queue"))) as producer:
        producer.produce([b'{"id": %d}' % number for number in range(ROWS)])
    command = [sys.executable, "-m", "benchmarks.startup", "--child", str(folder), "--idle-s", str(options.idle_s)]
    command += [f"--spark-conf={pair}" for pair in options.spark_conf]
    command += ["--driver-memory", options.driver_memory] if options.driver_memory else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr[-3000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def idle_queue(folder: Path) -> float:
    """Seconds of `--available-now` on the queue that was just loaded."""
    command = [sys.executable, "-m", "buffer_delta", "load", "--store", str(folder / "queue"), "--available-now"]
    command += ["--table", str(folder / "table"), "--format", "json", "--schema", "id BIGINT"]
    started = time.perf_counter()
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "nothing to load" in said, said
    return time.perf_counter() - started


def verdict(first_row_s: float) -> str:
    word = "ok" if first_row_s < FIRST_ROW_S_MAX else "MISSED"
    return f"{word}: the first row after {first_row_s:.1f} s, to be under {FIRST_ROW_S_MAX:g} s"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time from a bare start to the first committed row.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--idle-s", type=float, default=0)
    parser.add_argument("--driver-memory")
    parser.add_argument("--spark-conf", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        conf = dict(pair.split("=", 1) for pair in options.spark_conf)
        child(Path(options.child), options.idle_s, options.driver_memory, conf)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "run")
        runs = [measure(folder, options) for _ in range(options.runs)]
        empty_s = statistics.median(idle_queue(folder) for _ in range(options.runs))
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; median of {options.runs} starts\n")
    print(f"{'phase':12}{'ends at':>10}{'took':>10}{'JVM CPU':>10}")
    before = {"wall": 0.0, "cpu": 0.0}
    for number, (step, _, _) in enumerate(runs[0]["marks"]):
        wall = statistics.median(run["marks"][number][1] for run in runs)
        cpu = statistics.median(run["marks"][number][2] for run in runs)
        print(f"{step:12}{wall:9.1f}s{wall - before['wall']:9.1f}s{cpu - before['cpu']:9.1f}s")
        before = {"wall": wall, "cpu": cpu}
    for when in runs[0]["memory_mb"]:
        sizes = {kind: statistics.median(run["memory_mb"][when][kind] for run in runs) for kind in ("JVM", "Python")}
        print(f"{when}: " + ", ".join(f"{kind} {size:,.0f} MB" for kind, size in sizes.items()))
    print(f"an empty queue, --available-now: {empty_s:.1f} s\n")
    committed = [step for step, _, _ in runs[0]["marks"]].index("committed")
    print(verdict(statistics.median(run["marks"][committed][1] for run in runs)))


if __name__ == "__main__":
    main()
