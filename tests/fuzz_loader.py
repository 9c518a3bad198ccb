"""A loader on a small heap over mutated whole queues: `python -m tests.fuzz_loader [--seed N] [--count N]`.

One JVM of 512 MiB loads them all, one after the other. Each queue must end in progress or in one of our errors, within
a few attempts, and the JVM must live: no record, batch, manifest or ledger takes it down. What comes out of a queue is
at most what went in: no row twice.
"""

# ruff: noqa: T201  (a program of its own: it prints what it found)

from __future__ import annotations

import argparse
import base64
import logging
import random
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from buffer.config import ProducerConfig
from buffer.errors import BufferQueueError
from buffer.produce.producer import Producer
from buffer.store.local import LocalStore
from buffer.store.open import open_store
from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from buffer_delta.spark.session import spark_session
from tests.fuzz import BATCH, GENERAL, MANIFEST, mutate
from tests.fuzz_formats import record
from tests.fuzz_queues import objects_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 60
HEAP = "512m"
FORMATS = ("text", "json", "raw", {"type": "json", "schema": "a INT"})


def make_queue(rng: random.Random, number: int) -> dict[str, bytes]:
    """The objects of a new queue by location, some of them mutated: batches, the manifest, records."""
    store = open_store(f"memory://loader-{number}")
    with Producer(ProducerConfig(store=store, compression=rng.choice(("none", "zstd")))) as producer:
        for _ in range(rng.randrange(1, 5)):
            records = [record(rng) for _ in range(rng.choice((1, 3, 40)))]
            producer.produce([mutate(rng, one, GENERAL) if rng.randrange(4) == 0 else one for one in records])
            producer.flush()
    objects = objects_of(store)
    for _ in range(rng.choice((0, 1, 1, 2))):
        name = rng.choice(sorted(objects))
        objects[name] = mutate(rng, objects[name], BATCH if name.endswith(".batch") else MANIFEST)
    return objects


def load(spark: SparkSession, folder: Path, objects: dict[str, bytes], rng: random.Random) -> str:
    """What became of it."""
    store = LocalStore(folder / "queue")
    for location, data in objects.items():
        store.put(location, data)
    config = LoaderConfig(
        store=str(folder / "queue"),
        table=str(folder / "table"),
        dead_letters=str(folder / "dead"),
        format=rng.choice(FORMATS),
        max_batch_bytes=8 << 20,
        max_delivery_attempts=1,
        retry_attempts=3,
        retry_max_s=0.01,
        gc_enabled=False,
    )
    try:
        Loader(spark, config).run(available_now=True)
    except BufferQueueError as error:
        outcome = type(error).__name__
    else:
        outcome = "loaded"
    if (folder / "table/_delta_log").exists():
        rows = spark.read.format("delta").load(str(folder / "table")).select("_sequence", "_index").collect()
        assert len(rows) == len({(row[0], row[1]) for row in rows}), "a row is there twice"
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description="Load mutated queues on a small heap.")
    parser.add_argument("--seed", type=int, default=None, help="default: another one every time")
    parser.add_argument("--start", type=int, default=0, help="number of the first queue")
    parser.add_argument("--count", type=int, default=COUNT)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}, {options.count:,} queues through a loader on a heap of {HEAP}", flush=True)
    for name in ("buffer", "buffer_delta"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what is wrong with the queues is no news here
    spark = spark_session("fuzz", master="local[2]", memory=HEAP)
    outcomes: Counter[str] = Counter()
    longest = (0.0, 0)
    for number in range(options.start, options.start + options.count):
        rng = random.Random(f"{seed}/{number}")
        objects = make_queue(rng, number)
        folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
        started = time.perf_counter()
        try:
            outcomes[load(spark, folder, objects, rng)] += 1
        except BaseException:
            shown = {name: base64.b64encode(data[:1500]).decode() for name, data in objects.items()}
            print(f"FAILED on queue {number} of seed {seed}: {shown}", file=sys.stderr)
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        longest = max(longest, (time.perf_counter() - started, number))
    runtime = spark.sparkContext._jvm.java.lang.Runtime.getRuntime()  # it still answers
    print(", ".join(f"{n:,} {what}" for what, n in sorted(outcomes.items())))
    print(f"longest for one queue: {longest[0]:.1f} s (queue {longest[1]})")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"peak memory of the driver's Python {peak} MiB, of its JVM's heap {runtime.totalMemory() >> 20} MiB at most")
    spark.stop()


if __name__ == "__main__":
    main()
