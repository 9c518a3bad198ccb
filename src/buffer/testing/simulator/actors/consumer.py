"""A plain consumer: reads in order, keeps the last sequence with its results, acks, and opens with it again.

Its results outlive it (`Sink`). Sometimes it acks what it may not ack yet, which has to be refused.
"""

from __future__ import annotations

from buffer.config import ConsumerConfig
from buffer.consume.consumer import Consumer
from buffer.errors import (
    ContentionError,
    Fenced,
    ObjectNotFound,
    OutOfOrderAck,
    QueueAheadOfConsumer,
    StorageError,
)
from buffer.testing.simulator.actors.collector import collect_beside
from buffer.testing.simulator.faults import Span
from buffer.testing.simulator.witness import Appended
from buffer.testing.simulator.world import Actor, Host, World

WRONG_ACK_CHANCE = 0.1
RESTARTS_AFTER_FENCED_MAX = 2  # restarting for ever would be a duel, which the documentation forbids


class Sink:
    """Where consumers of one queue put their results: together with the sequence, so it knows what it has."""

    def __init__(self, world: World) -> None:
        self.last: int | None = None
        world.queue.may_dequeue.append(self._may_dequeue)

    def take(self, sequence: int) -> None:
        self.last = sequence if self.last is None else max(self.last, sequence)

    def _may_dequeue(self, batch: Appended) -> str | None:
        return "nobody has processed it" if self.last is None or batch.sequence > self.last else None


class ConsumerActor(Actor):
    def __init__(
        self,
        world: World,
        name: str,
        sink: Sink,
        *,
        poll_s: Span,
        cas_timeout_s: float,
        collect_s: Span | None = None,
    ) -> None:
        super().__init__(world, name)
        self.sink = sink
        self.poll_s = poll_s
        self.cas_timeout_s = cas_timeout_s
        self.collect_s = collect_s
        """How often its own collector looks; None: it has none."""
        self.restarts_after_fenced = 0

    def run(self, host: Host) -> None:
        config = ConsumerConfig(store=host.store, gc_enabled=False, cas_timeout_s=self.cas_timeout_s)
        consumer = Consumer.new(config, self.sink.last, clock=host.clock)
        self.world.queue.claimed(host.process, consumer.epoch)
        if self.collect_s is not None:
            collect_beside(self, host, self.collect_s, consumer.epoch)
        while True:
            self._try_wrong_ack(consumer)
            try:
                batch = consumer.next_batch()
            except ObjectNotFound:
                self._step_over_hole(consumer)
                continue
            if batch is None:
                consumer.flush()
                self.rest(host, self.poll_s)
                continue
            self.world.queue.handed_out(host.process, batch.sequence, batch.location, batch.entries)
            expected = 0 if self.sink.last is None else self.sink.last + 1
            if batch.sequence > expected:
                self.world.scheduler.violate(f"{self.name} was given {batch.sequence}, but {expected} comes next")
            self.sink.take(batch.sequence)
            self._ack(consumer, batch.sequence)

    def _step_over_hole(self, consumer: Consumer) -> None:
        """The batch was gone when its append landed, and its producer was told so."""
        (descriptor,) = consumer.next_descriptors(1)
        if not self.world.queue.is_hole(descriptor.sequence):
            self.world.scheduler.violate(f"{self.name} found no such object as {descriptor.location}")
        self.sink.take(descriptor.sequence)
        self._ack(consumer, descriptor.sequence)

    def _ack(self, consumer: Consumer, sequence: int) -> None:
        way = self.world.scheduler.random.random()
        if way < 0.5:
            consumer.ack_through(sequence)
            return
        consumer.ack(sequence)
        if way < 0.8:
            consumer.flush()

    def _try_wrong_ack(self, consumer: Consumer) -> None:
        """Ack what was not handed out by this consumer: work of an earlier life that was still in somebody's hands."""
        if not self.chance(WRONG_ACK_CHANCE):
            return
        sequence = consumer.cursor + self.world.scheduler.random.randrange(3)
        try:
            if self.chance(0.5):
                consumer.ack(sequence)
                consumer.flush()
            else:
                consumer.ack_through(sequence)
        except OutOfOrderAck:
            return
        self.world.scheduler.violate(f"{self.name} could ack {sequence}, which it was never given")

    def ended(self, error: Exception | None) -> float | None:
        if isinstance(error, Fenced):
            if self.world.is_calm or self.restarts_after_fenced >= RESTARTS_AFTER_FENCED_MAX or self.chance(0.5):
                return None  # the other one goes on
            self.restarts_after_fenced += 1
            return self.draw(self.world.weather.restart_s)
        if isinstance(error, QueueAheadOfConsumer) and self.sink.last is not None:
            # The one before got further between our look at the sink and our claim: look again. If what is gone
            # from the queue is not in the sink either, `may_dequeue` has said so.
            return self.draw(self.world.weather.restart_s)
        passes = isinstance(error, ContentionError) or (isinstance(error, StorageError) and error.retryable)
        if passes and not isinstance(error, ObjectNotFound):
            return self.draw(self.world.weather.restart_s)
        return super().ended(error)
