"""The collectors of a lane: one that is watched and must not fall silent, and one that is killed and stopped."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from subprocess import TimeoutExpired

from tests.crash.processes import Worker

STEADY = "steady"
MORTAL = "mortal"
SILENT_INTERVALS_MAX = 6  # a round is due in each, and takes a fraction of one even on a machine that is busy
END_TIMEOUT_S = 60.0  # a round over a network that is good by then


class Collectors:
    """`tick` it often. `start` gets a role and starts `tests.soak.collecting`, a round of which is due every
    `interval_s`; a lane may have none of them, or only one."""

    def __init__(
        self, start: Callable[[str], Worker], interval_s: float, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self.steady: Worker | None = None
        self.mortal: Worker | None = None
        self.violations: list[str] = []
        self.rounds: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        """Rounds that could not look."""
        self.deleted: Counter[str] = Counter()
        self._start = start
        self._silent_max_s = SILENT_INTERVALS_MAX * interval_s
        self._seconds = seconds
        self._heard_s = 0.0

    def start_steady(self) -> Worker:
        self.steady = self._start(STEADY)
        self._heard_s = self._seconds()
        return self.steady

    def start_mortal(self) -> Worker:
        self.mortal = self._start(MORTAL)
        return self.mortal

    def replace_mortal(self) -> None:
        """kill -9, and another one, which has seen nothing yet."""
        assert self.mortal is not None
        self.mortal.kill()
        self._hear(MORTAL, self.mortal)
        self.start_mortal()

    def tick(self) -> None:
        """Hear what they say; notice who is dead or has stopped working."""
        if self.steady is not None:
            if self._hear(STEADY, self.steady):
                self._heard_s = self._seconds()
            silent_s = self._seconds() - self._heard_s
            if not self.steady.is_alive:
                self._give_up(f"the collector that was to live ended: {self.steady.last_words(500)}")
            elif silent_s > self._silent_max_s:
                self._give_up(f"the watched collector did no round for {silent_s:.0f} s; see {self.steady.log}")
        if self.mortal is not None:
            self._hear(MORTAL, self.mortal)
            if not self.mortal.is_alive:
                self.violations.append(f"a collector ended by itself: {self.mortal.last_words(500)}")
                self.mortal.kill()
                self.mortal = None

    def _give_up(self, violation: str) -> None:
        """Say it once. Nobody replaces it, and whoever judges its growth finds that it was not there at the end."""
        assert self.steady is not None
        self.violations.append(violation)
        self.steady.kill()
        self.steady = None

    def _hear(self, role: str, worker: Worker) -> bool:
        """Whether it has done a round."""
        before = self.rounds[role]
        for message in worker.heard():
            if "deleted" in message:
                self.rounds[role] += 1
                self.deleted[role] += message["deleted"]
            elif "failed" in message:
                self.failed[role] += 1
        return self.rounds[role] > before

    def stop(self) -> None:
        """Ask them to end, and see whether they do, and whether each ever did what it is there for."""
        self.tick()
        for role, worker in ((STEADY, self.steady), (MORTAL, self.mortal)):
            if worker is None:
                continue
            if worker.frozen:
                worker.thaw()
            try:
                code = worker.end(END_TIMEOUT_S)
            except TimeoutExpired as error:
                self.violations.append(f"the {role} collector does not end: {error}; see {worker.log}")
                worker.kill()
                continue
            self._hear(role, worker)
            if code != 0:
                self.violations.append(f"the {role} collector ended with {code}: {worker.last_words(500)}")
            if not self.rounds[role]:
                self.violations.append(f"the {role} collector never did a round")
        self.steady = self.mortal = None

    def __iter__(self) -> Iterator[Worker]:
        yield from (worker for worker in (self.steady, self.mortal) if worker is not None)

    def __str__(self) -> str:
        told = [
            f"{role}: {self.rounds[role]} rounds, {self.failed[role]} failed, {self.deleted[role]} objects deleted"
            for role in sorted(self.rounds.keys() | self.failed.keys())
        ]
        return f"collectors of its own: {'; '.join(told) or 'none'}"
