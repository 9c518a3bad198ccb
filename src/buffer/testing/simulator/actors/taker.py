"""A reader that comes to a queue while workers share it, or after they have: the real `Consumer`, alone or as a loader
uses it, which binds the queue before it claims.

    visit   a consumer reads a few batches and goes; the workers take the queue back
    stay    a consumer comes for good; workers wake up later and find out
    load    a loader, which has to wait until workers have nothing in hand, and then comes for good
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from buffer.binder import Binder
from buffer.config import ConsumerConfig
from buffer.consume.consumer import Consumer
from buffer.errors import (
    ContentionError,
    CorruptBatch,
    Fenced,
    InvalidConfig,
    ObjectNotFound,
    QueueBound,
    StorageError,
)
from buffer.journal import Journal
from buffer.leases.session import SETTLING
from buffer.ledger.binding import Binding
from buffer.ledger.plan import Ledger
from buffer.testing.simulator.actors.worker import Team
from buffer.testing.simulator.world import Actor, Host, World

BINDING = Binding("app", ("main",))
LOOKS_MAX = 4
PAUSES = 2


class _Unsettled(Exception):
    """A worker is between its claim and its write, or died there."""


class TakerActor(Actor):
    def __init__(self, world: World, name: str, team: Team, *, way: str, visits: int, batches: int) -> None:
        super().__init__(world, name)
        self.team = team
        self.witness = team.witness
        self.way = way
        self.visits = visits if way == "visit" else 0
        self.batches = batches
        """So many are read in a visit."""
        self.last: int | None = None
        """Kept with its results: all up to there is done with."""

    @property
    def is_done(self) -> bool:
        return self.visits == 0

    def run(self, host: Host) -> None:
        while self.witness.section is None:
            self.glance(host)
        config = self.team.config(host)
        if self.way == "load":
            self._bind(host, config)
        elif self.way == "stay":
            self.team.is_dismissed = True
        last = self.last if self.way != "visit" or self.chance(0.5) else None
        consumer = Consumer.new(config, last, clock=host.clock)
        self.witness.claimed(host.process, consumer.epoch)
        self.world.scheduler.counts[f"queue taken over: {self.way}"] += 1
        # Not as it saw it before: a claim of an earlier life may land meanwhile, and dequeue what that has done.
        first = self.witness.first_before(consumer.epoch)
        behind = max(first - 1, -1 if last is None else last)
        read = 0
        while self.way != "visit" or read < self.batches:
            sequence = self._next(host, consumer, behind)
            if sequence is None:
                consumer.flush()
                if self.way == "visit":
                    break
                self.rest(host, self.team.poll_s)
                continue
            behind, read = sequence, read + 1
            self.last = sequence if self.last is None else max(self.last, sequence)
            if self.chance(0.5):
                consumer.ack_through(sequence)
            else:
                consumer.ack(sequence)
        if self.chance(0.7):
            consumer.close()  # else it just goes

    def _next(self, host: Host, consumer: Consumer, behind: int) -> int | None:
        """Read one batch, or step over one that nobody can read."""
        try:
            batch = consumer.next_batch()
        except (ObjectNotFound, CorruptBatch):
            sequence = consumer.cursor
            self.witness.said_unreadable(host.process, sequence)
            consumer.skip(sequence)
            self.witness.was_given(host.process, consumer.epoch, sequence, behind)
            return sequence
        if batch is None:
            return None
        self.witness.handed_out(host.process, batch.sequence, batch.location, batch.entries)
        self.witness.was_given(host.process, consumer.epoch, batch.sequence, behind)
        return batch.sequence

    def _bind(self, host: Host, config: ConsumerConfig) -> None:
        """As a loader does before it claims, and again whenever it is refused."""
        journal = Journal(host.store, config.manifest_path, host.clock, Ledger, timeout_s=config.cas_timeout_s)
        binder = Binder(journal, host.store, config.manifest_path, host.clock)
        unsettled = 0
        while True:
            try:
                if unsettled > LOOKS_MAX:
                    unsettled = 0
                    self.team.open(host)  # as the refusal advises: no worker may be left to do so
                binder.bind(BINDING, _settling(host))
            except (QueueBound, _Unsettled) as error:
                unsettled += isinstance(error, _Unsettled)
                self.world.scheduler.counts["loaders refused"] += 1
                self.rest(host, self.team.poll_s)
                continue
            self.team.is_dismissed = True
            return

    def ended(self, error: Exception | None) -> float | None:
        if error is None or (self.way == "visit" and isinstance(error, Fenced)):
            self.visits = max(0, self.visits - 1)
            return self.draw(self.world.weather.restart_s) if self.visits else None
        passes = isinstance(error, ContentionError | Fenced) or (isinstance(error, StorageError) and error.retryable)
        is_other = isinstance(error, InvalidConfig) and self.team.settings_change  # they changed while it opened
        if passes or is_other:
            return self.draw(self.world.weather.restart_s)
        return super().ended(error)

    def crashed(self) -> None:
        self.visits = max(0, self.visits - 1)


def _settling(host: Host) -> Iterator[float]:
    """A loader's first pauses; they fit into every timeout. Its refusal then says the same of a reader that came after
    the workers, and there is none in these worlds: so that one stays an error, and this one has a name of its own."""
    yield from islice(SETTLING.pauses(host.clock.jitter), PAUSES)
    raise _Unsettled
