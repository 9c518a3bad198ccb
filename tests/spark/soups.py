"""Good and hostile records of every format, for tables with rules of their own. Numbers, all of them: no randomness.

A soup's records are numbered. Number n is of the kind `KINDS[n % 3]`, which decides the table that it goes to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pyspark.sql import functions as f

from buffer.codec.keyvalue import encode_pair
from tests.wire import avro_long, descriptor_set, varint

KINDS = ("a", "b", "rest")
TYPED = "id BIGINT NOT NULL, kind STRING, day STRING"
POSITIVE = "id >= 0"
SLASHES = "/" * 100  # no folder of a partition has such a name
STRICT = {"on_mismatch": "dead_letter", "unknown_fields": "ignore", "rescued_data": None}


@dataclass(frozen=True)
class Soup:
    format: Any
    good: Callable[[int], bytes]
    hostile: Sequence[bytes]
    """Every one of them is bad, or its table forbids it."""
    table: str = TYPED
    check: str = POSITIVE
    partition_by: str | None = "day"
    route_by: Any = "kind"
    number: str = "id"
    """An expression for a row's number."""
    settings: dict[str, Any] = field(default_factory=dict)


def kind_of(n: int) -> str:
    return KINDS[n % 3]


def day_of(n: int) -> str:
    return f"2024-01-0{n % 5 + 1}"


# JSON


def good_json(n: int) -> bytes:
    return json.dumps({"id": n, "kind": kind_of(n), "day": day_of(n)}).encode()


def _changed(**fields: Any) -> bytes:
    return json.dumps({"id": 1, "kind": "a", "day": "2024-01-01", **fields}).encode()


NO_JSON = [
    *(b"", b"{", b"null", b"[1, 2]", b'{"id": 1}{"id": 2}', b'{"id": 1, "id": 2}', b"\xff\xfe{}", b"[" * 5000),
    b'{"id": 1, "kind": "a", "day": "\xed\xa0\x80"}',
]
FORBIDDEN_JSON = [
    *(_changed(id=None), _changed(id=-1), _changed(day="\0"), _changed(day=SLASHES), _changed(day="ä" * 200)),
    *(_changed(id="x"), _changed(id=2**63)),
]


# CSV, Avro, Protocol Buffers, Arrow


def good_csv(n: int) -> bytes:
    return f"{n},{kind_of(n)},{day_of(n)}".encode()


CSV = [
    *(b"1,a", b'1,"a', b"\xff,a,b", b"1,a,2024-01-01,4", b"-1,a,2024-01-01", b"x,a,2024-01-01", b",a,2024-01-01"),
    f"1,a,{SLASHES}".encode(),
]


def avro(n: int, kind: bytes, day: bytes) -> bytes:
    return avro_long(n) + avro_long(len(kind)) + kind + avro_long(len(day)) + day


def good_avro(n: int) -> bytes:
    return avro(n, kind_of(n).encode(), day_of(n).encode())


AVRO_SCHEMA = {
    "type": "record",
    "name": "r",
    "fields": [{"name": "id", "type": "long"}, *({"name": name, "type": "string"} for name in ("kind", "day"))],
}
AVRO = [
    *(b"", good_avro(1)[:-1], good_avro(1) + b"\0", b"\xff" * 11, avro(1, b"\xff", b"d"), avro(-1, b"a", b"d")),
    avro(1, b"a", SLASHES.encode()),
    b"\x02" + avro_long(1 << 40) + b"a",
]


def protobuf(n: int, kind: bytes, day: bytes) -> bytes:
    return b"\x08" + varint(n) + b"\x12" + varint(len(kind)) + kind + b"\x1a" + varint(len(day)) + day


def good_protobuf(n: int) -> bytes:
    return protobuf(n, kind_of(n).encode(), day_of(n).encode())


PROTOBUF = [
    *(b"\xff", good_protobuf(1)[:-1], protobuf(1, b"\xff", b"d"), protobuf(-1, b"a", b"d"), b"\x08" + b"\xff" * 11),
    *(protobuf(1, b"a", SLASHES.encode()), b"\x12\xff\xff\xff\xff\x0f"),
]


def protobuf_descriptors() -> str:
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", package="p", syntax="proto3")
    message = file.message_type.add(name="M")
    for number, (name, kind) in enumerate((("id", 3), ("kind", 9), ("day", 9)), 1):
        message.field.add(name=name, number=number, type=kind, label=1)  # type: ignore[arg-type]
    return descriptor_set(file)


