"""protobuf: a producer whose field is wider than ours by now. What the library would cut is never a value."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from google.protobuf import descriptor_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from buffer_delta.formats import OtlpFormat, ProtobufFormat
from tests.formats.format_support import parse
from tests.formats.test_nothing_changes import EXAMPLES
from tests.formats.test_protobuf import T, descriptors, message, writer

NARROW = {  # with what its producers may have made of it, and the values that both have
    "int32": (T.TYPE_INT32, T.TYPE_INT64, range(-(2**31), 2**31)),
    "sint32": (T.TYPE_SINT32, T.TYPE_SINT64, range(-(2**31), 2**31)),
    "uint32": (T.TYPE_UINT32, T.TYPE_UINT64, range(2**32)),
    "bool": (T.TYPE_BOOL, T.TYPE_UINT64, range(2)),
    "int of a bool": (T.TYPE_BOOL, T.TYPE_INT64, range(2)),
}
EDGES = st.sampled_from([0, 1, 2, 127, 128, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63 - 1])


def types(kind: int) -> bytes:
    return descriptors(
        message(
            "M",
            ("one", kind),
            ("many", kind, "repeated"),
            ("inner", T.TYPE_MESSAGE, ".t.L"),
            ("texts", T.TYPE_STRING, "repeated"),
        ),
        message("L", ("one", kind)),
    )


@EXAMPLES
@given(st.sampled_from(sorted(NARROW)), st.sampled_from(["one", "many", "inner"]), st.data())
def test_should_never_cut_a_number(kind: str, where: str, data: st.DataObject) -> None:
    narrow, wide, both = NARROW[kind]
    numbers = EDGES | st.integers(0, 2**63 - 1)
    values = data.draw(st.lists(numbers if wide == T.TYPE_UINT64 else numbers | numbers.map(lambda n: -n), min_size=1))
    entries, new = [], writer(types(wide))
    for value in values:
        made = {"one": {"one": value}, "many": {"many": [0, value, 1]}, "inner": {"inner": {"one": value}}}[where]
        entries.append(new(**made, texts=["x"]).SerializeToString())
    parsed = parse(ProtobufFormat(types(narrow), message="t.M"), *entries)
    fits = [value in both for value in values]
    assert [index for index, _ in parsed.bad] == [index for index, fit in enumerate(fits) if not fit]
    assert all("cannot hold the number" in error and "t." in error for _, error in parsed.bad)
    rows = parsed.rows.to_pylist()
    found = [{"one": row["one"], "many": row["many"][1:2], "inner": row["inner"]} for row in rows]
    expected: list[Any] = [{"one": [v], "many": [[v]], "inner": [{"one": v}]}[where][0] for v in values if v in both]
    assert [row[where] for row in found] == expected


def test_should_read_messages_written_in_other_ways() -> None:
    form = ProtobufFormat(types(T.TYPE_INT32), message="t.M")
    entries = [
        b"\x08\x00",  # a default that is written
        b"\x08\x81\x80\x00",  # a number in more bytes than it needs
        b"\x10\x01\x10\x02",  # numbers that are not packed
        b"\x22\x01x\x08\x01",  # fields in another order
        b"\x08\x01\x08\x02",  # the last one counts
        b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # -1
        b"\x53\x08\x80\x80\x80\x80\x80\x01\x54\x08\x01",  # an unknown group with a large number
        b"\x0a\x06\x08\x80\x80\x80\x80\x10",  # `one` as bytes: not known as such
    ]
    parsed = parse(form, *entries)
    assert parsed.bad == []
    rows = parsed.rows.to_pylist()
    assert [row["one"] for row in rows] == [0, 1, 0, 1, 2, -1, 1, 0]
    assert [row["many"] for row in rows] == [[], [], [1, 2], [], [], [], [], []]
    assert [row["_rescued_data"] is not None for row in rows] == [False] * 6 + [True] * 2


def test_should_not_cut_numbers_in_groups_and_maps() -> None:
    group = message("G", ("one", T.TYPE_INT32))
    pair = message("MEntry", ("key", T.TYPE_STRING), ("value", T.TYPE_BOOL))
    pair.options.map_entry = True
    whole = message("M", ("g", T.TYPE_GROUP, ".t.M.G"), ("m", T.TYPE_MESSAGE, "repeated", ".t.M.MEntry"))
    whole.nested_type.extend([group, pair])
    form = ProtobufFormat(descriptors(whole, syntax="proto2"), message="t.M")
    large = b"\x80\x80\x80\x80\x10"  # 2**32
    entries = [
        b"\x0b\x08\x05\x0c",
        b"\x0b\x08" + large + b"\x0c",
        b"\x12\x05\x0a\x01k\x10\x01",
        b"\x12\x05\x0a\x01k\x10\x02",
    ]
    parsed = parse(form, *entries)
    assert [index for index, _ in parsed.bad] == [1, 3]
    assert parsed.rows.select(["g", "m"]).to_pylist() == [{"g": {"one": 5}, "m": []}, {"g": None, "m": [("k", True)]}]


def test_should_rescue_extensions() -> None:
    whole = message("M", ("id", T.TYPE_INT32))
    whole.extension_range.add(start=100, end=200)
    file = pb.FileDescriptorProto(name="t.proto", package="t", syntax="proto2", message_type=[whole])
    file.extension.add(name="more", number=100, type=T.TYPE_STRING, label=T.LABEL_OPTIONAL, extendee=".t.M")
    form = ProtobufFormat(pb.FileDescriptorSet(file=[file]).SerializeToString(), message="t.M")
    extended = b"\x08\x01\xa2\x06\x03abc"
    rows = parse(form, extended, b"\x08\x02").rows.to_pylist()
    assert [row["id"] for row in rows] == [1, 2]
    assert json.loads(rows[0]["_rescued_data"])["entry"] == base64.b64encode(extended).decode()
    assert rows[1]["_rescued_data"] is None


@pytest.mark.parametrize(("number", "good"), [(b"\x05", True), (b"\x85\x80\x80\x80\x10", False)])
def test_should_not_cut_a_number_in_a_log_record(number: bytes, good: bool) -> None:
    record = b"\x38" + number  # dropped_attributes_count, 5 or 2**32 + 5
    scope = b"\x12" + bytes([len(record)]) + record
    resource = b"\x12" + bytes([len(scope)]) + scope
    parsed = parse(OtlpFormat("logs"), b"\x0a" + bytes([len(resource)]) + resource)
    assert [row["dropped_attributes_count"] for row in parsed.rows.to_pylist()] == ([5] if good else [])
    assert len(parsed.bad) == (0 if good else 1)
