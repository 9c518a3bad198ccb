"""The real code under simulated faults. A few hundred seeds here, thousands by `make simulate`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from io import StringIO

import pytest

from buffer.testing.simulator import Trace, Violation, World
from buffer.testing.simulator.runner import main, run_seeds
from buffer_delta.testing import simulate, world_of

SEEDS = 300
FIRST = 1_000_000  # away from the seeds of `make simulate`, so that the two do not repeat each other


@pytest.fixture(scope="module")
def counts() -> Counter[str]:
    """What happened in all of the runs together."""
    return Counter()


@pytest.mark.parametrize("kind", ["queue", "collection", "loader"])
def test_should_keep_every_promise_under_faults(kind: str, counts: Counter[str]) -> None:
    seeds = [seed for seed in range(FIRST, FIRST + SEEDS) if world_of(seed) == kind]
    outcome = run_seeds(simulate, seeds)
    assert outcome.failed is None, f"replay with `make simulate SEED={outcome.failed[0]}`: {outcome.failed[1]}"
    counts.update(outcome.counts)


def test_should_have_reached_what_the_promises_are_about(counts: Counter[str]) -> None:
    """Runs in which nothing happens would keep every promise, too."""
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
