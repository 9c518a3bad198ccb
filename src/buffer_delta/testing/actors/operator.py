"""Somebody who runs `buffer-delta unblock`: once, or again and again while the faults last."""

from __future__ import annotations

from buffer.errors import ContentionError, StorageError
from buffer.testing.simulator.faults import Span
from buffer.testing.simulator.world import MANIFEST_PATH, Actor, Host, World
from buffer_delta.load.plans import Plans


class OperatorActor(Actor):
    def __init__(self, world: World, name: str, *, skip_chance: float, every_s: Span | None = None) -> None:
        super().__init__(world, name)
        self._skip_chance = skip_chance
        self._every_s = every_s

    def run(self, host: Host) -> None:
        while True:
            journal = Plans(host.store, MANIFEST_PATH, host.clock)
            released = journal.unblock(skip=self.chance(self._skip_chance))
            host.process.note(f"unblocked {released}" if released else "nothing was blocked")
            if self._every_s is None or self.world.is_calm:
                return
            host.process.sleep(self.draw(self._every_s))

    def ended(self, error: Exception | None) -> float | None:
        if isinstance(error, StorageError | ContentionError):
            return self.draw(self.world.weather.restart_s)
        return super().ended(error)
