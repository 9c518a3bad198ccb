"""A configuration that is wrong is refused before anything of a range is decided, however often it is started, and can
simply be rolled back; with dead letters, too, into which nothing goes that the data is not to blame for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from buffer.errors import BufferQueueError
from buffer.inspect.status import read_ledger
from buffer.store.open import open_store
from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from tests.spark.queues import assert_exactly_once, numbered, produce

pytestmark = pytest.mark.spark


def selects_what_is_not_there(frame: DataFrame) -> DataFrame:
    return frame.select("*", "no_such_column")


def raises(_frame: DataFrame) -> DataFrame:
    raise KeyError("a typing mistake")


WRONG: Mapping[str, Mapping[str, Any]] = {
    "a transform that selects what is not there": {"transform": selects_what_is_not_there},
    "a transform that raises": {"transform": raises},
    "a route by a column that is not there": {"route_by": "nope", "routes": {"a": "route"}},
    "a provenance column under a name that the data has": {"columns": {"_sequence": "id"}},
    "a partition column that is not there": {"partition_by": ["nope"]},
}


def settings(folder: Path, **more: Any) -> LoaderConfig:
    given: dict[str, Any] = {
        "store": str(folder / "queue"),
        "table": str(folder / "table"),
        "dead_letters": str(folder / "dead"),
        "format": {"type": "json", "schema": "id BIGINT"},
        "gc_enabled": False,
        "retry_attempts": 2,
        "retry_max_s": 0.01,
        "max_delivery_attempts": 1,
        **more,
    }
    if "routes" in more:
        given["routes"] = {value: str(folder / name) for value, name in more["routes"].items()}
    return LoaderConfig(**given)


CASES = [(wrong, was_loaded) for wrong in WRONG for was_loaded in (False, True)]
CASES.remove(("a partition column that is not there", True))  # its partitions are those that the table has


@pytest.mark.parametrize(
    ("wrong", "was_loaded"), [pytest.param(*case, marks=() if case[1] else pytest.mark.thorough) for case in CASES]
)
def test_should_refuse_a_wrong_configuration_and_load_once_it_is_rolled_back(
    spark: SparkSession, tmp_path: Path, wrong: str, was_loaded: bool
) -> None:
    loaded = 10 if was_loaded else 0
    if was_loaded:
        produce(tmp_path / "queue", numbered(1))
        Loader(spark, settings(tmp_path)).run(available_now=True)
    before = read_ledger(open_store(str(tmp_path / "queue")), "ingest/manifest") if was_loaded else None
    produce(tmp_path / "queue", [*numbered(2, start=loaded), [b"no JSON"]])
    for _ in range(2):  # as a supervisor would: more often than a record's attempts
        with pytest.raises((BufferQueueError, PySparkException, KeyError)):
            Loader(spark, settings(tmp_path, **WRONG[wrong])).run(available_now=True)
    ledger = read_ledger(open_store(str(tmp_path / "queue")), "ingest/manifest")
    pending = ledger.plan if ledger is not None else None
    if pending is not None and (before is None or pending != before.plan):
        assert pending.quarantined is None, "nothing of the range is decided"
        assert not pending.entries
    assert ledger is None or ledger.blocked is None
    if (tmp_path / "dead").exists():  # a table may be created; what counts is what is in it
        assert spark.read.format("delta").load(str(tmp_path / "dead")).count() == 0, "the data is not to blame"
    progress = Loader(spark, settings(tmp_path)).run(available_now=True)
    assert progress is not None
    assert progress.dead_letters == 1
    assert_exactly_once(spark, tmp_path / "table", loaded + 20)
