"""The driver's memory: it must grow neither with the number of commits nor with the size of a range."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from tests.spark.queues import numbered, produce

pytestmark = [pytest.mark.spark, pytest.mark.soak]

COMMITS = 200
MIB = 1 << 20


def python_rss() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def jvm_heap(spark: SparkSession) -> int:
    """What is reachable: after a collection, so that garbage does not count."""
    runtime = spark.sparkContext._jvm.java.lang.Runtime.getRuntime()
    spark.sparkContext._jvm.java.lang.System.gc()
    return int(runtime.totalMemory() - runtime.freeMemory())


def test_should_not_grow_with_the_number_of_commits(spark: SparkSession, tmp_path: Path) -> None:
    config = LoaderConfig(
        store=str(tmp_path / "queue"),
        table=str(tmp_path / "table"),
        format={"type": "json", "schema": "id BIGINT"},
        max_batches_per_commit=1,
        gc_enabled=False,
    )
    produce(tmp_path / "queue", numbered(COMMITS))
    marks: list[tuple[int, int]] = []
    with Loader(spark, config) as loader:
        for commit in range(COMMITS):
            assert loader.run_once() is not None
            if commit in (COMMITS // 4, COMMITS - 1):
                marks.append((python_rss(), jvm_heap(spark)))
    (python_early, heap_early), (python_late, heap_late) = marks
    assert python_late < python_early * 1.1
    assert heap_late < heap_early * 1.1 + 16 * MIB, "Spark keeps a bounded record of finished jobs"


def test_should_not_grow_with_the_size_of_a_range(spark: SparkSession, tmp_path: Path) -> None:
    """Data never passes through the driver's Python process."""

    def batch(number: int) -> list[bytes]:
        return [json.dumps({"id": number * 50_000 + i, "text": "x" * 100}).encode() for i in range(50_000)]

    config = LoaderConfig(
        store=str(tmp_path / "queue"),
        table=str(tmp_path / "table"),
        format={"type": "json", "schema": "id BIGINT, text STRING"},
        gc_enabled=False,
    )
    with Loader(spark, config) as loader:
        produce(tmp_path / "queue", [batch(0)])
        loader.run_once()
        before = python_rss()
        produce(tmp_path / "queue", (batch(number) for number in range(1, 31)))
        gc.collect()
        grown_by_producing = python_rss()
        progress = loader.run_once()
    assert progress is not None
    assert progress.bytes > 150 * MIB
    assert python_rss() < max(before, grown_by_producing) + 16 * MIB
