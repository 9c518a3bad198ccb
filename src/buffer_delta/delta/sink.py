"""What a task does with a table's rows, where the executors write the files: Parquet, and a line for each file.

It runs on executors, so it needs no Spark. The driver makes the sink, and reads what the sinks of all tasks told.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from buffer_delta.delta.conform import conform
from buffer_delta.delta.file_rules import DataFile, FileRules, nullable_schema
from buffer_delta.delta.files import FileWriter
from buffer_delta.delta.table_store import TableStore
from buffer_delta.errors import RowsMissing


@dataclass(frozen=True)
class FileSink:
    """Rows into files of one table. Tells a line of JSON for each file."""

    rules: FileRules
    table: TableStore

    def __call__(self, batches: Iterable[pa.RecordBatch], /) -> Iterator[bytes]:
        feed = self.begin()
        try:
            for batch in batches:
                feed.add(batch)
            yield from feed.end()
        finally:
            feed.stop()

    def begin(self) -> FileFeed:
        """The same for rows that come one batch at a time."""
        return FileFeed(FileWriter(self.rules, self.table.open()), nullable_schema(self.rules.schema))


@dataclass
class FileFeed:
    files: FileWriter
    columns: pa.Schema
    added: int = 0

    def add(self, rows: pa.RecordBatch, /) -> None:
        if rows.num_rows:
            self.files.add(conform(rows, self.columns))
            self.added += rows.num_rows

    @property
    def held_bytes(self) -> int:
        return self.files.held_bytes

    @property
    def held_max_bytes(self) -> int:
        return self.files.held_max_bytes

    def relieve(self) -> None:
        self.files.relieve()

    def end(self) -> list[bytes]:
        files = self.files.close()
        check_count(sum(file.rows for file in files), self.added)
        return [_line(file) for file in files]

    def stop(self) -> None:
        self.files.stop()


def _line(file: DataFile) -> bytes:
    return json.dumps({"rows": file.rows, "bytes": file.size, "add": file.to_add()}).encode()


@dataclass(frozen=True)
class WrittenFiles:
    """The files of one staging, as the driver knows them."""

    actions: tuple[str, ...]
    """An `add` action for each, as JSON."""
    rows: int
    size_bytes: int

    @classmethod
    def of(cls, told: Iterable[bytes], counted: int | None) -> WrittenFiles:
        """`counted`: how many rows they must hold, where it is known. Else RowsMissing: commit none of them."""
        lines = [json.loads(line) for line in told]
        actions = tuple(json.dumps({"add": line["add"]}) for line in lines)
        rows = sum(line["rows"] for line in lines)
        check_count(rows, counted)
        return cls(actions, rows, sum(line["bytes"] for line in lines))


def check_count(written: int, counted: int | None) -> None:
    """Raise RowsMissing where files do not hold the rows that were counted."""
    if counted is not None and written != counted:
        raise RowsMissing(
            f"the files of this range hold {written} rows, and {counted} were counted for it. Nothing was committed: "
            "start the loader again; if it stops again, this is a mistake of ours that wants to be reported",
            counted=counted,
            written=written,
        )
