"""Worker processes on one queue, killed, stopped and woken: every batch is worked off, or parked if it cannot be read.

Judged by what the workers have logged. A worker that is killed may have been granted batches that it never logged, one
consume of them at most; so may one whose consume ended without an answer. All other deliveries are in the logs, each
with a count of its own, or as given back unread: the counts are the leases granted, on a bad network, too.
"""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from buffer.config import ConsumerConfig, LeaseConfig
from buffer.consume.fetch import FetchHandle
from buffer.leases import LeaseQueue
from buffer.manifest import Manifest
from buffer.marks import without_mark
from buffer.model import BatchDescriptor
from buffer.produce.producer import Producer
from buffer.store.base import Store
from tests.crash.leasing import MANIFEST
from tests.crash.processes import Worker
from tests.crash.verdict import Verdict
from tests.servers import StoreAddress

TIMEOUT_MS = 3_000
ENTRIES = 3
ATTEMPTS = 20
"""So many deliveries of a healthy batch are not to be expected, however many workers die."""
DEAD = "dead/manifest"
REPORT_EVERY_S = 30.0


@dataclass(frozen=True)
class Plan:
    """What is to be done, and what happens meanwhile."""

    batches: int
    workers: int = 8
    strikes: int = 100
    damaged: int = 0
    missing: int = 0
    in_order: bool = False

    @property
    def at_once(self) -> int:
        return 1 if self.in_order else 3

    @property
    def leases(self) -> LeaseConfig:
        if self.in_order:
            return LeaseConfig(
                visibility_timeout_ms=TIMEOUT_MS,
                max_delivery_attempts=1_000,
                dlq_strategy="block",
                ordering_required=True,
            )
        return LeaseConfig(
            visibility_timeout_ms=TIMEOUT_MS, max_delivery_attempts=ATTEMPTS, dlq_strategy="skip", dlq=DEAD
        )


class Pool:
    """Worker processes that something bad happens to."""

    def __init__(self, address: StoreAddress, folder: Path, plan: Plan, chance: random.Random) -> None:
        self._address, self._folder, self._plan, self._chance = address, folder, plan, chance
        self._lives = 0
        self._stopped: list[tuple[float, Worker]] = []
        self.killed = self.froze = 0
        self.running: list[Worker] = []
        for _ in range(plan.workers):
            self.running.append(self._start())

    def _start(self) -> Worker:
        self._lives += 1
        log = self._folder / f"{self._lives}.log"
        options = {
            "store": self._address.url,
            "options": self._address.options,
            "log": str(log),
            "max_batches": self._plan.at_once,
        }
        return Worker("tests.crash.leasing", options, self._folder / "workers.stderr")

    def strike(self) -> None:
        """Kill one and start another; or stop one for longer than its lease, or for a moment."""
        victim = self._chance.choice(self.running)
        if self._chance.random() < 0.5:
            victim.kill()
            self.killed += 1
            self.running[self.running.index(victim)] = self._start()
        elif not victim.frozen:
            victim.freeze()
            self.froze += 1
            wakes_s = time.monotonic() + self._chance.choice((0.1, 1.5 * TIMEOUT_MS / 1000))
            self._stopped.append((wakes_s, victim))

    def wake(self) -> None:
        for item in [item for item in self._stopped if item[0] <= time.monotonic()]:
            self._stopped.remove(item)
            item[1].thaw()

    def check_alive(self) -> None:
        for worker in self.running:
            assert worker.is_alive, f"a worker ended with {worker.process.returncode}: {worker.last_words()}"

    def close(self) -> None:
        for worker in {*self.running, *(worker for _, worker in self._stopped)}:
            worker.kill()


