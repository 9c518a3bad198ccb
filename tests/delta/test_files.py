"""Data files as Arrow writes them: the same values come back, in files and folders that Spark would have made."""

from __future__ import annotations

import errno
import json
import os
import pickle
import random
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from pyspark.errors import PySparkException

from buffer.errors import InvalidConfig, InvalidInput, StorageError, StoreUnusable
from buffer.store import Store, local, open_store
from buffer.testing.clock import ManualClock
from buffer.testing.faulty import FaultyStore
from buffer_delta.delta import files as files_module
from buffer_delta.delta.files import DataFile, FileRules, write_files
from buffer_delta.delta.fitting import fitted, widens
from buffer_delta.delta.stats import StatsRules
from buffer_delta.delta.table_store import TableStore, table_store
from buffer_delta.errors import NullRefused, SchemaMismatch
from buffer_delta.spark.blame import fault_of
from tests.delta.random_rows import tables
from tests.delta.wide_rows import wide_table


def read(store: Store, file: DataFile) -> pa.Table:
    """A file's own columns, found by the name that a commit would have."""
    found = pq.ParquetFile(pa.BufferReader(store.get(unquote(file.path)).data))
    assert found.metadata.num_rows == file.rows
    assert len(store.get(unquote(file.path)).data) == file.size
    return found.read()


def same(left: pa.Table, right: pa.Table) -> bool:
    """Equal to the bit, NaN and -0.0 included."""
    return left.schema == right.schema and repr(left.to_pylist()) == repr(right.to_pylist())


@settings(max_examples=60)
@given(tables())
def test_should_read_back_what_was_written_whatever_the_columns(table: pa.Table) -> None:
    store = open_store("memory://")
    (file,) = write_files(table.to_batches(), FileRules(table.schema), store)
    assert same(read(store, file), table)
    assert json.loads(file.stats)["numRecords"] == table.num_rows


@pytest.mark.parametrize("seed", range(5))
def test_should_read_back_two_hundred_columns_at_once(seed: int) -> None:
    table = wide_table(seed)
    store = open_store("memory://")
    (file,) = write_files(table.to_batches(5), FileRules(table.schema), store)
    assert same(read(store, file), table)


def test_should_write_types_as_spark_does() -> None:
    schema = pa.schema(
        [
            pa.field("small", pa.int8(), nullable=False),
            ("d9", pa.decimal128(9, 2)),
            ("d18", pa.decimal128(18, 2)),
            ("d38", pa.decimal128(38, 2)),
            ("at", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("us")),
            ("tags", pa.list_(pa.string())),
            ("map", pa.map_(pa.string(), pa.int32())),
        ]
    )
    store = open_store("memory://")
    rows = pa.RecordBatch.from_pylist([{"small": 1}], schema)
    (file,) = write_files([rows], FileRules(schema), store)
    text = str(pq.ParquetFile(pa.BufferReader(store.get(file.path).data)).schema)
    for line in (
        "optional int32 field_id=-1 small (Int(bitWidth=8, isSigned=true));",  # Delta's NOT NULL is not the file's
        "optional int32 field_id=-1 d9 (Decimal(precision=9, scale=2));",
        "optional int64 field_id=-1 d18 (Decimal(precision=18, scale=2));",
        "optional fixed_len_byte_array(16) field_id=-1 d38 (Decimal(precision=38, scale=2));",
        "optional int64 field_id=-1 at (Timestamp(isAdjustedToUTC=true, timeUnit=microseconds",
        "optional int64 field_id=-1 local (Timestamp(isAdjustedToUTC=false, timeUnit=microseconds",
        "repeated group field_id=-1 list {",
        "optional binary field_id=-1 element (String);",
        "repeated group field_id=-1 key_value {",
        "required binary field_id=-1 key (String);",
        "optional int32 field_id=-1 value;",
    ):
        assert line in text


def test_should_write_nothing_for_no_rows() -> None:
    schema = pa.schema([("a", pa.int64())])
    store = open_store("memory://")
    assert write_files([], FileRules(schema), store) == []
    assert write_files([pa.RecordBatch.from_pylist([], schema)], FileRules(schema), store) == []
    assert list(store.list("")) == []


