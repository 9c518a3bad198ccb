"""The data source `buffer` as Spark knows it: from options and a schema to a reader. See the package for its use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import to_arrow_schema

from buffer.errors import InvalidConfig, InvalidInput
from buffer_delta.spark.schemas import spark_schema
from buffer_delta.spark.source.columns import asked_columns, own_columns
from buffer_delta.spark.source.encode import FORMATS_OUT, encoder_for
from buffer_delta.spark.source.options import ReadOptions, read_options, write_options
from buffer_delta.spark.source.readers import BatchesReader, DeadLettersReader, SnapshotReader, StreamReader
from buffer_delta.spark.source.snapshot import BATCHES_SCHEMA, DEAD_LETTERS_SCHEMA
from buffer_delta.spark.source.writers import QueueWriter, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

NAME = "buffer"

_VIEWS = {"batches": BATCHES_SCHEMA, "dead_letters": DEAD_LETTERS_SCHEMA}
"""Views of a batch read that are not the entries."""


class BufferDataSource(DataSource):
    """`spark.read.format("buffer")`, `spark.readStream.format("buffer")`, `frame.write.format("buffer")`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        options = read_options(self.options)
        return spark_schema(_VIEWS[options.view] if options.view in _VIEWS else own_columns(options).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        target = _arrow(schema)
        _refuse(options, "start", "ack", "is for streams: a batch read takes from_sequence and to_sequence")
        if options.view != "batches":
            _refuse(options, "count_entries", "is for the view 'batches'")
        if options.view in _VIEWS:
            _check_view(options.view, schema)
            if options.view == "dead_letters":
                _refuse(
                    options, "from_sequence", "to_sequence", "is not for the view 'dead_letters': filter by location"
                )
            reader = BatchesReader if options.view == "batches" else DeadLettersReader
            return reader(options, target)
        return SnapshotReader(options, asked_columns(options, schema, target))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        options = read_options(self.options)
        if options.view != "rows":
            raise InvalidConfig(
                f"view={options.view!r} is for batch reads: use spark.read", key="view", value=options.view
            )
        _refuse(options, "from_sequence", "to_sequence", "is for batch reads: a stream takes start")
        _refuse(options, "count_entries", "is for the view 'batches' of a batch read")
        return StreamReader(options, asked_columns(options, schema, _arrow(schema)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise InvalidInput("a queue cannot be overwritten: write with mode('append')")
        options = write_options(self.options, FORMATS_OUT)
        return QueueWriter(options, encoder_for(options.format, _arrow(schema), options.framing, options.schema_id))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  (Spark's name)
        if overwrite:
            raise InvalidInput("a queue cannot be overwritten: write with outputMode('append')")
        options = write_options(self.options, FORMATS_OUT)
        if options.call is not None:
            raise InvalidConfig(
                "client_id and client_seq are for batch writes: a stream has its query's id and the ranges' numbers",
                key="client_id",
            )
        return StreamWriter(options, encoder_for(options.format, _arrow(schema), options.framing, options.schema_id))

    def __repr__(self) -> str:
        return f"BufferDataSource({self.options.get('path')!r})"  # the other options may hold secrets


def register(spark: SparkSession) -> None:
    """Make the data source known to a session. Any number of times."""
    try:
        spark.dataSource.register(BufferDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # where `pyspark_buffer` is, Spark has found it
            raise


def _arrow(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


def _check_view(view: str, asked: StructType) -> None:
    """A view's columns are as they are: any of them may be asked for, in any order."""
    columns = {field.name: field.dataType for field in spark_schema(_VIEWS[view])}
    for field in asked:
        if field.name not in columns:
            what = f"no column {field.name!r}; it has {', '.join(columns)}"
        elif field.dataType != columns[field.name]:
            type_ = columns[field.name].simpleString().upper()
            what = f"a column {field.name!r} of type {type_}, not {field.dataType.simpleString().upper()}: cast it"
        elif not field.nullable:
            what = f"a column {field.name!r} that may be null: leave NOT NULL out"
        else:
            continue
        raise InvalidConfig(f"the view {view!r} has {what}", key="schema", value=field.name)


def _refuse(options: ReadOptions, *keys_and_why: str) -> None:
    *keys, why = keys_and_why
    defaults = {"ack": True, "count_entries": False}
    for key in keys:
        if getattr(options, key) != defaults.get(key):
            raise InvalidConfig(f"the option {key!r} {why}", key=key, value=getattr(options, key))
