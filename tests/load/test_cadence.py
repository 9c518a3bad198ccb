"""When to commit: decisions on plain numbers, and a loader's run on a clock that only moves when told."""

from __future__ import annotations

import pytest

from buffer_delta.load.cadence import Cadence, Pace, Waiting, wait_s

MB = 1_000_000


@pytest.mark.parametrize(
    ("cadence", "waiting", "since_commit_s", "expected"),
    [
        (Cadence(30), Waiting(False, 1, 0), None, 0),  # the first commit of a process waits for nothing
        (Cadence(30), Waiting(False, 1, 0), 12, 18),
        (Cadence(30), Waiting(True, 1, 0), 0, 0),  # a loader that is behind never waits
        (Cadence(30), Waiting(False, 1, 99), 31, -1),
        (Cadence(0), Waiting(False, 1, 0), 0, 0),
        (Cadence(1, 10 * MB, 60), Waiting(False, 9 * MB, 20), None, 40),
        (Cadence(1, 10 * MB, 60), Waiting(False, 10 * MB, 0), None, 0),
        (Cadence(1, 10 * MB, 60), Waiting(False, 0, 61), 0.25, 0.75),  # old enough, but the interval holds
        (Cadence(90, 10 * MB, 60), Waiting(False, 0, 10), 10, 80),  # of two reasons to wait the longer
        (Cadence(1, 10 * MB, 60), Waiting(True, 1, 0), 0, 0),
        (Cadence(1, 10 * MB, 60), Waiting(False, 1, -3600), None, 3660),  # Pace mends a producer's clock that is ahead
    ],
)
def test_should_wait_for_age_bytes_or_a_full_range(
    cadence: Cadence, waiting: Waiting, since_commit_s: float | None, expected: float
) -> None:
    assert wait_s(cadence, waiting, since_commit_s) == pytest.approx(expected)


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def commits(cadence: Cadence, *, seconds: float, commit_s: float, poll_s: float, arrives_s: float, size: int) -> int:
    """How many commits a loader makes of a trickle, one batch of `size` every `arrives_s`."""
    clock = Clock()
    pace = Pace(cadence, clock)
    start_s = clock.now_s
    loaded = made = 0
    while clock.now_s < start_s + seconds:
        there = int((clock.now_s - start_s) / arrives_s)
        age_s = clock.now_s - start_s - (loaded + 1) * arrives_s
        if there > loaded and pace.is_due(is_full=False, stored_bytes=(there - loaded) * size, age_s=age_s):
            loaded, made = there, made + 1
            clock.now_s += commit_s
        else:
            clock.now_s += pace.pause_s(poll_s)
    return made


def test_should_commit_a_trickle_at_the_interval_and_not_at_the_speed_of_commits() -> None:
    trickle = {"seconds": 35, "commit_s": 1.5, "arrives_s": 0.2, "size": 100}
    assert commits(Cadence(30), poll_s=30, **trickle) == 1
    assert commits(Cadence(30), poll_s=1, **trickle) == 2
    assert 20 <= commits(Cadence(0), poll_s=1, **trickle) <= 24, "as fast as commits go: what it was like"
    assert commits(Cadence(10), poll_s=0.1, **trickle) == 4
    assert commits(Cadence(0, 50 * 100, 60), poll_s=0.1, **trickle) == 3, "every 50 batches"
    assert commits(Cadence(0, 10**9, 12), poll_s=0.1, **trickle) == 2, "never enough bytes: every 12 s"


def test_should_not_wait_for_ever_on_a_producer_whose_clock_is_ahead() -> None:
    clock = Clock()
    pace = Pace(Cadence(0, MB, 60), clock)
    assert not pace.is_due(is_full=False, stored_bytes=1, age_s=-3600)
    assert pace.pause_s(1e9) == 60
    clock.now_s += 59
    assert not pace.is_due(is_full=False, stored_bytes=1, age_s=-3541)
    clock.now_s += 1
    assert pace.is_due(is_full=False, stored_bytes=1, age_s=-3540)
    assert not pace.is_due(is_full=False, stored_bytes=1, age_s=-3540), "the next batch waits for itself"


def test_should_look_again_as_soon_as_something_becomes_due_and_at_least_as_often_as_it_polls() -> None:
    clock = Clock()
    pace = Pace(Cadence(10), clock)
    assert pace.pause_s(3) == 3, "an empty queue"
    assert pace.is_due(is_full=False, stored_bytes=1, age_s=0)
    clock.now_s += 8
    assert not pace.is_due(is_full=False, stored_bytes=1, age_s=0)
    assert pace.pause_s(3) == 2
    assert pace.pause_s(3) == 3, "what was said of one look holds for no other"
