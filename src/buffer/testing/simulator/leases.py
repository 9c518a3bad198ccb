"""Worlds with leases: workers, an operator, dead letters; and by the seed what else may happen to such a queue."""

from __future__ import annotations

from random import Random
from typing import Any

from buffer.config import LeaseConfig
from buffer.testing.simulator.actors.decay import DecayActor
from buffer.testing.simulator.actors.lease_operator import ConfigurerActor, OperatorActor, PurgerActor
from buffer.testing.simulator.actors.taker import TakerActor
from buffer.testing.simulator.actors.worker import Team, WorkerActor
from buffer.testing.simulator.lease_witness import LeaseWitness
from buffer.testing.simulator.letter_witness import DEAD_PATH
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

EVENTS = ("decay", "decay", "purge", "configure", "configure", "hand", "visit", "stay", "load")
"""What else may happen to a queue with leases: up to two of these in a world."""


def simulate_leases(seed: int, trace: Trace | None = None) -> World:
    """Run one world of producers and workers that share a queue. Raises Violation.

    decay       batches that nobody can read any more
    purge       somebody finishes all that waits
    configure   the settings change
    hand        an operator gives up batches that wait
    visit, stay, load   another reader takes the queue over (`actors/taker.py`)
    """
    random = Random(f"{seed} leases")
    pace = Pace(random, ("brisk", "brisk", "busy"))
    world = World(f"{seed} leases", pace.weather(random), trace, LeaseWitness)
    witness = world.queue
    assert isinstance(witness, LeaseWitness)
    timeout_ms = random.choice((500, 3_000, 10_000))
    leases = LeaseConfig(**{"visibility_timeout_ms": timeout_ms, "max_delivery_attempts": 2, **random.choice(FLAVOURS)})
    events = _events(seed, leases)
    world.scheduler.note("*", f"seed {seed}: leases, {pace.name}, {leases}, {sorted(events)}, {world.weather}")
    add_producers(world, random, pace, kinds="a", batches=random.choice((2, 4, 8)))
    team = Team(witness, leases, pace.poll_s, pace.cas_timeout_s, settings_change="configure" in events)
    _add_workers(world, random, pace, team)
    operator = OperatorActor(world, "operator", team, redrives=random.choice((0, 1, 2)), parks="hand" in events)
    world.add(operator, random.uniform(0.0, pace.storm_s / 2))
    _add_events(world, Random(f"{seed} lease events"), pace, team, events)
    is_taken = bool(events & {"stay", "load"})
    world.goals.append(lambda: witness.is_taken_off if is_taken else witness.is_worked_off)
    world.checks.append(witness.check_worked_off)
    world.run(pace.drain_s)
    return world


def _events(seed: int, leases: LeaseConfig) -> set[str]:
    """By a chance of its own: a world without any is what it would be if there were none."""
    random = Random(f"{seed} which lease events")
    events = set(random.sample(EVENTS, random.choice((0, 1, 1, 2))))
    takers = sorted(events & {"visit", "stay", "load"})
    events.difference_update(takers[1:])
    if leases.dlq is None:
        events.discard("decay")  # what nobody can read would be blocked for ever
    return events


def _add_workers(world: World, random: Random, pace: Pace, team: Team) -> None:
    count = random.choice((1, 2, 2, 3))
    wrong, off_s = random.choice((None, None, *range(count))), random.choice(CLOCKS_OFF_S)
    timeout_ms = team.leases.visibility_timeout_ms
    for index in range(count):
        worker = WorkerActor(
            world,
            f"worker{index}",
            team,
            work_s=random.choice(((0.001, 0.1), (0.01, timeout_ms / 500))),
            acks_chance=random.choice((0.3, 0.7)),
        )
        if index == wrong:
            worker.clock_off_s = off_s
        worker.retires = wrong is not None and index != wrong and off_s < 0  # and leave the rest to the slow one
        world.add(worker, random.uniform(0.0, pace.storm_s / 4))


def _add_events(world: World, random: Random, pace: Pace, team: Team, events: set[str]) -> None:
    if "decay" in events:
        world.add(DecayActor(world, "decay", team.witness, count=random.choice((1, 2, 3))))
    if "purge" in events:
        world.add(PurgerActor(world, "purger", team), random.uniform(pace.storm_s / 4, pace.storm_s))
    if "configure" in events:
        configurer = ConfigurerActor(
            world, "configurer", team, changes=random.choice((1, 2, 4)), needs_dlq="decay" in events
        )
        world.add(configurer, random.uniform(0.0, pace.storm_s / 2))
    for way in sorted(events & {"visit", "stay", "load"}):
        taker = TakerActor(
            world, "taker", team, way=way, visits=random.choice((1, 2, 3)), batches=random.choice((1, 2, 5))
        )
        world.add(taker, random.uniform(pace.storm_s / 8, pace.storm_s))
