"""Hostile records, one to a thousand among good ones: every good row once in its table, every bad one once among the
dead letters with a reason, in one run and without an operator."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from tests.spark.hostile import Hostile
from tests.spark.queues import produce

pytestmark = pytest.mark.spark

GOOD_FOR_EACH = 1000
BATCH = 2500


def good_json(n: int) -> bytes:
    return json.dumps({"id": n, "kind": ("a", "b", "c")[n % 3], "day": f"2024-01-0{n % 5 + 1}"}).encode()


def hostile_json(n: int) -> bytes:
    record = {"id": n, "kind": ("a", "b", "c")[n % 3], "day": "2024-01-01"}
    made: list[bytes] = [
        b"",
        b"{",
        b"null",
        b"[1, 2]",
        b'{"id": 1}{"id": 2}',
        b'{"id": 1, "id": 2}',
        b"\xff\xfe{}",
        b"[" * 5000,
        b'{"id": NaN}',
        json.dumps(record | {"id": None}).encode(),
        json.dumps(record | {"id": "x"}).encode(),
        json.dumps(record | {"id": 2**63}).encode(),
        json.dumps(record | {"id": -1}).encode(),
        json.dumps(record | {"day": "\0"}).encode(),
        json.dumps(record | {"day": "/" * 100}).encode(),
        json.dumps(record | {"day": "ä" * 200}).encode(),
    ]
    return made[n % len(made)]


def good_arrow(n: int) -> bytes:
    table = pa.table({"id": pa.array([n], pa.int64())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    return sink.getvalue().to_pybytes()


def hostile_arrow(n: int) -> bytes:
    whole = good_arrow(-1 - n)  # the table's constraint forbids it
    return [whole, whole[: len(whole) // 2], b"", b"no stream", good_json(n)][n % 5]


def mixed(good: Any, hostile: Any, bad: int) -> tuple[list[list[bytes]], set[tuple[int, int]], int]:
    """The batches, the places of the bad ones, and how many good ones there are, numbered from 0."""
    total = bad * (GOOD_FOR_EACH + 1)
    chosen = random.Random(7)
    where = set(chosen.sample(range(total), bad))
    entries, number, evil = [], 0, 0
    for place in range(total):
        if place in where:
            entries.append(hostile(evil))
            evil += 1
        else:
            entries.append(good(number))
            number += 1
    batches = [entries[start : start + BATCH] for start in range(0, total, BATCH)]
    return batches, {(place // BATCH, place % BATCH) for place in where}, number


def judge(spark: SparkSession, tables: list[Path], dead: Path, bad: set[tuple[int, int]], good: int) -> None:
    frames = [spark.read.format("delta").load(str(table)).select("id", "_sequence", "_index") for table in tables]
    rows = [row for frame in frames for row in frame.collect()]
    assert sorted(row.id for row in rows) == list(range(good))
    letters = spark.read.format("delta").load(str(dead)).collect()
    assert len(letters) == len(bad)
    assert {(row._sequence, row._index) for row in letters} == bad
    assert all(row.error for row in letters)


@pytest.mark.parametrize("bad", [pytest.param(16, id="short"), pytest.param(2000, id="long", marks=pytest.mark.soak)])
def test_should_load_a_soup_of_json_through_constraints_partitions_and_routes(
    spark: SparkSession, tmp_path: Path, bad: int
) -> None:
    tables = [tmp_path / name for name in ("rest", "a", "b")]
    for table in tables:
        spark.sql(
            f"CREATE TABLE delta.`{table}` (id BIGINT NOT NULL, kind STRING, day STRING) USING delta "
            "PARTITIONED BY (day) TBLPROPERTIES ('delta.constraints.positive' = 'id >= 0')"
        )
    batches, where, good = mixed(good_json, hostile_json, bad)
    produce(tmp_path / "queue", batches)
    config = LoaderConfig(
        store=str(tmp_path / "queue"),
        table=str(tables[0]),
        format={
            "type": "json",
            "schema": "id BIGINT, kind STRING, day STRING",
            "on_mismatch": "dead_letter",
            "unknown_fields": "ignore",
            "rescued_data": None,
        },
        route_by="kind",
        routes={"a": str(tables[1]), "b": str(tables[2])},
        dead_letters=str(tmp_path / "dead"),
        merge_schema=True,
        gc_enabled=False,
        retry_attempts=1,
    )
    progress = Loader(spark, config).run(available_now=True)
    assert progress is not None
    assert progress.attempts == 1
    judge(spark, tables, tmp_path / "dead", where, good)


def test_should_load_a_soup_of_arrow_streams(spark: SparkSession, tmp_path: Path) -> None:
    """A stream gives rows, and `_index` counts those: what a constraint forbids is still one entry."""
    spark.sql(
        f"CREATE TABLE delta.`{tmp_path / 'table'}` (id BIGINT) USING delta "
        "TBLPROPERTIES ('delta.constraints.positive' = 'id >= 0')"
    )
    batches, where, good = mixed(good_arrow, hostile_arrow, 5)
    produce(tmp_path / "queue", batches)
    config = LoaderConfig(
        store=str(tmp_path / "queue"),
        table=str(tmp_path / "table"),
        format={"type": "arrow", "schema": "id BIGINT"},
        dead_letters=str(tmp_path / "dead"),
        merge_schema=True,
        gc_enabled=False,
        retry_attempts=1,
    )
    Loader(spark, config).run(available_now=True)
    judge(spark, [tmp_path / "table"], tmp_path / "dead", where, good)


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
