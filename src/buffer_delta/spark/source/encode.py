"""Rows to entries: what a write puts into the queue. Pure; runs in the tasks.

    raw      the column `value`, binary or string, as it is
    json     every column but `metadata`, as one JSON object for each row; fields that are null are left out
    avro     every column but `metadata`, as one Avro record for each row, of the schema that
             `buffer_delta.formats.avro_schema` tells; `framing` puts the schema's fingerprint or number before it
    arrow    every column but `metadata`, as one Arrow IPC stream for many rows

The column `metadata`, binary or string, may be there in all of them: it becomes the metadata of the entries. JSON is
written as the format `json` reads it: binary in base64, times in ISO 8601, decimals as text, so that nothing is lost.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from buffer.errors import InvalidConfig, InvalidInput
from buffer_delta.formats.avro import encode as avro
from buffer_delta.formats.schemas import arrow_schema

VALUE = "value"
METADATA = "metadata"
FORMATS_OUT = ("raw", "json", "avro", "arrow")

Part = tuple[pa.Array, bytes]
"""Entries, as binary, and the metadata that all of them have."""


@dataclass(frozen=True)
class Encoder:
    """How the rows of one schema become entries. Pickles."""

    format: str
    columns: tuple[str, ...]
    """Of the data."""
    has_metadata: bool
    frame: bytes = b""
    """What stands before each Avro record."""

    def parts(self, rows: pa.RecordBatch) -> Iterator[Part]:
        """The entries of some rows, in order. Raises InvalidInput for a value that cannot be one."""
        if self.format != "raw":
            _check_texts(rows.select(list(self.columns)))
        for piece, metadata in self._runs(rows):
            if piece.num_rows:
                yield self._entries(piece.select(list(self.columns))), metadata

    def _entries(self, rows: pa.RecordBatch) -> pa.Array:
        if self.format == "arrow":
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, rows.schema) as stream:
                stream.write_batch(rows)
            return pa.array([sink.getvalue().to_pybytes()], pa.binary())
        if self.format == "avro":
            return avro.encoded(rows, self.frame)
        if self.format == "json":
            return pa.array(_json_texts(rows), pa.binary())
        values = rows.column(0)
        if values.null_count:
            raise InvalidInput(
                f"the column {VALUE!r} has {values.null_count} nulls; an entry must be bytes, perhaps of zero length: "
                "filter them out, or write with option('format', 'json')"
            )
        return values.cast(pa.binary())

    def _runs(self, rows: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        """The rows cut where the metadata changes; null is empty."""
        if not self.has_metadata or not rows.num_rows:
            yield rows, b""
            return
        metadata = pc.fill_null(rows.column(METADATA).cast(pa.binary()), b"")
        changes = pc.not_equal(metadata.slice(1), metadata.slice(0, rows.num_rows - 1))
        starts = [0, *(np.flatnonzero(changes.to_numpy(zero_copy_only=False)) + 1).tolist(), rows.num_rows]
        for start, stop in pairwise(starts):
            yield rows.slice(start, stop - start), metadata[start].as_py()


def encoder_for(form: str, schema: pa.Schema, framing: str = "none", schema_id: int | None = None) -> Encoder:
    """The encoder of a write, before any row comes. Raises InvalidInput if its columns do not fit."""
    for field in schema:
        _refuse_variant(field.type, field.name)
        if schema.names.count(field.name) > 1:
            raise InvalidInput(
                f"two columns are named {field.name!r}, as after a join; one would hide the other: rename or drop it"
            )
    has_metadata = METADATA in schema.names
    columns = tuple(name for name in schema.names if name != METADATA)
    if has_metadata and not _is_bytes(schema.field(METADATA).type):
        raise InvalidInput(f"the column {METADATA!r} is {schema.field(METADATA).type}; it must be binary or string")
    if form == "raw":
        if columns != (VALUE,):
            raise InvalidInput(
                f"a write in the format 'raw' takes the column {VALUE!r}, and {METADATA!r} if you like, but got "
                f"{', '.join(schema.names)}; select them, or write all columns with option('format', 'json')"
            )
        if not _is_bytes(schema.field(VALUE).type):
            raise InvalidInput(f"the column {VALUE!r} is {schema.field(VALUE).type}; it must be binary or string")
    elif not columns:
        raise InvalidInput(f"a write in the format {form!r} needs a column besides {METADATA!r}")
    if form == "json":
        for name in columns:
            _writer(schema.field(name).type, name)
    frame = b""
    if form == "avro":
        frame = _avro_frame(pa.schema([schema.field(name) for name in columns]), framing, schema_id)
    return Encoder(form, columns, has_metadata, frame)


def _refuse_variant(kind: pa.DataType, name: str) -> None:
    """A VARIANT comes as a struct of two binaries; written as that, no reader would know what it was."""
    inner = [kind.field(index) for index in range(kind.num_fields)]
    if any((field.metadata or {}).get(b"variant") == b"true" for field in inner):
        raise InvalidInput(f"the column {name!r} is a VARIANT, which no format holds: select to_json({name}) instead")
    for field in inner:
        _refuse_variant(field.type, f"{name}.{field.name}")


def _avro_frame(columns: pa.Schema, framing: str, schema_id: int | None) -> bytes:
    try:
        avro.avro_schema(columns)
    except InvalidConfig as error:
        raise InvalidInput(f"cannot be written as Avro: {error}") from error
    return avro.head(arrow_schema(columns), framing, schema_id)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind)) or _is_text(kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _check_texts(rows: pa.RecordBatch) -> None:
    """Spark takes any bytes for a STRING. A reader refuses the whole entry then, with every row in it."""
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InvalidInput(
                f"the column {name!r} has text that is not UTF-8 ({error}): cast it to BINARY, or mend it with "
                f"make_valid_utf8({name})"
            ) from error


def _json_texts(rows: pa.RecordBatch) -> list[bytes]:
    columns = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        write = _writer(field.type, field.name)
        try:
            values = column.to_pylist()
        except (OverflowError, ValueError) as error:  # Python knows the years 1 to 9999, Spark more
            raise InvalidInput(
                f"the column {field.name!r} has a date or time that cannot be written as JSON ({error}): write with "
                "option('format', 'avro') or 'arrow', or cast it to a string"
            ) from error
        columns.append((field.name, [None if value is None else write(value) for value in values]))
    names = [name for name, _ in columns]
    return [
        json.dumps(
            {name: value for name, value in zip(names, row, strict=True) if value is not None},
            ensure_ascii=False,
            separators=(",", ":"),
        ).encode()
        for row in zip(*(values for _, values in columns), strict=True)
    ]


def _writer(kind: pa.DataType, name: str) -> Callable[[Any], Any]:
    """A function from a value of this type, not null, to what `json.dumps` takes. Raises InvalidInput."""
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind) or _is_text(kind):
        return _same
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda value: base64.b64encode(value).decode()
    if pa.types.is_decimal(kind):
        return lambda value: format(value, "f")
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return lambda value: value.isoformat()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _writer(kind.value_type, name)
        return lambda values: [None if value is None else element(value) for value in values]
    if pa.types.is_map(kind) and _is_text(kind.key_type):
        item = _writer(kind.item_type, name)
        return lambda pairs: {key: None if value is None else item(value) for key, value in pairs}
    if pa.types.is_struct(kind):
        fields = [(field.name, _writer(field.type, name)) for field in kind]
        return lambda value: {f: write(value[f]) for f, write in fields if value[f] is not None}
    raise InvalidInput(f"the column {name!r} has the type {kind}, which cannot be written as JSON: leave it out")


def _same(value: Any) -> Any:
    return value
