"""The loader, its operators, and others who meddle with its queue and tables, as simulated programs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from buffer.config import ConsumerConfig
from buffer.consumer import Consumer
from buffer.errors import ContentionError, CorruptBatch, Fenced, ObjectNotFound, StorageError
from buffer.ledger import Ledger, ledger_path
from buffer.model import BatchDescriptor
from buffer.testing.simulator.actors.collector import collect_beside
from buffer.testing.simulator.faults import Span
from buffer.testing.simulator.scheduler import Process
from buffer.testing.simulator.world import MANIFEST_PATH, Actor, Host, World
from buffer_delta.contracts import Rules
from buffer_delta.errors import Blocked, CommitSkipped, RouteChanged
from buffer_delta.journal import Journal
from buffer_delta.protocol import LoadProtocol
from buffer_delta.testing.delta_log import Commit, DeltaLog, JobFailed, SimulatedTarget
from buffer_delta.testing.tables import Tables
from buffer_delta.testing.work import ROUTINGS, Poison, SimulatedWork

RETRY_FIRST_S = 0.1
LOOK_S = 0.05
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
    new_routing_chance: float
    restarts_after_fenced_max: int
    """Restarting for ever would be a duel, which the documentation forbids."""
    skip_chance: float
    """How likely the operator gives a blocked range up."""
    collect_s: Span | None
    """How often each loader's own collector looks; None: it has none."""


class LoaderActor(Actor):
    """One loader: the real protocol on simulated tables, with the retries of the real loader around it."""

    def __init__(self, world: World, name: str, tables: Tables, poison: Poison, settings: LoaderSettings) -> None:
        super().__init__(world, name)
        self.tables = tables
        self.poison = poison
        self.settings = settings
        self.rules = settings.rules
        self.routing = ROUTINGS[0]
        self.restarts_after_fenced = 0
        self.lives: list[Process] = []
        self.is_held_back = False
        """Somebody forbids it to start."""

    def run(self, host: Host) -> None:
        self.lives.append(host.process)
        while self.is_held_back:
            host.process.sleep(RETRY_FIRST_S)
        config = ConsumerConfig(store=host.store, gc_enabled=False, cas_timeout_s=self.settings.cas_timeout_s)
        protocol = LoadProtocol(
            config,
            host.store,
            [SimulatedTarget(self.world, host, log) for log in self.tables.logs],
            SimulatedWork(host, self.tables, self.poison, self.routing),
            host.clock,
            self.rules,
            reached=lambda step: self._reached(host, step),
        )
        protocol.open()
        self.world.queue.claimed(host.process, protocol.epoch)
        if self.settings.collect_s is not None:
            collect_beside(self, host, self.settings.collect_s, protocol.epoch)
        while True:
            if not self._step_with_retries(host, protocol):
                self.rest(host, self.settings.poll_s)

    def _reached(self, host: Host, step: str) -> None:
        self.world.scheduler.counts[f"reached: {step.partition(' ')[0]}"] += 1
        host.process.note(f"· {step}")

    def _step_with_retries(self, host: Host, protocol: LoadProtocol) -> bool:
        pause_s = RETRY_FIRST_S
        for attempt in range(self.settings.retries + 1):
            try:
                return protocol.step(self._choose, self.settings.max_batches) is not None
            except (StorageError, ContentionError, CorruptBatch, JobFailed) as error:
                if attempt == self.settings.retries:
                    raise
                host.process.note(f"trying again: {type(error).__name__}: {error}")
            host.process.sleep(pause_s)
            pause_s *= 2
        raise AssertionError("the last attempt returns or raises")

    def _choose(self, descriptors: Sequence[BatchDescriptor]) -> int:
        return self.world.scheduler.random.randint(1, len(descriptors))

    def ended(self, error: Exception | None) -> float | None:
        delay_s = self.draw(self.world.weather.restart_s)
        if isinstance(error, Fenced):
            return self._after_fenced(delay_s)
        if isinstance(error, Blocked):
            operator = OperatorActor(self.world, "operator", skip_chance=self.settings.skip_chance)
            self.world.add(operator, self.draw(OPERATOR_S))
            return delay_s
        if isinstance(error, RouteChanged):
            self.routing = error.planned_digest
            return delay_s
        if isinstance(error, ObjectNotFound):
            return super().ended(error)  # a batch that is needed is gone
        if isinstance(error, StorageError | ContentionError | CorruptBatch | CommitSkipped | JobFailed):
            self._perhaps_change_routing()
            return delay_s
        return super().ended(error)

    def _after_fenced(self, delay_s: float) -> float | None:
        others = [actor for actor in self.world.actors if isinstance(actor, LoaderActor) and actor is not self]
        if any(isinstance(actor, BrowserActor) for actor in self.world.actors):
            return None if any(actor.is_up for actor in others) else delay_s  # it was not a loader who fenced us
        if self.world.is_calm or self.restarts_after_fenced >= self.settings.restarts_after_fenced_max:
            return None  # the other one goes on
        self.restarts_after_fenced += 1
        return delay_s

    def crashed(self) -> None:
        self._perhaps_change_routing()

    def _perhaps_change_routing(self) -> None:
        if self.chance(self.settings.new_routing_chance):
            self.routing = ROUTINGS[1]


