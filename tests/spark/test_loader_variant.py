"""VARIANT columns through the loader: the values, not their text."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from tests.spark.queues import produce

pytestmark = pytest.mark.spark

LONGEST = "1234567890123456789012345678901234567.8"


def _load(spark: SparkSession, folder: Path, entries: list[bytes], **settings: Any) -> list[tuple[Any, ...]]:
    produce(folder / "queue", [entries])
    table = str(folder / "table")
    Loader(spark, LoaderConfig(store=str(folder / "queue"), table=table, gc_enabled=False, **settings)).run(
        available_now=True
    )
    frame = spark.read.format("delta").load(table).orderBy("_sequence", "_index")
    return [tuple(row) for row in frame.selectExpr("schema_of_variant(v)", "to_json(v)", "_rescued_data").collect()]


def test_should_load_variants_exactly_or_rescue_them(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With dead letters, so that rows are cached on their way; Arrow's writer is asked, and leaves it to Spark's."""
    caplog.set_level(logging.INFO)
    found = _load(
        spark,
        tmp_path,
        [
            b'{"v": {"b": [1, null, "x"], "a": 1.50}}',
            b'{"v": %s}' % LONGEST.encode(),
            b'{"v": %s9}' % LONGEST.encode(),
            b'{"v": 1e2}',
            b'{"v": null}',
            b'{"v": "\\u00e9\\u0000"}',
            b"{broken",
        ],
        format={"type": "json", "schema": "v VARIANT"},
        dead_letters=str(tmp_path / "dead"),
        writer="auto",
    )
    assert found == [
        ("OBJECT<a: DECIMAL(2,1), b: ARRAY<VARIANT>>", '{"a":1.5,"b":[1,null,"x"]}', None),
        ("DECIMAL(38,1)", LONGEST, None),
        (None, None, f'{{"v":{LONGEST}9}}'),
        ("DOUBLE", "100.0", None),
        (None, None, None),
        ("STRING", '"é\\u0000"', None),
    ]
    assert spark.read.format("delta").load(str(tmp_path / "dead")).count() == 1
    assert "Spark's own writer, not by Arrow: the type variant" in caplog.text


def test_should_give_a_table_that_follows_the_data_a_variant_by_a_hint(spark: SparkSession, tmp_path: Path) -> None:
    """Into a table that is there without; then without the hint: the table has the column by now."""
    _load_id = {"store": str(tmp_path / "queue"), "table": str(tmp_path / "table"), "gc_enabled": False}
    produce(tmp_path / "queue", [[b'{"id": 1}']])
    Loader(spark, LoaderConfig(format="json", **_load_id)).run(available_now=True)
    _load(spark, tmp_path, [b'{"id": 2, "v": [1]}'], format={"type": "json", "schema_hints": "v VARIANT"})
    found = _load(spark, tmp_path, [b'{"id": 3, "v": {"x": "y"}}', b'{"id": 4, "v": 5}'], format="json")
    assert [text for _, text, _ in found] == [None, "[1]", '{"x":"y"}', "5"]
    assert all(rescued is None for _, _, rescued in found)
