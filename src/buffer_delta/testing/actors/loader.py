"""One loader: the real protocol on simulated tables, with the retries of the real loader around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from buffer.config import ConsumerConfig
from buffer.errors import CorruptLedger, Fenced, LedgerLost, ObjectNotFound, QueueBound
from buffer.model import BatchDescriptor
from buffer.names import ledger_path
from buffer.testing.simulator.actors.collector import collect_beside
from buffer.testing.simulator.faults import Span
from buffer.testing.simulator.scheduler import Process
from buffer.testing.simulator.world import MANIFEST_PATH, Actor, Host, World
from buffer_delta.errors import Blocked, CommitSkipped, RouteChanged
from buffer_delta.load.ports import Rules
from buffer_delta.load.protocol import LoadProtocol
from buffer_delta.load.retry import PASSING, range_backoff
from buffer_delta.testing.actors.browser import BrowserActor
from buffer_delta.testing.actors.operator import OperatorActor
from buffer_delta.testing.delta_log import JobFailed, RowRefused, SimulatedTarget
from buffer_delta.testing.older import OlderProtocol, OlderWork
from buffer_delta.testing.tables import Tables
from buffer_delta.testing.work import CannotPrepare, Poison, Setup, SimulatedWork

_JOBS = (JobFailed, CannotPrepare, RowRefused)
WAIT_CHANCE = 0.1
RETRY_MAX_S = 0.2  # short, as the store's faults are here: loaders that wait for long do not meet
OPERATOR_S = (0.01, 2.0)  # until somebody unblocks: soon, so that they meet loaders that are still at it


@dataclass(frozen=True, slots=True)
class LoaderSettings:
    """What the seed decides for all loaders of a world."""

    rules: Rules
    max_batches: int
    poll_s: Span
    cas_timeout_s: float
    retries: int
    """How often a loader tries a range again before it exits and is started anew."""
    setups: Sequence[Setup]
    """The configurations that loaders may have: each begins with one of them."""
    new_setup_chance: float
    is_mixed: bool
    """They have different tables, and change them."""
    older_chance: float
    """How likely a loader begins as one of the release before."""
    restarts_after_fenced_max: int
    """Restarting for ever would be a duel, which the documentation forbids."""
    skip_chance: float
    """How likely the operator gives a blocked range up."""
    collect_s: Span | None
    """How often each loader's own collector looks; None: it has none."""


