"""The processes behind `buffer-delta prepare`: each starts one JVM, which can have but one class path.

    python -m buffer_delta.cli.prepare_worker '{"packages": […]}'                        fetches the JARs
    python -m buffer_delta.cli.prepare_worker '{"packages": […], "draft": "….jsa"}'      … and writes a class archive

The archive holds the classes that were loaded when the JVM ends, so it does what a loader does first: it creates a
table, with either writer, and commits good records and a bad one.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pyspark import SparkContext
from pyspark.sql import SparkSession

from buffer.config import ProducerConfig
from buffer.produce.producer import Producer
from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from buffer_delta.spark.archive import making_options
from buffer_delta.spark.session import spark_session

RECORDS = (*(b'{"id": %d, "name": "n", "tags": ["a"]}' % number for number in range(100)), b"not a record")
SCHEMA = "id BIGINT, name STRING, tags ARRAY<STRING>"
WRITERS: tuple[Literal["spark", "arrow"], ...] = ("spark", "arrow")


def prepare(packages: Sequence[str], draft: str | None = None) -> None:
    """Start Spark with these packages beside Delta's. With `draft`, load a little, and write the archive there."""
    # `data_source`: who reads queues with Spark starts as often as who loads them.
    options = {"spark.driver.defaultJavaOptions": " ".join(making_options(Path(draft)))} if draft else {}
    spark = spark_session("buffer-delta prepare", extra_packages=packages, config=options)
    if draft:
        with tempfile.TemporaryDirectory() as folder:
            for writer in WRITERS:
                _load(spark, Path(folder, writer), writer)
    spark.stop()
    _end_java()


def _load(spark: SparkSession, folder: Path, writer: Literal["spark", "arrow"]) -> None:
    with Producer(ProducerConfig(store=str(folder / "queue"))) as producer:
        producer.produce(list(RECORDS))
    config = LoaderConfig(
        store=str(folder / "queue"),
        table=str(folder / "table"),
        format={"type": "json", "schema": SCHEMA},
        dead_letters=str(folder / "dead_letters"),
        writer=writer,
    )
    Loader(spark, config).run(available_now=True)
    spark.read.format("delta").load(config.table).collect()


def _end_java() -> None:
    """Let the JVM end by itself and wait for it: it writes the archive at its end."""
    gateway = SparkContext._gateway
    assert gateway is not None, "the session was started in this process"
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    prepare(**json.loads(sys.argv[1]))
