"""The simulator is tested by breaking the protocol: each break must be seen, within as many seeds as it says."""

from __future__ import annotations

import re

import pytest

from buffer.testing.simulator import Trace, Violation
from buffer.testing.simulator.runner import run_seeds, show
from buffer_delta.testing import simulate
from tests.simulation.finding import KINDS, find, seeds_for
from tests.simulation.mutants import MUTANTS


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, (_, mutants) in KINDS.items() for name in mutants])
def test_should_find_mutant(kind: str, name: str) -> None:
    assert find(kind, name) is not None, f"{name} survived"


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