class LoaderActor(Actor):
    def __init__(self, world: World, name: str, tables: Tables, poison: Poison, settings: LoaderSettings) -> None:
        super().__init__(world, name)
        self.tables = tables
        self.poison = poison
        self.settings = settings
        self.rules = settings.rules
        self.setup = self._any_setup(settings.setups[:1])
        self.is_older = settings.older_chance > 0 and self.chance(settings.older_chance)
        """Of the release before, and not upgraded yet."""
        if self.is_older:
            self.setup = settings.setups[0]
        self.is_settled = False
        """Its configuration does not change any more."""
        self.restarts_after_fenced = 0
        self.lives: list[Process] = []
        self.is_held_back = False
        """Somebody forbids it to start."""
        self.lost_ledger: bytes | None = None
        """The backup of one that was lost."""

    def run(self, host: Host) -> None:
        self.lives.append(host.process)
        while self.is_held_back:
            self.glance(host)
        config = ConsumerConfig(store=host.store, gc_enabled=False, cas_timeout_s=self.settings.cas_timeout_s)
        protocol = (OlderProtocol if self.is_older else LoadProtocol)(
            config,
            host.store,
            [self._target(host, name) for name in self.setup.tables],
            (OlderWork if self.is_older else SimulatedWork)(host, self.poison, self.setup),
            host.clock,
            self._rules(),
            reached=lambda step: self._reached(host, step),
            open_table=lambda name: self._target(host, name),
        )
        protocol.open()
        self.world.queue.claimed(host.process, protocol.epoch)
        if self.settings.collect_s is not None:
            collect_beside(self, host, self.settings.collect_s, protocol.epoch)
        while True:
            if not self._step_with_retries(host, protocol):
                self.rest(host, self.settings.poll_s)

    def _target(self, host: Host, name: str) -> SimulatedTarget:
        return SimulatedTarget(self.world, host, self.tables.log(name), self.poison.refuses)

    def _rules(self) -> Rules:
        has_dead_letters = self.setup.dead_letters is not None
        strategy = self.rules.dlq_strategy if has_dead_letters else "block"
        return replace(self.rules, has_dead_letters=has_dead_letters, dlq_strategy=strategy)

    def _reached(self, host: Host, step: str) -> None:
        self.world.scheduler.counts[f"reached: {step.partition(' ')[0]}"] += 1
        host.process.note(f"· {step}")

    def _step_with_retries(self, host: Host, protocol: LoadProtocol) -> bool:
        backoff = range_backoff(attempts_max=self.settings.retries + 1, max_s=RETRY_MAX_S)
        for attempt in backoff.attempts(host.clock):
            try:
                return protocol.step(self._choose, self.settings.max_batches) is not None
            except (*PASSING, *_JOBS) as error:
                if attempt == self.settings.retries:
                    raise
                host.process.note(f"trying again: {type(error).__name__}: {error}")
        raise AssertionError("the last attempt returns or raises")

    def _choose(self, descriptors: Sequence[BatchDescriptor]) -> int:
        """Now and then it waits for more: by age or by bytes, for the protocol that is all the same."""
        if self.chance(WAIT_CHANCE):
            return 0
        return self.world.scheduler.random.randint(1, len(descriptors))

    def ended(self, error: Exception | None) -> float | None:
        delay_s = self.draw(self.world.weather.restart_s)
        if isinstance(error, Fenced):
            return self._after_fenced(delay_s)
        if self.is_older and isinstance(error, CorruptLedger | QueueBound):
            self.world.scheduler.counts["older loaders refused"] += 1
            self.is_older = False
            return delay_s
        if isinstance(error, Blocked):
            operator = OperatorActor(self.world, "operator", skip_chance=self.settings.skip_chance)
            self.world.add(operator, self.draw(OPERATOR_S))
            return delay_s
        if isinstance(error, RouteChanged):
            begun = Setup.of_digest(error.planned_digest, self.tables.dead_letters)
            if begun is not None:
                self.setup = begun
            else:
                self.tables.put_rules_back(error.planned_digest)
            return delay_s
        if isinstance(error, LedgerLost) and error.first is not None and self.lost_ledger is not None:
            self._put_ledger_back(self.lost_ledger)
            return delay_s
        if isinstance(error, ObjectNotFound):
            return super().ended(error)  # a batch that is needed is gone
        if isinstance(error, (*PASSING, CommitSkipped, *_JOBS)):
            self._perhaps_change_setup()
            return delay_s
        return super().ended(error)

    def _put_ledger_back(self, lost: bytes) -> None:
        """As the message says; unless somebody was faster."""
        self.world.scheduler.counts["ledgers put back"] += 1
        self.world.server.objects.setdefault(ledger_path(MANIFEST_PATH), lost)

    def _after_fenced(self, delay_s: float) -> float | None:
        others = [actor for actor in self.world.actors if isinstance(actor, LoaderActor) and actor is not self]
        if any(isinstance(actor, BrowserActor) for actor in self.world.actors):
            return None if any(actor.is_up for actor in others) else delay_s  # it was not a loader who fenced us
        if self.world.is_calm or self.restarts_after_fenced >= self.settings.restarts_after_fenced_max:
            return None  # the other one goes on
        self.restarts_after_fenced += 1
        return delay_s

    def crashed(self) -> None:
        self._perhaps_change_setup()

    def _perhaps_change_setup(self) -> None:
        if self.is_older:
            self.is_older = self.chance(0.5)
            self.world.scheduler.counts["upgrades"] += not self.is_older
        elif not self.is_settled and self.chance(self.settings.new_setup_chance):
            self.setup = self._any_setup(self.settings.setups[-1:])
            self.world.scheduler.counts["setups changed"] += 1

    def _any_setup(self, among: Sequence[Setup] = ()) -> Setup:
        setups = among if among and not self.settings.is_mixed else self.settings.setups
        return self.world.scheduler.random.choice(list(setups))
