"""What runs on executors, and what travels there."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from buffer.model import BatchDescriptor, Metadata
from buffer_delta.decode.failures import Failure
from buffer_delta.decode.fetching import Group, in_groups
from buffer_delta.decode.look import CanParse
from buffer_delta.formats import JsonFormat, RawFormat, TextFormat, arrow_schema
from buffer_delta.spark import tasks
from buffer_delta.spark.frames import dead_rows, good_rows
from buffer_delta.spark.jobs import payloads
from buffer_delta.spark.schemas import spark_schema
from tests.decode.decode_support import Batches, decoder


@pytest.fixture
def batches(tmp_path: Path) -> Batches:
    return Batches(tmp_path / "store")


def test_should_send_each_task_its_own_group_only(batches: Batches) -> None:
    """All groups in every task would be 790 kB for these, however many tasks there are."""
    descriptors = [
        BatchDescriptor(n, f"ingest/01J{n:023d}.batch", (Metadata(0, 1_700_000_000_000 + n, b"client-7"),))
        for n in range(10_000)
    ]
    shared = tasks.OnWorker(tasks.DecodeTask(batches.handle, decoder(RawFormat())))
    assert len(cloudpickle.dumps(shared)) < 2_000, "the same for all tasks, whatever they read"
    for count in (10, 100):
        groups = in_groups([descriptors[start::count] for start in range(count)], dict.fromkeys(range(500), "bad"))
        sizes = [len(payload) for payload in payloads(groups)]
        assert max(sizes) < 100 * len(descriptors) // count + 500
        assert [pickle.loads(payload) for payload in payloads(groups)] == groups


def test_should_know_the_types_of_spark_as_spark_does() -> None:
    ddl = (
        "a TINYINT, b SMALLINT, c INT NOT NULL, d BIGINT, e FLOAT, f DOUBLE, g STRING, h BINARY, i DATE, j TIMESTAMP, "
        "k TIMESTAMP_NTZ, l DECIMAL(20, 3), m BOOLEAN, n ARRAY<STRUCT<x: INT, y: MAP<STRING, DATE>>>"
    )
    ours = arrow_schema(ddl)
    theirs = spark_schema(ours)
    assert isinstance(theirs, StructType)
    assert all(field.nullable for field in theirs.fields)
    assert arrow_schema(theirs) == pa.schema([field.with_nullable(True) for field in ours])
    plain = [field for field in theirs.fields if field.name != "n"]
    assert [arrow_schema(theirs).field(f.name).type for f in plain] == [
        to_arrow_type(f.dataType, timezone="UTC") for f in plain
    ]


def test_should_decode_on_executors(spark: SparkSession, batches: Batches) -> None:
    groups = [
        [batches.put(10 * g + b, [json.dumps({"a": 10 * g + b, "at": "2024-01-02T03:04:05Z"}).encode()] * 3,
                     (Metadata(0, 1_700_000_000_000, b"m"),), "zstd") for b in range(2)]
        for g in range(3)
    ]  # fmt: skip
    groups[1].append(batches.put(99, [b"bad"]))
    form = JsonFormat("a INT, at TIMESTAMP, m MAP<STRING, INT>, d DECIMAL(10, 2)")
    frame = tasks.decode(spark, batches.handle, groups, decoder(form, dead_letters=True))
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
        ("_entry_metadata", "binary"),
    ]
    assert good.where("a = _sequence AND unix_micros(at) = 1704164645000000").count() == 18
    assert good.where("unix_millis(_ingested_at) = 1700000000000 AND _entry_metadata = X'6d'").count() == 18
    (dead,) = dead_rows(frame).collect()
    assert (dead._sequence, dead._index, bytes(dead.bytes), dead.location) == (99, 0, b"bad", "ingest/99.batch")


def test_should_decode_no_groups_to_no_rows(spark: SparkSession, batches: Batches) -> None:
    frame = tasks.decode(spark, batches.handle, [], decoder(JsonFormat("a INT")))
    assert frame.count() == 0
    assert frame.columns[0] == "a"


def test_should_fail_the_job_when_a_batch_cannot_be_fetched(spark: SparkSession, batches: Batches) -> None:
    frame = tasks.decode(spark, batches.handle, [[BatchDescriptor(1, "ingest/1.batch")]], decoder(RawFormat()))
    with pytest.raises(PythonException, match=r"ObjectNotFound"):
        frame.collect()


def test_should_find_the_batches_that_cannot_be_read(spark: SparkSession, batches: Batches) -> None:
    broken, gone = batches.put(1, [b"a"]), BatchDescriptor(2, "ingest/2.batch")
    batches.store.put(broken.location, b"damaged")
    folder = BatchDescriptor(3, "ingest")
    groups = [Group([batches.put(0, [b"\xff"]), broken]), Group([gone, folder])]
    found = tasks.probe(spark, batches.handle, groups)
    assert sorted((f.sequence, f.location, f.kind) for f in found if f.sequence < 3) == [
        (1, broken.location, "data"),
        (2, gone.location, "missing"),
    ]
    assert all(isinstance(f, Failure) and f.error for f in found)
    check = CanParse(TextFormat(), has_place=False)
    found = tasks.probe(spark, batches.handle, [Group([batches.put(0, [b"fine", b"\xff"])])], check)
    assert [(f.sequence, f.index, f.kind) for f in found] == [(0, 1, "data")]
    assert tasks.count(spark, batches.handle, batches.put(0, [b"a", b"b"])) == 2


def test_should_discover_columns_on_executors(spark: SparkSession, batches: Batches) -> None:
    groups = [[batches.put(0, [b'{"a": 1}', b"bad"])], [batches.put(1, [b'{"a": 1.5, "b": "x"}'])]]
    found = tasks.discover(spark, batches.handle, groups, JsonFormat(), {})
    assert sorted(str(schema) for schema in found) == ["a: double\nb: string", "a: int64"]
