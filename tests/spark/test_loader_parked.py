"""The dead-letter queue of workers is a queue like any other: the loader loads it into a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from buffer.config import ConsumerConfig, LeaseConfig
from buffer.errors import QueueBound
from buffer.leases import LeaseQueue
from buffer.manifest import Manifest
from buffer.store.open import open_store
from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from tests.spark.queues import produce

pytestmark = pytest.mark.spark

DEAD = "dead/manifest"


def test_should_load_what_workers_have_parked_with_its_story(spark: SparkSession, tmp_path: Path) -> None:
    store, table = tmp_path / "queue", tmp_path / "letters"
    produce(store, [[b'{"id": 0}', b'{"id": 1}', b'{"id": 2}'], [b'{"id": 3}'], [b'{"id": 4}']])
    damaged = list(Manifest.from_bytes(open_store(str(store)).get("ingest/manifest").data))[1]
    (store / damaged.location).write_bytes(b"not a batch")
    leases = LeaseConfig(visibility_timeout_ms=60_000, max_delivery_attempts=1, dlq_strategy="skip", dlq=DEAD)
    with LeaseQueue.open(ConsumerConfig(store=str(store), gc_enabled=False), leases) as queue:
        first, last = queue.consume(3)
        queue.ack(last)
        queue.ack(first, entries=[1])
        queue.nack(first, reason="no such customer")
        assert not queue.consume(3)
    config = LoaderConfig(
        store=str(store), manifest_path=DEAD, data_path_prefix="dead", table=str(table), format="raw", gc_enabled=False
    )
    progress = Loader(spark, config).run(available_now=True)
    assert progress is not None
    assert progress.rows == 3
    rows = spark.read.format("delta").load(str(table)).orderBy("_sequence", "_index").collect()
    (story,) = [name for name in rows[0].asDict() if name.endswith("metadata")]
    told = [(bytes(row["value"]), json.loads(bytes(row[story]))) for row in rows]
    by_value = {
        value: (letter["sequence"], letter["kind"], letter["entries"], letter["count"]) for value, letter in told
    }
    assert by_value == {
        b'{"id": 0}': (0, "entries", [[0, 0], [2, 2]], 1),
        b'{"id": 2}': (0, "entries", [[0, 0], [2, 2]], 1),
        b"not a batch": (1, "bytes", None, 1),
    }
    assert {letter["reason"] for _, letter in told if letter["kind"] == "entries"} == {"no such customer"}
    assert Loader(spark, config).run(available_now=True) is None, "once"


def test_should_load_a_redriven_dead_letter_queue_and_the_queue_that_workers_left(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = tmp_path / "queue"
    produce(store, [[b"%d" % number] for number in range(5)])
    leases = LeaseConfig(visibility_timeout_ms=60_000, max_delivery_attempts=1, dlq_strategy="skip", dlq=DEAD)
    config = LoaderConfig(store=str(store), table=str(tmp_path / "table"), format="raw", gc_enabled=False)
    letters = config.replace(manifest_path=DEAD, data_path_prefix="dead", table=str(tmp_path / "letters"))
    with LeaseQueue.open(ConsumerConfig(store=str(store), gc_enabled=False), leases) as queue:
        assert queue.park(0)
        assert queue.redrive() == 1  # as sequence 5 of the queue; the dead-letter queue has leases from now on
        assert queue.park(1)
        held = {batch.sequence: batch for batch in queue.consume(2)}
        queue.ack(held[2])
        before = [(store / "ingest" / name).read_bytes() for name in ("manifest", "manifest.ledger")]
        with pytest.raises(QueueBound, match="batches 3 are leased: stop the workers"):
            Loader(spark, config).run(available_now=True)
        assert [(store / "ingest" / name).read_bytes() for name in ("manifest", "manifest.ledger")] == before
        queue.nack(held[3])
        progress = Loader(spark, letters).run(available_now=True)
        assert progress is not None
        assert values(spark, letters) == [b"1"]
        with pytest.raises(QueueBound, match="feeds the app"):
            queue.redrive()
        progress = Loader(spark, config).run(available_now=True)
        assert progress is not None
        assert values(spark, config) == [b"3", b"4", b"0"], "what workers have finished is in no table"
        with pytest.raises(QueueBound, match="feeds the app"):
            queue.consume()
    assert Loader(spark, config).run(available_now=True) is None, "once"


def values(spark: SparkSession, config: LoaderConfig) -> list[bytes]:
    rows = spark.read.format("delta").load(config.table).orderBy("_sequence", "_index").collect()
    return [bytes(row["value"]) for row in rows]
