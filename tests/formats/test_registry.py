"""Formats by name, and their options."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    FloatType,
    IntegerType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from buffer.errors import InvalidConfig
from buffer_delta.cli.settings import loader_options
from buffer_delta.config import LoaderConfig
from buffer_delta.formats import (
    FORMATS,
    ArrowFormat,
    JsonFormat,
    RawFormat,
    TextFormat,
    arrow_schema,
    format_names,
    resolve_format,
)
from buffer_delta.formats.registry import format_class

CONFIGURATION = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_should_make_formats_from_configuration() -> None:
    assert isinstance(resolve_format("raw"), RawFormat)
    assert isinstance(resolve_format("text"), TextFormat)
    assert resolve_format("json").evolving
    assert resolve_format({"type": "json", "schema": "a INT"}).schema.names == ["a", "_rescued_data"]
    form = JsonFormat("a INT")
    assert resolve_format(form) is form


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("jsn", r"did you mean 'json'\?.*raw, text, json, arrow"),
        (object(), "raw, text, json, arrow"),
        (None, "raw, text, json, arrow"),
        (7, "raw, text, json, arrow"),
        ({"schema": "a INT"}, "raw, text, json, arrow"),
        ({"type": "json", "shema": "a INT"}, r"no option 'shema'; did you mean 'schema'\? It has: schema, rescued"),
        ({"type": "json", 5: 1}, "no option '5'; it has: schema"),
        ({"type": "json", "max_columns": "many"}, "max_columns='many' is not allowed"),
        ({"type": "json", "rescued_data": ""}, "rescued_data='' is not allowed"),
        ({"type": "arrow", "shema": "a INT"}, "did you mean 'schema'"),
        ({"type": "raw", "schema": "a INT"}, "it has: none"),
        ({"type": "json", "schema": "a WRONG"}, "unknown type"),
        ({"type": "json", "schema": 5}, "DDL string"),
        ({"type": "json", "schema": "a INT", "on_mismatch": "x"}, "'rescue' or 'dead_letter'"),
        ({"type": "json", "schema": "a INT", "rescued_data": None}, "leaves no column"),
        ({"type": "json", "schema": "a INT, _rescued_data STRING"}, "rename"),
        ({"type": "json", "unknown_fields": "ignore"}, "must stay 'rescue'"),
        ({"type": "json", "on_mismatch": "dead_letter"}, "must stay 'rescue'"),
    ],
)
def test_should_refuse_what_is_no_format(spec: Any, told: str) -> None:
    with pytest.raises(InvalidConfig, match=told):
        resolve_format(spec)


def test_should_refuse_a_wrong_option_of_a_class_by_name_too() -> None:
    with pytest.raises(InvalidConfig, match="did you mean 'unknown_fields'") as caught:
        JsonFormat("a INT", unknown_field="ignore")
    assert (caught.value.key, caught.value.value) == ("unknown_field", "ignore")
    with pytest.raises(InvalidConfig, match="'raw' has no option 'schema'; it has: none"):
        RawFormat(schema="a INT")


def test_should_refuse_an_unknown_format_before_its_parser_is_needed() -> None:
    with pytest.raises(InvalidConfig, match="did you mean 'text'"):
        LoaderConfig(store="./q", table="t", format="txt")
    with pytest.raises(InvalidConfig, match="raw, text"):
        LoaderConfig(store="./q", table="t", format={"schema": "a INT"})
    assert LoaderConfig(store="./q", table="t", format=RawFormat()).format == RawFormat()


def test_should_offer_the_same_names_everywhere() -> None:
    assert [format_class(name).name for name in FORMATS] == list(FORMATS)
    command = click.Command("load")
    loader_options(command)
    (choice,) = [param.type for param in command.params if param.name == "format_name"]
    assert isinstance(choice, click.Choice)
    assert tuple(choice.choices) == format_names()
    line = next(line for line in CONFIGURATION.read_text(encoding="utf-8").splitlines() if line.startswith("Formats: "))
    assert line == f"Formats: {', '.join(f'`{name}`' for name in FORMATS)}."


def test_should_import_neither_spark_nor_parsers_before_they_are_asked_for() -> None:
    code = (
        "import buffer_delta.formats, buffer_delta.decode, sys; assert 'pyspark' not in sys.modules;"
        "ours = ('buffer_delta.formats.', 'buffer_delta.decode.', 'pyarrow.json');"
        "loaded = {name for name in sys.modules if name.startswith(ours)};"
        "assert loaded == {'buffer_delta.formats.registry'}, loaded;"
        "import buffer_delta.formats.json.format, buffer_delta.formats.arrow, buffer_delta.formats.merge;"
        "import buffer_delta.decode.rows, buffer_delta.decode.look; assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


FROZEN = {
    "raw": (RawFormat(), "feb1cc0a620a0df5"),
    "text": (TextFormat(), "c87415fbe1d52edc"),
    "arrow": (ArrowFormat(), "239749bd7f6edc6c"),
    "arrow, DDL": (
        ArrowFormat("a INT, l ARRAY<STRUCT<x: DOUBLE>>, m MAP<STRING, DECIMAL(10, 2)>"),
        "c60b2d6170316e9a",
    ),
    "arrow, StructType": (
        ArrowFormat(
            StructType(
                [
                    StructField("a", ByteType(), nullable=False),
                    StructField("s", ShortType()),
                    StructField("f", FloatType()),
                    StructField("b", BinaryType()),
                    StructField("o", BooleanType()),
                    StructField("d", DateType()),
                ]
            )
        ),
        "1104735b2ed93075",
    ),
    "json": (JsonFormat(), "beec0393d690f299"),
    "json, DDL": (
        JsonFormat(
            "a INT NOT NULL, t TIMESTAMP, n TIMESTAMP_NTZ, d DATE, b BINARY, f FLOAT, m MAP<STRING, STRUCT<x: BIGINT>>"
        ),
        "bfcdb4f129ed9c89",
    ),
    "json, ignoring": (JsonFormat("a INT", unknown_fields="ignore"), "00422b342ce6ae22"),
    "json, dead letters": (JsonFormat("a INT", on_mismatch="dead_letter"), "bc590d2990fd60ef"),
    "json, nothing rescued": (
        JsonFormat("a INT", rescued_data=None, on_mismatch="dead_letter", unknown_fields="ignore"),
        "d490ff90d3e1665c",
    ),
    "json, renamed": (JsonFormat(rescued_data="rest", max_columns=77), "8d920baa84cd080e"),
    "json, max_columns without effect": (JsonFormat("a INT", max_columns=77), "86469ef35a36a567"),
    "json, StructType": (
        JsonFormat(
            StructType(
                [
                    StructField("a", IntegerType(), nullable=False),
                    StructField(
                        "l",
                        ArrayType(
                            StructType([StructField("x", DecimalType(12, 3)), StructField("t", TimestampType())]),
                            containsNull=False,
                        ),
                    ),
                    StructField("m", MapType(StringType(), TimestampNTZType(), valueContainsNull=False)),
                ]
            )
        ),
        "da0ad6f3041a78e2",
    ),
    "json, Arrow schema": (
        JsonFormat(
            pa.schema(
                [
                    pa.field("a", pa.int64(), nullable=False),
                    ("t", pa.timestamp("ns", "Europe/Berlin")),
                    ("s", pa.large_string()),
                    ("l", pa.large_list(pa.large_binary())),
                ]
            )
        ),
        "40eaf2f486600624",
    ),
}


@pytest.mark.parametrize("case", FROZEN)
def test_should_never_change_a_digest(case: str) -> None:
    """Plans in ledgers hold them: with another one a loader that was upgraded would refuse to finish its range."""
    form, digest = FROZEN[case]
    assert form.digest() == digest
    assert pickle.loads(pickle.dumps(form)).digest() == digest


def test_should_name_its_configuration_by_a_stable_digest() -> None:
    assert JsonFormat("a INT").digest() == JsonFormat("`a` int").digest() == JsonFormat("a INTEGER").digest()
    assert JsonFormat("a INT").digest() == "86469ef35a36a567", "plans in ledgers hold it: it must never change"
    different = [
        RawFormat(),
        TextFormat(),
        ArrowFormat(),
        JsonFormat(),
        JsonFormat("a INT"),
        JsonFormat("a INT NOT NULL"),
        JsonFormat("a BIGINT"),
        JsonFormat("a INT", unknown_fields="ignore"),
        JsonFormat("a INT", on_mismatch="dead_letter"),
        JsonFormat("a INT", rescued_data="rest"),
    ]
    assert len({form.digest() for form in different}) == len(different)
    evolved = JsonFormat().with_schema(arrow_schema("a INT"))
    assert evolved.digest() == JsonFormat().digest(), "what it has grown to is no configuration"


def test_should_pickle() -> None:
    for form in (RawFormat(), TextFormat(), ArrowFormat("a INT"), JsonFormat("a INT, m MAP<STRING, INT>")):
        copy = pickle.loads(pickle.dumps(form))
        assert copy == form
        assert copy.schema == form.schema
