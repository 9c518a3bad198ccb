"""Options of the data source that would do nothing, or could not work. Needs no session."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from buffer.errors import InvalidConfig, InvalidInput
from buffer.store.open import open_store
from buffer_delta.spark.source import BufferDataSource
from buffer_delta.spark.source.columns import asked_columns
from buffer_delta.spark.source.encode import encoder_for
from buffer_delta.spark.source.options import read_options


@pytest.mark.parametrize("view", ["rows", "batches", "dead_letters"])
@pytest.mark.parametrize(
    ("option", "value", "taken_by"),
    [
        ("start", "5", ()),
        ("ack", "false", ()),
        ("from_sequence", "5", ("rows", "batches")),
        ("to_sequence", "5", ("rows", "batches")),
        ("count_entries", "true", ("batches",)),
    ],
)
def test_should_refuse_an_option_that_a_view_does_not_heed(
    view: str, option: str, value: str, taken_by: tuple[str, ...]
) -> None:
    """Rows that were not asked for would look like those that were."""
    source = BufferDataSource({"path": "/queue", "view": view, option: value})
    if view in taken_by:
        source.reader(source.schema())
        return
    with pytest.raises(InvalidConfig, match=option):
        source.reader(source.schema())


def test_should_refuse_to_count_entries_in_a_stream() -> None:
    source = BufferDataSource({"path": "/queue", "count_entries": "true"})
    with pytest.raises(InvalidConfig, match="count_entries"):
        source.streamReader(source.schema())


def test_should_hand_nested_store_options_over_as_the_store_wants_them() -> None:
    given = {
        "path": "s3://bucket/queue",
        "store.region": "eu-1",
        "store.retry_config.max_retries": "3",
        "store.client_options.pool_max_idle_per_host": "5",
        "store.client_options.allow_http": "TRUE",
    }
    queue = read_options(given).queue
    assert queue.store_options["retry_config"] == {"max_retries": 3}
    assert queue.store_options["client_options"] == {"pool_max_idle_per_host": "5", "allow_http": True}
    open_store(str(queue.store), **queue.store_options)


@pytest.mark.parametrize("form", ["raw", "json", "avro", "arrow"])
def test_should_refuse_two_columns_of_one_name_before_any_task_runs(form: str) -> None:
    with pytest.raises(InvalidInput, match="two columns are named 'value'"):
        encoder_for(form, pa.schema([("value", pa.string()), ("value", pa.string())]))


@pytest.mark.parametrize("form", ["json", "csv"])
@pytest.mark.parametrize("option", [{}, {"schema": "none"}])
def test_should_take_the_columns_of_the_data_from_a_schema_that_is_given(form: str, option: dict[str, str]) -> None:
    asked = pa.schema([("id", pa.int64()), ("rest", pa.string()), ("_index", pa.int32())])
    options = read_options({"path": "/queue", "format": form, "rescued_data": "rest", **option})
    columns = asked_columns(options, asked, asked)
    assert columns.decoder.format.schema.names == ["id", "rest"]


def test_should_need_a_schema_for_csv_that_no_one_has_given() -> None:
    with pytest.raises(InvalidConfig, match="the format 'csv' needs a schema"):
        BufferDataSource({"path": "/queue", "format": "csv"}).schema()


def test_should_name_all_columns_that_a_schema_may_ask_for() -> None:
    asked = pa.schema([("value", pa.binary()), ("_metadata", pa.binary())])
    with pytest.raises(InvalidConfig, match=r"has: value, _sequence, _index, _ingested_at, _entry_metadata$"):
        asked_columns(read_options({"path": "/queue"}), asked, asked)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (StructField("sequenc", LongType()), "no column 'sequenc'; it has sequence, location,"),
        (StructField("metadata", StringType()), "a column 'metadata' of type ARRAY<.*>, not STRING: cast it"),
        (StructField("sequence", IntegerType()), "'sequence' of type BIGINT, not INT"),
        (StructField("sequence", LongType(), nullable=False), "'sequence' that may be null: leave NOT NULL out"),
    ],
)
def test_should_say_what_is_wrong_with_a_column_asked_of_a_view(column: StructField, message: str) -> None:
    source = BufferDataSource({"path": "/queue", "view": "batches"})
    some = StructType([source.schema()["location"], source.schema()["metadata"]])
    source.reader(some)
    with pytest.raises(InvalidConfig, match=message):
        source.reader(StructType([source.schema()["location"], column]))


@pytest.mark.parametrize("option", ["from_sequence", "start", "max_batches_per_trigger"])
def test_should_refuse_a_number_of_thousands_of_digits(option: str) -> None:
    with pytest.raises(InvalidConfig, match=option):
        read_options({"path": "/queue", option: "9" * 5000})
