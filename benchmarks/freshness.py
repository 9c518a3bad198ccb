"""How old an entry is when it can be queried: from the call of `produce` until its commit is acked.

    python -m benchmarks.freshness [--stores local,s3] [--seconds 30] [--rate 200] [--triggers 1.0,0.1] [--writers …]
                                   [--tables local,s3]

One thread produces calls of one entry at a steady rate, with default settings; a loader in the same process brings
them into a typed Delta table, with default settings but for `trigger_interval_s`. Every entry is timed on one clock:
the batch that it went into is known by its handle, and when that was committed by the loader's progress. What was
produced while everything warmed up is not counted, and all of it is found in the table at the end, once.

The queue is on local files or on an S3 server on loopback; the table on local files, or there, too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path

from pyspark.sql import SparkSession

from buffer.config import ProducerConfig
from buffer.produce.durability import WriteHandle
from buffer.produce.producer import Producer
from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from buffer_delta.load.progress import Progress
from buffer_delta.spark.session import spark_session
from tests.servers import StoreAddress, run_s3_server

SCHEMA = "id BIGINT, kind STRING, amount DOUBLE"
WARM_UP_COMMITS = 5
TARGETS_S = {1.0: 1.0, 0.1: 0.5}
"""The median that is wanted, by trigger_interval_s."""


class Commits:
    """When each range was committed and acked."""

    def __init__(self) -> None:
        self._done: list[tuple[int, float]] = []
        self._changed = threading.Condition()

    def note(self, progress: Progress) -> None:
        with self._changed:
            self._done.append((progress.last, time.perf_counter()))
            self._changed.notify_all()

    def wait(self, commits: int = 0, through: int = -1) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._done) >= commits and self._last >= through)

    def time_of(self, sequence: int) -> float:
        return next(at for last, at in self._done if last >= sequence)

    @property
    def _last(self) -> int:
        return self._done[-1][0] if self._done else -1

    def __len__(self) -> int:
        return len(self._done)


def produce_steadily(
    producer: Producer, rate: float, seconds: float, first_id: int, until: Commits | None = None
) -> list[tuple[float, WriteHandle]]:
    """One entry a call; for so many seconds, or until the warm-up's commits are done."""
    calls: list[tuple[float, WriteHandle]] = []
    started = time.perf_counter()
    while (len(until) < WARM_UP_COMMITS) if until else (time.perf_counter() - started < seconds):
        entry = {"id": first_id + len(calls), "kind": "view", "amount": 0.5}
        calls.append((time.perf_counter(), producer.produce([json.dumps(entry).encode()])))
        due = started + len(calls) / rate
        time.sleep(max(0.0, due - time.perf_counter()))
    return calls


def measure(
    spark: SparkSession, address: StoreAddress, table: str, rate: float, seconds: float, settings: dict[str, object]
) -> tuple[list[float], int]:
    """The age of every entry when it was committed, and how many commits there were."""
    commits = Commits()
    config = LoaderConfig(
        store=address.url,
        store_options=address.options,
        table=table,
        format={"type": "json", "schema": SCHEMA},
        **settings,  # type: ignore[arg-type]
    )
    with Producer(ProducerConfig(store=address.url, store_options=address.options)) as producer:
        producer.produce([b'{"id": -1}']).watcher.await_durable()  # the queue is there before the loader is
        loader = Loader(spark, config, on_progress=commits.note)
        thread = threading.Thread(target=loader.run, kwargs={"handle_signals": False})
        thread.start()
        try:
            warm_up = produce_steadily(producer, rate, 0.0, 0, until=commits)
            before = len(commits)
            calls = produce_steadily(producer, rate, seconds, len(warm_up))
            sequences = [handle.watcher.await_durable().sequence for _, handle in calls]
            commits.wait(through=sequences[-1])
            made = len(commits) - before
        finally:
            loader.stop()
            thread.join()
    ids = [row["id"] for row in spark.read.format("delta").load(table).select("id").collect()]
    assert sorted(ids) == list(range(-1, len(warm_up) + len(calls))), "entries are missing, or there twice"
    ages = [commits.time_of(sequence) - at for (at, _), sequence in zip(calls, sequences, strict=True)]
    return ages, made


def report(name: str, place: str, writer: str, trigger_s: float, ages: Sequence[float], commits: int) -> None:
    p50, p99 = statistics.median(ages), statistics.quantiles(ages, n=100)[98]
    wanted = TARGETS_S.get(trigger_s)
    target = "" if wanted is None else f"{wanted:g} s {'pass' if p50 <= wanted else 'MISS'}"
    print(
        f"{name:<7}{place:<7}{writer or 'default':<9}{trigger_s:>9g}{len(ages):>9,}{commits:>9,}{p50:>9.2f}{p99:>9.2f}"
        f"{max(ages):>9.2f}   {target}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", default="local,s3")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=200.0, help="entries a second, in calls of one")
    parser.add_argument("--triggers", default="1.0,0.1", help="trigger_interval_s, several with commas")
    parser.add_argument("--writers", default="", help="as in the loader's settings; else its default")
    parser.add_argument("--tables", default="local", help="where the table is: local, s3 or both")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="buffer-benchmark-")))
        server = bucket = loads = None
        if "s3" in f"{options.stores},{options.tables}".split(","):
            (folder / "s3").mkdir()
            server = stack.enter_context(run_s3_server(folder / "s3"))
        if server is not None and "s3" in options.tables.split(","):
            bucket = server.new_bucket()
            keys = {"store": f"s3://{bucket}/q", "store_options": server.options}
            loads = LoaderConfig(**keys, table=f"s3a://{bucket}/t")  # the session learns the server from it
        spark = spark_session("freshness", master="local[2]", memory="2g", loads=loads)
        stack.callback(spark.stop)
        print(f"{options.rate:g} entries a second in calls of one, seconds from produce to committed\n")
        head = "".join(f"{name:>9}" for name in ("trigger", "entries", "commits", "p50", "p99", "max"))
        print(f"{'queue':<7}{'table':<7}{'writer':<9}{head}   target")
        chosen = (options.stores, options.tables, options.writers, options.triggers)
        for number, (name, place, writer, trigger) in enumerate(product(*(text.split(",") for text in chosen))):
            address = server.new_address() if name == "s3" and server else StoreAddress(str(folder / f"q{number}"))
            settings: dict[str, object] = {
                "trigger_interval_s": float(trigger),
                **({"writer": writer} if writer else {}),
            }
            table = f"s3a://{bucket}/t{number}" if place == "s3" else str(folder / f"t{number}")
            ages, commits = measure(spark, address, table, options.rate, options.seconds, settings)
            report(name, place, writer, float(trigger), ages, commits)


if __name__ == "__main__":
    main()
