"""How long to wait before trying again: one policy, as a value. Pure; whoever retries does the waiting.

    for pause_s in policy.pauses(clock.jitter): ...      # the pauses between `attempts_max` attempts
    for attempt in policy.attempts(clock): ...           # the same with the waiting done, bounded by `timeout_s`

The pauses double from `first_s` up to `max_s`. Jitter keeps those apart who failed together: a pause lies anywhere
between `jitter_from` times its length and its full length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf

from buffer.clock import Clock


@dataclass(frozen=True, slots=True)
class Backoff:
    first_s: float
    max_s: float
    attempts_max: int
    timeout_s: float = inf
    """No attempt begins later than this after the first one."""
    jitter_from: float = 0.0
    """The shortest pause, as a part of the longest: 0 spreads contenders best, 1 is no jitter."""

    def __post_init__(self) -> None:
        assert 0 < self.first_s <= self.max_s, self
        assert self.attempts_max >= 1, self
        assert 0 <= self.jitter_from <= 1, self

    def pauses(self, jitter: Callable[[float, float], float]) -> Iterator[float]:
        """The pauses between the attempts: one fewer than attempts."""
        longest_s = self.first_s
        for _ in range(self.attempts_max - 1):
            yield jitter(longest_s * self.jitter_from, longest_s)
            longest_s = min(self.max_s, longest_s * 2)

    def attempts(self, clock: Clock) -> Iterator[int]:
        """Count attempts from 0, with the pauses between them, until attempts or time run out."""
        deadline_s = clock.monotonic_s() + self.timeout_s
        yield 0
        for attempt, pause_s in enumerate(self.pauses(clock.jitter), 1):
            clock.sleep(pause_s)
            if clock.monotonic_s() > deadline_s:
                return
            yield attempt
