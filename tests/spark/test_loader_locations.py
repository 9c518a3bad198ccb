"""A manifest that names what is not the queue's: its bytes reach no table, and everything else is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from buffer.codec.batch import encode_batch
from buffer.manifest import Manifest
from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from tests.spark.queues import assert_exactly_once, numbered, produce

pytestmark = pytest.mark.spark


def lure(queue: Path, *locations: str) -> None:
    path = queue / "ingest/manifest"
    manifest = Manifest.from_bytes(path.read_bytes())
    for location in locations:
        manifest = manifest.append(location)
    path.write_bytes(manifest.to_bytes())


def load(spark: SparkSession, tmp_path: Path, **settings: Any) -> None:
    config = LoaderConfig(
        store=str(tmp_path / "queue"),
        table=str(tmp_path / "table"),
        dead_letters=str(tmp_path / "dead"),
        format={"type": "json", "schema": "id BIGINT"},
        max_delivery_attempts=1,
        retry_max_s=0.01,
        gc_enabled=False,
        max_batch_bytes=1 << 20,
        **settings,
    )
    Loader(spark, config).run(available_now=True)


def test_should_set_aside_what_is_not_the_queues_without_its_bytes(spark: SparkSession, tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    produce(queue, numbered(1))
    (queue / "other").mkdir()
    (queue / "other/secret.txt").write_bytes(b"a secret that is no batch")
    (queue / "other/large.txt").write_bytes(b"secret" * 5_000_000)  # a dead letter's whole object would be kept
    (tmp_path / "outside").write_bytes(encode_batch([b'{"id": 666}']))
    (queue / "ingest/link.batch").symlink_to(tmp_path / "outside")
    bad = ["other/secret.txt", "other/large.txt", "../outside", str(tmp_path / "outside"), "ingest/%2e%2e/other/x", ""]
    bad += ["ingest/link.batch", "ingest/" + "x" * 3000, "ingest/a\0b"]
    lure(queue, *bad)
    produce(queue, numbered(1, start=10))
    load(spark, tmp_path)
    assert_exactly_once(spark, tmp_path / "table", 20)
    dead = spark.read.format("delta").load(str(tmp_path / "dead")).orderBy("_sequence").collect()
    assert [(row.location, row.bytes) for row in dead] == [(location, None) for location in bad]
    assert "lies outside of 'ingest'" in dead[0].error
    assert all("secret" not in str(path) for path in (queue / "ingest").rglob("*"))
    assert not (queue / "other/dead_letters").exists()


def test_should_load_older_batches_from_a_former_prefix(spark: SparkSession, tmp_path: Path) -> None:
    queue = tmp_path / "queue"
    produce(queue, numbered(1))
    (queue / "old").mkdir()
    (queue / "old/a.batch").write_bytes(encode_batch([b'{"id": 10}']))
    lure(queue, "old/a.batch")
    load(spark, tmp_path, former_prefixes=["old"])
    assert_exactly_once(spark, tmp_path / "table", 11)
