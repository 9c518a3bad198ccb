"""Mutated records for csv, avro, protobuf, otlp and keyvalue: the part of `tests.fuzz` beside `tests.fuzz_formats`.

Every entry gives rows or an error, never both; the same ones whether it stands alone or among others; what it gives is
valid for Arrow; and errors have few words.
"""

from __future__ import annotations

import json
import random
import struct
from functools import partial
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from buffer.codec.keyvalue import encode_pair
from buffer_delta.formats import Format, resolve_format
from tests.wire import avro_long as _long
from tests.wire import descriptor_set, varint

ERROR_MAX = 2000  # characters
MAX_BATCH_BYTES = 8 << 20


def _avro_schema() -> str:
    inner = [{"name": "x", "type": "null"}, {"name": "y", "type": ["null", "double", "string"]}]
    wide = {"type": "record", "name": "wide", "fields": [{"name": f"w{n}", "type": "long"} for n in range(40)]}
    fields: list[dict[str, Any]] = [
        {"name": "id", "type": "long"},
        {"name": "s", "type": ["null", "string"]},
        {"name": "a", "type": {"type": "array", "items": {"type": "record", "name": "in", "fields": inner}}},
        {"name": "m", "type": {"type": "map", "values": "long"}},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "l", "type": {"type": "array", "items": ["null", wide]}},
    ]
    return json.dumps({"type": "record", "name": "e", "fields": fields})


def _avro_record() -> bytes:
    array = _long(2) + _long(0) + _long(1) + struct.pack("<d", 1.5) + _long(0)
    pairs = _long(1) + _long(1) + b"k" + _long(7) + _long(0)
    wide = _long(3) + b"\0\0" + _long(1) + _long(5) * 40 + _long(0)
    return _long(5) + _long(1) + _long(3) + b"abc" + array + pairs + _long(1) + b"\5" + _long(1_700_000_000) + wide


def _descriptors() -> str:
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", package="p", syntax="proto3")
    inner = file.message_type.add(name="In")
    for n in range(40):
        inner.field.add(name=f"f{n}", number=n + 1, type=3, label=1)
    message = file.message_type.add(name="M")
    for number, (name, kind, label) in enumerate(
        (("id", 3, 1), ("s", 9, 1), ("b", 12, 1), ("f", 2, 1), ("r", 5, 3), ("t", 9, 3)), 1
    ):
        message.field.add(name=name, number=number, type=kind, label=label)  # type: ignore[arg-type]
    message.field.add(name="l", number=7, type=11, type_name=".p.In", label=3)
    return descriptor_set(file)


def _logs() -> bytes:
    request = ExportLogsServiceRequest()
    found = request.resource_logs.add()
    found.resource.attributes.add(key="a").value.string_value = "v" * 200
    record = found.scope_logs.add().log_records.add()
    record.body.kvlist_value.values.add(key="k").value.array_value.values.add().int_value = 4
    for _ in range(5):
        found.scope_logs[0].log_records.add().attributes.add(key="x").value.bool_value = True
    return request.SerializeToString()


def _metrics() -> bytes:
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    metric.gauge.data_points.add().as_double = 1.5
    return request.SerializeToString()