def test_should_keep_no_bounds_of_floats_in_the_file() -> None:
    """Arrow's leave NaN out, which is more than any number to Spark: `x > 5` would skip the row group that has it."""
    nan = float("nan")
    pair = pa.struct([("f", pa.float32()), ("i", pa.int32())])
    kinds = {"x": pa.float64(), "pair": pair, "list": pa.list_(pa.float64()), "map": pa.map_(pa.string(), pa.float32())}
    rows = [
        {"x": 1.0, "pair": {"f": nan, "i": 1}, "list": [nan, 1.0], "map": [("a", nan)]},
        {"x": nan, "pair": {"f": 2.0, "i": 2}, "list": [2.0], "map": [("b", 1.0)]},
    ]
    store, schema = open_store("memory://"), pa.schema(list(kinds.items()))
    (file,) = write_files([pa.RecordBatch.from_pylist(rows, schema)], FileRules(schema), store)
    group = pq.ParquetFile(pa.BufferReader(store.get(file.path).data)).metadata.row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    bounded = [column.path_in_schema for column in columns if column.is_stats_set or column.has_column_index]
    assert bounded == ["pair.i", "map.key_value.key"]
    assert json.loads(file.stats)["maxValues"] == {"x": "NaN", "pair": {"f": "NaN", "i": 2}}


def test_should_keep_no_bounds_of_a_float_whose_path_is_the_name_of_another_column() -> None:
    columns = pa.schema([("a", pa.struct([("b", pa.float64())])), ("a.b", pa.int64()), ("c", pa.int64())])
    rows = pa.RecordBatch.from_pylist([{"a": {"b": float("nan")}, "a.b": 1}, {"a": {"b": 1.0}, "c": 2}], columns)
    store = open_store("memory://")
    (file,) = write_files([rows], FileRules(columns), store)
    group = pq.ParquetFile(pa.BufferReader(store.get(file.path).data)).metadata.row_group(0)
    bounds = [(group.column(at).path_in_schema, group.column(at).is_stats_set) for at in range(3)]
    assert bounds == [("a.b", False), ("a.b", False), ("c", True)]


def test_should_keep_neither_bounds_nor_dictionary_where_two_columns_share_a_path() -> None:
    """Spark asks those of the one whether rows of the other can be skipped."""
    columns = pa.schema([("a", pa.struct([("b", pa.int32())])), ("a.b", pa.int32()), ("c", pa.int32())])
    rows = pa.RecordBatch.from_pylist([{"a": {"b": 1}, "a.b": 10, "c": 1}] * 9, columns)
    store = open_store("memory://")
    (file,) = write_files([rows], FileRules(columns), store)
    group = pq.ParquetFile(pa.BufferReader(store.get(file.path).data)).metadata.row_group(0)
    found = [group.column(at) for at in range(3)]
    kept = [(column.path_in_schema, column.is_stats_set, column.has_dictionary_page) for column in found]
    assert kept == [("a.b", False, False), ("a.b", False, False), ("c", True, True)]


# Partitions


def test_should_put_each_partition_into_the_folder_that_spark_would_name(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": pa.array([1, 2, 3, 4, 5, 6]),
            "day": pa.array([18263, 18263, None, 18263, 18263, 18263], pa.int32()).cast(pa.date32()),
            "place": pa.array(["a b/c:d%é", "x", "", "x", None, "é{}~!\"'"]),
        }
    )
    store = open_store(tmp_path)
    found = write_files(table.to_batches(), FileRules(table.schema, ("day", "place")), store, task=7)
    by_folder = {file.path.rpartition("/")[0]: file for file in found}
    assert {folder: read(store, file)["id"].to_pylist() for folder, file in by_folder.items()} == {
        "day=2020-01-02/place=a%20b%252Fc%253Ad%2525%25C3%25A9": [1],
        "day=2020-01-02/place=x": [2, 4],
        "day=2020-01-02/place=__HIVE_DEFAULT_PARTITION__": [5],
        "day=__HIVE_DEFAULT_PARTITION__/place=__HIVE_DEFAULT_PARTITION__": [3],
        "day=2020-01-02/place=%25C3%25A9%257B%7D~!%2522%2527": [6],
    }
    assert by_folder["day=2020-01-02/place=a%20b%252Fc%253Ad%2525%25C3%25A9"].partition_values == {
        "day": "2020-01-02",
        "place": "a b/c:d%é",
    }
    assert by_folder["day=__HIVE_DEFAULT_PARTITION__/place=__HIVE_DEFAULT_PARTITION__"].partition_values == {
        "day": None,
        "place": None,
    }
    assert (tmp_path / "day=2020-01-02/place=a b%2Fc%3Ad%25%C3%A9").is_dir()
    assert all(read(store, file).column_names == ["id"] for file in found)
    assert all(file.path.rpartition("/")[2].startswith("part-00007-") for file in found)


