"""An exact oracle for formats: whether a row and its rescued text together are what a JSON record said.

It shares nothing with the code it judges: Python's own JSON parser with decimals, fractions for what a float may be.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import types

SCALARS = (
    "BOOLEAN",
    "TINYINT",
    "INT",
    "BIGINT",
    "FLOAT",
    "DOUBLE",
    "DECIMAL(5, 1)",
    "DECIMAL(38, 10)",
    "STRING",
    "BINARY",
    "DATE",
    "TIMESTAMP",
    "TIMESTAMP_NTZ",
)


class Text(str):
    """A number as it was written."""


def exact(text: str) -> Any:
    return json.loads(text, parse_float=Text, parse_int=Text, parse_constant=Text)


def accounted(source: Any, kind: pa.DataType, got: Any, rescued: Any) -> bool:
    """Whether nothing of a value is lost or changed: it is in the column, or as it came in the rescued text."""
    if source is None:
        return got is None and rescued is None
    if got is None:
        return bool(rescued == source)
    if types.is_struct(kind) and isinstance(source, dict):
        fields = {field.name: field.type for field in kind}
        rest = rescued if rescued is not None else {}
        assert isinstance(rest, dict)
        known = all(accounted(source.get(name), inner, got[name], rest.get(name)) for name, inner in fields.items())
        return known and all(rest.get(name) == value for name, value in source.items() if name not in fields)
    if types.is_list(kind) and isinstance(source, list):
        rest = rescued if rescued is not None else [None] * len(source)
        parts = zip(source, got, rest, strict=True)
        return all(accounted(one, kind.value_type, value, left) for one, value, left in parts)
    if types.is_map(kind) and isinstance(source, dict):
        rest, held = rescued if rescued is not None else {}, dict(got)
        return held.keys() == source.keys() and all(
            accounted(one, kind.item_type, held[key], rest.get(key)) for key, one in source.items()
        )
    return rescued is None and same(source, kind, got)


def same(source: Any, kind: pa.DataType, got: Any) -> bool:
    """Whether a plain column holds exactly what was written."""
    if types.is_boolean(kind):
        return source is got
    if types.is_string(kind):
        plain = isinstance(source, str) and not isinstance(source, Text)
        return bool(got == source if plain or isinstance(source, Text) else exact(got) == source)
    if types.is_integer(kind):
        return isinstance(source, Text) and str(int(source)) == str(got)
    if types.is_floating(kind):
        return isinstance(source, Text) and _same_float(str(source), kind, got)
    if types.is_decimal(kind):
        return isinstance(source, str) and Decimal(source) == got
    if not isinstance(source, str) or isinstance(source, Text):
        return False
    if types.is_binary(kind):
        return base64.b64encode(got).decode() == source
    if types.is_date(kind):
        return dt.date.fromisoformat(source) == got
    moment = dt.datetime.fromisoformat(source)
    if kind.tz is None:
        return moment == got
    return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)) == got


def _same_float(source: str, kind: pa.DataType, got: float) -> bool:
    if source in ("NaN", "Infinity", "-Infinity"):
        return str(float(source)) == str(got)
    nearest = float(source)
    if kind == pa.float32() and got != 0 and math.isfinite(got):
        nearest = pa.array([source]).cast(kind)[0].as_py()  # from the text, without a stop at 64 bits
    if source.lstrip("-").isdigit():
        return math.isfinite(got) and int(got) == int(source) and got == nearest
    return got == nearest and math.isfinite(got) and (got == 0) == (Decimal(source) == 0)
