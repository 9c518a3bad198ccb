"""Worlds with a queue alone: producers, plain consumers, collectors. The loader's worlds build on these parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from buffer.names import batch_ulid
from buffer.testing.simulator.actors.collector import CollectorActor
from buffer.testing.simulator.actors.consumer import ConsumerActor, Sink
from buffer.testing.simulator.actors.producer import ProducerActor
from buffer.testing.simulator.faults import Span, Weather
from buffer.testing.simulator.trace import Trace
from buffer.testing.simulator.world import World

DAY_S = 86_400.0
CLOCK_SKEW_MAX_S = 150.0
"""Each clock's: then two of them differ by half the collector's grace period at most, as the docs demand."""


@dataclass(frozen=True, slots=True)
class Flavour:
    """What happens to producers and collectors where batches lie around for long."""

    kinds: tuple[str, ...]
    span_s: Span
    """How long requests hang and processes stop."""
    has_background: bool
    """Somebody whom nothing bad happens to keeps the manifest changing, and the collectors look all the while."""


COLLECTIONS = (
    Flavour(("stop_before", "stop_after", "late"), (300.0, 1500.0), has_background=False),
    Flavour(("stop_before", "outage"), (600.0, 2500.0), has_background=True),
    Flavour(("stop_before", "stop_after"), (40.0, 290.0), has_background=True),
    Flavour(("ambush", "late", "stop_before", "stop_after"), (250.0, 900.0), has_background=False),
)

DAYS = Flavour(("stop_before", "stop_after"), (0.5 * DAY_S, 2.5 * DAY_S), has_background=False)
"""Machines that sleep for days with an append in hand, on a queue where nothing happens meanwhile."""
DAYS_SHARE = 0.15
SLOW_COLLECT_S: Span = (3000.0, 6000.0)  # a run of days has no events to spare


class Pace:
    """How fast a world is: the seed picks one of these.

    brisk     seconds; requests overtake each other, loaders and consumers take over from each other
    busy      the same with producers that have the next batch ready before the last one is appended
    patient   hours; requests hang, processes stop for as long as a collector's grace period
    """

    def __init__(self, random: Random, names: Sequence[str]) -> None:
        self.name = random.choice(names)
        self.is_patient = self.name == "patient"
        if self.is_patient:
            self.storm_s = random.uniform(2000.0, 8000.0)
            self.long_s = random.choice((300.0, 1000.0))
            self.timeout_s = random.choice((10.0, 60.0))
            self.poll_s: Span = (20.0, 600.0)
            self.cas_timeout_s = random.choice((15.0, 60.0, 600.0))
            self.drain_s = 40_000.0
        else:
            self.storm_s = random.choice((3.0, 15.0, 60.0))
            self.long_s = self.storm_s / 4
            self.timeout_s = random.choice((0.2, 2.0))
            self.poll_s = (0.1, self.storm_s / 8)
            self.cas_timeout_s = random.choice((0.5, 5.0))
            self.drain_s = 4000.0
        self.think_s: Span = (0.001, 0.05) if self.name == "busy" else (0.1, self.storm_s / 8)

    def weather(self, random: Random) -> Weather:
        return Weather.draw(
            random,
            calm_at_s=self.storm_s,
            long_s=self.long_s,
            timeout_s=self.timeout_s,
            skew_s=CLOCK_SKEW_MAX_S if self.is_patient else 1.0,
        )


def make_world(
    seed: int, kind: str, pace: Pace, random: Random, trace: Trace | None, weather: Weather | None = None
) -> World:
    """An empty world whose own chances follow from the seed."""
    world = World(f"{seed} {kind}", weather or pace.weather(random), trace)
    world.scheduler.note("*", f"seed {seed}: {kind}, {pace.name}, {world.weather}")
    return world


def add_producers(world: World, random: Random, pace: Pace, *, kinds: str, batches: int) -> None:
    """One to three producers that share about this many batches."""
    count = random.choice((1, 1, 2, 2, 3))
    for index in range(count):
        keys = max(1, round(random.uniform(0.5, 1.5) * batches / count))
        add_producer(world, random, pace, f"producer{index}", kinds=kinds, keys=keys)


def add_producer(
    world: World, random: Random, pace: Pace, name: str, *, kinds: str, keys: int, sheltered: bool = False
) -> None:
    producer = ProducerActor(
        world,
        name,
        keys=keys,
        think_s=pace.think_s,
        kinds=kinds,
        uploaders=random.choice((1, 2, 3)),
        settings={
            "append_timeout_s": pace.cas_timeout_s,
            "flush_interval_ms": random.choice((1, 1000)),
            "compression": random.choice(("none", "none", "none", "zstd")),
        },
    )
    producer.is_sheltered = sheltered
    world.add(producer, random.uniform(0.0, pace.storm_s / 4))


def own_collector(random: Random, pace: Pace) -> Span | None:
    """How often the collector looks that comes with each consumer of a world, if it has one."""
    return random.choice(((20.0, 60.0), (100.0, 300.0))) if pace.is_patient and random.random() < 0.3 else None


def add_collectors(world: World, random: Random, pace: Pace, *, sheltered: bool = False, slow: bool = False) -> None:
    """One or two collectors where there is time for them; of those not sheltered, half are anyway."""
    if not pace.is_patient:
        return
    for index in range(random.choice((1, 1, 2))):
        interval_s = random.choice(((20.0, 60.0), (100.0, 300.0)))
        if slow:
            interval_s = SLOW_COLLECT_S
        collector = CollectorActor(world, f"collector{index}", interval_s=interval_s)
        collector.is_sheltered = sheltered or random.random() < 0.5
        world.add(collector, random.uniform(0.0, 600.0))


def simulate_queue(seed: int, trace: Trace | None = None) -> World:
    """Run one world of producers, consumers and perhaps collectors. Raises Violation."""
    random = Random(f"{seed} queue")
    pace = Pace(random, ("brisk", "busy", "busy", "patient"))
    world = make_world(seed, "queue", pace, random, trace)
    add_producers(world, random, pace, kinds="a", batches=random.choice((2, 5, 10)))
    add_collectors(world, random, pace)
    add_consumers(world, random, pace, random.choice((1, 1, 2, 3)))
    world.run(pace.drain_s)
    return world


def simulate_collection(seed: int, trace: Trace | None = None) -> World:
    """Run one world in which batches lie around for as long as a collector's grace period. Raises Violation.

    The queue is empty most of the time, so nothing but the age of a batch and the two looks protect it, and the
    processes stop and the requests hang for as long as it takes to make a batch look forgotten. In the end
    everything is collected.
    """
    random = Random(f"{seed} collection")
    flavour = random.choice(COLLECTIONS)
    pace = Pace(random, ("patient",))
    pace.storm_s, pace.poll_s, pace.think_s = 6000.0, (20.0, 90.0), (5.0, 1500.0)
    pace.cas_timeout_s = random.choice((60.0, 1000.0))
    is_days = Random(f"{seed} days").random() < DAYS_SHARE  # a chance of its own: the other seeds stay as they were
    if is_days:
        flavour, pace.storm_s, pace.poll_s = DAYS, 8 * DAY_S, (600.0, 6000.0)
    weather = Weather(
        pace.storm_s,
        **dict.fromkeys(flavour.kinds, random.choice((0.05, 0.1))),  # type: ignore[arg-type]  # all of them chances
        jump=0.02,
        late_s=flavour.span_s,
        outage_s=flavour.span_s,
        stop_s=flavour.span_s,
        timeout_s=pace.timeout_s,
        skew_s=random.choice((1.0, CLOCK_SKEW_MAX_S)),
    )
    world = make_world(seed, "collection", pace, random, trace, weather)
    add_producers(world, random, pace, kinds="a", batches=random.choice((4, 8)))
    add_collectors(world, random, pace, sheltered=flavour.has_background or is_days, slow=is_days)
    add_consumers(world, random, pace, 1, sheltered=random.random() < 0.8 or is_days, slow=is_days)
    if flavour.has_background:
        pace.think_s = (20.0, 300.0)
        add_producer(world, random, pace, "background", kinds="a", keys=25, sheltered=True)
    world.goals.append(lambda: not any(batch_ulid(location) for location in world.server.objects))
    world.run(drain_s=4 * DAY_S)  # on a manifest that does not change, collectors wait for a day
    return world


def add_consumers(
    world: World,
    random: Random,
    pace: Pace,
    count: int,
    *,
    sheltered: bool = False,
    slow: bool = False,
    sink: Sink | None = None,
) -> None:
    """Consumers that empty the queue, one after the other or against each other."""
    sink = sink or Sink(world)
    collect_s = own_collector(random, pace)
    if slow and collect_s is not None:
        collect_s = SLOW_COLLECT_S
    for index in range(count):
        consumer = ConsumerActor(
            world,
            f"consumer{index}",
            sink,
            poll_s=pace.poll_s,
            cas_timeout_s=pace.cas_timeout_s,
            collect_s=collect_s,
        )
        consumer.is_sheltered = sheltered
        world.add(consumer, random.uniform(0.0, pace.storm_s / 2))
    world.goals.append(lambda: world.queue.is_drained)