def test_should_keep_one_file_for_a_partition_that_comes_again() -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.int64())])
    batches = [pa.RecordBatch.from_pydict({"k": ["a", "b"], "v": [n, n]}, schema) for n in range(5)]
    store = open_store("memory://")
    found = write_files(batches, FileRules(schema, ("k",)), store)
    assert sorted((file.partition_values["k"], read(store, file)["v"].to_pylist()) for file in found) == [
        ("a", [0, 1, 2, 3, 4]),
        ("b", [0, 1, 2, 3, 4]),
    ]


def test_should_refuse_a_partition_value_that_can_be_no_folder(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.int64())])
    rows = pa.RecordBatch.from_pydict({"k": ["a" * 300], "v": [1]}, schema)
    with pytest.raises(InvalidInput, match="too long for a file name"):
        write_files([rows], FileRules(schema, ("k",)), open_store(tmp_path))


PARTS = FileRules(pa.schema([("k", pa.string()), ("v", pa.int64())]), ("k",))


def of(*values: str) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pydict({"k": list(values), "v": list(range(len(values)))}, PARTS.schema)]


def table_in(folder: Path) -> Store:
    """As an executor opens it."""
    found: TableStore = pickle.loads(pickle.dumps(table_store(f"file:{folder}", {})))
    return found.open()


def test_should_write_through_a_partitions_folder_that_is_a_link(tmp_path: Path) -> None:
    """To a disk with more room, say. Spark's writer does."""
    table, disk = tmp_path / "table", tmp_path / "disk"
    table.mkdir()
    disk.mkdir()
    (table / "k=a").symlink_to(disk)
    store = table_in(table)
    files = write_files(of("a", "b"), PARTS, store)
    assert [read(store, file).to_pydict() for file in files] == [{"v": [0]}, {"v": [1]}]
    assert len(list(disk.glob("*.parquet"))) == 1
    assert all((table / file.path).is_file() for file in files), "where the log says"


@pytest.mark.parametrize(
    "occupy",
    [
        lambda folder: folder.symlink_to("nothing"),
        lambda folder: folder.symlink_to(folder),
        lambda folder: folder.write_bytes(b"a file"),
        os.mkfifo,
    ],
    ids=["a link to nowhere", "a link to itself", "a file", "a pipe"],
)
def test_should_not_blame_the_rows_for_what_stands_in_the_place_of_their_folder(
    tmp_path: Path, occupy: Callable[[Path], None]
) -> None:
    """A disk that is not there for a while: else good rows end among the dead letters."""
    (tmp_path / "table").mkdir()
    occupy(tmp_path / "table/k=a")
    with pytest.raises(StoreUnusable) as raised:
        write_files(of("b", "a"), PARTS, table_in(tmp_path / "table"))
    assert fault_of(raised.value) == "infra"
    assert fault_of(told(raised.value)) == "infra"


@pytest.mark.parametrize("number", [errno.ESTALE, errno.ENOSPC, errno.EACCES, errno.ELOOP, errno.EREMOTEIO])
def test_should_not_blame_the_rows_for_a_failing_disk(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Path:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(local, "write_temp", fails)
    with pytest.raises(StorageError) as raised:
        write_files(of("a"), PARTS, table_in(tmp_path))
    assert fault_of(told(raised.value)) == "infra"


def test_should_blame_the_rows_for_a_name_that_they_make_too_long(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as raised:
        write_files(of("a" * 300), PARTS, table_in(tmp_path))
    assert (fault_of(raised.value), fault_of(told(raised.value))) == ("data", "data")


def told(error: Exception) -> Exception:
    """What the driver hears of it where a task has failed: the text."""
    return PySparkException("".join(traceback.format_exception(error)))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (-(2**63), pa.timestamp("us", "UTC")),  # no time at all to numpy: "NaT" would be the partition's value
        (2**63 - 1, pa.timestamp("us")),
        (-719_529, pa.date32()),
        (2_932_897, pa.date32()),
        (-62_135_596_800_000_001, pa.timestamp("us", "UTC")),  # of which Spark makes another year
    ],
)
def test_should_refuse_a_partition_of_a_year_without_four_digits(value: int, kind: pa.DataType) -> None:
    batch = pa.record_batch({"k": pa.array([0, value], kind), "v": [1, 2]})
    with pytest.raises(InvalidInput, match=r"years [01] to 9999"):
        write_files([batch], FileRules(batch.schema, partition_by=("k",)), open_store("memory://"))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_should_refuse_the_name_of_the_folder_of_null(kind: pa.DataType) -> None:
    batch = pa.record_batch({"k": pa.array(["a", "__HIVE_DEFAULT_PARTITION__"], kind), "v": [1, 2]})
    with pytest.raises(InvalidInput, match="stands for null"):
        write_files([batch], FileRules(batch.schema, partition_by=("k",)), open_store("memory://"))


