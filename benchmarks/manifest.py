"""What the manifest costs, by its length: in memory append, read of the tail, dequeue; in stores appends a second.

    python -m benchmarks.manifest [--stores files,s3] [--seconds 3]

Every operation starts from bytes as they come from a store and, where it changes something, ends with bytes to
write. To reach: an append at 100,000 entries in under 5 ms and without parsing them. That it does not parse shows
in what it costs: about one plain copy of the same bytes, and a small part of one walk over all entries.

Appends a second: threads with a `QueueProducer` each append one location after the other to one manifest, which every
append rewrites. A producer appends whole groups at a time, so this is the limit on groups, not on batches. `s3` is a
server on this machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from buffer.clock import SystemClock
from buffer.manifest import Manifest
from buffer.model import Metadata
from buffer.queue import QueueProducer
from buffer.store.base import Store
from buffer.store.open import open_store
from tests.servers import Unavailable, run_s3_server

COUNTS = (10, 1_000, 100_000)
ENTRY_BYTES = 89
TAIL = 10  # entries that came since the last poll
APPEND_MS_MAX = 5.0
PARSE_SHARE_MAX = 0.05  # an append that parsed would cost at least one walk
BUDGET_S = 1.0  # for each figure
ROUNDS_MIN = 5
PRODUCERS = (1, 8)


def build(count: int) -> bytes:
    item = (Metadata(0, 1_700_000_000_000, bytes(16)),)
    manifest = Manifest.empty().append_all([(f"ingest/{index:026d}.batch", item) for index in range(count)])
    data = manifest.to_bytes()
    assert len(data) == count * ENTRY_BYTES + 22, len(data)
    return data


def median_ms(work: Callable[[], object]) -> float:
    work()
    times: list[float] = []
    deadline = time.perf_counter() + BUDGET_S
    while len(times) < ROUNDS_MIN or time.perf_counter() < deadline:
        start = time.perf_counter()
        work()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def measure(count: int) -> dict[str, float]:
    data = build(count)
    item = (Metadata(0, 1_700_000_000_000, bytes(16)),)
    polled = Manifest.from_bytes(data)
    cursor = polled.next_sequence
    deque(polled.entries_from(cursor), maxlen=0)  # the last poll read everything there was
    grown = polled.append_all([("ingest/new.batch", item)] * TAIL).to_bytes()

    def read_tail_on() -> list[object]:
        return list(Manifest.from_bytes(grown).following(polled).entries_from(cursor))

    assert len(read_tail_on()) == TAIL
    return {
        "copy": median_ms(lambda: b"".join((data, b"x"))),
        "append": median_ms(lambda: Manifest.from_bytes(data).append("ingest/new.batch", item).to_bytes()),
        "tail": median_ms(lambda: list(Manifest.from_bytes(data).entries_from(count - TAIL))),
        "tail_on": median_ms(read_tail_on),
        "dequeue_10": median_ms(lambda: Manifest.from_bytes(data).dequeue(9).to_bytes()),
        "dequeue_all": median_ms(lambda: Manifest.from_bytes(data).dequeue(count - 1).to_bytes()),
        "parse": median_ms(lambda: deque(Manifest.from_bytes(data), maxlen=0)),
    }


COLUMNS = {
    "copy": "plain copy",
    "append": "append 1",
    "tail": f"last {TAIL}, first look",
    "tail_on": f"{TAIL} new, next look",
    "dequeue_10": "dequeue 10",
    "dequeue_all": "dequeue all",
    "parse": "parse all",
}


def appends_per_second(store: Store, count: int, producers: int, seconds: float) -> float:
    """Over all producers, on a manifest that begins with `count` entries."""
    path = f"bench-{SystemClock().new_ulid()}/manifest"
    store.put(path, build(count))
    item = (Metadata(0, 1_700_000_000_000, bytes(16)),)
    done: list[int] = []
    deadline = time.perf_counter() + seconds

    def append() -> None:
        queue = QueueProducer(store, path, SystemClock())
        while time.perf_counter() < deadline:
            queue.append_locations([(f"bench/{SystemClock().new_ulid()}.batch", item)])
            done.append(1)

    threads = [threading.Thread(target=append) for _ in range(producers)]
    started_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed_s = time.perf_counter() - started_s
    found = Manifest.from_bytes(store.get(path).data).next_sequence
    assert found == count + len(done), "an append is missing, or there twice"
    return len(done) / elapsed_s


def in_stores(names: list[str], seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        print(f"\n{'store':<8}{'producers':>10}" + "".join(f"{count:>14,}" for count in COUNTS) + "   appends/s")
        for name in names:
            place = Path(folder) / name
            place.mkdir()
            try:
                store = (
                    servers.enter_context(run_s3_server(place)).new_address().open()
                    if name == "s3"
                    else open_store(str(place))
                )
            except Unavailable as reason:
                print(f"{name} was left out: {reason}")
                continue
            for producers in PRODUCERS:
                rates = [appends_per_second(store, count, producers, seconds) for count in COUNTS]
                print(f"{name:<8}{producers:>10}" + "".join(f"{rate:>14,.1f}" for rate in rates), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stores", default="files,s3", help="where appends are counted; empty: nowhere")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each count of appends")
    options = parser.parse_args()
    print(f"Manifests of entries of {ENTRY_BYTES} bytes; median ms")
    print("  ".join(["entries".rjust(8), *(title.rjust(20) for title in COLUMNS.values())]))
    figures: dict[str, float] = {}
    for count in COUNTS:
        figures = measure(count)
        print("  ".join([f"{count:>8,}", *(f"{figures[name]:>20.4f}" for name in COLUMNS)]))
    share = figures["append"] / figures["parse"]
    checks = [
        (
            f"append at {COUNTS[-1]:,} entries: {figures['append']:.2f} ms, to be under {APPEND_MS_MAX:g} ms",
            figures["append"] < APPEND_MS_MAX,
        ),
        (
            f"… and without parsing: {share:.1%} of a parse, to be under {PARSE_SHARE_MAX:.0%} "
            f"(a plain copy is {figures['copy'] / figures['parse']:.1%})",
            share < PARSE_SHARE_MAX,
        ),
    ]
    print()
    for text, passed in checks:
        print(f"{'pass' if passed else 'MISS'}  {text}")
    in_stores([name for name in options.stores.split(",") if name], options.seconds)
    return 0 if all(passed for _, passed in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
