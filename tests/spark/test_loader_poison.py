"""One record never stops a queue: whatever fails every time is found, set aside with a reason, or named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions

from buffer.clock import SystemClock
from buffer.codec.batch import decode_batch
from buffer.queue import QueueProducer
from buffer.store.open import open_store
from buffer_delta.config import LoaderConfig
from buffer_delta.decode import failures
from buffer_delta.errors import Blocked, RouteChanged
from buffer_delta.load import refusals
from buffer_delta.load.loader import Loader
from buffer_delta.load.plans import Plans
from buffer_delta.load.progress import Progress
from tests.spark.hostile import Hostile, named, with_length, with_number, with_sequence
from tests.spark.queues import ids, produce

pytestmark = pytest.mark.spark


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return {
        "store": str(tmp_path / "queue"),
        "table": str(tmp_path / "table"),
        "dead_letters": str(tmp_path / "dead"),
        "format": {"type": "json", "schema": "id BIGINT, kind STRING, s STRUCT<a: INT>"},
        "gc_enabled": False,
        "max_delivery_attempts": 1,
        "retry_max_s": 0.01,
        "retry_attempts": 4,
    }


def load(spark: SparkSession, settings: dict[str, Any], **more: Any) -> Progress:
    progress = Loader(spark, LoaderConfig(**settings | more)).run(available_now=True)
    assert progress is not None
    return progress


def letters(spark: SparkSession, tmp_path: Path) -> dict[tuple[int, int], tuple[str, bytes]]:
    frame = spark.read.format("delta").load(str(tmp_path / "dead"))
    found = {(row._sequence, row._index): (row.error, bytes(row.bytes or b"")) for row in frame.collect()}
    assert frame.count() == len(found), "each of them once"
    return found


def lines(*records: dict[str, Any]) -> list[bytes]:
    return [json.dumps(record).encode() for record in records]


@pytest.fixture
def ruled(spark: SparkSession, tmp_path: Path) -> None:
    """A table that was there before, with rules of its own."""
    spark.sql(
        f"CREATE TABLE delta.`{tmp_path / 'table'}` (id BIGINT NOT NULL, kind STRING, s STRUCT<a: INT NOT NULL>) "
        "USING delta PARTITIONED BY (kind) TBLPROPERTIES ('delta.constraints.small' = 'id < 1000')"
    )


OUTLAWS = {
    1: ({"kind": "a", "s": {"a": 1}}, "null in the column id, which is NOT NULL"),
    2: ({"id": 1000, "kind": "a", "s": {"a": 1}}, "breaks the CHECK constraint small (id < 1000)"),
    4: (
        {"id": 4, "kind": "a\0b", "s": {"a": 1}},
        "the value for the partition column kind cannot be the name of a folder: it has a NUL",
    ),
    5: ({"id": 5, "kind": "é" * 120, "s": {"a": 1}}, "cannot be the name of a folder: it has 240 bytes"),
    6: ({"id": 6, "kind": "/" * 80, "s": {"a": 1}}, "cannot be the name of a folder: it has 240 bytes"),
    7: ({"id": 7, "kind": "a"}, "null in the column s.a, which is NOT NULL"),
    8: ({"id": 8, "kind": "a", "s": {"a": None}}, "null in the column s.a, which is NOT NULL"),
}


def outlaws() -> list[bytes]:
    return lines(*(OUTLAWS[n][0] if n in OUTLAWS else {"id": n, "kind": "b/c", "s": {"a": n}} for n in range(10)))


@pytest.mark.usefixtures("ruled")
def test_should_divert_what_a_table_forbids_at_the_first_attempt(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    produce(tmp_path / "queue", [lines({"id": 20, "kind": "a", "s": {"a": 1}}), outlaws()])
    progress = load(spark, settings, merge_schema=True)
    assert (progress.attempts, progress.rows, progress.dead_letters) == (1, 4, 7)
    assert ids(spark, tmp_path / "table") == [0, 3, 9, 20]
    found = letters(spark, tmp_path)
    assert sorted(found) == [(1, n) for n in OUTLAWS]
    for n, (record, reason) in OUTLAWS.items():
        assert reason in found[1, n][0]
        assert json.loads(found[1, n][1]) == record


def test_should_divert_what_a_table_forbids_in_a_column_that_it_spells_otherwise(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    columns = "id BIGINT NOT NULL, day STRING NOT NULL"
    spark.sql(f"CREATE TABLE delta.`{tmp_path / 'table'}` ({columns}) USING delta PARTITIONED BY (day)")
    produce(tmp_path / "queue", [lines({"ID": 0, "Day": "x"}, {"ID": 1, "Day": ""}, {"ID": 2}, {"Day": "y"})])
    form = {"type": "json", "schema": "ID BIGINT, Day STRING"}
    progress = load(spark, settings, merge_schema=True, format=form)
    assert (progress.attempts, progress.rows, progress.dead_letters) == (1, 1, 3)
    assert ids(spark, tmp_path / "table") == [0]


@pytest.mark.usefixtures("ruled")
@pytest.mark.parametrize("dead_letters", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_should_set_a_batch_aside_whole_of_which_very_many_entries_break_a_rule(
    spark: SparkSession,
    tmp_path: Path,
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    dead_letters: bool,
) -> None:
    """The driver holds no list of them."""
    monkeypatch.setattr(failures, "ENTRIES_PER_BATCH_MAX", 3)
    monkeypatch.setattr(refusals, "ENTRIES_PER_BATCH_MAX", 3)
    good = {"id": 20, "kind": "a", "s": {"a": 1}}
    produce(tmp_path / "queue", [lines(good, {"id": 1000, "kind": "a", "s": {"a": 1}}), outlaws()])
    whole = "7 of its entries cannot be loaded, too many to set aside one by one; the first: null in the column id"
    if not dead_letters:
        with pytest.raises(Blocked, match=f"batch 1: {whole}") as caught:
            load(spark, settings, merge_schema=True, dead_letters=None)
        assert (caught.value.batches, caught.value.entries) == ((1,), ((0, 1),))
        return
    load(spark, settings, merge_schema=True)
    assert ids(spark, tmp_path / "table") == [20]
    found = letters(spark, tmp_path)
    assert sorted(found) == [(0, 1), (1, -1)]
    assert found[1, -1][0].startswith(whole)
    assert decode_batch(found[1, -1][1]) == outlaws()


@pytest.mark.usefixtures("ruled")
def test_should_block_and_name_what_a_table_forbids_where_there_are_no_dead_letters(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    produce(tmp_path / "queue", [outlaws()])
    with pytest.raises(Blocked, match=r"entry 1 of batch 0: null in the column id.*unblock --skip") as caught:
        load(spark, settings, merge_schema=True, dead_letters=None)
    assert caught.value.entries == tuple((0, n) for n in OUTLAWS)
    with pytest.raises(Blocked, match="7 of its entries"):
        load(spark, settings, merge_schema=True, dead_letters=None)
    Plans(open_store(str(tmp_path / "queue")), "ingest/manifest", SystemClock()).unblock(skip=True)
    load(spark, settings, merge_schema=True, dead_letters=None)
    assert ids(spark, tmp_path / "table") == [0, 3, 9]


@pytest.mark.usefixtures("ruled")
def test_should_refuse_to_finish_a_range_under_other_rules(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """The record is a dead letter by the rules under which the range was begun; now it would be in both tables."""
    produce(tmp_path / "queue", [outlaws()])

    def die(step: str) -> None:
        if step == f"committed {tmp_path / 'dead'}":
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        Loader(spark, LoaderConfig(**settings | {"merge_schema": True, "retry_attempts": 1}), reached=die).run()
    spark.sql(f"ALTER TABLE delta.`{tmp_path / 'table'}` DROP CONSTRAINT small")
    with pytest.raises(RouteChanged, match="other constraints"):
        load(spark, settings, merge_schema=True)
    spark.sql(f"ALTER TABLE delta.`{tmp_path / 'table'}` ADD CONSTRAINT small CHECK (id < 1000)")
    load(spark, settings, merge_schema=True)
    assert sorted(letters(spark, tmp_path)) == [(0, n) for n in OUTLAWS]


@pytest.mark.parametrize("fatal", [pytest.param(b"raise", marks=pytest.mark.thorough), b"exit"])
def test_should_isolate_entries_that_break_the_parser(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any], fatal: bytes
) -> None:
    """An error that no format should raise, and the end of the Python worker."""
    batches = [[b"a", b"b"], [b"c", fatal, b"d", b"e"], [b"f"]]
    produce(tmp_path / "queue", batches)
    progress = load(spark, settings, format=Hostile())
    assert (progress.attempts, progress.rows) == (2, 6)
    table = spark.read.format("delta").load(str(tmp_path / "table"))
    assert sorted(row.value for row in table.collect()) == list("abcdef")
    ((key, (error, data)),) = letters(spark, tmp_path).items()
    assert (key, data) == ((1, 1), fatal)
    assert ("AttributeError: 'str' object" if fatal == b"raise" else "Python worker exited") in error


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("transform", "bad", "reason"),
    [
        (with_number, b"Connection refused", "CAST_INVALID_INPUT"),
        (with_number, b"x\njava.net.ConnectException: no answer", "CAST_INVALID_INPUT"),
        (named, b"buffer.errors.StorageError: no answer", "KeyError: 'buffer.errors.StorageError: no answer'"),
    ],
)
def test_should_isolate_entries_that_break_the_transform(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any], transform: Any, bad: bytes, reason: str
) -> None:
    """It runs while the table is written: no look at the entries finds them. Errors quote what a record says."""
    produce(tmp_path / "queue", [[b"1", b"2"], [b"3", bad, b"4"]])
    load(spark, settings, format="text", transform=transform)
    assert spark.read.format("delta").load(str(tmp_path / "table")).count() == 4
    ((key, (error, data)),) = letters(spark, tmp_path).items()
    assert (key, data) == ((1, 1), bad)
    assert reason in error


@pytest.mark.thorough
def test_should_isolate_what_fails_before_its_table_is_there_as_it_would_be_made(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """A name with a blank needs column mapping, in the table that parts are tried with, too."""
    produce(tmp_path / "queue", [lines({"the id": "0"}, {"the id": "x"}, {"the id": "2"})])
    load(
        spark,
        settings,
        format={"type": "json", "schema": "`the id` STRING"},
        transform=lambda frame: frame.withColumn("id", functions.expr("CAST(`the id` AS BIGINT)")),
        route_by="id",
        routes={"2": str(tmp_path / "two")},
        table_properties={"delta.columnMapping.mode": "name"},
    )
    assert (ids(spark, tmp_path / "table"), ids(spark, tmp_path / "two")) == ([0], [2])
    ((key, (error, _)),) = letters(spark, tmp_path).items()
    assert (key, "CAST_INVALID_INPUT" in error) == ((0, 1), True)


def test_should_add_no_column_for_a_field_that_it_clusters_by(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    produce(tmp_path / "queue", [lines({"id": 0, "s": {"x": 1}})])
    load(spark, settings, format="json", cluster_by=["s.x"], columns={"_sequence": None, "_ingested_at": None})
    found = spark.read.format("delta").load(str(tmp_path / "table"))
    assert found.columns == ["id", "s", "_rescued_data", "_index", "_entry_metadata"]


@pytest.mark.thorough
@pytest.mark.parametrize("writer", ["spark", "arrow"])
def test_should_set_a_record_aside_that_the_heap_has_no_room_for(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any], writer: str
) -> None:
    """The session has 1 GiB, in which a value is several times at once."""
    large = 300 << 20
    produce(tmp_path / "queue", [[b"1", b"x" * large, b"2"]], compression="zstd", max_batch_bytes=1 << 29)
    transform = with_length if writer == "spark" else None
    load(spark, settings, format="text", transform=transform, writer=writer, max_batch_bytes=1 << 30)
    found = spark.read.format("delta").load(str(tmp_path / "table")).collect()
    assert sorted(row.value for row in found) == ["1", "2"]
    ((key, (error, data)),) = letters(spark, tmp_path).items()
    assert (key, len(data)) == ((0, 1), 16 << 20)
    assert error.startswith(f"it has {large:,} bytes, and max_entry_bytes is 67,108,864; here are its first 16,777,216")
    (kept,) = (tmp_path / "queue/ingest/dead_letters").iterdir()
    assert [len(entry) for entry in decode_batch(kept.read_bytes())] == [1, large, 1]


@pytest.mark.parametrize("dead_letters", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_should_isolate_an_entry_of_which_a_transform_makes_more_than_the_heap_holds(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any], dead_letters: bool
) -> None:
    """On one machine the driver is the executor: the end of one would be the end of both, at every start."""
    produce(tmp_path / "queue", [[b"1", b"2000000000", b"3"]])
    more = {"format": "text", "transform": with_sequence, **({} if dead_letters else {"dead_letters": None})}
    if not dead_letters:
        with pytest.raises(Blocked, match=r"entry 1 of batch 0: .*OutOfMemoryError"):
            load(spark, settings, **more)
        return
    load(spark, settings, **more)
    found = spark.read.format("delta").load(str(tmp_path / "table")).collect()
    assert sorted((row.value, row.n) for row in found) == [("1", 1), ("3", 3)]
    ((place, (error, data)),) = letters(spark, tmp_path).items()
    assert (place, data) == ((0, 1), b"2000000000")
    assert "OutOfMemoryError" in error


@pytest.mark.thorough
def test_should_name_an_entry_that_only_the_table_refuses(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """A constraint that raises is not one that is broken: only writing tells."""
    spark.sql(
        f"CREATE TABLE delta.`{tmp_path / 'table'}` (id BIGINT) USING delta "
        "TBLPROPERTIES ('delta.constraints.odd' = '10 / id >= 0')"
    )
    more = {"merge_schema": True, "dead_letters": None, "format": {"type": "json", "schema": "id BIGINT"}}
    produce(tmp_path / "queue", [lines({"id": 1}, {"id": 2}), lines({"id": 3}, {"id": 0}, {"id": 5})])
    with pytest.raises(Blocked, match=r"entry 1 of batch 1: .*DIVIDE_BY_ZERO") as caught:
        load(spark, settings, **more)
    assert caught.value.entries == ((1, 1),)
    Plans(open_store(str(tmp_path / "queue")), "ingest/manifest", SystemClock()).unblock(skip=True)
    load(spark, settings, **more)
    assert ids(spark, tmp_path / "table") == [1, 2, 3, 5]


@pytest.mark.thorough
def test_should_create_a_partition_column_that_no_record_of_the_first_range_has(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    produce(tmp_path / "queue", [lines({"id": 1}, {"id": 2})])
    assert load(spark, settings, format="json", partition_by=["day"]).attempts == 1
    produce(tmp_path / "queue", [lines({"id": 3, "day": "2024-01-01"}), lines({"id": 4})])
    load(spark, settings, format="json", partition_by=["day"])
    table = spark.read.format("delta").load(str(tmp_path / "table"))
    assert {row.id: row.day for row in table.collect()} == {1: None, 2: None, 3: "2024-01-01", 4: None}


@pytest.mark.parametrize("last", ["at", "other"])
def test_should_cluster_by_a_column_that_comes_after_many_others(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any], last: str
) -> None:
    """Delta clusters only by columns with statistics, which are the first ones: no record is to blame for its order."""
    record = {f"k{n}": n for n in range(40)} | {"id": 0, last: 7}
    produce(tmp_path / "queue", [lines(record, record | {"id": 1})])
    progress = load(spark, settings, format="json", cluster_by=["at"])
    assert (progress.attempts, progress.rows, progress.dead_letters) == (1, 2, 0)
    assert ids(spark, tmp_path / "table") == [0, 1]
    assert spark.read.format("delta").load(str(tmp_path / "table")).columns[0] == "at"


def test_should_get_past_columns_that_are_one_for_spark_and_locations_that_no_store_accepts(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Each was a queue that stood for ever. A value is in its column, rescued or a dead letter."""
    deep = '{"id": 6, "d": ' + '{"d": ' * 80 + "1" + "}" * 81
    names = lines({"id": 1, "İ": 1}, {"id": 2, "i̇": 2}, {"id": 3, "K": 3}, {"id": 4, "k": 4}, {"id": 5, "ſ": 5, "s": 6})
    produce(tmp_path / "queue", [names, lines({"id": 7, "e": {"p": {"q": "oops"}}}, {"id": 8, "e": "oops"})])
    QueueProducer(open_store(str(tmp_path / "queue")), "ingest/manifest", SystemClock()).append_locations(
        [("ingest/../secret.batch", ())]
    )
    produce(tmp_path / "queue", [[deep.encode(), b'{"id": 9, "c": 1e-10000000}']])
    load(spark, settings, format="json")
    dead = letters(spark, tmp_path)
    kept = ids(spark, tmp_path / "table")
    assert len(kept) == len(set(kept))
    lost = {json.loads(data)["id"] for key, (_, data) in dead.items() if key[1] >= 0}
    assert set(kept) | lost == set(range(1, 10))
    assert not set(kept) & lost
    assert (2, -1) in dead, "the location"