def test_should_bound_memory_however_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "ROW_GROUP_BYTES", 50_000)
    schema = pa.schema([("k", pa.int32()), ("v", pa.binary())])
    in_hand: list[int] = []
    batches = (
        pa.RecordBatch.from_pydict({"k": list(range(50)), "v": [bytes([n]) * 100] * 50}, schema) for n in range(100)
    )
    rules = FileRules(schema, ("k",), target_file_bytes=50_000)
    closed = files_module.FileWriter._finish

    def watched(writer: Any, file: Any) -> None:
        in_hand.append(writer._in_hand)
        closed(writer, file)

    monkeypatch.setattr(files_module.FileWriter, "_finish", watched)
    store = open_store("memory://")
    found = write_files(batches, rules, store)
    assert sum(file.rows for file in found) == 5000
    assert len(found) > 50, "files were closed early, or the bound was never met"
    assert max(in_hand) < 120_000


def test_should_let_go_of_what_is_written_when_a_partition_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "ROW_GROUP_BYTES", 100_000)
    schema = pa.schema([("k", pa.string()), ("v", pa.binary())])
    rng, allocated = random.Random(1), []

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(100):  # one row of each belongs to a partition that never grows enough to be written
            values = pa.array([rng.randbytes(1000) for _ in range(100)], pa.binary())
            yield pa.RecordBatch.from_arrays([pa.array(["rare"] + ["often"] * 99), values], schema=schema)
            del values
            allocated.append(pa.total_allocated_bytes())

    class Forgetful(FaultyStore):
        def put(self, location: str, data: bytes | memoryview) -> None:
            pass  # a memory store would keep the very bytes that should be gone

    before = pa.total_allocated_bytes()
    rules = FileRules(schema, ("k",), codec="none", target_file_bytes=500_000)
    write_files(batches(), rules, Forgetful(open_store("memory://")))
    # About three files (open, encoded, on its way up) and what Arrow has in reserve; without letting go it is 6 MB.
    assert max(allocated) - before < 4_000_000, "10 MB went through"


# Sizes


def test_should_begin_a_new_file_when_one_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "ROW_GROUP_ROWS", 1000)
    schema = pa.schema([("v", pa.int64())])
    batches = [pa.RecordBatch.from_pydict({"v": list(range(n * 500, n * 500 + 500))}, schema) for n in range(20)]
    store = open_store("memory://")
    found = write_files(batches, FileRules(schema, codec="none", target_file_bytes=30_000), store)
    assert len(found) > 1
    assert all(file.size < 45_000 for file in found)
    values = [value for file in found for value in read(store, file)["v"].to_pylist()]
    assert values == list(range(10_000))
    groups = pq.ParquetFile(pa.BufferReader(store.get(found[0].path).data)).metadata
    assert [groups.row_group(at).num_rows for at in range(groups.num_row_groups)] == [1000] * groups.num_row_groups


def test_should_never_use_a_name_twice_and_tell_the_clocks_time() -> None:
    schema = pa.schema([("v", pa.int64())])
    rows = pa.RecordBatch.from_pydict({"v": [1]}, schema)
    store, clock = open_store("memory://"), ManualClock(1_700_000_000_123)
    found = [write_files([rows], FileRules(schema), store, clock=clock)[0] for _ in range(3)]
    assert len({file.path for file in found}) == 3
    assert {file.modification_time_ms for file in found} == {1_700_000_000_123}


