"""What a task does with a table's rows, where the executors write the files: Parquet, and a line for each file.

It runs on executors, so it needs no Spark. The driver makes the sink, and reads what the sinks of all tasks told.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from buffer_delta.delta.conform import conformed
from buffer_delta.delta.file_rules import FileRules, nullable_schema
from buffer_delta.delta.files import write_files
from buffer_delta.delta.table_store import TableStore


@dataclass(frozen=True)
class FileSink:
    """Rows into files of one table. Tells a line of JSON for each file."""

    rules: FileRules
    table: TableStore

    def __call__(self, batches: Iterable[pa.RecordBatch], /) -> Iterator[bytes]:
        rows = conformed(batches, nullable_schema(self.rules.schema))
        for file in write_files(rows, self.rules, self.table.open()):
            yield json.dumps({"rows": file.rows, "bytes": file.size, "add": file.to_add()}).encode()


@dataclass(frozen=True)
class WrittenFiles:
    """The files of one staging, as the driver knows them."""

    actions: tuple[str, ...]
    """An `add` action for each, as JSON."""
    rows: int
    size_bytes: int

    @classmethod
    def of(cls, told: Iterable[bytes]) -> WrittenFiles:
        lines = [json.loads(line) for line in told]
        actions = tuple(json.dumps({"add": line["add"]}) for line in lines)
        return cls(actions, sum(line["rows"] for line in lines), sum(line["bytes"] for line in lines))
