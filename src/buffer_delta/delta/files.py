"""Data files of a Delta table, written by Arrow. Executors call `write_files`; what it returns goes into a commit.

The rules:
- A file gets a new name, a UUID, and is never written again. Dying at any point leaves whole files that no commit
  names, or nothing: a store shows an object only when it is complete. VACUUM removes them, as it does Spark's own.
- A row is checked before its file is written: what has a null where the table takes none raises NullRefused, and then
  the caller commits nothing.
- Values are not changed. Columns come as the table has them, or in a type that Arrow widens without loss; else
  SchemaMismatch. One exception is Delta's own: an empty string that a table is partitioned by becomes null.
- Memory is bounded: what is in hand, encoded or not, stays near `target_file_bytes`, however many partitions there
  are. Beyond that the largest file is closed early.

The files are what Spark's reader expects of Spark's writer: nested columns are named `list.element` and
`key_value.key/value`, decimals are stored as integers up to 18 digits, timestamps as microseconds in INT64, and every
column may be null in the file also where the table's may not.
"""

from __future__ import annotations

import json
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from buffer.clock import Clock, SystemClock
from buffer.errors import InvalidConfig, InvalidInput
from buffer.store import Store
from buffer_delta.delta.encodings import dictionary_columns
from buffer_delta.delta.partitions import Values, as_uri, folder, split, unsupported
from buffer_delta.delta.stats import FileStats, StatsRules
from buffer_delta.errors import NullRefused, SchemaMismatch
from buffer_delta.formats.struct_json import UnknownType, arrow_type

MIB = 1024 * 1024
TARGET_FILE_BYTES = 128 * MIB
ROW_GROUP_BYTES = 64 * MIB
"""Of Arrow's memory; in the file it is a half to a tenth of that."""
ROW_GROUP_ROWS = 1_000_000
PAGE_BYTES = MIB
UPLOADS_MAX = 4  # small files of many partitions go up side by side
PIECE_OVERHEAD_BYTES = 256  # of Arrow's own for each column of a slice of a batch: many small ones add up

CODECS = {
    "none": "NONE",
    "uncompressed": "NONE",
    "snappy": "SNAPPY",
    "gzip": "GZIP",
    "zstd": "ZSTD",
    "brotli": "BROTLI",
    "lz4": "LZ4",
    "lz4_raw": "LZ4",
}
"""Spark's names of codecs, and Arrow's."""
_SUFFIX = {"NONE": "", "SNAPPY": ".snappy", "GZIP": ".gz", "ZSTD": ".zstd", "BROTLI": ".br", "LZ4": ".lz4raw"}
_SIZE_UNITS = {"": 1, "b": 1, "k": 1024, "kb": 1024, "m": MIB, "mb": MIB, "g": 1024 * MIB, "gb": 1024 * MIB}


