"""Queues to load, and the check that they were loaded exactly once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from buffer.config import ProducerConfig
from buffer.produce.producer import Producer

STARVED = "Python worker failed to connect back"
"""What a query dies of where a Python process needs more than Spark's ten seconds to start: start the query again."""


def produce(store: str | Path, batches: Iterable[Sequence[bytes]], **settings: Any) -> int:
    """Each inner list becomes one batch. Returns how many records went in."""
    total = 0
    config = ProducerConfig(store=str(store), flush_interval_ms=60_000, **settings)
    with Producer(config) as producer:
        for entries in batches:
            producer.produce(list(entries), metadata=b"made by a test")
            producer.flush()
            total += len(entries)
    return total


def numbered(batches: int, entries: int = 10, start: int = 0) -> list[list[bytes]]:
    """JSON records `{"id": n}`, numbered through."""
    return [[json.dumps({"id": start + b * entries + e}).encode() for e in range(entries)] for b in range(batches)]


def ids(spark: SparkSession, table: str | Path) -> list[int]:
    return sorted(row.id for row in spark.read.format("delta").load(str(table)).select("id").collect())


def assert_exactly_once(spark: SparkSession, table: str | Path, records: int) -> None:
    """Every id once, and `(_sequence, _index)` unique: the check that the README promises is one query."""
    frame = spark.read.format("delta").load(str(table))
    assert ids(spark, table) == list(range(records))
    doubled = frame.groupBy("_sequence", "_index").count().where("count > 1").count()
    assert doubled == 0
