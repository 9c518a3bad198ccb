"""arrow: each entry an IPC stream."""

from __future__ import annotations

import re
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest

from buffer_delta.formats import ArrowFormat, JsonFormat, settle
from buffer_delta.formats.arrow import ROWS_PER_ENTRY_MAX
from tests.formats.format_support import binary, parse, peak_bytes, stream


def test_should_read_arrow_streams_of_several_rows() -> None:
    one = stream(pa.table({"a": pa.array([1, 2, 3], pa.int32())}))
    two = stream(pa.table({"b": pa.array(["x"]), "a": pa.array([4], pa.int64())}))
    empty = stream(pa.table({"a": pa.array([], pa.int32())}))
    parsed = parse(ArrowFormat("a BIGINT, b STRING"), one, b"no stream", empty, two, two[:-20])
    assert parsed.rows.to_pylist() == [
        {"a": 1, "b": None},
        {"a": 2, "b": None},
        {"a": 3, "b": None},
        {"a": 4, "b": "x"},
    ]
    assert parsed.entries is not None
    assert parsed.entries.tolist() == [0, 0, 0, 3]
    assert [index for index, _ in parsed.bad] == [1, 4]


def test_should_set_aside_arrow_streams_that_do_not_fit() -> None:
    form = ArrowFormat("a INT")
    parsed = parse(
        form,
        stream(pa.table({"a": [1], "z": [2]})),
        stream(pa.table({"a": [2**40]})),
        stream(pa.table({"a": ["x"]})),
        stream(pa.table({"a": [5]})),
    )
    assert parsed.rows["a"].to_pylist() == [5]
    assert [index for index, _ in parsed.bad] == [0, 1, 2]
    assert "['a', 'z']" in parsed.bad[0][1]


def with_unit(interval: bytes, unit: int) -> bytes:
    """A stream of intervals of months, days and nanoseconds (unit 2), said to be of another unit."""
    for at in (at for at, byte in enumerate(interval) if byte == 2):
        other = interval[:at] + bytes([unit]) + interval[at + 1 :]
        with suppress(pa.ArrowException), pa.ipc.open_stream(other) as found:
            if str(found.schema) != str(pa.ipc.open_stream(interval).schema):
                return other
    raise AssertionError("there is such a byte")


@pytest.mark.parametrize("unit", [0, 1])
@pytest.mark.parametrize("form", [ArrowFormat("a INT"), ArrowFormat("a STRUCT<x: INT>")])
def test_should_set_aside_a_stream_of_a_type_that_python_does_not_know(form: ArrowFormat, unit: int) -> None:
    plain = pa.table({"a": pa.array([pa.MonthDayNano([1, 2, 3])])})
    nested = pa.table({"a": pa.array([{"x": pa.MonthDayNano([1, 2, 3])}])})
    for table in (plain, nested):
        entry = with_unit(stream(table), unit)
        ((index, error),) = parse(form, entry).bad
        assert index == 0
        assert re.search("the column 'a' has values of the type (month|day_time)_interval", error)
        assert len(ArrowFormat().discover(binary(entry))) == 0


def test_should_not_leave_out_what_comes_after_a_stream() -> None:
    one, other = (stream(pa.table({"a": [n]})) for n in (1, 2))
    more = [one + other, one + bytes(8) + other, one + b"x"]
    parsed = parse(ArrowFormat("a BIGINT"), *more, one, one + bytes(7), one[:-8])  # padding, and no mark at the end
    assert parsed.entries is not None
    assert (parsed.rows["a"].to_pylist(), parsed.entries.tolist()) == ([1, 1, 1], [3, 4, 5])
    assert [index for index, _ in parsed.bad] == [0, 1, 2]
    assert all("bytes come after its end: an entry is one stream" in error for _, error in parsed.bad)
    assert len(ArrowFormat().discover(binary(*more))) == 0


