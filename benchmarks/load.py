"""The loader against Spark itself, in one run: 200 MB of JSON into a typed Delta table.

    ours      Loader: zstd batches of JSON, parsed in Arrow on the executors, which write the files too
    (c)       the same with Spark's own writer: `writer="spark"`
    evolving  ours without a schema: the columns follow the data
    (a)       Structured Streaming's file source over the same lines, from_json, into Delta
    (b)       spark.read.parquet of the typed rows into Delta: the limit of Spark's own writer
    source    Spark's own sink over the data source `buffer`: the same queue as a stream
    write     the lines as text, written into a queue by the data source, as zstd batches
    commit    one small range, plan and ack included, with each writer, against a bare Delta append of the same rows
    tables    the same with dead letters and with two routes that nothing goes to, against one with neither

Each is run several times, in turn, and the best of each is compared. `--mb 50` makes it shorter.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import from_json

from buffer.config import ProducerConfig
from buffer.produce.producer import Producer
from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from buffer_delta.spark.session import spark_session

SCHEMA = "id BIGINT, user STRING, kind STRING, amount DOUBLE, ok BOOLEAN, note STRING, tags ARRAY<STRING>"
LINES_PER_BATCH = 20_000
ROUNDS = 3
COMMITS = 15


def make_lines(megabytes: int) -> list[bytes]:
    """About 200 bytes each, compressible like real events."""
    chance = random.Random(7)
    words = [f"word{chance.randrange(10**6)}" for _ in range(5000)]
    lines, size, number = [], 0, 0
    while size < megabytes * 1_000_000:
        line = json.dumps(
            {
                "id": number,
                "user": f"user-{chance.randrange(10**6):07d}",
                "kind": chance.choice(("click", "view", "purchase", "refund")),
                "amount": round(chance.random() * 1000, 2),
                "ok": chance.random() < 0.97,
                "note": " ".join(chance.choice(words) for _ in range(7)),
                "tags": [chance.choice(words), chance.choice(words)],
            }
        ).encode()
        lines.append(line)
        size += len(line) + 1
        number += 1
    return lines


def write_sources(folder: Path, lines: list[bytes]) -> None:
    """The same records three times: a queue, text files, and later Parquet."""
    (folder / "text").mkdir()
    with Producer(
        ProducerConfig(store=str(folder / "queue"), compression="zstd", flush_interval_ms=60_000)
    ) as producer:
        for number, start in enumerate(range(0, len(lines), LINES_PER_BATCH)):
            part = lines[start : start + LINES_PER_BATCH]
            producer.produce(part)
            producer.flush()
            (folder / "text" / f"{number:05d}.json").write_bytes(b"\n".join(part) + b"\n")


def ours(spark: SparkSession, folder: Path, out: Path, *, writer: str = "arrow", schema: str | None = SCHEMA) -> None:
    # A queue is loaded once: each round gets its own copy of the manifest, over the same batches.
    manifest = f"ingest/manifest-{out.name}"
    shutil.copy(folder / "queue/ingest/manifest", folder / "queue" / manifest)
    config = LoaderConfig(
        store=str(folder / "queue"),
        manifest_path=manifest,
        table=str(out),
        format={"type": "json", "schema": schema} if schema else "json",
        writer=writer,
        gc_enabled=False,
    )
    Loader(spark, config).run(available_now=True)


def with_spark_writer(spark: SparkSession, folder: Path, out: Path) -> None:
    ours(spark, folder, out, writer="spark")


def evolving(spark: SparkSession, folder: Path, out: Path) -> None:
    ours(spark, folder, out, schema=None)


def structured_streaming(spark: SparkSession, folder: Path, out: Path) -> None:
    lines = spark.readStream.format("text").load(str(folder / "text"))
    rows = lines.select(from_json("value", SCHEMA).alias("row")).select("row.*")
    query = (
        rows.writeStream.format("delta")
        .option("checkpointLocation", str(out) + "-checkpoint")
        .trigger(availableNow=True)
        .start(str(out))
    )
    query.awaitTermination()


def data_source(spark: SparkSession, folder: Path, out: Path) -> None:
    manifest = f"ingest/manifest-{out.name}"
    shutil.copy(folder / "queue/ingest/manifest", folder / "queue" / manifest)
    options = {"format": "json", "schema": SCHEMA, "manifest_path": manifest, "gc_enabled": "false"}
    query = (
        spark.readStream.format("buffer")
        .options(**options)
        .load(str(folder / "queue"))
        .writeStream.format("delta")
        .option("checkpointLocation", str(out) + "-checkpoint")
        .trigger(availableNow=True)
        .start(str(out))
    )
    query.awaitTermination()


def write(spark: SparkSession, folder: Path, rows: int) -> float:
    """Seconds to bring all lines into a new queue."""
    out = folder / f"written-{time.monotonic_ns()}"
    started = time.perf_counter()
    lines = spark.read.text(str(folder / "text"))
    lines.write.format("buffer").mode("append").option("compression", "zstd").save(str(out))
    seconds = time.perf_counter() - started
    found = spark.read.format("buffer").load(str(out)).count()
    assert found == rows, f"{found} entries of {rows} were written"
    shutil.rmtree(out)
    return seconds


def parquet(spark: SparkSession, folder: Path, out: Path) -> None:
    spark.read.parquet(str(folder / "parquet")).write.format("delta").mode("append").save(str(out))


def timed(run: Callable[[SparkSession, Path, Path], None], spark: SparkSession, folder: Path, rows: int) -> float:
    out = folder / f"out-{time.monotonic_ns()}"
    started = time.perf_counter()
    run(spark, folder, out)
    seconds = time.perf_counter() - started
    found = spark.read.format("delta").load(str(out)).count()
    assert found == rows, f"{run.__name__} wrote {found} rows of {rows}"
    shutil.rmtree(out)
    return seconds


def small_commits(spark: SparkSession, folder: Path, writer: str) -> tuple[float, float]:
    """Median seconds of one small range through the loader, and of a bare append of the same rows, taken in turn."""
    queue, table, bare = (folder / f"small-{writer}-{what}" for what in ("queue", "table", "bare"))
    config = LoaderConfig(
        store=str(queue),
        table=str(table),
        format={"type": "json", "schema": "id BIGINT"},
        writer=writer,
        gc_enabled=False,
    )
    records = [json.dumps({"id": number}).encode() for number in range(100)]
    loads, appends = [], []
    with Loader(spark, config) as loader, Producer(ProducerConfig(store=str(queue))) as producer:
        for _ in range(COMMITS):
            producer.produce(records).watcher.await_durable()
            started = time.perf_counter()
            assert loader.run_once() is not None
            loads.append(time.perf_counter() - started)
            started = time.perf_counter()
            frame = spark.createDataFrame([(number,) for number in range(100)], "id BIGINT").coalesce(1)
            frame.write.format("delta").mode("append").save(str(bare))
            appends.append(time.perf_counter() - started)
    return statistics.median(loads[3:]), statistics.median(appends[3:])


def several_tables(spark: SparkSession, folder: Path, writer: str) -> dict[str, float]:
    """Median seconds of one small range, taken in turn, of loaders with more and fewer tables that get nothing."""
    routes = {"route_by": "kind", "routes": {kind: str(folder / f"{writer}-{kind}") for kind in ("click", "view")}}
    more: dict[str, dict[str, object]] = {
        "plain": {},
        "dead letters": {"dead_letters": str(folder / f"{writer}-dead")},
        "two routes": routes,
    }
    records = [json.dumps({"id": number, "kind": "other"}).encode() for number in range(100)]
    seconds: dict[str, list[float]] = {label: [] for label in more}
    with ExitStack() as stack:
        pairs = {}
        for label, settings in more.items():
            config = LoaderConfig(
                store=str(folder / f"several-{writer}-{label}"),
                table=str(folder / f"several-{writer}-{label}-table"),
                format={"type": "json", "schema": "id BIGINT, kind STRING"},
                writer=writer,
                gc_enabled=False,
                **settings,  # type: ignore[arg-type]
            )
            producer = stack.enter_context(Producer(ProducerConfig(store=config.store)))
            pairs[label] = (stack.enter_context(Loader(spark, config)), producer)
        for _ in range(COMMITS):
            for label, (loader, producer) in pairs.items():
                producer.produce(records).watcher.await_durable()
                started = time.perf_counter()
                assert loader.run_once() is not None
                seconds[label].append(time.perf_counter() - started)
    return {label: statistics.median(found[3:]) for label, found in seconds.items()}


def verdict(value: float, limit: float, *, at_most: bool = False) -> str:
    reached = value <= limit if at_most else value >= limit
    return f"{value:5.2f}x  {'ok' if reached else 'MISSED'}   (to reach: at {'most' if at_most else 'least'} {limit}x)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    args = parser.parse_args()
    spark = spark_session("benchmark-load")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = make_lines(args.mb)
        write_sources(folder, lines)
        megabytes = sum(map(len, lines)) / 1e6
        spark.read.schema(SCHEMA).json(str(folder / "text")).write.parquet(str(folder / "parquet"))
        print(f"{len(lines):,} records, {megabytes:.0f} MB of JSON, {args.rounds} rounds in turn, best of each\n")
        runs = {
            "ours": ours,
            "(a) streaming": structured_streaming,
            "(b) parquet": parquet,
            "(c) Spark files": with_spark_writer,
            "evolving": evolving,
            "source": data_source,
        }
        best = dict.fromkeys([*runs, "write"], float("inf"))
        for _ in range(args.rounds):
            for label, run in runs.items():
                best[label] = min(best[label], timed(run, spark, folder, len(lines)))
            best["write"] = min(best["write"], write(spark, folder, len(lines)))
        for label, seconds in best.items():
            print(f"  {label:15} {seconds:7.2f} s  {megabytes / seconds:7.1f} MB/s")
        against = {label: seconds / best["ours"] for label, seconds in best.items()}
        print(f"\n  ours / (a)      {verdict(against['(a) streaming'], 3.0)}")
        print(f"  ours / (b)      {verdict(against['(b) parquet'], 1.4)}")
        print(f"  ours / (c)      {against['(c) Spark files']:5.2f}x")
        print(f"  evolving / (a)  {best['(a) streaming'] / best['evolving']:5.2f}x")
        for writer, at_most in (("arrow", 0.5), ("spark", 1.5)):
            load, append = small_commits(spark, folder, writer)
            print(f"\n  small commit    {load:.3f} s through the loader with {writer}, {append:.3f} s bare")
            print(f"  loader / bare   {verdict(load / append, at_most, at_most=True)}")
            small = several_tables(spark, folder, writer)
            for label in ("dead letters", "two routes"):
                print(f"  {label:14}  {verdict(small[label] / small['plain'], 1.2, at_most=True)}   of a plain commit")
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
