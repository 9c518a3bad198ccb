"""Whether commits get slower or the driver larger with time: many small commits, and a long backlog.

    python -m benchmarks.growth [--commits 10000] [--backlog 100000] [--writers arrow,spark]

`commits`: one batch of 100 records is produced and loaded, again and again, into one table. `backlog`: that many
batches are queued before the loader starts, and loaded a thousand at a time. Each is cut into tenths; a line is a
tenth: the median and the 99th percentile of a commit's time, plan and ack included, the processor time that all
processes of this one took for a commit (and for producing it), which other work on the machine hardly changes, and at
its end the memory of the driver's Python and what is reachable in its JVM. Flat means that the last tenth is within
1.3x of the first. Nothing compacts the table meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from buffer.clock import SystemClock
from buffer.codec.batch import encode_batch
from buffer.config import ProducerConfig
from buffer.manifest import Manifest, PackedMetadata
from buffer.names import batch_location
from buffer.produce.producer import Producer
from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from buffer_delta.spark.session import spark_session

SCHEMA = "id BIGINT, kind STRING, amount DOUBLE"
RECORDS = 100
BACKLOG_RECORDS = 3
WARM_UP_MAX = 20
"""Commits before the first tenth, at most a tenth of all: compilers and caches warm up."""
FLAT = 1.3
TENTHS = 10
MIB = 1 << 20

_clock = SystemClock()


@dataclass(frozen=True, slots=True)
class Tenth:
    seconds: list[float]
    cpu_seconds: float
    """Of all its commits together."""
    python_bytes: int
    heap_bytes: int


def records(first: int, count: int) -> list[bytes]:
    return [json.dumps({"id": first + n, "kind": "view", "amount": n / 8}).encode() for n in range(count)]


def memory(spark: SparkSession) -> tuple[int, int]:
    """The driver's Python, and what is reachable in its JVM: after collections, so that garbage does not count."""
    gc.collect()
    virtual_machine = spark.sparkContext._jvm
    assert virtual_machine is not None
    runtime = virtual_machine.java.lang.Runtime.getRuntime()
    virtual_machine.java.lang.System.gc()
    return psutil.Process(os.getpid()).memory_info().rss, int(runtime.totalMemory() - runtime.freeMemory())


