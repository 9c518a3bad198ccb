"""The older format under simulated faults: its promises hold. (That each break of them is seen: `test_mutants`.)"""

from __future__ import annotations

from collections import Counter

import pytest

from buffer.testing.simulator.faults import FATES, STRIKES
from buffer.testing.simulator.legacy import simulate_legacy
from buffer.testing.simulator.runner import Outcome, run_seeds

SEEDS = 300
FIRST = 1_000_000


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return run_seeds(simulate_legacy, range(FIRST, FIRST + SEEDS))


def test_should_keep_every_promise_under_faults(outcome: Outcome) -> None:
    failed = outcome.failed
    assert failed is None, f"replay with `python -m tests.simulation.legacy --seed {failed[0]}`: {failed[1]}"


def test_should_have_reached_what_the_promises_are_about(outcome: Outcome) -> None:
    counts = Counter(outcome.counts)
    for what in (
        "acks",
        "acks: claim lost",
        "acks: unknown",
        "appends of the dead",
        "batch settled: AppendOutcomeUnknown",
        "batch settled: ContentionError",
        "batch settled: Durable",
        "batches taken to be moved",
        "claims lost, seen by the heartbeat",
        "claims taken over",
        "crashes",
        "pairs moved",
        *(f"fault: {fault}" for fault in FATES + STRIKES),
    ):
        assert counts[what] > 0, f"no seed reached: {what}"
