"""Memory is bounded by the bytes in hand, whatever the keys are. Allocations are counted, not measured."""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pytest

from buffer_delta.formats import JsonFormat
from buffer_delta.formats.cells import CELLS_MIN, CELLS_PER_PIECE
from tests.formats.format_support import binary, by_entry, parse, peak_bytes

MIB = 1 << 20
KIB = 1 << 10


def map_of_ids(size: int) -> list[bytes]:
    return [f'{{"id":{i},"by_user":{{"{i:032x}":{i}}}}}'.encode() for i in range(size // 64)]


def new_names(size: int) -> list[bytes]:
    return [f'{{"id":{i},"k{i:010d}":{i}}}'.encode() for i in range(size // 32)]


def one_record(size: int) -> list[bytes]:
    return [b'{"id":1,' + b",".join(f'"k{i}":1'.encode() for i in range(size // 10)) + b"}"]


def one_array(size: int) -> list[bytes]:
    return [b'{"id":1,"l":[' + b",".join(f'{{"k{i}":1}}'.encode() for i in range(size // 12)) + b"]}"]


def nested_names(size: int) -> list[bytes]:
    """Few names, but as paths they are all different."""
    paths = [
        f'{{"a{i % 20}":{{"b{i // 20 % 20}":{{"c{i // 400 % 20}":{{"d{i // 8000}":{i}}}}}}}}}'
        for i in range(size // 40)
    ]
    return [path.encode() for path in paths]


SHAPES = [map_of_ids, new_names, one_record, one_array, nested_names]


def load(form: JsonFormat, entries: pa.BinaryArray) -> int:
    """As the loader's tasks do: discover, then parse piece by piece. The number of rows."""
    settled = form.with_schema(form.discover(entries)) if form.evolving else form
    rows = 0
    for _, piece in settled.pieces(entries, 8 * MIB, 64 * KIB):
        parsed = settled.parse(piece)
        assert parsed.bad == []
        rows += parsed.rows.num_rows
    return rows


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "schema", [None, "id BIGINT", "id BIGINT, by_user MAP<STRING, BIGINT>, l ARRAY<STRUCT<k1: INT>>"]
)
def test_should_take_memory_by_the_bytes_not_by_the_names(
    shape: Callable[[int], list[bytes]], schema: str | None
) -> None:
    form = JsonFormat(schema, max_columns=50)
    load(form, binary(*shape(KIB)))  # what is made once
    peaks = []
    for size in (16 * KIB, 64 * KIB):
        entries = binary(*shape(size))
        peaks.append(peak_bytes(lambda entries=entries: load(form, entries)))
    assert peaks[1] < 6 * peaks[0], "it grows no faster than the entries"
    assert peaks[1] < 150 * 64 * KIB


def test_should_not_make_a_thousand_cells_of_every_empty_object() -> None:
    columns = ", ".join(f"k{i} BIGINT" for i in range(1000))
    top, inside = JsonFormat(columns), JsonFormat(f"l ARRAY<STRUCT<{columns.replace(' BIGINT', ': BIGINT')}>>")
    empty = binary(*[b"{}"] * 5000)
    assert peak_bytes(lambda: load(top, empty)) < 12 * 8 * CELLS_PER_PIECE
    entry = b'{"l":[' + b"{}," * 3000 + b"{}]}"
    assert peak_bytes(lambda: load(inside, binary(*[entry] * 20))) < 8 * MIB


def test_should_rescue_an_array_that_takes_too_many_cells_for_its_bytes() -> None:
    fields = ", ".join(f"k{i}: BIGINT" for i in range(100))
    form = JsonFormat(f"id BIGINT, l ARRAY<STRUCT<{fields}>>")
    for elements, fits in ((CELLS_MIN // 100, True), (CELLS_MIN // 100 + 1, False)):
        entry = f'{{"id":1,"l":[{",".join(["{}"] * elements)}]}}'
        for entries in ([entry], [entry, '{"id":2}', '{"id":"x"}']):
            row = by_entry(parse(form, *entries), len(entries))[0]
            assert isinstance(row, dict)
            assert row["id"] == 1
            assert (row["l"] is not None, row["_rescued_data"] is None) == (fits, fits)
            assert fits or json.loads(row["_rescued_data"]) == {"l": json.loads(entry)["l"]}
    ((_, error),) = parse(JsonFormat(f"l ARRAY<STRUCT<{fields}>>", on_mismatch="dead_letter"), entry).bad
    assert "would take 65,600 cells" in error


def test_should_find_a_name_that_is_there_twice_in_one_pass() -> None:
    names = [f'"k{i}":1' for i in range(40_000)]
    names += ['"k39999":2']
    ((_, error),) = parse(JsonFormat("id INT"), "{" + ",".join(names) + "}").bad
    assert error == 'the name "k39999" is there twice in one object'


@pytest.mark.parametrize(
    ("entry", "bad"),
    [
        ('{"z":1,"z":2}', True),
        ('{"z":1,"z":null}', True),
        ('{"z":null,"z":1}', True),
        ('{"z":null,"z":null}', False),
        ('{"z":null,"z":null,"z":0}', True),
        ('{"x":{"z":"a","z":"a"}}', True),
        ('{"id":1,"id":1}', True),
        ('{"id":null,"id":null}', False),
        ('{"s":{"a":1,"a":2}}', True),
    ],
)
def test_should_find_a_name_that_is_there_twice_whoever_reads_it(entry: str, bad: bool) -> None:
    form = JsonFormat("id INT, s STRUCT<a: INT>")
    for entries in ([entry], [entry, *['{"id":1}'] * 100], [entry, *['{"id":"x"}'] * 100]):
        assert isinstance(by_entry(parse(form, *entries), len(entries))[0], str) == bad