def cpu_seconds() -> float:
    """Taken so far by the driver's Python, its JVM and the workers."""
    this = psutil.Process(os.getpid())
    total = 0.0
    for process in (this, *this.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def in_tenths(spark: SparkSession, commits: int, commit: Callable[[], float]) -> Iterator[Tenth]:
    for tenth in range(TENTHS):
        count = commits * (tenth + 1) // TENTHS - commits * tenth // TENTHS
        cpu_before = cpu_seconds()
        seconds = [commit() for _ in range(count)]
        cpu = cpu_seconds() - cpu_before
        yield Tenth(seconds, cpu, *memory(spark))


def loader_of(spark: SparkSession, folder: Path, batches_max: int, writer: str) -> Loader:
    settings: dict[str, object] = {"writer": writer} if writer else {}
    config = LoaderConfig(
        store=str(folder / "queue"),
        table=str(folder / "table"),
        format={"type": "json", "schema": SCHEMA},
        max_batches_per_commit=batches_max,
        gc_enabled=False,
        **settings,  # type: ignore[arg-type]
    )
    return Loader(spark, config)


def warm_up(commits: int) -> int:
    return max(1, min(WARM_UP_MAX, commits // TENTHS))


def timed(loader: Loader) -> float:
    progress = loader.run_once()
    assert progress is not None, "there was something to load"
    return progress.seconds


def many_commits(spark: SparkSession, folder: Path, commits: int, writer: str) -> Iterator[Tenth]:
    with (
        Producer(ProducerConfig(store=str(folder / "queue"), flush_interval_ms=60_000)) as producer,
        loader_of(spark, folder, 1, writer) as loader,
    ):
        made = 0

        def commit() -> float:
            nonlocal made
            producer.produce(records(made * RECORDS, RECORDS))
            producer.flush()
            made += 1
            return timed(loader)

        for _ in range(warm_up(commits)):
            commit()
        yield from in_tenths(spark, commits, commit)
    assert_rows(spark, folder, made * RECORDS)


def long_backlog(spark: SparkSession, folder: Path, batches: int, writer: str) -> Iterator[Tenth]:
    at_once = max(1, min(1000, batches // (2 * TENTHS)))
    commits = batches // at_once
    total = (warm_up(commits) + commits) * at_once
    queue_up(folder / "queue", total)
    with loader_of(spark, folder, at_once, writer) as loader:
        for _ in range(warm_up(commits)):
            timed(loader)
        yield from in_tenths(spark, commits, lambda: timed(loader))
    assert_rows(spark, folder, total * BACKLOG_RECORDS)


def queue_up(folder: Path, batches: int) -> None:
    """A queue as a producer leaves it, but without its durable writes: they would take most of the time."""
    (folder / "ingest").mkdir(parents=True)
    metadata = PackedMetadata.pack([0], [_clock.now_ms()])
    entries = []
    for number in range(batches):
        location = batch_location("ingest", _clock.new_ulid())
        (folder / location).write_bytes(encode_batch(records(number * BACKLOG_RECORDS, BACKLOG_RECORDS)))
        entries.append((location, metadata))
    (folder / "ingest/manifest").write_bytes(Manifest.empty().append_all(entries).to_bytes())


def assert_rows(spark: SparkSession, folder: Path, count: int) -> None:
    found = spark.read.format("delta").load(str(folder / "table"))
    row = found.selectExpr("count(*) AS rows", "count(DISTINCT id) AS ids").collect()[0]
    assert (row["rows"], row["ids"]) == (count, count), "records are missing, or there twice"


def report(name: str, writer: str, tenths: Iterator[Tenth]) -> None:
    print(f"\n{name}, writer {writer or 'default'}\n")
    print(f"{'tenth':>5}{'commits':>9}{'median ms':>11}{'p99 ms':>9}{'CPU ms':>8}{'Python MiB':>12}{'JVM MiB':>9}")
    seen: list[Tenth] = []
    for number, tenth in enumerate(tenths, 1):
        seen.append(tenth)
        median = statistics.median(tenth.seconds)
        p99 = sorted(tenth.seconds)[int(0.99 * len(tenth.seconds))]
        print(
            f"{number:>5}{len(tenth.seconds):>9,}{median * 1000:>11.0f}{p99 * 1000:>9.0f}"
            f"{tenth.cpu_seconds / len(tenth.seconds) * 1000:>8.0f}"
            f"{tenth.python_bytes / MIB:>12.0f}{tenth.heap_bytes / MIB:>9.0f}",
            flush=True,
        )
    first, last = seen[0], seen[-1]
    for what, before, after in (
        ("commit time", statistics.median(first.seconds), statistics.median(last.seconds)),
        ("processor time", first.cpu_seconds / len(first.seconds), last.cpu_seconds / len(last.seconds)),
        ("Python", first.python_bytes, last.python_bytes),
        ("JVM", first.heap_bytes, last.heap_bytes),
    ):
        print(f"{what}: last tenth {after / before:.2f}x of the first, {'pass' if after <= FLAT * before else 'MISS'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=10_000, help="0 leaves this part out")
    parser.add_argument("--backlog", type=int, default=100_000, help="batches; 0 leaves this part out")
    parser.add_argument("--writers", default="arrow,spark", help="as in the loader's settings, with commas")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="buffer-benchmark-") as folder:
        spark = spark_session("growth", master="local[2]", memory="2g")
        try:
            for number, writer in enumerate(options.writers.split(",")):
                if options.commits:
                    place = Path(folder, f"commits-{number}")
                    report("small commits", writer, many_commits(spark, place, options.commits, writer))
                if options.backlog:
                    place = Path(folder, f"backlog-{number}")
                    report("a backlog", writer, long_backlog(spark, place, options.backlog, writer))
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
