"""The format `arrow`: each entry one IPC stream of any number of rows."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from buffer_delta.formats.base import Format, Parsed, brief
from buffer_delta.formats.entries import as_binary, chunks
from buffer_delta.formats.exact import NotExact, cast_exactly
from buffer_delta.formats.ipc import allowed, cost_of, expanded_bytes, refers, row_bytes
from buffer_delta.formats.merge import merge_schemas
from buffer_delta.formats.options import FormatOptions
from buffer_delta.formats.schemas import arrow_schema, holds, nullable, schema_text

_UNKNOWN_TYPES = (pa.lib.Type_INTERVAL_MONTHS, pa.lib.Type_INTERVAL_DAY_TIME)
"""A stream may have them, but Python's Arrow knows no such arrays: looking at one is a KeyError."""
UNREADABLE = (pa.ArrowException, ValueError, OSError)  # Arrow says OSError of a stream that ends too soon
MAX_BYTES = 1 << 30  # that a stream may expand to, whatever its size, unless `within` says otherwise
ROWS_PER_ENTRY_MAX = 10_000_000  # a stream of a few bytes may claim 2^63 rows of nothing


@dataclass(frozen=True, kw_only=True)
class ArrowOptions(FormatOptions):
    schema: Any = None
    """DDL, StructType or Arrow schema, and then an Arrow schema, all nullable. None: the columns follow the data."""

    def __post_init__(self) -> None:
        if self.schema is not None:
            object.__setattr__(self, "schema", nullable(arrow_schema(self.schema)))


