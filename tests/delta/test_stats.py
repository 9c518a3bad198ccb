"""Statistics of a data file; that they are Spark's own is shown in tests/spark/test_data_files.py."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer.errors import InvalidConfig
from buffer_delta.delta.stats import StatsRules, column_list, cut_max, file_stats

SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("s", pa.struct([("x", pa.int32()), ("deep", pa.struct([("y", pa.string()), ("z", pa.bool_())]))])),
        ("tags", pa.list_(pa.string())),
        ("last", pa.date32()),
    ]
)
ROW = {"a": 1, "s": {"x": 2, "deep": {"y": "why", "z": True}}, "tags": ["t"], "last": 0}


def stats(values: list[dict[str, Any]], rules: StatsRules | None = None, schema: pa.Schema = SCHEMA) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file_stats([pa.RecordBatch.from_pylist(values, schema)], schema, rules))
    return found


def counted(rules: StatsRules) -> Any:
    return stats([ROW], rules).get("nullCount")


def test_should_count_leaves_as_spark_does() -> None:
    everything = {"a": 0, "s": {"x": 0, "deep": {"y": 0, "z": 0}}, "tags": 0, "last": 0}
    assert counted(StatsRules()) == everything
    assert counted(StatsRules(leaves=-1)) == everything
    assert counted(StatsRules(leaves=2)) == {"a": 0, "s": {"x": 0}}
    assert counted(StatsRules(leaves=5)) == {"a": 0, "s": {"x": 0, "deep": {"y": 0, "z": 0}}, "tags": 0}
    assert stats([ROW], StatsRules(leaves=0)) == {"numRecords": 1}


def test_should_take_the_columns_that_the_table_names() -> None:
    rules = StatsRules.of_properties({"delta.dataSkippingStatsColumns": "LAST, s.deep, `s`.x"})
    assert counted(rules) == {"s": {"x": 0, "deep": {"y": 0, "z": 0}}, "last": 0}
    assert stats([ROW], rules)["minValues"] == {"s": {"x": 2, "deep": {"y": "why"}}, "last": "1970-01-01"}
    assert stats([ROW], StatsRules.of_properties({"delta.dataSkippingStatsColumns": ""})) == {"numRecords": 1}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a", (("a",),)),
        (" a , b.c ", (("a",), ("b", "c"))),
        ("`a.b`.`c``d`,e f", (("a.b", "c`d"), ("e f",))),
        ("", ()),
    ],
)
def test_should_read_a_list_of_columns(text: str, wanted: tuple[tuple[str, ...], ...]) -> None:
    assert column_list(text) == wanted


@pytest.mark.parametrize("text", ["a,,b", ".a", "`a", "a.", "a,"])
def test_should_refuse_what_is_no_list_of_columns(text: str) -> None:
    with pytest.raises(InvalidConfig, match="list of columns"):
        column_list(text)


def test_should_count_what_a_null_struct_hides() -> None:
    found = stats([ROW, {"s": None}, {"s": {"deep": None}}])
    assert found["nullCount"] == {"a": 2, "s": {"x": 2, "deep": {"y": 2, "z": 2}}, "tags": 2, "last": 2}
    assert found["maxValues"] == {"a": 1, "s": {"x": 2, "deep": {"y": "why"}}, "last": "1970-01-01"}


def test_should_keep_empty_bounds_where_all_is_null() -> None:
    found = stats([{}])
    assert found["minValues"] == found["maxValues"] == {"s": {"deep": {}}}


def test_should_say_that_bounds_are_tight_where_rows_may_be_deleted() -> None:
    assert stats([ROW], StatsRules(tight_bounds=True))["tightBounds"] is True
    assert "tightBounds" not in stats([ROW])


def bounds(values: list[Any], kind: pa.DataType) -> tuple[Any, Any]:
    """Over two batches: the second must not be forgotten, nor the first."""
    schema = pa.schema([("v", kind)])
    batches = [pa.record_batch([pa.array(half, kind)], schema=schema) for half in (values[:1], values[1:])]
    found = json.loads(file_stats(batches, schema), parse_float=str)
    return found["minValues"].get("v"), found["maxValues"].get("v")


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([1.0, math.nan], ("1.0", "NaN")),
        ([math.nan, 1.0], ("1.0", "NaN")),
        ([math.nan, math.nan], ("NaN", "NaN")),
        ([math.inf, -math.inf], ("-Infinity", "Infinity")),
        ([-0.0, 0.0], ("-0.0", "-0.0")),
        ([0.0, -0.0], ("0.0", "0.0")),
        ([None, -0.0, 0.0, 1.0], ("-0.0", "1.0")),
        ([0.1, 5e-324], ("5e-324", "0.1")),
        ([None, None], (None, None)),
    ],
)
def test_should_order_numbers_as_spark_does(values: list[Any], wanted: tuple[Any, Any]) -> None:
    assert bounds(values, pa.float64()) == wanted


@pytest.mark.parametrize("at", [0, 1])
def test_should_have_no_bounds_where_one_is_not_utf8(at: int) -> None:
    """Spark's own strings may be so: those of CAST(value AS STRING)."""
    odd, plain = pa.array([b"\xff", b"b"], pa.binary()).view(pa.string()), pa.array(["a", None])
    schema = pa.schema([("v", pa.string())])
    batches = [pa.record_batch([each], schema=schema) for each in ([odd, plain], [plain, odd])[at]]
    wanted = {"numRecords": 4, "minValues": {}, "maxValues": {}, "nullCount": {"v": 1}}
    assert json.loads(file_stats(batches, schema)) == wanted


def test_should_print_a_float_as_short_as_it_is() -> None:
    assert bounds([0.1, 0.2], pa.float32()) == ("0.1", "0.2")


def test_should_cut_moments_to_milliseconds_and_leave_out_what_no_calendar_has() -> None:
    utc, local = pa.timestamp("us", "UTC"), pa.timestamp("us")
    assert bounds([-1, 1999], utc) == ("1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.001Z")
    assert bounds([-1, 1999], local) == ("1969-12-31T23:59:59.999", "1970-01-01T00:00:00.001")
    assert bounds([0, 2**62], utc) == ("1970-01-01T00:00:00.000Z", None)
    assert bounds([-(2**31), 2**31 - 1], pa.date32()) == (None, None)
    assert bounds([-719_162, 2_932_896], pa.date32()) == ("0001-01-01", "9999-12-31")


@given(
    st.text(st.sampled_from("a\x7f\x80é\ud7ff\ue000\uffff\U00010000\U0010fffe\U0010ffff"), max_size=80),
    st.integers(0, 33),
)
def test_should_round_a_long_maximum_up_and_no_further_than_allowed(text: str, prefix: int) -> None:
    found = cut_max(text, prefix)
    if found is None:
        assert prefix == 0 or text.startswith(text[: prefix // 2])
        return
    assert found.encode() >= text.encode()
    assert len(found.encode("utf-16-le")) // 2 <= max(prefix, 2 * prefix + 3)


def test_should_keep_the_largest_string_or_say_nothing() -> None:
    assert cut_max("b" * 32, 32) == "b" * 32
    assert cut_max("b" * 33, 32) == "b" * 32 + "\x7f"
    assert cut_max("b" * 32 + "\x7f", 32) == "b" * 32 + "\U0010ffff"
    assert cut_max("\U0010ffff" * 100, 32) is None
    assert cut_max("a" + "\U0010ffff" * 16, 32) == "a" + "\U0010ffff" * 16
