"""Loaders on a real Delta table, killed again and again: at every step, at any moment, stopped and woken too late.

Each one is a process of its own with a JVM of its own, and both die. Starting Spark takes longer than all the
rest, so the next loader warms up while one is at work, and the JVMs share an archive of loaded classes.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from buffer.status import queue_status
from buffer.store import open_store
from buffer.store.files import LockTimeout, locked
from buffer.store.local import LOCK_FOLDER
from buffer_delta.session import spark_session
from tests.crash.delta_files import DeltaFiles
from tests.crash.processes import Worker
from tests.crash.verdict import Verdict
from tests.spark.queues import assert_exactly_once, numbered, produce

START_TIMEOUT_S = 180.0
SILENCE_MAX_S = 120.0  # between two steps; then it is stuck
BACKLOG_MAX = 40  # records; more would only make the last run long
GAP_FIRST_GUESS_S = 2.0
ENTRIES_PER_BATCH = 5
ARCHIVE_FROM_CYCLES = 10  # making the archive costs as much as two cycles
ARCHIVE = "classes.jsa"
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -Xlog:disable"
"""Code that lives for seconds: the optimising compiler would only take the cores away from it."""

WAYS = {"at a step": 0.35, "between steps": 0.35, "the driver alone": 0.1, "stopped, then woken": 0.2}


class Run:
    """One loader at work: which steps it has reached, and how it ended."""

    def __init__(self, loader: Worker, gaps_s: dict[str, float]) -> None:
        self.loader = loader
        self.steps = ["start"]
        self.ended: dict[str, Any] = {}
        self._gaps_s = gaps_s
        self._since_s = time.monotonic()

    def look(self) -> None:
        for message in self.loader.heard():
            if "at" in message:
                now_s = time.monotonic()
                self._gaps_s[self.steps[-1]] = now_s - self._since_s
                self._since_s = now_s
                self.steps.append(message["at"])
            elif "done" in message or "error" in message:
                self.ended = message

    def follow(self, timeout_s: float, until: str | None = None) -> bool:
        """Until it is at that step, has ended or is dead; False if that takes too long."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            self.look()
            if self.ended or not self.loader.is_alive or until in self.steps:
                return True
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.005)


def _is_taken(lock: Path) -> bool:
    try:
        with locked(lock, timeout_s=0.0):
            return False
    except LockTimeout:
        return True