class LeaseCycles:
    """Fills a queue, lets the pool work it off while it is struck, and judges."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        direct: StoreAddress,
        address: StoreAddress,
        tell: Callable[[str], None] = lambda _text: None,
    ) -> None:
        """The workers reach the store by `address`, which may be a bad network; we by `direct`."""
        folder.mkdir(parents=True)
        self._folder = folder
        self._chance = random.Random(f"{seed} leases")
        self._direct, self._address = direct, address
        self._store = direct.open()
        self._tell = tell

    def run(self, plan: Plan) -> Verdict:
        self._fill(plan.batches)
        damaged, missing = self._break(plan)
        config = ConsumerConfig(store=self._store, manifest_path=MANIFEST, gc_enabled=False)
        with LeaseQueue.open(config, plan.leases) as watcher:
            pool = Pool(self._address, self._folder, plan, self._chance)
            try:
                self._work_off(watcher, pool, plan)
            finally:
                pool.close()
            stats = watcher.stats()
        told = read_logs(self._folder)
        verdict = Verdict(found=len(told.done))
        verdict.text = (
            f"{plan.batches:,} batches by {plan.workers} workers, {pool.killed} killed, {pool.froze} stopped and "
            f"woken; {told.deliveries:,} deliveries, {stats.parked} batches parked"
        )
        if stats.finished_through != plan.batches - 1:
            verdict.violations.append(f"finished through {stats.finished_through} of {plan.batches}")
        judge(verdict, told, plan, damaged | missing, pool.killed + pool.froze)
        judge_parked(verdict, self._store, plan, damaged, missing)
        return verdict

    def _fill(self, batches: int) -> None:
        with Producer.open(
            store=self._direct.url, store_options=self._direct.options, manifest_path=MANIFEST
        ) as producer:
            for index in range(batches):
                producer.produce([f"{index}.{i}".encode() for i in range(ENTRIES)])
                producer.flush()

    def _break(self, plan: Plan) -> tuple[set[int], set[int]]:
        """Damage some batches, take others away; which."""
        descriptors = list(Manifest.from_bytes(self._store.get(MANIFEST).data))
        victims = self._chance.sample(descriptors, plan.damaged + plan.missing)
        damaged, missing = victims[: plan.damaged], victims[plan.damaged :]
        for victim in damaged:
            self._store.put(victim.location, garbage(victim))
        self._store.delete_many([victim.location for victim in missing])
        return {victim.sequence for victim in damaged}, {victim.sequence for victim in missing}

    def _work_off(self, watcher: LeaseQueue, pool: Pool, plan: Plan) -> None:
        struck = 0
        started_s = reported_s = time.monotonic()
        while (depth := watcher.stats().depth) > 0:
            pool.check_alive()
            pool.wake()
            due = plan.strikes * (plan.batches - depth) // plan.batches  # bad luck follows progress, not the clock
            if struck < due:
                struck += 1
                pool.strike()
            if time.monotonic() - reported_s > REPORT_EVERY_S:
                reported_s = time.monotonic()
                self._tell(f"leases: {plan.batches - depth}/{plan.batches} in {reported_s - started_s:.0f} s")
            time.sleep(0.02)  # only not to spin: the loop ends when the work is done


def garbage(descriptor: BatchDescriptor) -> bytes:
    return f"not a batch: {descriptor.sequence}".encode()


# What the workers have logged


@dataclass
class Told:
    done: set[str] = field(default_factory=set)
    acked: list[tuple[int, str]] = field(default_factory=list)
    leased: dict[int, list[tuple[str, int, int]]] = field(default_factory=lambda: defaultdict(list))
    """By sequence: lease, count, time."""
    worked: dict[tuple[int, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    """By sequence and lease: when the handler was done with each entry."""
    snoozed: list[int] = field(default_factory=list)
    troubles: int = 0

    @property
    def deliveries(self) -> int:
        return sum(map(len, self.leased.values()))


def read_logs(folder: Path) -> Told:
    told = Told()
    for words in _lines(folder):
        match words:
            case ["leased", sequence, lease, count, at]:
                told.leased[int(sequence)].append((lease, int(count), int(at)))
            case ["done", sequence, entry, lease, at]:
                told.done.add(entry)
                told.worked[int(sequence), lease].append(int(at))
            case ["acked", sequence, lease]:
                told.acked.append((int(sequence), lease))
            case ["snoozed", sequence]:
                told.snoozed.append(int(sequence))
            case ["trouble"]:
                told.troubles += 1
    return told


def _lines(folder: Path) -> Iterator[list[str]]:
    for log in sorted(folder.glob("*.log")):
        for line in log.read_text(encoding="utf-8").splitlines():
            yield line.split(" ")


def judge(verdict: Verdict, told: Told, plan: Plan, unreadable: set[int], disturbed: int) -> None:
    """`disturbed`: how many times a worker was."""
    readable = [sequence for sequence in range(plan.batches) if sequence not in unreadable]
    wanted = {f"{sequence}.{i}" for sequence in readable for i in range(ENTRIES)}
    verdict.add("entries that no handler has finished", sorted(int(e.split(".")[0]) for e in wanted - told.done))
    verdict.add("entries of unreadable batches", sorted(int(e.split(".")[0]) for e in told.done - wanted))
    acked = [sequence for sequence, _ in told.acked]
    verdict.add("told as acked twice", sorted({s for s in acked if acked.count(s) > 1} if _repeats(acked) else set()))
    unlogged = 0
    for sequence, leases in told.leased.items():
        counts = [count for _, count, _ in leases]
        if _repeats(counts) or _repeats([lease for lease, _, _ in leases]):
            verdict.add("two leases with one count", [sequence])
        unlogged += max(counts) - len(counts)
    granted = {(sequence, lease) for sequence, leases in told.leased.items() for lease, _, _ in leases}
    verdict.add(
        "acked under a lease that nobody had", sorted(s for s, lease in told.acked if (s, lease) not in granted)
    )
    snoozed = sum(sequence in told.leased for sequence in told.snoozed)
    if unlogged > plan.at_once * (disturbed + told.troubles) + snoozed:
        verdict.violations.append(f"{unlogged} deliveries are counted that no worker was given")
    if plan.in_order:
        judge_order(verdict, told)


def judge_order(verdict: Verdict, told: Told) -> None:
    """None starts before the one ahead of it is finished.

    A batch is finished under the last lease that was granted on it. Another one's handler may go on after that: a
    process that was stopped does not know that its lease has ended.
    """
    for sequence, leases in told.leased.items():
        if sequence - 1 not in told.leased:
            continue
        last, _, _ = max(told.leased[sequence - 1], key=lambda lease: lease[1])
        done = told.worked[sequence - 1, last]
        if len(done) < ENTRIES or min(at for _, _, at in leases) < max(done):
            verdict.add("started before the one ahead of it was finished", [sequence])


def judge_parked(verdict: Verdict, store: Store, plan: Plan, damaged: set[int], missing: set[int]) -> None:
    """In the dead-letter queue: what cannot be read, with its bytes or the reason, after so many deliveries."""
    if plan.in_order or not damaged | missing:
        return
    parked: dict[int, str] = {}
    for descriptor in Manifest.from_bytes(store.get(DEAD).data):
        (letter,) = (json.loads(item.payload) for item in without_mark(descriptor.metadata))
        sequence, kind = letter["sequence"], letter["kind"]
        if sequence in parked:
            verdict.add("parked twice", [sequence])
        parked[sequence] = kind
        (entry,) = FetchHandle(store).fetch(descriptor).entries
        # A worker that came too late to read it, for the machine or the store was slow, has snoozed it: one more.
        if not ATTEMPTS <= letter["count"] < 2 * ATTEMPTS or not letter["reason"]:
            verdict.violations.append(f"{sequence} was parked after {letter['count']} deliveries: {letter['reason']!r}")
        if kind == "bytes" and entry != f"not a batch: {sequence}".encode():
            verdict.violations.append(f"{sequence} was parked as {entry!r}")
    wanted = dict.fromkeys(damaged, "bytes") | dict.fromkeys(missing, "missing")
    if parked != wanted:
        verdict.violations.append(f"parked {parked}, but these cannot be read: {wanted}")


def _repeats(items: list[int] | list[str]) -> bool:
    return len(set(items)) != len(items)
