"""Loaders on real Delta tables, killed again and again: at every step, at any moment, stopped and woken too late.

Each one is a process of its own with a JVM of its own, and both die. Starting Spark takes longer than all the
rest, so the next loader warms up while one is at work; `buffer-delta prepare` makes it take half as long.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from buffer.config import ProducerConfig
from buffer.inspect.status import queue_status
from buffer.produce.producer import Producer
from buffer.store import open_store
from buffer.store.files import LockTimeout, locked
from buffer.store.local import LOCK_FOLDER
from buffer_delta.spark.session import spark_session
from tests.crash.collecting import BatchObjects, LateClock
from tests.crash.delta_files import PROVENANCE, DeltaFiles
from tests.crash.loaded import DEAD, MAIN, SIDE, Loaded, batches, judge_all_loaded, judge_tables, positions
from tests.crash.processes import Worker
from tests.crash.verdict import Verdict
from tests.nets import HANGS_S

BACKLOG_MAX = 40  # records; more would only make the last run long
GAP_FIRST_GUESS_S = 2.0
BATCHES_PER_COMMIT = 3
GC_INTERVAL_S = (0.05, 0.5)  # a loader lives for seconds; it collects a few times in its life
LAST_WORDS = 1000  # characters
SECOND_OPINION_FROM_CYCLES = 5  # one more start of Spark, which a short run can do without
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto -Xlog:disable"
"""Code that lives for seconds: the optimising compiler would only take the cores away from it."""

WAYS = {
    "at a step": 0.35,
    "between steps": 0.25,
    "while collecting": 0.1,
    "the driver alone": 0.1,
    "stopped, then woken": 0.2,
}
MISSED = "done before their moment came"
"""Not one of the ways: counted apart, for a run that has many of them proves less than it says."""


class Run:
    """One loader at work: which steps it has reached, and how it ended."""

    def __init__(self, loader: Worker, gaps_s: dict[str, float], place: int | None = None) -> None:
        """`place`: which one, if the process runs several."""
        self.loader = loader
        self._place = place
        self.steps = ["start"]
        self.ended: dict[str, Any] = {}
        self._gaps_s = gaps_s
        self._since_s = time.monotonic()

    def look(self) -> None:
        for message in self.loader.heard():
            if message.get("loader") != self._place:
                continue
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
    """Runs cycles of produce, load, kill -9. After each one the tables must hold a gapless beginning of the queue."""

    def __init__(self, folder: Path, seed: int, tell: Callable[[str], None], *, writer: str = "auto") -> None:
        self._folder = folder
        self._writer = writer
        folder.mkdir(parents=True, exist_ok=True)
        self._chance = random.Random(f"{seed} loaders")
        self._tell = tell
        self._tables = {name: DeltaFiles(folder / name, ["id"]) for name in (MAIN, SIDE)}
        self._tables[DEAD] = DeltaFiles(folder / DEAD, ["bytes"])
        self._loaded = {name: Loaded.read(table) for name, table in self._tables.items()}
        self._objects = BatchObjects(folder / "queue", self._chance)
        self._standby: deque[Worker] = deque()
        self._zombies: list[Worker] = []
        self._started = 0
        self._starts_max = 0
        self._gaps_s: dict[str, float] = {}
        """How long it took last time to get from each step to the next one."""
        self.records = 0
        self.ways: Counter[str] = Counter()
        self.violations: list[str] = []

    @property
    def config(self) -> dict[str, Any]:
        return {
            "store": str(self._folder / "queue"),
            "table": str(self._folder / MAIN),
            "route_by": "kind",
            "routes": {SIDE: str(self._folder / SIDE)},
            "dead_letters": str(self._folder / DEAD),
            "format": {"type": "json", "schema": "id BIGINT, kind STRING"},
            "max_batches_per_commit": BATCHES_PER_COMMIT,
            "writer": self._writer,
        }

    @property
    def steps(self) -> list[str]:
        tables = (self._folder / name for name in self._tables)
        each = [f"{step} {table}" for table in tables for step in ("appended", "committed")]
        return ["bound", "claimed", "entered", "planned", "decoded", "staged", "split", *each, "acked"]

    def run(self, cycles: int) -> Verdict:
        """Each cycle ends with the death of one loader. Stops early when something is wrong."""
        started_s = time.monotonic()
        self._starts_max = cycles + 1
        try:
            for cycle in range(cycles):
                self._cycle()
                self._check()
                took_s = time.monotonic() - started_s
                self._tell(
                    f"loader cycle {cycle + 1}/{cycles}: {took_s:.0f} s, {self._rows()}/{self.records} rows in "
                    f"{self._commits()} commits, {self._objects.collected} orphans collected"
                )
                if self.violations:
                    break
            else:
                self._finish(second_opinion=cycles >= SECOND_OPINION_FROM_CYCLES)
        finally:
            for worker in (*self._standby, *self._zombies):
                worker.kill()
        objects = self._objects
        text = (
            f"{self.ways.total()} loaders died: {', '.join(f'{n} {way}' for way, n in self.ways.most_common())}; "
            f"{self._rows():,} rows of {self.records:,} records in {self._commits()} commits to {len(self._tables)} "
            f"tables; {objects.collected:,} orphans collected, {objects.interrupted} times only a part before a death"
        )
        return Verdict(durable=self.records, found=self._rows(), violations=self.violations, text=text)

    def _rows(self) -> int:
        return sum(len(table.rows) for table in self._loaded.values())

    def _commits(self) -> int:
        return sum(table.commits for table in self._tables.values())

    # One cycle

    def _cycle(self) -> None:
        self._objects.seed_orphans()
        behind = self.records - self._rows()
        self._produce(self._chance.randint(1, 4) if behind < BACKLOG_MAX else 1)
        loader = self._next()
        way = self._chance.choices(list(WAYS), list(WAYS.values()))[0]
        if way == "stopped, then woken" and self._zombies:
            way = "between steps"  # one at a time: the one that wakes must find a single successor
        step = self._chance.choice(self.steps) if way == "at a step" else None
        run = self._start(loader, **({"die_at": step} if step else {}))
        if step:
            self._follow(run)
        elif way == "while collecting":
            self._follow_to_collecting(run)
        else:
            self._follow_to_a_moment(run)
        self._wake_zombie()
        if not step:
            self.check_alive(run)
        if way == "the driver alone":
            loader.kill(group=False)  # its JVM may yet commit, beside the next loader
            self._zombies.append(loader)
        elif way == "stopped, then woken":
            self._freeze(loader, group=self._chance.random() < 0.5)
            self._zombies.append(loader)
        else:
            missed = bool(run.ended) and (step is not None or way == "while collecting")
            loader.kill()
            if step and not missed:
                self.check_died_at(run, step)
            way = MISSED if missed else way
        self.ways[way] += 1
        self._objects.note_collected()

    def _freeze(self, loader: Worker, group: bool) -> None:
        """Stop it anywhere but inside a lock of the local store: everybody else would only wait for it to wake."""
        while True:
            loader.freeze(group=group)
            if not any(map(_is_taken, (self._folder / "queue" / LOCK_FOLDER).iterdir())):
                return
            loader.thaw()
            time.sleep(0.01)

    def _produce(self, count: int) -> None:
        """No collector is at work: all loaders so far are dead or stopped. So the late clock does no harm."""
        config = ProducerConfig(store=self.config["store"], flush_interval_ms=60_000)
        clock = LateClock() if self._chance.random() < 0.6 else None
        with Producer(config, clock=clock) as producer:
            for entries in batches(count, self.records):
                producer.produce(entries, metadata=b"made by a test")
                producer.flush()
                self.records += len(entries)
        self._objects.note_batches()

    def _next(self) -> Worker:
        while not self._standby or (len(self._standby) < 2 and self._started < self._starts_max):
            self._standby.append(self._spawn())
        loader = self._standby.popleft()
        loader.wait_for("ready", HANGS_S)
        return loader

    def _spawn(self) -> Worker:
        self._started += 1
        log = self._folder / f"loader-{self._started}.stderr"
        return Worker("tests.spark.loader_process", {}, log, {"JAVA_TOOL_OPTIONS": JVM_OPTIONS})

    def _start(self, loader: Worker, **options: Any) -> Run:
        config = {**self.config, "gc_interval_s": self._chance.uniform(*GC_INTERVAL_S)}
        loader.send(json.dumps({"config": config, **options}))
        return Run(loader, self._gaps_s)

    def _follow(self, run: Run, until: str | None = None) -> None:
        """To a step, or to its end."""
        steps = -1
        while not run.follow(HANGS_S, until):
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

    def check_alive(self, run: Run) -> None:
        """Nobody but us may end it."""
        if not run.loader.is_alive:
            self.violations.append(f"a loader died by itself, {_end_of(run)}")

    def check_died_at(self, run: Run, step: str) -> None:
        """Call it when its JVM is dead too: only then has everything been heard that it said."""
        run.look()
        if run.steps[-1] != step or run.loader.process.returncode != -signal.SIGKILL:
            self.violations.append(f"a loader was to die at {step!r}, but died {_end_of(run)}")

    def _follow_to_collecting(self, run: Run) -> None:
        """To the moment when it has begun to delete. An end that comes first is in `run.ended`."""
        deadline_s = time.monotonic() + HANGS_S
        while not self._objects.is_being_collected() and not run.follow(0.002):
            if time.monotonic() > deadline_s:
                self.violations.append(f"a loader does not collect, after {run.steps[-1]!r}; see {run.loader.log}")
                return
        self._check_end(run)

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
                run = Run(zombie, {})
                self._follow_for(run, self._chance.uniform(0.0, rest_s))
                self.check_alive(run)
            self._zombies.pop().kill()

    # Checks

    def _check(self) -> None:
        """Each table holds what it says it does; whatever one of them still lacks is there to be loaded."""
        for table in self._tables.values():
            table.refresh()
            self.violations += table.violations
            table.violations.clear()
        self._loaded = {name: Loaded.read(table) for name, table in self._tables.items()}
        self.violations += self._judge(self._loaded)
        self.violations += self._objects.check(self._committed())

    def _judge(self, tables: Mapping[str, Loaded]) -> list[str]:
        return judge_tables(tables, self.records, range_max=BATCHES_PER_COMMIT)

    def _judge_end(self, tables: Mapping[str, Loaded]) -> list[str]:
        return judge_all_loaded(tables, self.records)

    def _committed(self) -> int:
        return self._loaded[MAIN].through

    def _finish(self, second_opinion: bool) -> None:
        """A last loader, left alone: afterwards all must be there, the queue be empty, and the orphans gone."""
        self._wake_zombie()
        self._objects.seed_orphans()
        self._produce(1)
        last = self._next()
        run = self._start(last)
        self._follow(run)
        self.check_alive(run)
        last.kill()
        self._check()
        self.violations += self._judge_end(self._loaded)
        waiting = queue_status(open_store(self.config["store"])).length
        if waiting:
            self.violations.append(f"{waiting} batches are left in the queue")
        self._objects.note_collected()
        self.violations += self._objects.check_quiet()
        due = self._objects.due()
        self._objects.collect_rest()
        self.violations += self._objects.check(self._committed(), due)
        if second_opinion:
            self._ask_spark()

    def _ask_spark(self) -> None:
        """From those who will read the tables."""
        spark = spark_session("crash cycles", memory="1g")
        try:
            there = [table.path for table in self._tables.values() if table.commits]
            frames = [spark.read.format("delta").load(str(path)) for path in there]
            found = [(row[0], row[1]) for frame in frames for row in frame.select(*PROVENANCE).collect()]
            if sorted(found) != list(positions(self.records)):
                self.violations.append(f"Spark finds other tables, with {len(found)} rows of {self.records} records")
        finally:
            spark.stop()


def _end_of(run: Run) -> str:
    code = run.loader.process.returncode
    return f"with exit code {code}, after {run.steps[-1]!r}: {run.loader.last_words(LAST_WORDS)}"
