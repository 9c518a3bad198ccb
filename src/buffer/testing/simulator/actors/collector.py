"""A garbage collector: the real one, a cycle every now and then. What it may not delete, the witness knows."""

from __future__ import annotations

from buffer.config import GcConfig
from buffer.errors import StorageError
from buffer.gc.collector import Collector, Refusal
from buffer.testing.simulator.faults import Span
from buffer.testing.simulator.scheduler import describe_error
from buffer.testing.simulator.world import PREFIX, Actor, Host, World


class CollectorActor(Actor):
    """One that runs on its own, as `buffer gc` does."""

    def __init__(self, world: World, name: str, *, interval_s: Span) -> None:
        super().__init__(world, name)
        self.interval_s = interval_s

    def run(self, host: Host) -> None:
        _collect(self, host, self.interval_s, epoch=None)


def collect_beside(actor: Actor, host: Host, interval_s: Span, epoch: int) -> None:
    """Give a consumer or loader the collector that comes with it, in a thread of the same process."""

    def ended(error: Exception | None) -> None:
        if error is not None:
            actor.world.scheduler.violate(f"the collector of {actor.name} died\n{describe_error(error)}")

    host.process.thread(lambda: _collect(actor, host, interval_s, epoch), ended)


def _collect(actor: Actor, host: Host, interval_s: Span, epoch: int | None) -> None:
    config = GcConfig(store=host.store, data_path_prefix=PREFIX)
    collector = Collector(config, store=host.store, clock=host.clock, epoch=epoch)
    counts = actor.world.scheduler.counts
    while True:
        actor.rest(host, interval_s)
        try:
            report = collector.collect_once()
        except StorageError as error:
            host.process.note(f"could not look: {error}")
            continue
        counts["batches collected" if epoch is None else "batches collected beside a consumer"] += len(report.deleted)
        host.process.note(f"deleted {len(report.deleted)}, {len(report.waiting)} wait, {report.refusal}")
        if report.refusal is Refusal.FENCED:
            counts["collectors fenced"] += 1
            return
