"""Workers, parking and redrive, takeover, purge and settings under simulated faults.

(That each rule, taken away, is seen: `test_mutants`.)
"""

from __future__ import annotations

import pytest

from buffer.testing.simulator.leases import simulate_leases
from buffer.testing.simulator.runner import Outcome, run_seeds

pytestmark = pytest.mark.xdist_group("lease worlds")  # they share what the seeds came to

SEEDS = 150
FIRST = 1_000_000  # away from the seeds of a long run


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    return run_seeds(simulate_leases, range(FIRST, FIRST + SEEDS))


def test_should_keep_every_promise_under_faults(outcome: Outcome) -> None:
    seed, violation = outcome.failed or (None, "")
    assert seed is None, f"{violation}; its trace: python -m tests.simulation.leases --seed {seed}"


def test_should_have_reached_what_the_promises_are_about(outcome: Outcome) -> None:
    """Runs in which nothing happens would keep every promise, too."""
    for what in (
        "batches given up by hand",
        "batches leased",
        "batches parked",
        "batches parked as bytes",
        "batches parked as missing",
        "batches purged",
        "batches read after a takeover",
        "batches redriven",
        "caps met",
        "crashes",
        "damaged batches redriven",
        "handles lost",
        "loaders refused",
        "queue taken over: load",
        "queue taken over: stay",
        "queue taken over: visit",
        "queues bound to a loader",
        "settings changed",
        "unreadable deliveries",
        "workers dismissed",
    ):
        assert outcome.counts[what] > 0, f"no seed reached: {what}"
