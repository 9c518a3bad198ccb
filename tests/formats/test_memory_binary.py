"""Memory is bounded by the bytes in hand in the binary formats, too: what one entry may hold, many hold as well."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from buffer_delta.formats import resolve_format
from buffer_delta.formats.base import Format
from tests.formats.format_support import binary, peak_bytes

MIB = 1 << 20
KIB = 1 << 10
PEAK_MAX = 48 * MIB  # of any number of entries: 2 million cells of 8 bytes in a piece, twice, and what is around them


def avro() -> tuple[Format, bytes]:
    """An array of 320 nulls, each of which might have been a record of 200 fields."""
    record = {"type": "record", "name": "B", "fields": [{"name": f"x{k}", "type": "long"} for k in range(200)]}
    items = {"type": "array", "items": ["null", record]}
    schema = {"type": "record", "name": "M", "fields": [{"name": "l", "type": items}]}
    return resolve_format({"type": "avro", "avro_schema": json.dumps(schema)}), b"\x80\x05" + b"\0" * 320 + b"\0"


def protobuf() -> tuple[Format, bytes]:
    """A list of 320 empty messages of 200 fields."""
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", package="p", syntax="proto3")
    inner = file.message_type.add(name="In")
    for k in range(200):
        inner.field.add(name=f"f{k}", number=k + 1, type=3, label=1)
    file.message_type.add(name="M").field.add(name="l", number=1, type=11, type_name=".p.In", label=3)
    sets = base64.b64encode(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()).decode()
    return resolve_format({"type": "protobuf", "message": "p.M", "descriptor_set": sets}), b"\x0a\x00" * 320


def otlp(records: int = 400) -> tuple[Format, bytes]:
    """Empty log records of one large resource: each row has a copy of it."""
    request = ExportLogsServiceRequest()
    found = request.resource_logs.add()
    found.resource.attributes.add(key="a").value.string_value = "v" * 6000
    scope = found.scope_logs.add()
    for _ in range(records):
        scope.log_records.add()
    return resolve_format({"type": "otlp", "signal": "logs"}), request.SerializeToString()


def load(form: Format, entries: pa.BinaryArray) -> tuple[int, int]:
    """As the loader's tasks do. Rows, and bad entries."""
    rows = bad = 0
    for _, piece in form.pieces(entries, 8 * MIB, 64 * KIB):
        parsed = form.parse(piece)
        rows, bad = rows + parsed.rows.num_rows, bad + len(parsed.bad)
    return rows, bad


@pytest.mark.parametrize("made", [avro, protobuf, otlp])
def test_should_take_no_more_memory_for_many_entries_than_for_a_piece_of_them(
    made: Callable[[], tuple[Format, bytes]],
) -> None:
    form, entry = made()
    load(form, binary(entry))  # what is made once
    entries = binary(*[entry] * 160)
    found = []
    peak = peak_bytes(lambda: found.append(load(form, entries)))
    ((rows, bad),) = found
    assert (rows % 160, bad) == (0, 0)
    assert rows
    assert peak < PEAK_MAX


def test_should_keep_small_records_together() -> None:
    """A bound by what an entry could hold must not make a piece of every entry."""
    form, _ = avro()
    assert len(list(form.pieces(binary(*[b"\0"] * 60_000), 8 * MIB, 64 * KIB))) < 10
    form, entry = otlp(1)
    assert len(list(form.pieces(binary(*[entry] * 300), 8 * MIB, 64 * KIB))) == 1


def test_should_not_expand_a_request_beyond_what_a_batch_may_take() -> None:
    form, entry = otlp(400)
    ((place, error),) = form.within(1 * MIB).parse(binary(entry)).bad
    assert (place, error) == (0, "it would take too much room for its size")
    assert form.within(4 * MIB).parse(binary(entry)).bad == []
