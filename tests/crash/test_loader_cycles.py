"""How a loader died, and what the cycles make of it: no Spark here, only what its process would have said."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.crash.loader_cycles import LoaderCycles, Run
from tests.crash.processes import Worker


@pytest.fixture
def cycles(tmp_path: Path) -> LoaderCycles:
    return LoaderCycles(tmp_path / "loaders", 7, print)


def _run(code: int | None, *steps: str) -> Run:
    said: list[dict[str, Any]] = [{"at": step} for step in steps]

    def heard() -> list[dict[str, Any]]:
        now, said[:] = list(said), []
        return now

    loader = SimpleNamespace(
        heard=heard,
        is_alive=code is None,
        process=SimpleNamespace(returncode=code),
        last_words=lambda _size: "OutOfMemoryError",
    )
    return Run(cast("Worker", loader), {})


def test_should_believe_a_death_at_its_step(cycles: LoaderCycles) -> None:
    cycles.check_died_at(_run(-signal.SIGKILL, "bound", "claimed"), "claimed")
    cycles.check_alive(_run(None, "bound"))
    assert cycles.violations == []


@pytest.mark.parametrize(
    ("code", "steps", "told"),
    [
        (-signal.SIGKILL, ["bound"], "was to die at 'claimed', but died with exit code -9, after 'bound'"),
        (-signal.SIGKILL, ["bound", "claimed", "entered"], "with exit code -9, after 'entered'"),
        (1, ["bound", "claimed"], "with exit code 1, after 'claimed': OutOfMemoryError"),
    ],
)
def test_should_report_a_death_elsewhere_or_of_another_cause(
    cycles: LoaderCycles, code: int, steps: list[str], told: str
) -> None:
    cycles.check_died_at(_run(code, *steps), "claimed")
    (violation,) = cycles.violations
    assert told in violation


def test_should_report_a_loader_that_nobody_killed(cycles: LoaderCycles) -> None:
    cycles.check_alive(_run(1))
    assert cycles.violations == ["a loader died by itself, with exit code 1, after 'start': OutOfMemoryError"]
