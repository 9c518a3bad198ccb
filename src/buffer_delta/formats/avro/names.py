"""Avro schemas as they are written: JSON, named types, the canonical form and its fingerprint. Pure.

The fingerprint is what an entry in Avro's single-object encoding begins with: CRC-64-AVRO of the parsing canonical
form, as the specification has both.
"""

from __future__ import annotations

import json
import re
from typing import Any

from buffer.errors import InvalidConfig

FRAMINGS = ("none", "confluent", "soe")
"""What may stand before a record: nothing; a zero and the schema's number; Avro's single-object encoding."""
SCHEMA_ID_MAX = (1 << 32) - 1
CONFLUENT_MAGIC = 0
SOE_MAGIC = b"\xc3\x01"
PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)
_SHOWN_MAX = 100
_EMPTY = 0xC15D213AA4D7A795
_MASK = (1 << 64) - 1


def wrong(what: str, value: Any = None) -> InvalidConfig:
    return InvalidConfig(f"avro_schema: {what}", key="avro_schema", value=value)


def loaded(given: Any) -> Any:
    """A schema as JSON values, of JSON text or of these values themselves. Raises InvalidConfig."""
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except (ValueError, RecursionError) as error:
        raise wrong(f"{given[:_SHOWN_MAX]!r} is not JSON: {error}", given[:_SHOWN_MAX]) from error


def full_name(name: Any, namespace: str, own_namespace: Any = None) -> str:
    """The name of a named type, or what a reference to one means. Raises InvalidConfig."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise wrong(f"{str(name)[:_SHOWN_MAX]!r} is no name of a type", name)
    space = own_namespace if isinstance(own_namespace, str) else namespace
    return name if "." in name or not space else f"{space}.{name}"


def namespace_of(name: str) -> str:
    return name.rpartition(".")[0]


def canonical(schema: Any, namespace: str = "") -> str:
    """The parsing canonical form of a schema that passed the checks of `types`."""
    if isinstance(schema, str):
        return _text(schema if schema in PRIMITIVES else full_name(schema, namespace))
    if isinstance(schema, list):
        return "[" + ",".join(canonical(branch, namespace) for branch in schema) + "]"
    kind = schema["type"]
    if not isinstance(kind, str):
        return canonical(kind, namespace)
    if kind == "array":
        return f'{{"type":"array","items":{canonical(schema["items"], namespace)}}}'
    if kind == "map":
        return f'{{"type":"map","values":{canonical(schema["values"], namespace)}}}'
    if kind not in ("record", "error", "enum", "fixed"):
        return canonical(kind, namespace)
    name = full_name(schema["name"], namespace, schema.get("namespace"))
    head = f'{{"name":{_text(name)},"type":{_text(kind)}'
    if kind == "enum":
        return f'{head},"symbols":[{",".join(map(_text, schema["symbols"]))}]}}'
    if kind == "fixed":
        return f'{head},"size":{int(schema["size"])}}}'
    inside = namespace_of(name)
    fields = (f'{{"name":{_text(f["name"])},"type":{canonical(f["type"], inside)}}}' for f in schema["fields"])
    return f'{head},"fields":[{",".join(fields)}]}}'


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def fingerprint(schema: Any) -> int:
    """CRC-64-AVRO of the canonical form."""
    found = _EMPTY
    for byte in canonical(schema).encode():
        found = (found >> 8) ^ _TABLE[(found ^ byte) & 0xFF]
    return found


def _table() -> list[int]:
    table = []
    for number in range(256):
        entry = number
        for _ in range(8):
            entry = (entry >> 1) ^ (_EMPTY & -(entry & 1) & _MASK)
        table.append(entry)
    return table


_TABLE = _table()
