"""A worker on a queue with leases: the real `LeaseQueue`, and all that workers do and forget to do with it.

It never does less than it says: what it acks it has been given. But it is slow, gives back, acks parts, dies with
leases in its hands, and answers for leases that it has lost meanwhile.
"""

from __future__ import annotations

from buffer.config import ConsumerConfig, LeaseConfig
from buffer.errors import CapExceeded, ContentionError, Fenced, InvalidHandle, StorageError
from buffer.leases.queue import LeaseQueue
from buffer.leases.values import Delivered, LeasedBatch
from buffer.testing.simulator.faults import Span
from buffer.testing.simulator.lease_witness import LeaseWitness
from buffer.testing.simulator.world import Actor, Host, World

NOTHING = Delivered()
GOOD_END = 0.9  # in calm weather: then a poor worker would never come to an end


class WorkerActor(Actor):
    """Consumes and answers for ever."""

    def __init__(
        self,
        world: World,
        name: str,
        witness: LeaseWitness,
        leases: LeaseConfig,
        *,
        poll_s: Span,
        work_s: Span,
        cas_timeout_s: float,
        acks_chance: float,
    ) -> None:
        super().__init__(world, name)
        self.witness = witness
        self.leases = leases
        self.poll_s = poll_s
        self.work_s = work_s
        self.cas_timeout_s = cas_timeout_s
        self.acks_chance = acks_chance
        self.retires = False
        """It goes for good when the faults are over, with a lease in its hands if there is one to be had."""

    def run(self, host: Host) -> None:
        config = ConsumerConfig(store=host.store, gc_enabled=False, cas_timeout_s=self.cas_timeout_s)
        queue = LeaseQueue.open(config, self.leases, clock=host.clock)
        random = self.world.scheduler.random
        done: list[LeasedBatch] = []
        while True:
            try:
                held = queue.consume(random.choice((1, 1, 2, 3)), acks=done)
            except InvalidHandle:
                self.world.scheduler.counts["handles lost"] += 1
                done = []
                continue
            except CapExceeded:
                self.world.scheduler.counts["caps met"] += 1
                held = NOTHING
            done = []
            if self.retires and self.world.is_calm:
                return
            if not held:
                self.rest(host, self.poll_s)
                continue
            for batch in held:
                self._check(host, batch)
                host.process.sleep(self.draw(self.work_s))
                if self._answer(queue, batch):
                    done.append(batch)

    def _check(self, host: Host, batch: LeasedBatch) -> None:
        witness, sequence = self.witness, batch.sequence
        witness.handed_out(host.process, sequence, batch.batch.location, batch.batch.entries)
        witness.delivered(host.process, sequence, batch.lease_id, batch.delivery_count, batch.indices)
        self.world.scheduler.counts["batches leased"] += 1

    def _answer(self, queue: LeaseQueue, batch: LeasedBatch) -> bool:
        """What becomes of it; whether it goes along with the next consume."""
        random = self.world.scheduler.random
        try:
            if self.chance(0.2):
                queue.extend(batch, random.choice((1, 1_000, 20_000)))
            good = GOOD_END if self.world.is_calm else self.acks_chance
            if self.chance(good):
                if self.chance(0.5):
                    return True
                queue.ack(batch)
            elif self.chance(0.3):
                queue.ack(batch, entries=[index for index in batch.indices if self.chance(0.5)])
                queue.nack(batch, reason="a part failed")
            elif self.chance(0.4):
                queue.nack(batch, delay_ms=random.choice((0, 500, 5_000)), reason="failed")
            elif self.chance(0.3):
                queue.snooze(batch)
                self.witness.snoozed(batch.sequence)
            # else: forgotten
        except InvalidHandle:
            self.world.scheduler.counts["handles lost"] += 1
        return False

    def ended(self, error: Exception | None) -> float | None:
        passes = isinstance(error, ContentionError) or (isinstance(error, StorageError) and error.retryable)
        if passes or isinstance(error, Fenced):  # Fenced: another one stopped between its claim and its ledger
            return self.draw(self.world.weather.restart_s)
        return super().ended(error)


class OperatorActor(Actor):
    """Unblocks what is blocked, gives up some of it, and brings dead letters back."""

    def __init__(
        self, world: World, name: str, witness: LeaseWitness, *, poll_s: Span, cas_timeout_s: float, redrives: int
    ) -> None:
        super().__init__(world, name)
        self.witness = witness
        self.poll_s = poll_s
        self.cas_timeout_s = cas_timeout_s
        self.redrives = redrives

    @property
    def is_done(self) -> bool:
        return self.redrives == 0

    def run(self, host: Host) -> None:
        config = ConsumerConfig(store=host.store, gc_enabled=False, cas_timeout_s=self.cas_timeout_s)
        while self.witness.section is None:
            self.glance(host)
        queue = LeaseQueue.open(config, clock=host.clock)
        while True:
            for sequence in queue.stats().blocked_sequences:
                self._decide(queue, sequence)
            if self.redrives and queue.settings.dlq is not None and (self.chance(0.3) or self.world.is_calm):
                moved = queue.redrive()
                self.world.scheduler.counts["batches redriven"] += moved
                self.redrives -= 1
            elif queue.settings.dlq is None:
                self.redrives = 0
            self.rest(host, self.poll_s)

    def _decide(self, queue: LeaseQueue, sequence: int) -> None:
        if queue.settings.dlq is not None and self.chance(0.3):
            queue.park(sequence)
            return
        attempts = self.world.scheduler.random.choice((1, 2))
        count = len(self.witness.grants[sequence])
        queue.unblock(sequence, attempts)
        self.witness.unblocked(sequence, count, attempts)

    def ended(self, error: Exception | None) -> float | None:
        if isinstance(error, ContentionError | Fenced | InvalidHandle | CapExceeded | ValueError):
            return self.draw(self.world.weather.restart_s)  # an InvalidInput: somebody else was faster
        if isinstance(error, StorageError) and error.retryable:
            return self.draw(self.world.weather.restart_s)
        return super().ended(error)
