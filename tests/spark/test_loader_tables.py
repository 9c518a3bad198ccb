"""Several tables: routing, dead letters, poison batches, and what happens between two commits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from buffer.clock import SystemClock
from buffer.consume.fetch import FetchHandle
from buffer.errors import LedgerLost
from buffer.manifest import Manifest
from buffer.store.open import open_store
from buffer_delta.config import LoaderConfig
from buffer_delta.decode.dead_letters import BYTES_MAX
from buffer_delta.errors import Blocked, RouteChanged
from buffer_delta.load.loader import Loader
from buffer_delta.load.plans import Plans
from tests.formats.format_support import stream
from tests.spark.queues import assert_exactly_once, ids, numbered, produce

pytestmark = pytest.mark.spark


class Crash(RuntimeError):
    """Stands for the end of the process: nothing after it runs."""


def events(count: int, start: int = 0) -> list[bytes]:
    kinds = ("click", "view", "other")
    return [json.dumps({"id": i, "kind": kinds[i % 3]}).encode() for i in range(start, start + count)]


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return {
        "store": str(tmp_path / "queue"),
        "table": str(tmp_path / "rest"),
        "format": {"type": "json", "schema": "id BIGINT, kind STRING"},
        "route_by": "kind",
        "routes": {"click": str(tmp_path / "clicks"), "view": str(tmp_path / "views")},
        "gc_enabled": False,
        "retry_attempts": 1,
    }


def test_should_route_rows_by_a_column(spark: SparkSession, tmp_path: Path, settings: dict[str, Any]) -> None:
    produce(tmp_path / "queue", [events(30)])
    progress = Loader(spark, LoaderConfig(**settings)).run(available_now=True)
    assert progress is not None
    assert progress.rows == 30
    assert ids(spark, tmp_path / "clicks") == list(range(0, 30, 3))
    assert ids(spark, tmp_path / "views") == list(range(1, 30, 3))
    assert ids(spark, tmp_path / "rest") == list(range(2, 30, 3))


def crash_at(step: str) -> Any:
    def reached(now: str) -> None:
        if now == step:
            raise Crash(step)

    return reached


def crash_between_tables(spark: SparkSession, tmp_path: Path, settings: dict[str, Any]) -> None:
    produce(tmp_path / "queue", [events(30), events(30, start=30)])
    with pytest.raises(Crash):
        Loader(spark, LoaderConfig(**settings), reached=crash_at(f"committed {tmp_path / 'clicks'}")).run(
            available_now=True
        )
    assert len(ids(spark, tmp_path / "clicks")) == 20
    assert ids(spark, tmp_path / "views") == [], "created and written, not committed"


def test_should_complete_the_other_tables_after_a_crash_between_commits(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    crash_between_tables(spark, tmp_path, settings)
    produce(tmp_path / "queue", [events(30, start=60)])
    Loader(spark, LoaderConfig(**settings)).run(available_now=True)
    assert ids(spark, tmp_path / "clicks") == list(range(0, 90, 3))
    assert ids(spark, tmp_path / "views") == list(range(1, 90, 3))
    assert ids(spark, tmp_path / "rest") == list(range(2, 90, 3))


def test_should_complete_the_other_tables_after_the_ledger_was_lost(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    crash_between_tables(spark, tmp_path, settings)
    produce(tmp_path / "queue", [events(30, start=60)])
    ledger = tmp_path / "queue" / "ingest" / "manifest.ledger"
    app_id = json.loads(ledger.read_text())["plan"]["app_id"]
    ledger.unlink()
    with pytest.raises(LedgerLost, match="adopt=True"):
        Loader(spark, LoaderConfig(**settings)).run(available_now=True)
    assert not ledger.exists(), "a loader that was refused leaves none behind"
    Loader(spark, LoaderConfig(**settings, app_id=app_id, adopt=True)).run(available_now=True)
    assert ids(spark, tmp_path / "clicks") == list(range(0, 90, 3))
    assert ids(spark, tmp_path / "views") == list(range(1, 90, 3))
    assert ids(spark, tmp_path / "rest") == list(range(2, 90, 3))


@pytest.mark.parametrize(
    "change",
    [
        {"route_by": lambda frame: frame["kind"]},
        pytest.param(
            {"format": {"type": "json", "schema": "id BIGINT, kind STRING, more STRING"}}, marks=pytest.mark.thorough
        ),
    ],
    ids=["routing", "schema"],
)
def test_should_refuse_a_changed_configuration_in_the_middle_of_a_plan(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any], change: dict[str, Any]
) -> None:
    crash_between_tables(spark, tmp_path, settings)
    with pytest.raises(RouteChanged, match="0\\.\\.1"):
        Loader(spark, LoaderConfig(**settings | change)).run(available_now=True)
    Loader(spark, LoaderConfig(**settings)).run(available_now=True)
    assert ids(spark, tmp_path / "views") == list(range(1, 60, 3))
    produce(tmp_path / "queue", [events(30, start=60)])
    Loader(spark, LoaderConfig(**settings | change, merge_schema=True)).run(available_now=True)
    assert ids(spark, tmp_path / "rest") == list(range(2, 90, 3))


def poison(tmp_path: Path, sequence: int, data: bytes = b"this is no batch") -> str:
    """Damage the batch object of one sequence. Returns where it is."""
    store = open_store(str(tmp_path / "queue"))
    entry = Manifest.from_bytes(store.get("ingest/manifest").data).read(sequence)
    assert entry is not None
    store.put(entry.location, data)
    return entry.location


def poisoned(tmp_path: Path, **more: Any) -> LoaderConfig:
    produce(tmp_path / "queue", numbered(4))
    poison(tmp_path, 2)
    settings = {
        "store": str(tmp_path / "queue"),
        "table": str(tmp_path / "table"),
        "format": {"type": "json", "schema": "id BIGINT"},
        "gc_enabled": False,
        "max_delivery_attempts": 2,
        "retry_max_s": 0.01,
    }
    return LoaderConfig(**settings | more)


@pytest.mark.parametrize(
    "fmt",
    [
        pytest.param({"type": "json", "schema": "id BIGINT"}, id="schema", marks=pytest.mark.thorough),
        pytest.param("json", id="evolving"),
    ],
)
def test_should_send_a_poison_batch_to_the_dead_letters(spark: SparkSession, tmp_path: Path, fmt: Any) -> None:
    config = poisoned(tmp_path, dead_letters=str(tmp_path / "dead"), format=fmt)
    progress = Loader(spark, config).run(available_now=True)
    assert progress is not None
    assert (progress.rows, progress.dead_letters, progress.attempts) == (30, 1, 3)
    assert ids(spark, tmp_path / "table") == [*range(20), *range(30, 40)]
    letter = spark.read.format("delta").load(str(tmp_path / "dead")).first()
    assert letter is not None
    assert (letter._sequence, letter._index) == (2, -1)


def test_should_block_on_a_poison_batch_until_unblocked(spark: SparkSession, tmp_path: Path) -> None:
    config = poisoned(tmp_path)
    with pytest.raises(Blocked, match="unblock"):
        Loader(spark, config).run(available_now=True)
    with pytest.raises(Blocked):
        Loader(spark, config).run(available_now=True)
    assert ids(spark, tmp_path / "table") == []
    store = open_store(str(tmp_path / "queue"))
    from buffer.codec.batch import encode_batch

    entry = Manifest.from_bytes(store.get("ingest/manifest").data).read(2)
    assert entry is not None
    store.put(entry.location, encode_batch(numbered(4)[2], "none"))
    released = Plans(store, "ingest/manifest", SystemClock()).unblock(skip=False)
    assert released is not None
    assert list(released.batches) == [2]
    Loader(spark, config).run(available_now=True)
    assert_exactly_once(spark, tmp_path / "table", 40)


def test_should_leave_out_what_an_operator_gave_up(spark: SparkSession, tmp_path: Path) -> None:
    """Without dead letters there is nowhere to put the batch, but the loader must not be stuck behind it."""
    config = poisoned(tmp_path)
    with pytest.raises(Blocked, match="--skip"):
        Loader(spark, config).run(available_now=True)
    Plans(open_store(str(tmp_path / "queue")), "ingest/manifest", SystemClock()).unblock(skip=True)
    Loader(spark, config).run(available_now=True)
    assert ids(spark, tmp_path / "table") == [*range(20), *range(30, 40)]


@pytest.mark.thorough
def test_should_route_by_a_field_that_no_record_of_a_range_has(spark: SparkSession, tmp_path: Path) -> None:
    config = LoaderConfig(
        store=str(tmp_path / "queue"),
        table=str(tmp_path / "table"),
        format="json",
        route_by="kind",
        routes={"a": str(tmp_path / "a")},
        gc_enabled=False,
    )
    produce(tmp_path / "queue", [[b'{"id": 1}'], [b'{"id": 2}']])
    Loader(spark, config).run(available_now=True)
    produce(tmp_path / "queue", [[b'{"id": 3, "kind": "a"}', b'{"id": 4, "kind": "b"}']])
    Loader(spark, config).run(available_now=True)
    assert ids(spark, tmp_path / "table") == [1, 2, 4]
    assert ids(spark, tmp_path / "a") == [3]


@pytest.mark.thorough
def test_should_not_give_up_batches_that_only_the_executors_cannot_see(spark: SparkSession, tmp_path: Path) -> None:
    produce(tmp_path / "queue", numbered(2))
    config = LoaderConfig(
        store=str(tmp_path / "queue"),
        table=str(tmp_path / "table"),
        dead_letters=str(tmp_path / "dead"),
        gc_enabled=False,
        max_delivery_attempts=1,
        retry_attempts=3,
        retry_max_s=0.01,
    )
    loader = Loader(spark, config)
    (tmp_path / "elsewhere").mkdir()
    loader._work._handle = FetchHandle(open_store(str(tmp_path / "elsewhere")))  # as if each node had its own disk
    with pytest.raises(PySparkException, match="ObjectNotFound"):
        loader.run(available_now=True)
    Loader(spark, config).run(available_now=True)
    assert spark.read.format("delta").load(str(tmp_path / "table")).count() == 20
    assert not (tmp_path / "dead").exists()


def test_should_block_on_a_bad_stream_that_has_nowhere_to_go(spark: SparkSession, tmp_path: Path) -> None:
    produce(tmp_path / "queue", [[b"this is no Arrow stream"]])
    config = LoaderConfig(
        store=str(tmp_path / "queue"),
        table=str(tmp_path / "table"),
        format="arrow",
        gc_enabled=False,
        max_delivery_attempts=1,
        retry_max_s=0.01,
    )
    with pytest.raises(Blocked, match="entry 0 of batch 0: not an Arrow stream"):
        Loader(spark, config).run(available_now=True)


def test_should_keep_the_metadata_of_a_bad_stream_whose_table_has_rules(spark: SparkSession, tmp_path: Path) -> None:
    """The rows tell their entry in a column that no table gets; the dead letters have one that is named like it."""
    produce(tmp_path / "queue", [[stream(pa.table({"id": [1], "kind": ["a"]})), b"bad"]])
    config = LoaderConfig(
        store=str(tmp_path / "queue"),
        table=str(tmp_path / "table"),
        dead_letters=str(tmp_path / "dead"),
        format={"type": "arrow", "schema": "id BIGINT, kind STRING"},
        partition_by=["kind"],
        gc_enabled=False,
    )
    Loader(spark, config).run(available_now=True)
    expected = {"bytes": b"bad", "_entry_metadata": b"made by a test"}
    assert rows_of(spark, tmp_path / "dead", "bytes", "_entry_metadata") == [expected]
    assert "_entry" not in spark.read.format("delta").load(str(tmp_path / "table")).columns


def rows_of(spark: SparkSession, table: Path, *columns: str) -> list[dict[str, Any]]:
    frame = spark.read.format("delta").load(str(table)).select(*columns).orderBy(columns[0])
    return [row.asDict(recursive=True) for row in frame.collect()]


def test_should_load_names_that_differ_only_in_case_or_are_its_own(spark: SparkSession, tmp_path: Path) -> None:
    """Each of these was a record that no loader could get past."""
    records = [
        {"id": 1, "s": {"a": 1, "A": 2}},
        {"id": 2, "_Dead": 3, "_route": "x"},
        {"id": 3, "l": [{"b": 1, "B": 2}]},
    ]
    produce(tmp_path / "queue", [[json.dumps(record).encode() for record in records] + [b"bad"]])
    config = LoaderConfig(
        store=str(tmp_path / "queue"),
        table=str(tmp_path / "table"),
        dead_letters=str(tmp_path / "dead"),
        route_by="kind",
        routes={"x": str(tmp_path / "x")},
        format="json",
        gc_enabled=False,
    )
    Loader(spark, config).run(available_now=True)
    none = {"s": None, "l": None, "_Dead": None, "_route": None, "_rescued_data": None}
    assert rows_of(spark, tmp_path / "table", "id", *none) == [
        none | {"id": 1, "s": {"a": 1}, "_rescued_data": '{"s":{"A":2}}'},
        none | {"id": 2, "_Dead": 3, "_route": "x"},
        none | {"id": 3, "l": [{"b": 1}], "_rescued_data": '{"l":[{"B":2}]}'},
    ]
    assert rows_of(spark, tmp_path / "dead", "_index", "bytes") == [{"_index": 3, "bytes": b"bad"}]


@pytest.mark.thorough
def test_should_keep_a_column_that_is_named_like_the_route(spark: SparkSession, tmp_path: Path) -> None:
    produce(tmp_path / "queue", [[b'{"id": 1, "_route": "a"}', b'{"id": 2, "_route": "b"}']])
    config = LoaderConfig(
        store=str(tmp_path / "queue"),
        table=str(tmp_path / "table"),
        format={"type": "json", "schema": "id BIGINT, _route STRING"},
        route_by="_route",
        routes={"a": str(tmp_path / "a")},
        gc_enabled=False,
    )
    Loader(spark, config).run(available_now=True)
    assert rows_of(spark, tmp_path / "a", "id", "_route") == [{"id": 1, "_route": "a"}]
    assert rows_of(spark, tmp_path / "table", "id", "_route") == [{"id": 2, "_route": "b"}]


@pytest.mark.thorough
def test_should_keep_the_whole_of_a_large_batch_that_cannot_be_read(spark: SparkSession, tmp_path: Path) -> None:
    produce(tmp_path / "queue", numbered(2))
    damaged = b"no batch" * (BYTES_MAX // 8) + b"the end"
    location = poison(tmp_path, 1, damaged)
    config = LoaderConfig(
        store=str(tmp_path / "queue"),
        table=str(tmp_path / "table"),
        dead_letters=str(tmp_path / "dead"),
        gc_enabled=False,
        max_delivery_attempts=1,
        retry_max_s=0.01,
    )
    Loader(spark, config).run(available_now=True)
    ((letter),) = rows_of(spark, tmp_path / "dead", "_sequence", "error", "bytes")
    kept = location.replace("ingest/", "ingest/dead_letters/") + ".dead"
    assert f"the whole object is kept as {kept!r}; here are the first 16,777,216 of its 16,777,223" in letter["error"]
    assert letter["bytes"] == damaged[:BYTES_MAX]
    assert open_store(str(tmp_path / "queue")).get(kept).data == damaged
