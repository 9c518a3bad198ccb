"""Real processes on local files, killed, stopped and woken: nothing lost, nothing acked twice, counts right."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from buffer.config import ConsumerConfig, LeaseConfig
from buffer.leases import LeaseQueue
from buffer.produce.producer import Producer
from tests.crash.s3 import through
from tests.fault_proxy import FaultProxy, evenly
from tests.leases.worker_process import MANIFEST
from tests.servers import S3Server, StoreAddress

TIMEOUT_MS = 3_000
ENTRIES = 3


class Pool:
    """Worker processes that something bad happens to."""

    def __init__(self, address: StoreAddress, logs: Path, size: int, seed: int) -> None:
        self.address, self.logs = address, logs
        self.where = (address.url, json.dumps(address.options))
        self.random = random.Random(seed)
        self.started = 0
        self.running = [self.start() for _ in range(size)]
        self.stopped: list[tuple[float, subprocess.Popen[bytes]]] = []

    def start(self) -> subprocess.Popen[bytes]:
        self.started += 1
        log = self.logs / f"{self.started}.log"
        return subprocess.Popen(
            [sys.executable, "-m", "tests.leases.worker_process", *self.where, str(log)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def strike(self) -> None:
        """Kill one and start another; or stop one for longer than its lease, or for a moment."""
        victim = self.random.choice(self.running)
        if self.random.random() < 0.5:
            victim.kill()
            victim.wait()
            self.running[self.running.index(victim)] = self.start()
        elif all(victim is not process for _, process in self.stopped):
            victim.send_signal(signal.SIGSTOP)
            wakes_s = time.monotonic() + self.random.choice((0.1, 1.5 * TIMEOUT_MS / 1000))
            self.stopped.append((wakes_s, victim))

    def wake(self) -> None:
        for item in [item for item in self.stopped if item[0] <= time.monotonic()]:
            self.stopped.remove(item)
            if item[1].poll() is None:
                item[1].send_signal(signal.SIGCONT)

    def check_alive(self) -> None:
        for process in self.running:
            assert process.poll() is None, f"a worker ended with {process.returncode}"

    def close(self) -> None:
        for process in {*self.running, *(process for _, process in self.stopped)}:
            process.kill()
            process.wait()


def read_logs(logs: Path) -> dict[str, list[list[str]]]:
    lines: dict[str, list[list[str]]] = defaultdict(list)
    for log in sorted(logs.iterdir()):
        for line in log.read_text(encoding="utf-8").splitlines():
            word, *rest = line.split(" ")
            lines[word].append(rest)
    return lines


@pytest.mark.parametrize(
    ("workers", "batches", "strikes"), [(4, 120, 10), pytest.param(8, 2_000, 150, marks=pytest.mark.soak)]
)
def test_should_work_off_every_batch_whatever_happens_to_the_workers(
    workers: int, batches: int, strikes: int, tmp_path: Path
) -> None:
    address = StoreAddress(str(tmp_path / "store"), {})
    work_off(address, address, tmp_path / "logs", workers, batches, strikes)


@pytest.mark.parametrize(
    ("workers", "batches", "strikes"), [(3, 25, 3), pytest.param(8, 2_000, 100, marks=pytest.mark.soak)]
)
def test_should_do_so_on_s3_over_a_bad_network(
    workers: int, batches: int, strikes: int, s3_server: S3Server, tmp_path: Path
) -> None:
    direct = s3_server.new_address()
    with FaultProxy(s3_server.endpoint, evenly(0.15), 7, slow_s=(0.02, 1.2)) as proxy:
        work_off(direct, through(proxy, direct, timeout="1s"), tmp_path / "logs", workers, batches, strikes)


def work_off(direct: StoreAddress, address: StoreAddress, logs: Path, workers: int, batches: int, strikes: int) -> None:
    """Fill a queue, let the pool work it off while it is struck, and compare what its workers have logged."""
    logs.mkdir()
    with Producer.open(store=direct.url, store_options=direct.options, manifest_path=MANIFEST) as producer:
        for index in range(batches):
            producer.produce([f"{index}.{i}".encode() for i in range(ENTRIES)])
            producer.flush()
    config = ConsumerConfig(store=direct.url, store_options=direct.options, manifest_path=MANIFEST, gc_enabled=False)
    leases = LeaseConfig(visibility_timeout_ms=TIMEOUT_MS, max_delivery_attempts=1_000)
    with LeaseQueue.open(config, leases) as watcher:
        pool = Pool(address, logs, workers, seed=7)
        try:
            struck = 0
            while (depth := watcher.stats().depth) > 0:
                pool.check_alive()
                pool.wake()
                due = strikes * (batches - depth) // batches  # bad luck follows progress, not the clock
                if struck < due:
                    struck += 1
                    pool.strike()
                time.sleep(0.02)  # only not to spin: the loop ends when the work is done
            counted = watcher.stats()
        finally:
            pool.close()
        assert counted.finished_through == batches - 1
    check_logs(read_logs(logs), batches)


def check_logs(told: dict[str, list[list[str]]], batches: int) -> None:
    assert {entry for _, entry in told["done"]} == {f"{b}.{i}" for b in range(batches) for i in range(ENTRIES)}
    acked = [sequence for sequence, _ in told["acked"]]
    assert len(acked) == len(set(acked)), "told to two workers as acked"
    counts: dict[str, list[int]] = defaultdict(list)
    for sequence, _lease, count in told["leased"]:
        counts[sequence].append(int(count))
    for sequence, seen in counts.items():
        assert len(set(seen)) == len(seen), f"two leases of {sequence} had the same count: {seen}"
    leased = {(sequence, lease) for sequence, lease, _ in told["leased"]}
    assert len(leased) == len(told["leased"])
    assert {(sequence, lease) for sequence, lease in told["acked"]} <= leased
