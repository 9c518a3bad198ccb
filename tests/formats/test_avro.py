"""avro: records to rows, exactly; whatever is no Avro of the schema, to the last byte, is set aside.

The second opinion is fastavro's, which shares nothing with the code it judges.
"""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import math
import pickle
import random
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer.errors import InvalidConfig, InvalidInput
from buffer_delta.formats import AvroFormat, avro_schema, resolve_format
from buffer_delta.formats.avro import walk
from buffer_delta.formats.avro.encode import encoded, head
from buffer_delta.formats.avro.names import canonical, fingerprint
from tests.formats.format_support import binary, by_entry, parse, peak_bytes
from tests.formats.test_nothing_changes import EXAMPLES


@pytest.fixture(params=[1, walk.MANY], ids=["together", "one by one"], autouse=True)
def many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays and maps are walked through in two ways: these tests have too few rows for one of them."""
    monkeypatch.setattr(walk, "MANY", request.param)


MANY = walk.MANY
EPOCH = dt.datetime(1970, 1, 1)


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def write(schema: Any, value: Any) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), value)
    return sink.getvalue()


def plain(value: Any) -> Any:
    """Rows as Arrow gives them, with maps as dicts."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        pairs = value and all(isinstance(item, tuple) for item in value)
        return {key: plain(inner) for key, inner in value} if pairs else [plain(item) for item in value]
    return value


# Random schemas, random values

_names = iter(range(10**9))


def _named(kind: str, **facts: Any) -> dict[str, Any]:
    return {"type": kind, "name": f"n{next(_names)}", **facts}


Pair = tuple[Any, st.SearchStrategy[Any]]
LEAVES: list[Pair] = [
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1) | st.integers(-99, 99)),
    ("long", st.integers(-(2**63), 2**63 - 1) | st.integers(-99, 99)),
    ("float", st.floats(width=32)),
    ("double", st.floats()),
    ("bytes", st.binary(max_size=300)),
    ("string", st.text(max_size=9)),
    ({"type": "int", "logicalType": "date"}, st.dates()),
    ({"type": "long", "logicalType": "timestamp-micros"}, st.datetimes(timezones=st.just(dt.UTC))),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, st.datetimes()),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 3},
        st.integers(-(10**38) + 1, 10**38 - 1).map(
            lambda n: decimal.Decimal((n < 0, tuple(map(int, str(abs(n)))), -3))
        ),
    ),
]

TIMES = 7
"""Where they begin: Python has no dates beyond the year 9999, Arrow has."""


@st.composite
def types(draw: st.DrawFn, depth: int = 2, times: bool = True) -> Pair:
    """A type, and values of it as fastavro takes them and as rows have them."""
    choice = draw(st.integers(0, 6 if depth else 2))
    if choice == 1:
        symbols = ["A", "B", "Ccc"]
        return _named("enum", symbols=symbols), st.sampled_from(symbols)
    if choice == 2:
        size = draw(st.integers(1, 20))
        return _named("fixed", size=size), st.binary(min_size=size, max_size=size)
    if choice == 3:
        kind, values = draw(types(depth - 1, times))
        return {"type": "array", "items": kind}, st.lists(values, max_size=4)
    if choice == 4:
        kind, values = draw(types(depth - 1, times))
        return {"type": "map", "values": kind}, st.dictionaries(st.text(max_size=3), values, min_size=1, max_size=3)
    if choice == 5:
        kind, values = draw(types(depth - 1, times))
        if isinstance(kind, list):
            return kind, values
        order = draw(st.booleans())
        return (["null", kind] if order else [kind, "null"]), st.none() | values
    if choice == 6:
        inside = [draw(types(depth - 1, times)) for _ in range(draw(st.integers(1, 3)))]
        fields = [{"name": f"f{at}", "type": kind} for at, (kind, _) in enumerate(inside)]
        return _named("record", fields=fields), st.fixed_dictionaries({f"f{at}": v for at, (_, v) in enumerate(inside)})
    return draw(st.sampled_from(LEAVES if times else LEAVES[:TIMES]))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return (one == other and math.copysign(1, one) == math.copysign(1, other)) or (one != one and other != other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, list) and isinstance(other, dict):
        return not one and not other  # Arrow's map is a list of pairs: without any, nothing tells that it is a map
    return bool(one == other)


