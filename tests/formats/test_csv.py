"""csv: lines to rows; no text is lost, none changes."""

from __future__ import annotations

import csv
import io
import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from buffer.errors import InvalidConfig
from buffer_delta.formats import CsvFormat, resolve_format
from tests.formats.format_support import parse
from tests.formats.oracle import SCALARS, Text, same
from tests.formats.test_nothing_changes import NUMBERS, STRINGS


def rows(form: CsvFormat, *entries: bytes | str) -> tuple[list[tuple[int, dict[str, Any]]], dict[int, str]]:
    parsed = parse(form, *entries)
    assert parsed.entries is not None
    return list(zip(parsed.entries.tolist(), parsed.rows.to_pylist(), strict=True)), dict(parsed.bad)


def test_should_read_lines_and_blocks() -> None:
    form = CsvFormat("a BIGINT, b STRING")
    found, bad = rows(form, "1,x", '2,y\r\n3,\n4,""\r', '5,"a,""b""\nc"\n', "x,7")
    assert bad == {}
    assert [(entry, row["a"], row["b"]) for entry, row in found] == [
        *((0, 1, "x"), (1, 2, "y"), (1, 3, None), (1, 4, ""), (2, 5, 'a,"b"\nc'), (3, None, "7"))
    ]
    assert [row["_rescued_data"] for _, row in found] == [None] * 5 + ['{"a":"x"}']
    assert pickle.loads(pickle.dumps(form)) == form
    assert resolve_format({"type": "csv", "schema": "a BIGINT, b STRING"}) == form


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("", "empty"),
        ("1", "line 1 has 1 fields, not 2"),
        ("1,2\n1,2,3", "line 2 has 3 fields, not 2"),
        ("1,2\n\n", "line 2 has 1 fields, not 2"),
        ('1,"x', "quote"),
        ('1,"x"y', "quote"),
        ('1,x"y"', "quote"),
        ('"1""', "quote"),
        (b"\xff,1", "not UTF-8"),
    ],
)
def test_should_set_an_entry_aside_that_is_not_of_these_columns(entry: bytes | str, says: str) -> None:
    found, bad = rows(CsvFormat("a BIGINT, b STRING"), "7,ok", entry, "8,ok")
    assert [(at, row["a"]) for at, row in found] == [(0, 7), (2, 8)]
    assert says in bad[1]


def test_should_find_columns_by_the_header_of_each_entry() -> None:
    form = CsvFormat("a BIGINT, b STRING", header=True, delimiter=";", null_value="NULL")
    found, bad = rows(form, "b;a;c\nx;1;new\nNULL;2;NULL", "a\n5", "a;a\n1;2", "", "a;b\n1")
    assert [(at, row["a"], row["b"], row["_rescued_data"]) for at, row in found] == [
        *((0, 1, "x", '{"c":"new"}'), (0, 2, None, None), (1, 5, None, None))
    ]
    assert sorted(bad) == [2, 3, 4]
    assert "twice" in bad[2]
    assert bad[4] == "line 2 has 1 fields, not 2"


def test_should_set_an_entry_aside_that_lacks_what_must_be_there() -> None:
    found, bad = rows(CsvFormat("a BIGINT NOT NULL, b STRING"), "1,x\n,y\n2,z", "x,1", "3,")
    assert [(at, row["a"]) for at, row in found] == [(2, 3)]
    assert sorted(bad) == [0, 1]


def test_should_not_let_short_lines_fill_memory() -> None:
    columns = ", ".join(f"c{n} INT" for n in range(1000))
    _, bad = rows(CsvFormat(columns, header=True), "c0\n" + "1\n" * 10_000)
    assert "10,000 lines of 1,000 columns are too many" in bad[0]
    found, _ = rows(CsvFormat(columns, header=True), *["c0\n1"] * 3)
    assert len(found) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"schema": None},
        {"schema": "a ARRAY<INT>"},
        {"schema": "a INT", "delimiter": ",,"},
        {"schema": "a INT", "delimiter": "\n"},
        {"schema": "a INT", "quote": ","},
        {"schema": "a INT", "null_value": "a,b"},
        {"schema": "_rescued_data INT"},
        {"schema": "a INT", "header": "yes"},
    ],
)
def test_should_refuse_options_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        CsvFormat(**options)


FIELDS = st.one_of(
    NUMBERS, STRINGS, st.sampled_from(["", "true", "TRUE", "007", "+1", " 1", "a,b", 'q"q', "a\r\nb", "\\", ";"])
)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.sampled_from(SCALARS), min_size=1, max_size=3).flatmap(
        lambda kinds: st.tuples(
            st.just(kinds), st.lists(st.lists(FIELDS, min_size=len(kinds), max_size=len(kinds)), min_size=1, max_size=4)
        )
    ),
    st.sampled_from([",", "\t", "|", "^", "]", "-"]),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_should_hold_what_a_field_says_or_rescue_it(
    table: tuple[list[str], list[list[str]]], delimiter: str, line_end: str, quote_all: bool
) -> None:
    """Written by Python's own writer, judged by the oracle: each text is in its column, or rescued as it was."""
    kinds, lines = table
    sink = io.StringIO()
    quoting = csv.QUOTE_ALL if quote_all else csv.QUOTE_MINIMAL
    csv.writer(sink, delimiter=delimiter, lineterminator=line_end, quoting=quoting).writerows(lines)
    form = CsvFormat(", ".join(f"c{n} {kind}" for n, kind in enumerate(kinds)), delimiter=delimiter)
    found, bad = rows(form, sink.getvalue())
    assert bad == {}
    assert len(found) == len(lines)
    for line, (_, row) in zip(lines, found, strict=True):
        rescued = json.loads(row["_rescued_data"] or "{}")
        for n, text in enumerate(line):
            got, kind = row[f"c{n}"], form.schema.field(f"c{n}").type
            if got is None:
                is_null = text == "" and not quote_all
                assert rescued.get(f"c{n}") == (None if is_null else text) or (is_null and len(kinds) == 1)
            else:
                assert f"c{n}" not in rescued
                assert holds(text, kind, got)


def holds(text: str, kind: pa.DataType, got: Any) -> bool:
    if pa.types.is_boolean(kind):
        return text == str(got).lower()
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return same(Text(text) if numeric else text, kind, got)