@dataclass(frozen=True, slots=True)
class FileRules:
    """How a table's data files are written: a value, which travels to the executors."""

    schema: pa.Schema
    """Every column of the table in its order, those it is partitioned by too, typed as Arrow types Spark's."""
    partition_by: tuple[str, ...] = ()
    not_null: tuple[tuple[str, ...], ...] = ()
    """Columns that take no null, each as its path through structs. A null struct is a null in all that is in it."""
    codec: str = "snappy"
    target_file_bytes: int = TARGET_FILE_BYTES
    stats: StatsRules = field(default_factory=StatsRules)

    def __post_init__(self) -> None:
        missing = [name for name in self.partition_by if self.schema.get_field_index(name) < 0]
        odd = [name for name in self.partition_by if name not in missing and unsupported(self.schema.field(name).type)]
        if missing or odd:
            raise InvalidConfig(
                f"the table cannot be partitioned by {', '.join(missing or odd)}: "
                + ("it has no such column" if missing else "a column of that type has no text in Delta's log"),
                key="partition_by",
                value=list(self.partition_by),
            )
        if self.codec not in CODECS:
            raise InvalidConfig(
                f"codec={self.codec!r} is not known: it must be one of {', '.join(CODECS)}",
                key="codec",
                value=self.codec,
            )
        if self.target_file_bytes < 1:
            raise InvalidConfig(
                f"target_file_bytes={self.target_file_bytes} is not allowed: it must be at least 1",
                key="target_file_bytes",
                value=self.target_file_bytes,
            )

    @classmethod
    def of_metadata(cls, text: str, *, codec: str = "snappy", deletion_vectors: bool = False) -> FileRules:
        """From the `metaData` action of a table's log, as JSON.

        `codec` is for tables that name none. `deletion_vectors`: whether the table's protocol has that feature. Raises
        InvalidConfig, saying why, where the table has a type or a property that Arrow cannot write.
        """
        found = json.loads(text)["metaData"]
        properties: Mapping[str, str] = found.get("configuration") or {}
        struct = json.loads(found["schemaString"])
        try:
            kind = arrow_type(struct)
        except UnknownType as error:
            raise InvalidConfig(
                f"the table has a column of type {error}, which has no like in Arrow", key="schema", value=str(error)
            ) from None
        return cls(
            schema=pa.schema(list(kind)),
            partition_by=tuple(found.get("partitionColumns") or ()),
            not_null=tuple(_not_null(kind)),
            codec=properties.get("delta.parquet.compression.codec", codec).lower(),
            target_file_bytes=_size(properties.get("delta.targetFileSize", str(TARGET_FILE_BYTES))),
            stats=StatsRules.of_properties(properties, deletion_vectors=deletion_vectors),
        )

    @property
    def file_schema(self) -> pa.Schema:
        """The columns that are in a file."""
        return pa.schema([f for f in _nullable_schema(self.schema) if f.name not in self.partition_by])


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that is written, as an `add` action names it."""

    path: str
    """Relative to the table's folder, percent-encoded."""
    size: int
    rows: int
    partition_values: dict[str, str | None]
    stats: str
    """JSON."""
    modification_time_ms: int

    def to_add(self) -> dict[str, Any]:
        """The `add` action's fields."""
        return {
            "path": self.path,
            "partitionValues": self.partition_values,
            "size": self.size,
            "modificationTime": self.modification_time_ms,
            "dataChange": True,
            "stats": self.stats,
        }


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
    writer = _Writer(rules, store, task, clock or SystemClock(), new_id)
    try:
        for batch in batches:
            writer.add(fitted(batch, rules))
        return writer.close()
    finally:
        writer.stop()


def fitted(batch: pa.RecordBatch, rules: FileRules) -> pa.RecordBatch:
    """The batch with exactly the table's columns: in its order and types, null where the batch has none.

    Raises SchemaMismatch for a column that the table has not or that would lose something, and NullRefused.
    """
    unknown = [name for name in batch.schema.names if rules.schema.get_field_index(name) < 0]
    if unknown or len(set(batch.schema.names)) < len(batch.schema.names):
        raise _mismatch(unknown or batch.schema.names, "the table has no such column, or the rows have it twice")
    schema, columns = _nullable_schema(rules.schema), []
    for wanted in schema:
        at = batch.schema.get_field_index(wanted.name)
        is_there = at >= 0
        columns.append(_as_type(batch.column(at), wanted) if is_there else pa.nulls(batch.num_rows, wanted.type))
    rows = pa.RecordBatch.from_arrays(columns, schema=schema)
    for path in rules.not_null:
        _refuse_nulls(rows, path, is_partition=path[0] in rules.partition_by)
    return rows


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

    @property
    def bytes(self) -> int:
        return self._waiting_bytes + self.encoded

    @property
    def encoded(self) -> int:
        return self._sink.tell() if self._parquet is not None else 0

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
            self._parquet = pq.ParquetWriter(
                self._sink,
                self._schema,
                version="2.6",
                compression=CODECS[self._rules.codec],
                use_dictionary=dictionary_columns(table),
                data_page_size=PAGE_BYTES,
                store_schema=False,  # Arrow's own schema says what Parquet's types do not; Spark's need none of it
                store_decimal_as_integer=True,
                write_page_index=True,
            )
        self._parquet.write_table(table, row_group_size=max(1, self._waiting_rows))
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0


