"""Those who look after a queue with leases: one who decides about blocked batches and brings dead letters back, one who
changes the settings, and one who purges."""

from __future__ import annotations

import dataclasses
from typing import Any

from buffer.config import LeaseConfig
from buffer.errors import CapExceeded, InvalidConfig, InvalidHandle, InvalidInput
from buffer.leases.queue import LeaseQueue
from buffer.testing.simulator.actors.worker import Team, TeamActor
from buffer.testing.simulator.letter_witness import DEAD_PATH, OTHER_DEAD_PATH
from buffer.testing.simulator.world import Host, World

CHANGES: tuple[dict[str, Any], ...] = (
    {"visibility_timeout_ms": 300},
    {"visibility_timeout_ms": 8_000},
    {"max_delivery_attempts": 1},
    {"max_delivery_attempts": 4},
    {"max_ack_holes": 1},
    {"max_in_flight": 1},
    {"max_ack_holes": 2, "max_in_flight": 2, "max_delivery_attempts": 3},
    {"max_ack_holes": 1_000, "max_in_flight": 1_000},
    {"dlq_strategy": "skip", "dlq": DEAD_PATH, "ordering_required": False},
    {"dlq_strategy": "block_and_dlq", "dlq": DEAD_PATH},
    {"dlq_strategy": "skip", "dlq": OTHER_DEAD_PATH, "ordering_required": False},
    {"dlq_strategy": "block", "dlq": DEAD_PATH, "ordering_required": True},
    {"dlq_strategy": "block"},
)


class OperatorActor(TeamActor):
    """Unblocks what is blocked, gives up some of it, and brings dead letters back."""

    def __init__(self, world: World, name: str, team: Team, *, redrives: int, parks: bool = False) -> None:
        super().__init__(world, name, team)
        self.redrives = redrives
        self.parks = parks
        """Gives up by hand what waits, blocked or not."""

    @property
    def is_done(self) -> bool:
        return self.redrives == 0

    def run(self, host: Host) -> None:
        queue = self.open_later(host)
        while True:
            for sequence in queue.stats().blocked_sequences:
                self._decide(host, queue, sequence)
            if self.parks and self.chance(0.2) and queue.settings.dlq is not None:
                self._park_one(queue)
            if self.redrives and queue.settings.dlq is not None and (self.chance(0.3) or self.world.is_calm):
                moved = queue.redrive()
                self.world.scheduler.counts["batches redriven"] += moved
                self.redrives -= 1
            elif queue.settings.dlq is None:
                self.redrives = 0
            self.rest(host, self.team.poll_s)

    def _decide(self, host: Host, queue: LeaseQueue, sequence: int) -> None:
        if queue.settings.dlq is not None and self.chance(0.3):
            queue.park(sequence)
            return
        attempts = self.world.scheduler.random.choice((1, 2))
        self.witness.unblocking(host.process, sequence, attempts)
        queue.unblock(sequence, attempts)

    def _park_one(self, queue: LeaseQueue) -> None:
        found = queue.peek(5)
        if found and not self.world.is_calm:
            queue.park(self.world.scheduler.random.choice(found).sequence)
            self.world.scheduler.counts["batches given up by hand"] += 1

    def dismissed(self) -> None:
        self.redrives = 0

    def ended(self, error: Exception | None) -> float | None:
        if isinstance(error, InvalidHandle | CapExceeded | InvalidInput):
            return self.draw(self.world.weather.restart_s)  # somebody else was faster
        if isinstance(error, InvalidConfig) and self.team.settings_change:
            return self.draw(self.world.weather.restart_s)
        return super().ended(error)


class ConfigurerActor(TeamActor):
    """Changes the settings now and then."""

    def __init__(self, world: World, name: str, team: Team, *, changes: int, needs_dlq: bool) -> None:
        super().__init__(world, name, team)
        self.changes = changes
        self.needs_dlq = needs_dlq
        """Without one, batches that nobody can read would stay for ever."""

    def run(self, host: Host) -> None:
        random = self.world.scheduler.random
        while self.changes and not self.world.is_calm:
            queue = self.open_later(host)
            self.rest(host, self.team.poll_s)
            settings = queue.settings
            wanted = _changed(settings, random.choice(CHANGES), keep_dlq=self.needs_dlq or self.chance(0.5))
            self.witness.configuring(host.process, _as_written(wanted))
            try:
                queue.configure(wanted)
            except InvalidConfig:
                if wanted.dlq == settings.dlq:
                    raise
                self.world.scheduler.counts["settings refused while parking"] += 1
            self.changes -= 1


def _changed(settings: LeaseConfig, change: dict[str, Any], *, keep_dlq: bool) -> LeaseConfig:
    values = {**dataclasses.asdict(settings), **change}
    if values["dlq_strategy"] == "skip" and values["ordering_required"]:
        values["ordering_required"] = False
    if values["dlq_strategy"] == "block" and not keep_dlq:
        values["dlq"] = None
    return LeaseConfig(**values)


def _as_written(settings: LeaseConfig) -> dict[str, Any]:
    return {**dataclasses.asdict(settings), "max_depth": None}


class PurgerActor(TeamActor):
    """Purges once, and does nothing else: what it finishes is purged."""

    def __init__(self, world: World, name: str, team: Team) -> None:
        super().__init__(world, name, team)
        self.is_over = False

    def run(self, host: Host) -> None:
        if self.is_over or self.world.is_calm:
            return
        queue = self.open_later(host)
        self.witness.purging(host.process)
        try:
            count = queue.purge()
        except CapExceeded:
            count = 0
            self.world.scheduler.counts["caps met"] += 1
        self.is_over = True
        self.witness.said_purged(host.process, count)
