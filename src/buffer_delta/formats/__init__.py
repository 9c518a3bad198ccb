"""Formats: payload bytes to typed columns. `resolve_format` makes one from a configuration's word or table.

Importing this package imports neither Spark nor any parser: the names below come from their modules when they are
asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from buffer_delta.formats.registry import FORMATS, format_names, resolve_format

if TYPE_CHECKING:
    from buffer_delta.formats.arrow import ArrowFormat
    from buffer_delta.formats.avro.encode import avro_schema
    from buffer_delta.formats.avro.format import AvroFormat
    from buffer_delta.formats.base import RESCUED, Format, Parsed
    from buffer_delta.formats.csv import CsvFormat
    from buffer_delta.formats.json.format import JsonFormat
    from buffer_delta.formats.keyvalue import KeyValueFormat
    from buffer_delta.formats.merge import merge_schemas, settle
    from buffer_delta.formats.otlp import OtlpFormat
    from buffer_delta.formats.plain import RawFormat, TextFormat
    from buffer_delta.formats.protobuf.format import ProtobufFormat
    from buffer_delta.formats.schemas import arrow_schema

__all__ = [
    "FORMATS",
    "RESCUED",
    "ArrowFormat",
    "AvroFormat",
    "CsvFormat",
    "Format",
    "JsonFormat",
    "KeyValueFormat",
    "OtlpFormat",
    "Parsed",
    "ProtobufFormat",
    "RawFormat",
    "TextFormat",
    "arrow_schema",
    "avro_schema",
    "format_names",
    "merge_schemas",
    "resolve_format",
    "settle",
]

_LATER = {
    "RESCUED": "base",
    "Format": "base",
    "Parsed": "base",
    "arrow_schema": "schemas",
    "avro_schema": "avro.encode",
    "merge_schemas": "merge",
    "settle": "merge",
} | {kind: module.removeprefix(f"{__name__}.") for module, _, kind in (at.partition(":") for at in FORMATS.values())}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
