"""Files that Arrow wrote, beside Spark's own of the same rows: types, values, folders, statistics."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import hypothesis
import numpy as np
import pyarrow as pa
import pytest
from delta.tables import DeltaTable as TableBuilder
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from buffer.store import open_store
from buffer_delta.delta.files import DataFile, FileRules, write_files
from buffer_delta.delta.stats import StatsRules
from buffer_delta.delta.table import DeltaTarget
from buffer_delta.delta.txn import Txn
from buffer_delta.spark.schemas import spark_schema
from tests.delta.random_rows import tables
from tests.delta.wide_rows import wide_table

ROWS = 12
NAMES = ["a", "B", "snake_case", "dots.in.it", "é", "x-y", "`tick`", 'q"uote', "list", "element", "key", "value", "c"]
"""Of columns: without what only column mapping allows."""


@pytest.fixture
def utc(spark: SparkSession) -> Any:
    """Spark writes the statistics of timestamps with its session's offset, and drops the seconds of old ones."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


def spark_adds(folder: Path) -> list[dict[str, Any]]:
    lines = [line for log in sorted((folder / "_delta_log").glob("*.json")) for line in log.read_text().split("\n")]
    return [json.loads(line)["add"] for line in lines if line.startswith('{"add"')]


def commit(folder: Path, rules: FileRules, schema: str, files: list[DataFile]) -> None:
    """A table's first commit, by hand: what any writer of Delta would put there."""
    actions: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["timestampNtz"],
                      "writerFeatures": ["timestampNtz", "invariants", "appendOnly"]}},
        {"metaData": {"id": "0", "format": {"provider": "parquet", "options": {}}, "schemaString": schema,
                      "partitionColumns": list(rules.partition_by), "configuration": {}, "createdTime": 0}},
        *({"add": file.to_add()} for file in files),
    ]  # fmt: skip
    (folder / "_delta_log").mkdir()
    (folder / "_delta_log" / f"{0:020d}.json").write_text("\n".join(json.dumps(action) for action in actions))


def alike(kind: pa.DataType, ours: Any, theirs: Any) -> bool:
    """Equal as values of that type, a bound or a count: a number may be spelled in two ways."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(alike(kind.field(key).type, ours[key], theirs[key]) for key in ours)
    if isinstance(ours, str) and isinstance(theirs, str):
        if pa.types.is_floating(kind):
            number = np.float32 if kind == pa.float32() else np.float64
            return repr(number(ours)) == repr(number(theirs))  # -0.0 is not 0.0
        if pa.types.is_decimal(kind):
            return Decimal(ours) == Decimal(theirs)
    return bool(ours == theirs and type(ours) is type(theirs))


def test_should_mean_the_same_to_spark_as_its_own_files(spark: SparkSession, utc: None, tmp_path: Path) -> None:
    table = wide_table(seed=1, rows=ROWS)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    rules = FileRules(table.schema, stats=StatsRules(leaves=-1))
    (file,) = write_files(table.to_batches(), rules, open_store(ours))
    frame = spark.read.parquet(str(ours / file.path))
    # Types and values, as Spark reads them from a plain file that no log describes.
    assert repr(frame.toArrow().to_pylist()) == repr(table.to_pylist())
    frame.coalesce(1).write.format("delta").option("delta.dataSkippingNumIndexedCols", "-1").save(str(theirs))
    (add,) = spark_adds(theirs)
    found, wanted = (json.loads(text, parse_float=str) for text in (file.stats, add["stats"]))
    assert found["numRecords"] == wanted["numRecords"] == ROWS
    assert found.keys() == wanted.keys()
    for kind in ("minValues", "maxValues", "nullCount"):
        different = {
            name: (str(table.schema.field(name).type), found[kind].get(name), wanted[kind].get(name))
            for name in table.column_names
            if not alike(table.schema.field(name).type, found[kind].get(name), wanted[kind].get(name))
        }
        assert different == {}


@dataclass(frozen=True)
class Drawn:
    """Rows, and how the table is laid out."""

    rows: pa.Table
    partition_by: list[str]
    required: list[str]
    """NOT NULL."""


@st.composite
def drawn_tables(draw: st.DrawFn) -> Drawn:
    rows = draw(tables(columns_max=12, names=NAMES))
    columns = {name: rows[name] for name in rows.column_names}
    parts = [name for name, column in columns.items() if name.isidentifier() and _may_part(column)]
    by = st.lists(st.sampled_from(parts), max_size=min(2, len(columns) - 1), unique=True) if parts else st.just([])
    full = [name for name, column in columns.items() if not column.null_count and "" not in column.to_pylist()]
    required = st.lists(st.sampled_from(full), unique=True) if full else st.just([])
    return Drawn(rows, draw(by), draw(required))


def _may_part(column: pa.ChunkedArray) -> bool:
    """Without floats, which Java's releases print differently, and text that no file system takes for a name."""
    kind = column.type
    if pa.types.is_string(kind):
        return all(text is None or (text.isprintable() and len(text) < 20) for text in column.to_pylist())
    return not (pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_floating(kind))


