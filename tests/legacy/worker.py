"""An Ingestor or a Collector of the older format in a process of its own.

python -m tests.legacy.worker '{"role": "ingest", "store": …, "name": …}'    until its standard input ends
python -m tests.legacy.worker '{"role": "hold", …}'                          claims some, acks them when told "ack"
python -m tests.legacy.worker '{"role": "collect", …}'                       collects and acks until input ends
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from buffer.errors import ClaimLost
from buffer.legacy import Collector, Ingestor, KeyValueEntry
from buffer.legacy.claims import CollectedBatch
from tests.crash.processes import on_end_of_input, say
from tests.nets import HANGS_S

PAIRS_PER_CALL = 3
HELD = 2
POLL_S = 0.005


def ingest(options: dict[str, Any]) -> None:
    over = threading.Event()
    on_end_of_input(over.set)
    calls = 0
    with Ingestor.open(store=options["store"], flush_interval_ms=1) as ingestor:
        while not over.is_set():
            pairs = [f"{options['name']}.{calls}.{n}".encode() for n in range(PAIRS_PER_CALL)]
            ingestor.ingest([KeyValueEntry(text, text[::-1]) for text in pairs]).await_durable(timeout=HANGS_S)
            calls += 1
            if calls % 20 == 0:
                say(calls=calls)
            over.wait(POLL_S)  # not too far ahead of those who collect
    say(total=calls)


def open_collector(options: dict[str, Any]) -> Collector:
    return Collector.open(
        store=options["store"], heartbeat_timeout_ms=options["timeout_ms"], done_cleanup_threshold=options["threshold"]
    )


def keys_of(batch: CollectedBatch) -> list[str]:
    assert all(entry.value == entry.key[::-1] for entry in batch.entries)
    return [entry.key.decode() for entry in batch.entries]


def hold(options: dict[str, Any]) -> None:
    pause = threading.Event()
    with open_collector(options) as collector:
        batches: list[CollectedBatch] = []
        while len(batches) < HELD:
            batch = collector.next_batch()
            if batch is None:
                pause.wait(POLL_S)
            else:
                batches.append(batch)
        say(held={batch.location: batch.claimed_ms for batch in batches})
        if sys.stdin.readline().strip() != "ack":
            return
        results = []
        for batch in batches:
            try:
                collector.ack(batch)
            except ClaimLost:
                results.append("lost")
            else:
                results.append("acked")
        say(results=results)
        sys.stdin.read()


def collect(options: dict[str, Any]) -> None:
    over = threading.Event()
    on_end_of_input(over.set)
    with open_collector(options) as collector:
        while not over.is_set():
            batch = collector.next_batch()
            if batch is None:
                over.wait(POLL_S)
                continue
            keys = keys_of(batch)
            try:
                collector.ack(batch)
            except ClaimLost:
                continue  # this machine is so slow that another one has it by now
            say(acked=keys, location=batch.location, claimed_ms=batch.claimed_ms)


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    {"ingest": ingest, "hold": hold, "collect": collect}[settings["role"]](settings)
