"""Columns of rows and of a table that are one to Spark, however they are spelled."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pyspark.sql.types import ArrayType, IntegerType, LongType, MapType, StringType, StructField, StructType

from buffer_delta.delta.columns import fitted, mismatch, unfit
from buffer_delta.delta.screen import missing_columns
from buffer_delta.delta.writers.base import FrameRows

SPELLINGS = [("id", "ID"), ("K", "k"), ("ſ", "s"), ("İ", "i̇"), ("ς", "σ")]
"""Python's `lower()` tells the last four of them apart."""


def columns(name: str, kind: object) -> StructType:
    return StructType([StructField(name, kind)])  # type: ignore[arg-type]


@pytest.mark.parametrize(("one", "other"), SPELLINGS)
def test_should_know_a_column_as_spark_does(one: str, other: str) -> None:
    rows, table = columns(one, IntegerType()), columns(other, LongType())
    assert fitted(rows, table) == columns(one, LongType())
    assert mismatch("t", rows, table, merge_schema=False) is None
    assert unfit(table, columns(one, StringType()))
    assert missing_columns(rows, [other, "new"], None) == columns("new", StringType())
    assert missing_columns(StructType([]), [one, other], table) == columns(one, LongType())


def test_should_allow_null_everywhere_and_change_nothing_else() -> None:
    def made(*, null: bool) -> StructType:
        inner = StructType([StructField("x", IntegerType(), null, {"comment": "kept"})])
        array, pairs = ArrayType(inner, null), MapType(StringType(), ArrayType(LongType(), null), null)
        return StructType([StructField("a", array, null), StructField("m", pairs, null), StructField("s", inner, null)])

    assert FrameRows(SimpleNamespace(schema=made(null=False))).schema == made(null=True)
