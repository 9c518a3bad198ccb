"""From the older format into a table: migrated with kills on the way, then loaded once, as key and value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from buffer.legacy.format import KeyValueEntry, encode_batch
from buffer.store import open_store
from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from tests.legacy.legacy_support import LegacyQueue
from tests.legacy.migration_support import Killed, MortalStore, Move

pytestmark = pytest.mark.spark

BATCHES = 10
PAIRS = 3


def test_should_load_a_migrated_queue_once(spark: SparkSession, tmp_path: Path) -> None:
    move = Move()
    move.old = LegacyQueue(open_store(str(tmp_path / "old")))
    move.new_store = open_store(str(tmp_path / "new"))
    pairs = [
        [
            KeyValueEntry(b"k%d" % (batch * PAIRS + n), json.dumps({"batch": batch, "n": n}).encode())
            for n in range(PAIRS)
        ]
        for batch in range(BATCHES)
    ]
    pairs[4][1] = KeyValueEntry(b"k13", b"no json \xff")
    move.old.flusher().flush([encode_batch(batch) for batch in pairs])
    for dies_at in range(2, 12):
        try:
            move.run(move.migration(old=MortalStore(move.old.store, dies_at, after=dies_at % 2 == 0)))
        except Killed:
            continue
    move.run()

    config = LoaderConfig(
        store=str(tmp_path / "new"),
        table=str(tmp_path / "table"),
        format={"type": "keyvalue", "key": "text", "value": "json"},
        gc_enabled=False,
    )
    for _ in range(2):
        Loader(spark, config).run(available_now=True)

    rows = spark.read.format("delta").load(str(tmp_path / "table")).orderBy("_sequence", "_index").collect()
    assert [row.key for row in rows] == [f"k{number}" for number in range(BATCHES * PAIRS)]
    values = [None if row.value is None else json.loads(row.value) for row in rows]
    expected = [{"batch": batch, "n": n} for batch in range(BATCHES) for n in range(PAIRS)]
    assert values == [None if place == 13 else value for place, value in enumerate(expected)]
    assert [row._rescued_data for row in rows if row._rescued_data is not None] == ['{"value": "bm8ganNvbiD/"}']
