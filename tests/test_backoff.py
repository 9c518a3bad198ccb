"""Back-off as a value: pauses that double up to a bound, and attempts that end with the count or the time."""

from __future__ import annotations

import pytest

from buffer.backoff import Backoff
from buffer.testing import ManualClock

POLICY = Backoff(first_s=1.0, max_s=5.0, attempts_max=6)


def longest(_low: float, high: float) -> float:
    return high


def shortest(low: float, _high: float) -> float:
    return low


def test_should_double_the_pauses_up_to_the_longest() -> None:
    assert list(POLICY.pauses(longest)) == [1.0, 2.0, 4.0, 5.0, 5.0]


@pytest.mark.parametrize(("jitter_from", "first"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)])
def test_should_keep_a_pause_within_its_jitter(jitter_from: float, first: float) -> None:
    policy = Backoff(first_s=1.0, max_s=5.0, attempts_max=6, jitter_from=jitter_from)
    assert next(policy.pauses(shortest)) == first
    assert next(policy.pauses(longest)) == 1.0


def test_should_have_no_pause_after_the_only_attempt() -> None:
    once = Backoff(first_s=1.0, max_s=5.0, attempts_max=1)
    assert list(once.pauses(longest)) == []
    clock = ManualClock()
    assert list(once.attempts(clock)) == [0]
    assert clock.sleeps == []


def test_should_stay_a_number_however_often_it_is_tried() -> None:
    many = Backoff(first_s=0.004, max_s=1.0, attempts_max=5000)
    assert max(many.pauses(longest)) == 1.0


def test_should_sleep_between_attempts_and_nowhere_else() -> None:
    clock = ManualClock()
    slept = [(attempt, len(clock.sleeps)) for attempt in POLICY.attempts(clock)]
    assert slept == [(n, n) for n in range(6)]
    assert len(clock.sleeps) == 5


def test_should_begin_no_attempt_after_its_time() -> None:
    policy = Backoff(first_s=1.0, max_s=5.0, attempts_max=100, timeout_s=6.5, jitter_from=1.0)
    clock = ManualClock()
    assert list(policy.attempts(clock)) == [0, 1, 2]  # at 0, 1 and 3 seconds; the next would be at 7
    assert clock.sleeps == [1.0, 2.0, 4.0]


def test_should_try_once_without_any_time() -> None:
    assert list(Backoff(first_s=1.0, max_s=5.0, attempts_max=9, timeout_s=0.0).attempts(ManualClock())) == [0]
