"""A thousand producers on local files, each killed at a random moment, some of them stopped and woken first."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from buffer.config import ConsumerConfig
from tests.crash.collecting import NOTHING_LEFT, BatchObjects
from tests.crash.consuming import KeepingConsumer
from tests.crash.processes import Worker
from tests.crash.verdict import Verdict, judge
from tests.nets import HANGS_S

RUN_MAX_S = 0.12  # from the fork to the kill: before the first append, in the middle of some, after dozens
FREEZE_CHANCE = 0.15
FROZEN_MAX = 2  # one that stands still may hold the lock of the manifest, and then nobody gets on
FIGHTING = 2  # producers at a time: they fight for the manifest as well
REPORT_EVERY = 50
GC_INTERVAL_S = 0.05


class ProducerCycles:
    """Runs cycles of fork, produce, kill -9; a consumer reads on meanwhile, and its collector beside it."""

    def __init__(self, folder: Path, seed: int, tell: Callable[[str], None]) -> None:
        self._logs = folder / "logs"
        self._logs.mkdir(parents=True)
        self._chance = random.Random(f"{seed} producers")
        self._tell = tell
        self._objects = BatchObjects(folder / "queue", self._chance)
        self._consumer = KeepingConsumer(ConsumerConfig(store=str(folder / "queue"), gc_interval_s=GC_INTERVAL_S))
        options = {"store": str(folder / "queue"), "logs": str(self._logs)}
        self._nursery = Worker("tests.crash.nursery", options, folder / "nursery.stderr")
        self._running: list[int] = []
        self._frozen: deque[int] = deque()
        self._forked = 0
        self._next_report = REPORT_EVERY
        self.killed = self.froze = 0

    def run(self, cycles: int) -> Verdict:
        """Until that many producers were killed. Returns what the logs and the queue say together."""
        started_s = time.monotonic()
        self._objects.seed_orphans()
        try:
            while self.killed < cycles:
                while len(self._running) < FIGHTING:
                    self._running.append(self._fork())
                time.sleep(self._chance.uniform(0.0, RUN_MAX_S))
                self._torment()
                if self._forked % 5 == 0 and not self._frozen:  # one of those may hold the lock of the manifest
                    self._consumer.drain()
                self._report(cycles, time.monotonic() - started_s)
        finally:
            self._nursery.kill()
        late = self._drain() + self._await_collected()
        self._consumer.close()
        verdict = judge(self._logs.glob("*.log"), self._consumer.found)
        verdict.violations += late + self._objects.check(NOTHING_LEFT)
        if verdict.durable < cycles:
            verdict.violations.append(f"only {verdict.durable} entries durable: too few to mean anything")
        return verdict

    def _drain(self) -> list[str]:
        deadline_s = time.monotonic() + HANGS_S
        while not self._consumer.drain():
            if time.monotonic() > deadline_s:
                read, troubles = self._consumer.last, self._consumer.troubles
                return [f"not drained within {HANGS_S:g} s: at sequence {read}, {troubles} calls failed"]
        return []

    def _await_collected(self) -> list[str]:
        """All producers are dead, so the manifest stands still: the orphans that are old enough for that must go."""
        deadline_s = time.monotonic() + HANGS_S
        while (left := self._objects.check_quiet()) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return left

    def _fork(self) -> int:
        self._nursery.send(f"p{self._forked}")
        self._forked += 1
        pid: int = self._nursery.wait_for("pid")["pid"]
        return pid

    def _torment(self) -> None:
        """Stop one of them, or kill one and perhaps wake another."""
        chance = self._chance
        victim = self._running.pop(chance.randrange(len(self._running)))
        if len(self._frozen) < FROZEN_MAX and chance.random() < FREEZE_CHANCE:
            os.kill(victim, signal.SIGSTOP)
            self._frozen.append(victim)
            self.froze += 1
            return
        if self._frozen and chance.random() < 0.5:
            woken = self._frozen.popleft()
            os.kill(woken, signal.SIGCONT)
            self._running.append(woken)  # it goes on where it stood, among the others
        os.kill(victim, signal.SIGKILL)
        self.killed += 1

    def _report(self, cycles: int, took_s: float) -> None:
        if self.killed < self._next_report:
            return
        self._next_report += REPORT_EVERY
        found = sum(len(ids) for ids in self._consumer.found.values())
        self._tell(
            f"producers: {self.killed}/{cycles} killed in {took_s:.0f} s, {self.froze} stopped and woken, "
            f"{found:,} entries read"
        )
