"""How fast a consumer reads from a store that takes 5 ms for every call, and what reading ahead is worth.

    python -m benchmarks.consume [--delay-ms 5] [--seconds 2] [--sizes 65536,1048576] [--prefetch 8]

The batches lie in a memory store behind a delay, in the queue all at once, uncompressed, in entries of 1 KiB.

    next_batch                one look at the manifest and one fetch for each batch
    next_batch + ack          … and one more look for each ack
    batches(prefetch=8)       fetched ahead in 8 threads, one look for many batches
    batches + auto_ack        … and acked, dequeued every 100
    handles in 8 threads      next_descriptors, then FetchHandle.fetch in a pool: what a Spark job does

MB/s counts the entries' bytes. "x serial" is against next_batch at the same size; reading ahead must reach 5.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from buffer.clock import SystemClock
from buffer.codec.batch import encode_batch
from buffer.config import ConsumerConfig
from buffer.consume.consumer import Consumer
from buffer.names import batch_location
from buffer.queue import QueueProducer
from buffer.store import Store, open_store
from buffer.testing.faulty import Fault, FaultyStore

ENTRY_BYTES = 1024
READ_AHEAD_X = 5.0
MANIFEST = "ingest/manifest"
SERIAL = "next_batch"


@dataclass(frozen=True, slots=True)
class Row:
    batch_bytes: int
    way: str
    batches: int
    seconds: float
    serial_seconds_per_batch: float | None
    target_x: float | None

    @property
    def mb_per_s(self) -> float:
        return self.batches * self.batch_bytes / self.seconds / 1e6

    @property
    def times_serial(self) -> float:
        return (self.serial_seconds_per_batch or self.seconds / self.batches) / (self.seconds / self.batches)

    @property
    def missed(self) -> bool:
        return self.target_x is not None and self.times_serial < self.target_x

    def line(self) -> str:
        target = "" if self.target_x is None else f"{self.target_x:g}x {'MISS' if self.missed else 'pass'}"
        return (
            f"{self.batch_bytes >> 10:>7} KiB  {self.way:<24} {self.batches:>7} "
            f"{self.batches / self.seconds:>10.0f} {self.mb_per_s:>9.1f} {self.times_serial:>9.1f}  {target}"
        )


def filled_store(batch_bytes: int, count: int) -> Store:
    store = open_store("memory://")
    data = encode_batch([bytes(ENTRY_BYTES)] * (batch_bytes // ENTRY_BYTES))
    locations = [batch_location("ingest", SystemClock().new_ulid()) for _ in range(count)]
    for location in locations:
        store.put(location, data)
    QueueProducer(store, MANIFEST, SystemClock()).append_locations([(location, ()) for location in locations])
    return store


# Ways to read: each reads the whole queue and returns the number of entries


def serial(consumer: Consumer) -> int:
    entries = 0
    while (batch := consumer.next_batch()) is not None:
        entries += len(batch)
    return entries


def serial_with_acks(consumer: Consumer) -> int:
    entries = 0
    while (batch := consumer.next_batch()) is not None:
        entries += len(batch)
        consumer.ack(batch.sequence)
    return entries


def ahead(prefetch: int, auto_ack: bool) -> Callable[[Consumer], int]:
    def read(consumer: Consumer) -> int:
        with consumer.batches(prefetch=prefetch, auto_ack=auto_ack) as batches:
            return sum(len(batch) for batch in batches)

    return read


def handles(threads: int) -> Callable[[Consumer], int]:
    def read(consumer: Consumer) -> int:
        descriptors = consumer.next_descriptors(1 << 20)
        with ThreadPoolExecutor(threads) as pool:
            entries = sum(len(batch) for batch in pool.map(consumer.fetch_handle().fetch, descriptors))
        consumer.ack_through(descriptors[-1].sequence)
        return entries

    return read


def measure(read: Callable[[Consumer], int], batch_bytes: int, count: int, delay_s: float) -> float:
    """Seconds to read a queue of `count` batches."""
    slow = FaultyStore(filled_store(batch_bytes, count), [Fault.delay("*", delay_s, times=1 << 62)])
    with Consumer.new(ConsumerConfig(store=slow, gc_enabled=False)) as consumer:
        started = time.perf_counter()
        entries = read(consumer)
        seconds = time.perf_counter() - started
    assert entries == count * (batch_bytes // ENTRY_BYTES), f"{entries} entries came out"
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay-ms", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=2.0, help="about how long the serial run takes")
    parser.add_argument("--sizes", default="65536,1048576")
    parser.add_argument("--prefetch", type=int, default=8)
    options = parser.parse_args()
    delay_s, prefetch = options.delay_ms / 1000, options.prefetch
    ways: list[tuple[str, Callable[[Consumer], int], float | None]] = [
        (SERIAL, serial, None),
        ("next_batch + ack", serial_with_acks, None),
        (f"batches(prefetch={prefetch})", ahead(prefetch, auto_ack=False), READ_AHEAD_X),
        ("batches + auto_ack", ahead(prefetch, auto_ack=True), READ_AHEAD_X),
        (f"handles in {prefetch} threads", handles(prefetch), None),
    ]
    print(f"{options.delay_ms:g} ms added to every store call, entries of {ENTRY_BYTES} bytes")
    print(f"{'batch':>11}  {'way':<24} {'batches':>7} {'batches/s':>10} {'MB/s':>9} {'x serial':>9}  target")
    rows = []
    for batch_bytes in map(int, options.sizes.split(",")):
        count = max(20, int(options.seconds / (2 * delay_s + batch_bytes / 500e6)))
        per_batch: float | None = None
        for way, read, target_x in ways:
            seconds = measure(read, batch_bytes, count, delay_s)
            per_batch = seconds / count if way == SERIAL else per_batch
            rows.append(Row(batch_bytes, way, count, seconds, per_batch, target_x))
            print(rows[-1].line(), flush=True)
    missed = sum(row.missed for row in rows)
    print(f"{missed} below target" if missed else "every target reached")


if __name__ == "__main__":
    main()