@pytest.mark.parametrize(
    ("codec", "stored", "suffix"),
    [
        ("snappy", "SNAPPY", ".c000.snappy.parquet"),
        ("zstd", "ZSTD", ".c000.zstd.parquet"),
        ("gzip", "GZIP", ".c000.gz.parquet"),
        ("lz4_raw", "LZ4", ".c000.lz4raw.parquet"),
        ("none", "UNCOMPRESSED", ".c000.parquet"),
    ],
)
def test_should_compress_as_the_table_says(codec: str, stored: str, suffix: str) -> None:
    schema = pa.schema([("v", pa.string())])
    store = open_store("memory://")
    rows = pa.RecordBatch.from_pydict({"v": ["abc"] * 1000}, schema)
    (file,) = write_files([rows], FileRules(schema, codec=codec), store)
    assert file.path.endswith(suffix)
    found = pq.ParquetFile(pa.BufferReader(store.get(file.path).data)).metadata.row_group(0).column(0)
    assert found.compression == stored


def test_should_use_dictionaries_only_where_values_repeat() -> None:
    rows = 5000
    table = pa.table(
        {
            "kind": [f"kind {n % 10}" for n in range(rows)],
            "id": [f"id {n}" for n in range(rows)],
            "s": [{"level": "info", "n": n} for n in range(rows)],
            "tags": [["a", "b"]] * rows,
            "m": pa.array([[("k", n)] for n in range(rows)], pa.map_(pa.string(), pa.int64())),
        }
    )
    store = open_store("memory://")
    (file,) = write_files(table.to_batches(), FileRules(table.schema), store)
    group = pq.ParquetFile(pa.BufferReader(store.get(file.path).data)).metadata.row_group(0)
    with_dictionary = {
        column.path_in_schema: column.has_dictionary_page
        for column in (group.column(at) for at in range(group.num_columns))
    }
    assert with_dictionary == {
        "kind": True,
        "id": False,
        "s.level": True,
        "s.n": False,
        "tags.list.element": True,
        "m.key_value.key": True,
        "m.key_value.value": False,
    }


_FLOATS = pa.schema(
    {
        "x": pa.float64(),
        "s": pa.struct([("f", pa.float32()), ("n", pa.int32())]),
        "list": pa.list_(pa.float64()),
        "map": pa.map_(pa.string(), pa.float64()),
    }
)


def _floats(value: float, count: int) -> pa.RecordBatch:
    row = {"x": value, "s": {"f": value, "n": 1}, "list": [value], "map": [("k", value)]}
    return pa.RecordBatch.from_pylist([row] * count, _FLOATS)


def _with_dictionary(store: Store, file: DataFile) -> list[str]:
    group = pq.ParquetFile(pa.BufferReader(store.get(file.path).data)).metadata.row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    return [column.path_in_schema for column in columns if column.has_dictionary_page]


def test_should_use_no_dictionary_for_floats_with_a_negative_zero() -> None:
    """Which Spark takes for less than zero there, and for equal to it everywhere else: it would lose those rows."""
    store = open_store("memory://")
    plain, signed = _floats(1.5, 5000), _floats(-0.0, 1)  # behind the first rows, by which the rest is decided
    (file,) = write_files([plain, signed], FileRules(_FLOATS), store)
    assert _with_dictionary(store, file) == ["s.n", "map.key_value.key"]
    (other,) = write_files([plain, _floats(0.0, 1)], FileRules(_FLOATS), store)
    every = ["x", "s.f", "s.n", "list.list.element", "map.key_value.key", "map.key_value.value"]
    assert _with_dictionary(store, other) == every


def test_should_begin_a_new_file_at_a_negative_zero_behind_a_dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "ROW_GROUP_ROWS", 10)
    store = open_store("memory://")
    batches = [_floats(value, 10) for value in (1.5, 0.0, -0.0, 1.5, -0.0)]
    first, second = write_files(batches, FileRules(_FLOATS), store)
    assert (first.rows, second.rows) == (20, 30)
    assert "x" in _with_dictionary(store, first)
    assert _with_dictionary(store, second) == ["s.n", "map.key_value.key"]


# What does not fit


