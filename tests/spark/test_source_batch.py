"""Batch reads of the data source `buffer` through Spark: rows, views, ranges, schemas, and that nobody is disturbed."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import pyspark_buffer
from buffer.clock import SystemClock
from buffer.config import ConsumerConfig, GcConfig
from buffer.consume.consumer import Consumer
from buffer.gc.collector import Collector
from buffer.inspect.status import read_manifest
from buffer.store.open import open_store
from buffer.testing.clock import ManualClock
from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from buffer_delta.spark.source import BufferDataSource, register
from tests.fault_proxy import FaultProxy, Request
from tests.servers import S3Server
from tests.spark.queues import assert_exactly_once, numbered, produce


def read(spark: SparkSession, store: Path | str, **options: Any) -> DataFrame:
    return spark.read.format("buffer").options(**options).load(str(store))


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "queue"


def test_should_be_known_to_spark_however_often_it_is_registered(spark: SparkSession, store: Path) -> None:
    assert pyspark_buffer.DefaultSource is BufferDataSource  # Spark imports modules of such names by itself
    for _ in range(2):
        register(spark)
    produce(store, [[b"x"]])
    assert read(spark, store).count() == 1


def test_should_read_what_is_in_the_queue_and_write_nothing(spark: SparkSession, store: Path) -> None:
    produce(store, [[b"one", b"two"], [b"", b"\xff\x00"]])
    before = files(store)
    frame = read(spark, store)
    rows = frame.orderBy("_sequence", "_index").collect()
    assert [bytes(row.value) for row in rows] == [b"one", b"two", b"", b"\xff\x00"]
    assert [(row._sequence, row._index) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {bytes(row._entry_metadata) for row in rows} == {b"made by a test"}
    age = datetime.datetime.now() - rows[0]._ingested_at
    assert abs(age) < datetime.timedelta(days=2)
    assert all(field.nullable for field in frame.schema)
    assert files(store) == before


def test_should_read_json_into_typed_columns_and_count(spark: SparkSession, store: Path) -> None:
    produce(store, numbered(3))
    frame = read(spark, store, format="json", schema="id BIGINT", columns="none")
    assert frame.columns == ["id", "_rescued_data"]
    assert sorted(row.id for row in frame.collect()) == list(range(30))
    assert frame.count() == 30
    assert frame.where("id >= 28").count() == 2


def test_should_have_exactly_the_columns_of_a_schema_that_is_given(spark: SparkSession, store: Path) -> None:
    produce(store, [[b'{"id": 1, "tags": {"a": [1, null]}, "at": "2026-01-02T03:04:05Z"}', b'{"id": 2}', b"no"]])
    frame = (
        spark.read.format("buffer")
        .option("format", "json")
        .schema("_index INT, tags MAP<STRING, ARRAY<INT>>, id BIGINT, at TIMESTAMP")
        .load(str(store))
    )
    assert frame.columns == ["_index", "tags", "id", "at"]
    rows = frame.orderBy("_index").collect()
    assert [(row._index, row.id, row.tags) for row in rows] == [(0, 1, {"a": [1, None]}), (1, 2, None), (2, None, None)]
    assert rows[0].at is not None


def test_should_check_nullability_itself(spark: SparkSession, store: Path) -> None:
    produce(store, [[b'{"id": 1}', b'{"x": 2}', b'{"id": null}']])
    required = StructType([StructField("id", LongType(), nullable=False)])
    reader = spark.read.format("buffer").option("format", "json").schema(required)
    rows = reader.option("mode", "dropmalformed").load(str(store)).collect()
    assert [row.id for row in rows] == [1]
    with pytest.raises(Exception, match="NOT NULL, but in mode 'permissive'"):
        reader.option("mode", "permissive").load(str(store)).collect()


def test_should_treat_bad_entries_as_the_mode_says(spark: SparkSession, store: Path) -> None:
    produce(store, [[b"good", b"\xff", b"too"]])
    permissive = read(spark, store, format="text").orderBy("_index").collect()
    assert [(row.value, row._corrupt_record and bytes(row._corrupt_record)) for row in permissive] == [
        ("good", None),
        (None, b"\xff"),
        ("too", None),
    ]
    dropped = read(spark, store, format="text", mode="DROPMALFORMED").orderBy("_index").collect()
    assert [(row.value, row._index) for row in dropped] == [("good", 0), ("too", 2)]
    with pytest.raises(PythonException, match=r"entry 1 of batch 0 is bad .* mode is 'failfast'"):
        read(spark, store, format="text", mode="failfast").collect()


def test_should_show_one_row_for_each_batch_without_fetching_any(spark: SparkSession, store: Path) -> None:
    produce(store, [[b"a", b"b"], [b"c"], [b"d", b"e", b"f"]])
    manifest = read_manifest(open_store(str(store)), "ingest/manifest")
    locations = [entry.location for entry in manifest]
    (store / locations[1]).write_bytes(b"not a batch")
    (store / locations[0]).unlink()
    size = (store / locations[2]).stat().st_size
    with (store / locations[2]).open("r+b") as file:
        file.write(b"damaged")
    frame = read(spark, store, view="batches", count_entries="true")
    rows = frame.orderBy("sequence").collect()
    assert [(row.sequence, row.location, row.bytes) for row in rows] == [
        *((0, locations[0], None), (1, locations[1], 11), (2, locations[2], size))
    ]
    assert [row.entries for row in rows] == [None, None, 3]  # the footer alone tells: the rest may be damaged
    without = read(spark, store, view="batches").where("sequence = 2").first()
    assert without is not None
    assert without.entries is None
    assert rows[0].first_ingested_at == rows[0].last_ingested_at == rows[0].metadata[0].ingested_at
    assert [(call.start_index, bytes(call.payload)) for call in rows[1].metadata] == [(0, b"made by a test")]
    assert frame.select("sequence").where("sequence = 1").count() == 1


def test_should_read_a_range_and_name_what_is_gone(spark: SparkSession, store: Path) -> None:
    produce(store, numbered(6, entries=1))
    Consumer.new(ConsumerConfig(store=str(store), gc_enabled=False), 1).close()
    sequences = [row._sequence for row in read(spark, store, from_sequence=3, to_sequence=4).collect()]
    assert sorted(sequences) == [3, 4]
    assert read(spark, store, from_sequence=6).collect() == []
    assert read(spark, store, to_sequence=1).collect() == []
    with pytest.raises(Exception, match="from_sequence=1, but the queue 'ingest/manifest' starts at 2"):
        read(spark, store, from_sequence=1).collect()


def test_should_tell_an_empty_queue_from_none(spark: SparkSession, store: Path) -> None:
    with pytest.raises(Exception, match="there is no queue yet"):
        read(spark, store).collect()
    produce(store, [[b"x"]])
    Consumer.new(ConsumerConfig(store=str(store), gc_enabled=False), 0).close()
    assert read(spark, store).collect() == []
    assert read(spark, store, view="batches").collect() == []


def test_should_write_nothing_and_disturb_no_loader(spark: SparkSession, s3_server: S3Server, tmp_path: Path) -> None:
    address = s3_server.new_address()
    produce(address.url, numbered(4), store_options=address.options)
    loads = LoaderConfig(
        store=address.url,
        store_options=address.options,
        table=str(tmp_path / "table"),
        format={"type": "json", "schema": "id BIGINT"},
        max_batches_per_commit=1,
        gc_enabled=False,
    )
    opened, requests = address.open(), list[Request]()
    with Loader(spark, loads) as loader, FaultProxy(s3_server.endpoint, watch=requests.append) as proxy:
        assert loader.run_once() is not None
        before = {info.location: info.version for info in opened.list("")}
        given = {f"store.{key}": value for key, value in address.options.items() if isinstance(value, str)}
        given |= {"store.endpoint": proxy.endpoint, "store.client_options.allow_http": "true"}
        assert read(spark, address.url, **given).count() == 30
        batches = read(spark, address.url, **given, view="batches", count_entries="true")
        assert batches.selectExpr("sum(entries) AS n").collect()[0].n == 30
        assert read(spark, address.url, **given, view="dead_letters").count() == 0
        assert len(requests) > 6
        assert {request.method for request in requests} == {"GET"}
        assert {info.location: info.version for info in opened.list("")} == before
        while loader.run_once() is not None:
            continue
    assert_exactly_once(spark, tmp_path / "table", 40)
    assert read_manifest(opened, "ingest/manifest").epoch == 1


def test_should_say_what_happened_to_a_batch_that_was_collected_under_it(spark: SparkSession, store: Path) -> None:
    produce(store, [[b"x"], [b"y"]])
    frame = read(spark, store)
    assert len(frame.collect()) == 2
    later = ManualClock(SystemClock().now_ms() + 24 * 3600 * 1000)
    collector = Collector(GcConfig(store=str(store)), clock=later)
    with Consumer.new(ConsumerConfig(store=str(store), gc_enabled=False), 0):
        collector.collect_once()
        produce(store, [[b"z"]])
        assert len(collector.collect_once().deleted) == 1
    with pytest.raises(PythonException, match="It was in the queue when this read was planned"):
        frame.collect()


def test_should_read_few_batches_for_a_few_rows(spark: SparkSession, store: Path) -> None:
    produce(store, [[b"x" * 1000] * 100 for _ in range(60)])
    entries = list(read_manifest(open_store(str(store)), "ingest/manifest"))
    for entry in entries[12:]:
        (store / entry.location).write_bytes(b"damaged: reading it would fail")
    assert len(read(spark, store, partition_bytes=1_000_000).limit(10).collect()) == 10


def test_should_be_a_view_in_sql(spark: SparkSession, store: Path) -> None:
    produce(store, numbered(2))
    make_view = (
        "CREATE OR REPLACE TEMPORARY VIEW queue_in_sql USING buffer "
        f"OPTIONS (path '{store}', format 'json', schema 'id BIGINT')"
    )
    spark.sql(make_view)
    assert spark.sql("SELECT sum(id) AS s FROM queue_in_sql").first().s == sum(range(20))  # type: ignore[union-attr]
    assert spark.read.table("queue_in_sql").count() == 20
    produce(store, numbered(1, start=20))
    assert spark.read.table("queue_in_sql").count() == 20  # a DataFrame or a view keeps what it saw at first
    spark.sql(make_view)
    assert spark.read.table("queue_in_sql").count() == 30


def test_should_show_no_secret_in_plans_or_errors(
    spark: SparkSession, s3_server: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    address = s3_server.new_address()
    produce(address.url, [[b"x"]], store_options=address.options)
    options = {
        "store.endpoint": address.options["endpoint"],
        "store.region": address.options["region"],
        "store.access_key_id": address.options["access_key_id"],
        "store.secret_access_key": address.options["secret_access_key"],
        "store.client_options.allow_http": "true",
    }
    frame = spark.read.format("buffer").options(**options).load(address.url)
    assert frame.count() == 1
    frame.explain("extended")
    frame.createOrReplaceTempView("secretive")
    spark.sql("DESCRIBE EXTENDED secretive").show(100, truncate=False)
    secret = address.options["secret_access_key"]
    assert secret not in capsys.readouterr().out + frame._jdf.queryExecution().toString()
    with pytest.raises(
        Exception, match=r"looks like a secret.*'store\.secret\.account_key', which Spark hides"
    ) as caught:
        spark.read.format("buffer").option("store.account_key", "hush-hush").load("az://container").collect()
    assert "hush-hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"formt": "json"}, "has no option 'formt' .*did you mean 'format'"),
        ({"format": "jsn"}, "did you mean 'json'"),
        ({"format": "json"}, "the format 'json' needs a schema here"),
        ({"format": "json", "schema": "id BIGINT", "mode": "lenient"}, "mode='lenient' is not allowed"),
        ({"from_sequence": "-1"}, "from_sequence='-1' is not allowed"),
        ({"view": "files"}, "view='files' is not allowed"),
        ({"start": "earliest"}, "'start' is for streams"),
        ({"columns._seq": "s"}, "no column '_seq' to rename"),
        ({"manifest_path": "/x/"}, "manifest_path='/x/' is not allowed"),
    ],
)
def test_should_name_a_wrong_option(spark: SparkSession, store: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        read(spark, store, **options).collect()


def test_should_refuse_memory_and_no_path(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="memory belongs to one process"):
        spark.read.format("buffer").load("memory://q").collect()
    with pytest.raises(Exception, match="needs a path"):
        spark.read.format("buffer").load().collect()


@pytest.mark.soak
def test_should_read_one_large_batch(spark: SparkSession, store: Path) -> None:
    mebibytes = 512
    produce(store, [[bytes([n % 256]) * (1 << 20) for n in range(mebibytes)]])
    found = read(spark, store).selectExpr("count(*) AS n", "sum(length(value)) AS bytes").first()
    assert found is not None
    assert (found.n, found.bytes) == (mebibytes, mebibytes << 20)
