"""Time that moves only when told to, and chance that comes out the same."""

from __future__ import annotations

import threading
import time

import pytest

from buffer.clock import Clock, SystemClock
from buffer.testing import ManualClock


def test_should_stand_still_until_told() -> None:
    clock = ManualClock(start_ms=1_000)
    assert isinstance(clock, Clock)
    assert (clock.now_ms(), clock.monotonic_s()) == (1_000, 0.0)
    clock.sleep(1.5)
    clock.advance(0.5)
    assert (clock.now_ms(), clock.monotonic_s()) == (3_000, 2.0)
    assert clock.sleeps == [1.5]


def test_should_not_drift_over_many_small_sleeps() -> None:
    clock = ManualClock(start_ms=0)
    for _ in range(10_000):
        clock.sleep(0.1)
    assert clock.now_ms() == 1_000_000


def test_should_move_only_the_wall_clock_when_it_jumps() -> None:
    clock = ManualClock(start_ms=10_000)
    clock.jump_ms(-4_000)
    assert (clock.now_ms(), clock.monotonic_s()) == (6_000, 0.0)
    with pytest.raises(AssertionError, match="jump_ms"):
        clock.advance(-1)


def test_should_give_the_same_ids_and_jitter_for_the_same_seed() -> None:
    def draw(seed: int) -> list[object]:
        clock = ManualClock(seed=seed)
        return [clock.new_ulid(), clock.jitter(0, 1), clock.new_ulid(), clock.jitter(5, 6)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_should_put_its_time_into_ulids() -> None:
    clock = ManualClock()
    first = clock.new_ulid()
    clock.advance(0.001)
    second = clock.new_ulid()
    assert first < second
    assert len(first) == 26
    assert first[:10] != second[:10]


def test_should_lose_no_time_when_threads_sleep() -> None:
    clock = ManualClock(start_ms=0)
    threads = [threading.Thread(target=lambda: [clock.sleep(0.001) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.now_ms() == 2_000


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no clock that counts its sleep")
def test_should_count_the_time_in_which_the_machine_slept(monkeypatch: pytest.MonkeyPatch) -> None:
    awake_s = {time.CLOCK_BOOTTIME: 5_000.0, time.CLOCK_MONOTONIC: 100.0}
    monkeypatch.setattr(time, "clock_gettime", awake_s.__getitem__)
    assert SystemClock().monotonic_s() == 5_000.0