@EXAMPLES
@given(st.lists(types(), min_size=1, max_size=3), st.data())
def test_should_hold_what_records_hold(fields: list[Pair], data: st.DataObject) -> None:
    schema = record(**{f"c{at}": kind for at, (kind, _) in enumerate(fields)})
    whole = st.fixed_dictionaries({f"c{at}": values for at, (_, values) in enumerate(fields)})
    values = data.draw(st.lists(whole, min_size=1, max_size=4))
    form = AvroFormat(json.dumps(schema))
    parsed = parse(form, *[write(schema, value) for value in values])
    assert parsed.bad == []
    assert parsed.rows.schema == form.schema
    parsed.rows.validate(full=True)
    assert same([plain(row) for row in parsed.rows.to_pylist()], values)


@EXAMPLES
@given(st.lists(types(times=False), min_size=1, max_size=3), st.data(), st.integers(0, 2**32))
def test_should_read_damaged_records_as_others_do_or_set_them_aside(
    fields: list[Pair], data: st.DataObject, seed: int
) -> None:
    schema = record(**{f"c{at}": kind for at, (kind, _) in enumerate(fields)})
    whole = st.fixed_dictionaries({f"c{at}": values for at, (_, values) in enumerate(fields)})
    values = data.draw(st.lists(whole, min_size=1, max_size=4))
    entries = [_damaged(write(schema, value), random.Random(seed + at)) for at, value in enumerate(values)]
    form = AvroFormat(schema)
    found = by_entry(parse(form, *entries), len(entries))
    for index, entry in enumerate(entries):
        alone = by_entry(parse(form, entry), 1)[0]
        assert same(plain(alone), plain(found[index]))
        if isinstance(alone, dict):
            source = io.BytesIO(entry)
            other = fastavro.schemaless_reader(source, fastavro.parse_schema(schema), None)
            assert source.read() == b""
            assert same(plain(alone), other)


