"""A reader that knows nothing of this project's ledger: it claims, reads and dequeues, and keeps no marks."""

from __future__ import annotations

from buffer.errors import ContentionError, Fenced, StorageError
from buffer.queue import QueueConsumer
from buffer.testing.simulator.actors.consumer import Sink
from buffer.testing.simulator.faults import Span
from buffer.testing.simulator.world import MANIFEST_PATH, Actor, Host, World


class ForeignReaderActor(Actor):
    """Empties the queue until another one takes over."""

    def __init__(self, world: World, name: str, sink: Sink, *, poll_s: Span) -> None:
        super().__init__(world, name)
        self.sink = sink
        self.poll_s = poll_s

    def run(self, host: Host) -> None:
        self.world.queue.marks_may_be_lost = True
        queue = QueueConsumer(host.store, MANIFEST_PATH, host.clock)
        claimed = queue.claim(self.sink.last)
        self.world.queue.claimed(host.process, claimed.epoch)
        while True:
            entry = queue.peek()
            if entry is not None:
                self.sink.take(entry.sequence)
                queue.dequeue(entry.sequence)
                self.world.scheduler.counts["dequeued by a foreign reader"] += 1
            self.rest(host, self.poll_s)

    def ended(self, error: Exception | None) -> float | None:
        if isinstance(error, Fenced):
            return None
        if isinstance(error, ContentionError) or (isinstance(error, StorageError) and error.retryable):
            return self.draw(self.world.weather.restart_s)
        return super().ended(error)
