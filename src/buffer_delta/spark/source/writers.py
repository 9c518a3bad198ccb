"""The shells that Spark calls for a write: tasks upload, the driver appends. What they do is in `encode` and `produce`.

A batch writer travels from the planner to the tasks, and to the process that commits. A stream's writer is made anew in
the process that commits a range; the tasks tell it the query's id, which is the checkpoint's and outlives restarts.

**A range of a stream goes in once**: it is one call of the client `spark/{query id}`, numbered by the range. Spark
replays a range with the same number and the same rows.
- The process dies before the append, or after it: the replay appends, or finds the mark and appends nothing.
- An older process of the query wakes up and commits the same range: one of the two finds the other's mark.
- The append landed a day late and a batch was collected by then: the mark is not taken for the rows. The replay looks
  at the batches (`buffer.produce.replays`), and fails with BatchCollected while that entry waits in the queue. Its
  readers report it when they come to it, and go past it as they are told to; then the query goes on behind it.
- A mark beyond the range: this checkpoint is older than what is in the queue. That is an error, for nobody can tell
  which of its rows are there.
- A new checkpoint has a new id, and starts at 0 again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from buffer.clock import SystemClock
from buffer.errors import IdempotencyConflict
from buffer.produce.adopt import CallId, append_uploads
from buffer.produce.upload import Upload
from buffer.store.open import open_store
from buffer_delta.spark.source.encode import Encoder
from buffer_delta.spark.source.options import WriteOptions
from buffer_delta.spark.source.produce import append_once, upload_rows

log = logging.getLogger(__name__)

QUERY_ID = "sql.streaming.queryId"
"""The local property under which Spark tells the tasks of a streaming query its id."""


@dataclass
class Uploaded(WriterCommitMessage):
    """What a task has uploaded."""

    uploads: tuple[Upload, ...]
    query_id: str | None = None
    """Of a stream's task."""


class QueueWriter(DataSourceArrowWriter):
    """A batch write: everything in one append, after all tasks succeeded; or nothing."""

    def __init__(self, options: WriteOptions, encoder: Encoder) -> None:
        self._options = options
        self._encoder = encoder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Uploaded:
        return Uploaded(_uploaded(iterator, self._options, self._encoder))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        uploads, options = uploads_in(messages), self._options
        if options.call is not None or not options.is_marked or not uploads:
            append(uploads, options, options.call)
            return
        store = open_store(options.queue.store, **options.queue.store_options)
        append_once(uploads, store=store, clock=SystemClock(), config=options.queue)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to undo: no entry names what was uploaded, and the collector removes it."""


class StreamWriter(DataSourceStreamArrowWriter):
    """A streaming write: each range in one append, once."""

    def __init__(self, options: WriteOptions, encoder: Encoder) -> None:
        self._options = options
        self._encoder = encoder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Uploaded:
        context = TaskContext.get()
        query_id = context.getLocalProperty(QUERY_ID) if context is not None else None
        assert query_id, "Spark tells the tasks of a stream the id of their query"
        return Uploaded(_uploaded(iterator, self._options, self._encoder), query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        uploads = uploads_in(messages)
        ids = {message.query_id for message in messages if isinstance(message, Uploaded)}
        if uploads:
            assert len(ids) == 1, "the tasks of a range belong to one query"
            append(uploads, self._options, CallId(f"spark/{ids.pop()}", batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        """Nothing to undo: no entry names what was uploaded, and the collector removes it."""


def append(uploads: Sequence[Upload], options: WriteOptions, call: CallId | None) -> None:
    """Append all uploads in one write, if there are any; with a `call`, unless that very call is in the queue already.

    Raises what `append_uploads` raises: IdempotencyConflict only where a later call of the client is there. It has
    looked at the call's batches before it says that the call is there.
    """
    if not uploads:
        return
    queue = options.queue
    store = open_store(queue.store, **queue.store_options)
    try:
        append_uploads(uploads, store=store, clock=SystemClock(), config=queue, call=call)
    except IdempotencyConflict as conflict:
        if call is None or conflict.durable_seq != call.client_seq:
            raise
        log.info("%s is in the queue already: nothing was appended", call)


def _uploaded(rows: Iterator[pa.RecordBatch], options: WriteOptions, encoder: Encoder) -> tuple[Upload, ...]:
    queue = options.queue
    store = open_store(queue.store, **queue.store_options)
    return tuple(upload_rows(rows, encoder, store=store, clock=SystemClock(), config=queue))


def uploads_in(messages: list[WriterCommitMessage | None]) -> list[Upload]:
    """In the order of the tasks. Spark gives no message only for a task that failed, and then it does not commit."""
    uploads: list[Upload] = []
    for message in messages:
        assert isinstance(message, Uploaded), "a commit has the messages of all tasks"
        uploads += message.uploads
    return uploads
