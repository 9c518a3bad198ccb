"""The real code under simulated faults. A few hundred seeds here, thousands by `make simulate`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from io import StringIO

import pytest

from buffer.testing.simulator import Trace, Violation, World
from buffer.testing.simulator.runner import Outcome, main, run_seeds
from buffer_delta.testing import simulate, world_of

pytestmark = pytest.mark.xdist_group("simulation")  # they share what the seeds came to

SEEDS = 300
FIRST = 1_000_000  # away from the seeds of `make simulate`, so that the two do not repeat each other


KINDS = ("queue", "collection", "loader")


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """What became of the seeds of each kind of world."""
    seeds = range(FIRST, FIRST + SEEDS)
    return {kind: run_seeds(simulate, [seed for seed in seeds if world_of(seed) == kind]) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_should_keep_every_promise_under_faults(kind: str, outcomes: dict[str, Outcome]) -> None:
    failed = outcomes[kind].failed
    assert failed is None, f"replay with `make simulate SEED={failed[0]}`: {failed[1]}"


def test_should_have_reached_what_the_promises_are_about(outcomes: dict[str, Outcome]) -> None:
    """Runs in which nothing happens would keep every promise, too."""
    counts = sum((Counter(outcome.counts) for outcome in outcomes.values()), Counter())
    for what in (
        "appends of the dead",
        "batch settled: AppendOutcomeUnknown",
        "batch settled: ContentionError",
        "batch settled: Durable",
        "batches collected",
        "commits in conflict",
        "commits of the fenced",
        "consumer ended: Fenced",
        "crashes",
        "loader ended: Blocked",
        "loader ended: Fenced",
        "loader ended: RouteChanged",
        "reached: split",
    ):
        assert counts[what] > 0, f"no seed reached: {what}"


def test_should_run_a_seed_the_same_way_in_any_process() -> None:
    """Sets of strings are ordered by a hash that differs between processes; nothing may depend on it."""
    command = [sys.executable, "-m", "buffer_delta.testing", "--seed", "7"]
    stories = [
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": str(n)}, capture_output=True, check=True, text=True
        ).stdout
        for n in (1, 2)
    ]
    assert stories[0] == stories[1]
    assert "seed 7 is fine" in stories[0]


def test_should_not_depend_on_being_traced() -> None:
    for seed in range(20):
        plain, traced = simulate(seed), simulate(seed, Trace())
        assert (plain.scheduler.now_s, plain.scheduler.events_run, plain.scheduler.counts) == (
            traced.scheduler.now_s,
            traced.scheduler.events_run,
            traced.scheduler.counts,
        )


def test_should_say_how_many_seeds_ran_and_what_happened() -> None:
    out = StringIO()
    assert main(simulate, ["--seeds", "4", "--jobs", "1"], out, program="simulate") == 0
    assert "4 seeds" in out.getvalue()
    assert "batch settled: Durable" in out.getvalue()


def failing(seed: int, trace: Trace | None) -> World:
    """A simulation whose third seed fails; at module level, for it is sent to another process by name."""
    world = simulate(seed, trace)
    if seed == 2:
        raise Violation("at 1.000 s: the sky fell")
    return world


def test_should_name_the_seed_that_failed_and_how_to_replay_it() -> None:
    out = StringIO()
    assert main(failing, ["--seeds", "4", "--jobs", "1"], out, program="simulate") == 1
    assert "seed 2 fails: at 1.000 s: the sky fell" in out.getvalue()
    assert "make simulate SEED=2" in out.getvalue()
