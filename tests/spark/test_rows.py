"""From batches to rows: provenance, dead letters, what travels to the executors. Mostly without Spark: a task is a
function from ids to Arrow record batches."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from buffer.batch import encode_batch
from buffer.errors import CorruptBatch, InvalidConfig, ObjectNotFound
from buffer.fetch import FetchHandle
from buffer.model import BatchDescriptor, Metadata
from buffer.store.local import LocalStore
from buffer_delta import dead_letters, rows
from buffer_delta.cli.settings import FORMATS
from buffer_delta.config import PROVENANCE_COLUMNS
from buffer_delta.contracts import Failure
from buffer_delta.dead_letters import WHOLE_BATCH, dead_rows, good_rows, keep_whole
from buffer_delta.formats import _FORMATS, ArrowFormat, Format, JsonFormat, RawFormat, TextFormat
from buffer_delta.rows import RowLayout, ranges_of
from tests.spark.test_formats import stream

UTC = dt.UTC


class Batches:
    """Batches in a folder, and the descriptors of those that were put there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = LocalStore(folder)
        self.handle = FetchHandle(self.store, attempts=1)

    def put(
        self, sequence: int, entries: Sequence[bytes], metadata: tuple[Metadata, ...] = (), compression: str = "none"
    ) -> BatchDescriptor:
        location = f"ingest/{sequence}.batch"
        self.store.put(location, encode_batch(list(entries), compression))
        return BatchDescriptor(sequence, location, metadata)


@pytest.fixture
def batches(tmp_path: Path) -> Batches:
    return Batches(tmp_path / "store")


def run(
    batches: Batches,
    group: Sequence[BatchDescriptor],
    form: Format,
    layout: RowLayout | None = None,
    *,
    split: bool = False,
    quarantined: dict[int, str] | None = None,
) -> list[dict[str, Any]]:
    """What a Python worker makes of one group, after the journey there."""
    task = rows._Decode(batches.handle, [group], form, layout or RowLayout(), split, quarantined or {})
    task = pickle.loads(pickle.dumps(task))
    ids = pa.RecordBatch.from_pydict({"id": [0]})
    made = list(task([ids]))
    assert all(batch.schema == task.schema() for batch in made)
    return [row for batch in made for row in batch.to_pylist()]


# Provenance


def test_should_say_where_each_row_came_from(batches: Batches) -> None:
    items = (Metadata(0, 1_700_000_000_123, b"first call"), Metadata(2, 1_700_000_001_000, b""))
    group = [batches.put(7, [b"a", b"b", b"c"], items, "zstd"), batches.put(8, [b"d"])]
    at = dt.datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)
    found = run(batches, group, RawFormat())
    assert [list(row.values()) for row in found] == [
        [b"a", 7, 0, at, b"first call"],
        [b"b", 7, 1, at, b"first call"],
        [b"c", 7, 2, at.replace(second=21, microsecond=0), b""],
        [b"d", 8, 0, None, None],
    ]
    assert list(found[0]) == ["value", "_sequence", "_index", "_ingested_at", "_metadata"]


def test_should_agree_with_what_the_settings_allow() -> None:
    """The settings are checked where Spark need not be installed, so they keep lists of their own."""
    assert tuple(field.name for field in RowLayout().arrow_fields()) == PROVENANCE_COLUMNS
    assert tuple(_FORMATS) == FORMATS


def test_should_rename_and_leave_out_provenance(batches: Batches) -> None:
    layout = RowLayout.renamed({"_sequence": "seq", "_metadata": None, "_ingested_at": None})
    found = run(batches, [batches.put(1, [b"a"])], TextFormat(), layout)
    assert found == [{"value": "a", "seq": 1, "_index": 0}]


