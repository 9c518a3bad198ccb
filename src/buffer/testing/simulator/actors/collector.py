"""A garbage collector: the real one, a cycle every now and then. What it may not delete, the witness knows."""

from __future__ import annotations

from buffer.config import GcConfig
from buffer.errors import StorageError
from buffer.gc import Collector
from buffer.testing.simulator.faults import Span
from buffer.testing.simulator.world import PREFIX, Actor, Host, World


class CollectorActor(Actor):
    def __init__(self, world: World, name: str, *, interval_s: Span) -> None:
        super().__init__(world, name)
        self.interval_s = interval_s

    def run(self, host: Host) -> None:
        collector = Collector(GcConfig(store=host.store, data_path_prefix=PREFIX), store=host.store, clock=host.clock)
        while True:
            self.rest(host, self.interval_s)
            try:
                report = collector.collect_once()
            except StorageError as error:
                host.process.note(f"could not look: {error}")
                continue
            self.world.scheduler.counts["batches collected"] += len(report.deleted)
            host.process.note(f"deleted {len(report.deleted)}, {len(report.waiting)} wait, {report.refusal}")
