"""Data files of a Delta table, written by Arrow. Executors call `write_files`; what it returns goes into a commit.

The rules:
- A file gets a new name, a UUID, and is never written again. Dying at any point leaves whole files that no commit
  names, or nothing: a store shows an object only when it is complete. VACUUM removes them, as it does Spark's own. On
  local files a hidden temporary one may be left too, which a listing by the store removes after a day.
- A row is checked before its file is written: what has a null where the table takes none raises NullRefused, and then
  the caller commits nothing.
- Values are not changed. Columns come as the table has them, or in a type that Arrow widens without loss; else
  SchemaMismatch. One exception is Delta's own: an empty string that a table is partitioned by becomes null.
- Memory is bounded: what is in hand, encoded or not, stays near `target_file_bytes`, however many partitions there
  are. Beyond that the largest file is closed early.

The files are what Spark's reader expects of Spark's writer: nested columns are named `list.element` and
`key_value.key/value`, decimals are stored as integers up to 18 digits, timestamps as microseconds in INT64, and every
column may be null in the file also where the table's may not. They say by which calendar their dates are (`_CALENDAR`).
"""

from __future__ import annotations

import errno
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq

from buffer.clock import Clock, SystemClock
from buffer.errors import InvalidInput, StorageError, StoreUnusable
from buffer.store import Store
from buffer_delta.delta.encodings import Dictionaries, statistics_columns
from buffer_delta.delta.file_rules import CODEC_SUFFIXES, CODECS, MIB
from buffer_delta.delta.file_rules import DataFile as DataFile
from buffer_delta.delta.file_rules import FileRules as FileRules
from buffer_delta.delta.fitting import fitted
from buffer_delta.delta.partitions import Values, as_uri, folder, split
from buffer_delta.delta.stats import FileStats

ROW_GROUP_BYTES = 64 * MIB
"""Of Arrow's memory; in the file it is a half to a tenth of that."""
ROW_GROUP_ROWS = 1_000_000
PAGE_BYTES = MIB
UPLOADS_MAX = 4  # small files of many partitions go up side by side
_CALENDAR = {"org.apache.spark.version": "3.1.0"}
"""To Spark: dates and times by the calendar of today, as every release since this one writes them. Of a file that does
not say so, a session that asks for the older calendar reads dates before 1582 as others, and Spark 3 reads none."""
PIECE_OVERHEAD_BYTES = 256  # of Arrow's own for each column of a slice of a batch: many small ones add up


def write_files(
    batches: Iterable[pa.RecordBatch],
    rules: FileRules,
    store: Store,
    *,
    task: int = 0,
    clock: Clock | None = None,
    new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
) -> list[DataFile]:
    """Write the rows into files below the table's folder, `store`; tell which. No rows: no files.

    `task` is a number that names carry, for people. On an error some files may be there; commit none of them.
    """
    writer = FileWriter(rules, store, task=task, clock=clock, new_id=new_id)
    try:
        for batch in batches:
            writer.add(batch)
        return writer.close()
    finally:
        writer.stop()


class _OpenFile:
    """One partition's rows on their way: batches that wait, then row groups that are encoded."""

    def __init__(self, rules: FileRules, values: Values) -> None:
        self.values = values
        self.rows = 0
        self._rules = rules
        self._schema = rules.file_schema
        self._stats = FileStats(rules.stats, self._schema)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._sink = pa.BufferOutputStream()
        self._parquet: pq.ParquetWriter | None = None
        self._dictionaries: Dictionaries | None = None

    @property
    def bytes(self) -> int:
        return self._waiting_bytes + self.encoded

    @property
    def encoded(self) -> int:
        return self._sink.tell() if self._parquet is not None else 0

    def takes(self, rows: pa.RecordBatch) -> bool:
        """Whether they can be encoded as what is there; else a new file is for them."""
        return self._dictionaries is None or self._dictionaries.fit(rows)

    def add(self, rows: pa.RecordBatch) -> None:
        self.rows += rows.num_rows
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes + PIECE_OVERHEAD_BYTES * (rows.num_columns + 1)
        if self._waiting_bytes >= ROW_GROUP_BYTES or self._waiting_rows >= ROW_GROUP_ROWS:
            self._encode()

    def finish(self) -> tuple[pa.Buffer, str]:
        """The whole file and its statistics. Nothing can be added any more."""
        if self._waiting or self._parquet is None:
            self._encode()
        assert self._parquet is not None
        self._parquet.close()
        return self._sink.getvalue(), self._stats.to_json()

    def _encode(self) -> None:
        table = pa.Table.from_batches(self._waiting, self._schema)
        self._stats.add(table)  # here and not in `add`: it costs as much for a piece of ten rows as for all of them
        if self._parquet is None:
            self._dictionaries = Dictionaries.of(table)
            self._parquet = pq.ParquetWriter(
                self._sink,
                self._schema,
                version="2.6",
                compression=CODECS[self._rules.codec],
                use_dictionary=list(self._dictionaries.paths),
                write_statistics=statistics_columns(self._schema),
                data_page_size=PAGE_BYTES,
                store_schema=False,  # Arrow's own schema says what Parquet's types do not; Spark's need none of it
                store_decimal_as_integer=True,
                write_page_index=True,
            )
            self._parquet.add_key_value_metadata(_CALENDAR)
        self._parquet.write_table(table, row_group_size=max(1, self._waiting_rows))
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0


