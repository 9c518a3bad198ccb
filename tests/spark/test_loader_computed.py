"""Columns that Delta fills by itself: generated ones, identities, defaults. What records lack there is no fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from tests.spark.queues import produce

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("schema", [None, "id BIGINT"])
@pytest.mark.parametrize("has_dead_letters", [True, False])
def test_should_leave_to_delta_what_it_fills_by_itself(
    spark: SparkSession, tmp_path: Path, schema: str | None, has_dead_letters: bool
) -> None:
    table = f"delta.`{tmp_path / 'table'}`"
    # Where columns follow the data, every column is there, and null is a value: a default is for those that are not.
    kind = "kind STRING" if schema is None else "kind STRING NOT NULL DEFAULT 'plain'"
    spark.sql(
        f"CREATE TABLE {table} (id BIGINT, twice BIGINT GENERATED ALWAYS AS (id * 2) NOT NULL, "
        f"half BIGINT GENERATED ALWAYS AS (id DIV 2), number BIGINT GENERATED ALWAYS AS IDENTITY, {kind}, "
        "_rescued_data STRING) USING delta PARTITIONED BY (half) TBLPROPERTIES "
        "('delta.feature.allowColumnDefaults' = 'supported', 'delta.constraints.even' = 'twice % 2 = 0 AND id < 9')"
    )
    bad = [b'{"id": 9}'] if has_dead_letters else []
    produce(tmp_path / "queue", [[b'{"id": 4}', b'{"id": 5, "twice": 11}', *bad]])
    settings: dict[str, Any] = {"dead_letters": str(tmp_path / "dead")} if has_dead_letters else {}
    config = LoaderConfig(
        store=str(tmp_path / "queue"),
        table=str(tmp_path / "table"),
        format={"type": "json", "schema": schema} if schema else "json",
        columns={"_ingested_at": None, "_entry_metadata": None},
        merge_schema=True,
        gc_enabled=False,
        max_delivery_attempts=1,
        retry_max_s=0.01,
        **settings,
    )
    Loader(spark, config).run(available_now=True)
    found = spark.read.format("delta").load(str(tmp_path / "table"))
    rest = None if schema is None else "plain"
    rows = [tuple(row) for row in found.select("id", "twice", "half", "kind", "_rescued_data").orderBy("id").collect()]
    assert rows == [(4, 8, 2, rest, None), (5, 10, 2, rest, '{"twice":11}')]
    assert found.where("number IS NULL").count() == 0
    if has_dead_letters:
        (letter,) = spark.read.format("delta").load(str(tmp_path / "dead")).collect()
        assert (letter["_index"], "even" in letter.error) == (2, True)
