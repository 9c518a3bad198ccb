"""The shells that Spark calls: a batch read and a stream. What they do is in `snapshot`, `stream` and `columns`.

Spark makes several of each, in several processes: one that plans, one that is asked for offsets, one in every task. So
nothing happens when one is made, or stopped; a store is opened by the process that reads from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from buffer.clock import SystemClock
from buffer.consume.fetch import FetchHandle
from buffer.inspect.status import read_manifest
from buffer.store.base import Store
from buffer.store.open import open_store
from buffer_delta.decode.fetching import Group
from buffer_delta.decode.sizes import BatchSizes
from buffer_delta.spark.source.columns import Columns
from buffer_delta.spark.source.offsets import Offset
from buffer_delta.spark.source.options import ReadOptions
from buffer_delta.spark.source.snapshot import (
    BATCH_ROWS_PER_TASK,
    DEAD_LETTERS_PER_TASK,
    batch_rows,
    batches_in,
    dead_letter_row,
    dead_letters_in,
    row_tasks,
    with_entries,
)
from buffer_delta.spark.source.stream import QueueStream


class RowsPartition(InputPartition):
    """The batches that a task fetches."""

    def __init__(self, group: Group) -> None:
        super().__init__(None)
        self.group = group


class TablePartition(InputPartition):
    """Rows that the planner has made already."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        super().__init__(None)
        self.rows = rows


class SnapshotReader(DataSourceReader):
    """A batch read of the entries. Claims nothing, writes nothing."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        store = opened(self._options)
        batches = batches_in(read_manifest(store, self._options.queue.manifest_path), self._options)
        return [RowsPartition(Group(task)) for task in row_tasks(store, batches, self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(self._options, self._columns, partition)


class BatchesReader(DataSourceReader):
    """A batch read of the view `batches`: what the queue says about them, and their sizes."""

    def __init__(self, options: ReadOptions, target: pa.Schema) -> None:
        self._options = options
        self._target = target

    def partitions(self) -> list[InputPartition]:
        store = opened(self._options)
        batches = batches_in(read_manifest(store, self._options.queue.manifest_path), self._options)
        sizes = BatchSizes(store, self._options.queue.data_path_prefix).look_up(batches)
        starts = range(0, len(batches), BATCH_ROWS_PER_TASK)
        return [TablePartition(batch_rows(batches[at : at + BATCH_ROWS_PER_TASK], sizes)) for at in starts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TablePartition):  # Spark asks for one partition even where there are none
            rows = partition.rows
            if self._options.count_entries and "entries" in self._target.names:
                rows = with_entries(opened(self._options), rows)
            yield rows.select(self._target.names).cast(self._target)


class LocationsPartition(InputPartition):
    """Objects that a task reads, one row each."""

    def __init__(self, locations: list[str]) -> None:
        super().__init__(None)
        self.locations = locations


class DeadLettersReader(DataSourceReader):
    """A batch read of the view `dead_letters`."""

    def __init__(self, options: ReadOptions, target: pa.Schema) -> None:
        self._options = options
        self._target = target

    def partitions(self) -> list[InputPartition]:
        kept = dead_letters_in(opened(self._options), self._options.queue.data_path_prefix)
        starts = range(0, len(kept), DEAD_LETTERS_PER_TASK)
        return [LocationsPartition(kept[at : at + DEAD_LETTERS_PER_TASK]) for at in starts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, LocationsPartition):  # Spark asks for one partition even where there are none
            store = opened(self._options)
            for location in partition.locations:
                yield dead_letter_row(store, location).select(self._target.names).cast(self._target)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. See `stream` for its rules."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._made: QueueStream | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        return self._stream().initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  (Spark's name)
        return ReadMaxBytes(self._options.max_bytes_per_trigger)  # a token: `latestOffset` applies both limits

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        limited = not isinstance(limit, ReadAllAvailable)
        return self._stream().latest(Offset.from_json(start), limited=limited).to_json()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's name)
        return self._stream().latest_seen().to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  (Spark's name)
        self._stream().stop_at_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        tasks = self._stream().planned(Offset.from_json(start), Offset.from_json(end))
        return [RowsPartition(Group(task)) for task in tasks]

    def commit(self, end: dict[str, Any]) -> None:
        self._stream().done(Offset.from_json(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(self._options, self._columns, partition)

    def _stream(self) -> QueueStream:
        if self._made is None:
            self._made = QueueStream(opened(self._options), self._options, SystemClock())
        return self._made


def opened(options: ReadOptions) -> Store:
    return open_store(options.queue.store, **options.queue.store_options)


def _rows(options: ReadOptions, columns: Columns, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, RowsPartition):  # Spark asks for one partition even where there are none
        queue = options.queue
        handle = FetchHandle(
            opened(options), queue.max_batch_bytes, queue.fetch_attempts, SystemClock(), queue.prefixes()
        )
        yield from columns.rows(handle, partition.group)