@pytest.mark.parametrize("writer", [pytest.param("spark", marks=pytest.mark.thorough), "arrow"])
def test_should_load_columns_whose_names_have_a_meaning_in_sql(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any], writer: str
) -> None:
    records = [{"a`b": 1}, {"a.b": 2, "`": 3}, {"a`b": 4, "k.d`": "there"}, {"s": {"x`": 5, "y.z": 6}}]
    produce(tmp_path / "queue", [lines(*records)])
    load(
        spark,
        settings,
        format={"type": "json"},
        writer=writer,
        route_by="k.d`",
        routes={"there": str(tmp_path / "there")},
    )
    rows = [row.asDict(recursive=True) for row in spark.read.format("delta").load(str(tmp_path / "table")).collect()]
    found = {row["_index"]: {name: row[name] for name in ("a`b", "a.b", "`", "s")} for row in rows}
    nested = {"x`": 5, "y.z": 6}
    assert found == {
        0: {"a`b": 1, "a.b": None, "`": None, "s": None},
        1: {"a`b": None, "a.b": 2, "`": 3, "s": None},
        3: {"a`b": None, "a.b": None, "`": None, "s": nested},
    }
    assert [row["a`b"] for row in spark.read.format("delta").load(str(tmp_path / "there")).collect()] == [4]