def test_should_not_believe_a_stream_that_claims_rows_without_end() -> None:
    nothing = pa.RecordBatch.from_arrays([pa.nulls(ROWS_PER_ENTRY_MAX + 1)], names=["a"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, nothing.schema) as writer:
        writer.write_batch(nothing)
    parsed = parse(ArrowFormat("a INT"), bytes(sink.getvalue()))
    assert "rows in one entry" in parsed.bad[0][1]


def test_should_say_which_value_kept_a_stream_from_bringing_its_column() -> None:
    form, entries = ArrowFormat(), [stream(pa.table({"at": pa.array([1], pa.timestamp("ns"))}))]
    settled = settle(form, None, form.discover(binary(*entries, stream(pa.table({"id": [1]})))))
    ((_, error),) = parse(settled, *entries).bad
    assert "would lose data: 1" in error


@pytest.mark.parametrize("what", ["cut", "twice", "too many rows", "a bomb", "offsets"])
def test_should_not_discover_columns_in_streams_that_cannot_be_read(what: str) -> None:
    """They would be in the table for ever, and empty."""
    whole = stream(pa.table({"evil": ["x" * 100] * 3}))
    column = pa.array(["a", "b", "c"])
    wrong = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(np.array([0, 3, 1, 3], np.int32)), column.buffers()[2]]
    )
    entry = {
        "cut": whole[: len(whole) - 200],
        "twice": stream(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["evil", "evil"])),
        "too many rows": stream(pa.table({"evil": pa.nulls(20_000_000)})),
        "a bomb": stream(pa.table({"evil": pa.array(np.zeros(3_000_000))}), "zstd"),
        "offsets": stream(pa.table({"evil": wrong})),
    }[what]
    form = ArrowFormat().within(1 << 20)
    found = form.discover(binary(entry, stream(pa.table({"good": [1]}))))
    assert found.names == ["good"]
    parsed = form.with_schema(found).parse(binary(entry))
    assert parsed.rows.num_rows == 0


def test_should_discover_the_columns_of_arrow_streams() -> None:
    form = ArrowFormat()
    found = form.discover(binary(stream(pa.table({"a": [1]})), b"x", stream(pa.table({"a": [2], "b": ["y"]}))))
    settled = settle(form, None, found)
    assert settled.schema == pa.schema([("a", pa.int64()), ("b", pa.string())])


@pytest.mark.parametrize("kind", ["STRUCT<a: BIGINT>", "ARRAY<STRUCT<a: BIGINT>>", "MAP<STRING, STRUCT<a: BIGINT>>"])
def test_should_not_drop_fields_inside_the_columns_of_a_stream(kind: str) -> None:
    """Arrow's own cast would, without a word."""
    form = ArrowFormat(f"s {kind}")
    wider = ArrowFormat(f"s {kind.replace('BIGINT', 'BIGINT, b: BIGINT')}")
    narrow, wide = (stream(f.schema.empty_table()) for f in (form, wider))
    assert [index for index, _ in parse(form, narrow, wide).bad] == [1]
    assert "'s' has fields beyond" in parse(form, wide).bad[0][1]
    assert parse(wider, narrow, wide).bad == []


def test_should_set_aside_a_stream_of_other_nested_types() -> None:
    union = pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])])
    fixed = pa.array([[{"a": 1, "b": 2}]], pa.list_(pa.struct([("a", pa.int64()), ("b", pa.int64())]), 1))
    form = ArrowFormat("s ARRAY<STRUCT<a: BIGINT>>")
    bad = parse(form, stream(pa.table({"s": union})), stream(pa.table({"s": fixed}))).bad
    assert [index for index, _ in bad] == [0, 1]


MIB = 1 << 20


def bombs() -> dict[str, bytes]:
    """Streams of a few kilobytes, or little more, that hold far more than that."""
    long = pa.array(["x" * MIB])
    shared = {
        "dictionary": pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int8()), long),
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([1000], pa.int32()), long),
        "views": pa.concat_arrays([long.cast(pa.string_view())] * 1000),
        "lists": pa.ListViewArray.from_arrays([0] * 1000, [MIB] * 1000, pa.array(bytes(MIB), pa.uint8())),
        "inside": pa.StructArray.from_arrays(
            [pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int8()), long)], ["a"]
        ),
    }
    found = {name: stream(pa.table({"a": array}), "zstd") for name, array in shared.items()}
    found["compressed"] = stream(pa.table({"a": pa.array(np.zeros(5 * MIB))}), "zstd")
    found["lz4"] = stream(pa.table({"a": pa.array(np.zeros(5 * MIB))}), "lz4")
    found["compressed dictionary"] = stream(
        pa.table({"a": pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(["x" * 40 * MIB]))}), "zstd"
    )
    nothing = pa.FixedSizeListArray.from_arrays(pa.nulls(1 << 30), 1 << 30)
    found["nothing"] = stream(pa.table({"a": nothing}))
    found["rows of nothing"] = stream(pa.table({"a": pa.nulls(9_000_000)}))
    return found


