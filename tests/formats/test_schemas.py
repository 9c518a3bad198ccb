"""Schemas that a user may give, in all three forms."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from buffer.errors import InvalidConfig
from buffer_delta.formats import arrow_schema
from buffer_delta.formats.ddl import parse_ddl


def test_should_read_schemas_in_three_forms() -> None:
    spark = StructType(
        [
            StructField("a", IntegerType(), nullable=False),
            StructField("t", TimestampType()),
            StructField("n", TimestampNTZType()),
            StructField("s", StringType()),
        ]
    )
    arrow = pa.schema(
        [
            pa.field("a", pa.int32(), nullable=False),
            ("t", pa.timestamp("ns", "Europe/Berlin")),
            ("n", pa.timestamp("ms")),
            ("s", pa.large_string()),
        ]
    )
    ddl = "a INT NOT NULL, t TIMESTAMP, n TIMESTAMP_NTZ, s STRING"
    assert arrow_schema(ddl) == arrow_schema(spark) == arrow_schema(arrow)


def test_should_read_nested_types() -> None:
    found = parse_ddl("`we ird`: array<struct<a:int, b: decimal(10,2) NOT NULL>>, m MAP<STRING,map<string,double>>")
    assert found.names == ["we ird", "m"]
    assert found.field(0).type.value_type.field(1).type == pa.decimal128(10, 2)
    assert found.field(1).type.item_type == pa.map_(pa.string(), pa.float64())
    assert parse_ddl("STRUCT<a: INT>") == parse_ddl("a INT COMMENT 'it''s'")


@pytest.mark.parametrize(
    "wrong",
    [
        *("", "a", "a foo", "a int,", "a int b int", "a array<int", "a int, A string", "a decimal(39)", "<"),
        *("a variant", "a map<int, int>", "a decimal(3, 4)", "a int comment x", "a varchar(x)", "a int not x"),
    ],
)
def test_should_refuse_a_schema_that_makes_no_sense(wrong: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        arrow_schema(wrong)
    assert caught.value.key == "schema"


def test_should_refuse_types_that_cannot_be_loaded() -> None:
    for kind in (pa.uint64(), pa.float16(), pa.duration("s"), pa.struct([]), pa.decimal256(50, 0)):
        with pytest.raises(InvalidConfig, match="column 'x'"):
            arrow_schema(pa.schema([("x", kind)]))


def test_should_refuse_types_of_spark_that_arrow_would_disguise() -> None:
    for kind in (VariantType(), ArrayType(VariantType()), StructType([StructField("v", VariantType())])):
        with pytest.raises(InvalidConfig, match="column 'x' has the type variant, which cannot be loaded"):
            arrow_schema(StructType([StructField("x", kind)]))


@pytest.mark.parametrize("given", [StructType, IntegerType(), ArrayType(IntegerType()), [("a", "INT")], object()])
def test_should_refuse_what_is_no_schema(given: object) -> None:
    with pytest.raises(InvalidConfig, match="must be a DDL string"):
        arrow_schema(given)


@pytest.mark.parametrize(
    "text",
    [
        "a " + "ARRAY<" * 100_000 + "INT" + ">" * 100_000,
        "a " + "STRUCT<b: " * 61 + "INT" + ">" * 61,
        "a " + "MAP<STRING, " * 100_000,
        "a INT, b '" + "\\'" * 100_000,
        "a `" + "x" * 100_000,
        "a DECIMAL(" + "9" * 5000 + ")",
        "a DECIMAL(²)",
        "a VARCHAR(" + "9" * 5000 + ")",
        "x" * 1_000_000,
        "(" * 1_000_000,
    ],
    ids=lambda text: text[:14],
)
def test_should_refuse_deep_and_long_texts_briefly(text: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        arrow_schema(text)
    assert len(str(caught.value)) < 2000


def test_should_take_a_schema_as_deep_as_arrow_can_send() -> None:
    schema = arrow_schema("a " + "ARRAY<" * 60 + "INT" + ">" * 60)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(schema.empty_table())
    assert pa.ipc.open_stream(sink.getvalue()).schema == schema


def test_should_refuse_other_schemas_that_are_too_deep() -> None:
    kind, deep = pa.int64(), IntegerType()
    for _ in range(61):
        kind, deep = pa.list_(kind), ArrayType(deep)
    with pytest.raises(InvalidConfig, match="too deeply"):
        arrow_schema(pa.schema([("a", kind)]))
    with pytest.raises(InvalidConfig, match="too deeply"):
        arrow_schema(StructType([StructField("a", deep)]))
    for _ in range(450):
        deep = ArrayType(deep)
    with pytest.raises(InvalidConfig, match="too deeply"):
        arrow_schema(StructType([StructField("a", deep)]))
