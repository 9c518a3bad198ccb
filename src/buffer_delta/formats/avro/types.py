"""From an Avro schema to the nodes that read it. Raises InvalidConfig that says what cannot be read, and where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from buffer_delta.formats.avro.cursor import Node
from buffer_delta.formats.avro.leaves import BooleanNode, BytesNode, EnumNode, FloatNode, NumberNode
from buffer_delta.formats.avro.names import PRIMITIVES, full_name, namespace_of, wrong
from buffer_delta.formats.avro.read import ArrayNode, MapNode, NullNode, RecordNode, UnionNode
from buffer_delta.formats.ddl import DECIMAL_PRECISION_MAX, TIMESTAMP

_FIXED_MAX = 1 << 20  # bytes of a fixed: more is a mistake
_LOCAL = pa.timestamp("us")
_TIMES = {
    ("int", "date"): NumberNode(pa.date32(), is_int=True),
    ("long", "timestamp-millis"): NumberNode(TIMESTAMP, is_millis=True),
    ("long", "timestamp-micros"): NumberNode(TIMESTAMP),
    ("long", "local-timestamp-millis"): NumberNode(_LOCAL, is_millis=True),
    ("long", "local-timestamp-micros"): NumberNode(_LOCAL),
}
_PLAIN: Mapping[str, Node] = {
    "null": NullNode(),
    "boolean": BooleanNode(pa.bool_()),
    "int": NumberNode(pa.int32(), is_int=True),
    "long": NumberNode(pa.int64()),
    "float": FloatNode(pa.float32(), 4),
    "double": FloatNode(pa.float64(), 8),
    "bytes": BytesNode(pa.binary()),
    "string": BytesNode(pa.string()),
}


def record_node(schema: Any) -> RecordNode:
    """The reader of a record, which is what an entry must be."""
    try:
        node = _Types().node(schema, "", ())
    except RecursionError as error:
        raise wrong("it is nested too deeply") from error
    if not isinstance(node, RecordNode):
        raise wrong(f"it must be a record, whose fields become columns, not {_shown(schema)}")
    if pa.types.is_null(node.kind):
        raise wrong("the record has no field that could be a column")
    return node


class _Types:
    def __init__(self) -> None:
        self._named: dict[str, Node] = {}

    def node(self, schema: Any, namespace: str, inside: tuple[str, ...]) -> Node:
        """`inside`: the named types around it."""
        if isinstance(schema, str):
            return self._by_name(schema, namespace, inside)
        if isinstance(schema, list):
            return self._union(schema, namespace, inside)
        if not isinstance(schema, Mapping) or "type" not in schema:
            raise wrong(f"{_shown(schema)} is no type")
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.node(kind, namespace, inside)
        match kind:
            case "array":
                return ArrayNode(self._item(schema.get("items"), namespace, inside, "array"))
            case "map":
                value = self._item(schema.get("values"), namespace, inside, "map")
                return MapNode(RecordNode((("key", _PLAIN["string"]), ("value", value))))
            case "record" | "error" | "enum" | "fixed":
                return self._define(schema, kind, namespace, inside)
        if kind in PRIMITIVES:
            return _logical(schema, kind, _PLAIN[kind])
        return self._by_name(kind, namespace, inside)

    def _by_name(self, name: str, namespace: str, inside: tuple[str, ...]) -> Node:
        if name in PRIMITIVES:
            return _PLAIN[name]
        full = full_name(name, namespace)
        for known in (full, name):
            if known in inside:
                raise wrong(f"the record {known!r} holds itself, which no column can; load it as 'raw'", known)
            if known in self._named:
                return self._named[known]
        raise wrong(f"there is no type {full!r}", full)

    def _define(self, schema: Mapping[str, Any], kind: str, namespace: str, inside: tuple[str, ...]) -> Node:
        name = full_name(schema.get("name"), namespace, schema.get("namespace"))
        if name in self._named or name in inside:
            raise wrong(f"the name {name!r} is there twice", name)
        node: Node
        if kind == "enum":
            symbols = schema.get("symbols")
            if not isinstance(symbols, list) or not symbols or not all(isinstance(s, str) for s in symbols):
                raise wrong(f"the enum {name!r} has no list of symbols", name)
            node = EnumNode(tuple(symbols), pa.string())
        elif kind == "fixed":
            size = schema.get("size")
            if type(size) is not int or not 1 <= size <= _FIXED_MAX:
                raise wrong(f"the fixed {name!r} has the size {size!r}: at least 1, at most {_FIXED_MAX:,}", name)
            node = _logical(schema, kind, BytesNode(pa.binary(), size))
        else:
            node = self._record(schema, name, inside)
        self._named[name] = node
        return node

    def _record(self, schema: Mapping[str, Any], name: str, inside: tuple[str, ...]) -> RecordNode:
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise wrong(f"the record {name!r} has no list of fields", name)
        found = []
        for field in fields:
            if not isinstance(field, Mapping) or "type" not in field or not isinstance(field.get("name"), str):
                raise wrong(f"the record {name!r} has a field without name or type: {_shown(field)}", name)
            found.append((field["name"], self.node(field["type"], namespace_of(name), (*inside, name))))
        if len({each for each, _ in found}) < len(found):
            raise wrong(f"the record {name!r} has a field twice", name)
        return RecordNode(tuple(found))

    def _item(self, schema: Any, namespace: str, inside: tuple[str, ...], what: str) -> Node:
        node = self.node(schema, namespace, inside)
        if pa.types.is_null(node.kind) or node.min_bytes == 0:
            raise wrong(f"an {what} of {_shown(schema)} holds nothing that a column could, in any number")
        return node

    def _union(self, schemas: list[Any], namespace: str, inside: tuple[str, ...]) -> Node:
        branches = tuple(self.node(schema, namespace, inside) for schema in schemas)
        if not branches:
            raise wrong("a union without branches")
        kinds = {node.kind for node in branches if not pa.types.is_null(node.kind)}
        held: pa.DataType | None = None
        several = sum(not pa.types.is_null(node.kind) for node in branches)
        if several <= 1:
            held = next(iter(kinds), pa.null())
        elif kinds == {pa.int32(), pa.int64()}:
            held = pa.int64()
        elif kinds == {pa.float32(), pa.float64()}:
            held = pa.float64()
        return UnionNode(branches, held)


def _logical(schema: Mapping[str, Any], kind: str, plain: Node) -> Node:
    """What a logical type makes of a plain one. One that is unknown, or makes no sense, is ignored, as Avro wants."""
    logical = schema.get("logicalType")
    if logical == "decimal" and isinstance(plain, BytesNode) and kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision", 0), schema.get("scale", 0)
        whole = isinstance(precision, int) and isinstance(scale, int)
        if whole and 1 <= precision <= DECIMAL_PRECISION_MAX and 0 <= scale <= precision:
            return BytesNode(pa.decimal128(precision, scale), plain.size)
    return _TIMES.get((kind, logical), plain) if isinstance(logical, str) else plain


def _shown(schema: Any) -> str:
    text = repr(schema)
    return text if len(text) <= 100 else text[:100] + "…"
