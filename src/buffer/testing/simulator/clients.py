"""Worlds with client ids: producers that number their calls, readers that keep marks, and one that does not."""

from __future__ import annotations

from random import Random

from buffer.testing.simulator.actors.client import ClientActor
from buffer.testing.simulator.actors.consumer import Sink
from buffer.testing.simulator.actors.foreign import ForeignReaderActor
from buffer.testing.simulator.queues import Pace, add_consumers, add_producer, make_world
from buffer.testing.simulator.trace import Trace
from buffer.testing.simulator.world import World

TWINS = 0.25  # of all worlds


def add_client(
    world: World, random: Random, pace: Pace, name: str, *, client_id: str, habit: str, kinds: str, keys: int
) -> None:
    client = ClientActor(
        world,
        name,
        client_id=client_id,
        habit=habit,
        keys=keys,
        kinds=kinds,
        think_s=pace.think_s,
        uploaders=random.choice((1, 2, 3)),
        settings={
            "append_timeout_s": pace.cas_timeout_s,
            "flush_interval_ms": random.choice((1, 1000)),
            "compression": random.choice(("none", "none", "none", "zstd")),
        },
    )
    world.add(client, random.uniform(0.0, pace.storm_s / 4))


def add_clients(world: World, random: Random, pace: Pace, *, kinds: str, batches: int) -> None:
    """One or two clients, or two producers that share one client id."""
    keys = max(1, round(random.uniform(0.5, 1.5) * batches))
    if random.random() < TWINS:
        for index in range(2):
            add_client(world, random, pace, f"twin{index}", client_id="twin", habit="twin", kinds=kinds, keys=keys)
        return
    for index in range(random.choice((1, 1, 2))):
        habit = random.choice(("source", "source", "mark"))
        add_client(world, random, pace, f"client{index}", client_id=f"c{index}", habit=habit, kinds=kinds, keys=keys)


def simulate_clients(seed: int, trace: Trace | None = None) -> World:
    """Run one world of producers with client ids and readers. Raises Violation.

    crossing   readers and a producer without an id are busy with the queue while the first client comes to it
    foreign    a reader that keeps no marks empties the queue, until another one takes over
    """
    random = Random(f"{seed} clients")
    flavour = random.choice(("", "", "crossing", "foreign"))
    pace = Pace(random, {"crossing": ("busy",), "foreign": ("brisk",)}.get(flavour, ("brisk", "busy", "busy")))
    if flavour == "crossing":
        pace.storm_s, pace.poll_s = 3.0, (0.005, 0.05)
    world = make_world(seed, "clients", pace, random, trace)
    if flavour or random.random() < 0.3:
        keys = {"crossing": 30, "foreign": 8}.get(flavour, 3)
        add_producer(world, random, pace, "producer0", kinds="a", keys=keys)
    add_clients(world, random, pace, kinds="a", batches=10 if flavour == "foreign" else random.choice((3, 6, 10)))
    sink = Sink(world)
    if flavour == "foreign":
        foreign = ForeignReaderActor(world, "foreign0", sink, poll_s=(0.05, pace.storm_s / 20))
        world.add(foreign, random.uniform(0.0, pace.storm_s / 8))
    add_consumers(world, random, pace, random.choice((1, 1, 2)), sink=sink)
    world.run(pace.drain_s)
    return world
