"""What is read back from a Delta table equals its source exactly, or the source is rescued or a dead letter."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from buffer_delta.config import LoaderConfig
from buffer_delta.formats import arrow_schema
from buffer_delta.load.loader import Loader
from tests.formats.format_support import stream
from tests.formats.oracle import accounted, exact
from tests.spark.queues import produce
from tests.spark.soups import AVRO_SCHEMA, avro, protobuf, protobuf_descriptors

pytestmark = pytest.mark.spark

RECORDS = 60
NARROW = "id INT, x FLOAT, d DECIMAL(10, 2), s STRING, t DATE, l ARRAY<SMALLINT>"
TEXTS = ("", "text", "ä\u2028😀", "a\nb", '"', "null", "1e5", "\0", " ", "2024-02-29", "x" * 3000)
NUMBERS = (0, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**64, 1.5, 0.1, 1e39, 5e-324, 16777217, 12345678.12, 0.005)


def number(rng: random.Random) -> Any:
    return rng.choice((*NUMBERS, rng.randrange(-(2**40), 2**40), rng.uniform(-1000, 1000)))


def anything(rng: random.Random) -> Any:
    return rng.choice((None, True, number(rng), rng.choice(TEXTS), [number(rng)], {"k": number(rng)}))


def load(spark: SparkSession, folder: Path, form: Any, entries: list[bytes]) -> tuple[dict[int, Any], dict[int, bytes]]:
    """Rows and dead letters, by the entry that they are from."""
    produce(folder / "queue", [entries])
    config = LoaderConfig(
        store=str(folder / "queue"),
        table=str(folder / "table"),
        dead_letters=str(folder / "dead"),
        format=form,
        gc_enabled=False,
    )
    Loader(spark, config).run(available_now=True)
    rows = {row._index: row.asDict(recursive=True) for row in spark.read.format("delta").load(config.table).collect()}
    dead: dict[int, bytes] = {}
    if (folder / "dead/_delta_log").exists():
        letters = spark.read.format("delta").load(str(folder / "dead")).collect()
        dead = {row._index: bytes(row.bytes) for row in letters}
    assert rows.keys() | dead.keys() == set(range(len(entries)))
    assert not rows.keys() & dead.keys()
    assert all(data == entries[index] for index, data in dead.items())
    return rows, dead


@pytest.mark.parametrize("on_mismatch", ["rescue", "dead_letter"])
def test_should_read_back_json_or_find_it_rescued(spark: SparkSession, tmp_path: Path, on_mismatch: str) -> None:
    rng = random.Random(11)
    records = [{name: anything(rng) for name in ("id", "x", "d", "s", "t", "l", "new")} for _ in range(RECORDS)]
    entries = [json.dumps(record).encode() for record in records]
    form = {"type": "json", "schema": NARROW, "on_mismatch": on_mismatch}
    rows, dead = load(spark, tmp_path, form, entries)
    assert rows or dead
    for index, row in rows.items():
        source, rest = exact(entries[index].decode()), exact(row["_rescued_data"] or "{}")
        for field in arrow_schema(NARROW):
            kept = accounted(source.get(field.name), field.type, row[field.name], rest.get(field.name))
            assert kept, (entries[index], row)
        assert rest.get("new") == source["new"]


def test_should_read_back_csv_or_find_it_rescued(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(12)
    texts = [
        [json.dumps(number(rng)), json.dumps(number(rng)), rng.choice(TEXTS).replace('"', "")] for _ in range(RECORDS)
    ]
    entries = [f'{one},{other},"{text}"'.encode() for one, other, text in texts]
    rows, _ = load(spark, tmp_path, {"type": "csv", "schema": "id INT, d DECIMAL(10, 2), s STRING"}, entries)
    assert rows
    kinds = {field.name: field.type for field in arrow_schema("id INT, d DECIMAL(10, 2)")}
    for index, row in rows.items():
        rest = json.loads(row["_rescued_data"] or "{}")
        for name, text in zip(kinds, texts[index], strict=False):
            held = row[name] is not None and accounted(exact(text), kinds[name], row[name], None)
            assert held or rest.get(name) == text, (entries[index], row)
        assert row["s"] == texts[index][2] or rest.get("s") == texts[index][2] or not texts[index][2]


BINARY: dict[str, tuple[Any, Callable[[int, str, str], bytes]]] = {
    "avro": (
        {"type": "avro", "avro_schema": json.dumps(AVRO_SCHEMA)},
        lambda n, kind, day: avro(n, kind.encode(), day.encode()),
    ),
    "protobuf": (
        {"type": "protobuf", "message": "p.M", "descriptor_set": protobuf_descriptors()},
        lambda n, kind, day: protobuf(n, kind.encode(), day.encode()),
    ),
    "arrow": (
        {"type": "arrow"},
        lambda n, kind, day: stream(pa.table({"id": pa.array([n], pa.int64()), "kind": [kind], "day": [day]})),
    ),
}


@pytest.mark.parametrize("name", BINARY)
def test_should_read_back_what_was_written(spark: SparkSession, tmp_path: Path, name: str) -> None:
    rng = random.Random(13)
    whole = [n for n in NUMBERS if isinstance(n, int) and -(2**63) <= n < 2**63]
    values = [(rng.choice(whole), rng.choice(TEXTS), rng.choice(TEXTS)) for _ in range(RECORDS)]
    form, encode = BINARY[name]
    rows, dead = load(spark, tmp_path, form, [encode(*one) for one in values])
    assert dead == {}
    assert {index: (row["id"], row["kind"], row["day"]) for index, row in rows.items()} == dict(enumerate(values))