class OperatorActor(Actor):
    """Somebody who runs `buffer-delta unblock`: once, or again and again while the faults last."""

    def __init__(self, world: World, name: str, *, skip_chance: float, every_s: Span | None = None) -> None:
        super().__init__(world, name)
        self._skip_chance = skip_chance
        self._every_s = every_s

    def run(self, host: Host) -> None:
        while True:
            journal = Journal(host.store, MANIFEST_PATH, host.clock)
            released = journal.unblock(skip=self.chance(self._skip_chance))
            host.process.note(f"unblocked {released}" if released else "nothing was blocked")
            if self._every_s is None or self.world.is_calm:
                return
            host.process.sleep(self.draw(self._every_s))

    def ended(self, error: Exception | None) -> float | None:
        if isinstance(error, StorageError | ContentionError):
            return self.draw(self.world.weather.restart_s)
        return super().ended(error)


class MaintenanceActor(Actor):
    """An operator who stops all loaders, waits until nothing of them is under way any more, as the docs demand, does
    something that no loader may run beside, and starts them again."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.is_sheltered = True
        self._is_over = False

    @property
    def is_done(self) -> bool:
        return self._is_over

    def run(self, host: Host) -> None:
        loaders = [actor for actor in self.world.actors if isinstance(actor, LoaderActor)]
        while not self.is_due(loaders) and not self.world.is_calm:
            host.process.sleep(LOOK_S)
        for loader in loaders:
            loader.is_held_back = True
            if loader.process is not None and loader.process.alive:
                loader.process.kill()
                self.world.start(loader, self.draw(self.world.weather.restart_s))
        while any(life.under_way for loader in loaders for life in loader.lives):
            host.process.sleep(RETRY_FIRST_S)
        self.act(host, loaders)
        for loader in loaders:
            loader.is_held_back = False
        self._is_over = True

    def is_due(self, _loaders: Sequence[LoaderActor]) -> bool:
        """Whether this is a good moment."""
        return True

    @abstractmethod
    def act(self, host: Host, loaders: Sequence[LoaderActor]) -> None: ...


class LedgerLossActor(MaintenanceActor):
    """The ledger is deleted, and the loaders start with `adopt`, which stays switched on from then on."""

    def act(self, host: Host, loaders: Sequence[LoaderActor]) -> None:
        lost = self.world.server.objects.pop(ledger_path(MANIFEST_PATH), None)
        host.process.note("the ledger is lost" if lost else "there was no ledger to lose")
        self.world.scheduler.counts["ledgers lost"] += lost is not None
        for loader in loaders:
            loader.rules = replace(loader.rules, adopt=True)


class ReplanActor(MaintenanceActor):
    """The configuration of all loaders changes, also for a range that was begun: `buffer-delta unblock --replan`."""

    def is_due(self, loaders: Sequence[LoaderActor]) -> bool:
        """A range is decided, and in no table yet."""
        data = self.world.server.objects.get(ledger_path(MANIFEST_PATH))
        ledger = Ledger.from_bytes(data) if data is not None else None
        if ledger is None or ledger.plan is None or ledger.plan.quarantined is None:
            return False
        positions = [log.snapshot(ledger.app_id or "").txn_version for log in loaders[0].tables.logs]
        return all(position is None or position < ledger.plan.first for position in positions)

    def act(self, host: Host, loaders: Sequence[LoaderActor]) -> None:
        if not self.is_due(loaders):  # what was under way has landed meanwhile
            return
        forgotten = Journal(host.store, MANIFEST_PATH, host.clock).replan()
        host.process.note(f"replanned {forgotten}")
        self.world.scheduler.counts["ranges replanned"] += forgotten is not None
        for loader in loaders:
            loader.routing = ROUTINGS[1]


class BystanderActor(Actor):
    """Somebody else who commits to a table, without a txn: OPTIMIZE, another job's append."""

    def __init__(self, world: World, name: str, log: DeltaLog, *, commits: int, think_s: Span) -> None:
        super().__init__(world, name)
        self._log = log
        self._left = commits
        self._think_s = think_s

    def run(self, host: Host) -> None:
        while self._left:
            host.process.sleep(self.draw(self._think_s))
            if self._log.commits:  # the loader creates the table
                self._log.put(host.process, len(self._log.commits), Commit(None, -1, ()))
                host.process.note(f"{self._log.name}: commits version {len(self._log.commits) - 1}, no txn")
            self._left -= 1


class BrowserActor(Actor):
    """Somebody who opens a plain consumer on the queue, out of curiosity: it fences the loader and acks nothing."""

    def run(self, host: Host) -> None:
        if not self._is_loader_known():
            return  # a consumer before the first loader makes that one ask for `adopt`, and rightly so
        consumer = Consumer.new(ConsumerConfig(store=host.store, gc_enabled=False), clock=host.clock)
        self.world.queue.claimed(host.process, consumer.epoch)
        consumer.next_batch()

    def _is_loader_known(self) -> bool:
        ledger = self.world.server.objects.get(ledger_path(MANIFEST_PATH))
        return ledger is not None and Ledger.from_bytes(ledger).born

    def ended(self, error: Exception | None) -> float | None:
        return None if isinstance(error, Fenced | StorageError | ContentionError) else super().ended(error)
