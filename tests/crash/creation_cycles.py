"""Loaders killed while they create their tables: one, two or three of them, at any moment, not only between steps.

Each loader has a queue and tables of its own. It begins to load it and dies with its JVM; another one, which lives
through all cycles, must then bring every record into its table, once. What the dead one had left of each table is
counted: a run in which no table was half created proves less than it says.

Starting Spark costs more than all the rest, so several loaders die with one JVM, each wherever it is at that moment.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from buffer.config import ProducerConfig
from buffer.inspect.status import queue_status
from buffer.produce.producer import Producer
from buffer.store import open_store
from tests.crash.delta_files import DeltaFiles
from tests.crash.loaded import DEAD, MAIN, SIDE, Loaded, entry, home
from tests.crash.loader_cycles import JVM_OPTIONS, Run
from tests.crash.processes import Worker
from tests.crash.verdict import Verdict
from tests.nets import HANGS_S

RECORDS = 40
BATCH = 10
STANDBY = 1  # JVMs that warm up while another one is at work
GAP_FIRST_GUESS_S = 3.0
SIGHTS = 0.5
"""So many of the deaths come within a moment of a table's first sign on the disk, the others anywhere in the range."""
SIGHT_DELAY_S = (0.0, 0.0, 0.001, 0.003, 0.01, 0.05)

TABLES = ((MAIN,), (MAIN, SIDE), (MAIN, DEAD), (MAIN, SIDE, DEAD))
"""What a loader creates in its first range; of those that die together each has its own."""


