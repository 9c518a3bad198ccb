"""A clock that moves only when told to, with ids and jitter that come out the same in every run."""

from __future__ import annotations

import random
import threading

from buffer.clock import make_ulid

DEFAULT_START_MS = 1_700_000_000_000


class ManualClock:
    """Time, ids and chance under the test's control. Thread-safe; the same seed gives the same ids and jitter.

    `sleep` does not wait: it moves the time and returns. So code that polls in a thread of its own would race
    through the years; such a thread needs an event to wait on, or the system's clock.
    """

    def __init__(self, start_ms: int = DEFAULT_START_MS, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._random = random.Random(seed)
        self._elapsed_ns = 0  # whole numbers: a million sleeps of 0.1 s must not drift
        self._wall_offset_ms = start_ms
        self._sleeps: list[float] = []

    def now_ms(self) -> int:
        with self._lock:
            return self._now_ms()

    def monotonic_s(self) -> float:
        with self._lock:
            return self._elapsed_ns / 1e9

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self._sleeps.append(seconds)
        self.advance(seconds)

    def new_ulid(self) -> str:
        with self._lock:
            return make_ulid(self._now_ms(), self._random.randbytes(10))

    def jitter(self, low: float, high: float) -> float:
        with self._lock:
            return self._random.uniform(low, high)

    # For the test

    def advance(self, seconds: float) -> None:
        """Let time pass, on both the wall and the monotonic clock."""
        assert seconds >= 0, f"time does not go back by itself ({seconds} s); jump_ms moves the wall clock"
        with self._lock:
            self._elapsed_ns += round(seconds * 1e9)

    def jump_ms(self, milliseconds: int) -> None:
        """Set the wall clock forward or back, as an operator or NTP would; no time passes."""
        with self._lock:
            self._wall_offset_ms += milliseconds

    @property
    def sleeps(self) -> list[float]:
        """Every sleep so far, in seconds."""
        with self._lock:
            return list(self._sleeps)

    def __repr__(self) -> str:
        return f"ManualClock(now_ms={self.now_ms()})"

    def _now_ms(self) -> int:
        return self._wall_offset_ms + self._elapsed_ns // 1_000_000
