"""Which names are the same to Spark, and which a table may have."""

from __future__ import annotations

import sys
from collections import defaultdict

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from buffer.errors import InvalidConfig
from buffer_delta.formats import JsonFormat, merge_schemas
from buffer_delta.formats.names import same_name_key, storable
from tests.formats.format_support import evolve, parse

SAME = [
    ("\u0130", "i"),
    ("\u0130", "i\u0307"),
    ("ı", "I"),
    ("ς", "σ"),
    ("ΟΔΟΣ", "οδος"),
    ("οδοσ", "οδος"),
    ("\u212a", "k"),
    ("ſ", "S"),
    ("µ", "μ"),
    ("Å", "å"),
    ("ẞ", "ß"),
    ("ᾼ", "ᾳ"),
    ("Ǆ", "ǅ"),
    ("Straße", "STRAßE"),
]
DIFFERENT = [("ss", "ß"), ("a", "á"), ("ﬁ", "fi"), ("\u00e9", "e\u0301"), ("\u0430", "a")]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_should_find_names_equal_that_spark_does(one: str, other: str) -> None:
    assert same_name_key(one) == same_name_key(other)
    assert same_name_key(f"x{one}y") == same_name_key(f"X{other}Y")


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_should_tell_other_names_apart(one: str, other: str) -> None:
    assert same_name_key(one) != same_name_key(other)


def simple(sign: str, mapped: str, title: str) -> str:
    """Java's mapping of one character to one character."""
    return mapped if len(mapped) == 1 else title if len(title) == 1 else sign


def test_should_agree_with_both_of_sparks_ways_for_every_letter() -> None:
    by_upper, by_both, by_lower = defaultdict(set), defaultdict(set), defaultdict(set)
    for code in range(0x80, sys.maxunicode + 1):
        sign = chr(code)
        if 0xD800 <= code < 0xE000 or (sign.lower() == sign and sign.upper() == sign and sign.title() == sign):
            continue
        upper = simple(sign, sign.upper(), sign.title())
        lower = "i" if upper == "İ" else simple(upper, upper.lower(), upper)
        key = same_name_key(sign)
        by_upper[upper].add(key)  # equalsIgnoreCase: equal in upper case, or then in lower case
        by_both[lower].add(key)
        by_lower[sign.lower()].add(key)  # toLowerCase
    for groups in (by_upper, by_both, by_lower):
        assert {name: keys for name, keys in groups.items() if len(keys) > 1} == {}
    for sign in map(chr, range(0x80)):
        assert same_name_key(sign) == sign.lower()
        assert by_both.get(sign.lower(), {sign.lower()}) == {sign.lower()}


@pytest.mark.parametrize(("one", "other"), [pair for pair in SAME if pair[0] != pair[1]])
def test_should_never_make_two_columns_of_what_spark_finds_equal(one: str, other: str) -> None:
    entry = f'{{"{one}": 1, "{other}": 2, "nest": {{"{other}": 3, "{one}": 4}}}}'
    settled = evolve(JsonFormat(), None, entry)
    assert settled.schema.names == [one, "nest", "_rescued_data"]
    assert [f.name for f in settled.schema.field("nest").type] == [other]
    (row,) = parse(settled, entry).rows.to_pylist()
    assert row["_rescued_data"] == f'{{"{other}":2,"nest":{{"{one}":4}}}}'
    table = StructType([StructField(other, LongType())])
    assert evolve(JsonFormat(), table, f'{{"{one}": 1}}').schema.names == [other, "_rescued_data"]
    with pytest.raises(InvalidConfig, match="twice"):
        JsonFormat(f"`{one}` INT, `{other}` INT")
    found = evolve(JsonFormat(), None, f'{{"{one}": 1}}').schema
    assert merge_schemas(None, [found], taken=[other]).names == ["_rescued_data"]


@pytest.mark.parametrize("name", ["a", "a.b", "a-b", "x" * 255, "ä" * 127, "日本"])
def test_should_store_usual_names(name: str) -> None:
    assert storable(name)