@hypothesis.settings(
    max_examples=8,  # each is two commits of Spark's
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.reuse, hypothesis.Phase.generate],  # shrinking would take hours
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(drawn=drawn_tables())
def test_should_make_the_same_table_whoever_writes_it(
    spark: SparkSession, utc: None, tmp_path_factory: pytest.TempPathFactory, drawn: Drawn
) -> None:
    """Rows, types, partitions, and every statistic in the log, of random columns and values."""
    folder = tmp_path_factory.mktemp("both")
    table = drawn.rows.take(list(range(drawn.rows.num_rows)))  # createDataFrame cannot read slices of lists
    rows = spark.createDataFrame(table, spark_schema(table.schema)).coalesce(1)
    found = {}
    for writer in ("arrow", "spark"):
        into = _created(spark, folder / writer, drawn, writer)
        assert into.write(rows, Txn("app", 0, 0, 1), into.look("app")).rows == table.num_rows
        frame = spark.read.format("delta").load(str(folder / writer))
        assert {field.name for field in into.look("app").schema if not field.nullable} == set(drawn.required)
        adds = {tuple(sorted(add["partitionValues"].items())): add for add in spark_adds(folder / writer)}
        found[writer] = frame.schema, repr(sorted(map(repr, frame.toArrow().to_pylist()))), adds
    (schema, values, adds), (their_schema, their_values, their_adds) = found["arrow"], found["spark"]
    assert schema == their_schema
    assert values == their_values
    assert adds.keys() == their_adds.keys(), "a file for each partition"
    for part, add in adds.items():
        _compare(table.schema, add, their_adds[part])


def _created(spark: SparkSession, path: Path, drawn: Drawn, writer: Any) -> DeltaTarget:
    fields = spark_schema(drawn.rows.schema).fields
    columns = StructType([StructField(f.name, f.dataType, f.name not in drawn.required) for f in fields])
    made = TableBuilder.create(spark).location(str(path)).addColumns(columns)
    made = made.partitionedBy(*drawn.partition_by) if drawn.partition_by else made
    made.property("delta.dataSkippingNumIndexedCols", "-1").execute()
    return DeltaTarget(spark, str(path), writer=writer)