BOMBS = bombs()


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("kind", ["STRING", "ARRAY<SMALLINT>", "STRUCT<a: STRING>", "BINARY"])
def test_should_not_expand_a_stream_beyond_measure(name: str, kind: str) -> None:
    entries = binary(BOMBS[name])
    form = ArrowFormat(f"a {kind}, b BIGINT")
    found = []
    assert peak_bytes(lambda: found.append(form.parse(entries))) < 32 * MIB
    assert "it would take" in found[0].bad[0][1]
    assert peak_bytes(lambda: list(form.pieces(entries, 8 * MIB, 1000))) < MIB


def test_should_expand_a_stream_no_further_than_a_batch_may() -> None:
    table = pa.table({"a": pa.array(range(100_000))})
    form = ArrowFormat("a BIGINT")
    assert parse(form, stream(table)).rows.equals(table)
    assert "bytes" in parse(form.within(500_000), stream(table)).bad[0][1]


def test_should_read_what_rows_share() -> None:
    texts = pa.array(["ab", None, "c", "ab"])
    views = pa.array(["a view that is longer than twelve bytes", None, "short", ""], pa.string_view())
    lists = pa.ListViewArray.from_arrays([0, 1, 0, 0], [2, 1, 0, 2], texts)
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1, 4], pa.int32()), pa.array(["r", "s"]))
    table = pa.table({"d": texts.dictionary_encode(), "v": views, "l": lists, "r": runs})
    parsed = parse(ArrowFormat("d STRING, v STRING, l ARRAY<STRING>, r STRING"), stream(table, "zstd"))
    assert parsed.bad == []
    assert parsed.rows.to_pydict() == {
        "d": texts.to_pylist(),
        "v": views.to_pylist(),
        "l": [["ab", None], [None], [], ["ab", None]],
        "r": ["r", "s", "s", "s"],
    }


def test_should_parse_streams_in_pieces_by_what_they_expand_to() -> None:
    small = stream(pa.table({"a": pa.array(["x"])}))
    large = stream(pa.table({"a": pa.array(["x" * 2 * MIB])}), "zstd")
    entries = binary(*[small] * 50, *[large] * 8, b"bad")
    sizes = [len(piece) for _, piece in ArrowFormat("a STRING").pieces(entries, 8 * MIB, 1000)]
    assert sum(sizes) == 59
    assert sizes[0] == 53
    assert len(sizes) == 3


def test_should_set_aside_streams_with_damaged_messages() -> None:
    whole = stream(pa.table({"a": pa.array(["x", "y"]).dictionary_encode(), "b": [1.5, 2.5]}), "zstd")
    form = ArrowFormat("a STRING, b DOUBLE")
    for at in range(len(whole)):
        for value in (0, 0x7F, 0xFF):
            damaged = whole[:at] + bytes([value]) + whole[at + 1 :]
            entries = binary(damaged)
            list(form.pieces(entries, 8 * MIB, 1000))
            parsed = form.parse(entries)
            assert parsed.rows.num_rows <= 2


def test_should_say_briefly_what_is_wrong() -> None:
    wide = pa.table({f"column {i}": [1] for i in range(5000)})
    ((_, error),) = parse(ArrowFormat("a INT"), stream(wide)).bad
    assert 1000 <= len(error) < 1100
    fields = ", ".join(f"k{i} INT" for i in range(100))
    record = "{" + ",".join(f'"k{i}":"no number"' for i in range(100)) + "}"
    ((_, error),) = parse(JsonFormat(fields, on_mismatch="dead_letter"), record).bad
    assert 1000 <= len(error) < 1100
