"""json: VARIANT columns. What one cannot hold exactly never gets there."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructField, StructType, VariantType

from buffer.errors import InvalidConfig
from buffer_delta.formats import ArrowFormat, CsvFormat, JsonFormat, merge_schemas
from buffer_delta.formats.variant import DIGITS_MAX, NAME_MAX, TEXT_MAX, VARIANT
from buffer_delta.spark.source.options import read_options
from tests.formats.format_support import binary, by_entry, evolve, parse

FORM = JsonFormat("id BIGINT, v VARIANT")


def _row(text: str, form: JsonFormat = FORM) -> Any:
    return by_entry(parse(form, text), 1)[0]


@pytest.mark.parametrize(
    "text",
    [
        *('{"a":[1,null,{"b":"x"}]}', "[]", '"text"', "true", "-0", "0.0", "1.50", "1e2", "-2.5E-3", '"\\u0000"'),
        *("9" * DIGITS_MAX, "-" + "9" * DIGITS_MAX, "0." + "1" * DIGITS_MAX, "0.1", "12345678901234567890.5"),
    ],
)
def test_should_hand_on_what_a_variant_holds_as_it_was_written(text: str) -> None:
    row = _row(f'{{"id":1,"v":{text}}}')
    assert (row["id"], row["v"], row["_rescued_data"]) == (1, text, None)


@pytest.mark.parametrize(
    "text",
    [
        *("9" * (DIGITS_MAX + 1), "-1" + "0" * DIGITS_MAX, "1." + "1" * DIGITS_MAX, "0." + "0" * DIGITS_MAX + "1"),
        *("1e400", "1e-400", "NaN", "-Infinity", "1" * 5000, "1.0e" + "0" * 1000 + "1"),
        '{"%s":1}' % ("n" * (NAME_MAX + 1)),
    ],
    ids=lambda text: text[:20],
)
def test_should_rescue_what_would_be_another_value_there(text: str) -> None:
    for inside in (text, f'{{"deep":[{text}]}}'):
        row = _row(f'{{"id":1,"v":{inside}}}')
        assert (row["id"], row["v"], row["_rescued_data"]) == (1, None, f'{{"v":{inside}}}')
    strict = JsonFormat("v VARIANT", on_mismatch="dead_letter")
    assert "cannot hold" in _row(f'{{"v":{text}}}', strict)


def test_should_rescue_what_is_too_large() -> None:
    fits = '{"v":"%s"}' % ("x" * (TEXT_MAX - 2))
    assert _row(fits)["v"] is not None
    assert _row(fits.replace("xx", "xxx", 1))["v"] is None


def test_should_take_null_as_no_value_and_refuse_it_where_one_must_be() -> None:
    assert _row('{"v":null}')["v"] is None
    assert "NOT NULL" in _row('{"id":1}', JsonFormat("v VARIANT NOT NULL"))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
    )
)
def test_should_hand_on_or_rescue_the_very_value(value: Any) -> None:
    text = json.dumps({"v": value})
    row = _row(text)
    kept = row["v"] if row["_rescued_data"] is None else json.dumps(json.loads(row["_rescued_data"])["v"])
    assert (None if kept is None else json.loads(kept)) == value


def test_should_follow_a_tables_variant_or_a_hint() -> None:
    table = StructType([StructField("v", VariantType()), StructField("id", LongType())])
    settled = evolve(JsonFormat(), table, '{"v": {"a": 1}, "id": 1}')
    assert (settled.variants, settled.schema.field("v").type) == (("v",), pa.string())
    hinted = JsonFormat(schema_hints="v VARIANT")
    found = [hinted.discover(binary(text)) for text in ('{"v": 1, "a": 1}', '{"v": {"x": "y"}}', "[]")]
    travelled = [pa.ipc.read_schema(pa.py_buffer(schema.serialize().to_pybytes())) for schema in found]
    assert merge_schemas(None, travelled).field("v").type == VARIANT
    assert evolve(hinted, None, '{"v": 1}').variants == ("v",)
    again = pickle.loads(pickle.dumps(evolve(hinted, None, '{"v": 1}')))
    assert _row('{"v": {"x": 1}}', again)["v"] == '{"x":1}'


def test_should_name_a_variant_in_the_settings_of_plans() -> None:
    assert FORM.settings()["schema"] == [["id", "int64", True], ["v", "variant", True]]
    assert FORM.digest() != JsonFormat("id BIGINT, v STRING").digest()


def test_should_refuse_variants_where_nobody_makes_them() -> None:
    for wrong in (
        lambda: JsonFormat("v ARRAY<VARIANT>"),
        lambda: JsonFormat("v STRUCT<x: VARIANT>"),
        lambda: CsvFormat("v VARIANT"),
        lambda: ArrowFormat("v VARIANT"),
        lambda: read_options({"path": "/nowhere", "format": "json", "schema": "v VARIANT"}).with_format(),
    ):
        with pytest.raises(InvalidConfig, match="VARIANT"):
            wrong()
