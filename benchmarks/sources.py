"""What `benchmarks.load` loads: the same records as a queue, as text, as Parquet and as Arrow streams."""

from __future__ import annotations

import io
import json
import random
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from buffer.config import ProducerConfig
from buffer.produce.producer import Producer
from buffer_delta.formats.schemas import arrow_schema

SCHEMA = "id BIGINT, user STRING, kind STRING, amount DOUBLE, ok BOOLEAN, note STRING, tags ARRAY<STRING>"
LINES_PER_BATCH = 20_000
FIRST_LINES = 100


def make_lines(megabytes: int) -> list[bytes]:
    """About 200 bytes each, compressible like real events."""
    chance = random.Random(7)
    words = [f"word{chance.randrange(10**6)}" for _ in range(5000)]
    lines, size, number = [], 0, 0
    while size < megabytes * 1_000_000:
        line = json.dumps(
            {
                "id": number,
                "user": f"user-{chance.randrange(10**6):07d}",
                "kind": chance.choice(("click", "view", "purchase", "refund")),
                "amount": round(chance.random() * 1000, 2),
                "ok": chance.random() < 0.97,
                "note": " ".join(chance.choice(words) for _ in range(7)),
                "tags": [chance.choice(words), chance.choice(words)],
            }
        ).encode()
        lines.append(line)
        size += len(line) + 1
        number += 1
    return lines


def make_bad(lines: list[bytes]) -> list[bytes]:
    return [line[:-2] for line in lines]


@dataclass(frozen=True)
class Sources:
    """The same records in every shape: the first few, which make the tables, and all the others."""

    folder: Path
    rows: int
    """Of all of them."""

    @classmethod
    def write(cls, spark: SparkSession, folder: Path, lines: list[bytes]) -> Sources:
        parts = [lines[:FIRST_LINES]]
        parts += [lines[at : at + LINES_PER_BATCH] for at in range(FIRST_LINES, len(lines), LINES_PER_BATCH)]
        bad = make_bad(lines[:FIRST_LINES])
        _produce(folder / "queue", parts)
        _produce(folder / "routed", [[*parts[0], *bad], *parts[1:], bad])
        for number, part in enumerate(parts):
            place = folder / ("first" if number == 0 else "text")
            place.mkdir(exist_ok=True)
            (place / f"{number:05d}.json").write_bytes(b"\n".join(part) + b"\n")
        for name in ("first", "text"):
            spark.read.schema(SCHEMA).json(str(folder / name)).write.parquet(str(folder / f"{name}-parquet"))
        schema = arrow_schema(SCHEMA)
        tables = [pj.read_json(io.BytesIO(b"\n".join(part)), _one_block(part), _as(schema)) for part in parts]
        _produce(folder / "streams", [[_stream(table)] for table in tables])
        pq.write_table(tables[0], folder / "first.parquet")
        pq.write_table(pa.concat_tables(tables[1:]), folder / "rest.parquet")
        return cls(folder, len(lines))


def _one_block(part: list[bytes]) -> pj.ReadOptions:
    return pj.ReadOptions(block_size=sum(map(len, part)) + len(part) + 1)


def _as(schema: pa.Schema) -> pj.ParseOptions:
    return pj.ParseOptions(explicit_schema=schema)


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _produce(queue: Path, parts: list[list[bytes]]) -> None:
    config = ProducerConfig(store=str(queue), compression="zstd", flush_interval_ms=60_000)
    with Producer(config) as producer:
        for part in parts:
            producer.produce(part)
            producer.flush()