class CreationCycles:
    """Runs cycles of produce, begin to load, kill -9, load the rest, count."""

    def __init__(self, folder: Path, seed: int, tell: Callable[[str], None], *, writer: str = "auto") -> None:
        self._folder = folder
        self._writer = writer
        folder.mkdir(parents=True, exist_ok=True)
        self._chance = random.Random(f"{seed} creation")
        self._tell = tell
        self._standby: deque[Worker] = deque()
        self._started = 0
        self._gaps_s: dict[str, float] = {}
        self.left: Counter[str] = Counter()
        """How many tables were found in each state after a death."""
        self.violations: list[str] = []
        self._records = 0
        self._rows = 0

    def run(self, cycles: int) -> Verdict:
        started_s = time.monotonic()
        finisher = self._spawn()
        try:
            finisher.wait_for("ready", HANGS_S)
            for first in range(0, cycles, len(TABLES)):
                numbers = range(first, min(first + len(TABLES), cycles))
                self._cycle(numbers, finisher, is_last=numbers.stop == cycles)
                took_s = time.monotonic() - started_s
                self._tell(f"creation cycle {numbers.stop}/{cycles}: {took_s:.0f} s, {self._states()}")
                if self.violations:
                    break
        finally:
            for worker in (finisher, *self._standby):
                worker.kill()
        text = f"{cycles} loaders killed in their first range; tables they left: {self._states()}"
        return Verdict(durable=self._records, found=self._rows, violations=self.violations, text=text)

    def _states(self) -> str:
        return ", ".join(f"{n} {state}" for state, n in self.left.most_common())

    def _cycle(self, numbers: range, finisher: Worker, *, is_last: bool) -> None:
        """These loaders at once, and one death."""
        litter = [_Young(self._folder, number, self._writer) for number in numbers]
        wanted = [self._produce(young.config["store"], young.tables) for young in litter]
        victim = self._next(more=not is_last)
        followed = self._chance.randrange(len(litter))
        run = Run(victim, self._gaps_s, followed)
        victim.send(json.dumps({"loaders": [{"config": young.config} for young in litter]}))
        if self._chance.random() < SIGHTS:
            logs = [young.folder / name / "_delta_log" for young in litter for name in young.tables]
            self._follow_to_a_sight(run, logs, self._chance.randint(1, len(logs)))
        else:
            self._follow_to_a_moment(run)
        victim.kill()
        for young in litter:
            for name in young.tables:
                self.left[_state(young.folder / name)] += 1
        for young, records in zip(litter, wanted, strict=True):
            self._finish(Run(finisher, {}), young.config, young.number)
            self._judge(young.folder, young.tables, records, young.number)

    def _produce(self, store: str, tables: tuple[str, ...]) -> list[int]:
        numbers = [n for n in range(RECORDS * 3) if home(n) in tables][:RECORDS]
        with Producer(ProducerConfig(store=store, flush_interval_ms=60_000)) as producer:
            for start in range(0, len(numbers), BATCH):
                producer.produce([entry(n) for n in numbers[start : start + BATCH]])
                producer.flush()
        self._records += len(numbers)
        return numbers

    def _next(self, *, more: bool) -> Worker:
        while not self._standby or (more and len(self._standby) <= STANDBY):
            self._standby.append(self._spawn())
        victim = self._standby.popleft()
        victim.wait_for("ready", HANGS_S)
        return victim

    def _spawn(self) -> Worker:
        self._started += 1
        log = self._folder / f"loader-{self._started}.stderr"
        return Worker("tests.spark.loader_process", {}, log, {"JAVA_TOOL_OPTIONS": JVM_OPTIONS})

    def _follow_to_a_sight(self, run: Run, logs: list[Path], count: int) -> None:
        """Until so many of the tables have shown, or the followed loader is done."""
        deadline_s = time.monotonic() + HANGS_S
        while sum(log.exists() for log in logs) < count and not run.ended:
            if time.monotonic() > deadline_s:
                self.violations.append(f"no table within {HANGS_S:g} s; see {run.loader.log}")
                return
            run.look()
        time.sleep(self._chance.choice(SIGHT_DELAY_S))

    def _follow_to_a_moment(self, run: Run) -> None:
        step = self._chance.choice(["entered", "planned", "decoded", "staged"])
        if not run.follow(HANGS_S, until=step):
            self.violations.append(f"a loader is stuck after {run.steps[-1]!r}; see {run.loader.log}")
        elif "error" in run.ended:
            self.violations.append(f"a loader failed: {run.ended}; see {run.loader.log}")
        run.follow(self._chance.uniform(0.0, self._gaps_s.get(step, GAP_FIRST_GUESS_S) * 1.2))

    def _finish(self, run: Run, config: dict[str, Any], number: int) -> None:
        run.loader.send(json.dumps({"config": config}))
        while not run.ended:
            steps = len(run.steps)
            if not run.follow(HANGS_S) and len(run.steps) == steps:
                self.violations.append(f"cycle {number}: stuck after {run.steps[-1]!r}; see {run.loader.log}")
                return
            if not run.loader.is_alive:
                self.violations.append(f"cycle {number}: the loader died by itself; see {run.loader.log}")
                return
        if "error" in run.ended:
            self.violations.append(f"cycle {number}: {run.ended}; see {run.loader.log}")

    def _judge(self, folder: Path, tables: tuple[str, ...], wanted: list[int], number: int) -> None:
        verdict = Verdict()
        for name in tables:
            files = DeltaFiles(folder / name, ["bytes" if name == DEAD else "id"])
            if (folder / name).exists():
                files.refresh()
            verdict.violations += files.violations
            found = Counter(content for _, content in Loaded.read(files).rows) if files.commits else Counter()
            expected = [entry(n) if name == DEAD else n for n in wanted if home(n) == name]
            lost = [item for item in expected if not found[item]]
            verdict.add(f"cycle {number}, {name}: lost", lost)
            verdict.add(f"cycle {number}, {name}: doubled", [item for item in found if found[item] > 1])
            verdict.add(f"cycle {number}, {name}: strangers", [item for item in found if item not in set(expected)])
            self._rows += found.total()
        waiting = queue_status(open_store(str(folder / "queue"))).length
        if waiting:
            verdict.violations.append(f"cycle {number}: {waiting} batches are left in the queue")
        self.violations += verdict.violations


class _Young:
    """A loader that has its first range before it."""

    def __init__(self, folder: Path, number: int, writer: str) -> None:
        self.number = number
        self.folder = folder / f"cycle-{number}"
        self.tables = TABLES[number % len(TABLES)]
        self.config: dict[str, Any] = {
            "store": str(self.folder / "queue"),
            "table": str(self.folder / MAIN),
            "format": {"type": "json", "schema": "id BIGINT, kind STRING"},
            "writer": writer,
        }
        if SIDE in self.tables:
            self.config |= {"route_by": "kind", "routes": {SIDE: str(self.folder / SIDE)}}
        if DEAD in self.tables:
            self.config["dead_letters"] = str(self.folder / DEAD)


def _state(table: Path) -> str:
    log = table / "_delta_log"
    if not table.exists():
        return "not begun"
    if not log.exists():
        return "without a log folder"
    commits = len(list(log.glob("*.json")))
    if commits == 0:
        return "half created"
    return "created and empty" if commits == 1 else "loaded"
