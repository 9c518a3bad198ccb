"""The format `json`: one JSON object for each entry, with given columns or with columns that follow the data.

    JsonFormat("id BIGINT, name STRING")
    JsonFormat("id BIGINT, name STRING", unknown_fields="ignore")          # faster if most fields are unknown
    JsonFormat()                                                           # evolving

A field without a column, and a field that its column cannot take, go to `_rescued_data` as JSON text, numbers just
as they were written; it is null for the others. A field that is null, and has no column, leaves no trace. A record
that has no value for a NOT NULL column is bad, like one that is no JSON object (see `json_records`).
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from buffer.config import reject
from buffer.errors import InvalidConfig
from buffer_delta.formats import json_fast, json_infer
from buffer_delta.formats.base import MAX_COLUMNS, RESCUED, Format, Indices, Parsed, as_binary, chunks
from buffer_delta.formats.json_records import BadRecord, Columns, load, stray_texts, to_text
from buffer_delta.formats.plain import invalid_utf8
from buffer_delta.formats.schemas import arrow_schema, merge_schemas, nullable, schema_text

CHUNK_BYTES = 8 << 20  # parsed in one go: large enough that calls cost nothing, small enough to stay in memory twice
CHUNK_ROWS = 1 << 17
SINGLY_MAX = 512  # a piece with so few records in which something fails to convert is looked at record by record
PIECES = 16  # into which a chunk is cut to find it; each costs a call of the parser, about as much as 20 records singly


class JsonFormat(Format):
    name: ClassVar[str] = "json"

    def __init__(
        self,
        schema: Any = None,
        *,
        rescued_data: str | None = RESCUED,
        on_mismatch: str = "rescue",
        unknown_fields: str = "rescue",
        max_columns: int = MAX_COLUMNS,
    ) -> None:
        """`on_mismatch`: `rescue`, or `dead_letter` (the record is bad); `unknown_fields`: `rescue` or `ignore`.

        `rescued_data` renames that column; None leaves it out, and then nothing may be rescued.
        `max_columns` bounds what an evolving table may grow to: so many columns, and so many fields inside of them.
        """
        self._evolving = schema is None
        self._rescued = rescued_data
        self._on_mismatch = on_mismatch
        self._unknown = unknown_fields
        self._max_columns = max_columns
        self._check()
        self._given = None if schema is None else arrow_schema(schema)
        if self._given is not None:
            self._prepare(self._given)

    def _check(self) -> None:
        if self._on_mismatch not in ("rescue", "dead_letter"):
            raise reject("on_mismatch", self._on_mismatch, "'rescue' or 'dead_letter'")
        if self._unknown not in ("rescue", "ignore"):
            raise reject("unknown_fields", self._unknown, "'rescue' or 'ignore'")
        if self._rescued is None and (self._on_mismatch == "rescue" or self._unknown == "rescue"):
            raise InvalidConfig(
                "rescued_data=None leaves no column to rescue into; set on_mismatch='dead_letter' and "
                "unknown_fields='ignore' too, or keep the column",
                key="rescued_data",
                value=None,
            )
        if self._evolving and (self._on_mismatch != "rescue" or self._unknown != "rescue"):
            raise InvalidConfig(
                "without a schema the columns follow the data: what does not fit them yet must be rescued, so "
                "on_mismatch and unknown_fields must stay 'rescue'; or give a schema",
                key="on_mismatch" if self._on_mismatch != "rescue" else "unknown_fields",
                value=self._on_mismatch if self._on_mismatch != "rescue" else self._unknown,
            )

    def _prepare(self, given: pa.Schema) -> None:
        if self._rescued is not None and self._rescued.lower() in {name.lower() for name in given.names}:
            raise InvalidConfig(
                f"the schema has a column {self._rescued!r}, which is where rescued fields go; rename one of them "
                "(rescued_data='…')",
                key="rescued_data",
                value=self._rescued,
            )
        self._columns = nullable(given)
        self._required = [f.name for f in given if not f.nullable]
        rescued = [pa.field(self._rescued, pa.string())] if self._rescued is not None else []
        self._schema = pa.schema([*self._columns, *rescued])
        physical = [(f.name, json_fast.physical(f.type)) for f in self._columns]
        self._fast = pa.schema([(name, kind) for name, kind in physical if kind is not None])
        self._by_hand = pa.schema([f for f in self._columns if f.name not in self._fast.names])

    # What it is

    @property
    def schema(self) -> pa.Schema:
        assert self._given is not None, "an evolving format gets its columns with with_schema()"
        return self._schema

    @property
    def rescued_column(self) -> str | None:
        return self._rescued

    @property
    def evolving(self) -> bool:
        return self._evolving

    def settings(self) -> dict[str, Any]:
        given = None if self._evolving or self._given is None else schema_text(self._given)
        return {
            "schema": given,
            "rescued_data": self._rescued,
            "on_mismatch": self._on_mismatch,
            "unknown_fields": self._unknown,
            "max_columns": self._max_columns if self._evolving else None,
        }

    def with_schema(self, schema: pa.Schema) -> JsonFormat:
        settled = copy.copy(self)
        settled._given = schema
        settled._prepare(schema)
        return settled

    @property
    def max_columns(self) -> int:
        return self._max_columns

    def discover(self, entries: pa.Array) -> pa.Schema:
        pieces = chunks(as_binary(entries), CHUNK_BYTES, CHUNK_ROWS)
        found = (json_infer.infer(chunk, self._max_columns) for _, chunk in pieces)
        return merge_schemas(None, found, max_columns=self._max_columns)

    # Parsing

    def parse(self, entries: pa.Array) -> Parsed:
        tables: list[pa.Table] = []
        sources: list[Indices] = []
        bad: list[tuple[int, str]] = []
        for start, chunk in chunks(as_binary(entries), CHUNK_BYTES, CHUNK_ROWS):
            for table, source in self._parse_chunk(chunk, start, bad):
                tables.append(table)
                sources.append(source + start)
        rows = pa.concat_tables(tables) if tables else self._schema.empty_table()
        complete = not bad and len(tables) <= 1
        return Parsed(rows, None if complete else np.concatenate(sources or [np.zeros(0, np.int64)]), sorted(bad))

    def _parse_chunk(
        self, chunk: pa.BinaryArray, start: int, bad: list[tuple[int, str]]
    ) -> list[tuple[pa.Table, Indices]]:
        """Rows with the index of their entry in the chunk; bad entries go to `bad` with their index in all."""
        unreadable = dict(invalid_utf8(chunk))
        for index in json_fast.suspects(chunk).tolist():
            if index not in unreadable:
                try:
                    load(chunk[index].as_py())
                except BadRecord as error:
                    unreadable[index] = str(error)
        candidates = np.arange(len(chunk))
        if unreadable:
            candidates = np.setdiff1d(candidates, list(unreadable))
            chunk = chunk.take(pa.array(candidates))
        parts, left = self._parse_many(chunk) if len(chunk) else ([], np.zeros(0, np.int64))
        if len(left):
            parts.append(self._parse_singly(chunk, left, unreadable, candidates))
        kept = [self._without_required_nulls(rows, candidates[at], unreadable) for rows, at in parts]
        bad.extend((start + index, error) for index, error in unreadable.items())
        return [(rows, at) for rows, at in kept if rows.num_rows]

    def _parse_many(self, chunk: pa.BinaryArray) -> tuple[list[tuple[pa.Table, Indices]], Indices]:
        """Rows with the index of their entry, and the entries left to be looked at singly."""
        try:
            infer = self._unknown == "rescue" and not len(self._by_hand)
            try:
                found = json_fast.read(chunk, self._fast, infer=infer)
            except json_fast.ConflictOutside:
                infer = False
                found = json_fast.read(chunk, self._fast, infer=False)
            if found.table is None:
                return [], found.left
            return [(self._finished(found.table, chunk, found.taken, infer), found.taken)], found.left
        except json_fast.TooMany:
            return [], np.arange(len(chunk))
        except pa.ArrowInvalid:  # some value does not convert: narrow it down
            everything = np.arange(len(chunk))
            if len(chunk) <= SINGLY_MAX:
                return [], everything
        parts: list[tuple[pa.Table, Indices]] = []
        left: list[Indices] = []
        for piece in np.array_split(everything, PIECES):
            inner, stuck = self._parse_many(chunk.slice(piece[0], len(piece)))
            parts += [(rows, piece[at]) for rows, at in inner]
            left.append(piece[stuck])
        return parts, np.concatenate(left)

    def _finished(self, table: pa.Table, chunk: pa.BinaryArray, taken: Indices, infer: bool) -> pa.Table:
        """The parser's table with our columns. Raises ArrowInvalid where a value must be looked at singly."""
        stray = np.zeros(table.num_rows, bool)
        columns: dict[str, pa.Array] = {}
        for name in table.column_names:
            (column,) = table[name].chunks  # of what Arrow inferred, only the validity can be relied upon
            if name not in self._fast.names:
                stray |= column.is_valid().to_numpy(zero_copy_only=False)
                continue
            column, marks = json_fast.trim(column, self._fast.field(name).type)
            if marks is not None:
                stray |= marks
            columns[name] = json_fast.finish(column, self._columns.field(name).type)
        if len(self._by_hand) or (self._unknown == "rescue" and not infer):
            stray[:] = True  # the parser was told to pass over what it does not know: look at each record
        rescued = pa.nulls(table.num_rows, pa.string())
        if stray.any():
            rescued, by_hand = self._look_at(chunk, taken, np.flatnonzero(stray), infer)
            columns |= by_hand
        arrays = [columns[name] for name in self._columns.names]
        return pa.Table.from_arrays([*arrays, *([rescued] if self._rescued is not None else [])], schema=self._schema)

    def _look_at(
        self, chunk: pa.BinaryArray, taken: Indices, rows: Indices, infer: bool
    ) -> tuple[pa.Array, dict[str, pa.Array]]:
        """The rescued column, and the columns that the parser cannot read, of rows it has taken otherwise."""
        texts: list[str | None] = [None] * len(taken)
        entries = chunk.take(pa.array(taken[rows])).to_pylist()
        columns = Columns(self._columns)
        try:
            if infer:
                for row, text in zip(rows.tolist(), stray_texts(entries, columns), strict=True):
                    texts[row] = text
                return pa.array(texts, pa.string()), {}
            records = [load(entry) for entry in entries]
        except BadRecord as error:
            raise pa.ArrowInvalid(str(error)) from error
        if self._unknown == "rescue":
            for row, record in zip(rows.tolist(), records, strict=True):
                stray = columns.stray(record)
                texts[row] = to_text(stray) if stray else None
        found = Columns(self._by_hand).convert(records)
        if found.mismatches:
            raise pa.ArrowInvalid("a value that its column cannot take")
        return pa.array(texts, pa.string()), dict(zip(self._by_hand.names, found.arrays, strict=True))

    def _parse_singly(
        self, chunk: pa.BinaryArray, left: Indices, unreadable: dict[int, str], candidates: Indices
    ) -> tuple[pa.Table, Indices]:
        records: list[dict[str, Any]] = []
        at: list[int] = []
        for index, entry in zip(left.tolist(), chunk.take(pa.array(left)).to_pylist(), strict=True):
            try:
                records.append(load(entry))
            except BadRecord as error:
                unreadable[int(candidates[index])] = str(error)
            else:
                at.append(index)
        found = Columns(self._columns).convert(records)
        stray = found.stray
        if self._unknown == "ignore":
            stray = [
                {
                    name: value
                    for name, value in fields.items()
                    if name in self._columns.names and row in found.mismatches
                }
                for row, fields in enumerate(stray)
            ]
        rescued = [pa.array([to_text(fields) if fields else None for fields in stray], pa.string())]
        rows = pa.Table.from_arrays(
            [*found.arrays, *(rescued if self._rescued is not None else [])], schema=self._schema
        )
        kept = np.array(at, np.int64)
        if self._on_mismatch == "rescue" or not found.mismatches:
            return rows, kept
        unreadable |= {int(candidates[at[row]]): "; ".join(errors) for row, errors in found.mismatches.items()}
        fitting = np.setdiff1d(np.arange(len(at)), list(found.mismatches))
        return rows.take(pa.array(fitting)), kept[fitting]

    def _without_required_nulls(
        self, rows: pa.Table, at: Indices, unreadable: dict[int, str]
    ) -> tuple[pa.Table, Indices]:
        keep = np.ones(rows.num_rows, bool)
        for name in self._required:
            if rows[name].null_count:
                missing = rows[name].is_null().to_numpy()
                for row in np.flatnonzero(missing & keep).tolist():
                    unreadable[int(at[row])] = f"no value for the column {name!r}, which is NOT NULL"
                keep &= ~missing
        return (rows, at) if keep.all() else (rows.filter(pa.array(keep)), at[keep])