class ArrowFormat(Format):
    """Each payload is an Arrow IPC stream of any number of rows.

    With a schema, columns are matched by name and converted without loss (see `exact`); missing ones are null. A
    stream that does not fit, or has columns beyond the schema, is bad as a whole. Without one, the columns follow the
    data. A stream that would expand beyond all measure (see `ipc`) is bad, and nothing of it is expanded.
    """

    name: ClassVar[str] = "arrow"
    many_rows: ClassVar[bool] = True
    Options: ClassVar[type[FormatOptions]] = ArrowOptions
    options: ArrowOptions

    def __init__(self, schema: Any = None, **options: Any) -> None:
        super().__init__(schema=schema, **options)
        self._schema = self.options.schema
        self._max_bytes = MAX_BYTES

    @property
    def schema(self) -> pa.Schema:
        assert self._schema is not None, "an evolving format gets its columns with with_schema()"
        return self._schema

    @property
    def evolving(self) -> bool:
        return self.options.schema is None

    def with_schema(self, schema: pa.Schema) -> ArrowFormat:
        settled = copy.copy(self)
        settled._schema = nullable(schema)
        return settled

    def within(self, max_bytes: int) -> ArrowFormat:
        limited = copy.copy(self)
        limited._max_bytes = max_bytes
        return limited

    def pieces(self, entries: pa.BinaryArray, max_bytes: int, max_rows: int) -> Iterator[tuple[int, pa.BinaryArray]]:
        extra = np.array([self._weight(entry.as_buffer()) for entry in entries], np.int64)
        return chunks(entries, max_bytes, max_rows, extra)

    def _weight(self, payload: pa.Buffer) -> int:
        """What the stream takes besides its own bytes, at most. 0: it cannot be read, or takes too much."""
        try:
            with pa.ipc.open_stream(payload) as stream:
                cost, shared = cost_of(payload), any(refers(field.type) for field in stream.schema)
        except UNREADABLE:
            return 0
        most = allowed(payload.size, self._max_bytes)
        needed = cost.plain if shared else cost.read
        weight = min(most, needed + cost.rows * row_bytes(self.schema)) if cost.read <= most else 0
        return max(0, weight)  # a damaged stream may name sizes and counts below zero

    def discover(self, entries: pa.Array) -> pa.Schema:
        """Of the streams that `parse` can read, each of which is read for it: a bad one must not bring columns."""
        found: dict[str, pa.Schema] = {}
        for entry in as_binary(entries):
            try:
                with pa.ipc.open_stream(entry.as_buffer()) as stream:
                    schema = arrow_schema(stream.schema)
                self.with_schema(schema)._read(entry.as_buffer())
            except UNREADABLE:  # what is wrong with it, `parse` will say
                continue
            found.setdefault(str(schema), schema)
        return merge_schemas(None, found.values())

    def parse(self, entries: pa.Array) -> Parsed:
        parts: list[pa.Table] = []
        sources: list[tuple[int, int]] = []
        bad: list[tuple[int, str]] = []
        for index, entry in enumerate(as_binary(entries)):
            try:
                part = self._read(entry.as_buffer())
            except UNREADABLE as error:
                bad.append((index, brief(f"not an Arrow stream of these columns: {error}")))
                continue
            parts.append(part)
            sources.append((index, part.num_rows))
        rows = pa.concat_tables(parts) if parts else self.schema.empty_table()
        entry_of = np.repeat(
            np.array([index for index, _ in sources], np.int64), np.array([rows for _, rows in sources], np.int64)
        )
        return Parsed(rows, entry_of, bad)

    def _read(self, payload: pa.Buffer) -> pa.Table:
        most = allowed(payload.size, self._max_bytes)
        cost = cost_of(payload)
        if cost.rows > ROWS_PER_ENTRY_MAX:
            raise ValueError(f"more than {ROWS_PER_ENTRY_MAX:,} rows in one entry")
        _check_size(max(cost.read, cost.rows * row_bytes(self.schema)), most)
        source = pa.BufferReader(payload)
        with pa.ipc.open_stream(source) as stream:
            for field in stream.schema:
                _check_readable(field.name, field.type)
            batches, rows, expanded = [], 0, 0
            for batch in stream:
                rows += batch.num_rows
                if rows > ROWS_PER_ENTRY_MAX:
                    raise ValueError(f"more than {ROWS_PER_ENTRY_MAX:,} rows in one entry")
                batch.validate(full=True)  # offsets come from outside: following a wrong one would crash the process
                expanded += sum(int(expanded_bytes(c).sum()) for c in batch.columns if refers(c.type))
                _check_size(expanded, most)
                batches.append(batch)
            table = pa.Table.from_batches(batches, stream.schema)
            _check_end(payload, source.tell())
        self._check_columns(table)
        for field in table.schema:
            if not holds(self.schema.field(field.name).type, field.type):  # a cast would drop them without a word
                raise ValueError(f"the column {field.name!r} has fields beyond {self.schema.field(field.name).type}")
        columns = [
            self._column(table[field.name], field) if field.name in table.column_names else pa.nulls(rows, field.type)
            for field in self.schema
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def _check_columns(self, table: pa.Table) -> None:
        names = table.schema.names
        if set(names) - set(self.schema.names) or len(set(names)) != len(names):
            if self.evolving:  # then it brought no column: which of them can be in no table, or which value, and why
                for field in arrow_schema(table.schema):
                    self._column(table[field.name], field)
            raise ValueError(f"it has the columns {names}, the table {self.schema.names}")
        if table.num_rows and not len(self.schema):
            raise ValueError(f"it has {table.num_rows:,} rows without any column")

    def _column(self, column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
        try:
            return cast_exactly(column, field.type)
        except NotExact as error:
            raise ValueError(f"the column {field.name!r}: {error}") from error

    def settings(self) -> dict[str, Any]:
        given = self.options.schema
        return {"schema": None if given is None else schema_text(given)}


def _check_readable(name: str, kind: pa.DataType) -> None:
    if kind.id in _UNKNOWN_TYPES:
        raise ValueError(f"the column {name!r} has values of the type {kind}")
    inner = [kind.storage_type] if isinstance(kind, pa.BaseExtensionType) else []
    inner += [kind.value_type] if pa.types.is_dictionary(kind) else []
    for part in (*inner, *(kind.field(at).type for at in range(kind.num_fields))):
        _check_readable(name, part)


def _check_end(payload: pa.Buffer, end: int) -> None:
    """A second stream behind the first would be lost without a word. Zeros are padding."""
    rest = payload.slice(end).to_pybytes()
    if rest.strip(b"\0"):
        raise ValueError(f"{len(rest):,} bytes come after its end: an entry is one stream")


def _check_size(needed: int, most: int) -> None:
    if needed > most:
        raise ValueError(f"it would take {needed:,} bytes, and a stream of its size may take {most:,}")
