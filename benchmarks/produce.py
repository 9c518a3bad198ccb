"""How fast a producer makes entries durable, beside a loop that only encodes, uploads and appends.

    python -m benchmarks.produce [--scale 1.0] [--runs 3] [--seconds 3] [--stores memory,clients,local,s3]

Memory: entries of 100 bytes, with default settings, in calls of 1, 100 and 10,000. The time counts from the first
call until everything is durable, and every entry is counted in the store afterwards. "bare" is what the same
entries cost without calls, handles, threads and triggers: `encode_batch_parts`, `put` and an append for each 64 MiB,
from one large list or array. Runs are interleaved and the best one counts, so both meet the same noise; the first
run of each is a warm-up. "per CPU s" is entries by processor time, of all threads: what a core gives that has
nothing else to do. A target that is reached only by that measure is marked "busy".

Client ids: the same calls with and without one, interleaved. "slower" compares processor time.
Marks: a manifest of 100,000 batches of 1,000 clients is emptied in one dequeue, marks and all.

Local files and S3 (a server on loopback): one thread that produces calls of 100 entries without a pause, while a
consumer dequeues five times a second. "bare" encodes, uploads and appends batches of the same size one by one. One
line for each run, after one that warms the server up and is not counted. The server runs on the same cores: it takes
about 10 ms of processor time for a megabyte, so uncompressed batches measure the server, and compressed ones, 60 times
smaller, the interpreter. Who stalls is told by the uploads' own times, of the producer and of the bare loop, and by how
many appends were lost to another write of the manifest and sent again. On S3 each run must reach the bare loop's rate.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from buffer.clients import ClientLedger, MarkKeeper
from buffer.clock import SystemClock
from buffer.codec.batch import batch_info, encode_batch_parts
from buffer.config import MIB, ProducerConfig
from buffer.manifest import Manifest, PackedMetadata
from buffer.marks import encode_mark, marked
from buffer.names import batch_location, ledger_path
from buffer.produce.producer import Producer
from buffer.queue import QueueConsumer, QueueProducer
from buffer.store import Lost, Outcome, Store, Won, open_store
from buffer.testing.faulty import FaultyStore
from tests.servers import Unavailable, run_s3_server

ENTRY_BYTES = 100
BARE_BATCH_ENTRIES = 64 * MIB // (ENTRY_BYTES + 4)
MANIFEST = "ingest/manifest"
ENTRIES = {1: 300_000, 100: 1_000_000, 10_000: 2_000_000}
"""Entries of one run, by the size of its calls."""
TARGETS = {("none", "list", 1): 250e3, ("none", "list", 10_000): 3e6, ("none", "arrow", 10_000): 6e6}
"""Entries per second on an idle core."""

CLIENT_TARGETS = {1: 0.25, 10_000: 0.10}
"""How much slower calls of this size may be with a client id."""
CLIENT_RUNS = 3  # times as many runs: a few percent are to be seen in a quarter of a second
MARK_BATCHES, MARK_CLIENTS = 100_000, 1_000

DEQUEUE_EVERY_S = 0.2
FLUSH_INTERVAL_MS = 10
S3_RATIO = 1.0  # of what the bare loop uploads

_clock = SystemClock()


@dataclass(frozen=True, slots=True)
class Timing:
    seconds: float
    cpu_seconds: float


def timed(work: Callable[[], object]) -> Timing:
    gc.collect()
    started, cpu_started = time.perf_counter(), time.process_time()
    work()
    return Timing(time.perf_counter() - started, time.process_time() - cpu_started)


# ------------------------------------------------------------------------------------------------------ memory


def make_calls(kind: str, entries_per_call: int, total: int) -> list[Any]:
    """A few different calls, to be repeated: making them is not what is measured."""
    text = b'{"id": %09d, "level": "info", "service": "checkout", "took_ms": 12.5, "ok": true, "user": "u-%09d"}'
    entries = [(text % (i, i * 7919 % 10**9)).ljust(ENTRY_BYTES)[:ENTRY_BYTES] for i in range(20_000)]
    starts = range(0, len(entries), entries_per_call)
    calls: list[Any] = [entries[start : start + entries_per_call] for start in starts][: max(1, total)]
    return [pa.array(call, pa.binary()) for call in calls[:2000]] if kind == "arrow" else calls


def produce_all(store: Store, compression: str, calls: list[Any], count: int, client_id: str | None = None) -> None:
    producer = Producer(ProducerConfig(store=store, compression=compression), client_id=client_id)
    produce = producer.produce
    for _ in range(count // len(calls)):
        for call in calls:
            produce(call)
    for call in calls[: count % len(calls)]:
        produce(call)
    producer.close()


def write_bare(store: Store, compression: str, batches: list[Any]) -> None:
    queue = QueueProducer(store, MANIFEST, _clock)
    for entries in batches:
        location = batch_location("ingest", _clock.new_ulid())
        store.put(location, encode_batch_parts([entries], compression))
        queue.append_locations([(location, ())])


def count_entries(store: Store) -> int:
    """How many entries are in the queue, by the footers of its batches."""
    objects = {info.location for info in store.list("ingest")} - {MANIFEST, ledger_path(MANIFEST)}
    assert len(Manifest.from_bytes(store.get(MANIFEST).data)) == len(objects)
    return sum(batch_info(store.get(location).data).record_count for location in objects)


def memory_row(compression: str, kind: str, per_call: int, runs: int, scale: float) -> tuple[Timing, Timing, int]:
    total = max(per_call, int(ENTRIES[per_call] * scale) // per_call * per_call)
    calls = make_calls(kind, per_call, total // per_call)
    flat = [entry for call in make_calls("list", 10_000, 2) for entry in call]
    flat = (flat * (total // len(flat) + 1))[:total]
    batches: list[Any] = [flat[i : i + BARE_BATCH_ENTRIES] for i in range(0, total, BARE_BATCH_ENTRIES)]
    if kind == "arrow":
        batches = [pa.array(batch, pa.binary()) for batch in batches]
    produced, bare = [], []
    for _ in range(runs + 1):
        store = open_store("memory://")
        produced.append(timed(partial(produce_all, store, compression, calls, total // per_call)))
        assert count_entries(store) == total
        store = open_store("memory://")
        bare.append(timed(partial(write_bare, store, compression, batches)))
        assert count_entries(store) == total
    return best(produced[1:]), best(bare[1:]), total


def best(timings: list[Timing]) -> Timing:
    return Timing(min(t.seconds for t in timings), min(t.cpu_seconds for t in timings))


def verdict(target: float | None, per_second: float, per_cpu_second: float) -> str:
    if target is None:
        return ""
    reached = "pass" if per_second >= target else "busy" if per_cpu_second >= target else "MISS"
    return f"{target / 1e3:,.0f}k {reached}"


def memory_table(runs: int, scale: float) -> None:
    print(f"memory://, entries of {ENTRY_BYTES} bytes until durable, best of {runs} runs\n")
    head = (
        f"{'compression':<12}{'input':<7}{'per call':>9}{'entries/s':>13}{'per CPU s':>13}{'bare/s':>13}{'x bare':>8}"
    )
    print(f"{head}   target")
    for compression in ("none", "zstd"):
        for kind in ("list", "arrow"):
            for per_call in ENTRIES:
                slow = 0.1 if kind == "arrow" and per_call == 1 else 1.0  # an array per entry is no way to go
                produced, bare, total = memory_row(compression, kind, per_call, runs, scale * slow)
                rate, bare_rate = total / produced.seconds, total / bare.seconds
                cpu_rate = total / produced.cpu_seconds
                target = verdict(TARGETS.get((compression, kind, per_call)), rate, cpu_rate)
                print(
                    f"{compression:<12}{kind:<7}{per_call:>9,}{rate:>13,.0f}{cpu_rate:>13,.0f}{bare_rate:>13,.0f}"
                    f"{rate / bare_rate:>8.2f}   {target}",
                    flush=True,
                )


# ------------------------------------------------------------------------------------------------- client ids


def client_row(kind: str, per_call: int, runs: int, scale: float) -> tuple[Timing, Timing, int]:
    """Without and with a client id."""
    total = max(per_call, int(ENTRIES[per_call] * scale) // per_call * per_call)
    calls = make_calls(kind, per_call, total // per_call)
    timings: dict[str | None, list[Timing]] = {None: [], "client": []}
    for _ in range(runs + 1):
        for client_id, taken in timings.items():
            store = open_store("memory://")
            taken.append(timed(partial(produce_all, store, "none", calls, total // per_call, client_id)))
            assert count_entries(store) == total
    return best(timings[None][1:]), best(timings["client"][1:]), total


def clients_table(runs: int, scale: float) -> None:
    print(f"\nclient ids on memory://, best of {runs} runs, entries per CPU second\n")
    print(f"{'input':<7}{'per call':>9}{'without':>13}{'with':>13}{'slower':>8}   target")
    for kind, per_call in (("list", 1), ("list", 100), ("list", 10_000), ("arrow", 10_000)):
        without, numbered, total = client_row(kind, per_call, runs, scale)
        slower = numbered.cpu_seconds / without.cpu_seconds - 1
        limit = CLIENT_TARGETS.get(per_call)
        reached = "" if limit is None else f"{limit:.0%} {'pass' if slower <= limit else 'MISS'}"
        rates = (total / without.cpu_seconds, total / numbered.cpu_seconds)
        print(f"{kind:<7}{per_call:>9,}{rates[0]:>13,.0f}{rates[1]:>13,.0f}{slower:>8.1%}   {reached}", flush=True)


def marks_table(runs: int) -> None:
    """One dequeue of many batches of many clients, and how large the ledger is then."""
    store = open_store("memory://")
    metadata = PackedMetadata.pack([0], [1_700_000_000_000])
    names = [f"client-{n:04d}-0123456789abcdef" for n in range(MARK_CLIENTS)]
    entries = [
        (f"ingest/{n:026d}.batch", marked(metadata, encode_mark(names[n % MARK_CLIENTS], n // MARK_CLIENTS)))
        for n in range(MARK_BATCHES)
    ]
    full = Manifest.empty().append_all(entries)
    took = []
    for _ in range(runs + 1):
        store = open_store("memory://")
        ClientLedger(store, MANIFEST, _clock).open(Manifest.empty)
        store.put(MANIFEST, full.to_bytes())
        queue = QueueConsumer(store, MANIFEST, _clock, keepers=[MarkKeeper(store, MANIFEST, _clock)])
        queue.claim()
        took.append(timed(lambda queue=queue: queue.dequeue(MARK_BATCHES - 1)))  # type: ignore[misc]
    size = len(store.get(ledger_path(MANIFEST)).data)
    fastest = best(took[1:])
    print(
        f"\ndequeue of {MARK_BATCHES:,} batches, marks of {MARK_CLIENTS:,} clients: {fastest.seconds * 1000:.0f} ms "
        f"(CPU {fastest.cpu_seconds * 1000:.0f} ms, target 100), ledger {size:,} bytes (target 200,000)"
    )


# ---------------------------------------------------------------------------------------------- files and S3


class Counting(FaultyStore):
    """Counts the appends that won and that lost, and times the uploads. A store without faults is passed through."""

    appends = 0
    lost = 0

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.puts_s: list[float] = []

    def put(self, location: str, data: bytes | memoryview) -> None:
        started = time.perf_counter()
        super().put(location, data)
        self.puts_s.append(time.perf_counter() - started)

    def put_if_absent(self, location: str, data: bytes) -> Outcome:
        return self._noted(super().put_if_absent(location, data))

    def put_if_match(self, location: str, data: bytes, version: str) -> Outcome:
        return self._noted(super().put_if_match(location, data, version))

    def _noted(self, outcome: Outcome) -> Outcome:
        self.appends += isinstance(outcome, Won)
        self.lost += isinstance(outcome, Lost)
        return outcome


@contextmanager
def dequeuing(store: Store) -> Iterator[list[int]]:
    """A consumer beside the producer, which also keeps the manifest small. The list is what it saw dequeued."""
    done = threading.Event()
    dequeued = [0]

    def dequeue() -> None:
        consumer = QueueConsumer(store, MANIFEST, _clock)
        manifest = consumer.claim()
        while not done.wait(DEQUEUE_EVERY_S):
            manifest = consumer.read()
            if len(manifest):
                consumer.dequeue(manifest.next_sequence - 1)
            dequeued[0] = manifest.next_sequence

    thread = threading.Thread(target=dequeue)
    thread.start()
    try:
        yield dequeued
    finally:
        done.set()
        thread.join()


def produce_for(store: Counting, compression: str, seconds: float) -> tuple[float, int, int]:
    """Seconds until all was durable, entries, batches."""
    calls = make_calls("list", 100, 100)
    config = ProducerConfig(store=store, compression=compression, flush_interval_ms=FLUSH_INTERVAL_MS)
    with dequeuing(store.store), Producer(config) as producer:
        started = time.perf_counter()
        produced = 0
        while time.perf_counter() - started < seconds:
            for call in calls:
                last = producer.produce(call)
            produced += len(calls) * 100
        producer.flush()
        took = time.perf_counter() - started
        return took, produced, last.watcher.await_durable().sequence + 1


def store_row(name: str, open_it: Callable[[], Store], compression: str, seconds: float) -> float:
    """Print a run; returns how it compares with the bare loop."""
    store, plain = Counting(open_it()), Counting(open_it())
    took, produced, batches = produce_for(store, compression, seconds)
    entries = [entry for call in make_calls("list", 100, 100) for entry in call]
    size = max(1, produced // batches)
    one_batch = (entries * (size // len(entries) + 1))[:size]
    bare = bare_batches(plain, compression, one_batch, seconds / 2)
    ratio = batches / took / bare
    print(
        f"{name:<8}{compression:<12}{produced / took:>12,.0f}{batches / took:>11,.1f}{store.appends / took:>11,.1f}"
        f"{produced / store.appends:>16,.0f}{produced / batches:>15,.0f}{bare:>10,.1f}{ratio:>8.2f}"
        f"{store.lost:>6}{latency(store.puts_s):>16}{latency(plain.puts_s):>16}",
        flush=True,
    )
    return ratio


def latency(puts_s: list[float]) -> str:
    """Median and 99th percentile, in milliseconds."""
    found = sorted(puts_s)
    return f"{found[len(found) // 2] * 1000:,.0f} / {found[int(0.99 * len(found))] * 1000:,.0f}"


def bare_batches(store: Counting, compression: str, entries: list[bytes], seconds: float) -> float:
    """Batches per second, one after the other."""
    count = 0
    with dequeuing(store.store):
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            write_bare(store, compression, [entries])
            count += 1
        return count / (time.perf_counter() - started)


def store_rows(name: str, open_it: Callable[[], Store], runs: int, seconds: float) -> None:
    for compression in ("none", "zstd"):
        produce_for(Counting(open_it()), compression, seconds / 2)
        ratios = [store_row(name, open_it, compression, seconds) for _ in range(runs)]
        if name == "s3":
            verdict = "pass" if min(ratios) >= S3_RATIO else "MISS"
            print(f"  {compression}: at least {S3_RATIO:g}x in every run: {min(ratios):.2f}x {verdict}")


def stores_table(stores: list[str], runs: int, seconds: float) -> None:
    print(f"\ncalls of 100 entries of {ENTRY_BYTES} bytes, flush_interval_ms={FLUSH_INTERVAL_MS}, {seconds:g} s each\n")
    print(
        f"{'store':<8}{'compression':<12}{'entries/s':>12}{'batches/s':>11}{'appends/s':>11}{'entries/append':>16}"
        f"{'entries/batch':>15}{'bare b/s':>10}{'x bare':>8}{'lost':>6}{'put p50/p99 ms':>16}{'bare p50/p99':>16}"
    )
    with tempfile.TemporaryDirectory(prefix="buffer-benchmark-") as folder:
        root = Path(folder)
        if "local" in stores:
            store_rows("local", lambda: open_store(root / _clock.new_ulid()), runs, seconds)
        if "s3" in stores:
            (root / "s3").mkdir()
            try:
                with run_s3_server(root / "s3") as server:
                    store_rows("s3", lambda: server.new_address().open(), runs, seconds)
            except Unavailable as reason:
                print(f"s3 was left out: {reason}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the entries of each memory run")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="per row of files and S3")
    parser.add_argument("--stores", default="memory,clients,local,s3")
    options = parser.parse_args()
    stores = options.stores.split(",")
    if "memory" in stores:
        memory_table(options.runs, options.scale)
    if "clients" in stores:
        clients_table(CLIENT_RUNS * options.runs, options.scale)
        marks_table(options.runs)
    if set(stores) & {"local", "s3"}:
        stores_table(stores, options.runs, options.seconds)


if __name__ == "__main__":
    main()