FORMS: dict[str, list[Format]] = {
    "csv": [
        resolve_format(
            {"type": "csv", "schema": "id BIGINT, n STRING, d DECIMAL(10,2), f FLOAT, t TIMESTAMP, b BINARY, o BOOLEAN"}
        ),
        resolve_format({"type": "csv", "schema": "id BIGINT, n STRING, d DECIMAL(10,2)", "header": True}),
    ],
    "avro": [resolve_format({"type": "avro", "avro_schema": _avro_schema()})],
    "protobuf": [resolve_format({"type": "protobuf", "message": "p.M", "descriptor_set": _descriptors()})],
    "otlp": [resolve_format({"type": "otlp", "signal": signal}) for signal in ("logs", "metrics")],
    "keyvalue": [
        resolve_format({"type": "keyvalue", "key": key, "value": value})
        for key, value in (("text", "json"), ("binary", "text"), ("json", "binary"))
    ],
}
BINARY_CORPUS: dict[str, list[bytes]] = {
    "csv": [
        b'1,"a""b",1.50,2.5,2024-01-01T00:00:00Z,aGk=,true\n',
        b"2,,,,,,",
        b'id,n,zz\n1,"a",3\n',
        b"n,id\r\nx,1\ry,2",
        b'id,n,d\n-0,"line\nbreak",1e5',
    ],
    "avro": [_avro_record()],
    "protobuf": [
        b"\x08\x05\x12\x03abc\x1a\x02hi\x25\0\0\xc0\x3f\x2a\x03\1\2\3\x32\1x\x32\1y\x3a\0\x3a\2\x08\1",
        b"\x08" + varint(-1) + b"\x3a\0" * 300,
        b"",
    ],
    "otlp": [_logs(), _metrics()],
    "keyvalue": [encode_pair(b"k", b'{"a":1}'), encode_pair(b'"k"', b""), encode_pair(b"", b"[" * 200)],
}
_NUMBERS = (b"\x80" * 10, b"\xff\xff\xff\xff\x0f", b"\xfe" + b"\xff" * 8 + b"\x01", b"\0" * 50, b"\x0a\0", b"\x12\xff")
_TEXTS = (
    *(b"9" * 30, b"9" * 5000, b"1e5", b"1e-10000000", b'"', b'""', b",", b"\r", b"\n", b"\\", b"-0", b"0x1", b"NaN"),
    *(b"9999-12-31", b"0000-01-01", b"2024-01-01T00:00:00.1234567Z", b"2024-01-01T24:00:00Z", b"\xff", b"\0"),
    *(b"\xed\xa0\x80", b"\xe2\x80\xa8", b"{", b"}", b"["),
)
BINARY_TOKENS = {
    "csv": _TEXTS,
    "keyvalue": (*_TEXTS, b"\1\0\0\0\0", b"\1\xff\xff\xff\xff"),
    **dict.fromkeys(("avro", "protobuf", "otlp"), _NUMBERS),
}


def check_form(kind: str, rng: random.Random, entries: list[bytes]) -> bool:
    form = rng.choice(FORMS[kind]).within(MAX_BATCH_BYTES)
    array = pa.array(entries, pa.binary())
    found = _parsed(form, array)
    one = rng.randrange(len(entries))
    alone = _parsed(form, array.slice(one, 1))[0]
    assert str(alone) == str(found[one]), f"{entries[one][:200]!r} alone is {alone}, among others {found[one]}"
    assert all(len(row) < ERROR_MAX for row in found if isinstance(row, str)), "an error of many words"
    return any(not isinstance(row, str) for row in found)


def _parsed(form: Format, entries: pa.BinaryArray) -> list[Any]:
    """Of each entry its rows, or the error."""
    found: list[Any] = [[] for _ in range(len(entries))]
    for start, piece in form.pieces(entries, 1 << 20, 1000):
        parsed = form.parse(piece)
        parsed.rows.validate(full=True)
        sources = range(parsed.rows.num_rows) if parsed.entries is None else parsed.entries.tolist()
        for at, row in zip(sources, _without_times(parsed.rows).to_pylist(), strict=True):
            found[start + at].append(row)
        for at, error in parsed.bad:
            assert not found[start + at], "an entry has rows and an error"
            found[start + at] = error
    return found


def _without_times(rows: pa.Table) -> pa.Table:
    """Times as numbers: Python's own end with the year 9999, Spark's do not."""
    columns = [column.cast(_as_number(column.type)) for column in rows.columns]
    return pa.Table.from_arrays(columns, names=rows.schema.names)


def _as_number(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_list(kind):
        return pa.list_(_as_number(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _as_number(field.type)) for field in kind])
    return kind


BINARY_CHECKS = {kind: partial(check_form, kind) for kind in FORMS}
