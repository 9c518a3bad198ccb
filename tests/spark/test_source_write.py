"""Batch writes of the data source `buffer`: rows to entries, tasks that upload, one append."""

from __future__ import annotations

import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType, VariantType

from buffer.clients import ClientLedger
from buffer.clock import Clock, SystemClock
from buffer.config import ConsumerConfig, ProducerConfig
from buffer.consume.consumer import Consumer
from buffer.consume.fetch import FetchHandle
from buffer.errors import IdempotencyConflict, InvalidInput
from buffer.inspect.status import read_manifest
from buffer.model import Metadata
from buffer.produce.adopt import append_uploads
from buffer.store.base import Outcome, Store, Unknown, Version, Won
from buffer.store.open import open_store
from buffer.testing.clock import ManualClock
from buffer_delta.formats import avro_schema
from buffer_delta.formats.registry import resolve_format
from buffer_delta.spark.source.encode import encoder_for
from buffer_delta.spark.source.options import read_options, write_options
from buffer_delta.spark.source.produce import FORGET_AFTER_S, append_once, upload_rows
from buffer_delta.spark.source.writers import StreamWriter, Uploaded
from tests.consume.consumer_support import manifest_of
from tests.spark.queues import STARVED, produce


def rows(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


# Rows to entries


def test_should_write_values_as_they_are() -> None:
    batch = rows(value=pa.array(["ä", "", "x"]))
    parts = list(encoder_for("raw", batch.schema).parts(batch))
    assert [(entries.to_pylist(), metadata) for entries, metadata in parts] == [(["ä".encode(), b"", b"x"], b"")]


def test_should_cut_where_the_metadata_changes() -> None:
    batch = rows(value=pa.array([b"a", b"b", b"c", b"d"]), metadata=pa.array([None, b"", b"m", b"n"]))
    parts = list(encoder_for("raw", batch.schema).parts(batch))
    assert [(entries.to_pylist(), metadata) for entries, metadata in parts] == [
        ([b"a", b"b"], b""),
        ([b"c"], b"m"),
        ([b"d"], b"n"),
    ]


@pytest.mark.parametrize("form", ["json", "avro", "arrow"])
def test_should_write_what_the_formats_read_back(form: str) -> None:
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC)
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("ratio", pa.float32()),
            ("price", pa.decimal128(20, 4)),
            ("raw", pa.binary()),
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("tags", pa.list_(pa.string())),
            ("counts", pa.map_(pa.string(), pa.int64())),
            ("inner", pa.struct([("a", pa.int64()), ("b", pa.bool_())])),
        ]
    )
    values = [
        {
            "id": 2**62 + 1,
            "ratio": 0.1,
            "price": decimal.Decimal("1234567890123456.7890"),
            "raw": b"\xff\x00",
            "at": at,
            "day": at.date(),
            "tags": ["x", None],
            "counts": [("k", 1)],
            "inner": {"a": 1, "b": None},
        },
        dict.fromkeys(schema.names) | {"id": 2},
    ]
    batch = pa.RecordBatch.from_pylist(values, schema)
    ((entries, _),) = encoder_for(form, schema).parts(batch)
    given = {"avro_schema": avro_schema(schema)} if form == "avro" else {}
    parsed = resolve_format({"type": form, "schema": schema, **given}).parse(entries)
    assert parsed.bad == []
    assert parsed.rows.select(schema.names).to_pylist() == batch.to_pylist()


