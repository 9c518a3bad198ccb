"""When to commit: by age, by bytes, by batches. Pure decisions, and `Pace`, which keeps the few facts they need.

    a range is full         at once: a loader that is behind never waits
    the last commit began   less than `interval_s` ago: not yet. Measured from the beginning, so that a slow commit does
                            not add to the age of what comes next
    fewer than `min_bytes`  not yet, unless the oldest batch has waited for `max_wait_s`
    else                    now

Nothing here touches the queue: what is not committed stays in it, and a process that dies while it waits has lost
nothing. The age of a batch is the larger of what its name tells and how long this process has seen it wait: a
producer's clock that is ahead must not make rows wait for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cadence:
    """How often to commit at most, and how little is worth a commit."""

    interval_s: float
    min_bytes: int = 0
    max_wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the queue holds for the next commit."""

    is_full: bool
    """A range can hold no more of it."""
    stored_bytes: int
    age_s: float
    """Of the oldest batch."""


def wait_s(cadence: Cadence, waiting: Waiting, since_commit_s: float | None) -> float:
    """How long a commit must wait from now on if nothing else comes; 0 or less: it is due.

    `since_commit_s`: how long ago the last commit of this process began; None if there was none.
    """
    if waiting.is_full:
        return 0.0
    left_s = cadence.interval_s - since_commit_s if since_commit_s is not None else 0.0
    if waiting.stored_bytes < cadence.min_bytes:
        left_s = max(left_s, cadence.max_wait_s - waiting.age_s)
    return left_s


class Pace:
    """One run's memory of when it committed, and since when something waits. Time comes from `now_s`, monotonic."""

    def __init__(self, cadence: Cadence, now_s: Callable[[], float]) -> None:
        self._cadence = cadence
        self._now_s = now_s
        self._began_s: float | None = None
        self._waits_since_s: float | None = None
        self.left_s: float | None = None
        """What the last question was answered with, if that was to wait."""

    def is_due(self, *, is_full: bool, stored_bytes: int, age_s: float) -> bool:
        """Whether to commit now. If so, this is the beginning of that commit."""
        now_s = self._now_s()
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        waiting = Waiting(is_full, stored_bytes, max(age_s, now_s - self._waits_since_s))
        left_s = wait_s(self._cadence, waiting, None if self._began_s is None else now_s - self._began_s)
        if left_s > 0:
            self.left_s = left_s
            return False
        self._began_s, self._waits_since_s, self.left_s = now_s, None, None
        return True

    def pause_s(self, poll_s: float) -> float:
        """How long to wait before the next look at the queue: more may come, and what is there may become due."""
        left_s, self.left_s = self.left_s, None
        return poll_s if left_s is None else min(poll_s, left_s)