@pytest.mark.parametrize("writer", ["arrow", "spark"])
@pytest.mark.parametrize(
    ("kind", "other"), [("STRING", "__HIVE_DEFAULT_PARTITION__"), ("TIMESTAMP", "0000-06-01T00:00:00Z")]
)
def test_should_block_on_what_would_be_another_value_as_a_partition(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any], writer: str, kind: str, other: str
) -> None:
    """Spark writes null for the one, or makes it of it when it compacts, and another year for the other."""
    good = "2020-01-01T00:00:00Z"
    more = {"format": {"type": "json", "schema": f"id BIGINT, at {kind}"}, "partition_by": ["at"], "writer": writer}
    produce(tmp_path / "queue", [lines({"id": 0, "at": good}, {"id": 1, "at": other}, {"id": 2, "at": good})])
    with pytest.raises(Blocked, match=r"entry 1 of batch 0: .*the value for") as caught:
        load(spark, settings, **more, dead_letters=None)
    assert caught.value.entries == ((0, 1),)
    Plans(open_store(str(tmp_path / "queue")), "ingest/manifest", SystemClock()).unblock(skip=True)
    load(spark, settings, **more, dead_letters=None)
    assert ids(spark, tmp_path / "table") == [0, 2]


def test_should_set_the_name_of_the_folder_of_null_aside(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    produce(tmp_path / "queue", [lines({"id": 0, "kind": "a"}, {"id": 1, "kind": "__HIVE_DEFAULT_PARTITION__"})])
    assert load(spark, settings, partition_by=["kind"]).attempts == 1
    assert ids(spark, tmp_path / "table") == [0]
    ((place, (error, _)),) = letters(spark, tmp_path).items()
    assert place == (0, 1)
    assert error == "the value for the partition column kind is __HIVE_DEFAULT_PARTITION__, which stands for null"


@pytest.mark.parametrize("writer", ["spark", pytest.param("arrow", marks=pytest.mark.thorough)])
def test_should_set_a_text_aside_of_which_a_partition_makes_another(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any], writer: str
) -> None:
    """A cast leaves the bytes in a string as they were: a path has another letter for those that are none."""
    produce(tmp_path / "queue", [[b"a", b"\xff", "\ufffd".encode(), b"\xfe"]])
    as_text = functions.expr("CAST(value AS STRING)")
    load(
        spark,
        settings,
        format="raw",
        transform=lambda frame: frame.withColumn("p", as_text),
        partition_by=["p"],
        writer=writer,
    )
    found = spark.read.format("delta").load(str(tmp_path / "table")).collect()
    assert sorted((bytes(row.value), row.p) for row in found) == [(b"a", "a"), ("\ufffd".encode(), "\ufffd")]
    assert letters(spark, tmp_path) == {
        (0, n): ("the value for the partition column p is not UTF-8", data) for n, data in ((1, b"\xff"), (3, b"\xfe"))
    }


def test_should_set_aside_a_time_that_no_partition_holds(
    spark: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Before the year 1 Spark itself writes another year into the log: what is read is not what was written."""
    times = ["0000-01-01T00:00:00+23:59", "0001-01-05T00:00:00Z", "9999-12-31T23:59:59.999999Z", "0000-06-01T00:00:00Z"]
    produce(tmp_path / "queue", [lines(*({"id": n, "at": time} for n, time in enumerate(times)))])
    load(spark, settings, format={"type": "json", "schema": "id BIGINT, at TIMESTAMP"}, partition_by=["at"])
    frame = spark.read.format("delta").load(str(tmp_path / "table")).selectExpr("id", "unix_micros(at) AS at")
    assert sorted((row.id, row.at) for row in frame.collect()) == [
        (1, -62135251200_000000),
        (2, 253402300799_999999),
    ]
    assert {place: error for place, (error, _) in letters(spark, tmp_path).items()} == {
        (0, n): "the value for the partition column at is before the year 1, and Spark would write another year"
        for n in (0, 3)
    }
