"""Operators who stop every loader first: after the loss of the ledger, and to change what a range was begun with."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from buffer.ledger.plan import Ledger, is_for_main_alone
from buffer.names import ledger_path
from buffer.testing.simulator.world import MANIFEST_PATH, Actor, Host, World
from buffer_delta.load.plans import Plans
from buffer_delta.testing.actors.loader import LoaderActor
from buffer_delta.testing.work import Setup


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
            self.glance(host)
        for loader in loaders:
            loader.is_held_back = True
            if loader.process is not None and loader.process.alive:
                loader.process.kill()
                self.world.start(loader, self.draw(self.world.weather.restart_s))
        while any(life.under_way for loader in loaders for life in loader.lives):
            self.glance(host)
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
    """The ledger is deleted, and the loaders start with `adopt`, which stays switched on from then on. Where that is
    refused, because a range is in some tables only and there are dead letters, they find a backup."""

    def act(self, host: Host, loaders: Sequence[LoaderActor]) -> None:
        lost = self.world.server.objects.pop(ledger_path(MANIFEST_PATH), None)
        host.process.note("the ledger is lost" if lost else "there was no ledger to lose")
        self.world.scheduler.counts["ledgers lost"] += lost is not None
        last = Ledger.from_bytes(lost).plan if lost else None
        for loader in loaders:
            loader.rules = replace(loader.rules, adopt=True)
            loader.lost_ledger = lost
            # What is under way must be completed by the configuration that began it, and only the operator knows.
            loader.setup = (Setup.of_digest(last.digest, loader.tables.dead_letters) if last else None) or loader.setup
            loader.is_settled = True


class ReplanActor(MaintenanceActor):
    """The configuration of all loaders changes, also for a range that was begun: `buffer-delta unblock --replan`."""

    def is_due(self, loaders: Sequence[LoaderActor]) -> bool:
        """A range is decided, or goes to the main table alone, and is in no table yet."""
        data = self.world.server.objects.get(ledger_path(MANIFEST_PATH))
        ledger = Ledger.from_bytes(data) if data is not None else None
        if ledger is None or ledger.plan is None or ledger.blocked is not None:
            return False
        if ledger.plan.quarantined is None and not is_for_main_alone(ledger):
            return False
        positions = [log.look(ledger.app_id or "").position for log in loaders[0].tables.logs]
        return all(position < ledger.plan.first for position in positions)

    def act(self, host: Host, loaders: Sequence[LoaderActor]) -> None:
        if not self.is_due(loaders):  # what was under way has landed meanwhile
            return
        forgotten = Plans(host.store, MANIFEST_PATH, host.clock).replan()
        host.process.note(f"replanned {forgotten}")
        self.world.scheduler.counts["ranges replanned"] += forgotten is not None
        for loader in loaders:
            loader.setup = loader.settings.setups[-1]
