"""Somebody else who commits to a table, without a txn: OPTIMIZE, another job's append."""

from __future__ import annotations

from buffer.testing.simulator.faults import Span
from buffer.testing.simulator.world import Actor, Host, World
from buffer_delta.testing.delta_log import Commit, DeltaLog


class BystanderActor(Actor):
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