@pytest.mark.parametrize(
    ("path", "row"),
    [
        (("a",), {"a": None, "s": {"x": 1}, "p": "k"}),
        (("s", "x"), {"a": 1, "s": {"x": None}, "p": "k"}),
        (("s", "x"), {"a": 1, "s": None, "p": "k"}),
        (("p",), {"a": 1, "s": {"x": 1}, "p": None}),
        (("p",), {"a": 1, "s": {"x": 1}, "p": ""}),
    ],
)
def test_should_name_the_column_that_takes_no_null(path: tuple[str, ...], row: dict[str, Any]) -> None:
    schema = pa.schema([("a", pa.int64()), ("s", pa.struct([("x", pa.int64())])), ("p", pa.string())])
    rules = FileRules(schema, ("p",), not_null=(path,))
    store = open_store("memory://")
    good = {"a": 1, "s": {"x": 1}, "p": "k"}
    assert len(write_files([pa.RecordBatch.from_pylist([good], schema)], rules, store)) == 1
    with pytest.raises(NullRefused, match="NOT NULL") as raised:
        write_files([pa.RecordBatch.from_pylist([good, row], schema)], rules, store)
    assert (raised.value.column, raised.value.rows) == (".".join(path), 1)
    assert pickle.loads(pickle.dumps(raised.value)).column == ".".join(path)


def test_should_fill_in_missing_columns_and_widen_but_lose_nothing() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.list_(pa.int32()))])
    rows = fitted(pa.RecordBatch.from_pydict({"a": pa.array([1], pa.int32())}), FileRules(schema))
    assert rows.to_pylist() == [{"a": 1, "b": None, "c": None}]
    assert [f.type for f in rows.schema] == [pa.int64(), pa.string(), pa.list_(pa.field("element", pa.int32()))]
    with pytest.raises(SchemaMismatch, match="other"):
        fitted(pa.RecordBatch.from_pydict({"other": [1]}), FileRules(schema))
    with pytest.raises(SchemaMismatch, match="columns b"):
        fitted(pa.RecordBatch.from_pydict({"b": pa.array([[1]])}), FileRules(schema))
    with pytest.raises(SchemaMismatch, match="columns a"):
        fitted(pa.RecordBatch.from_pydict({"a": [1.5]}), FileRules(schema))
    with pytest.raises(NullRefused):
        fitted(pa.RecordBatch.from_pydict({"a": [1]}), FileRules(schema, not_null=(("b",),)))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (pa.float64(), pa.float32()),  # to infinity
        (pa.int64(), pa.float64()),
        (pa.int64(), pa.int32()),
        (pa.uint8(), pa.int64()),
        (pa.timestamp("us"), pa.date32()),  # without its time of day
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.date32(), pa.timestamp("us")),
        (pa.string(), pa.int64()),
        (pa.int64(), pa.string()),
        (pa.binary(), pa.string()),
        (pa.bool_(), pa.int64()),
        (pa.int64(), pa.timestamp("us")),
        (pa.decimal128(5, 2), pa.decimal128(5, 1)),
        (pa.decimal128(5, 2), pa.decimal128(5, 3)),
        (pa.int64(), pa.decimal128(20, 2)),
        (pa.struct([("a", pa.int64()), ("b", pa.int64())]), pa.struct([("a", pa.int64())])),  # without a field
        (pa.list_(pa.float64()), pa.list_(pa.float32())),
        (pa.map_(pa.string(), pa.string()), pa.map_(pa.string(), pa.int64())),
    ],
)
def test_should_not_use_what_arrow_would_cast_with_a_loss(given: pa.DataType, wanted: pa.DataType) -> None:
    assert not widens(given, wanted)
    rows = pa.RecordBatch.from_arrays([pa.nulls(1, given)], names=["c"])
    with pytest.raises(SchemaMismatch, match="does not hold every value"):
        fitted(rows, FileRules(pa.schema([("c", wanted)])))


@pytest.mark.parametrize(
    ("given", "wanted", "value"),
    [
        (pa.int8(), pa.int64(), 7),
        (pa.int32(), pa.float64(), 2**31 - 1),
        (pa.int64(), pa.decimal128(38, 18), 2**63 - 1),
        (pa.float32(), pa.float64(), 0.5),
        (pa.null(), pa.date32(), None),
        (pa.large_string(), pa.string(), "é"),
        (pa.large_binary(), pa.binary(), b"x"),
        (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC"), None),
        (pa.decimal128(5, 2), pa.decimal128(8, 3), None),
        (pa.dictionary(pa.int8(), pa.string()), pa.string(), "a"),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), [1, None]),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), [("k", 1)]),
        (pa.struct([("b", pa.int8())]), pa.struct([("a", pa.string()), ("b", pa.int32())]), {"b": 1}),
    ],
)
def test_should_widen_what_the_wider_type_holds(given: pa.DataType, wanted: pa.DataType, value: Any) -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([value, None], given)], names=["c"])
    found = fitted(rows, FileRules(pa.schema([("c", wanted)])))["c"].to_pylist()
    assert found == [{"a": None, "b": 1} if isinstance(value, dict) else value, None]


