"""Streams of the data source `buffer` through Spark, into Delta tables by Spark's own sink."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from buffer.config import ConsumerConfig
from buffer.consume.consumer import Consumer
from buffer.inspect.status import read_manifest
from buffer.store.open import open_store
from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from tests.spark.queues import STARVED, assert_exactly_once, numbered, produce

QUERY_TIMEOUT_S = 240


class Job:
    """A streaming query from a queue into a Delta table, which can be run again from its checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path, **options: Any) -> None:
        self.spark = spark
        self.store = folder / "queue"
        self.table = folder / "table"
        self.checkpoint = folder / "checkpoint"
        self.options = {"format": "json", "schema": "id BIGINT", "gc_enabled": "false", **options}

    def frame(self, **options: Any) -> DataFrame:
        return self.spark.readStream.format("buffer").options(**self.options, **options).load(str(self.store))

    def start(self, **trigger: Any) -> StreamingQuery:
        writer = self.frame().writeStream.format("delta").option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**trigger).start(str(self.table))

    def run(self) -> list[dict[str, Any]]:
        """All that is there; the progress of each range that had rows."""
        found: list[dict[str, Any]] = []
        while True:
            query = self.start(availableNow=True)
            try:
                assert query.awaitTermination(QUERY_TIMEOUT_S)
            except StreamingQueryException as error:
                if STARVED not in str(error):
                    raise
            else:
                return found
            finally:
                found += [progress for progress in query.recentProgress if progress["numInputRows"]]

    def follow(self) -> StreamingQuery:
        """A query that stays, through what is there by now; Spark gives its Python worker ten seconds to start."""
        while True:
            query = self.start(processingTime="100 milliseconds")
            try:
                query.processAllAvailable()
            except StreamingQueryException as error:
                if STARVED not in str(error):
                    raise
            else:
                return query

    def queue(self) -> tuple[int, int]:
        manifest = read_manifest(open_store(str(self.store)), "ingest/manifest")
        return manifest.first_sequence, manifest.next_sequence


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path, max_batches_per_trigger="2")


def test_should_load_what_is_there_and_go_on_from_the_checkpoint(spark: SparkSession, job: Job) -> None:
    produce(job.store, numbered(5))
    assert [progress["numInputRows"] for progress in job.run()] == [20, 20, 10]
    assert job.queue() == (5, 5)  # the last range too: AvailableNow asks once more
    produce(job.store, numbered(1, start=50))
    job.run()
    assert job.run() == []
    assert_exactly_once(spark, job.table, 60)
    assert job.queue() == (6, 6)


def test_should_follow_a_queue_and_ack_while_idle(spark: SparkSession, job: Job) -> None:
    produce(job.store, numbered(1))
    query = job.follow()
    try:
        for batch in range(1, 3):
            produce(job.store, numbered(1, start=10 * batch))
            query.processAllAvailable()
        assert job.queue() == (3, 3)
    finally:
        query.stop()
    assert_exactly_once(spark, job.table, 30)


@pytest.mark.thorough
def test_should_say_that_another_query_took_over(spark: SparkSession, job: Job, tmp_path: Path) -> None:
    produce(job.store, numbered(1))
    first = job.follow()
    try:
        produce(job.store, numbered(1, start=10))
        second = Job(spark, tmp_path, start="earliest")
        second.table, second.checkpoint = tmp_path / "other", tmp_path / "other checkpoint"
        second.run()
        with pytest.raises(StreamingQueryException, match="another query or consumer has taken over the queue"):
            first.awaitTermination(QUERY_TIMEOUT_S)
    finally:
        first.stop()


def test_should_refuse_the_queue_of_a_loader(spark: SparkSession, job: Job, tmp_path: Path) -> None:
    produce(job.store, numbered(1))
    settings = {"table": str(tmp_path / "loaded"), "format": {"type": "json", "schema": "id BIGINT"}}
    with Loader(spark, LoaderConfig(store=str(job.store), gc_enabled=False, **settings)) as loader:
        loader.run(available_now=True)
    with pytest.raises(StreamingQueryException, match="through a loader"):
        job.run()


@pytest.mark.thorough
def test_should_stop_with_numbers_when_checkpoint_and_queue_do_not_fit(spark: SparkSession, job: Job) -> None:
    produce(job.store, numbered(2))
    job.run()
    kept = job.checkpoint.with_name("kept")
    shutil.copytree(job.checkpoint, kept)
    produce(job.store, numbered(4, start=20))
    Consumer.new(ConsumerConfig(store=str(job.store), gc_enabled=False), 3).close()
    with pytest.raises(StreamingQueryException, match=r"goes on at sequence 2, .* starts at 4: 2 batches"):
        job.run()
    shutil.rmtree(job.checkpoint)
    with pytest.raises(StreamingQueryException, match=r"holds batches 4\.\.5, but this query has no checkpoint"):
        job.run()
    assert job.queue() == (4, 6)
    job.options["start"] = "4"
    job.run()
    assert spark.read.format("delta").load(str(job.table)).count() == 40


def test_should_refuse_the_options_of_a_batch_read(job: Job) -> None:
    produce(job.store, numbered(1))
    job.options["from_sequence"] = "0"
    with pytest.raises(Exception, match="'from_sequence' is for batch reads"):
        job.run()