def test_should_refuse_columns_that_clash(batches: Batches) -> None:
    with pytest.raises(InvalidConfig, match=r"'_(INDEX|index)'"):
        run(batches, [], JsonFormat("_INDEX INT"))
    with pytest.raises(InvalidConfig, match="value"):
        run(batches, [], RawFormat(), RowLayout(sequence="value"))


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        ([0], [0, 0, 0, 0]),
        ([0, 2], [0, 0, 1, 1]),
        ([0, 2, 2], [0, 0, 2, 2]),  # an empty range covers nothing
        ([2], [None, None, 0, 0]),
        ([0, 4], [0, 0, 0, 0]),
        ([0, 4_000_000_000], [0, 0, 0, 0]),
        ([2, 0], [None, None, 1, 1]),  # descending: from a foreign writer
        ([0, 3, 1], [0, 0, 0, 2]),
        ([4_000_000_000, 0], [None, None, None, None]),
        ([], [None, None, None, None]),
    ],
)
def test_should_map_metadata_ranges_to_rows(starts: list[int], expected: list[int | None]) -> None:
    items = [Metadata(start, 1000 * number, bytes([number])) for number, start in enumerate(starts)]
    times, payloads = ranges_of(items, np.arange(4))
    assert payloads.to_pylist() == [None if n is None else bytes([n]) for n in expected]
    assert times.to_pylist() == [None if n is None else dt.datetime.fromtimestamp(n, UTC) for n in expected]


def test_should_survive_times_that_are_none() -> None:
    times, _ = ranges_of([Metadata(0, 2**63 - 1), Metadata(1, -(2**63))], np.arange(2))
    assert times.null_count == 0
    assert len(times.cast(pa.int64()).to_pylist()) == 2


def test_should_map_metadata_of_many_items_quickly() -> None:
    items = [Metadata(number, number, b"x") for number in range(200_000)]
    times, _ = ranges_of(items, np.arange(200_000))
    assert times.cast(pa.int64())[-1].as_py() == 199_999_000


# Entries


def test_should_yield_nothing_for_nothing(batches: Batches) -> None:
    assert run(batches, [batches.put(0, []), batches.put(1, [])], RawFormat()) == []
    assert run(batches, [], RawFormat()) == []
    assert run(batches, [batches.put(2, [b"", b""])], RawFormat())[1]["value"] == b""


def test_should_keep_arrow_batches_bounded(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "CHUNK_BYTES", 64)
    monkeypatch.setattr(rows, "ROWS_PER_ARROW_BATCH", 10)
    entries = [b'{"a": %d}' % n if n % 9 else b"bad" for n in range(100)]
    group = [batches.put(5, entries, (Metadata(0, 0, b"x"), Metadata(50, 0, b"y")))]
    task = rows._Decode(batches.handle, [group], JsonFormat("a INT"), RowLayout(), True, {})
    made = list(task([pa.RecordBatch.from_pydict({"id": [0]})]))
    assert max(batch.num_rows for batch in made) <= 10
    assert len(made) >= 10
    found = [row for batch in made for row in batch.to_pylist()]
    good = {row["_index"]: row for row in found if row["_dead"] is None}
    dead = {row["_dead"]["_index"]: row["_dead"] for row in found if row["_dead"] is not None}
    assert sorted([*good, *dead]) == list(range(100))
    assert all(row["a"] == index for index, row in good.items())
    assert all(row["_metadata"] == (b"x" if index < 50 else b"y") for index, row in good.items())
    assert sorted(dead) == [n for n in range(100) if n % 9 == 0]


def test_should_number_the_rows_of_streams_through_the_batch(batches: Batches) -> None:
    one, two = stream(pa.table({"a": [1, 2, 3]})), stream(pa.table({"a": [4]}))
    items = (Metadata(0, 0, b"x"), Metadata(2, 0, b"y"))
    group = [batches.put(3, [one, b"bad", two, stream(pa.table({"a": pa.array([], pa.int64())})), two], items)]
    found = run(batches, group, ArrowFormat("a INT"), split=True)
    assert [(row["a"], row["_index"], row["_metadata"]) for row in found if row["_dead"] is None] == [
        (1, 0, b"x"),
        (2, 1, b"x"),
        (3, 2, b"x"),
        (4, 4, b"y"),
        (4, 5, b"y"),
    ]
    (dead,) = [row["_dead"] for row in found if row["_dead"] is not None]
    assert (dead["_index"], dead["bytes"]) == (3, b"bad"), "its own number: no row has it"


# Bad ones


