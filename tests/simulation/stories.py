"""Short stories: a queue, tables, and loaders that are driven step by step on the simulator's store and clock."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from buffer.codec.batch import encode_batch
from buffer.config import ConsumerConfig
from buffer.queue import QueueProducer
from buffer.testing.simulator import Actor, Host, Record, Weather, World
from buffer.testing.simulator.world import MANIFEST_PATH
from buffer_delta.load.ports import Rules
from buffer_delta.load.protocol import LoadProtocol
from buffer_delta.testing.delta_log import SimulatedTarget
from buffer_delta.testing.tables import Tables
from buffer_delta.testing.work import ROUTINGS, Poison, Setup, SimulatedWork


class Story(Actor):
    """A queue with one batch that nobody can read, and loaders that are driven step by step."""

    dead_letters: str | None = None
    second: str | None = None
    batches = 1
    kinds = "!"

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        names = [name for name in ("main", self.second, self.dead_letters) if name]
        self.tables = Tables(world, names, self.dead_letters)
        self.poison = Poison(world.scheduler, Random(0), fixed_at_s=float("inf"), chance=1.0)
        self.is_told = False

    @property
    def is_done(self) -> bool:
        return self.is_told

    def run(self, host: Host) -> None:
        for key in range(self.batches):
            location = f"ingest/{host.clock.new_ulid()}.batch"
            records = [Record("p", 10 * key + i, 1, key, kind) for i, kind in enumerate(self.kinds)]
            host.store.put(location, encode_batch([record.to_bytes() for record in records]))
            QueueProducer(host.store, MANIFEST_PATH, host.clock).append_locations([(location, ())])
        self.tell(host)
        self.is_told = True

    def tell(self, host: Host) -> None:
        raise NotImplementedError

    def loader(
        self,
        host: Host,
        reached: Callable[[str], None] = lambda _: None,
        routing: str = ROUTINGS[0],
        tables: tuple[str, ...] | None = None,
        **rules: Any,
    ) -> LoadProtocol:
        names = tables or tuple(self.tables.names)
        setup = Setup(names, self.dead_letters if self.dead_letters in names else None, routing)
        return LoadProtocol(
            ConsumerConfig(store=host.store, gc_enabled=False),
            host.store,
            [self.target(host, name) for name in setup.tables],
            SimulatedWork(host, self.poison, setup),
            host.clock,
            Rules(
                max_delivery_attempts=1,
                dlq_strategy="skip" if setup.dead_letters else "block",
                has_dead_letters=setup.dead_letters is not None,
                **rules,
            ),
            reached=reached,
            open_table=lambda name: self.target(host, name),
        )

    def target(self, host: Host, name: str) -> SimulatedTarget:
        return SimulatedTarget(self.world, host, self.tables.log(name), self.poison.refuses)


def tell(story: type[Story]) -> None:
    world = World(1, Weather(calm_at_s=0.0))
    world.add(story(world, "story"))
    world.checks.clear()  # the batch stays blocked
    world.run(drain_s=1000.0)


def step(loader: LoadProtocol) -> Any:
    return loader.step(len, 10)
