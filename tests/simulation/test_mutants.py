"""The simulator is tested by breaking the protocol: each break must be seen, within as many seeds as it says."""

from __future__ import annotations

import re

import pytest

from buffer.testing.simulator import Trace, Violation
from buffer.testing.simulator.runner import run_seeds, show
from buffer_delta.testing import simulate, world_of
from tests.simulation import client_mutants, loader_mutants, queue_mutants  # noqa: F401 - importing them fills MUTANTS
from tests.simulation.mutants import MUTANTS, Mutant


def seeds_for(mutant: Mutant) -> list[int]:
    return [seed for seed in range(mutant.within) if world_of(seed) in mutant.worlds]


def find(mutant: Mutant) -> int | None:
    """The first seed that sees what it should. A break may show in several ways; one of them is the point of it."""
    seeds = seeds_for(mutant)
    with mutant.apply():
        while seeds:
            outcome = run_seeds(simulate, seeds)
            if outcome.failed is None:
                return None
            seed, violation = outcome.failed
            if re.search(mutant.sees, violation):
                return seed
            seeds = seeds[outcome.seeds + 1 :]
    return None


@pytest.mark.parametrize("name", MUTANTS)
def test_should_find_mutant(name: str) -> None:
    assert find(MUTANTS[name]) is not None, f"{name} survived {MUTANTS[name].within} seeds"


def test_should_show_the_story_of_a_failing_seed(tmp_path) -> None:
    mutant = MUTANTS["ack_before_commit"]
    with mutant.apply(), (tmp_path / "story").open("w") as out:
        outcome = run_seeds(simulate, seeds_for(mutant))
        assert outcome.failed is not None
        seed, violation = outcome.failed
        assert not show(simulate, seed, out)
    story = (tmp_path / "story").read_text()
    assert f"seed {seed} fails: {violation}" in story
    assert re.search(r"loader\d\.\d+ +put_if_match manifest \[epoch \d+, next \d+:", story)
    assert re.search(r"main: read the log → TableState", story)


def test_should_fail_the_same_way_each_time_a_seed_is_run() -> None:
    with MUTANTS["slot_is_not_looked_at"].apply():
        outcome = run_seeds(simulate, seeds_for(MUTANTS["slot_is_not_looked_at"]))
        assert outcome.failed is not None
        seed, violation = outcome.failed
        traces = [Trace(), Trace()]
        for trace in traces:
            with pytest.raises(Violation, match=re.escape(violation)):
                simulate(seed, trace)
    assert str(traces[0]) == str(traces[1])