def test_should_set_bad_records_aside_with_all_there_is_to_know(batches: Batches) -> None:
    items = (Metadata(0, 1000, b"m"),)
    group = [batches.put(4, [b'{"a": 1}', b"{broken", b'{"a": 2}'], items)]
    found = run(batches, group, JsonFormat("a INT"), RowLayout(sequence=None, index=None), split=True)
    assert [row["a"] for row in found] == [1, 2, None]
    assert found[2]["_dead"] == {
        "_sequence": 4,
        "_index": 1,
        "_ingested_at": dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        "location": "ingest/4.batch",
        "error": "not JSON: Expecting property name enclosed in double quotes at character 1",
        "bytes": b"{broken",
    }
    assert run(batches, group, JsonFormat("a INT"), RowLayout(sequence=None, index=None), split=True) == found


def test_should_rescue_bad_records_whole_where_they_are_not_set_aside(batches: Batches) -> None:
    group = [batches.put(4, [b'{"a": 1}', b"{broken", b"\xff"], (Metadata(0, 0, b"m"),))]
    found = run(batches, group, JsonFormat("a INT"))
    assert [(row["a"], row["_rescued_data"], row["_index"], row["_metadata"]) for row in found] == [
        (1, None, 0, b"m"),
        (None, "{broken", 1, b"m"),
        (None, "\\xff", 2, b"m"),
    ]


def test_should_fail_where_a_bad_record_has_no_place(batches: Batches) -> None:
    group = [batches.put(4, [b"fine", b"\xff"])]
    with pytest.raises(CorruptBatch, match=r"entry 1 of batch 4 .* configure dead_letters"):
        run(batches, group, TextFormat())


def test_should_turn_a_quarantined_batch_into_one_dead_letter(batches: Batches) -> None:
    items = (Metadata(0, 1000, b"m"),)
    broken = batches.put(1, [b"a"], items)
    batches.store.put(broken.location, b"damaged")
    gone = BatchDescriptor(2, "ingest/2.batch")
    found = run(
        batches,
        [batches.put(0, [b"a"]), broken, gone],
        RawFormat(),
        split=True,
        quarantined={1: "no batch", 2: "no object"},
    )
    dead = [row["_dead"] for row in found if row["_dead"] is not None]
    assert [(d["_sequence"], d["_index"], d["error"], d["bytes"]) for d in dead] == [
        (1, WHOLE_BATCH, "no batch", b"damaged"),
        (2, WHOLE_BATCH, "no object", None),
    ]
    assert dead[0]["_ingested_at"] == dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert len(found) == 3


