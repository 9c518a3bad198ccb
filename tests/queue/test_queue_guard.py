"""A guard that has to read, and a store that fails it: the append tries again with pauses, as for the manifest."""

from __future__ import annotations

import pytest

from buffer.attempts import AppendGroup, Attempt, Verdict
from buffer.errors import StorageError, StoreUnusable
from buffer.manifest import Manifest
from buffer.queue import QueueProducer
from buffer.store.base import Store
from buffer.testing import ManualClock
from tests.queue.queue_support import PATH, memory, queued


class Failing:
    """Raises what it was given, one after the other, then lets all pass."""

    def __init__(self, *errors: StorageError) -> None:
        self.errors = list(errors)

    def check(self, _manifest: Manifest, _group: AppendGroup) -> None:
        if self.errors:
            raise self.errors.pop(0)

    def decide(self, _manifest: Manifest, _attempt: Attempt) -> Verdict:
        raise AssertionError("nothing left the queue")

    def won(self, _attempt: Attempt) -> None:
        """Nothing to note."""


def appended(store: Store, clock: ManualClock, *errors: StorageError) -> range:
    queue = QueueProducer(store, PATH, clock, timeout_s=10.0)
    queue.guard = Failing(*errors)
    return queue.append_locations([("ingest/one", ())])


def drawn_while(errors: int, valid_s: float) -> tuple[int, list[tuple[int, str]]]:
    """How often the group is asked for while the guard fails so often, and what is in the queue then."""
    store, clock = memory(), ManualClock()
    queue = QueueProducer(store, PATH, clock)
    queue.guard = Failing(*[StorageError("busy", retryable=True)] * errors)
    drawn = 0

    def draw() -> AppendGroup:
        nonlocal drawn
        drawn += 1
        return AppendGroup([(f"ingest/{drawn}", ())], valid_until_s=clock.monotonic_s() + valid_s)

    queue.append(draw)
    return drawn, queued(store)


def test_should_draw_anew_only_what_is_too_old_by_then() -> None:
    """Whoever draws may upload: not for every look that failed."""
    assert drawn_while(10, valid_s=1000.0) == (1, [(0, "ingest/1")])
    drawn, found = drawn_while(10, valid_s=0.0)
    assert 1 < drawn <= 11
    assert found == [(0, f"ingest/{drawn}")]


def test_should_pause_between_attempts_while_the_guard_cannot_read() -> None:
    store, clock = memory(), ManualClock()
    assert appended(store, clock, *[StorageError("busy", retryable=True)] * 3) == range(1)
    assert len(clock.sleeps) == 3
    assert queued(store) == [(0, "ingest/one")]


def test_should_say_what_the_guard_could_not_read_when_time_is_up() -> None:
    store, clock = memory(), ManualClock()
    with pytest.raises(StorageError, match="busy"):
        appended(store, clock, *[StorageError("busy", retryable=True)] * 1000)
    assert clock.monotonic_s() >= 10.0
    assert queued(store) == []


def test_should_not_repeat_what_cannot_help() -> None:
    store, clock = memory(), ManualClock()
    with pytest.raises(StoreUnusable):
        appended(store, clock, StoreUnusable("no rights", retryable=False))
    assert list(clock.sleeps) == []
