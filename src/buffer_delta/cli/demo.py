"""`buffer-delta demo`: the whole story on one machine, with a kill -9 in the middle of it.

Several producer processes write events while a loader loads them. The loader is killed right after a step of its
commit that matters, another one, which stood by, takes over, and in the end every event that a producer was told
durable must be in the table exactly once. Both loaders start Spark and warm up first, so that what is shown of their
speed is the speed, and the start is shown as what it is.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from buffer.cli.interrupts import check_interrupt
from buffer.cli.printing import PIPED_WIDTH, cell, echo, is_terminal, print_json, printable
from buffer.cli.shell import DONE, FAILED, Seconds, json_option, session_options
from buffer.clock import SystemClock
from buffer.errors import InvalidInput, ObjectNotFound, StoreUnusable
from buffer.inspect.status import read_ledger, read_manifest
from buffer.ledger.plan import Plan
from buffer.store.open import open_store
from buffer_delta.cli.demo_worker import SCHEMA
from buffer_delta.cli.serve import serve_queue, wait_for_ctrl_c
from buffer_delta.cli.spark import explaining_spark
from buffer_delta.delta.txn import Txn
from buffer_delta.errors import SparkUnusable
from buffer_delta.serve.server import DEFAULT_ADDRESS

MANIFEST = "ingest/manifest"
MARKER = ".buffer-delta-demo"
"""In every folder that the demo made: only such a folder is ever deleted."""

CALLS = 100
BATCHES_PER_COMMIT = 60
KILL_AT_COMMIT = 2
SILENCE_MAX_S = 300.0  # two starts of Spark on a very busy machine take a third of that; then something is wrong

KILL_STEPS = {
    "planned": "it has written its plan, and nothing of it is in the table yet",
    "appended": "the rows are in the table, and the queue does not know it yet",
}


@click.command(short_help="Produce, load, kill -9 in a commit, go on, count.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), default="demo-data", show_default=True)
@click.option("--producers", type=click.IntRange(1, 16), default=3, show_default=True, help="Producer processes.")
@click.option("--events", type=click.IntRange(CALLS), default=300_000, show_default=True, help="Of each producer.")
@click.option("--seconds", type=Seconds(), default=25.0, show_default=True, help="How long they write.")
@click.option("--kill-at", type=click.Choice(list(KILL_STEPS)), default="appended", show_default=True)
@click.option(
    "--serve", metavar="HOST:PORT", help="Serve the queue's status page while it runs, and then until Ctrl-C."
)
@json_option
@session_options
def demo(
    folder: Path, producers: int, events: int, seconds: float, kill_at: str, serve: str | None, as_json: bool
) -> int:
    """Produce, load, kill the loader with -9 in the middle of a commit, start it again, count.

    Everything happens on local files below --folder, which is made anew by every run and left there for you to
    look at. It ends with 0 only if every event is in the table exactly once.

    \b
    Examples:
      buffer-delta demo
      buffer-delta demo --events 1000000 --kill-at planned
      buffer-delta demo --serve 127.0.0.1:9464       with the status page, which stays up
    """
    with explaining_spark():
        from buffer_delta.spark.session import check_java

        check_java()  # now, not after the producers have begun
    story = Story(quiet=as_json)
    prepare_folder(folder)
    with ExitStack() as stack:
        server = serve_queue(serve, str(folder.resolve() / "queue"), stack) if serve is not None else None
        if server is not None:
            story.tell(f"watch it at {server.url}")
        run = Run(folder.resolve(), story, stack, kill_at)
        result = run.play([f"producer-{number + 1}" for number in range(producers)], events, seconds)
        if as_json:
            print_json(result, default=str)
        else:
            show(story, result, folder)
        if server is not None:
            echo(f"The status page stays at {server.url} until Ctrl-C", err=as_json)
            wait_for_ctrl_c()
        elif not as_json:
            story.console.print(Text(f"Its status page: buffer-delta serve --store {printable(str(folder))}/queue"))
            story.console.print(Text(f"                 then open http://{DEFAULT_ADDRESS}/"))
    return DONE if is_exact(result) else FAILED


def is_exact(result: dict[str, Any]) -> bool:
    wrong = ("duplicates", "missing", "unexpected", "repeated_positions")
    return result["produced"] > 0 and not any(result[key] for key in wrong)


def prepare_folder(folder: Path) -> None:
    """An empty folder with our marker. Raises InvalidInput rather than delete one that is not ours."""
    try:
        if folder.exists() and any(folder.iterdir()):
            if not (folder / MARKER).exists():
                raise InvalidInput(
                    f"{str(folder)!r} is not empty and was not made by the demo, so it will not be deleted; move "
                    "it away, or choose another one with --folder"
                )
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARKER).write_text("Made by `buffer-delta demo`, which deletes this folder when it runs again.\n")
    except OSError as error:
        raise StoreUnusable(
            f"cannot write to the folder {str(folder)!r}: {error.strerror}; choose another one with --folder",
            location=str(folder),
        ) from error


# Telling


class Story:
    """What happens, as it happens, with the seconds since the start. Colours on terminals only."""

    def __init__(self, *, quiet: bool = False) -> None:
        width = None if is_terminal(sys.stdout) else PIPED_WIDTH
        self.console = Console(highlight=False, quiet=quiet, width=width, soft_wrap=True)
        self._clock = SystemClock()
        self._started_s = self._clock.monotonic_s()

    @property
    def seconds(self) -> float:
        return self._clock.monotonic_s() - self._started_s

    def tell(self, text: str, style: str = "") -> None:
        self.console.print(Text(f"{self.seconds:5.1f} s  {printable(text)}", style))


# Running


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


# The end


def show(story: Story, result: dict[str, Any], folder: Path) -> None:
    console = story.console
    console.print()
    console.print(_rows_table("The last rows", result["rows"]))
    console.print()
    console.print(_history_table(result["history"]))
    console.print()
    facts = Table(show_header=False, box=None, pad_edge=False)
    facts.add_column(style="bold")
    facts.add_column(justify="right")
    for name in ("produced", "loaded", "duplicates", "missing", "batches", "commits"):
        facts.add_row(name, f"{result[name]:,}")
    facts.add_row("seconds", f"{result['seconds']:,.1f}")
    console.print(facts)
    console.print()
    speed = f"{result['rows_per_second']:,} rows/s, {result['mb_per_second']:,.1f} MB/s"
    console.print(Text(f"Start-up {result['start_up_seconds']:,.1f} s; then the full commits ran at {speed}."))
    console.print()
    if is_exact(result):
        console.print("Every event is in the table exactly once.", style="bold green")
    else:
        console.print(Text(printable(f"NOT exactly once: {result}"), "bold red"))
    console.print(Text(printable(f"Look around: buffer status --store {folder}/queue")))


def _rows_table(title: str, rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in rows[0] if rows else ():
        table.add_column(column)
    for row in rows:
        table.add_row(*map(cell, row.values()))
    return table


def _history_table(history: Sequence[dict[str, Any]]) -> Table:
    table = Table(
        title="The table's history (DESCRIBE HISTORY): each commit says what it loaded, the epoch says who",
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    for column in ("version", "timestamp", "operation", "rows", "userMetadata"):
        table.add_column(column, justify="right" if column == "rows" else "left")
    for commit in history:
        txn = Txn.from_note(commit["userMetadata"])
        shown = f"first {txn.first}, last {txn.last}, epoch {txn.epoch}" if txn else ""
        rows = f"{int(commit['rows']):,}" if commit["rows"] is not None else ""
        table.add_row(*map(cell, (commit["version"], commit["timestamp"], commit["operation"], rows, shown)))
    return table
