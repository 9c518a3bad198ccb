"""Hostile records, one to a thousand among good ones: every good row once in its table, every bad one once among the
dead letters with a reason and its bytes, in one run and without an operator."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from tests.spark.hostile import Hostile
from tests.spark.queues import produce
from tests.spark.soups import KINDS, SOUPS, Soup, kind_of

pytestmark = pytest.mark.spark

BATCH = 2500
SHORT = ("json",)  # the others differ in their parsers, which have tests of their own
LONG = 210  # bad ones of each format, each among a thousand good ones: 2,100 in all, among 2,100,000

Place = tuple[int, int]


def mixed(soup: Soup, bad: int, good_for_each: int) -> tuple[list[list[bytes]], dict[Place, bytes], int]:
    """The batches, the bad ones by place, and how many good ones there are, numbered from 0."""
    total = bad * (good_for_each + 1)
    where = set(random.Random(7).sample(range(total), bad))
    entries, number = [], 0
    evil: dict[Place, bytes] = {}
    for place in range(total):
        if place in where:
            entries.append(soup.hostile[len(evil) % len(soup.hostile)])
            evil[place // BATCH, place % BATCH] = entries[-1]
        else:
            entries.append(soup.good(number))
            number += 1
    return [entries[start : start + BATCH] for start in range(0, total, BATCH)], evil, number


def judge(spark: SparkSession, soup: Soup, tables: dict[str, Path], dead: Path, bad: dict[Place, bytes]) -> int:
    """Raises AssertionError; how many good rows there are."""
    found: dict[int, str] = {}
    rows = 0
    for kind, table in tables.items():
        numbers = spark.read.format("delta").load(str(table)).selectExpr(f"{soup.number} AS n").toArrow()["n"]
        found |= dict.fromkeys(numbers.to_pylist(), kind)
        rows += len(numbers)
    assert rows == len(found), "a row is there twice"
    assert found == {n: kind_of(n) for n in range(rows)}, "a row is lost, or in the table of another kind"
    letters = spark.read.format("delta").load(str(dead)).select("_sequence", "_index", "error", "bytes").collect()
    assert len(letters) == len(bad)
    assert {(row._sequence, row._index): bytes(row.bytes) for row in letters} == bad
    assert all(row.error for row in letters)
    return rows


@pytest.mark.parametrize(
    "is_long", [pytest.param(False, id="short"), pytest.param(True, id="long", marks=pytest.mark.soak)]
)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.thorough) for name in SOUPS]
)
def test_should_load_a_soup_through_constraints_partitions_and_routes(
    spark: SparkSession, tmp_path: Path, name: str, is_long: bool
) -> None:
    soup = SOUPS[name]
    tables = {kind: tmp_path / kind for kind in KINDS}
    for table in tables.values():
        partitions = f"PARTITIONED BY ({soup.partition_by})" if soup.partition_by else ""
        spark.sql(
            f"CREATE TABLE delta.`{table}` ({soup.table}) USING delta {partitions} "
            f'TBLPROPERTIES ("delta.constraints.tame" = "{soup.check}")'
        )
    batches, evil, good = mixed(soup, LONG, 1000) if is_long else mixed(soup, len(soup.hostile), 100)
    assert set(soup.hostile) == set(evil.values())
    produce(tmp_path / "queue", batches)
    config = LoaderConfig(
        store=str(tmp_path / "queue"),
        table=str(tables["rest"]),
        format=soup.format,
        route_by=soup.route_by,
        routes={kind: str(tables[kind]) for kind in KINDS if kind != "rest"},
        dead_letters=str(tmp_path / "dead"),
        merge_schema=True,
        gc_enabled=False,
        retry_attempts=1,
    )
    progress = Loader(spark, config).run(available_now=True)
    assert progress is not None
    assert progress.attempts == 1
    assert judge(spark, soup, tables, tmp_path / "dead", evil) == good


@pytest.mark.thorough
def test_should_load_a_soup_of_text_that_breaks_its_parser(spark: SparkSession, tmp_path: Path) -> None:
    fatal = [b"raise", b"\xff", b"exit", b"raise again"]
    entries = [b"%d" % n for n in range(1000)]
    for place, entry in zip((3, 250, 600, 999), fatal, strict=True):
        entries[place] = entry
    produce(tmp_path / "queue", [entries[:400], entries[400:]])
    config = LoaderConfig(
        store=str(tmp_path / "queue"),
        table=str(tmp_path / "table"),
        format=Hostile(),
        dead_letters=str(tmp_path / "dead"),
        gc_enabled=False,
        max_delivery_attempts=1,
        retry_max_s=0.01,
        retry_attempts=4,
    )
    Loader(spark, config).run(available_now=True)
    found = spark.read.format("delta").load(str(tmp_path / "table")).select("value").collect()
    assert sorted(row.value for row in found) == sorted(e.decode() for e in entries if e not in fatal)
    letters = spark.read.format("delta").load(str(tmp_path / "dead")).collect()
    assert sorted((row._sequence, row._index, bytes(row.bytes)) for row in letters) == [
        (0, 3, b"raise"),
        (0, 250, b"\xff"),
        (1, 200, b"exit"),
        (1, 599, b"raise again"),
    ]
