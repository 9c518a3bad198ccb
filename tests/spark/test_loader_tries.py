"""Evolving JSON in one pass: a range is tried with the columns of its table, and parsed again if it brings more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from buffer_delta.spark import tasks
from tests.spark.queues import produce

pytestmark = pytest.mark.spark


class Evolving:
    """A loader whose columns follow the data, and how often its batches were looked through for new ones."""

    def __init__(self, spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.spark = spark
        self.folder = folder
        self.looks = 0
        discover = tasks.discover

        def counted(*args: Any) -> Any:
            self.looks += 1
            return discover(*args)

        monkeypatch.setattr(tasks, "discover", counted)
        config = LoaderConfig(
            store=str(folder / "queue"), table=str(folder / "table"), format="json", gc_enabled=False, **settings
        )
        self.loader = Loader(spark, config)

    def load(self, *records: Any) -> int:
        """Load them as one range. Returns how often it was looked through."""
        before = self.looks
        entries = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in records]
        produce(self.folder / "queue", [entries])
        progress = self.loader.run_once()
        assert progress is not None
        assert progress.rows + progress.dead_letters == len(records)
        return self.looks - before

    def rows(self) -> list[dict[str, Any]]:
        """Without provenance, and without what is null."""
        found = self.spark.read.format("delta").load(str(self.folder / "table")).orderBy("id").toArrow().to_pylist()
        kept = ({n: value for n, value in row.items() if n[0] != "_" or n == "_rescued_data"} for row in found)
        return [{name: value for name, value in row.items() if value is not None} for row in kept]


def test_should_parse_a_range_once_that_brings_nothing_new(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evolving = Evolving(spark, tmp_path, monkeypatch)
    assert evolving.load({"id": 1, "a": "x"}) == 1, "there is no table yet"
    assert evolving.load({"id": 2, "a": "y"}, {"id": 3, "b": None}) == 0
    assert evolving.load({"id": 4}) == 0
    assert evolving.rows() == [{"id": 1, "a": "x"}, {"id": 2, "a": "y"}, {"id": 3}, {"id": 4}]
    evolving.loader.close()


@pytest.mark.parametrize(
    ("record", "row"),
    [
        pytest.param({"id": 3, "b": 1.5}, {"id": 3, "b": 1.5}, marks=pytest.mark.thorough),
        ({"id": 3, "s": {"t": "deep", "u": 1}}, {"id": 3, "s": {"t": "deep", "u": 1}}),
        pytest.param({"id": 3, "n": "x"}, {"id": 3, "_rescued_data": '{"n":"x"}'}, marks=pytest.mark.thorough),
        (b'{"id": 3, "a": "x", "a": "y"}', None),
    ],
)
def test_should_look_through_a_range_that_may_bring_something(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Any, row: dict[str, Any] | None
) -> None:
    evolving = Evolving(spark, tmp_path, monkeypatch)
    evolving.load({"id": 1, "a": "x", "n": 1, "s": {"t": "y"}})
    assert evolving.load({"id": 2, "a": "z"}) == 0
    assert evolving.load(record) == 1
    rows = evolving.rows()
    assert len(rows) == 3
    assert row is None or rows[-1] == row
    evolving.loader.close()


def test_should_try_the_first_range_of_a_new_loader_too(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Evolving(spark, tmp_path, monkeypatch).loader as first:
        produce(tmp_path / "queue", [[b'{"id": 1, "a": "x"}']])
        first.run_once()
    again = Evolving(spark, tmp_path, monkeypatch)
    assert again.load({"id": 2, "a": "y"}) == 0
    assert again.rows() == [{"id": 1, "a": "x"}, {"id": 2, "a": "y"}]
    again.loader.close()


@pytest.mark.thorough
def test_should_keep_dead_letters_out_of_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evolving = Evolving(spark, tmp_path, monkeypatch, dead_letters=str(tmp_path / "dead"))
    evolving.load({"id": 1}, b"bad")
    assert evolving.load({"id": 2}, b"worse") == 0
    assert evolving.load({"id": 3, "new": 1}, b"worst") == 1
    assert evolving.rows() == [{"id": 1}, {"id": 2}, {"id": 3, "new": 1}]
    dead = spark.read.format("delta").load(str(tmp_path / "dead")).collect()
    assert sorted(bytes(row["bytes"]) for row in dead) == [b"bad", b"worse", b"worst"]
    evolving.loader.close()