class _Writer:
    def __init__(self, rules: FileRules, store: Store, task: int, clock: Clock, new_id: Callable[[], str]) -> None:
        self._rules = rules
        self._store = store
        self._task = task
        self._clock = clock
        self._new_id = new_id
        self._open: dict[Values, _OpenFile] = {}
        self._in_hand = 0
        self._uploads: deque[tuple[int, Future[DataFile]]] = deque()
        self._pool = ThreadPoolExecutor(UPLOADS_MAX, thread_name_prefix="data-files")
        self._done: list[DataFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        for values, rows in split(batch, self._rules.partition_by):
            if not rows.num_rows:
                continue
            file = self._open.get(values)
            if file is None:
                file = self._open[values] = _OpenFile(self._rules, values)
            before = file.bytes
            file.add(rows)
            self._in_hand += file.bytes - before
            if file.encoded >= self._rules.target_file_bytes:
                self._finish(file)
            while self._in_hand > self._rules.target_file_bytes + ROW_GROUP_BYTES:
                self._finish(max(self._open.values(), key=lambda each: each.bytes))

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
        suffix = _SUFFIX[CODECS[self._rules.codec]]
        name = f"part-{self._task:05d}-{self._new_id()}.c000{suffix}.parquet"
        where = folder(self._rules.partition_by, file.values)
        location = f"{where}/{name}" if where else name
        self._store.put(location, memoryview(data).cast("B"))
        return DataFile(
            path=as_uri(location),
            size=data.size,
            rows=file.rows,
            partition_values=dict(zip(self._rules.partition_by, file.values, strict=True)),
            stats=stats,
            modification_time_ms=self._clock.now_ms(),
        )


def _as_type(column: pa.Array, wanted: pa.Field) -> pa.Array:
    if column.type == wanted.type:
        return column
    try:
        return column.cast(wanted.type)  # checked: what does not fit raises
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise _mismatch([wanted.name], f"{column.type} to {wanted.type}: {error}") from error


def _mismatch(columns: Iterable[str], reason: str) -> SchemaMismatch:
    names = tuple(columns)
    return SchemaMismatch(f"the rows do not fit the table's columns {', '.join(names)}: {reason}", columns=names)


def _refuse_nulls(rows: pa.RecordBatch, path: tuple[str, ...], *, is_partition: bool) -> None:
    column: pa.Array = rows.column(path[0])
    for name in path[1:]:
        column = pc.struct_field(column, [column.type.get_field_index(name)])
    missing = column.null_count
    if is_partition and pa.types.is_string(column.type):
        missing += pc.sum(pc.equal(column, "")).as_py() or 0
    if missing:
        raise NullRefused(
            f"{missing:,} rows have no value in the column {'.'.join(path)!r}, which is NOT NULL: give them one, or "
            "drop the constraint",
            column=".".join(path),
            rows=missing,
        )


@lru_cache(maxsize=8)
def _nullable_schema(given: pa.Schema) -> pa.Schema:
    """The columns as they are in a file."""
    return pa.schema([_nullable(each) for each in given])


def _nullable(given: pa.Field) -> pa.Field:
    return pa.field(given.name, _nullable_type(given.type))


def _nullable_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_nullable(each) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _nullable_type(kind.value_type)))
    if pa.types.is_map(kind):
        key = pa.field("key", _nullable_type(kind.key_type), nullable=False)
        return pa.map_(key, pa.field("value", _nullable_type(kind.item_type)))
    return kind


def _not_null(kind: pa.StructType, path: tuple[str, ...] = ()) -> Iterable[tuple[str, ...]]:
    """Delta does not look inside of arrays and maps."""
    for each in kind:
        if not each.nullable:
            yield (*path, each.name)
        if pa.types.is_struct(each.type):
            yield from _not_null(each.type, (*path, each.name))


def _size(text: str) -> int:
    """A size as Spark reads one: bytes, or with a unit like `100mb`."""
    number = text.strip().rstrip("bBkKmMgG")
    unit = text.strip()[len(number) :].lower()
    if not number.isascii() or not number.isdigit() or unit not in _SIZE_UNITS:
        raise InvalidInput(f"delta.targetFileSize={text!r} is not a size: write it like 134217728 or 128mb")
    return max(1, int(number) * _SIZE_UNITS[unit])
