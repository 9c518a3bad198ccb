"""Somebody who adds a constraint to the main table, or takes it away, while loaders run."""

from __future__ import annotations

from buffer.testing.simulator.faults import Span
from buffer.testing.simulator.world import Actor, Host, World
from buffer_delta.testing.tables import Tables


class ConstraintActor(Actor):
    def __init__(self, world: World, name: str, tables: Tables, *, changes: int, think_s: Span) -> None:
        super().__init__(world, name)
        self._tables = tables
        self._left = changes
        self._think_s = think_s

    def run(self, host: Host) -> None:
        while self._left and not self._tables.is_put_back:
            host.process.sleep(self.draw(self._think_s))
            if self._tables.logs[0].commits and not self._tables.is_put_back:
                rules = self._tables.change_rules()
                host.process.note(f"the main table has the rules {rules.checks} now")
            self._left -= 1
