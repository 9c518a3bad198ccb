"""Two Ingestors and three Collectors as processes: one is killed with claims in its hands, one stopped and woken."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from buffer.legacy.format import decode_consumer_manifest, decode_producer_manifest
from buffer.store import open_store
from tests.crash.processes import Worker, await_true
from tests.legacy.worker import HELD, PAIRS_PER_CALL

MODULE = "tests.legacy.worker"
TIMEOUT_MS = 2000
SIGN_S = 120.0  # how long a sign of life may take on a machine that is far too busy


def test_should_collect_every_pair_although_collectors_die_and_sleep(tmp_path: Path) -> None:
    options = {"store": str(tmp_path / "queue"), "timeout_ms": TIMEOUT_MS, "threshold": 10}
    with ExitStack() as stack:

        def start(role: str, name: str) -> Worker:
            worker = Worker(MODULE, {**options, "role": role, "name": name}, tmp_path / f"{name}.log")
            return stack.enter_context(worker)

        ingestors = [start("ingest", name) for name in ("one", "two")]
        victim, sleeper = start("hold", "victim"), start("hold", "sleeper")
        collector = start("collect", "collector")
        dead_claims = victim.wait_for("held", SIGN_S)["held"]
        victim.kill()
        sleeping_claims = sleeper.wait_for("held", SIGN_S)["held"]
        _freeze_outside_of_locks(sleeper)
        for ingestor in ingestors:
            ingestor.wait_for("calls", SIGN_S)  # they go on while Collectors come and go
        totals = [_end(ingestor) for ingestor in ingestors]
        ingested = {
            f"{name}.{call}.{n}"
            for name, total in zip(("one", "two"), totals, strict=True)
            for call in range(total)
            for n in range(PAIRS_PER_CALL)
        }
        acked: list[dict[str, Any]] = []

        def all_acked() -> bool:
            acked.extend(message for message in collector.heard() if "acked" in message)
            assert collector.is_alive, collector.last_words()
            return sum(len(message["acked"]) for message in acked) >= len(ingested)

        await_true(all_acked, SIGN_S, "every pair is acked")
        sleeper.thaw()
        sleeper.send("ack")
        assert sleeper.wait_for("results", SIGN_S)["results"] == ["lost"] * HELD
        assert sleeper.end() == 0
        assert collector.end() == 0

    assert Counter(key for message in acked for key in message["acked"]) == Counter(ingested), "each of them once"
    claims = {message["location"]: message["claimed_ms"] for message in acked}
    assert len(dead_claims | sleeping_claims) == 2 * HELD
    for location, claimed_ms in (dead_claims | sleeping_claims).items():
        assert claims[location] > claimed_ms + TIMEOUT_MS, "taken over, and not before the timeout"
    _check_end(tmp_path / "queue", [message["location"] for message in acked])


def _freeze_outside_of_locks(worker: Worker) -> None:
    """One that stops within a write holds up all others until they give up on the lock of the file."""
    process = psutil.Process(worker.pid)

    def frozen_without_lock() -> bool:
        worker.freeze()
        await_true(lambda: process.status() == psutil.STATUS_STOPPED, SIGN_S, "it is stopped")
        if not any(".buffer-locks" in file.path for file in process.open_files()):
            return True
        worker.thaw()
        return False

    await_true(frozen_without_lock, SIGN_S, "it is stopped outside of a write")


def _end(ingestor: Worker) -> int:
    assert ingestor.process.stdin is not None
    ingestor.process.stdin.close()
    total: int = ingestor.wait_for("total", SIGN_S)["total"]
    return total


def _check_end(folder: Path, locations: list[str]) -> None:
    store = open_store(str(folder))
    pending = decode_producer_manifest(store.get("ingest/manifest.json").data).pending
    consumer = decode_consumer_manifest(store.get("ingest/manifest.consumer.json").data)
    assert not consumer.claimed
    assert set(pending) == set(consumer.done)
    assert len(pending) <= 10, "the rest was cleaned up"
    objects = {info.location for info in store.list("ingest") if "manifest" not in info.location}
    assert objects == set(pending)
    assert set(pending) <= set(locations)