def test_should_bound_what_it_keeps_of_a_quarantined_batch(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BYTES_MAX", 10)
    descriptor = batches.put(1, [b"a" * 100])
    (found,) = run(batches, [descriptor], RawFormat(), split=True, quarantined={1: "x"})
    assert len(found["_dead"]["bytes"]) == 10
    size = batches.store.head(descriptor.location).size
    assert found["_dead"]["error"] == f"x; here are the first 10 of its {size} bytes"


def test_should_keep_a_copy_of_a_quarantined_batch_that_is_too_large(
    batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "BYTES_MAX", 1000)
    large, small, gone = batches.put(1, [b"a" * 2000]), batches.put(2, [b"a"]), BatchDescriptor(3, "ingest/3.batch")
    group = [batches.put(0, [b"a" * 2000]), large, small, gone]
    quarantined = {1: "x", 2: "y", 3: "z"}
    kept = "ingest/dead_letters/1.batch.dead"
    expected = quarantined | {1: f"x; the whole object is kept as {kept!r}"}
    assert keep_whole(batches.store, group, quarantined) == expected
    whole = batches.store.get(large.location)
    assert batches.store.get(kept) == whole
    copied = (batches.folder / kept).stat().st_mtime_ns
    assert keep_whole(batches.store, group, quarantined) == expected
    assert (batches.folder / kept).stat().st_mtime_ns == copied, "once is enough"
    batches.store.delete_many([large.location])
    assert keep_whole(batches.store, group, quarantined) == expected, "as it was before"
    assert [info.location for info in batches.store.list("ingest/dead_letters")] == [kept]


def test_should_tell_its_own_mark_from_a_column_of_the_data(batches: Batches) -> None:
    group = [batches.put(1, [b'{"_DEAD": 1}', b"bad"])]
    good, bad = run(batches, group, JsonFormat("_DEAD INT"), split=True)
    assert (good["_DEAD"], good["_dead_"]) == (1, None)
    assert (bad["_DEAD"], bad["_dead_"]["bytes"]) == (None, b"bad")


def test_should_raise_what_the_store_says(batches: Batches) -> None:
    with pytest.raises(ObjectNotFound):
        run(batches, [batches.put(0, [b"a"]), BatchDescriptor(1, "ingest/1.batch")], RawFormat())


# On Spark


def test_should_decode_on_executors(spark: SparkSession, batches: Batches) -> None:
    groups = [
        [batches.put(10 * g + b, [json.dumps({"a": 10 * g + b, "at": "2024-01-02T03:04:05Z"}).encode()] * 3,
                     (Metadata(0, 1_700_000_000_000, b"m"),), "zstd") for b in range(2)]
        for g in range(3)
    ]  # fmt: skip
    groups[1].append(batches.put(99, [b"bad"]))
    form = JsonFormat("a INT, at TIMESTAMP, m MAP<STRING, INT>, d DECIMAL(10, 2)")
    frame = rows.decode(spark, batches.handle, groups, form, RowLayout(), split=True)
    assert frame.rdd.getNumPartitions() == 3
    good = good_rows(frame)
    assert good.dtypes == [
        ("a", "int"),
        ("at", "timestamp"),
        ("m", "map<string,int>"),
        ("d", "decimal(10,2)"),
        ("_rescued_data", "string"),
        ("_sequence", "bigint"),
        ("_index", "int"),
        ("_ingested_at", "timestamp"),
        ("_metadata", "binary"),
    ]
    assert good.where("a = _sequence AND unix_micros(at) = 1704164645000000").count() == 18
    assert good.where("unix_millis(_ingested_at) = 1700000000000 AND _metadata = X'6d'").count() == 18
    (dead,) = dead_rows(frame).collect()
    assert (dead._sequence, dead._index, bytes(dead.bytes), dead.location) == (99, 0, b"bad", "ingest/99.batch")


def test_should_decode_no_groups_to_no_rows(spark: SparkSession, batches: Batches) -> None:
    frame = rows.decode(spark, batches.handle, [], JsonFormat("a INT"), RowLayout())
    assert frame.count() == 0
    assert frame.columns[0] == "a"


def test_should_fail_the_job_when_a_batch_cannot_be_fetched(spark: SparkSession, batches: Batches) -> None:
    frame = rows.decode(spark, batches.handle, [[BatchDescriptor(1, "ingest/1.batch")]], RawFormat(), RowLayout())
    with pytest.raises(PythonException, match=r"ObjectNotFound"):
        frame.collect()


def test_should_find_the_batches_that_cannot_be_read(spark: SparkSession, batches: Batches) -> None:
    broken, gone = batches.put(1, [b"a"]), BatchDescriptor(2, "ingest/2.batch")
    batches.store.put(broken.location, b"damaged")
    folder = BatchDescriptor(3, "ingest")
    found = rows.probe(spark, batches.handle, [[batches.put(0, [b"\xff"]), broken], [gone, folder]])
    assert sorted((f.sequence, f.location, f.kind) for f in found if f.sequence < 3) == [
        (1, broken.location, "data"),
        (2, gone.location, "missing"),
    ]
    assert all(isinstance(f, Failure) and f.error for f in found)
    assert [f.sequence for f in rows.probe(spark, batches.handle, [[batches.put(0, [b"\xff"])]], TextFormat())] == [0]


def test_should_discover_columns_on_executors(spark: SparkSession, batches: Batches) -> None:
    groups = [[batches.put(0, [b'{"a": 1}', b"bad"])], [batches.put(1, [b'{"a": 1.5, "b": "x"}'])]]
    found = rows.discover(spark, batches.handle, groups, JsonFormat(), {})
    assert sorted(str(schema) for schema in found) == ["a: double\nb: string", "a: int64"]
