"""Entries of JSON → rows of given columns: by Arrow's parser where it can, record by record where it cannot.

Arrow's parser reads a chunk in one go, and does not say which record fails to convert, rounds some numbers, and passes
over some names. So what may suffer from that is kept from it (`fast`, `crowds`), and looked at singly, as Python
objects (`records`); so is what is left of a chunk that was cut down to a few records in which something fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from buffer_delta.formats.base import Parsed, brief
from buffer_delta.formats.entries import Indices, as_binary, chunks, invalid_utf8
from buffer_delta.formats.json import fast as json_fast
from buffer_delta.formats.json.crowds import Crowds
from buffer_delta.formats.json.known import load_known
from buffer_delta.formats.json.options import JsonOptions
from buffer_delta.formats.json.reading import BadRecord, load, to_text
from buffer_delta.formats.json.records import Columns, stray_texts
from buffer_delta.formats.json.stray import has_stray
from buffer_delta.formats.schemas import nullable
from buffer_delta.formats.variant import as_text

CHUNK_BYTES = 8 << 20  # parsed in one go: large enough that calls cost nothing, small enough to stay in memory twice
CHUNK_ROWS = 1 << 17
SINGLY_MAX = 512  # a piece with so few records in which something fails to convert is looked at record by record
PIECES = 16  # into which a chunk is cut to find it; each costs a call of the parser, about as much as 20 records singly
SINGLY_BYTES = 1 << 20  # of records as Python objects at once, which take up to 50 times their bytes
SINGLY_ROWS = 1 << 14


class Parser:
    """For the columns `given`, which are those of the options or follow the data."""

    def __init__(self, given: pa.Schema, options: JsonOptions) -> None:
        self._options = options
        self._rescued = options.rescued_data
        self.columns = nullable(given)
        self._required = [f.name for f in given if not f.nullable]
        rescued = [pa.field(self._rescued, pa.string())] if self._rescued is not None else []
        self.schema = as_text(pa.schema([*self.columns, *rescued]))
        physical = [(f.name, json_fast.physical(f.type)) for f in self.columns]
        self._fast = pa.schema([(name, kind) for name, kind in physical if kind is not None])
        self._decimals = any(json_fast.has_decimals(f.type) for f in self._fast)
        self._crowds = Crowds(self.schema)
        self._by_hand = pa.schema([f for f in self.columns if f.name not in self._fast.names])

    @property
    def _passes_over(self) -> bool:
        """Nobody looks at fields without a column. (Where some column is read by hand, so is the whole record.)"""
        return self._options.unknown_fields == "ignore" and not len(self._by_hand)

    def _load(self, entry: bytes) -> dict[str, Any]:
        return load_known(entry, self.columns) if self._passes_over else load(entry)

    def pieces(self, entries: pa.BinaryArray, max_bytes: int, max_rows: int) -> Iterator[tuple[int, pa.BinaryArray]]:
        return self._crowds.pieces(entries, max_bytes, max_rows)

    def parse(self, entries: pa.Array) -> Parsed:
        tables: list[pa.Table] = []
        sources: list[Indices] = []
        bad: list[tuple[int, str]] = []
        for start, chunk in self.pieces(as_binary(entries), CHUNK_BYTES, CHUNK_ROWS):
            for table, source in self._parse_chunk(chunk, start, bad):
                tables.append(table)
                sources.append(source + start)
        rows = pa.concat_tables(tables) if tables else self.schema.empty_table()
        complete = not bad and len(tables) <= 1
        return Parsed(rows, None if complete else np.concatenate(sources or [np.zeros(0, np.int64)]), sorted(bad))

    def _parse_chunk(
        self, chunk: pa.BinaryArray, start: int, bad: list[tuple[int, str]]
    ) -> list[tuple[pa.Table, Indices]]:
        """Rows with the index of their entry in the chunk; bad entries go to `bad` with their index in all."""
        unreadable = dict(invalid_utf8(chunk))
        suspects = json_fast.suspects(chunk)
        if self._passes_over:
            suspects = np.union1d(suspects, json_fast.no_numbers(chunk))
        for index in suspects.tolist():
            if index not in unreadable:
                try:
                    self._load(chunk[index].as_py())
                except BadRecord as error:
                    unreadable[index] = str(error)
        candidates = np.arange(len(chunk))
        if unreadable:
            candidates = np.setdiff1d(candidates, list(unreadable))
            chunk = chunk.take(pa.array(candidates))
        parts, left = self._parse_screened(chunk) if len(chunk) else ([], np.zeros(0, np.int64))
        if len(left):
            for at, piece in chunks(chunk.take(pa.array(left)), SINGLY_BYTES, SINGLY_ROWS):
                parts.append(self._parse_singly(piece, left[at : at + len(piece)], unreadable, candidates))
        kept = [self._without_required_nulls(rows, candidates[at], unreadable) for rows, at in parts]
        bad.extend((start + index, error) for index, error in unreadable.items())
        return [(rows, at) for rows, at in kept if rows.num_rows]

    def _parse_screened(self, chunk: pa.BinaryArray) -> tuple[list[tuple[pa.Table, Indices]], Indices]:
        """As `_parse_many`, which must not see some ways to write a decimal, nor what would take too many cells."""
        doubts = json_fast.decimal_doubts(chunk) if self._decimals else np.zeros(0, np.int64)
        doubts = np.union1d(doubts, self._crowds.crowded(chunk))
        if not len(doubts):
            return self._parse_many(chunk)
        rest = np.setdiff1d(np.arange(len(chunk)), doubts)
        if not len(rest):
            return [], doubts
        parts, left = self._parse_many(chunk.take(pa.array(rest)))
        return [(rows, rest[at]) for rows, at in parts], np.union1d(doubts, rest[left])

    def _parse_many(self, chunk: pa.BinaryArray) -> tuple[list[tuple[pa.Table, Indices]], Indices]:
        """Rows with the index of their entry, and the entries left to be looked at singly."""
        try:
            found = json_fast.read(chunk, self._fast)
            if found.table is None:
                return [], found.left
            rows, kept, doubtful = self._finished(found.table, chunk, found.taken)
            return [(rows, kept)], np.union1d(found.left, doubtful)
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

    def _finished(self, table: pa.Table, chunk: pa.BinaryArray, taken: Indices) -> tuple[pa.Table, Indices, Indices]:
        """The parser's table with our columns, the entries of its rows, and those left to be looked at singly.

        Raises ArrowInvalid where there are such, and nobody knows which.
        """
        doubtful = np.zeros(table.num_rows, bool)
        zeros = doubtful.copy()
        columns: dict[str, pa.Array] = {}
        for name in table.column_names:
            (column,) = table[name].chunks
            kind = self.columns.field(name).type
            if (found := json_fast.rounded(column, kind)) is not None:
                doubtful |= found
            if (found := json_fast.zeros(column, kind)) is not None:
                zeros |= found
            columns[name] = json_fast.finish(column, kind)
        if zeros.any():
            doubtful[zeros] |= json_fast.zero_doubts(chunk.take(pa.array(taken[zeros])))
        read = chunk if len(taken) == len(chunk) else chunk.take(pa.array(taken))
        stray = self._stray(read, table)
        left = taken[doubtful]
        if len(left):
            kept = pa.array(~doubtful)
            columns = {name: column.filter(kept) for name, column in columns.items()}
            taken, stray, read = taken[~doubtful], stray[~doubtful], read.filter(kept)
        return self._with_rescued(columns, stray, read), taken, left

    def _stray(self, read: pa.BinaryArray, table: pa.Table) -> npt.NDArray[np.bool_]:
        """The records to look at besides: they may have a field that belongs elsewhere than in the table."""
        if len(self._by_hand):
            return np.ones(len(read), bool)
        return has_stray(read, table) if self._options.unknown_fields == "rescue" else np.zeros(len(read), bool)

    def _with_rescued(
        self, columns: dict[str, pa.Array], stray: npt.NDArray[np.bool_], read: pa.BinaryArray
    ) -> pa.Table:
        """Our columns with the rescued one. `stray`: the rows that have something which belongs there."""
        rescued = pa.nulls(len(read), pa.string())
        if stray.any():
            rescued, by_hand = self._look_at(read, np.flatnonzero(stray))
            columns |= by_hand
        elif len(self._by_hand):
            columns |= {f.name: pa.nulls(0, f.type) for f in as_text(self._by_hand)}
        arrays = [columns[name] for name in self.columns.names]
        return pa.Table.from_arrays([*arrays, *([rescued] if self._rescued is not None else [])], schema=self.schema)

    def _look_at(self, read: pa.BinaryArray, rows: Indices) -> tuple[pa.Array, dict[str, pa.Array]]:
        """The rescued column, and the columns that the parser cannot read, of rows it has taken otherwise."""
        columns = Columns(self.columns)
        texts: list[str | None] = []
        by_hand: list[list[pa.Array]] = []
        try:
            for _, piece in chunks(read.take(pa.array(rows)), SINGLY_BYTES, SINGLY_ROWS):
                entries = piece.to_pylist()
                if not len(self._by_hand):
                    texts += stray_texts(entries, columns)
                    continue
                records = [load(entry) for entry in entries]
                found = Columns(self._by_hand).convert(records, map(len, entries))
                if found.mismatches:  # first: `stray` below looks inside of values, so all of them must fit
                    raise pa.ArrowInvalid("a value that its column cannot take")
                by_hand.append(found.arrays)
                for record in records if self._options.unknown_fields == "rescue" else ():
                    stray = columns.stray(record)
                    texts.append(to_text(stray) if stray else None)
        except BadRecord as error:
            raise pa.ArrowInvalid(str(error)) from error
        rescued = pa.array(texts or [None] * len(rows), pa.string())
        if len(rows) < len(read):
            place = np.full(len(read), len(rows))
            place[rows] = np.arange(len(rows))
            rescued = rescued.take(pa.array(place, mask=place == len(rows)))
        made = [pa.concat_arrays(parts) for parts in zip(*by_hand, strict=True)]
        return rescued, dict(zip(self._by_hand.names, made, strict=True)) if made else {}

    def _parse_singly(
        self, entries: pa.BinaryArray, left: Indices, unreadable: dict[int, str], candidates: Indices
    ) -> tuple[pa.Table, Indices]:
        """Rows of entries one by one, with the indices out of `left` that gave one."""
        records: list[dict[str, Any]] = []
        sizes: list[int] = []
        at: list[int] = []
        for index, entry in zip(left.tolist(), entries.to_pylist(), strict=True):
            try:
                records.append(self._load(entry))
            except BadRecord as error:
                unreadable[int(candidates[index])] = str(error)
            else:
                at.append(index)
                sizes.append(len(entry))
        found = Columns(self.columns).convert(records, sizes)
        stray = found.stray
        if self._options.unknown_fields == "ignore":
            stray = [
                {
                    name: value
                    for name, value in fields.items()
                    if name in self.columns.names and row in found.mismatches
                }
                for row, fields in enumerate(stray)
            ]
        rescued = [pa.array([to_text(fields) if fields else None for fields in stray], pa.string())]
        rows = pa.Table.from_arrays(
            [*found.arrays, *(rescued if self._rescued is not None else [])], schema=self.schema
        )
        kept = np.array(at, np.int64)
        if self._options.on_mismatch == "rescue" or not found.mismatches:
            return rows, kept
        unreadable |= {int(candidates[at[row]]): brief("; ".join(errors)) for row, errors in found.mismatches.items()}
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
