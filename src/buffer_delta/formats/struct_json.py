"""Spark's StructType as JSON, which is also how Delta's log holds a schema, to Arrow types. Without Spark.

    {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": true, "metadata": {}}]}

Only types that mean the same in Arrow: VARIANT, intervals, user-defined types and others are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from buffer_delta.formats.ddl import TIMESTAMP

_NAMED: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
}
_GENERATED, _IDENTITY, _DEFAULT = "delta.generationExpression", "delta.identity.", "CURRENT_DEFAULT"
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)", re.ASCII)


class UnknownType(ValueError):
    """A type that has no like in Arrow. Its text is the type."""


def struct_fields(given: Any) -> list[dict[str, Any]] | None:
    """The fields of a StructType, known by its `jsonValue()`; None if `given` is none."""
    as_json = getattr(given, "jsonValue", None)
    value = as_json() if callable(as_json) and not isinstance(given, type) else None
    if not isinstance(value, dict) or value.get("type") != "struct":
        return None
    fields: list[dict[str, Any]] = value["fields"]
    return fields


def is_computed(metadata: Mapping[str, Any]) -> bool:
    """Whether a column, by its metadata, is one that Delta computes and that takes no other value."""
    is_identity = any(key.startswith(_IDENTITY) for key in metadata)
    return _GENERATED in metadata or (is_identity and not metadata.get(f"{_IDENTITY}allowExplicitInsert"))


def is_filled(metadata: Mapping[str, Any]) -> bool:
    """Whether Delta has a value for rows that lack the column: what it is, no row tells before it is written."""
    return any(key in (_GENERATED, _DEFAULT) or key.startswith(_IDENTITY) for key in metadata)


def arrow_type(kind: Any) -> pa.DataType:
    """The Arrow type of a type in JSON. Raises UnknownType."""
    if isinstance(kind, str):
        decimal = _DECIMAL.fullmatch(kind)
        if decimal:
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        if kind in _NAMED:
            return _NAMED[kind]
        raise UnknownType(kind)
    match kind.get("type"):
        case "struct":
            return pa.struct(
                [pa.field(f["name"], arrow_type(f["type"]), nullable=f["nullable"]) for f in kind["fields"]]
            )
        case "array":
            return pa.list_(pa.field("element", arrow_type(kind["elementType"]), nullable=kind["containsNull"]))
        case "map":
            return pa.map_(arrow_type(kind["keyType"]), arrow_type(kind["valueType"]))
        case other:  # a user-defined type
            raise UnknownType(str(kind.get("pyClass") or kind.get("class") or other))
