"""A served loader for an hour: `python -m tests.soak.serving --minutes 60`.

One producer writes steadily, one loader loads and serves. Somebody scrapes and opens the page all the time. In two
minutes of three hostile clients do what they can (`hostile`): a thousand connections that say nothing, endless
requests, answers that nobody takes; in the third nobody does, to compare. Ends with 1 if memory, heap, sockets, threads
or workers of the loader grew, a probe went unanswered or was told of ill health, a commit took longer because of the
hostile clients, the loader fell behind, a socket stayed open after its client, or not every entry is in the table.
With `--dashboard FILE` a Prometheus scrapes it, and the dashboard's panels are drawn from that.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil

from buffer.config import ProducerConfig
from buffer.produce.producer import Producer
from tests.crash.processes import Worker
from tests.dashboard import draw
from tests.prometheus import running_prometheus
from tests.soak.hostile import KINDS, Hostile
from tests.soak.watch import HEAP_UNIT, JUDGED_FROM_S, MIB, Watch

START_TIMEOUT_S = 300.0
DRAIN_TIMEOUT_S = 300.0
CLOSE_TIMEOUT_S = 60.0
SAMPLE_EVERY_S = 3.0
REPORT_EVERY_S = 120.0
LAG_MAX_S = 120.0
ANSWER_P99_MAX_S = 5.0
HOSTILE_S, CALM_S = 120.0, 60.0
DISTURBED_MAX = 1.5  # a typical commit among hostile clients, against one in calm minutes
COMPARED_FROM = 50  # commits of each kind
HEALTHY = ("", "api/status", "api/history", "metrics", "healthz", "readyz", "livez", "page.js")
HEAP = "loader: heap in use"


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _rows(table: Path) -> int:
    """By the table's own log: what each commit added and none took away."""
    held: dict[str, int] = {}
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for action in map(json.loads, commit.read_text().splitlines()):
            if "add" in action:
                held[action["add"]["path"]] = json.loads(action["add"]["stats"])["numRecords"]
            elif "remove" in action:
                held.pop(action["remove"]["path"], None)
    return sum(held.values())


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Serving:
    def __init__(
        self, folder: Path, seed: int, *, calm: bool, settings: dict[str, Any], dashboard: Path | None = None
    ) -> None:
        self.folder = folder
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        self.chance = random.Random(seed)
        self.calm = calm
        self.settings = settings
        self.dashboard = dashboard
        self.hostile = Hostile(self.port, self.chance)
        self.stop = threading.Event()
        self.produced = 0
        self.answers_s: list[float] = []
        self.commits_s: dict[bool, list[float]] = {True: [], False: []}
        """Seconds of each, by whether hostile clients were about."""
        self.lag_max_s = 0.0
        self.violations: list[str] = []
        self.began_s = time.monotonic()
        self.watch = Watch(self.seconds)

    def seconds(self) -> float:
        return time.monotonic() - self.began_s

    @property
    def under_attack(self) -> bool:
        return not self.calm and self.seconds() % (HOSTILE_S + CALM_S) < HOSTILE_S

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get("api/status")[1])
        return found

    def load(self) -> Worker:
        config = {
            "store": str(self.folder / "queue"),
            "table": str(self.folder / "table"),
            "format": "text",
            "serve": f"127.0.0.1:{self.port}",
            "serve_linger_s": 0,
            **self.settings,
        }
        return Worker("tests.soak.loading", {"config": config}, self.folder / "loader.log")

    # At the same time

    def produce(self) -> None:
        with Producer(ProducerConfig(store=str(self.folder / "queue"))) as producer:
            while not self.stop.wait(0.2):
                count = self.chance.randrange(1, 50)
                producer.produce([b"x" * self.chance.randrange(10, 200) for _ in range(count)])
                self.produced += count

    def visit(self) -> None:
        """Whoever has a right to: each answer must come, and be the right one."""
        while not self.stop.wait(0.25):
            path = self.chance.choice((*HEALTHY, "nothing"))
            asked_s = time.monotonic()
            try:
                code, _ = self.get(path)
            except OSError as error:
                self.violations.append(f"{self.seconds():.0f} s: /{path} was not answered: {error}")
                continue
            self.answers_s.append(time.monotonic() - asked_s)
            if code != (200 if path in HEALTHY else 404):
                self.violations.append(f"{self.seconds():.0f} s: /{path}: {code}")

    def attack(self) -> None:
        """Whoever has not."""
        while not self.stop.wait(0.5):
            if self.under_attack:
                self.hostile.round()
            else:
                self.hostile.close()
        self.hostile.close()

    # From start to end

    def run(self, minutes: float) -> int:
        with Producer(ProducerConfig(store=str(self.folder / "queue"))) as producer:
            producer.produce([b"the first"])
            self.produced += 1
        threads = [threading.Thread(target=each) for each in (self.produce, self.visit, self.attack)]
        with self.load() as loader:
            try:
                if self._await("the start", lambda: bool(self.status()["ready"]), START_TIMEOUT_S, loader):
                    self.began_s = time.monotonic()
                    for thread in threads:
                        thread.start()
                    with self._scraped():
                        self._watch_for(minutes * 60, loader)
            finally:
                ran_s = self.seconds()
                self.stop.set()
                for thread in threads:
                    if thread.is_alive():
                        thread.join()
                self._await("all loaded", self._is_drained, DRAIN_TIMEOUT_S, loader)
                self._await("every socket closed", lambda: not self._sockets(loader), CLOSE_TIMEOUT_S, loader)
                if (code := loader.end()) != 0:
                    self.violations.append(f"the loader ended with {code}: {loader.last_words(500)}")
        return self._report(ran_s)

    @contextmanager
    def _scraped(self) -> Iterator[None]:
        """By a Prometheus from which the dashboard is drawn in the end."""
        if self.dashboard is None:
            yield
            return
        with running_prometheus(self.folder / "prometheus", self.url) as prometheus:
            yield
            empty = [panel.title for panel in draw(prometheus, self.seconds(), self.dashboard) if not panel.is_found()]
            self.violations += [f"the dashboard shows nothing in: {title}" for title in empty]

    def _await(self, what: str, wanted: Callable[[], bool], timeout_s: float, loader: Worker) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s and loader.is_alive:
            with suppress(OSError, ValueError):
                if wanted():
                    return True
            time.sleep(0.5)
        self.violations.append(f"{what}: not within {timeout_s:g} s, the loader's code is {loader.process.poll()}")
        return False

    def _is_drained(self) -> bool:
        status = self.status()
        return bool(status["state"] == "idle" and status["loader"]["rows"] == self.produced)

    def _sockets(self, loader: Worker) -> list[Any]:
        """Connections to the page that the loader still holds."""
        found = psutil.Process(loader.pid).net_connections(kind="tcp")
        return [each for each in found if each.laddr.port == self.port and each.status != psutil.CONN_LISTEN]

    def _watch_for(self, seconds: float, loader: Worker) -> None:
        jvm = next(child for child in psutil.Process(loader.pid).children() if "java" in child.name())
        self.watch.follow("loader, driver", loader.pid)
        self.watch.follow("loader, JVM", jvm.pid)
        self.watch.follow_family("loader", loader.pid, besides={jvm.pid})
        self.watch.expect(HEAP, HEAP_UNIT)
        next_report_s = REPORT_EVERY_S
        while self.seconds() < seconds and loader.is_alive:
            time.sleep(SAMPLE_EVERY_S)
            self.watch.sample()
            self._hear(loader)
            self._judge_lag()
            if self.seconds() >= next_report_s:
                next_report_s += REPORT_EVERY_S
                self._tell_how_it_goes()
        if not loader.is_alive:
            self.violations.append(f"the loader ended with {loader.process.returncode}: {loader.last_words(500)}")

    def _hear(self, loader: Worker) -> None:
        for message in loader.heard():
            if "progress" in message:
                self.commits_s[self.under_attack].append(message["progress"]["seconds"])
            elif "heap_bytes" in message:
                self.watch.note(HEAP, HEAP_UNIT, message["heap_bytes"] / MIB)
            elif "error" in message:
                self.violations.append(f"the loader failed: {message}")

    def _judge_lag(self) -> None:
        with suppress(OSError):  # `visit` is the judge of answers
            lag_s = self.status()["lag_seconds"] or 0.0
            self.lag_max_s = max(self.lag_max_s, lag_s)
            if lag_s > LAG_MAX_S:
                self.violations.append(f"{self.seconds():.0f} s: the loader was {lag_s:.0f} s behind")

    # Telling

    def _tell_how_it_goes(self) -> None:
        commits = sum(map(len, self.commits_s.values()))
        tell(
            f"{self.seconds():6.0f} s  {commits} commits, {len(self.answers_s)} answers, "
            f"{self.hostile.counts.total()} hostile connections, {len(self.violations)} wrong"
        )

    def _report(self, ran_s: float) -> int:
        for growth in self.watch.judge(ran_s) if ran_s >= JUDGED_FROM_S else ():
            tell(str(growth))
            if growth.leak:
                self.violations.append(f"{growth.name}: {growth.leak}")
        self._report_commits()
        self._report_answers()
        self._report_rows()
        for text in self.violations:
            tell(f"WRONG: {text}")
        tell("all is well" if not self.violations else "not well")
        return 1 if self.violations else 0

    def _report_commits(self) -> None:
        for about, seconds in self.commits_s.items():
            name = "among hostile clients" if about else "in calm minutes"
            typical = f", {median(seconds):.2f} s each, {max(seconds):.2f} s the longest" if seconds else ""
            tell(f"commits {name}: {len(seconds)}{typical}")
        if min(map(len, self.commits_s.values())) >= COMPARED_FROM:
            ratio = median(self.commits_s[True]) / median(self.commits_s[False])
            tell(f"a typical commit among hostile clients takes {ratio:.2f}x of one in calm minutes")
            if ratio > DISTURBED_MAX:
                self.violations.append(f"hostile clients disturb the loader: {ratio:.2f}x")
        tell(f"the loader was never more than {self.lag_max_s:.1f} s behind")

    def _report_answers(self) -> None:
        if len(self.answers_s) > 1:
            p99_s = quantiles(self.answers_s, n=100)[98]
            tell(
                f"{len(self.answers_s):,} answers: {median(self.answers_s) * 1000:.0f} ms each, "
                f"{p99_s * 1000:.0f} ms at p99, {max(self.answers_s) * 1000:.0f} ms the longest"
            )
            if p99_s > ANSWER_P99_MAX_S:
                self.violations.append(f"one of a hundred answers takes {p99_s:.1f} s")
        kinds = ", ".join(f"{self.hostile.counts[kind]:,} {kind}" for kind in KINDS)
        tell(f"hostile connections: {kinds}; up to {self.hostile.most:,} at once")
        missing = [kind for kind in KINDS if not self.hostile.counts[kind]]
        if missing and not self.calm:
            self.violations.append(f"nobody was hostile in these ways: {', '.join(missing)}")

    def _report_rows(self) -> None:
        rows = _rows(self.folder / "table")
        tell(f"{self.produced:,} entries produced, {rows:,} rows in the table")
        if rows != self.produced:
            self.violations.append("the table does not hold each entry once")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--calm", action="store_true", help="without hostile clients, to compare")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--settings", type=json.loads, default={}, help='of the loader, like {"writer": "arrow"}')
    parser.add_argument("--dashboard", type=Path, help="where to put a picture; needs prometheus and chromium")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="buffer-serving-") as folder:
        serving = Serving(
            *(Path(folder), options.seed),
            calm=options.calm,
            settings=options.settings,
            dashboard=options.dashboard,
        )
        return serving.run(options.minutes)


if __name__ == "__main__":
    sys.exit(main())