class FileWriter:
    """`write_files` for rows that come one batch at a time: `add` them, then `close`; `stop` in any case."""

    def __init__(
        self,
        rules: FileRules,
        store: Store,
        *,
        task: int = 0,
        clock: Clock | None = None,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._rules = rules
        self._store = store
        self._task = task
        self._clock = clock or SystemClock()
        self._new_id = new_id
        self._open: dict[Values, _OpenFile] = {}
        self._in_hand = 0
        self._uploads: deque[tuple[int, Future[DataFile]]] = deque()
        self._pool = ThreadPoolExecutor(UPLOADS_MAX, thread_name_prefix="data-files")
        self._done: list[DataFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        for values, rows in split(fitted(batch, self._rules), self._rules.partition_by):
            if not rows.num_rows:
                continue
            file = self._open.get(values)
            if file is not None and not file.takes(rows):
                self._finish(file)
                file = None
            if file is None:
                file = self._open[values] = _OpenFile(self._rules, values)
            before = file.bytes
            file.add(rows)
            self._in_hand += file.bytes - before
            if file.encoded >= self._rules.target_file_bytes:
                self._finish(file)
            while self._in_hand > self._rules.target_file_bytes + ROW_GROUP_BYTES:
                self._finish(max(self._open.values(), key=lambda each: each.bytes))

    @property
    def held_bytes(self) -> int:
        """What is in memory, on its way up included."""
        return self._in_hand + sum(size for size, _ in self._uploads)

    @property
    def held_max_bytes(self) -> int:
        """What this may come to."""
        return 2 * self._rules.target_file_bytes + ROW_GROUP_BYTES

    def relieve(self) -> None:
        """Write the largest file as it is, and wait until it and those before it are up."""
        if self._open:
            self._finish(max(self._open.values(), key=lambda each: each.bytes))
        self._settle(0)

    def close(self) -> list[DataFile]:
        for file in list(self._open.values()):
            self._finish(file)
        self._settle(0)
        return self._done

    def stop(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _finish(self, file: _OpenFile) -> None:
        del self._open[file.values]
        self._in_hand -= file.bytes
        data, stats = file.finish()
        # What is on its way up is in hand too: wait for the oldest until it fits.
        self._settle(max(0, self._rules.target_file_bytes - data.size))
        self._uploads.append((data.size, self._pool.submit(self._upload, file, data, stats)))

    def _settle(self, room: int) -> None:
        while self._uploads and sum(size for size, _ in self._uploads) > room:
            self._done.append(self._uploads.popleft()[1].result())

    def _upload(self, file: _OpenFile, data: pa.Buffer, stats: str) -> DataFile:
        suffix = CODEC_SUFFIXES[CODECS[self._rules.codec]]
        name = f"part-{self._task:05d}-{self._new_id()}.c000{suffix}.parquet"
        where = folder(self._rules.partition_by, file.values)
        location = f"{where}/{name}" if where else name
        self._put(location, data)
        return DataFile(
            path=as_uri(location),
            size=data.size,
            rows=file.rows,
            partition_values=dict(zip(self._rules.partition_by, file.values, strict=True)),
            stats=stats,
            modification_time_ms=self._clock.now_ms(),
        )

    def _put(self, location: str, data: pa.Buffer) -> None:
        """Raises InvalidInput only where the partition's own values make the name one that cannot be: too long, say.

        Without the causes, for of a failed task only the text arrives, and the first error in it tells whose fault it
        is: that must be what the store makes of the system's.
        """
        try:
            self._store.put(location, memoryview(data).cast("B"))
        except StorageError as error:
            raise error from None
        except InvalidInput as error:
            found = error.__cause__
            if not isinstance(found, OSError) or found.errno == errno.ENAMETOOLONG:
                raise
            # A file, a pipe or a link to nowhere where the partition's folder belongs: no row has put it there.
            raise StoreUnusable(str(error), location=location, url=self._store.url, retryable=False) from None