def _compare(schema: pa.Schema, add: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert add.keys() - {"tags"} == theirs.keys() - {"tags"}, (add, theirs)
    stats, their_stats = (json.loads(each["stats"], parse_float=str) for each in (add, theirs))
    assert stats.keys() == their_stats.keys()
    assert stats["numRecords"] == their_stats["numRecords"]
    for kind in stats.keys() & {"minValues", "maxValues", "nullCount"}:  # without bounds there are none of them
        assert stats[kind].keys() == their_stats[kind].keys()
        for name, bound in stats[kind].items():
            assert alike(schema.field(name).type, bound, their_stats[kind][name]), (kind, name)


def test_should_be_in_the_folders_that_spark_would_make(spark: SparkSession, utc: None, tmp_path: Path) -> None:
    spark.sql(
        f"""create table delta.`{tmp_path}/theirs` (id int, s string, d date, t timestamp, n timestamp_ntz,
        dec decimal(10,3), b boolean, f float, x double, l bigint, `o:é` string) using delta
        partitioned by (s, d, t, n, dec, b, f, x, l, `o:é`)"""
    )
    spark.sql(
        f"""insert into delta.`{tmp_path}/theirs` values
        (1, 'a b/c:d%é[]{{}}^#?*\\'"\\\\=', date'2020-01-02', timestamp'2020-01-01 00:00:00.123',
         timestamp_ntz'2020-01-01 00:00:00', 1.5, true, float(1.5), 1e300D, 5, ' '),
        (2, '', null, null, null, null, null, null, null, null, null),
        (3, '\t~!$&()+,;<>@|`', date'0001-01-01', timestamp'1900-01-01 00:00:00', timestamp_ntz'1900-01-01 00:00:00.1',
         -0.001, false, float('nan'), double('-infinity'), -9223372036854775808, '\U0001f600'),
        (4, '..', date'9999-12-31', timestamp'9999-12-31 23:59:59.999999', timestamp_ntz'0001-01-01 00:00:00.000001',
         -1234567.890, false, float(1e-5), double('-0.0'), 0, '.'),
        (5, ' x ', date'1582-10-15', timestamp'1582-10-04 00:00:00', timestamp_ntz'1582-10-04 00:00:00',
         1000000, true, float(1e7), 123456.789D, 1, 'a=b')"""
    )
    frame = spark.read.format("delta").load(f"{tmp_path}/theirs")
    rows = frame.orderBy("id").toArrow()
    by = ("s", "d", "t", "n", "dec", "b", "f", "x", "l", "o:é")
    rules = FileRules(rows.schema, by)
    ours = tmp_path / "ours"
    written = write_files(rows.to_batches(), rules, open_store(ours))
    theirs = {json.loads(add["stats"])["minValues"]["id"]: add for add in spark_adds(tmp_path / "theirs")}
    assert len(theirs) == len(written) == 5
    for file in written:
        add = theirs[json.loads(file.stats)["minValues"]["id"]]
        assert file.partition_values == add["partitionValues"]
        # Spark names the folder of a timestamp by its session's zone and without trailing zeros.
        levels = [unquote(unquote(part)) for part in file.path.split("/")[:-1] if not part.startswith("t=")]
        assert levels == [unquote(unquote(part)) for part in add["path"].split("/")[:-1] if not part.startswith("t=")]
        assert (ours / unquote(file.path)).exists()
    commit(ours, rules, frame.schema.json(), written)
    read = spark.read.format("delta").load(str(ours))
    assert read.schema == frame.schema
    assert repr(read.orderBy("id").toArrow().to_pylist()) == repr(rows.to_pylist())
    assert read.where("l = 5 and d = '2020-01-02'").count() == 1
    assert read.where("s is null").count() == 1


def test_should_let_spark_skip_files_by_their_statistics(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("s", pa.struct([("at", pa.timestamp("us", "UTC"))])), ("t", pa.string())])
    rules, store = FileRules(schema), open_store(tmp_path)
    files = []
    for n in range(4):
        values = [{"id": n * 10 + i, "s": {"at": n * 10**12 + i}, "t": f"{'x' * 40}{n}"} for i in range(10)]
        files += write_files([pa.RecordBatch.from_pylist(values, schema)], rules, store)
    struct = (
        '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}},{"name":"s","type":'
        '{"type":"struct","fields":[{"name":"at","type":"timestamp","nullable":true,"metadata":{}}]},"nullable":true,'
        '"metadata":{}},{"name":"t","type":"string","nullable":true,"metadata":{}}]}'
    )
    commit(tmp_path, rules, struct, files)
    table = spark.read.format("delta").load(str(tmp_path))
    for condition, names in (
        ("id = 25", [2]),
        ("id >= 38", [3]),
        ("s.at < timestamp'1970-01-05 00:00:00+00:00'", [0]),
        (f"t = '{'x' * 40}1'", [0, 1, 2, 3]),  # what the statistics cut off cannot tell them apart
        ("t > 'y'", []),
    ):
        wanted = {unquote(files[n].path) for n in names}
        assert {Path(path).name for path in table.where(condition).inputFiles()} == wanted


def test_should_lose_no_row_with_a_negative_zero_to_a_filter(spark: SparkSession, tmp_path: Path) -> None:
    """It equals zero, whatever Spark asks of a file before it reads rows."""
    schema = pa.schema([("x", pa.float64())])
    rules, store = FileRules(schema), open_store(tmp_path)
    files = [
        file
        for value in (-0.0, 0.0)
        for file in write_files([pa.RecordBatch.from_pylist([{"x": value}] * 20, schema)], rules, store)
    ]
    struct = '{"type":"struct","fields":[{"name":"x","type":"double","nullable":true,"metadata":{}}]}'
    commit(tmp_path, rules, struct, files)
    table = spark.read.format("delta").load(str(tmp_path))
    assert {condition: table.where(condition).count() for condition in ("x = 0D", "x >= 0D", "x < 0D")} == {
        "x = 0D": 40,
        "x >= 0D": 40,
        "x < 0D": 0,
    }