class LoaderCycles:
    """Runs cycles of produce, load, kill -9. After each one the table must hold a gapless beginning of the queue."""

    def __init__(self, folder: Path, seed: int, tell: Callable[[str], None]) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._chance = random.Random(f"{seed} loaders")
        self._tell = tell
        self._table = DeltaFiles(folder / "table", ["id"])
        self._dead_letters = DeltaFiles(folder / "dead")
        self._standby: deque[Worker] = deque()
        self._zombies: list[Worker] = []
        self._started = 0
        self._gaps_s: dict[str, float] = {}
        """How long it took last time to get from each step to the next one."""
        self.records = 0
        self.ways: Counter[str] = Counter()
        self.violations: list[str] = []

    @property
    def config(self) -> dict[str, Any]:
        return {
            "store": str(self._folder / "queue"),
            "table": str(self._folder / "table"),
            "dead_letters": str(self._folder / "dead"),
            "format": {"type": "json", "schema": "id BIGINT"},
            "max_batches_per_commit": 3,
            "gc_enabled": False,
        }

    @property
    def steps(self) -> list[str]:
        tables = (self.config["table"], self.config["dead_letters"])
        each = [f"{step} {table}" for table in tables for step in ("appended", "committed")]
        return ["bound", "claimed", "entered", "planned", "decoded", "split", *each, "acked"]

    def run(self, cycles: int) -> Verdict:
        """Each cycle ends with the death of one loader. Stops early when something is wrong."""
        started_s = time.monotonic()
        try:
            if cycles >= ARCHIVE_FROM_CYCLES:
                self._archive_classes()
            for cycle in range(cycles):
                self._cycle()
                self._check()
                took_s = time.monotonic() - started_s
                self._tell(
                    f"loader cycle {cycle + 1}/{cycles}: {took_s:.0f} s, {self._table.rows().num_rows}"
                    f"/{self.records} rows in {self._table.commits} commits"
                )
                if self.violations:
                    break
            else:
                self._finish()
        finally:
            for worker in (*self._standby, *self._zombies):
                worker.kill()
        rows, commits = self._table.rows().num_rows, self._table.commits
        text = (
            f"{self.ways.total()} loaders died: {', '.join(f'{n} {way}' for way, n in self.ways.most_common())}; "
            f"{rows:,} rows of {self.records:,} records in {commits} commits"
        )
        return Verdict(durable=self.records, found=rows, violations=self.violations, text=text)

    # One cycle

    def _cycle(self) -> None:
        behind = self.records - self._table.rows().num_rows
        self._produce(self._chance.randint(1, 4) if behind < BACKLOG_MAX else 1)
        loader = self._next()
        way = self._chance.choices(list(WAYS), list(WAYS.values()))[0]
        if way == "stopped, then woken" and self._zombies:
            way = "between steps"  # one at a time: the one that wakes must find a single successor
        self.ways[way] += 1
        if way == "at a step":
            self._follow(self._start(loader, die_at=self._chance.choice(self.steps)))
        else:
            self._follow_to_a_moment(self._start(loader))
        self._wake_zombie()
        if way == "the driver alone":
            loader.kill(group=False)  # its JVM may yet commit, beside the next loader
            self._zombies.append(loader)
        elif way == "stopped, then woken":
            self._freeze(loader, group=self._chance.random() < 0.5)
            self._zombies.append(loader)
        else:
            loader.kill()

    def _freeze(self, loader: Worker, group: bool) -> None:
        """Stop it anywhere but inside a lock of the local store: everybody else would only wait for it to wake."""
        while True:
            loader.freeze(group=group)
            if not any(map(_is_taken, (self._folder / "queue" / LOCK_FOLDER).iterdir())):
                return
            loader.thaw()
            time.sleep(0.01)

    def _produce(self, batches: int) -> None:
        entries = numbered(batches, entries=ENTRIES_PER_BATCH, start=self.records)
        self.records += produce(self.config["store"], entries)

    def _next(self) -> Worker:
        while len(self._standby) < 2:
            archive = self._folder / ARCHIVE
            self._standby.append(self._spawn(f"-XX:SharedArchiveFile={archive}" if archive.exists() else ""))
        loader = self._standby.popleft()
        loader.wait_for("ready", START_TIMEOUT_S)
        return loader

    def _spawn(self, jvm_options: str = "") -> Worker:
        self._started += 1
        log = self._folder / f"loader-{self._started}.stderr"
        options = f"{JVM_OPTIONS} {jvm_options}".strip()
        return Worker("tests.spark.loader_process", {}, log, {"JAVA_TOOL_OPTIONS": options})

    def _archive_classes(self) -> None:
        """Let one loader end in peace; its JVM writes down what it had loaded. Makes later starts 3 times cheaper."""
        self._tell("making an archive of classes …")
        self._produce(1)
        loader = self._spawn(f"-XX:ArchiveClassesAtExit={self._folder / ARCHIVE}")
        loader.wait_for("ready", START_TIMEOUT_S)
        jvms = psutil.Process(loader.pid).children(recursive=True)
        self._follow(self._start(loader))
        loader.end()
        psutil.wait_procs(jvms, timeout=START_TIMEOUT_S)
        loader.kill()

    def _start(self, loader: Worker, **options: Any) -> Run:
        loader.send(json.dumps({"config": self.config, **options}))
        return Run(loader, self._gaps_s)

    def _follow(self, run: Run, until: str | None = None) -> None:
        """To a step, or to its end."""
        steps = -1
        while not run.follow(SILENCE_MAX_S, until):
            if len(run.steps) == steps:
                self.violations.append(f"a loader is stuck after {run.steps[-1]!r}; see {run.loader.log}")
                return
            steps = len(run.steps)
        self._check_end(run)

    def _follow_for(self, run: Run, seconds: float) -> None:
        run.follow(seconds)
        self._check_end(run)

    def _check_end(self, run: Run) -> None:
        """Being fenced is right if another one was there."""
        if "error" in run.ended and not (run.ended["error"] == "Fenced" and self._zombies):
            self.violations.append(f"a loader failed: {run.ended}; see {run.loader.log}")

    def _follow_to_a_moment(self, run: Run) -> None:
        """To somewhere between two steps, each pair as likely as the others, however long they take."""
        step = self._chance.choice(["start", *self.steps])
        self._follow(run, until=step)
        gap_s = self._gaps_s.get(step, GAP_FIRST_GUESS_S)
        self._follow_for(run, self._chance.uniform(0.0, gap_s * 1.2))

    def _wake_zombie(self) -> None:
        """The one that was stopped earlier wakes up beside a successor, runs on for a while, and dies too."""
        while self._zombies:
            zombie = self._zombies[-1]
            if zombie.frozen:
                zombie.thaw()
                rest_s = sum(self._gaps_s.values()) / 2
                self._follow_for(Run(zombie, {}), self._chance.uniform(0.0, rest_s))
            self._zombies.pop().kill()

    # Checks

    def _check(self) -> None:
        """What is in the table is the beginning of what was produced, in order, each record once."""
        for table in (self._table, self._dead_letters):
            table.refresh()
            self.violations += table.violations
            table.violations.clear()
        ids = self._table.rows()["id"].to_pylist()
        if ids != list(range(len(ids))):
            wrong = [(expected, got) for expected, got in enumerate(ids) if expected != got][:5]
            self.violations.append(f"rows are missing, doubled or out of order: (expected, found) {wrong}")
        if len(ids) > self.records:
            self.violations.append(f"{len(ids)} rows of {self.records} records")
        if self._dead_letters.rows().num_rows:
            self.violations.append("there are dead letters, though every record was good")

    def _finish(self) -> None:
        """A last loader, left alone: afterwards all must be there, and the queue be empty."""
        self._wake_zombie()
        last = self._next()
        self._follow(self._start(last))
        last.kill()
        self._check()
        loaded = self._table.rows().num_rows
        if loaded != self.records:
            self.violations.append(f"{self.records - loaded} of {self.records} records were lost")
        if self._table.repeated_positions():
            self.violations.append("positions (_sequence, _index) are not unique")
        waiting = queue_status(open_store(self.config["store"])).length
        if waiting:
            self.violations.append(f"{waiting} batches are left in the queue")
        self._ask_spark()

    def _ask_spark(self) -> None:
        """A second opinion, from those who will read the table."""
        spark = spark_session("crash cycles", memory="1g")
        try:
            assert_exactly_once(spark, self.config["table"], self.records)
        except AssertionError as error:
            self.violations.append(f"Spark finds another table: {str(error)[:500]}")
        finally:
            spark.stop()