def _stream(n: int, kind: str, day: str) -> bytes:
    table = pa.table({"id": pa.array([n], pa.int64()), "kind": [kind], "day": [day]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    return sink.getvalue().to_pybytes()


def good_arrow(n: int) -> bytes:
    return _stream(n, kind_of(n), day_of(n))


ARROW = [
    *(_stream(-1, "a", "d"), _stream(1, "a", SLASHES), good_arrow(1)[:-100], b"", b"no stream", good_json(1)),
    good_arrow(1)[:60] + b"\xff" * 60,
]


# OpenTelemetry, pairs, text and bytes


def otlp(n: int, kind: str) -> bytes:
    request = ExportLogsServiceRequest()
    found = request.resource_logs.add().scope_logs.add().log_records.add()
    found.time_unix_nano, found.severity_text = n, kind
    return request.SerializeToString()


def _traces() -> bytes:
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.add().name = "a span"
    return request.SerializeToString()


OTLP = [b"\xff", otlp(1, "a")[:-1], _traces(), otlp(1, "evil"), b"\x0a\x05\x12", b"no request"]
PAIRS = [
    *(b"", b"\x01", b"\x02\0\0\0\0", b"\x01\xff\xff\xff\xffk", encode_pair(b"\xff", b"1"), encode_pair(b"evil", b"1")),
    encode_pair(b"a", b"\xff"),
]


def _route_of(number: Any) -> Any:
    return f.element_at(f.array(*map(f.lit, KINDS)), (number % 3 + 1).cast("int"))


def route_of_text(frame: Any) -> Any:
    return _route_of(f.expr("coalesce(try_cast(value AS BIGINT), 2)"))


def route_of_bytes(frame: Any) -> Any:
    return _route_of(f.expr("coalesce(try_cast(CAST(value AS STRING) AS BIGINT), 2)"))


def _digits(n: int) -> bytes:
    return b"%d" % n


SOUPS = {
    "json": Soup(
        {"type": "json", "schema": "id BIGINT, kind STRING, day STRING", **STRICT},
        good_json,
        [*NO_JSON, *FORBIDDEN_JSON, b'{"id": NaN}'],
    ),
    "evolving json": Soup("json", good_json, [*NO_JSON, *FORBIDDEN_JSON]),
    "csv": Soup({"type": "csv", "schema": "id BIGINT, kind STRING, day STRING"}, good_csv, CSV),
    "avro": Soup({"type": "avro", "avro_schema": json.dumps(AVRO_SCHEMA)}, good_avro, AVRO),
    "protobuf": Soup(
        {"type": "protobuf", "message": "p.M", "descriptor_set": protobuf_descriptors()}, good_protobuf, PROTOBUF
    ),
    "arrow": Soup({"type": "arrow", "schema": "id BIGINT, kind STRING, day STRING"}, good_arrow, ARROW),
    "otlp": Soup(
        {"type": "otlp", "signal": "logs"},
        lambda n: otlp(n, kind_of(n)),
        OTLP,
        table="time_unix_nano DECIMAL(20, 0), severity_text STRING",
        check="severity_text <> 'evil'",
        partition_by="severity_text",
        route_by="severity_text",
        number="CAST(time_unix_nano AS BIGINT)",
    ),
    "keyvalue": Soup(
        {"type": "keyvalue", "key": "text", "value": "text", "on_mismatch": "dead_letter", "rescued_data": None},
        lambda n: encode_pair(kind_of(n).encode(), _digits(n)),
        PAIRS,
        table="key STRING, value STRING",
        check="key <> 'evil'",
        partition_by="key",
        route_by="key",
        number="CAST(value AS BIGINT)",
    ),
    "text": Soup(
        "text",
        _digits,
        [b"\xff", b"evil", b"\xed\xa0\x80", b"1evil"],
        table="value STRING",
        check="value NOT LIKE '%evil%'",
        partition_by=None,
        route_by=route_of_text,
        number="CAST(value AS BIGINT)",
    ),
    "raw": Soup(
        "raw",
        _digits,
        [b"evil" * 5, b"\xff" * 30, b"0" * 1000],
        table="value BINARY",
        check="octet_length(value) < 12",
        partition_by=None,
        route_by=route_of_bytes,
        number="CAST(CAST(value AS STRING) AS BIGINT)",
    ),
}
