"""The columns of a read: what the format and the queue give, and what Spark asks for.

Without `.schema(…)` a read has the format's columns, then provenance, then what the mode adds. With it, a read has
exactly those columns, in that order: provenance only where it is named. Spark takes a record batch only if its schema
is the one that it asked for to the letter, nullability included; `Columns.fit` sees to that.

What becomes of a bad entry, as Spark's own readers have it:

    permissive      a row without the format's columns; its text in the rescued column, where the format has one, else
                    its bytes in `_corrupt_record`
    dropmalformed   nothing
    failfast        the read fails
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from buffer.consume.fetch import FetchHandle
from buffer.errors import CorruptBatch, InvalidConfig, ObjectNotFound
from buffer_delta.decode.fetching import Group
from buffer_delta.decode.layout import RowLayout
from buffer_delta.decode.policy import BadEntries, Filled, OnBad, Rescue
from buffer_delta.decode.rows import RowDecoder
from buffer_delta.formats.base import RESCUED, Format
from buffer_delta.formats.plain import RawFormat
from buffer_delta.formats.schemas import arrow_schema
from buffer_delta.spark.source.options import ReadOptions

CORRUPT = "_corrupt_record"


@dataclass(frozen=True)
class KeepBytes(OnBad):
    """For formats without a rescued column."""

    @property
    def fields(self) -> list[pa.Field]:
        return [pa.field(CORRUPT, pa.binary())]

    def bad(self, bad: BadEntries, /) -> Filled:
        return {CORRUPT: bad.payloads, **bad.provenance()}


@dataclass(frozen=True)
class Drop(OnBad):
    column: pa.Field
    """Any: its rows are none."""

    def bad(self, _bad: BadEntries, /) -> Filled:
        return {self.column.name: pa.nulls(0, self.column.type)}


@dataclass(frozen=True)
class FailFast(OnBad):
    def bad(self, bad: BadEntries, /) -> Filled:
        raise CorruptBatch(
            f"entry {bad.entries[0]} of batch {bad.descriptor.sequence} is bad ({bad.errors[0]}), and mode is "
            "'failfast'; pass mode='permissive' to keep such entries apart, 'dropmalformed' to leave them out",
            location=bad.descriptor.location,
        )


def on_bad(form: Format, mode: str) -> OnBad:
    match mode:
        case "failfast":
            return FailFast()
        case "dropmalformed":
            return Drop(form.schema.field(0))
    if form.rescued_column is not None:
        return Rescue(form.rescued_column)
    return FailFast() if isinstance(form, RawFormat) else KeepBytes()  # nothing raw is ever bad


@dataclass(frozen=True)
class Columns:
    """How the batches of a read become rows. Pickles: it travels to the tasks."""

    decoder: RowDecoder
    target: pa.Schema
    """What Spark wants, to the letter."""

    def rows(self, handle: FetchHandle, group: Group) -> Iterator[pa.RecordBatch]:
        """The rows of a group. Raises what a fetch raises, and CorruptBatch for what cannot be a row."""
        try:
            for batch in self.decoder.rows(handle, group):
                if batch.num_rows:
                    yield self.fit(batch)
        except ObjectNotFound as error:
            raise ObjectNotFound(
                f"{error.location!r} is gone from the store. It was in the queue when this read was planned; since "
                "then it was acked and collected, or another reader took the queue over. Make the DataFrame or view "
                "anew: it keeps the batches that it saw first",
                location=error.location,
                url=error.url,
                retryable=False,
            ) from error

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        chosen = batch.select(self.target.names)
        for field, column in zip(self.target, chosen.columns, strict=True):
            if not field.nullable and column.null_count:
                raise CorruptBatch(
                    f"the column {field.name!r} is NOT NULL in the schema of this read, but the data has nulls there; "
                    "make it nullable, or pass mode='dropmalformed' with a format that checks it"
                )
        return chosen if chosen.schema.equals(self.target) else chosen.cast(self.target)


def own_columns(options: ReadOptions) -> RowDecoder:
    """The columns of a read that was given no schema by `.schema(…)`. Raises InvalidConfig."""
    form = options.with_format()
    if form.evolving:
        raise InvalidConfig(
            f"the format {form.name!r} needs a schema here: the columns of a DataFrame cannot follow the data. Pass "
            "option('schema', 'id BIGINT, name STRING'), or call .schema(…)",
            key="schema",
        )
    return RowDecoder(form, RowLayout.renamed(options.columns), on_bad(form, options.mode))


def asked_columns(options: ReadOptions, asked: Any, target: pa.Schema) -> Columns:
    """The columns of a read that Spark wants with the StructType `asked`, whose Arrow schema is `target`."""
    layout = RowLayout.renamed(options.columns)
    form = None if options.lacks_schema else options.with_format()
    if form is None or form.evolving:
        rescued = options.format_options.get("rescued_data", RESCUED) if form is None else form.rescued_column
        form = options.with_format(_data_columns(rescued, layout, arrow_schema(asked)))
    decoder = RowDecoder(form, _only(layout, target.names), on_bad(form, options.mode))
    left_out = [field.name for field in layout.arrow_fields() if field.name not in target.names]
    for field in target:
        _check_column(field, decoder.schema, left_out, options.mode)
    return Columns(decoder, target)


def _data_columns(rescued: str | None, layout: RowLayout, asked: pa.Schema) -> pa.Schema:
    """What of the schema asked for is the data's own."""
    added = {field.name for field in layout.arrow_fields()} | {rescued, CORRUPT}
    fields = [field for field in asked if field.name not in added]
    if not fields:
        raise InvalidConfig(
            f"the schema {asked.names} has no column of the data; name at least one", key="schema", value=asked.names
        )
    return pa.schema(fields)


def _only(layout: RowLayout, names: list[str]) -> RowLayout:
    kept = {f: name if name in names else None for f, name in layout_names(layout).items()}
    return replace(layout, **kept)


def layout_names(layout: RowLayout) -> dict[str, str | None]:
    return {f: getattr(layout, f) for f in ("sequence", "index", "ingested_at", "metadata")}


def _check_column(field: pa.Field, given: pa.Schema, left_out: list[str], mode: str) -> None:
    if field.name not in given.names:
        raise InvalidConfig(
            f"the schema asks for a column {field.name!r}, but this read has: {', '.join([*given.names, *left_out])}",
            key="schema",
            value=field.name,
        )
    found = given.field(field.name).type
    if arrow_schema(pa.schema([field])).field(0).type != arrow_schema(pa.schema([("x", found)])).field(0).type:
        raise InvalidConfig(
            f"the schema asks for {field.name!r} as {field.type}, but it is {found} in this read",
            key="schema",
            value=str(field.type),
        )
    if not field.nullable and mode == "permissive":
        raise InvalidConfig(
            f"the column {field.name!r} is NOT NULL, but in mode 'permissive' a bad entry is a row of nulls; make it "
            "nullable, or pass mode='failfast' or 'dropmalformed'",
            key="schema",
            value=field.name,
        )
