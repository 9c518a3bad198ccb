"""A collector that should live and does not, or does nothing, must not pass for one that is well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.processes import Worker, await_true
from tests.soak.collectors import MORTAL, SILENT_INTERVALS_MAX, STEADY, Collectors

INTERVAL_S = 0.1
TIMEOUT_S = 60.0


class Clock:
    now_s = 0.0

    def seconds(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """A queue that does not exist yet: they look, and find nothing to do."""
    return {"store": str(tmp_path / "queue"), "gc_interval_s": INTERVAL_S}


@pytest.fixture
def collectors(tmp_path: Path, options: dict[str, Any], clock: Clock) -> Iterator[Collectors]:
    """Time passes for them when the test says so."""
    workers: list[Worker] = []

    def start(role: str) -> Worker:
        workers.append(Worker("tests.soak.collecting", options, tmp_path / f"{role}.stderr"))
        return workers[-1]

    yield Collectors(start, INTERVAL_S, clock.seconds)
    for worker in workers:
        worker.kill()


def _tick_until(collectors: Collectors, condition: Callable[[], bool]) -> None:
    def ticked() -> bool:
        collectors.tick()
        return condition()

    await_true(ticked, TIMEOUT_S)


def _await_rounds(collectors: Collectors, role: str, more: int = 2) -> None:
    wanted = collectors.rounds[role] + more
    _tick_until(collectors, lambda: collectors.rounds[role] >= wanted)


def test_should_find_nothing_wrong_with_collectors_that_work(collectors: Collectors, clock: Clock) -> None:
    collectors.start_steady()
    collectors.start_mortal()
    for _ in range(3):
        _await_rounds(collectors, STEADY)
        clock.now_s += SILENT_INTERVALS_MAX * INTERVAL_S * 0.9
    _await_rounds(collectors, MORTAL)
    collectors.replace_mortal()
    _await_rounds(collectors, MORTAL)
    collectors.stop()
    assert collectors.violations == []
    assert list(collectors) == []
    assert "steady: " in str(collectors)


def test_should_notice_once_that_the_watched_one_is_dead(collectors: Collectors) -> None:
    steady = collectors.start_steady()
    _await_rounds(collectors, STEADY)
    steady.kill(group=False)
    collectors.tick()
    collectors.tick()
    (violation,) = collectors.violations
    assert "was to live" in violation


def test_should_notice_that_the_watched_one_hangs(collectors: Collectors, clock: Clock) -> None:
    steady = collectors.start_steady()
    _await_rounds(collectors, STEADY)
    steady.freeze()
    clock.now_s = (SILENT_INTERVALS_MAX + 1) * INTERVAL_S
    collectors.tick()  # may still hear what it said before
    clock.now_s *= 2.5
    _tick_until(collectors, lambda: bool(collectors.violations))
    (violation,) = collectors.violations
    assert "no round" in violation
    assert not steady.is_alive


def test_should_notice_a_death_that_nobody_planned_and_go_on(collectors: Collectors) -> None:
    mortal = collectors.start_mortal()
    _await_rounds(collectors, MORTAL)
    mortal.kill(group=False)
    collectors.tick()
    collectors.tick()
    (violation,) = collectors.violations
    assert "by itself" in violation
    collectors.start_mortal()
    _await_rounds(collectors, MORTAL)
    assert len(collectors.violations) == 1


def test_should_notice_one_that_never_did_a_round(collectors: Collectors, options: dict[str, Any]) -> None:
    options["gc_interval_s"] = 3600.0
    collectors.start_mortal().wait_for("ready", TIMEOUT_S)
    collectors.stop()
    (violation,) = collectors.violations
    assert "never did a round" in violation
