"""What a cycle of a worker costs: ack what it has, lease the next, in one write. By store, workers, length of queue.

    python -m benchmarks.leases [--stores memory,files,s3] [--cycles 3000]
    python -m benchmarks.leases --store s3://bucket/bench    # and there

A cycle is one conditional read of the manifest and one write of the ledger, and the fetch of what was leased. To reach:
flat, whatever the length of the queue. Workers are threads with a `LeaseQueue` each: they contend for one ledger.
`s3` is a server on this machine. CPU is the whole process's for one cycle: the fairer figure on a busy machine.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from buffer.clock import SystemClock
from buffer.codec.batch import encode_batch
from buffer.config import ConsumerConfig
from buffer.leases import LeaseConfig, LeaseQueue
from buffer.queue import QueueProducer
from buffer.store.base import Store
from buffer.store.open import open_store
from tests.servers import Unavailable, run_s3_server

LENGTHS = (10, 10_000)
WORKERS = (1, 8)
ENTRIES = 100
ENTRY_BYTES = 100
CYCLES = 3_000  # long enough for what is done once in a thousand
LEASES = LeaseConfig(visibility_timeout_ms=600_000)


def fill(store: Store, path: str, count: int) -> None:
    """A queue whose entries name one and the same object: the queue's length matters here, not the bytes."""
    folder = path.rpartition("/")[0]
    location = f"{folder}/{SystemClock().new_ulid()}.batch"
    store.put(location, encode_batch([bytes(ENTRY_BYTES)] * ENTRIES))
    QueueProducer(store, path, SystemClock()).append_locations([(location, ())] * count)


def work(queue: LeaseQueue, cycles: int, done: list[int]) -> None:
    held = queue.consume()
    for _ in range(cycles):
        held = queue.consume(acks=held)
        done.append(1)


def measure(store: Store, workers: int, length: int, total: int) -> tuple[float, float]:
    """Cycles a second, over all workers, on a queue that keeps its length; and CPU seconds for one."""
    path = f"bench-{SystemClock().new_ulid()}/manifest"
    cycles = total // workers
    fill(store, path, length + total + workers)
    config = ConsumerConfig(store=store, manifest_path=path, gc_enabled=False)
    queues = [LeaseQueue.open(config, LEASES) for _ in range(workers)]
    done: list[int] = []
    threads = [threading.Thread(target=work, args=(queue, cycles, done)) for queue in queues]
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed_s, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    assert len(done) == workers * cycles, "a worker ended early"
    return len(done) / elapsed_s, cpu_s / len(done)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", default="memory,files,s3")
    parser.add_argument("--store", action="append", default=[], help="another store to measure: s3://bucket/path")
    parser.add_argument("--cycles", type=int, default=CYCLES)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        stores = {url: open_store(url) for url in options.store}
        for name in options.stores.split(","):
            if name == "memory":
                stores[name] = open_store("memory://")
            elif name == "files":
                stores[name] = open_store(f"{folder}/files")
            elif name == "s3":
                (Path(folder) / "s3").mkdir()
                try:
                    stores[name] = servers.enter_context(run_s3_server(Path(folder) / "s3")).new_address().open()
                except Unavailable as reason:
                    print(f"s3 was left out: {reason}")
        print(f"{'store':<20}{'workers':>8}{'queued':>9}{'cycles/s':>11}{'entries/s':>12}{'CPU ms':>9}")
        for name, store in stores.items():
            for workers in WORKERS:
                for length in LENGTHS:
                    rate, cpu_s = measure(store, workers, length, options.cycles)
                    print(
                        f"{name:<20}{workers:>8}{length:>9,}{rate:>11,.0f}{rate * ENTRIES:>12,.0f}{cpu_s * 1000:>9.2f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
