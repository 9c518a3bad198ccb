"""Formats: payload bytes to typed columns. `resolve_format` makes one from a configuration's word or table."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from buffer.errors import InvalidConfig
from buffer_delta.formats.base import RESCUED, Format, Parsed
from buffer_delta.formats.json_format import JsonFormat
from buffer_delta.formats.plain import ArrowFormat, RawFormat, TextFormat
from buffer_delta.formats.schemas import arrow_schema, known_columns, merge_schemas, spark_schema

__all__ = [
    "RESCUED",
    "ArrowFormat",
    "Format",
    "JsonFormat",
    "Parsed",
    "RawFormat",
    "TextFormat",
    "arrow_schema",
    "merge_schemas",
    "resolve_format",
    "settle",
    "spark_schema",
]

_FORMATS: dict[str, type[Format]] = {kind.name: kind for kind in (RawFormat, TextFormat, JsonFormat, ArrowFormat)}


def resolve_format(spec: Any) -> Format:
    """The format that a configuration means: a name, a table with `type` and options, or a Format as it is."""
    if isinstance(spec, Format):
        return spec
    options = dict(spec) if isinstance(spec, Mapping) else {"type": spec}
    name = options.pop("type", None)
    if not isinstance(name, str) or name not in _FORMATS:
        raise InvalidConfig(
            f"format={spec!r} is not allowed: it must be one of {', '.join(_FORMATS)}, a table like "
            '{type = "json", schema = "id BIGINT, name STRING"}, or a Format',
            key="format",
            value=spec,
        )
    allowed = [p for p in inspect.signature(_FORMATS[name]).parameters if not p.startswith("_")]
    unknown = options.keys() - set(allowed)
    if unknown:
        raise InvalidConfig(
            f"the format {name!r} has no option {sorted(unknown)[0]!r}; it has: {', '.join(allowed) or 'none'}",
            key="format",
            value=spec,
        )
    return _FORMATS[name](**options)


def settle(form: Format, table: StructType | None, found: pa.Schema, taken: Collection[str] = ()) -> Format:
    """An evolving format with its columns settled: the table's, and those that were found besides.

    `taken` are the provenance columns and whatever else the data must not fill.
    """
    known, reserved = known_columns(table, [*taken, *([form.rescued_column] if form.rescued_column else [])])
    return form.with_schema(merge_schemas(known, [found], taken=reserved, max_columns=form.max_columns))