def test_should_not_cut_a_finer_time() -> None:
    fine = pa.timestamp("ns")
    rules = FileRules(pa.schema([("c", pa.timestamp("us"))]))
    assert fitted(pa.RecordBatch.from_arrays([pa.array([5000], fine)], names=["c"]), rules).num_rows == 1
    with pytest.raises(SchemaMismatch, match="lose data"):
        fitted(pa.RecordBatch.from_arrays([pa.array([5001], fine)], names=["c"]), rules)


def test_should_report_a_store_that_fails_and_write_no_more() -> None:
    class Broken(FaultyStore):
        def put(self, location: str, data: bytes | memoryview) -> None:
            raise StorageError("no", location=location, url="x", retryable=True)

    schema = pa.schema([("v", pa.int64())])
    with pytest.raises(StorageError, match="no"):
        write_files(
            [pa.RecordBatch.from_pydict({"v": [1]}, schema)], FileRules(schema), Broken(open_store("memory://"))
        )


# The rules themselves

METADATA = {
    "schemaString": json.dumps(
        {
            "type": "struct",
            "fields": [
                {"name": "id", "type": "long", "nullable": False, "metadata": {}},
                {"name": "day", "type": "date", "nullable": True, "metadata": {}},
                {
                    "name": "s",
                    "type": {
                        "type": "struct",
                        "fields": [{"name": "x", "type": "decimal(10,2)", "nullable": False, "metadata": {}}],
                    },
                    "nullable": True,
                    "metadata": {},
                },
            ],
        }
    ),
    "partitionColumns": ["day"],
    "configuration": {
        "delta.parquet.compression.codec": "ZSTD",
        "delta.targetFileSize": "16mb",
        "delta.dataSkippingStatsColumns": "id, s.x",
    },
}


def test_should_read_its_rules_from_the_tables_log() -> None:
    rules = FileRules.of_metadata(json.dumps({"metaData": METADATA}), deletion_vectors=True)
    assert rules.schema.names == ["id", "day", "s"]
    assert rules.partition_by == ("day",)
    assert rules.not_null == (("id",), ("s", "x"))
    assert (rules.codec, rules.target_file_bytes) == ("zstd", 16 * 1024 * 1024)
    assert rules.stats == StatsRules(columns=(("id",), ("s", "x")), tight_bounds=True)
    assert pickle.loads(pickle.dumps(rules)) == rules


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"configuration": {"delta.parquet.compression.codec": "lzo"}}, "codec='lzo'"),
        ({"configuration": {"delta.targetFileSize": "big"}}, "delta.targetFileSize='big'"),
        ({"configuration": {"delta.dataSkippingNumIndexedCols": "x"}}, "is not a number"),
        ({"partitionColumns": ["s"]}, "has no text in Delta's log"),
        ({"partitionColumns": ["gone"]}, "no such column"),
        (
            {
                "schemaString": json.dumps(
                    {"type": "struct", "fields": [{"name": "v", "type": "variant", "nullable": True, "metadata": {}}]}
                ),
                "partitionColumns": [],
            },
            "type variant",
        ),
    ],
)
def test_should_say_what_of_a_table_arrow_cannot_write(change: dict[str, Any], told: str) -> None:
    with pytest.raises((InvalidConfig, InvalidInput), match=told):
        FileRules.of_metadata(json.dumps({"metaData": {**METADATA, **change}}))


def test_should_look_like_an_add_action() -> None:
    schema = pa.schema([("v", pa.int64())])
    store = open_store("memory://")
    (file,) = write_files([pa.RecordBatch.from_pydict({"v": [1]}, schema)], FileRules(schema), store)
    add = json.loads(json.dumps(file.to_add()))
    assert add["dataChange"] is True
    assert add["partitionValues"] == {}
    assert json.loads(add["stats"])["numRecords"] == 1
