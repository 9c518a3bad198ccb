"""How a loader tries a range again. The real loader and the simulator's use the same policy."""

from __future__ import annotations

from buffer.backoff import Backoff
from buffer.errors import ContentionError, CorruptBatch, StorageError
from buffer_delta.errors import ConcurrentCommit

RETRY_FIRST_S = 0.5
PASSING = (StorageError, ContentionError, CorruptBatch, ConcurrentCommit)
"""Of our own errors those that pass, or that are dealt with after enough attempts. A concurrent commit leaves a step
where an older loader creates a table, and commits, while this one stages: the next attempt finds what that one did."""


def range_backoff(*, attempts_max: int, max_s: float) -> Backoff:
    """Each attempt counts against the range's `max_delivery_attempts`, so the pauses soon become long.

    No jitter: one loader runs at a time, and the log says how long it waits.
    """
    return Backoff(first_s=min(RETRY_FIRST_S, max_s), max_s=max_s, attempts_max=attempts_max, jitter_from=1.0)
