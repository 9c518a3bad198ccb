"""Finding a mutant among seeds. `python -m tests.simulation.finding` looks for all of them anew and writes `seen.json`.

Most mutants need a rare meeting of several actors, hundreds of seeds away. So the seed that saw one last is written
down and tried first. Where the worlds or the code have changed since and it sees nothing any more, all are tried.
"""

from __future__ import annotations

import importlib
import json
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from buffer.testing.simulator.leases import simulate_leases
from buffer.testing.simulator.legacy import simulate_legacy
from buffer.testing.simulator.runner import Simulation, run_seeds
from buffer_delta.testing import simulate, world_of
from tests.simulation.lease_mutants import LEASE_MUTANTS
from tests.simulation.legacy_mutants import LEGACY_MUTANTS
from tests.simulation.mutants import MUTANTS, Mutant

for module in sorted(Path(__file__).parent.glob("*_mutants.py")):
    if not module.stem.startswith("test_"):
        importlib.import_module(f"tests.simulation.{module.stem}")  # which fills MUTANTS

SEEN = Path(__file__).with_name("seen.json")

KINDS: Mapping[str, tuple[Simulation, Mapping[str, Mutant]]] = {
    "queue": (simulate, MUTANTS),
    "leases": (simulate_leases, LEASE_MUTANTS),
    "legacy": (simulate_legacy, LEGACY_MUTANTS),
}


def seeds_for(mutant: Mutant) -> list[int]:
    """Those whose world can see it."""
    return [seed for seed in range(mutant.within) if not mutant.worlds or world_of(seed) in mutant.worlds]


def find(kind: str, name: str) -> int | None:
    """A seed that sees what it should. A break may show in several ways; one of them is the point of it."""
    simulation, mutants = KINDS[kind]
    mutant = mutants[name]
    seeds = seeds_for(mutant)
    last = _seen().get(kind, {}).get(name)
    with mutant.apply():
        if last is not None and _first(simulation, mutant, [last]) == last:
            return last
        return _first(simulation, mutant, seeds)


def _first(simulation: Simulation, mutant: Mutant, seeds: Sequence[int]) -> int | None:
    while seeds:
        outcome = run_seeds(simulation, seeds)
        if outcome.failed is None:
            return None
        seed, violation = outcome.failed
        if re.search(mutant.sees, violation):
            return seed
        seeds = seeds[outcome.seeds + 1 :]
    return None


@cache
def _seen() -> dict[str, dict[str, int]]:
    return json.loads(SEEN.read_text()) if SEEN.exists() else {}


def main() -> int:
    logging.disable(logging.CRITICAL)
    found: dict[str, dict[str, int]] = {}
    survivors = []
    for kind, (_, mutants) in KINDS.items():
        for name in sorted(mutants):
            seed = find(kind, name)
            sys.stdout.write(f"{kind} {name}: {'survived' if seed is None else f'seed {seed}'}\n")
            sys.stdout.flush()
            if seed is None:
                survivors.append(name)
            else:
                found.setdefault(kind, {})[name] = seed
    SEEN.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
