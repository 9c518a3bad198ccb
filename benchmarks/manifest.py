"""What the manifest costs in memory, by its length: append, read of the tail, dequeue.

    python benchmarks/manifest.py

Every operation starts from bytes as they come from a store and, where it changes something, ends with bytes to
write. To reach: an append at 100,000 entries in under 5 ms and without parsing them. That it does not parse shows
in what it costs: about one plain copy of the same bytes, and a small part of one walk over all entries.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import deque
from collections.abc import Callable

from buffer.manifest import Manifest
from buffer.model import Metadata

COUNTS = (10, 1_000, 100_000)
ENTRY_BYTES = 89
TAIL = 10  # entries that came since the last poll
APPEND_MS_MAX = 5.0
PARSE_SHARE_MAX = 0.05  # an append that parsed would cost at least one walk
BUDGET_S = 1.0  # for each figure
ROUNDS_MIN = 5


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


def main() -> int:
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
    return 0 if all(passed for _, passed in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
