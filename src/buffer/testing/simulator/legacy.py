"""Worlds with a queue of the older format: Ingestors, Collectors, migrations, and batches that nobody can read."""

from __future__ import annotations

from random import Random
from typing import Any

from buffer.legacy.format import ProducerManifest, encode_producer_manifest
from buffer.testing.simulator.actors.legacy_collector import LegacyCollectorActor
from buffer.testing.simulator.actors.legacy_ingestor import LegacyIngestorActor
from buffer.testing.simulator.actors.legacy_mover import LegacyMoverActor
from buffer.testing.simulator.faults import Span, Weather
from buffer.testing.simulator.legacy_witness import LEGACY_PATH, LEGACY_PREFIX, LegacyWitness, MovedWitness
from buffer.testing.simulator.trace import Trace
from buffer.testing.simulator.witness import QueueWitness
from buffer.testing.simulator.world import World

HURRIED = 0.3
"""Of the worlds: requests hang for longer than it takes to collect a batch and to clean up after it, so that they
find the manifests as they were when they were sent."""
UNREADABLE = 0.25  # of the worlds
MIGRATED = 0.4  # of the worlds
SKEWS_PER_TIMEOUT = 6  # each clock's: then two of them differ by a third of the timeout, as the docs allow


class _Draw:
    """What one world is like, drawn in this order: another order would be other worlds for the seeds."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.is_hurried = random.random() < HURRIED
        self.storm_s = 10.0 if self.is_hurried else random.choice((3.0, 15.0, 60.0))
        self.timeout_s = random.choice((self.storm_s / 20, self.storm_s / 8, self.storm_s / 3))
        tenth_s = self.timeout_s / 10
        self.request_timeout_s = tenth_s if self.is_hurried else random.choice((tenth_s, self.timeout_s / 2))
        self.weather = self._weather(self.timeout_s / SKEWS_PER_TIMEOUT * random.choice((0.0, 0.5, 1.0)))
        self.movers = random.choice((1, 1, 2)) if random.random() < MIGRATED else 0
        self.cas_timeout_s = random.choice((self.request_timeout_s, self.timeout_s, 3 * self.timeout_s))
        self.timeout_ms = int(self.timeout_s * 1000)
        self.cleanup_threshold = 1 if self.is_hurried else random.choice((1, 1, 2, 5))
        self.read_tries = random.choice((1, 2, 3))
        self.fetch_attempts = random.choice((1, 3))

    def _weather(self, skew_s: float) -> Weather:
        random = self.random
        if self.is_hurried:
            return Weather(
                self.storm_s,
                late=random.choice((0.05, 0.15)),
                retried=random.choice((0.0, 0.1)),
                latency_s=(0.0005, 0.005),
                late_s=(0.05, 3.0),
                timeout_s=self.request_timeout_s,
                skew_s=skew_s,
            )
        return Weather.draw(
            random,
            calm_at_s=self.storm_s,
            long_s=random.choice((self.timeout_s, self.storm_s / 4)),
            timeout_s=self.request_timeout_s,
            skew_s=skew_s,
        )

    @property
    def settings(self) -> dict[str, Any]:
        """A Collector's."""
        return {
            "heartbeat_timeout_ms": self.timeout_ms,
            "done_cleanup_threshold": self.cleanup_threshold,
            "read_tries": self.read_tries,
            "fetch_attempts": self.fetch_attempts,
            "cas_timeout_s": self.cas_timeout_s,
        }

    @property
    def poll_s(self) -> Span:
        return (0.002, 0.05) if self.is_hurried else (0.01, self.timeout_s)


def simulate_legacy(seed: int, trace: Trace | None = None) -> World:
    """Run one world of Ingestors and Collectors. Raises Violation."""
    random = Random(f"{seed} legacy")
    draw = _Draw(random)
    world = World(f"{seed} legacy", draw.weather, trace, MovedWitness if draw.movers else QueueWitness)
    world.scheduler.note("*", f"seed {seed}: legacy, claims stale after {draw.timeout_s:.2f} s, {draw.weather}")
    witness = LegacyWitness(
        world.scheduler,
        world.server,
        timeout_ms=draw.timeout_ms,
        read_tries=draw.read_tries,
        moved=world.queue if isinstance(world.queue, MovedWitness) else None,
    )
    if random.random() < UNREADABLE:
        _plant_unreadable(world, witness, random)
    _add_ingestors(world, witness, draw)
    _add_movers(world, draw)
    _add_collectors(world, witness, draw)
    world.goals.append(lambda: witness.is_drained)
    world.checks.append(witness.check_end)
    world.run(drain_s=4000.0)
    return world


def _add_ingestors(world: World, witness: LegacyWitness, draw: _Draw) -> None:
    random = draw.random
    for index in range(random.choice((1, 2, 2, 3))):
        ingestor = LegacyIngestorActor(
            world,
            f"ingestor{index}",
            witness,
            keys=random.choice((1, 3, 6)),
            think_s=(0.01, 1.0) if draw.is_hurried else random.choice(((0.001, 0.05), (0.1, draw.storm_s / 8))),
            append_timeout_s=draw.cas_timeout_s,
        )
        world.add(ingestor, random.uniform(0.0, draw.storm_s / 4))


def _add_movers(world: World, draw: _Draw) -> None:
    random = draw.random
    for index in range(draw.movers):
        mover = LegacyMoverActor(
            world,
            f"mover{index}",
            poll_s=draw.poll_s,
            window=random.choice((1, 2, 5)),
            collect=draw.settings,
            produce={"append_timeout_s": draw.cas_timeout_s, "flush_size_bytes": random.choice((1, 100, 1 << 20))},
        )
        world.add(mover, random.uniform(0.0, draw.storm_s / 2))


def _add_collectors(world: World, witness: LegacyWitness, draw: _Draw) -> None:
    random = draw.random
    for index in range(random.choice((0, 0, 1, 2) if draw.movers else (1, 2, 2, 3))):
        collector = LegacyCollectorActor(
            world,
            f"collector{index}",
            witness,
            poll_s=draw.poll_s,
            work_s=(0.001, 0.005) if draw.is_hurried else (0.001, draw.timeout_s * random.choice((0.1, 2.0))),
            holds=random.choice((1, 1, 3)),
            settings=draw.settings,
        )
        world.add(collector, random.uniform(0.0, draw.storm_s / 2))


def _plant_unreadable(world: World, witness: LegacyWitness, random: Random) -> None:
    locations = [f"{LEGACY_PREFIX}/bad{index}.json" for index in range(random.choice((1, 2)))]
    for location in locations:
        witness.plant(location, random.choice((b"[{", b'[{"key":"YQ=="}]', None)))
    world.server.objects[LEGACY_PATH] = encode_producer_manifest(ProducerManifest(tuple(locations)))
