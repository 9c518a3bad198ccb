"""Worlds with a queue of the older format: Ingestors, Collectors, migrations, and batches that nobody can read."""

from __future__ import annotations

from random import Random

from buffer.legacy.format import ProducerManifest, encode_producer_manifest
from buffer.testing.simulator.actors.legacy_collector import LegacyCollectorActor
from buffer.testing.simulator.actors.legacy_ingestor import LegacyIngestorActor
from buffer.testing.simulator.actors.legacy_mover import LegacyMoverActor
from buffer.testing.simulator.faults import Weather
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


def simulate_legacy(seed: int, trace: Trace | None = None) -> World:
    """Run one world of Ingestors and Collectors. Raises Violation."""
    random = Random(f"{seed} legacy")
    is_hurried = random.random() < HURRIED
    storm_s = 10.0 if is_hurried else random.choice((3.0, 15.0, 60.0))
    timeout_s = random.choice((storm_s / 20, storm_s / 8, storm_s / 3))
    request_timeout_s = timeout_s / 10 if is_hurried else random.choice((timeout_s / 10, timeout_s / 2))
    skew_s = timeout_s / SKEWS_PER_TIMEOUT * random.choice((0.0, 0.5, 1.0))
    if is_hurried:
        weather = Weather(
            storm_s,
            late=random.choice((0.05, 0.15)),
            retried=random.choice((0.0, 0.1)),
            latency_s=(0.0005, 0.005),
            late_s=(0.05, 3.0),
            timeout_s=request_timeout_s,
            skew_s=skew_s,
        )
    else:
        weather = Weather.draw(
            random,
            calm_at_s=storm_s,
            long_s=random.choice((timeout_s, storm_s / 4)),
            timeout_s=request_timeout_s,
            skew_s=skew_s,
        )
    movers = random.choice((1, 1, 2)) if random.random() < MIGRATED else 0
    world = World(f"{seed} legacy", weather, trace, MovedWitness if movers else QueueWitness)
    world.scheduler.note("*", f"seed {seed}: legacy, claims stale after {timeout_s:.2f} s, {weather}")
    cas_timeout_s = random.choice((request_timeout_s, timeout_s, 3 * timeout_s))
    settings = {
        "heartbeat_timeout_ms": int(timeout_s * 1000),
        "done_cleanup_threshold": 1 if is_hurried else random.choice((1, 1, 2, 5)),
        "read_tries": random.choice((1, 2, 3)),
        "fetch_attempts": random.choice((1, 3)),
        "cas_timeout_s": cas_timeout_s,
    }
    witness = LegacyWitness(
        world.scheduler,
        world.server,
        timeout_ms=settings["heartbeat_timeout_ms"],  # type: ignore[arg-type]  # a dict of ints and a float
        read_tries=settings["read_tries"],  # type: ignore[arg-type]
        moved=world.queue if isinstance(world.queue, MovedWitness) else None,
    )
    if random.random() < UNREADABLE:
        _plant_unreadable(world, witness, random)
    for index in range(random.choice((1, 2, 2, 3))):
        ingestor = LegacyIngestorActor(
            world,
            f"ingestor{index}",
            witness,
            keys=random.choice((1, 3, 6)),
            think_s=(0.01, 1.0) if is_hurried else random.choice(((0.001, 0.05), (0.1, storm_s / 8))),
            append_timeout_s=cas_timeout_s,
        )
        world.add(ingestor, random.uniform(0.0, storm_s / 4))
    for index in range(movers):
        mover = LegacyMoverActor(
            world,
            f"mover{index}",
            poll_s=(0.002, 0.05) if is_hurried else (0.01, timeout_s),
            window=random.choice((1, 2, 5)),
            collect=settings,
            produce={"append_timeout_s": cas_timeout_s, "flush_size_bytes": random.choice((1, 100, 1 << 20))},
        )
        world.add(mover, random.uniform(0.0, storm_s / 2))
    for index in range(random.choice((0, 0, 1, 2) if movers else (1, 2, 2, 3))):
        collector = LegacyCollectorActor(
            world,
            f"collector{index}",
            witness,
            poll_s=(0.002, 0.05) if is_hurried else (0.01, timeout_s),
            work_s=(0.001, 0.005) if is_hurried else (0.001, timeout_s * random.choice((0.1, 2.0))),
            holds=random.choice((1, 1, 3)),
            settings=settings,
        )
        world.add(collector, random.uniform(0.0, storm_s / 2))
    world.goals.append(lambda: witness.is_drained)
    world.checks.append(witness.check_end)
    world.run(drain_s=4000.0)
    return world


def _plant_unreadable(world: World, witness: LegacyWitness, random: Random) -> None:
    locations = [f"{LEGACY_PREFIX}/bad{index}.json" for index in range(random.choice((1, 2)))]
    for location in locations:
        witness.plant(location, random.choice((b"[{", b'[{"key":"YQ=="}]', None)))
    world.server.objects[LEGACY_PATH] = encode_producer_manifest(ProducerManifest(tuple(locations)))
