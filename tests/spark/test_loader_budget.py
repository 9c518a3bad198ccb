"""What one range costs in the steady state, counted: calls to the store, and looks at the tables' logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from buffer.store.open import open_store
from buffer_delta.config import LoaderConfig
from buffer_delta.delta.log import DeltaLog
from buffer_delta.load.loader import Loader
from tests.consume.consumer_support import Tapped
from tests.spark.queues import assert_exactly_once, numbered, produce

pytestmark = pytest.mark.spark

MANIFEST = "ingest/manifest"
LEDGER = "ingest/manifest.ledger"

POLLS = 1
"""One conditional read of the manifest, where no batch is known that waits."""
KEPT = 1
"""One conditional read of the ledger before entries leave the queue: whether marks of clients must be kept."""
LOOKS = 2
"""At each table's log: one before the commit, one after."""

CREATED = 1
"""One more look, at the table as it was made."""

Costs = Counter[str]


class Counting(Tapped):
    """Counts what the driver does; executors get the plain store."""

    def __reduce__(self) -> Any:
        return open_store, (self.store.url,)

    def costs(self) -> Costs:
        """What happened since the last call, by kind."""
        names = {MANIFEST: "manifest", LEDGER: "ledger"}
        kinds = {"get": "full read", "get_if_changed": "read", "put_if_match": "write", "put_if_absent": "write"}
        found: Costs = Counter()
        for operation, location in self.calls:
            name = f"{names[location]} {kinds[operation]}" if location in names else operation
            found[name] += 1
        self.calls.clear()
        return found


@pytest.fixture
def store(tmp_path: Path) -> Counting:
    return Counting(open_store(str(tmp_path / "queue")))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the newest log of each table was looked at, and listed besides."""
    counted: Counter[str] = Counter()
    real, really_newest = DeltaLog.look, DeltaLog.newest
    looking = False

    def look(self: DeltaLog, app_id: str) -> Any:
        nonlocal looking
        counted[Path(self._path or "").name] += 1
        looking = True
        try:
            return real(self, app_id)
        finally:
            looking = False

    def newest(self: DeltaLog) -> Any:
        if not looking:
            counted[f"{Path(self._path or '').name}, listed"] += 1
        return really_newest(self)

    monkeypatch.setattr(DeltaLog, "look", look)
    monkeypatch.setattr(DeltaLog, "newest", newest)
    return counted


@pytest.fixture
def loader(spark: SparkSession, tmp_path: Path, store: Counting) -> Callable[..., Loader]:
    def make(**settings: Any) -> Loader:
        """In its steady state: the table is there, two ranges are loaded."""
        config = LoaderConfig(
            **{
                "store": store,
                "table": str(tmp_path / "table"),
                "format": {"type": "json", "schema": "id BIGINT"},
                "gc_enabled": False,
            }
            | settings
        )
        made = Loader(spark, config)
        for start in (0, 10):
            produce(tmp_path / "queue", numbered(1, start=start))
            assert made.run_once() is not None
        store.costs()
        return made

    return make


def test_should_stay_within_the_budget_of_a_range(
    spark: SparkSession, tmp_path: Path, store: Counting, looks: Counter[str], loader: Callable[..., Loader]
) -> None:
    with loader(max_batches_per_commit=1) as running:
        assert running.run_once() is None
        assert store.costs() == {"manifest read": POLLS}, "a poll of an idle queue"

        produce(tmp_path / "queue", numbered(3, start=20))
        looks.clear()
        assert running.run_once() is not None
        assert store.costs() == {
            "manifest read": POLLS,
            "manifest write": 1,
            "list": 1,
            "ledger write": 1,
            "ledger read": KEPT,
        }
        assert looks == {"table": LOOKS}

        for _ in range(2):  # batches that are known already: nothing is polled, nothing is listed
            looks.clear()
            assert running.run_once() is not None
            assert store.costs() == {"manifest write": 1, "ledger write": 1, "ledger read": KEPT}
            assert looks == {"table": LOOKS}
    assert_exactly_once(spark, tmp_path / "table", 50)


def test_should_look_at_none_but_the_main_table_where_the_others_get_nothing(
    spark: SparkSession, tmp_path: Path, store: Counting, looks: Counter[str], loader: Callable[..., Loader]
) -> None:
    """The format finds its columns by itself, which needs the table's: from the same look."""
    with loader(dead_letters=str(tmp_path / "dead"), format="json") as running:
        produce(tmp_path / "queue", numbered(2, start=20))
        looks.clear()
        assert running.run_once() is not None
        costs = store.costs()
        assert looks == {"table": LOOKS}
        assert (costs["manifest write"], costs["list"]) == (1, 1)
        assert costs["ledger write"] == 2, "the plan, and where its records go"
        assert costs["manifest read"] <= POLLS
        assert not (tmp_path / "dead").exists(), "no file, no commit, no table"

        produce(tmp_path / "queue", [[b"no JSON"]])
        looks.clear()
        assert running.run_once() is not None
        assert looks == {"table": LOOKS, "dead": LOOKS + CREATED, "dead, listed": 1}, "to make it"
    assert_exactly_once(spark, tmp_path / "table", 40)
