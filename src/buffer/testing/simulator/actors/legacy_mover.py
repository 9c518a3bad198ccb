"""A migration of the older format: the real `Migration`, with a producer that has no threads. Several are one."""

from __future__ import annotations

from typing import Any

from buffer.config import ProducerConfig
from buffer.errors import BufferQueueError, ContentionError, ProducerStopped, StorageError
from buffer.legacy.config import CollectorConfig
from buffer.legacy.migration import Migration
from buffer.legacy.new_queue import CanProduce, NewQueue
from buffer.testing.simulator.faults import Span
from buffer.testing.simulator.legacy_witness import LEGACY_PATH
from buffer.testing.simulator.world import Actor, Host, World
from buffer.testing.stepped import SteppedProducer


class LegacyMoverActor(Actor):
    def __init__(
        self, world: World, name: str, *, poll_s: Span, window: int, collect: dict[str, Any], produce: dict[str, Any]
    ) -> None:
        super().__init__(world, name)
        self.poll_s = poll_s
        self.window = window
        self.collect = collect
        self.produce = produce

    def run(self, host: Host) -> None:
        collect = CollectorConfig(store=host.store, manifest_path=LEGACY_PATH, **self.collect)
        produce = ProducerConfig(store=host.store, **self.produce)

        def open_producer(client_id: str) -> CanProduce:
            return SteppedProducer(host.store, produce, host.clock, client_id)

        target = NewQueue(host.store, produce, host.clock, open_producer)
        migration = Migration(host.store, collect, host.clock, target, window=self.window)
        is_open = False
        while True:
            moved = 0
            try:
                if not is_open:
                    migration.open()
                    is_open = True
                moved = migration.step().batches
                self.world.scheduler.counts["batches moved, as they were told"] += moved
            except (ContentionError, ProducerStopped, StorageError) as error:
                self._check(error)
                host.process.note(f"no step: {type(error).__name__}: {error}")
            if not moved:
                self.rest(host, self.poll_s)

    @staticmethod
    def _check(error: BufferQueueError) -> None:
        """What does not pass by itself must not be met here."""
        if isinstance(error, StorageError) and not error.retryable:
            raise error