@pytest.mark.parametrize(
    ("form", "batch", "message"),
    [
        ("raw", rows(id=pa.array([1])), "takes the column 'value'"),
        ("raw", rows(value=pa.array([1])), "'value' is int64; it must be binary or string"),
        ("raw", rows(value=pa.array([b"x"]), metadata=pa.array([1])), "'metadata' is int64"),
        ("raw", rows(value=pa.array([b"x", None])), "'value' has 1 nulls"),
        ("json", rows(metadata=pa.array([b"x"])), "needs a column besides 'metadata'"),
        ("json", rows(span=pa.array([1], pa.duration("us"))), r"'span' has the type duration\[us\]"),
        (
            "json",
            rows(at=pa.array([2**60], pa.timestamp("us", "UTC"))),
            "'at' has a date or time that cannot be written",
        ),
        ("json", rows(day=pa.array([2**30], pa.date32())), "'day' has a date or time that cannot be written"),
        ("avro", rows(span=pa.array([1], pa.duration("us"))), r"'span' has the type duration\[us\]"),
        ("avro", rows(**{"a-b": pa.array([1])}), "'a-b' cannot be a field of Avro"),
    ],
)
def test_should_name_what_cannot_be_written(form: str, batch: pa.RecordBatch, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        list(encoder_for(form, batch.schema).parts(batch))


@pytest.mark.parametrize("form", ["json", "avro", "arrow"])
@pytest.mark.parametrize("nested", [False, True])
def test_should_refuse_text_that_is_none_instead_of_spoiling_the_rows_beside_it(form: str, nested: bool) -> None:
    """A string of Spark's may hold any bytes, and an entry in the format `arrow` holds many rows."""
    good = pa.array(["a", "b"])
    text = pa.StringArray.from_buffers(2, good.buffers()[1], pa.py_buffer(b"\xffb"))
    column = pa.StructArray.from_arrays([text], ["inner"]) if nested else text
    batch = rows(id=pa.array([1, 2]), s=column)
    with pytest.raises(InvalidInput, match=r"'s' has text that is not UTF-8 .* make_valid_utf8\(s\)"):
        list(encoder_for(form, batch.schema).parts(batch))


@pytest.mark.parametrize("form", ["json", "avro", "arrow"])
def test_should_not_write_a_variant_as_the_bytes_it_is_made_of(form: str) -> None:
    schema = to_arrow_schema(StructType([StructField("id", LongType()), StructField("v", VariantType())]))
    with pytest.raises(InvalidInput, match=r"'v' is a VARIANT, which no format holds: select to_json\(v\)"):
        encoder_for(form, schema)


# Uploads


def entries_of(store: Store) -> list[list[bytes]]:
    handle = FetchHandle(store)
    return [handle.fetch(descriptor).entries for descriptor in manifest_of(store)]


def test_should_upload_batches_of_a_size_and_keep_the_order(memory: Store) -> None:
    config = ProducerConfig(store=memory, flush_size_bytes=50)
    batch = rows(value=pa.array([b"%010d" % n for n in range(7)] + [b"y" * 70]), metadata=pa.array([b"m"] * 7 + [b"n"]))
    uploads = upload_rows(
        [batch.slice(0, 2), batch.slice(2)],
        encoder_for("raw", batch.schema),
        store=memory,
        clock=SystemClock(),
        config=config,
    )
    append_uploads(uploads, store=memory, clock=SystemClock(), config=config)
    found = entries_of(memory)
    assert [entry for entries in found for entry in entries] == batch.column(0).to_pylist()
    assert [len(entries) for entries in found] == [2, 2, 2, 1, 1]
    metadata = [entry.metadata for entry in manifest_of(memory)]
    assert [[(item.start_index, item.payload) for item in items] for items in metadata] == [[(0, b"m")]] * 4 + [
        [(0, b"n")]
    ]
    assert sum(upload.entry_count for upload in uploads) == 8


def test_should_share_an_item_between_neighbours_and_upload_nothing_for_no_rows(memory: Store) -> None:
    config = ProducerConfig(store=memory)
    batch = rows(value=pa.array([b"a", b"b", b"c"]), metadata=pa.array([b"m", b"m", b"n"]))
    encoder, clock = encoder_for("raw", batch.schema), SystemClock()
    (upload,) = upload_rows(
        [batch.slice(0, 1), batch.slice(1), batch.slice(3)], encoder, store=memory, clock=clock, config=config
    )
    assert upload.metadata.count == 2
    assert upload_rows([batch.slice(3)], encoder, store=memory, clock=clock, config=config) == []


# Through Spark


def written(store: Path) -> list[tuple[bytes, bytes]]:
    opened = open_store(str(store))
    handle, found = FetchHandle(opened), []
    for descriptor in read_manifest(opened, "ingest/manifest"):
        items: tuple[Metadata, ...] = descriptor.metadata
        for index, entry in enumerate(handle.fetch(descriptor).entries):
            payload = [item.payload for item in items if item.start_index <= index][-1]
            found.append((entry, payload))
    return found


def write(frame: DataFrame, store: Path, **options: str) -> None:
    frame.write.format("buffer").mode("append").options(**options).save(str(store))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "queue"


def test_should_append_all_tasks_in_one_write_in_their_order(spark: SparkSession, store: Path) -> None:
    frame = spark.range(0, 1000, 1, 4).selectExpr("CAST(id AS STRING) AS value", "'from spark' AS metadata")
    write(frame, store)
    assert written(store) == [(b"%d" % n, b"from spark") for n in range(1000)]
    manifest = read_manifest(open_store(str(store)), "ingest/manifest")
    assert (len(manifest), manifest.epoch) == (4, 0)
    write(frame.where("value = 'nothing'"), store)
    assert len(read_manifest(open_store(str(store)), "ingest/manifest")) == 4


@pytest.mark.parametrize(
    "options",
    [{"format": "json"}, {"format": "avro", "framing": "soe"}, {"format": "avro", "framing": "confluent"}],
    ids=["json", "avro, soe", "avro, confluent"],
)
def test_should_read_back_what_was_written(spark: SparkSession, store: Path, options: dict[str, str]) -> None:
    frame = spark.range(100).selectExpr("id", "CAST(id AS DECIMAL(10, 2)) AS price", "array(id, id + 1) AS pair")
    has_id = {"schema_id": "17"} if "confluent" in options.values() else {}
    write(frame, store, compression="zstd", **options, **has_id)
    text = avro_schema(frame.schema)
    columns = {"schema": "id BIGINT, price DECIMAL(10, 2), pair ARRAY<BIGINT>"}
    if options["format"] == "avro":
        columns = {"avro_schema": json.dumps({"17": json.loads(text)}) if has_id else text}
    back = spark.read.format("buffer").options(**options, **columns).load(str(store)).select("id", "price", "pair")
    assert back.exceptAll(frame).count() == frame.exceptAll(back).count() == 0


def test_should_append_nothing_when_a_task_fails(spark: SparkSession, store: Path) -> None:
    frame = spark.range(0, 100, 1, 4).selectExpr("IF(id = 99, raise_error('no'), CAST(id AS STRING)) AS value")
    with pytest.raises(Exception, match="no"):
        write(frame, store)
    assert not (store / "ingest" / "manifest").exists()


def test_should_refuse_to_overwrite_and_name_wrong_options(spark: SparkSession, store: Path) -> None:
    frame = spark.range(1).selectExpr("CAST(id AS STRING) AS value")
    with pytest.raises(Exception, match="cannot be overwritten"):
        frame.write.format("buffer").mode("overwrite").save(str(store))
    with pytest.raises(Exception, match="no option 'compresion' for a write; did you mean 'compression'"):
        write(frame, store, compresion="zstd")
    with pytest.raises(Exception, match="format='csv' is not allowed"):
        write(frame, store, format="csv")
    with pytest.raises(Exception, match="framing='confluent' needs schema_id"):
        write(frame, store, format="avro", framing="confluent")
    with pytest.raises(Exception, match="no option 'framing' for a write"):
        write(frame, store, format="json", framing="soe")
    with pytest.raises(Exception, match="takes the column 'value'"):
        write(spark.range(1), store)


# Once


def uploaded(store: Path, *values: bytes) -> Uploaded:
    """What a task of the query `q` would say."""
    opened, batch = open_store(str(store)), rows(value=pa.array(list(values)))
    uploads = upload_rows(
        [batch],
        encoder_for("raw", batch.schema),
        store=opened,
        clock=SystemClock(),
        config=ProducerConfig(store=str(store)),
    )
    return Uploaded(tuple(uploads), "q")


@pytest.fixture
def stream(store: Path) -> StreamWriter:
    schema = pa.schema([("value", pa.binary())])
    return StreamWriter(write_options({"path": str(store)}, ("raw",)), encoder_for("raw", schema))


@pytest.mark.parametrize("dequeued", [False, True])
def test_should_append_a_range_once_however_often_it_is_committed(
    store: Path, stream: StreamWriter, dequeued: bool
) -> None:
    stream.commit([uploaded(store, b"a"), uploaded(store, b"b")], 0)
    stream.commit([uploaded(store, b"c")], 1)
    if dequeued:
        Consumer.new(ConsumerConfig(store=str(store), gc_enabled=False), 2).close()
    stream.commit([uploaded(store, b"c")], 1)
    assert [entry for entry, _ in written(store)] == ([] if dequeued else [b"a", b"b", b"c"])
    assert read_manifest(open_store(str(store)), "ingest/manifest").next_sequence == 3
    with pytest.raises(IdempotencyConflict, match="is at client_seq 1"):
        stream.commit([uploaded(store, b"a")], 0)
    stream.commit([Uploaded((), "q")], 2)
    stream.commit([uploaded(store, b"d")], 3)
    assert written(store)[-1] == (b"d", b"")


class ReaderIsFaster:
    """A store on which the reply to the append is lost, after a reader has taken out what it brought."""

    def __init__(self, folder: Path, lost: int = 1) -> None:
        self._store = open_store(str(folder))
        self._folder = folder
        self._lost = lost

    def put_if_match(self, location: str, data: bytes, version: Version) -> Outcome:
        outcome = self._store.put_if_match(location, data, version)
        if location == "ingest/manifest" and self._lost and isinstance(outcome, Won):
            self._lost -= 1
            ends = read_manifest(self._store, location).next_sequence
            Consumer.new(ConsumerConfig(store=str(self._folder), gc_enabled=False), ends - 1).close()
            return Unknown(TimeoutError("no reply"))
        return outcome

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def once(folder: Path, store: Any = None, clock: Clock | None = None) -> None:
    config = ProducerConfig(store=str(folder), append_timeout_s=5)
    uploads = list(uploaded(folder, b"a", b"b").uploads)
    append_once(uploads, store=store or open_store(str(folder)), clock=clock or SystemClock(), config=config)


def test_should_append_a_batch_write_once_though_the_reply_is_lost_and_a_reader_was_faster(store: Path) -> None:
    once(store)
    once(store, ReaderIsFaster(store))
    once(store)
    assert read_manifest(open_store(str(store)), "ingest/manifest").next_sequence == 3 * len(
        uploaded(store, b"a", b"b").uploads
    )


def test_should_forget_the_marks_of_writes_that_are_long_over(store: Path) -> None:
    clock = ManualClock(start_ms=SystemClock().now_ms())
    ledger = ClientLedger(open_store(str(store)), "ingest/manifest", clock)

    def marks() -> list[str]:
        section = ledger.read()
        return sorted(section.marks) if section is not None else []

    for _ in range(3):
        once(store, ReaderIsFaster(store), clock)
    first = marks()
    assert len(first) == 3
    clock.advance(FORGET_AFTER_S - 60)
    once(store, ReaderIsFaster(store), clock)
    assert len(marks()) == 4
    clock.advance(120)
    once(store, ReaderIsFaster(store), clock)
    assert len(marks()) == 2
    assert not set(first) & set(marks())


def test_should_go_without_a_mark_where_a_reader_that_knows_none_has_lost_them(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    once(store)
    (ledger,) = store.rglob("*ledger*")
    ledger.unlink()
    once(store)
    assert "goes without a mark" in caplog.text
    assert len(written(store)) == 4


def test_should_run_a_numbered_job_once(spark: SparkSession, store: Path) -> None:
    frame = spark.range(3).selectExpr("CAST(id AS STRING) AS value")
    for number in ("20260131", "20260131", "20260201"):
        write(frame, store, client_id="nightly", client_seq=number)
    assert len(written(store)) == 6
    with pytest.raises(Exception, match="is at client_seq 20260201"):
        write(frame, store, client_id="nightly", client_seq="20260130")
    with pytest.raises(Exception, match="client_id and client_seq belong together"):
        write(frame, store, client_id="nightly")


@pytest.mark.thorough
def test_should_stream_from_queue_to_queue_and_replay_a_range_that_was_appended(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"

    def run() -> None:
        # Without acks: what was done is noted after the range, so the crash below would have come before its ack.
        options = {"max_batches_per_trigger": 2, "ack": "false"}
        frame = spark.readStream.format("buffer").options(**options).load(str(source))
        writer = frame.selectExpr("upper(CAST(value AS STRING)) AS value", "'spark' AS metadata").writeStream
        query = writer.format("buffer").option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        try:
            assert query.start(str(store)).awaitTermination(240)
        except StreamingQueryException as error:
            if STARVED not in str(error):
                raise
            run()

    produce(source, [[b"a", b"b"], [b"c"], [b"d"]])
    run()
    (checkpoint / "commits" / "1").unlink()  # the crash comes after the append, before Spark notes that it is done
    (checkpoint / "commits" / ".1.crc").unlink()
    produce(source, [[b"e"]])
    run()
    assert written(store) == [(value, b"spark") for value in (b"A", b"B", b"C", b"D", b"E")]


# Options


def test_should_hide_secrets_in_every_text() -> None:
    given = {"path": "s3://b/q", "store.secret_access_key": "hush", "store.secret.account_key": "hush"}
    for options in (read_options(given), write_options(given, ("raw",))):
        assert options.queue.store_options == {"secret_access_key": "hush", "account_key": "hush"}
        assert "hush" not in repr(options)
