"""What becomes of a JSON record does not depend on the records that it is parsed with: replays group them anew."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from buffer_delta.formats import JsonFormat
from buffer_delta.formats.json.fast import read
from buffer_delta.formats.json.stray import has_stray
from buffer_delta.formats.schemas import arrow_schema
from tests.formats.format_support import by_entry, parse

NO_NUMBER = '{"id": 1.5}'
"""Arrow refuses the whole piece for it, and does not say which record it was: each is then looked at singly."""
LONG = f'{{"id": 2, "other": "{"x" * 500}"}}'

TOKENS = st.sampled_from(
    [
        *(
            "1",
            "-0",
            "01",
            "1.",
            "+1",
            "1e400",
            "NaN",
            "Infinity",
            "-Infinity",
            "Inf",
            "-Inf",
            "-NaN",
            "true",
            "null",
            "9" * 400,
        ),
        *('"x"', '"Inf"', '", Inf ,"', r'"\ud800"', r'"\q"', '"\x01"', "[1,]", "/**/1", "[Inf]", "[[]]"),
        *(
            '{"a": 1, "a": 2}',
            '{"a": null, "a": null}',
            '{"a": null, "a": 1}',
            '{"z": 1, "z": 2, "a": 3}',
            '{"a": "x"}',
        ),
        "[" * 90 + "]" * 90,
        "[" * 201 + "]" * 201,
    ]
)
VALUES = st.recursive(
    TOKENS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: "[" + ", ".join(items) + "]")
        | st.lists(st.tuples(st.sampled_from("az"), inner), max_size=3).map(lambda pairs: _object(pairs))
    ),
    max_leaves=4,
)


def _object(pairs: list[tuple[str, str]]) -> str:
    return "{" + ", ".join(f'"{name}": {value}' for name, value in pairs) + "}"


RECORDS = st.lists(st.tuples(st.sampled_from(["id", "a", "u", "z"]), VALUES), max_size=4).map(_object)
SCHEMAS = st.sampled_from(
    [
        *("", ", a STRING", ", a DOUBLE", ", a BOOLEAN", ", a DECIMAL(10, 2)", ", a MAP<STRING, BIGINT>"),
        *(
            ", a STRUCT<a: BIGINT>",
            ", a STRUCT<a: STRUCT<a: STRING>>",
            ", a ARRAY<STRUCT<a: DOUBLE>>",
            ", a ARRAY<DOUBLE>",
        ),
    ]
)


def alone_and_beside(form: JsonFormat, record: str) -> list[Any]:
    found = [by_entry(parse(form, *records), len(records))[0] for records in ([record], [record, NO_NUMBER, LONG])]
    return [str(outcome) for outcome in found]  # NaN is not equal to itself


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(RECORDS, SCHEMAS, st.sampled_from(["rescue", "ignore"]))
def test_should_do_the_same_with_a_record_whatever_its_neighbours(record: str, columns: str, unknown: str) -> None:
    alone, beside = alone_and_beside(JsonFormat(f"id BIGINT{columns}", unknown_fields=unknown), record)
    assert alone == beside


FIELDS = st.lists(
    st.sampled_from(
        [
            '"id": 1',
            '"id":null',
            '"t" : "a:b"',
            r'"t": "\":"',
            '"t": "x\\": n"',
            '"s": {"a": 1}',
            '"s": {"a": null}',
            '"s": {"a": 1, "b": 2}',
            '"l": [{"a": 1}, null, {}]',
            '"l": [{"a": 1, "b": 1}]',
            '"u": 1',
            '"u":  null',
            '"u": {"v": 1}',
        ]
    ),
    max_size=4,
    unique_by=lambda field: field[1],
).map(lambda fields: "{" + ", ".join(fields) + "}")


@settings(max_examples=400, deadline=None)
@given(st.lists(FIELDS, min_size=1, max_size=6))
def test_should_find_the_same_strays_in_many_records_as_in_each_alone(records: list[str]) -> None:
    schema = arrow_schema("id BIGINT, t STRING, s STRUCT<a: BIGINT>, l ARRAY<STRUCT<a: BIGINT>>")

    def strays(some: list[str]) -> list[bool]:
        entries = pa.array([record.encode() for record in some], pa.binary())
        table = read(entries, schema).table
        assert table is not None
        found: list[bool] = has_stray(entries, table).tolist()
        return found

    assert strays(records) == [strays([record])[0] for record in records]
    for record, is_stray in zip(records, strays(records), strict=True):
        found = json.loads(record)
        inner = [found.get("s") or {}, *(one or {} for one in found.get("l", []))]
        is_over = found.get("u") is not None or any("b" in one for one in inner)
        assert is_stray or not is_over  # it may look at too many, never at too few


@pytest.mark.parametrize(
    ("record", "good"),
    [
        ('{"id": 1, "u": 1, "u": 2}', True),
        ('{"id": 1, "u": {"x": 1, "x": 2}}', True),
        ('{"id": 1, "s": {"a": 1, "x": 1, "x": 2}}', True),
        ('{"id": 1, "l": [{"a": 1, "x": 1, "x": 2}]}', True),
        ('{"id": 1, "s": {"a": 1, "a": 2}}', False),
        ('{"id": 1, "l": [{"a": 1, "a": 2}]}', False),
        ('{"id": 1, "t": {"x": 1, "x": 2}}', False),  # which the column would keep as text
        ('{"id": 1, "id": 2}', False),
        ('{"id": 1, "u": Inf}', False),
        ('{"id": 1, "u": [-Inf ]}', False),
        ('{"id": 1, "u": "Inf"}', True),
        ('{"id": 1, "u": -NaN}', False),
        ('{"id": 1, "u": [1, -NaN ]}', False),
        ('{"id": 1, "u": "-NaN"}', True),
    ],
)
def test_should_pass_over_what_is_twice_only_where_nobody_looks(record: str, good: bool) -> None:
    schema = "id BIGINT, s STRUCT<a: BIGINT>, l ARRAY<STRUCT<a: BIGINT>>, t STRING"
    form = JsonFormat(schema, unknown_fields="ignore")
    alone, beside = alone_and_beside(form, record)
    assert alone == beside
    assert alone.startswith("{'id': 1") == good