def _damaged(entry: bytes, chance: random.Random) -> bytes:
    data = bytearray(entry)
    for _ in range(chance.randrange(1, 3)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(3):
            case 0:
                del data[at : at + chance.randrange(1, 3)]
            case 1:
                data[at:at] = bytes([chance.choice([0, 1, 2, 0x7F, 0x80, 0xFF])]) * chance.randrange(1, 12)
            case 2 if at < len(data):
                data[at] = chance.randrange(256)
    return bytes(data)


# What is no Avro


@pytest.mark.parametrize(
    ("kind", "entry", "says"),
    [
        ("long", b"", "ends in the middle"),
        ("long", b"\x80", "ends in the middle"),
        ("long", b"\x80" * 10 + b"\x00", "more than 64 bits"),
        ("long", b"\xff" * 9 + b"\x02", "more than 64 bits"),
        ("long", b"\x02\x00", "something behind its end"),
        ("int", b"\x80\x80\x80\x80\x10", "more than 32 bits"),
        ("boolean", b"\x02", "neither 0 nor 1"),
        ("double", b"1234567", "ends in the middle"),
        ("string", b"\x01", "length beyond its end"),
        ("string", b"\x06ab", "length beyond its end"),
        ("string", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "length beyond its end"),
        ("string", b"\x02\xff", "not UTF-8"),
        (["null", "long"], b"\x01", "branch of a union"),
        (["null", "long"], b"\x04\x02", "branch of a union"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, b"\x01", "symbol that its enum does not have"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, b"\x02", "symbol that its enum does not have"),
        ({"type": "array", "items": "long"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "items in 0 bytes"),
        ({"type": "array", "items": "long"}, b"\x01\x04\x02\x00", "not as long as it says"),
        ({"type": "array", "items": "long"}, b"\x02\x02", "ends in the middle"),
        ({"type": "map", "values": "long"}, b"\x04\x02a\x02\x02a\x04\x00", "a key twice"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, b"\x04\x03\xe8", "more than 2 digits"),
        ({"type": "long", "logicalType": "timestamp-millis"}, b"\xff" * 9 + b"\x01", "TIMESTAMP cannot hold"),
    ],
)
def test_should_say_what_is_wrong_with_an_entry_and_load_its_neighbours(kind: Any, entry: bytes, says: str) -> None:
    schema = record(c=kind)
    good = {"boolean": True, "string": "x", "double": 1.5}.get(str(kind), 0)
    if isinstance(kind, dict):
        good = {"enum": "A", "array": [1], "map": {"k": 1}, "bytes": decimal.Decimal(7), "long": EPOCH}[kind["type"]]
    neighbour = write(schema, {"c": good})
    parsed = parse(AvroFormat(schema), neighbour, entry, neighbour)
    assert [index for index, _ in parsed.bad] == [1]
    assert says in parsed.bad[0][1]
    assert parsed.entries is not None
    assert parsed.entries.tolist() == [0, 2]
    assert parsed.rows.num_rows == 2


def test_should_read_arrays_in_several_blocks() -> None:
    form = AvroFormat(record(c={"type": "array", "items": "long"}))
    parsed = parse(form, b"\x02\x02\x03\x04\x04\x06\x00", b"\x00")
    assert parsed.bad == []
    assert parsed.rows["c"].to_pylist() == [[1, 2, 3], []]


def test_should_read_unions_of_several_types() -> None:
    schema = record(
        n=["int", "null", "long"],
        f=["float", "double"],
        m=["null", "string", "long", {"type": "array", "items": "int"}],
    )
    form = AvroFormat(schema)
    assert form.schema.types[:2] == [pa.int64(), pa.float64()]
    entries = [b"\x00\x02\x00" + b"\0\0\x80?" + b"\x02\x02x", b"\x04\x04\x02" + b"\0" * 8 + b"\x06\x02\x0a\x00"]
    entries.append(b"\x02\x00" + b"\0" * 4 + b"\x00")
    parsed = parse(form, *entries)
    assert parsed.bad == []
    assert parsed.rows.to_pylist() == [
        {"n": 1, "f": 1.0, "m": {"member0": "x", "member1": None, "member2": None}},
        {"n": 2, "f": 0.0, "m": {"member0": None, "member1": None, "member2": [5]}},
        {"n": None, "f": 0.0, "m": None},
    ]


def test_should_keep_what_no_column_type_is_like_as_it_is_stored() -> None:
    schema = record(
        at={"type": "long", "logicalType": "timestamp-nanos"},
        time={"type": "int", "logicalType": "time-millis"},
        wide={"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 2},
        nothing="null",
        empty={"type": "record", "name": "void", "fields": []},
        millis={"type": "long", "logicalType": "timestamp-millis"},
        small={"type": "fixed", "name": "f", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 2},
    )
    form = AvroFormat(schema)
    assert form.schema.names == ["at", "time", "wide", "millis", "small"]
    parsed = parse(form, b"\x0e" + b"\x10" + b"\x02\x01" + b"\x04" + b"\xff\x00")
    (row,) = parsed.rows.to_pylist()
    assert (row["at"], row["time"], row["wide"]) == (7, 8, b"\x01")
    assert row["millis"] == dt.datetime(1970, 1, 1, 0, 0, 0, 2000, tzinfo=dt.UTC)
    assert row["small"] == decimal.Decimal("-2.56")


# Columns


def test_should_put_values_only_into_columns_that_hold_them() -> None:
    old, new = record(id="long", name="string"), record(id="double", extra=["null", "int"])
    schemas = {"1": old, "2": json.dumps(new)}
    with pytest.raises(
        InvalidConfig, match=r"'id' is int64 in one of the schemas and double in another: say with schema"
    ):
        AvroFormat(schemas, framing="confluent")
    with pytest.raises(InvalidConfig, match=r"no column for the field 'extra' .*unknown_fields='ignore'"):
        AvroFormat(schemas, framing="confluent", schema="id BIGINT, name STRING")
    with pytest.raises(InvalidConfig, match="the column 'id' can hold none of the field's values: int64 is not date32"):
        AvroFormat(schemas, framing="confluent", schema="id DATE, name STRING, extra INT")
    form = AvroFormat(schemas, framing="confluent", schema="id BIGINT NOT NULL, name STRING, extra INT")
    entries = [b"\0\0\0\0\1" + write(old, {"id": 7, "name": "x"})]
    entries += [b"\0\0\0\0\2" + write(new, {"id": value, "extra": 5}) for value in (1.0, 1.5, math.nan, 2.0)]
    entries += [b"\0\0\0\0\3" + entries[0][5:], b"\1" + entries[0][1:], b"\0\0\0"]
    found = by_entry(parse(form, *entries), len(entries))
    assert [found[at] for at in (0, 1, 4)] == [
        {"id": 7, "name": "x", "extra": None},
        {"id": 1, "name": None, "extra": 5},
        {"id": 2, "name": None, "extra": 5},
    ]
    assert "cannot" in found[2] or "truncated" in found[2]
    assert "written with the schema 3, which is not among those" in found[5]
    assert "does not begin with a zero" in found[6]
    assert "ends in the middle" in found[7]
    required = AvroFormat(record(id=["null", "long"]), schema="id BIGINT NOT NULL")
    assert parse(required, b"\x00", b"\x02\x02").bad == [(0, "no value for the column 'id', which is NOT NULL")]


def test_should_tell_schemas_apart_by_their_fingerprints() -> None:
    one = {**record(id="long"), "namespace": "a.b", "doc": "x"}
    two = record(id={"type": "long", "default": 3}, kind={"type": "enum", "name": "k", "symbols": ["A"]})
    for schema in (one, two):
        form = fastavro.schema.to_parsing_canonical_form(fastavro.parse_schema(schema))
        assert canonical(schema) == form
        little = fingerprint(schema).to_bytes(8, "little").hex()  # as entries have it, and as fastavro prints it
        assert little == fastavro.schema.fingerprint(form, "CRC-64-AVRO")
    assert fingerprint("int") == 0x7275D51A3F395C8F  # the specification's own example
    form = AvroFormat([one, two], framing="soe")
    frames = [b"\xc3\x01" + fingerprint(schema).to_bytes(8, "little") for schema in (one, two)]
    entries = [frames[1] + b"\x02\x00", frames[0] + b"\x04", b"\xc3\x02" + frames[0][2:] + b"\x04"]
    entries.append(frames[0][:2] + b"\0" * 8 + b"\x04")
    found = by_entry(parse(form, *entries), 4)
    assert (found[0], found[1]) == ({"id": 1, "kind": "A"}, {"id": 2, "kind": None})
    assert "single-object encoding" in found[2]
    assert "schema 0000000000000000, which is not among" in found[3]


@EXAMPLES
@given(st.lists(types(), min_size=1, max_size=2))
def test_should_have_the_canonical_form_of_any_schema(fields: list[Pair]) -> None:
    schema = {**record(**{f"c{at}": kind for at, (kind, _) in enumerate(fields)}), "namespace": "x.y"}
    assert canonical(schema) == fastavro.schema.to_parsing_canonical_form(fastavro.parse_schema(schema))


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (None, "needs avro_schema"),
        ("{", "is not JSON"),
        ("long", "is not JSON"),
        ('"long"', "must be a record"),
        ([record(a="long")], "must be a record"),
        (record(), "no field that could be a column"),
        (record(a="lnog"), "there is no type 'lnog'"),
        (record(a="r"), "'r' holds itself"),
        (record(a={"type": "array", "items": "null"}), "holds nothing that a column could"),
        (record(a={"type": "array", "items": {"type": "record", "name": "e", "fields": []}}), "holds nothing"),
        (record(a={"type": "fixed", "name": "f", "size": 0}), "has the size 0"),
        (record(a=[]), "a union without branches"),
        (record(a="int", A="int"), "columns twice"),
        (record(a={"type": "enum", "name": "e"}), "no list of symbols"),
        ({"type": "record", "name": "r"}, "no list of fields"),
        (record(a=7), "is no type"),
    ],
)
def test_should_name_what_is_wrong_with_a_schema(schema: Any, says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        AvroFormat(schema)


def test_should_name_wrong_options() -> None:
    with pytest.raises(InvalidConfig, match="framing='xml' is not allowed"):
        AvroFormat(record(a="int"), framing="xml")
    with pytest.raises(InvalidConfig, match="a table from the schemas' numbers"):
        AvroFormat(record(a="int"), framing="confluent")
    with pytest.raises(InvalidConfig, match="the number of a schema in the registry"):
        AvroFormat({"x": record(a="int")}, framing="confluent")


def test_should_pickle_and_have_a_digest_of_all_that_matters() -> None:
    one = AvroFormat(record(a="long"))
    assert pickle.loads(pickle.dumps(one)) == one == resolve_format({"type": "avro", "avro_schema": record(a="long")})
    others = [
        AvroFormat(record(a={"type": "long", "logicalType": "timestamp-micros"})),
        AvroFormat(record(a="long"), framing="soe"),
        AvroFormat(record(a="long"), schema="a DECIMAL(20, 0)"),
    ]
    assert len({form.digest() for form in [one, *others]}) == 4


# Memory


def test_should_take_memory_by_the_bytes_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "MANY", MANY)  # a step of numpy for each of so many items of one entry takes minutes
    wide = {"type": "record", "name": "w", "fields": [{"name": f"f{n}", "type": "double"} for n in range(1000)]}
    hostile = AvroFormat(record(c={"type": "array", "items": ["null", wide]}))
    count = 200_000
    entry = write(record(c={"type": "array", "items": "boolean"}), {"c": [False] * count})  # branch 0: null
    parsed = []
    peak = peak_bytes(lambda: parsed.append(parse(hostile, entry)))
    assert "too much room" in parsed[0].bad[0][1]
    assert peak < 200 * len(entry)
    claims = AvroFormat(record(c={"type": "map", "values": "bytes"}))
    entry = b"\x02" + b"\x02a" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"
    assert peak_bytes(lambda: parse(claims, entry)) < 1 << 20


# Rows to records


def test_should_write_what_it_and_others_read_back() -> None:
    schema = pa.schema(
        [
            *[
                ("flag", pa.bool_()),
                ("tiny", pa.int8()),
                ("id", pa.int64()),
                ("ratio", pa.float32()),
                ("x", pa.float64()),
            ],
            *[("price", pa.decimal128(38, 4)), ("raw", pa.binary()), ("name", pa.string()), ("day", pa.date32())],
            *[("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")), ("tags", pa.list_(pa.string()))],
            ("counts", pa.map_(pa.string(), pa.int64())),
            ("inner", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.struct([("c", pa.bool_())])))])),
        ]
    )
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678901)
    full = {
        "flag": True,
        "tiny": -128,
        "id": -(2**63),
        "ratio": 0.5,
        "x": -0.0,
        "price": decimal.Decimal("-" + "9" * 34 + ".1234"),
        "raw": b"\xff\x00",
        "name": "ä",
        "day": at.date(),
        "at": at.replace(tzinfo=dt.UTC),
        "local": at,
        "tags": ["x", None, ""],
        "counts": [("k", 1), ("z", None)],
        "inner": {"a": None, "b": [{"c": True}, None, {"c": None}]},
    }
    rows = [
        full,
        dict.fromkeys(schema.names),
        {**full, "tags": [], "counts": [], "price": decimal.Decimal(0), "id": 2**63 - 1},
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema)
    text = avro_schema(schema)
    entries = encoded(batch.slice(1), b"")
    parsed = AvroFormat(text, schema=schema).parse(entries)
    assert parsed.bad == []
    assert parsed.rows.to_pylist() == batch.slice(1).to_pylist()
    reader = fastavro.parse_schema(json.loads(text))
    for row, entry in zip(batch.slice(1).to_pylist(), entries.to_pylist(), strict=True):
        source = io.BytesIO(entry)
        assert fastavro.schemaless_reader(source, reader, None) == plain_maps(row, ("counts",))
        assert source.read() == b""


def plain_maps(row: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: dict(value) if name in names and value is not None else value for name, value in row.items()}


@pytest.mark.parametrize("framing", ["soe", "confluent"])
def test_should_write_frames_that_it_reads(framing: str) -> None:
    batch = pa.RecordBatch.from_pydict({"a": pa.array(np.arange(-70, 70))})
    entries = encoded(batch, head(batch.schema, framing, 17))
    text = avro_schema(batch.schema)
    form = AvroFormat(text if framing == "soe" else {"17": text}, framing=framing)
    assert form.parse(entries).rows["a"].to_pylist() == list(range(-70, 70))


def test_should_say_which_column_cannot_be_a_field() -> None:
    with pytest.raises(InvalidInput, match="the column 'x y' cannot be a field of Avro"):
        avro_schema(pa.schema([("x y", pa.int64())]))
    assert parse(AvroFormat(record(a="long"))).rows.num_rows == 0
    assert AvroFormat(record(a="long")).parse(binary()).bad == []
