"""One small range through the loader, plan and ack included. Part of `benchmarks.load`."""

from __future__ import annotations

import json
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import SparkSession

from buffer.config import ProducerConfig
from buffer.produce.producer import Producer
from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader

COMMITS = 15


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
