"""The real code under simulated faults. A few hundred seeds here, thousands by `make simulate`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from io import StringIO

import pytest

from buffer.testing.simulator import Actor, Host, Trace, Violation, Weather, World
from buffer.testing.simulator.faults import FATES, STRIKES
from buffer.testing.simulator.leases import simulate_leases
from buffer.testing.simulator.legacy import simulate_legacy
from buffer.testing.simulator.runner import Outcome, OutOfTime, Simulation, limited, main, run_seeds
from buffer_delta.testing import simulate, world_of
from tests.simulation.__main__ import KINDS as ALL_KINDS
from tests.simulation.__main__ import main as main_of_all

pytestmark = pytest.mark.xdist_group("simulation")  # they share what the seeds came to

SEEDS = 300
FIRST = 1_000_000  # away from the seeds of `make simulate`, so that the two do not repeat each other


KINDS = ("queue", "collection", "clients", "loader")


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
        "call settled: IdempotencyConflict",
        "call settled: ProducerStopped",
        "conflict: in_queue=None",
        "conflict: in_queue=True",
        "dequeued by a foreign reader",
        "marks lost",
        "batches collected beside a consumer",
        "collectors fenced",
        "commits in conflict",
        "commits of the fenced",
        "consumer ended: Fenced",
        "crashes",
        "ledgers lost",
        "loader ended: Blocked",
        "loader ended: Fenced",
        "loader ended: RouteChanged",
        "ranges replanned",
        "reached: split",
        *(f"fault: {fault}" for fault in FATES + STRIKES),
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
    assert "Its trace: simulate --seed 2\n" in out.getvalue()


def failing_leases(seed: int, trace: Trace | None) -> World:
    world = simulate_leases(seed, trace)
    if seed == 2:
        raise Violation("at 1.000 s: the sky fell")
    return world


def test_should_run_every_kind_and_name_the_one_that_failed() -> None:
    out = StringIO()
    kinds: dict[str, Simulation] = {"queues": simulate, "leases": failing_leases, "legacy": simulate_legacy}
    assert main_of_all(["--seeds", "4", "--jobs", "1"], out, kinds) == 1
    said = out.getvalue()
    assert re.search(r"queues:[\s\S]*4 seeds[\s\S]*leases:[\s\S]*seed 2 fails: at 1.000 s: the sky fell", said)
    assert "legacy:" not in said, "it ends there"
    (told,) = re.findall(r"Its trace: python -m tests\.simulation (--kind \w+ --seed \d+), or (.*)", said)
    assert told == ("--kind leases --seed 2", "make simulate KIND=leases SEED=2")
    out = StringIO()
    assert main_of_all(told[0].split(), out, kinds) == 1
    assert "worker0.1" in out.getvalue(), "the trace of that very world"
    assert set(ALL_KINDS) == {"queues", "clients", "leases", "legacy"}


def test_should_take_a_seed_without_a_kind_for_one_of_queues() -> None:
    out = StringIO()
    assert main_of_all(["--seed", "3"], out) == 0
    assert out.getvalue().count("seed 3 is fine") == 1


def breaking(seed: int, trace: Trace | None) -> World:
    """A simulation with a slip of its own."""
    world = simulate(seed, trace)
    if seed == 2:
        raise KeyError("no such actor")
    return world


def test_should_name_the_seed_at_which_the_simulation_itself_broke() -> None:
    out = StringIO()
    assert main(breaking, ["--seeds", "4", "--jobs", "1"], out, program="simulate") == 1
    assert "seed 2 fails: Traceback" in out.getvalue()
    assert "KeyError: 'no such actor'" in out.getvalue()
    assert main(breaking, ["--seed", "2"], out, program="simulate") == 1
    assert "producer0.1" in out.getvalue(), "its trace is shown as well"


class Endless(Actor):
    """Loops without ever calling the store, and catches what it can."""

    is_done = False

    def run(self, host: Host) -> None:
        while True:
            with suppress(Exception):
                pass


def test_should_end_a_seed_that_loops_without_calling_the_store() -> None:
    world = World(1, Weather(calm_at_s=0.0))
    world.add(Endless(world, "endless"))
    with pytest.raises(OutOfTime, match="loop"), limited(0.2):
        world.run(drain_s=10.0)


class Curious:
    """A witness that breaks."""

    def changed(self, *_: object) -> None:
        raise IndexError("the witness slipped")


class Writer(Actor):
    is_done = False

    def run(self, host: Host) -> None:
        host.store.put("somewhere", b"anything")


def test_should_not_take_a_broken_witness_for_an_answer_that_may_get_lost() -> None:
    world = World(1, Weather(calm_at_s=1000.0, lost_reply=1.0))
    world.server.witnesses.append(Curious())
    world.add(Writer(world, "writer"))
    with pytest.raises(Violation, match="the witness slipped"):
        world.run(drain_s=10.0)
