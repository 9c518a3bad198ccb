"""A served loader for an hour: `python -m tests.soak.serving --minutes 60`.

One producer writes steadily, one loader loads and serves. Somebody scrapes and opens the page all the time, and hostile
clients do what they can: a thousand connections that say nothing, endless requests, answers that nobody takes. Ends
with 1 if memory, sockets or threads of the loader grew, a probe went unanswered, the loader fell behind, or not
every entry was loaded.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from buffer.config import ProducerConfig
from buffer.produce.producer import Producer
from tests.soak.watch import JUDGED_FROM_S, Watch

START_TIMEOUT_S = 300.0
DRAIN_TIMEOUT_S = 300.0
SAMPLE_EVERY_S = 3.0
LAG_MAX_S = 120.0
PATHS = ("", "api/status", "api/history", "metrics", "healthz", "readyz", "livez", "page.js", "nothing")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Serving:
    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        self.chance = random.Random(seed)
        self.stop = threading.Event()
        self.produced = self.answered = self.attacks = 0
        self.violations: list[str] = []
        self.began_s = time.monotonic()

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get("api/status")[1])
        return found

    def load(self) -> subprocess.Popen[bytes]:
        command = [
            *(str(Path(sys.executable).with_name("buffer-delta")), "load", "--store", str(self.folder / "queue")),
            *("--table", str(self.folder / "table"), "--format", "text", "--serve", f"127.0.0.1:{self.port}"),
            *("--log-format", "json", "--set", "serve_linger_s=0"),
        ]
        with (self.folder / "loader.log").open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    def produce(self) -> None:
        with Producer(ProducerConfig(store=str(self.folder / "queue"))) as producer:
            while not self.stop.wait(0.2):
                count = self.chance.randrange(1, 50)
                producer.produce([b"x" * self.chance.randrange(10, 200) for _ in range(count)])
                self.produced += count

    def visit(self) -> None:
        """Whoever has a right to: each answer must come."""
        while not self.stop.wait(0.25):
            path = self.chance.choice(PATHS)
            try:
                code, _ = self.get(path)
            except OSError as error:
                self.violations.append(f"/{path} was not answered: {error}")
                continue
            self.answered += 1
            if code not in (200, 404, 503):
                self.violations.append(f"/{path}: {code}")

    def attack(self) -> None:
        """Whoever has not."""
        held: list[socket.socket] = []
        while not self.stop.wait(0.5):
            with suppress(OSError):
                for _ in range(self.chance.choice((1, 10, 300))):
                    client = socket.create_connection(("127.0.0.1", self.port), timeout=5)
                    client.sendall(self.chance.choice((b"G", b"GET / HTTP/1.1\r\nX: ", b"\x00" * 9000, b"")))
                    held.append(client)
                    self.attacks += 1
            while len(held) > 1000 or (held and self.chance.random() < 0.5):
                held.pop(self.chance.randrange(len(held))).close()
        for client in held:
            client.close()

    def await_status(self, what: str, wanted: Any, timeout_s: float, process: subprocess.Popen[bytes]) -> bool:
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if process.poll() is not None:
                break
            with suppress(OSError, ValueError):
                if wanted(self.status()):
                    return True
            time.sleep(0.5)
        self.violations.append(f"{what}: not within {timeout_s:g} s, the loader's code is {process.poll()}")
        return False

    def run(self, minutes: float, *, calm: bool) -> int:
        watch = Watch(lambda: time.monotonic() - self.began_s)
        with Producer(ProducerConfig(store=str(self.folder / "queue"))) as producer:
            producer.produce([b"the first"])
            self.produced += 1
        process = self.load()
        work = [self.produce, self.visit, *([] if calm else [self.attack])]
        threads = [threading.Thread(target=each) for each in work]
        try:
            if self.await_status("the start", lambda s: s["ready"], START_TIMEOUT_S, process):
                for thread in threads:
                    thread.start()
                self._watch_for(minutes * 60, process, watch)
        finally:
            self.stop.set()
            for thread in threads:
                if thread.is_alive():
                    thread.join()
            done = lambda s: s["state"] == "idle" and s["loader"]["rows"] == self.produced  # noqa: E731
            self.await_status("all loaded", done, DRAIN_TIMEOUT_S, process)
            process.terminate()
            process.wait()
        return self._report(watch, minutes * 60)

    def _watch_for(self, seconds: float, process: subprocess.Popen[bytes], watch: Watch) -> None:
        end_s = time.monotonic() + seconds
        watch.follow("loader", process.pid)
        while time.monotonic() < end_s and process.poll() is None:
            watch.sample()
            lag_s = self.status()["lag_seconds"] or 0.0
            if lag_s > LAG_MAX_S and time.monotonic() - self.began_s > JUDGED_FROM_S:
                self.violations.append(f"the loader was {lag_s:.0f} s behind")
            time.sleep(SAMPLE_EVERY_S)
        if process.poll() is not None:
            self.violations.append(f"the loader ended with {process.returncode}")

    def _commits(self) -> str:
        """How many, and how long they took: without hostile clients (`--calm`) it must be about the same."""
        lines = (self.folder / "loader.log").read_text().splitlines()
        said = [json.loads(line) for line in lines if '"event": "commit"' in line]
        seconds = sorted(line["seconds"] for line in said)
        return f"{len(said)}, {median(seconds):.2f} s each, {seconds[-1]:.2f} s the longest" if said else "none"

    def _report(self, watch: Watch, seconds: float) -> int:
        for growth in watch.judge(time.monotonic() - self.began_s) if seconds >= JUDGED_FROM_S else ():
            tell(str(growth))
            if growth.leak:
                self.violations.append(f"{growth.name}: {growth.leak}")
        tell(f"commits: {self._commits()}")
        tell(f"{self.produced:,} entries, {self.answered:,} answers, {self.attacks:,} hostile connections")
        for text in self.violations:
            tell(f"WRONG: {text}")
        return 1 if self.violations else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--calm", action="store_true", help="without hostile clients, to compare")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="buffer-serving-") as folder:
        return Serving(Path(folder), options.seed).run(options.minutes, calm=options.calm)


if __name__ == "__main__":
    sys.exit(main())
