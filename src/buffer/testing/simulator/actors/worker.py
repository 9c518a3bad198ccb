"""A worker on a queue with leases: the real `LeaseQueue`, and all that workers do and forget to do with it.

It never does less than it says: what it acks it has been given. But it is slow, gives back, acks parts, dies with
leases in its hands, and answers for leases that it has lost meanwhile. When another reader has taken the queue over, it
finds out by itself; only those who start after that know that they are not wanted.
"""

from __future__ import annotations

from dataclasses import dataclass

from buffer.config import ConsumerConfig, LeaseConfig
from buffer.errors import (
    CapExceeded,
    ContentionError,
    Fenced,
    InvalidConfig,
    InvalidHandle,
    QueueBound,
    StorageError,
)
from buffer.leases.queue import LeaseQueue
from buffer.leases.values import Delivered, Done, LeasedBatch
from buffer.testing.simulator.faults import Span
from buffer.testing.simulator.lease_witness import LeaseWitness
from buffer.testing.simulator.world import Actor, Host, World

NOTHING = Delivered()
GOOD_END = 0.9  # in calm weather: then a poor worker would never come to an end


@dataclass
class Team:
    """What all who use a queue with leases share."""

    witness: LeaseWitness
    leases: LeaseConfig
    poll_s: Span
    cas_timeout_s: float
    settings_change: bool = False
    is_dismissed: bool = False
    """Another reader comes for good: whoever starts from now on does not take the queue back."""

    def config(self, host: Host) -> ConsumerConfig:
        return ConsumerConfig(store=host.store, gc_enabled=False, cas_timeout_s=self.cas_timeout_s)

    def open(self, host: Host) -> LeaseQueue:
        is_known = self.witness.section is not None and self.settings_change
        leases = None if is_known else self.leases
        return LeaseQueue.open(self.config(host), leases, clock=host.clock, claim=not self.is_dismissed)


class TeamActor(Actor):
    """One that uses a queue with leases."""

    def __init__(self, world: World, name: str, team: Team) -> None:
        super().__init__(world, name)
        self.team = team
        self.witness = team.witness

    def open(self, host: Host) -> LeaseQueue:
        return self.team.open(host)

    def open_later(self, host: Host) -> LeaseQueue:
        """Not before workers have made it a queue with leases."""
        while self.witness.section is None:
            self.glance(host)
        return self.open(host)

    def ended(self, error: Exception | None) -> float | None:
        section = self.witness.section
        is_bound = section is not None and section.app_id is not None
        if (isinstance(error, QueueBound) and is_bound) or (isinstance(error, Fenced) and self.team.is_dismissed):
            self.world.scheduler.counts["workers dismissed"] += 1
            self.dismissed()
            return None
        passes = isinstance(error, ContentionError) or (isinstance(error, StorageError) and error.retryable)
        is_other = isinstance(error, InvalidConfig) and self.team.settings_change  # they changed while it opened
        if passes or is_other or isinstance(error, Fenced):
            # Fenced: another one stopped between its claim and its ledger, or a consumer is here for a while
            return self.draw(self.world.weather.restart_s)
        return super().ended(error)

    def dismissed(self) -> None:
        """It does not come back."""


class WorkerActor(TeamActor):
    """Consumes and answers for ever."""

    def __init__(self, world: World, name: str, team: Team, *, work_s: Span, acks_chance: float) -> None:
        super().__init__(world, name, team)
        self.work_s = work_s
        self.acks_chance = acks_chance
        self.retires = False
        """It goes for good when the faults are over, with a lease in its hands if there is one to be had."""

    def run(self, host: Host) -> None:
        queue = self.open(host)
        random = self.world.scheduler.random
        done: list[Done] = []
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
            for sequence in held.unreadable:
                self.witness.said_unreadable(host.process, sequence)
            if self.retires and self.world.is_calm:
                return
            if not held:
                self.rest(host, self.team.poll_s)
                continue
            for batch in held:
                self._check(host, batch)
                host.process.sleep(self.draw(self.work_s))
                answer = self._answer(queue, batch)
                if answer is not None:
                    done.append(answer)

    def _check(self, host: Host, batch: LeasedBatch) -> None:
        witness, sequence = self.witness, batch.sequence
        witness.handed_out(host.process, sequence, batch.batch.location, batch.batch.entries)
        witness.delivered(host.process, sequence, batch.lease_id, batch.delivery_count, batch.indices)
        self.world.scheduler.counts["batches leased"] += 1

    def _answer(self, queue: LeaseQueue, batch: LeasedBatch) -> Done | None:
        """What becomes of it; or what goes along with the next consume."""
        random = self.world.scheduler.random
        try:
            if self.chance(0.2):
                queue.extend(batch, random.choice((1, 1_000, 20_000)))
            good = GOOD_END if self.world.is_calm else self.acks_chance
            if self.chance(good):
                self.witness.says_done(batch.sequence, batch.lease_id, batch.indices)
                if self.chance(0.5):
                    return batch
                queue.ack(batch)
            elif self.chance(0.3):
                some = [index for index in batch.indices if self.chance(0.5)]
                self.witness.says_done(batch.sequence, batch.lease_id, some)
                if self.chance(0.3):
                    return batch.done(some)  # and the rest is forgotten
                queue.ack(batch, entries=some)
                queue.nack(batch, reason="a part failed")
            elif self.chance(0.4):
                queue.nack(batch, delay_ms=random.choice((0, 500, 5_000)), reason="failed")
            elif self.chance(0.3):
                queue.snooze(batch)
                self.witness.snoozed(batch.sequence)
            # else: forgotten
        except InvalidHandle:
            self.world.scheduler.counts["handles lost"] += 1
        return None
