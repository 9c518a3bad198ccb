"""The format `json`: one JSON object for each entry, with given columns or with columns that follow the data.

    JsonFormat("id BIGINT, name STRING")
    JsonFormat("id BIGINT, name STRING", unknown_fields="ignore")          # faster if most fields are unknown
    JsonFormat()                                                           # evolving
    JsonFormat(schema_hints="amount DECIMAL(18,2)")                        # evolving, but for the type of that column

A field without a column, and a field that its column cannot take, go to `_rescued_data` as JSON text, numbers just
as they were written; it is null for the others. A field that is null, and has no column, leaves no trace. A record
that has no value for a NOT NULL column is bad, like one that is no JSON object (see `records`).

Memory does not depend on the names in the records, nor on how many there are. A piece of up to CHUNK_BYTES (see
`pieces`) takes about 20 times its bytes at most; a record larger than that, which is looked at as Python objects,
about 60 times its own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from buffer.config import reject
from buffer.errors import InvalidConfig
from buffer_delta.formats.base import MAX_COLUMNS, RESCUED, Format, Parsed, brief
from buffer_delta.formats.entries import Indices, as_binary, chunks, invalid_utf8
from buffer_delta.formats.json import fast as json_fast
from buffer_delta.formats.json import infer as json_infer
from buffer_delta.formats.json.crowds import Crowds
from buffer_delta.formats.json.known import load_known
from buffer_delta.formats.json.reading import BadRecord, load, to_text
from buffer_delta.formats.json.records import Columns, stray_texts
from buffer_delta.formats.json.stray import has_stray
from buffer_delta.formats.merge import merge_schemas
from buffer_delta.formats.names import same_name_key, storable
from buffer_delta.formats.options import FormatOptions
from buffer_delta.formats.schemas import arrow_schema, nullable, schema_text
from buffer_delta.formats.variant import as_text, is_variant

CHUNK_BYTES = 8 << 20  # parsed in one go: large enough that calls cost nothing, small enough to stay in memory twice
CHUNK_ROWS = 1 << 17
SINGLY_MAX = 512  # a piece with so few records in which something fails to convert is looked at record by record
SINGLY_BYTES = 1 << 20  # of records as Python objects at once, which take up to 50 times their bytes
SINGLY_ROWS = 1 << 14
WIDER = pa.decimal128(38, 18)
"""What a BIGINT may become that meets 1.5: all of BIGINT fits in, and Delta's type widening has a way to it, as it has
not to DOUBLE, which would round large numbers."""
PIECES = 16  # into which a chunk is cut to find it; each costs a call of the parser, about as much as 20 records singly


@dataclass(frozen=True, kw_only=True)
class JsonOptions(FormatOptions):
    schema: Any = None
    """DDL, StructType or Arrow schema, and then an Arrow schema. None: the columns follow the data."""
    rescued_data: str | None = RESCUED
    """Renames that column; None leaves it out, and then nothing may be rescued."""
    on_mismatch: str = "rescue"
    """`rescue`, or `dead_letter`: the record is bad."""
    unknown_fields: str = "rescue"
    """`rescue` or `ignore`."""
    schema_hints: Any = None
    """Types of some columns where the others follow the data: `"amount DECIMAL(18,2), tags ARRAY<STRING>"`. These
    are there from the start. What a table has already stays as it is."""
    max_columns: int = MAX_COLUMNS
    """What an evolving table may grow to: so many columns, and so many fields inside of them."""

    def __post_init__(self) -> None:
        if self.on_mismatch not in ("rescue", "dead_letter"):
            raise reject("on_mismatch", self.on_mismatch, "'rescue' or 'dead_letter'")
        if self.unknown_fields not in ("rescue", "ignore"):
            raise reject("unknown_fields", self.unknown_fields, "'rescue' or 'ignore'")
        if self.rescued_data is not None and not (isinstance(self.rescued_data, str) and self.rescued_data):
            raise reject("rescued_data", self.rescued_data, "the name of a column; None leaves it out")
        self._check_int("max_columns", 0)
        self._check_rescue()
        if self.schema is not None:
            object.__setattr__(self, "schema", arrow_schema(self.schema, variants=True))
        if self.schema_hints is not None:
            self._check_hints()

    def _check_hints(self) -> None:
        hints = arrow_schema(self.schema_hints, variants=True)
        if self.schema is not None:
            raise InvalidConfig(
                "schema_hints are for columns that follow the data: with a schema, put them into that",
                key="schema_hints",
                value=self.schema_hints,
            )
        for field in hints:
            if not field.nullable:
                raise reject("schema_hints", field.name, "without NOT NULL: a hint says a column's type")
            if same_name_key(field.name) == same_name_key(self.rescued_data or ""):
                raise reject("schema_hints", field.name, "other columns than the one that rescued fields go to")
            if not storable(field.name):
                raise reject("schema_hints", field.name, "a name that a Delta table can have")
        object.__setattr__(self, "schema_hints", hints)

    def _check_rescue(self) -> None:
        if self.rescued_data is None and "rescue" in (self.on_mismatch, self.unknown_fields):
            raise InvalidConfig(
                "rescued_data=None leaves no column to rescue into; set on_mismatch='dead_letter' and "
                "unknown_fields='ignore' too, or keep the column",
                key="rescued_data",
                value=None,
            )
        if self.schema is None and (self.on_mismatch, self.unknown_fields) != ("rescue", "rescue"):
            raise InvalidConfig(
                "without a schema the columns follow the data: what does not fit them yet must be rescued, so "
                "on_mismatch and unknown_fields must stay 'rescue'; or give a schema",
                key="on_mismatch" if self.on_mismatch != "rescue" else "unknown_fields",
                value=self.on_mismatch if self.on_mismatch != "rescue" else self.unknown_fields,
            )


class JsonFormat(Format):
    name: ClassVar[str] = "json"
    has_variants: ClassVar[bool] = True
    rescues_all_new: ClassVar[bool] = True
    Options: ClassVar[type[FormatOptions]] = JsonOptions
    options: JsonOptions

    def __init__(self, schema: Any = None, **options: Any) -> None:
        super().__init__(schema=schema, **options)
        self._rescued = self.options.rescued_data
        self._given: pa.Schema | None = self.options.schema
        if self._given is not None:
            self._prepare(self._given)

    def _prepare(self, given: pa.Schema) -> None:
        if self._rescued is not None and same_name_key(self._rescued) in map(same_name_key, given.names):
            raise InvalidConfig(
                f"the schema has a column {self._rescued!r}, which is where rescued fields go; rename one of them "
                "(rescued_data='…')",
                key="rescued_data",
                value=self._rescued,
            )
        self._columns = nullable(given)
        self._required = [f.name for f in given if not f.nullable]
        rescued = [pa.field(self._rescued, pa.string())] if self._rescued is not None else []
        self._schema = as_text(pa.schema([*self._columns, *rescued]))
        physical = [(f.name, json_fast.physical(f.type)) for f in self._columns]
        self._fast = pa.schema([(name, kind) for name, kind in physical if kind is not None])
        self._decimals = any(json_fast.has_decimals(f.type) for f in self._fast)
        self._crowds = Crowds(self._schema)
        self._by_hand = pa.schema([f for f in self._columns if f.name not in self._fast.names])

    # What it is

    @property
    def schema(self) -> pa.Schema:
        assert self._given is not None, "an evolving format gets its columns with with_schema()"
        return self._schema

    @property
    def variants(self) -> tuple[str, ...]:
        return tuple(f.name for f in self._columns if is_variant(f.type))

    @property
    def rescued_column(self) -> str | None:
        return self._rescued

    @property
    def evolving(self) -> bool:
        return self.options.schema is None

    def settings(self) -> dict[str, Any]:
        """Plans in ledgers hold the digest of it: for the same options it must never change."""
        options = self.options
        return {
            "schema": None if options.schema is None else schema_text(options.schema),
            "rescued_data": options.rescued_data,
            "on_mismatch": options.on_mismatch,
            "unknown_fields": options.unknown_fields,
            "max_columns": options.max_columns if self.evolving else None,
            **({"schema_hints": schema_text(options.schema_hints)} if options.schema_hints is not None else {}),
        }

    def with_schema(self, schema: pa.Schema) -> JsonFormat:
        settled = copy.copy(self)
        settled._given = schema
        settled._prepare(schema)
        return settled

    @property
    def max_columns(self) -> int:
        return self.options.max_columns

    def discover(self, entries: pa.Array) -> pa.Schema:
        found = pa.schema([])
        for _, chunk in chunks(as_binary(entries), CHUNK_BYTES, CHUNK_ROWS):
            found = json_infer.infer(chunk, self.options.max_columns, found)
        hints = self.options.schema_hints
        return found if hints is None else merge_schemas(hints, [found], max_columns=self.options.max_columns)

    def wider(self, known: pa.DataType, found: pa.DataType) -> pa.DataType | None:
        """Found is BIGINT for every whole number, so that one says nothing; DOUBLE is what has a fraction."""
        if found != pa.float64():
            return None
        return WIDER if known == pa.int64() else found if known in (pa.int8(), pa.int16(), pa.int32()) else None

    # Parsing

    @property
    def _passes_over(self) -> bool:
        """Nobody looks at fields without a column. (Where some column is read by hand, so is the whole record.)"""
        return self.options.unknown_fields == "ignore" and not len(self._by_hand)

    def _load(self, entry: bytes) -> dict[str, Any]:
        return load_known(entry, self._columns) if self._passes_over else load(entry)

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
        rows = pa.concat_tables(tables) if tables else self._schema.empty_table()
        complete = not bad and len(tables) <= 1
        return Parsed(rows, None if complete else np.concatenate(sources or [np.zeros(0, np.int64)]), sorted(bad))

    def _parse_chunk(
        self, chunk: pa.BinaryArray, start: int, bad: list[tuple[int, str]]
    ) -> list[tuple[pa.Table, Indices]]:
        """Rows with the index of their entry in the chunk; bad entries go to `bad` with their index in all."""
        unreadable = dict(invalid_utf8(chunk))
        suspects = json_fast.suspects(chunk)
        if self._passes_over:
            suspects = np.union1d(suspects, json_fast.infinities(chunk))
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
            kind = self._columns.field(name).type
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
        return has_stray(read, table) if self.options.unknown_fields == "rescue" else np.zeros(len(read), bool)

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
        arrays = [columns[name] for name in self._columns.names]
        return pa.Table.from_arrays([*arrays, *([rescued] if self._rescued is not None else [])], schema=self._schema)

    def _look_at(self, read: pa.BinaryArray, rows: Indices) -> tuple[pa.Array, dict[str, pa.Array]]:
        """The rescued column, and the columns that the parser cannot read, of rows it has taken otherwise."""
        columns = Columns(self._columns)
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
                for record in records if self.options.unknown_fields == "rescue" else ():
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
        found = Columns(self._columns).convert(records, sizes)
        stray = found.stray
        if self.options.unknown_fields == "ignore":
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
        if self.options.on_mismatch == "rescue" or not found.mismatches:
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
