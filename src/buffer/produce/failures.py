"""What went wrong in a producer's threads, until somebody asks: counted, waited for, and survived."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import TIMEOUT_MAX

from buffer.clock import SystemClock
from buffer.errors import BufferQueueError
from buffer.produce.durability import DurabilityWatcher

log = logging.getLogger(__name__)

_real_time = SystemClock()
"""What threads wait by. The clock that a producer was given decides what its entries and triggers see."""


@dataclass(slots=True)
class Failures:
    """Batches that failed and that no flush or close has reported: counts and the first error, not all of them."""

    batches: int = 0
    entries: int = 0
    first: BufferQueueError | None = None

    def note(self, error: BufferQueueError, entries: int) -> None:
        self.first = self.first or error
        self.batches += 1
        self.entries += entries

    def raise_if_any(self) -> None:
        if self.first is None:
            return
        error = copy.copy(self.first)
        error.args = (str(self),)
        raise error from self.first

    def __str__(self) -> str:
        entries = f" ({self.entries:,} entries)" if self.entries else ""
        return f"{self.batches:,} batches{entries} could not be made durable; the first: {self.first}"


@contextmanager
def surviving(what: str) -> Iterator[None]:
    """Keep the thread alive: whoever waits for a later batch, or for the end, would wait for ever without it.

    A panic in a native library arrives as an error outside Exception. The batch it happened to is settled already.
    """
    try:
        yield
    except BaseException:
        log.exception("%s ended with an error that nobody expects; the batch has failed, the producer goes on", what)


def await_all(watchers: Iterable[DurabilityWatcher], timeout: float | None) -> None:
    """Wait until each is settled, whatever it says."""
    deadline_s = deadline_after(timeout)
    for watcher in watchers:
        if not watcher.wait(left_s(deadline_s)):
            raise TimeoutError(f"not everything was durable within {timeout:g} s; the flush goes on")


def deadline_after(timeout: float | None) -> float | None:
    """When so many seconds are over, on the real clock; None for never."""
    return None if timeout is None else _real_time.monotonic_s() + timeout


def left_s(deadline_s: float | None) -> float | None:
    """What is left of them, for a wait; the system's own take no infinity."""
    return None if deadline_s is None else min(max(0.0, deadline_s - _real_time.monotonic_s()), TIMEOUT_MAX)
