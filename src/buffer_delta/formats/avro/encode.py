"""Arrow rows to Avro records, and the schema of these. Column by column, in numpy and Arrow.

    avro_schema(frame.schema)      what a write with `format = "avro"` uses; JSON text, the same for the same columns

Every column is a union of null and its type, whether it may be null or not: the schema then depends on names and types
alone. TINYINT and SMALLINT are ints. Times are microseconds, decimals bytes.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from buffer.errors import InvalidInput
from buffer_delta.formats.avro.names import CONFLUENT_MAGIC, SOE_MAGIC, fingerprint
from buffer_delta.formats.entries import Indices, offsets_of
from buffer_delta.formats.schemas import arrow_schema

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_VARINT_BYTES_MAX = 10
_NULL, _VALUE = b"\x00", b"\x02"  # branches 0 and 1
_END = b"\x00"  # a block of no items
_DECIMAL_BYTES = 16
_PLAIN = {
    pa.bool_(): "boolean",
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32()), "int"),
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
}


def avro_schema(columns: Any) -> str:
    """The schema, as JSON text, of rows with these columns: a StructType, DDL or Arrow schema. Raises InvalidInput."""
    return json.dumps(record_schema(arrow_schema(columns)))


def record_schema(columns: pa.Schema, name: str = "row") -> dict[str, Any]:
    """`name` makes the names of records inside unlike each other."""
    fields = []
    for field in columns:
        if not _NAME.fullmatch(field.name):
            raise InvalidInput(
                f"the column {field.name!r} cannot be a field of Avro, whose names have only letters from A to Z, "
                "digits and _: rename it, or write with option('format', 'json')"
            )
        fields.append({"name": field.name, "type": ["null", _type(field.type, f"{name}_{field.name}")]})
    return {"type": "record", "name": name, "fields": fields}


def _type(kind: pa.DataType, name: str) -> Any:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if pa.types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", _type(kind.value_type, name)]}
    if pa.types.is_map(kind):
        return {"type": "map", "values": ["null", _type(kind.item_type, name)]}
    assert pa.types.is_struct(kind), f"{kind} passed the schema's check"
    return record_schema(pa.schema(list(kind)), name)


def head(columns: pa.Schema, framing: str, schema_id: int | None) -> bytes:
    """What stands before every record."""
    if framing == "confluent":
        assert schema_id is not None, "checked with the options"
        return bytes([CONFLUENT_MAGIC]) + schema_id.to_bytes(4, "big")
    if framing == "soe":
        return SOE_MAGIC + fingerprint(record_schema(columns)).to_bytes(8, "little")
    return b""


def encoded(rows: pa.RecordBatch, before: bytes) -> pa.BinaryArray:
    """An entry for each row: `before`, and the record."""
    parts = [_nullable(column) for column in rows.columns]
    return _joined(pa.scalar(before, pa.binary()), *parts)


def _nullable(values: pa.Array) -> pa.BinaryArray:
    """Branch and value."""
    made = _joined(pa.scalar(_VALUE, pa.binary()), _values(values))
    return made if not values.null_count else pc.if_else(values.is_valid(), made, pa.scalar(_NULL, pa.binary()))


def _values(values: pa.Array) -> pa.BinaryArray:
    """Every value's bytes; of a null any."""
    kind = values.type
    if pa.types.is_struct(kind):
        inside = [_nullable(inner) for inner in values.flatten()]
        return _joined(*inside)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return _lists(values)
    if pa.types.is_decimal(kind):
        return _with_length(_decimals(values))
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _with_length(pc.fill_null(values.cast(pa.binary()), b""))
    if pa.types.is_floating(kind):
        numbers = pc.fill_null(values, 0.0).to_numpy(zero_copy_only=False)
        return _of_width(np.ascontiguousarray(numbers).astype(f"<f{numbers.itemsize}").tobytes(), numbers.itemsize)
    if pa.types.is_boolean(kind):
        return _of_width(pc.fill_null(values, False).to_numpy(zero_copy_only=False).astype(np.uint8).tobytes(), 1)
    width = pa.int32() if pa.types.is_date(kind) else pa.int64() if pa.types.is_timestamp(kind) else kind
    numbers = pc.fill_null(values.view(width), 0)
    return varints(numbers.to_numpy(zero_copy_only=False).astype(np.int64))


def _lists(values: pa.Array) -> pa.BinaryArray:
    """A block of all items, if there are any, and one of none."""
    if pa.types.is_map(values.type):
        pair = pa.struct([pa.field("key", values.type.key_type), pa.field("value", values.type.item_type)])
        pairs = values.cast(pa.list_(pair)).flatten()
        items = _joined(_values(pairs.field(0)), _nullable(pc.struct_field(pairs, 1)))
        lengths = pc.list_value_length(values.cast(pa.list_(pair)))
    else:
        items = _nullable(values.flatten())
        lengths = pc.list_value_length(values)
    counts = pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False).astype(np.int64)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]).astype(np.int32)
    together = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), items), b"")
    end = pa.scalar(_END, pa.binary())
    return pc.if_else(pa.array(counts > 0), _joined(varints(counts), together, end), end)


def _with_length(values: pa.BinaryArray) -> pa.BinaryArray:
    return _joined(varints(np.diff(offsets_of(values)).astype(np.int64)), values)


def _decimals(values: pa.Array) -> pa.BinaryArray:
    """The unscaled numbers, big-endian, in as few bytes as can be."""
    raw = values.fill_null(0).buffers()[1]
    raw = memoryview(raw)[_DECIMAL_BYTES * values.fill_null(0).offset :] if raw is not None else b""
    numbers = (
        int.from_bytes(raw[_DECIMAL_BYTES * at : _DECIMAL_BYTES * (at + 1)], "little", signed=True)
        for at in range(len(values))
    )
    return pa.array([n.to_bytes((n + (n < 0)).bit_length() // 8 + 1, "big", signed=True) for n in numbers], pa.binary())


def varints(values: Indices) -> pa.BinaryArray:
    """Numbers as Avro writes them: zigzag, seven bits a byte, the lowest first."""
    zigzag = (values.astype(np.uint64) << np.uint64(1)) ^ (values >> np.int64(63)).astype(np.uint64)
    sizes = np.ones(len(values), np.int64)
    for number in range(1, _VARINT_BYTES_MAX):
        sizes += zigzag >= np.uint64(1 << 7 * number)
    width = int(sizes.max(initial=1))
    made = np.empty((len(values), width), np.uint8)
    for number in range(width):
        bits = ((zigzag >> np.uint64(7 * number)) & np.uint64(0x7F)).astype(np.uint8)
        made[:, number] = bits | np.where(number < sizes - 1, 0x80, 0).astype(np.uint8)
    data = made[np.arange(width) < sizes[:, None]]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _of_width(data: bytes, width: int) -> pa.BinaryArray:
    count = len(data) // width
    offsets = np.arange(0, len(data) + 1, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _joined(*parts: Any) -> pa.BinaryArray:
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
