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
from typing import Any, ClassVar

import pyarrow as pa

from buffer.errors import InvalidConfig
from buffer_delta.formats.base import Format, Parsed
from buffer_delta.formats.entries import as_binary, chunks
from buffer_delta.formats.json import infer as json_infer
from buffer_delta.formats.json.options import JsonOptions
from buffer_delta.formats.json.parse import CHUNK_BYTES, CHUNK_ROWS, Parser
from buffer_delta.formats.merge import merge_schemas
from buffer_delta.formats.names import same_name_key
from buffer_delta.formats.options import FormatOptions
from buffer_delta.formats.schemas import schema_text
from buffer_delta.formats.variant import is_variant

WIDER = pa.decimal128(38, 18)
"""What a BIGINT may become that meets 1.5: all of BIGINT fits in, and Delta's type widening has a way to it, as it has
not to DOUBLE, which would round large numbers."""


class JsonFormat(Format):
    name: ClassVar[str] = "json"
    has_variants: ClassVar[bool] = True
    rescues_all_new: ClassVar[bool] = True
    Options: ClassVar[type[FormatOptions]] = JsonOptions
    options: JsonOptions

    def __init__(self, schema: Any = None, **options: Any) -> None:
        super().__init__(schema=schema, **options)
        self._rescued = self.options.rescued_data
        self._settled: Parser | None = None
        if self.options.schema is not None:
            self._prepare(self.options.schema)

    def _prepare(self, given: pa.Schema) -> None:
        if self._rescued is not None and same_name_key(self._rescued) in map(same_name_key, given.names):
            raise InvalidConfig(
                f"the schema has a column {self._rescued!r}, which is where rescued fields go; rename one of them "
                "(rescued_data='…')",
                key="rescued_data",
                value=self._rescued,
            )
        self._settled = Parser(given, self.options)

    @property
    def _parser(self) -> Parser:
        assert self._settled is not None, "an evolving format gets its columns with with_schema()"
        return self._settled

    # What it is

    @property
    def schema(self) -> pa.Schema:
        return self._parser.schema

    @property
    def variants(self) -> tuple[str, ...]:
        return tuple(f.name for f in self._parser.columns if is_variant(f.type))

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

    def pieces(self, entries: pa.BinaryArray, max_bytes: int, max_rows: int) -> Iterator[tuple[int, pa.BinaryArray]]:
        return self._parser.pieces(entries, max_bytes, max_rows)

    def parse(self, entries: pa.Array) -> Parsed:
        return self._parser.parse(entries)
