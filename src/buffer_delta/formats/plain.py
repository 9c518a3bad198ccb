"""The formats without a parser of their own: `raw`, `text` and `arrow`."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from buffer_delta.formats.base import Format, Parsed, as_binary
from buffer_delta.formats.schemas import arrow_schema, merge_schemas, nullable, schema_text

UNREADABLE = (pa.ArrowException, ValueError, OSError)  # Arrow says OSError of a stream that ends too soon
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)
ROWS_PER_ENTRY_MAX = 10_000_000  # a stream of a few bytes may claim 2^63 rows of nothing


class RawFormat(Format):
    """Payloads as they are, in the column `value` (binary). Nothing is ever bad."""

    name: ClassVar[str] = "raw"

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([("value", pa.binary())])

    def parse(self, entries: pa.Array) -> Parsed:
        return Parsed(pa.Table.from_arrays([as_binary(entries)], schema=self.schema), None)

    def settings(self) -> dict[str, Any]:
        return {}


class TextFormat(Format):
    """Payloads as UTF-8 text, in the column `value` (string). Anything else is bad."""

    name: ClassVar[str] = "text"

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([("value", pa.string())])

    def parse(self, entries: pa.Array) -> Parsed:
        entries = as_binary(entries)
        bad = invalid_utf8(entries)
        if not bad:
            return Parsed(pa.Table.from_arrays([entries.cast(pa.string())], schema=self.schema), None)
        good = np.setdiff1d(np.arange(len(entries)), [index for index, _ in bad])
        texts = entries.take(pa.array(good)).cast(pa.string())
        return Parsed(pa.Table.from_arrays([texts], schema=self.schema), good, bad)

    def settings(self) -> dict[str, Any]:
        return {}


class ArrowFormat(Format):
    """Each payload is an Arrow IPC stream of any number of rows.

    With a schema, columns are matched by name and converted without loss; missing ones are null. A stream that
    does not fit, or has columns beyond the schema, is bad as a whole. Without one, the columns follow the data.
    """

    name: ClassVar[str] = "arrow"
    many_rows: ClassVar[bool] = True

    def __init__(self, schema: Any = None) -> None:
        self._schema = None if schema is None else nullable(arrow_schema(schema))
        self._evolving = schema is None

    @property
    def schema(self) -> pa.Schema:
        assert self._schema is not None, "an evolving format gets its columns with with_schema()"
        return self._schema

    @property
    def evolving(self) -> bool:
        return self._evolving

    def with_schema(self, schema: pa.Schema) -> ArrowFormat:
        settled = copy.copy(self)
        settled._schema = nullable(schema)
        return settled

    def discover(self, entries: pa.Array) -> pa.Schema:
        found: dict[str, pa.Schema] = {}
        for entry in as_binary(entries):
            try:
                with pa.ipc.open_stream(entry.as_buffer()) as stream:
                    schema = arrow_schema(stream.schema)
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
                bad.append((index, f"not an Arrow stream of these columns: {error}"))
                continue
            parts.append(part)
            sources.append((index, part.num_rows))
        rows = pa.concat_tables(parts) if parts else self.schema.empty_table()
        entry_of = np.repeat(
            np.array([index for index, _ in sources], np.int64), np.array([rows for _, rows in sources], np.int64)
        )
        return Parsed(rows, entry_of, bad)

    def _read(self, payload: pa.Buffer) -> pa.Table:
        with pa.ipc.open_stream(payload) as stream:
            batches, rows = [], 0
            for batch in stream:
                rows += batch.num_rows
                if rows > ROWS_PER_ENTRY_MAX:
                    raise ValueError(f"more than {ROWS_PER_ENTRY_MAX:,} rows in one entry")
                batch.validate(full=True)  # offsets come from outside: following a wrong one would crash the process
                batches.append(batch)
            table = pa.Table.from_batches(batches, stream.schema)
        unknown = set(table.column_names) - set(self.schema.names)
        if unknown or len(set(table.column_names)) != table.num_columns:
            raise ValueError(f"it has the columns {table.column_names}, the table {self.schema.names}")
        for field in table.schema:
            if not _holds(self.schema.field(field.name).type, field.type):  # a cast would drop them without a word
                raise ValueError(f"the column {field.name!r} has fields beyond {self.schema.field(field.name).type}")
        columns = [
            table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(rows, field.type)
            for field in self.schema
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def settings(self) -> dict[str, Any]:
        return {"schema": None if self._evolving or self._schema is None else schema_text(self._schema)}


def _holds(kind: pa.DataType, found: pa.DataType) -> bool:
    """Whether a type has a place for every field of every struct inside another one."""
    if pa.types.is_struct(kind) and pa.types.is_struct(found):
        names = {f.name: f.type for f in kind}
        inside = [f.name for f in found]
        return len(set(inside)) == len(inside) and all(f.name in names and _holds(names[f.name], f.type) for f in found)
    if pa.types.is_map(kind) and pa.types.is_map(found):
        return _holds(kind.item_type, found.item_type)
    if pa.types.is_list(kind) and isinstance(found, _LISTS):
        return _holds(kind.value_type, found.value_type)
    if pa.types.is_list(kind) and pa.types.is_map(found):
        return _holds(kind.value_type, pa.struct([found.key_field, found.item_field]))
    return True


def invalid_utf8(entries: pa.BinaryArray) -> list[tuple[int, str]]:
    """The entries that are not UTF-8, and what is wrong. One fast pass where all of them are."""
    try:
        entries.cast(pa.string())
    except pa.ArrowInvalid:
        pass
    else:
        return []
    bad = []
    for index, entry in enumerate(entries):
        try:
            str(entry.as_buffer(), "utf-8")
        except UnicodeDecodeError as error:
            bad.append((index, f"not UTF-8: {error.reason} at byte {error.start}"))
    return bad
