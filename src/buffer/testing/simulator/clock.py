"""The clock of a simulated process: virtual time, a wall clock that may be off, chance from the seed."""

from __future__ import annotations

from buffer.clock import make_ulid
from buffer.testing.simulator.scheduler import Process

START_MS = 1_700_000_000_000
"""Wall-clock time at the start of every run."""


class SimulatedClock:
    """A `buffer.clock.Clock`. `sleep` is a scheduling point, the rest is not."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._scheduler = process.scheduler

    def now_ms(self) -> int:
        off_s = self._process.wall_offset_s + self._process.wall_base_s
        return START_MS + int((self._scheduler.now_s + off_s) * 1000)

    def monotonic_s(self) -> float:
        return self._scheduler.now_s

    def sleep(self, seconds: float) -> None:
        self._process.sleep(seconds)

    def new_ulid(self) -> str:
        return make_ulid(self.now_ms(), self._scheduler.random.randbytes(10))

    def jitter(self, low: float, high: float) -> float:
        return self._scheduler.random.uniform(low, high)
