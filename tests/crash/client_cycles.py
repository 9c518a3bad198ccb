"""A producer with a client id, killed again and again: whatever it was doing, each of its entries comes out once.

Each life is a process. Some are stopped instead of killed, and woken when the next one is at work: two producers with
one client id then, of which the one that is behind must stop.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from tests.crash.numbering import ENTRIES_PER_CALL, FAILED
from tests.crash.processes import Worker
from tests.crash.verdict import Verdict
from tests.nets import HANGS_S

NAME = "client"

RUN_MAX_S = 0.4  # from the opening to the kill
FREEZE_CHANCE = 0.15
REPORT_EVERY = 20
FINISHING_LIVES_MAX = 20
CALLS_AT_THE_END = 20
NEVER = 10**9


class Reader(Protocol):
    """Reads the queue beside the client, and knows in the end what came out."""

    found: defaultdict[str, list[int]]

    def drain(self) -> bool: ...

    def close(self) -> None: ...


class ClientCycles:
    """Runs lives until enough of them were killed, with a consumer and its collector beside them."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        settings: dict[str, Any],
        consumer: Reader,
        tell: Callable[[str], None] = lambda _text: None,
        calm: Callable[[], None] = lambda: None,
    ) -> None:
        """`calm` is called before the last life: it is to get through."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._chance = random.Random(f"{seed} clients")
        self._settings = {"flush_interval_ms": 2, "flush_size_bytes": 400, "append_timeout_s": 10, **settings}
        self._consumer = consumer
        self._tell = tell
        self._calm = calm
        self._lives = 0
        self._frozen: Worker | None = None
        self.killed = self.froze = self.failed = 0

    def run(self, cycles: int) -> Verdict:
        started_s = time.monotonic()
        try:
            while self.killed < cycles:
                self._live_and_die()
                self._consumer.drain()
                if self.killed % REPORT_EVERY == 0:
                    self._tell(f"client: {self.killed}/{cycles} killed in {time.monotonic() - started_s:.0f} s")
            self._calm()
            self._finish()
        finally:
            if self._frozen is not None:
                self._frozen.kill()
        deadline_s = time.monotonic() + HANGS_S
        while not self._consumer.drain():
            assert time.monotonic() < deadline_s, "not drained"
        self._consumer.close()
        return self._judge(cycles)

    def _start(self, last_call: int = NEVER) -> Worker:
        self._lives += 1
        options = {
            "name": NAME,
            "settings": self._settings,
            "seen": str(self._folder / "seen"),
            "last_call": last_call,
            "seed": self._chance.randrange(1 << 32),
        }
        return Worker("tests.crash.numbering", options, self._folder / "client.stderr")

    def _live_and_die(self) -> None:
        worker = self._start()
        try:
            worker.wait_for("ready", HANGS_S)
        except EOFError:
            self._check_ended(worker)
            return
        if self._frozen is not None and self._chance.random() < 0.5:
            self._frozen.thaw()  # a twin, and it is behind or about to be
        time.sleep(self._chance.uniform(0.0, RUN_MAX_S))
        if self._frozen is None and self._chance.random() < FREEZE_CHANCE:
            worker.freeze()
            self._frozen = worker
            self.froze += 1
            return
        if self._frozen is not None and not self._frozen.frozen:
            self._frozen.kill()
            self._frozen = None
        worker.kill()
        self.killed += 1

    def _finish(self) -> None:
        if self._frozen is not None:
            self._frozen.kill()
            self._frozen = None
        self.last_call = self._seen() + CALLS_AT_THE_END
        for _ in range(FINISHING_LIVES_MAX):
            worker = self._start(self.last_call)
            if worker.end_by_itself(HANGS_S) == 0:
                return
            self._check_ended(worker)
        raise AssertionError(f"no life came to its end: {self._words()}")

    def _seen(self) -> int:
        path = self._folder / "seen"
        return int(path.read_text()) if path.exists() else 0

    def _check_ended(self, worker: Worker) -> None:
        code = worker.process.wait(HANGS_S)
        worker.kill()
        assert code == FAILED, f"a life ended with {code}: {self._words()}"
        self.failed += 1
        if self._frozen is not None and self._frozen.frozen:
            self._frozen.thaw()  # on local files it may hold the lock that everybody needs

    def _words(self) -> str:
        return (self._folder / "client.stderr").read_text(errors="replace")[-3000:]

    def _judge(self, cycles: int) -> Verdict:
        found = self._consumer.found[NAME]
        expected = list(range((self.last_call + 1) * ENTRIES_PER_CALL))
        verdict = Verdict(producers=self._lives, durable=len(expected), found=len(found))
        verdict.text = (
            f"{self._lives} lives of one client, {self.killed} killed, {self.froze} stopped and woken, {self.failed} "
            f"ended by themselves; {len(found):,} entries came out"
        )
        verdict.add("lost", sorted(set(expected) - set(found)))
        verdict.add("twice", sorted({n for n in found if found.count(n) > 1}) if len(found) != len(set(found)) else [])
        if found != sorted(found):
            verdict.violations.append("out of order")
        if len(expected) < cycles:
            verdict.violations.append(f"only {len(expected)} entries: too few to mean anything")
        return verdict
