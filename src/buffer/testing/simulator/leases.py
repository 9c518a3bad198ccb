"""Worlds with leases: workers, an operator, dead letters."""

from __future__ import annotations

from random import Random
from typing import Any

from buffer.config import LeaseConfig
from buffer.testing.simulator.actors.worker import OperatorActor, WorkerActor
from buffer.testing.simulator.lease_witness import DEAD_PATH, LeaseWitness
from buffer.testing.simulator.queues import Pace, add_producers
from buffer.testing.simulator.trace import Trace
from buffer.testing.simulator.world import World

FLAVOURS: tuple[dict[str, Any], ...] = (
    {"dlq_strategy": "skip", "dlq": DEAD_PATH},
    {"dlq_strategy": "skip", "dlq": DEAD_PATH, "max_delivery_attempts": 1},
    {"dlq_strategy": "block", "dlq": DEAD_PATH},
    {"dlq_strategy": "block"},
    {"dlq_strategy": "skip", "dlq": DEAD_PATH, "max_ack_holes": 1, "max_in_flight": 3},
    {"dlq_strategy": "skip", "dlq": DEAD_PATH, "max_in_flight": 1},
    {"dlq_strategy": "block", "ordering_required": True},
    {"dlq_strategy": "block_and_dlq", "dlq": DEAD_PATH},
    {"dlq_strategy": "block_and_dlq", "dlq": DEAD_PATH, "ordering_required": True, "max_delivery_attempts": 1},
)


CLOCKS_OFF_S = (365 * 86_400.0, 3_600.0, 120.0, -120.0, -3_600.0, -365 * 86_400.0)
"""Of a machine whose clock nobody has set."""


def simulate_leases(seed: int, trace: Trace | None = None) -> World:
    """Run one world of producers and workers that share a queue. Raises Violation."""
    random = Random(f"{seed} leases")
    pace = Pace(random, ("brisk", "brisk", "busy"))
    world = World(f"{seed} leases", pace.weather(random), trace, LeaseWitness)
    witness = world.queue
    assert isinstance(witness, LeaseWitness)
    timeout_ms = random.choice((500, 3_000, 10_000))
    leases = LeaseConfig(**{"visibility_timeout_ms": timeout_ms, "max_delivery_attempts": 2, **random.choice(FLAVOURS)})
    world.scheduler.note("*", f"seed {seed}: leases, {pace.name}, {leases}, {world.weather}")
    add_producers(world, random, pace, kinds="a", batches=random.choice((2, 4, 8)))
    count = random.choice((1, 2, 2, 3))
    wrong, off_s = random.choice((None, None, *range(count))), random.choice(CLOCKS_OFF_S)
    for index in range(count):
        worker = WorkerActor(
            world,
            f"worker{index}",
            witness,
            leases,
            poll_s=pace.poll_s,
            work_s=random.choice(((0.001, 0.1), (0.01, timeout_ms / 500))),
            cas_timeout_s=pace.cas_timeout_s,
            acks_chance=random.choice((0.3, 0.7)),
        )
        if index == wrong:
            worker.clock_off_s = off_s
        worker.retires = wrong is not None and index != wrong and off_s < 0  # and leave the rest to the slow one
        world.add(worker, random.uniform(0.0, pace.storm_s / 4))
    operator = OperatorActor(
        world,
        "operator",
        witness,
        poll_s=pace.poll_s,
        cas_timeout_s=pace.cas_timeout_s,
        redrives=random.choice((0, 1, 2)),
    )
    world.add(operator, random.uniform(0.0, pace.storm_s / 2))
    world.goals.append(lambda: witness.is_worked_off)
    world.checks.append(witness.check_worked_off)
    world.run(pace.drain_s)
    return world
