"""protobuf: messages to rows, exactly; what has no column is rescued, what is no message is set aside."""

from __future__ import annotations

import base64
import json
import math
import pickle
import random
import struct
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2 as pb
from google.protobuf import descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from buffer.errors import InvalidConfig
from buffer_delta.formats import ProtobufFormat, resolve_format
from tests.formats.format_support import by_entry, parse, peak_bytes
from tests.formats.test_nothing_changes import EXAMPLES

T = pb.FieldDescriptorProto
SCALARS: dict[str, tuple[int, pa.DataType, st.SearchStrategy[Any]]] = {
    "int32": (T.TYPE_INT32, pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "sint32": (T.TYPE_SINT32, pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "sfixed32": (T.TYPE_SFIXED32, pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "uint32": (T.TYPE_UINT32, pa.int64(), st.integers(0, 2**32 - 1)),
    "fixed32": (T.TYPE_FIXED32, pa.int64(), st.integers(0, 2**32 - 1)),
    "int64": (T.TYPE_INT64, pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "sint64": (T.TYPE_SINT64, pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint64": (T.TYPE_UINT64, pa.decimal128(20, 0), st.integers(0, 2**64 - 1)),
    "bool": (T.TYPE_BOOL, pa.bool_(), st.booleans()),
    "float": (T.TYPE_FLOAT, pa.float32(), st.floats(width=32)),
    "double": (T.TYPE_DOUBLE, pa.float64(), st.floats()),
    "string": (T.TYPE_STRING, pa.string(), st.text(max_size=5)),
    "bytes": (T.TYPE_BYTES, pa.binary(), st.binary(max_size=5)),
}


def message(name: str, *fields: tuple[Any, ...]) -> pb.DescriptorProto:
    """Fields are (name, type) or (name, type, what): `repeated`, `optional`, or the name of a type."""
    made = pb.DescriptorProto(name=name)
    for number, (field, kind, *rest) in enumerate(fields, 1):
        label = T.LABEL_REPEATED if "repeated" in rest else T.LABEL_OPTIONAL
        made.field.add(name=field, number=number, type=kind, label=label)
        for word in rest:
            if word.startswith("."):
                made.field[-1].type_name = word
            if word == "optional":
                made.field[-1].proto3_optional = True
                made.field[-1].oneof_index = len(made.oneof_decl)
                made.oneof_decl.add(name=f"_{field}")
    return made


def descriptors(
    *messages: pb.DescriptorProto, enums: dict[str, list[str]] | None = None, syntax: str = "proto3"
) -> bytes:
    file = pb.FileDescriptorProto(name="t.proto", package="t", syntax=syntax, message_type=messages)
    for name, values in (enums or {}).items():
        file.enum_type.add(
            name=name, value=[pb.EnumValueDescriptorProto(name=v, number=n) for n, v in enumerate(values)]
        )
    return pb.FileDescriptorSet(file=[file]).SerializeToString()


def writer(types: bytes, name: str = "t.M") -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in pb.FileDescriptorSet.FromString(types).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


ORDER = descriptors(
    message(
        "M",
        ("id", T.TYPE_INT64),
        ("note", T.TYPE_STRING, "optional"),
        ("state", T.TYPE_ENUM, ".t.E"),
        ("lines", T.TYPE_MESSAGE, "repeated", ".t.L"),
        ("first", T.TYPE_MESSAGE, ".t.L"),
        ("void", T.TYPE_MESSAGE, ".t.V"),
    ),
    message("L", ("sku", T.TYPE_STRING), ("counts", T.TYPE_UINT32, "repeated")),
    message("V"),
    enums={"E": ["NEW", "PAID"]},
)


def test_should_read_messages_into_columns() -> None:
    form = ProtobufFormat(ORDER, message="t.M")
    new = writer(ORDER)
    full = new(id=7, note="", state=1, lines=[{"sku": "a", "counts": [1, 2**32 - 1]}, {}], first={"sku": "f"}, void={})
    found = by_entry(parse(form, full.SerializeToString(), b""), 2)
    assert found[0] == {
        "id": 7,
        "note": "",
        "state": "PAID",
        "lines": [{"sku": "a", "counts": [1, 2**32 - 1]}, {"sku": "", "counts": []}],
        "first": {"sku": "f", "counts": []},
        "void": True,
        "_rescued_data": None,
    }
    assert found[1] == {"id": 0, "note": None, "state": "NEW", "lines": [], "first": None, "void": None} | {
        "_rescued_data": None
    }
    copy = pickle.loads(pickle.dumps(form))
    assert copy == form == resolve_format({"type": "protobuf", "descriptor_set": ORDER, "message": "t.M"})
    assert copy.parse(pa.array([b""], pa.binary())).rows.num_rows == 1
    text = base64.b64encode(ORDER).decode()
    assert ProtobufFormat(text, message="t.M") == form


@EXAMPLES
@given(st.lists(st.sampled_from(sorted(SCALARS)), min_size=1, max_size=4), st.data())
def test_should_hold_what_messages_hold(kinds: list[str], data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from(["", "optional", "repeated"]), min_size=len(kinds), max_size=len(kinds)))
    fields = [(f"f{at}", SCALARS[kind][0], how) for at, (kind, how) in enumerate(zip(kinds, shape, strict=True))]
    types = descriptors(message("M", *fields))
    form, new = ProtobufFormat(types, message="t.M"), writer(types)
    for at, (kind, how) in enumerate(zip(kinds, shape, strict=True)):
        wanted = SCALARS[kind][1]
        assert form.schema.field(at).type == (pa.list_(wanted) if how == "repeated" else wanted)
    values = []
    for at, (kind, how) in enumerate(zip(kinds, shape, strict=True)):
        one = SCALARS[kind][2]
        values.append(data.draw(st.lists(one, max_size=3) if how == "repeated" else one, label=f"f{at}"))
    entry = new(**{f"f{at}": value for at, value in enumerate(values)}).SerializeToString()
    (row,) = parse(form, entry).rows.to_pylist()
    for at, value in enumerate(values):
        assert _same(row[f"f{at}"], value), (row, values)


def _same(got: Any, value: Any) -> bool:
    if isinstance(value, list):
        return len(got) == len(value) and all(map(_same, got, value))
    if isinstance(value, float):
        return struct.pack("d", got) == struct.pack("d", value) or (math.isnan(got) and math.isnan(value))
    return bool((got == value and type(got) is type(value)) or int(got) == value)


def test_should_read_maps() -> None:
    entry = message("AEntry", ("key", T.TYPE_STRING), ("value", T.TYPE_INT32))
    entry.options.map_entry = True
    other = message("BEntry", ("key", T.TYPE_BOOL), ("value", T.TYPE_STRING))
    other.options.map_entry = True
    made = message(
        "M", ("a", T.TYPE_MESSAGE, "repeated", ".t.M.AEntry"), ("b", T.TYPE_MESSAGE, "repeated", ".t.M.BEntry")
    )
    made.nested_type.extend([entry, other])
    types = descriptors(made)
    parsed = parse(
        ProtobufFormat(types, message="t.M"), writer(types)(a={"y": 2, "x": 1}, b={True: "t"}).SerializeToString()
    )
    assert parsed.rows.to_pylist() == [{"a": [("x", 1), ("y", 2)], "b": [("true", "t")], "_rescued_data": None}]


def test_should_rescue_what_the_descriptors_do_not_have() -> None:
    form = ProtobufFormat(ORDER, message="t.M")
    new = writer(ORDER)
    entries = [
        new(id=1).SerializeToString() + b"\x50\x05",  # field 10
        new(id=2).SerializeToString() + b"\x22\x02\x50\x05",  # … inside of a line
        new(id=3).SerializeToString() + b"\x18\x09",  # state 9
        new(id=4).SerializeToString() + b"\x0d\x01\x02\x03\x04",  # `id` as a fixed32
        new(id=5).SerializeToString(),
    ]
    found = by_entry(parse(form, *entries), 5)
    for index, entry in enumerate(entries):
        row = found[index]
        assert isinstance(row, dict)
        assert row["id"] == index + 1
        rescued = json.loads(row["_rescued_data"])["entry"] if row["_rescued_data"] else None
        assert rescued == (base64.b64encode(entry).decode() if index < 4 else None)
    assert found[2]["state"] is None  # type: ignore[index]
    ignoring = ProtobufFormat(ORDER, message="t.M", unknown_fields="ignore")
    assert "_rescued_data" not in ignoring.schema.names
    assert parse(ignoring, entries[0]).rows["id"].to_pylist() == [1]


def test_should_set_aside_what_is_no_message_and_load_its_neighbours() -> None:
    types = descriptors(message("M", ("a", T.TYPE_STRING), ("b", T.TYPE_INT32)), syntax="proto2")
    form = ProtobufFormat(types, message="t.M")
    entries = [b"\x0a\x01x", b"\x0a\x05x", b"\x0a\x01\xff", b"\xff", b"\x10\x80", b"\x10\x02"]
    parsed = parse(form, *entries)
    assert [index for index, _ in parsed.bad] == [1, 2, 3, 4]
    assert all(error for _, error in parsed.bad)
    assert parsed.rows.select(["a", "b"]).to_pylist() == [{"a": "x", "b": None}, {"a": None, "b": 2}]
    assert parsed.entries is not None
    assert parsed.entries.tolist() == [0, 5]


@EXAMPLES
@given(st.integers(0, 2**32))
def test_should_give_each_damaged_entry_a_row_or_an_error(seed: int) -> None:
    chance = random.Random(seed)
    new = writer(ORDER)
    entries = []
    for number in range(4):
        data = bytearray(new(id=number, state=1, lines=[{"sku": "x", "counts": [1, 2]}], first={}).SerializeToString())
        for _ in range(chance.randrange(3)):
            at = chance.randrange(len(data) + 1)
            data[at : at + chance.randrange(2)] = bytes(
                chance.choices([0, 1, 0x0A, 0x22, 0x80, 0xFF], k=chance.randrange(3))
            )
        entries.append(bytes(data))
    form = ProtobufFormat(ORDER, message="t.M")
    found = by_entry(parse(form, *entries), len(entries))
    for index, entry in enumerate(entries):
        assert by_entry(parse(form, entry), 1)[0] == found[index]


# Frames, columns, options


def test_should_read_frames_of_a_registry() -> None:
    nested = message("Outer")
    nested.nested_type.append(message("Inner", ("x", T.TYPE_INT32)))
    old = descriptors(message("M", ("a", T.TYPE_INT32)), nested)
    new = descriptors(message("M", ("a", T.TYPE_INT32), ("b", T.TYPE_STRING)), nested)
    form = ProtobufFormat({"1": old, "300": base64.b64encode(new).decode()}, message="t.M", framing="confluent")
    entries = [
        b"\0\0\0\0\x01\x00\x08\x07",
        b"\0\0\0\x01\x2c\x02\x00\x08\x08\x12\x01x",  # the first message, spelled out
        b"\0\0\0\0\x02\x00\x08\x07",
        b"\0\0\0\0\x01\x04\x02\x00\x08\x07",  # Outer.Inner
        b"\0\0\0\0\x01\x02\x0a",
        b"\x01\0\0\0\x01\x00",
        b"\0\0\0\0\x01",
        b"\0\0\0\0\x01\x80",
        b"\0\0\0\0\x01\x01",
    ]
    found = by_entry(parse(form, *entries), len(entries))
    assert (found[0], found[1]) == (
        {"a": 7, "b": None, "_rescued_data": None},
        {"a": 8, "b": "x", "_rescued_data": None},
    )
    said = [
        "schema 2, which is not among",
        "holds the message t.Outer.Inner",
        "holds the message [5]",
        "begin with a zero",
    ]
    said += ["begin with a zero", "ends before its message", "levels deep"]
    for index, words in enumerate(said, 2):
        assert words in found[index]


def test_should_put_values_only_into_columns_that_hold_them() -> None:
    types = descriptors(message("M", ("a", T.TYPE_DOUBLE), ("b", T.TYPE_UINT64)))
    form = ProtobufFormat(types, message="t.M", schema="a BIGINT, b BIGINT")
    new = writer(types)
    entries = [new(a=1.0, b=5), new(a=1.5), new(b=2**63)]
    parsed = parse(form, *[entry.SerializeToString() for entry in entries])
    assert [index for index, _ in parsed.bad] == [1, 2]
    assert parsed.rows.select(["a", "b"]).to_pylist() == [{"a": 1, "b": 5}]
    with pytest.raises(InvalidConfig, match="no column for the field 'b'"):
        ProtobufFormat(types, message="t.M", schema="a BIGINT")
    for kind in ("TIMESTAMP", "ARRAY<BIGINT>"):  # which every entry would fail at
        with pytest.raises(InvalidConfig, match=r"the column 'b' can hold none of the field's values: .*decimal128"):
            ProtobufFormat(types, message="t.M", schema=f"a BIGINT, b {kind}")
    assert ProtobufFormat(types, message="t.M", schema="a BIGINT", unknown_fields="ignore").schema.names == ["a"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "descriptor_set: it must be given"),
        ({"descriptor_set": ORDER}, "message='' is not allowed"),
        (
            {"descriptor_set": ORDER, "message": "t.N"},
            "message='t.N' is not in the descriptor set, which has t.L, t.M, t.V",
        ),
        ({"descriptor_set": b"\xff", "message": "t.M"}, "descriptor_set: it is none"),
        ({"descriptor_set": b"", "message": "t.M"}, "descriptor_set: it is empty"),
        ({"descriptor_set": "?", "message": "t.M"}, "it is no base64"),
        ({"descriptor_set": 7, "message": "t.M"}, "must be bytes, or base64 of them, not int"),
        ({"descriptor_set": ORDER, "message": "t.V"}, "'t.V' has no fields"),
        ({"descriptor_set": ORDER, "message": "t.M", "framing": "soe"}, "framing='soe' is not allowed"),
        ({"descriptor_set": "{", "message": "t.M", "framing": "confluent"}, "it is no JSON table"),
        ({"descriptor_set": {}, "message": "t.M", "framing": "confluent"}, "a table from the schemas' numbers"),
        ({"descriptor_set": {"x": ORDER}, "message": "t.M", "framing": "confluent"}, "the number of a schema"),
        ({"descriptor_set": ORDER, "message": "t.M", "rescued_data": "ID"}, "a name that no other column has"),
    ],
)
def test_should_name_what_is_wrong_with_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        ProtobufFormat(**options)


def test_should_refuse_types_that_no_column_holds() -> None:
    loop = descriptors(message("M", ("a", T.TYPE_MESSAGE, ".t.N")), message("N", ("m", T.TYPE_MESSAGE, ".t.M")))
    with pytest.raises(InvalidConfig, match=r"'t\.M' holds itself"):
        ProtobufFormat(loop, message="t.M")
    missing = pb.FileDescriptorSet.FromString(ORDER)
    missing.file[0].dependency.append("elsewhere.proto")
    with pytest.raises(InvalidConfig, match="write it with --include_imports"):
        ProtobufFormat(missing.SerializeToString(), message="t.M")


def test_should_take_memory_by_the_bytes_in_hand() -> None:
    wide = message("W", *[(f"f{n}", T.TYPE_DOUBLE) for n in range(1000)])
    types = descriptors(message("M", ("w", T.TYPE_MESSAGE, "repeated", ".t.W")), wide)
    form = ProtobufFormat(types, message="t.M")
    entry = b"\x0a\x00" * 100_000
    parsed = []
    peak = peak_bytes(lambda: parsed.append(parse(form, entry)))
    assert "too much room" in parsed[0].bad[0][1]
    assert peak < 100 * len(entry)
