"""The dead-letter queue of workers is a queue like any other: the loader loads it into a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from buffer.config import ConsumerConfig, LeaseConfig
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
