"""The processes of `buffer-delta demo`: producers, a loader that is killed in its commit, one that takes over.

Each is a `demo_worker` that says in lines of JSON what it does. All of them end with the run.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from buffer.cli.interrupts import check_interrupt
from buffer.clock import SystemClock
from buffer.errors import ObjectNotFound, StoreUnusable
from buffer.inspect.status import read_ledger, read_manifest
from buffer.ledger.plan import Plan
from buffer.store.open import open_store
from buffer_delta.cli.demo_show import Story
from buffer_delta.cli.demo_worker import SCHEMA
from buffer_delta.errors import SparkUnusable

MANIFEST = "ingest/manifest"
CALLS = 100
BATCHES_PER_COMMIT = 60
KILL_AT_COMMIT = 2
SILENCE_MAX_S = 300.0  # two starts of Spark on a very busy machine take a third of that; then something is wrong

KILL_STEPS = {
    "planned": "it has written its plan, and nothing of it is in the table yet",
    "appended": "the rows are in the table, and the queue does not know it yet",
}


class Worker:
    """A process of the demo in a session of its own, so that a kill takes its JVM along."""

    def __init__(self, role: str, options: dict[str, Any], log: Path) -> None:
        self.log = log
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "buffer_delta.cli.demo_worker", role, json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._pump = threading.Thread(target=self._read, daemon=True)
        self._pump.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def messages(self, *, tick_s: float) -> Iterator[dict[str, Any] | None]:
        """What it says, and None each time it has said nothing for a while. Raises SparkUnusable when it ends."""
        while True:
            try:
                line = self._lines.get(timeout=tick_s)
            except queue.Empty:
                yield None
                continue
            if line is None:
                raise SparkUnusable(f"a process of the demo ended early: {self.last_words()}", found=str(self.log))
            yield json.loads(line)

    def last_words(self) -> str:
        self.process.wait()
        said = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return f"{said[-1] if said else f'exit code {self.process.returncode}'} (all of it is in {self.log})"

    def tell_to_go_on(self) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: `messages` says so
            self.process.stdin.write("\n")
            self.process.stdin.flush()

    def kill(self) -> None:
        """kill -9, the process and all that it started."""
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._pump.join()
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                with suppress(BrokenPipeError):
                    stream.close()


@dataclass
class Speed:
    """How fast it went: of full commits, if there were any. A small one says how fast the producers write, since it is
    as large as what they have written since the one before."""

    start_up_s: float = 0.0
    commits: list[dict[str, Any]] = field(default_factory=list)

    def add(self, progress: dict[str, Any]) -> None:
        self.commits.append(progress)

    def to_dict(self) -> dict[str, Any]:
        full = [each for each in self.commits if each["last"] - each["first"] + 1 == BATCHES_PER_COMMIT]
        rows, size, seconds = (sum(each[key] for each in full or self.commits) for key in ("rows", "bytes", "seconds"))
        return {
            "start_up_seconds": round(self.start_up_s, 1),
            "rows_per_second": round(rows / seconds) if seconds else 0,
            "mb_per_second": round(size / seconds / 1e6, 1) if seconds else 0.0,
        }


@dataclass
class Run:
    """One run of the demo."""

    folder: Path
    story: Story
    stack: ExitStack
    kill_at: str
    logs: list[str] = field(default_factory=list)
    """Where each producer notes what is durable."""
    producers: list[Worker] = field(default_factory=list)
    interrupted: Plan | None = None
    """The range that the first loader was killed in."""
    speed: Speed = field(default_factory=Speed)

    @property
    def store(self) -> str:
        return str(self.folder / "queue")

    @property
    def table(self) -> str:
        return str(self.folder / "events")

    def play(self, names: Sequence[str], events: int, seconds: float) -> dict[str, Any]:
        tell = self.story.tell
        self.logs += [str(self.folder / f"{name}.durable") for name in names]
        tell(f"{len(names)} producers begin to write {events:,} events each into {os.path.relpath(self.store)}")
        self.producers += [self._producer(name, events, seconds) for name in names]
        tell("two loaders start Spark and warm up; the second one will only stand by")
        first, second = self._loader(1, stop_at=self.kill_at), self._loader(2, stands_by=True)
        self._until_killed(first)
        writing = any(producer.process.poll() is None for producer in self.producers)
        tell("the second loader takes over" + ("; the producers have gone on writing all the while" if writing else ""))
        second.tell_to_go_on()
        result = self._until_done(second)
        result["seconds"] = round(self.story.seconds, 1)
        return result | self.speed.to_dict()

    def _producer(self, name: str, events: int, seconds: float) -> Worker:
        log = str(self.folder / f"{name}.durable")
        options = {"store": self.store, "name": name, "events": events, "log": log}
        options |= {"calls": CALLS, "seconds": seconds}
        return self._worker("produce", options, name)

    def _loader(self, number: int, stop_at: str | None = None, *, stands_by: bool = False) -> Worker:
        config = {
            "store": self.store,
            "table": self.table,
            "format": {"type": "json", "schema": SCHEMA},
            "max_batches_per_commit": BATCHES_PER_COMMIT,
            "trigger_interval_s": 0.2,
            "commit_interval_s": 1.0,
            "gc_enabled": False,  # a minute is too short for it, and the batches may be looked at afterwards
        }
        options = {"config": config, "logs": self.logs, "stop_at": stop_at, "stop_count": KILL_AT_COMMIT}
        options["stands_by"] = stands_by
        return self._worker("load", options, f"loader-{number}")

    def _worker(self, role: str, options: dict[str, Any], name: str) -> Worker:
        worker = Worker(role, options, self.folder / f"{name}.log")
        self.stack.callback(worker.kill)
        return worker

    def _until_killed(self, loader: Worker) -> None:
        for message in self._messages(loader):
            if "ready" in message:
                self.speed.start_up_s = self.story.seconds
                self.story.tell("the first loader is warm: that was the start-up, and now it loads")
            elif "at" in message:
                loader.kill()
                ledger = read_ledger(open_store(self.store), MANIFEST)
                assert ledger is not None
                assert ledger.plan is not None, "a plan is written before anything is committed"
                self.interrupted = ledger.plan
                self.story.tell(
                    f"kill -9, in the middle of the commit of batches {ledger.plan.first}..{ledger.plan.last}: "
                    + KILL_STEPS[self.kill_at],
                    "bold red",
                )
                return

    def _until_done(self, loader: Worker) -> dict[str, Any]:
        stopping = False
        for message in self._messages(loader, ticks=True):
            if "result" in message:
                loader.process.wait()
                result: dict[str, Any] = message["result"]
                return result
            if not stopping and all(p.process.poll() == 0 for p in self.producers) and self._is_empty():
                self.story.tell("all is loaded: the loader is told to stop, and the table is counted")
                loader.process.send_signal(signal.SIGTERM)
                stopping = True
        raise AssertionError("unreachable: messages end with an error")

    def _messages(self, worker: Worker, *, ticks: bool = False) -> Iterator[dict[str, Any]]:
        clock, heard_s = SystemClock(), SystemClock().monotonic_s()
        for message in worker.messages(tick_s=0.3):
            check_interrupt()
            self._check_producers()
            if message is None:
                if clock.monotonic_s() - heard_s > SILENCE_MAX_S:
                    raise SparkUnusable(
                        f"the loader has said nothing for {SILENCE_MAX_S:g} s; its log is {worker.log}",
                        found=str(worker.log),
                    )
                if ticks:
                    yield {}
                continue
            heard_s = clock.monotonic_s()
            if "progress" in message:
                self.speed.add(message["progress"])
                self._tell_what_became_of_the_interrupted(message["progress"]["first"])
                self.story.tell(message["text"])
            yield message

    def _tell_what_became_of_the_interrupted(self, first: int) -> None:
        plan, self.interrupted = self.interrupted, None
        if plan is None:
            return
        if first > plan.last:
            what = "were in the table: the new loader saw that and does not load them again"
        else:
            what = "were planned by the killed loader: the new one loads exactly that range"
        self.story.tell(f"batches {plan.first}..{plan.last} {what}", "bold")

    def _is_empty(self) -> bool:
        try:
            return len(read_manifest(open_store(self.store), MANIFEST)) == 0
        except ObjectNotFound:
            return False

    def _check_producers(self) -> None:
        for producer in self.producers:
            if producer.process.poll():
                raise StoreUnusable(f"a producer failed: {producer.last_words()}", location=self.store)
