"""The loader against Spark itself, in one run: 200 MB of JSON into a typed Delta table.

    ours       Loader: zstd batches of JSON, parsed in Arrow on the executors, which write the files too
    (a)        Structured Streaming's file source over the same lines, from_json, into Delta
    (b)        spark.read.parquet of the typed rows into Delta: the limit of Spark's own writer
    (c)        ours with Spark's own writer: `writer="spark"`
    (d)        delta-rs: write_deltalake of the rows that were parsed before, in one process
    evolving   ours without a schema: the columns follow the data
    tables     ours with two routes and dead letters, all of which get rows
    raw        ours without parsing: the entries as they are
    arrow      ours with entries that are Arrow streams of the same rows
    source     Spark's own sink over the data source `buffer`: the same queue as a stream
    read       a batch read of the queue by the data source, counted
    write      the lines as text, written into a queue by the data source, as zstd batches
    commit     one small range, plan and ack included, with each writer, against a bare Delta append of the same rows
    small      the same with dead letters and with two routes that nothing goes to, against one with neither

Every table is there before the clock starts, with some rows in it that were loaded the same way: what is timed is a
load into a table that exists. Each is run several times, in turn, and the best of each is compared; the spread is
that of the ratios of single rounds. `--mb 50` makes it shorter, `--mb 0` leaves all but the small commits out. The
exit code is 1 if a ratio that is to be reached is not.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow.parquet as pq
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.functions import from_json

from benchmarks.small_commits import several_tables, small_commits
from benchmarks.sources import FIRST_LINES, SCHEMA, Sources, make_lines
from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from buffer_delta.spark.session import spark_session

TYPED = {"type": "json", "schema": SCHEMA}
ROUNDS = 3

Run: TypeAlias = Callable[[], None]
"""What is timed."""


def queue_of(folder: Path, name: str, out: Path) -> dict[str, Any]:
    """A queue is loaded once: each round gets its own copy of the manifest, over the same batches."""
    manifest = f"ingest/manifest-{out.name}"
    shutil.copy(folder / name / "ingest/manifest", folder / name / manifest)
    return {"store": str(folder / name), "manifest_path": manifest, "gc_enabled": False}


def loading(queue: str = "queue", **settings: Any) -> Callable[[SparkSession, Path, Path], Run]:
    """A loader, whose first batch is loaded before."""

    def ready(spark: SparkSession, folder: Path, out: Path) -> Run:
        places = {key: str(out) + value for key, value in settings.items() if key == "dead_letters"}
        if "routes" in settings:
            places["routes"] = {route: f"{out}-{route}" for route in settings["routes"]}
        config = LoaderConfig(**{**queue_of(folder, queue, out), "table": str(out), **settings, **places})
        first = Loader(spark, config.replace(max_batches_per_commit=1))
        assert first.run_once() is not None
        first.close()
        return lambda: Loader(spark, config).run(available_now=True) and None

    return ready


def structured_streaming(spark: SparkSession, folder: Path, out: Path) -> Run:
    text = Path(f"{out}-text")
    shutil.copytree(folder / "first", text, copy_function=os.link)

    def run() -> None:
        lines = spark.readStream.format("text").load(str(text))
        rows = lines.select(from_json("value", SCHEMA).alias("row")).select("row.*")
        to_delta(rows, out)

    run()
    shutil.copytree(folder / "text", text, copy_function=os.link, dirs_exist_ok=True)
    return run


def to_delta(rows: DataFrame, out: Path) -> None:
    stream = rows.writeStream.format("delta").option("checkpointLocation", f"{out}-checkpoint")
    stream.trigger(availableNow=True).start(str(out)).awaitTermination()


def data_source(spark: SparkSession, folder: Path, out: Path) -> Run:
    queue = queue_of(folder, "queue", out)
    options = {"format": "json", "schema": SCHEMA, "manifest_path": queue["manifest_path"], "gc_enabled": "false"}
    nothing = spark.read.format("buffer").options(**options).load(queue["store"]).limit(0)
    nothing.write.format("delta").save(str(out))
    return lambda: to_delta(spark.readStream.format("buffer").options(**options).load(queue["store"]), out)


def parquet(spark: SparkSession, folder: Path, out: Path) -> Run:
    def append(name: str) -> None:
        spark.read.parquet(str(folder / name)).write.format("delta").mode("append").save(str(out))

    append("first-parquet")
    return lambda: append("text-parquet")


def delta_rs(_spark: SparkSession, folder: Path, out: Path) -> Run:
    write_deltalake(str(out), pq.read_table(folder / "first.parquet"))
    rows = pq.read_table(folder / "rest.parquet")
    return lambda: write_deltalake(str(out), rows, mode="append")


def timed(ready: Callable[[SparkSession, Path, Path], Run], spark: SparkSession, sources: Sources) -> float:
    out = sources.folder / f"out-{time.monotonic_ns()}"
    run = ready(spark, sources.folder, out)
    started = time.perf_counter()
    run()
    seconds = time.perf_counter() - started
    tables = [path for path in sources.folder.glob(f"{out.name}*") if (path / "_delta_log").exists()]
    found = sum(
        spark.read.format("delta").load(str(path)).count() for path in tables if not path.name.endswith("-dead")
    )
    assert found == sources.rows, f"{found} rows of {sources.rows}"
    for path in sources.folder.glob(f"{out.name}*"):
        shutil.rmtree(path)
    return seconds


def read(spark: SparkSession, sources: Sources) -> float:
    started = time.perf_counter()
    options = {"format": "json", "schema": SCHEMA}
    found = spark.read.format("buffer").options(**options).load(str(sources.folder / "queue"))
    total = found.agg(functions.sum("id"), functions.count("note")).collect()[0]
    seconds = time.perf_counter() - started
    assert total[1] == sources.rows, total
    return seconds


def write(spark: SparkSession, sources: Sources) -> float:
    """Seconds to bring all lines into a new queue."""
    out = sources.folder / f"written-{time.monotonic_ns()}"
    started = time.perf_counter()
    lines = spark.read.text(str(sources.folder / "text"))
    lines.write.format("buffer").mode("append").option("compression", "zstd").save(str(out))
    seconds = time.perf_counter() - started
    found = spark.read.format("buffer").load(str(out)).count()
    assert found == sources.rows - FIRST_LINES, f"{found} entries were written"
    shutil.rmtree(out)
    return seconds


def verdict(value: float, limit: float, *, at_most: bool = False) -> str:
    reached = value <= limit if at_most else value >= limit
    return f"{value:5.2f}x  {'ok' if reached else 'MISSED'}   (to reach: at {'most' if at_most else 'least'} {limit}x)"


RUNS = {
    "ours": loading(format=TYPED, writer="arrow"),
    "(a) streaming": structured_streaming,
    "(b) parquet": parquet,
    "(c) Spark files": loading(format=TYPED, writer="spark"),
    "(d) delta-rs": delta_rs,
    "evolving": loading(format="json"),
    "tables": loading("routed", format=TYPED, route_by="kind", routes=("click", "view"), dead_letters="-dead"),
    "raw": loading(format="raw"),
    "arrow": loading("streams", format={"type": "arrow", "schema": SCHEMA}),
    "source": data_source,
}


def large_loads(spark: SparkSession, folder: Path, megabytes: int, rounds: int) -> bool:
    """Whether every ratio that is to be reached was."""
    lines = make_lines(megabytes)
    size = sum(map(len, lines)) / 1e6
    sources = Sources.write(spark, folder, lines)
    del lines
    print(f"{sources.rows:,} records, {size:.0f} MB of JSON, {rounds} rounds in turn, best of each\n", flush=True)
    seconds: dict[str, list[float]] = {label: [] for label in (*RUNS, "read", "write")}
    for _ in range(rounds):
        for label, ready in RUNS.items():
            seconds[label].append(timed(ready, spark, sources))
        seconds["read"].append(read(spark, sources))
        seconds["write"].append(write(spark, sources))
    streaming = seconds["(a) streaming"]
    print(f"  {'':15} {'best':>9} {'':>12}   times as fast as (a)")
    for label, found in seconds.items():
        ratios = [each / mine for each, mine in zip(streaming, found, strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        best = min(found)
        print(f"  {label:15} {best:7.2f} s {size / best:7.1f} MB/s   {min(streaming) / best:5.2f}x  ({spread})")
    against = {label: min(found) / min(seconds["ours"]) for label, found in seconds.items()}
    print(f"\n  ours / (a)      {verdict(against['(a) streaming'], 3.0)}")
    print(f"  ours / (b)      {verdict(against['(b) parquet'], 1.4)}")
    print(f"  ours / (c)      {against['(c) Spark files']:5.2f}x")
    print(f"  ours / (d)      {against['(d) delta-rs']:5.2f}x", flush=True)
    return against["(a) streaming"] >= 3.0 and against["(b) parquet"] >= 1.4


def small_loads(spark: SparkSession, folder: Path, writer: str, at_most: float) -> bool:
    load, append = small_commits(spark, folder, writer)
    print(f"\n  small commit    {load:.3f} s through the loader with {writer}, {append:.3f} s bare")
    print(f"  loader / bare   {verdict(load / append, at_most, at_most=True)}", flush=True)
    small = several_tables(spark, folder, writer)
    ratios = {label: small[label] / small["plain"] for label in ("dead letters", "two routes")}
    for label, ratio in ratios.items():
        print(f"  {label:14}  {verdict(ratio, 1.2, at_most=True)}   of a plain commit", flush=True)
    return load / append <= at_most and all(ratio <= 1.2 for ratio in ratios.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=200, help="0: the small commits alone")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--no-small", action="store_true", help="leave the small commits out")
    args = parser.parse_args()
    spark = spark_session("benchmark-load")
    with tempfile.TemporaryDirectory() as name:
        reached = [large_loads(spark, Path(name), args.mb, args.rounds)] if args.mb else []
        if not args.no_small:
            reached += [small_loads(spark, Path(name), *each) for each in (("arrow", 0.5), ("spark", 1.5))]
    spark.stop()
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
