"""A model of Delta's log: the rules that exactly-once depends on, and nothing else.

A transaction reads a snapshot, writes files, then puts the next version of the log if nobody has. The real log's
rules, as measured on a real table:

    txnVersion <= what the snapshot has for that app   the append returns without a word and writes nothing
    another commit came first, without a txn of        it is tried again as the version after that
    the same app
    … with a txn of the same app                       ConcurrentTransactionException
    there is no table yet                              it is created first, in a version of its own, by whoever
                                                       puts that one first

A client whose put landed but whose answer was lost finds "another commit" there, its own, and reports a conflict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from buffer.testing.simulator.faults import Answer
from buffer.testing.simulator.scheduler import Process
from buffer.testing.simulator.world import Host, World
from buffer_delta.contracts import Rewrite
from buffer_delta.errors import ConcurrentCommit

REBASES_MAX = 20


class JobFailed(Exception):
    """What Spark raises when a job or a commit failed, or when nobody knows whether it did."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table: an entry of a batch, or a whole batch among the dead letters (`index` -1)."""

    sequence: int
    index: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of the log."""

    app_id: str | None
    txn_version: int
    rows: tuple[Row, ...]


class TableWitness(Protocol):
    def committed(self, caller: Process, table: DeltaLog, commit: Commit) -> None:
        """The commit is in the log."""
        ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    version: int
    """-1 for a table that does not exist."""
    table_id: str | None
    txn_version: int | None


class DeltaLog:
    """One table. Every method is one atomic step."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.commits: list[Commit] = []
        self.witnesses: list[TableWitness] = []

    def snapshot(self, app_id: str) -> Snapshot:
        txns = [commit.txn_version for commit in self.commits if commit.app_id == app_id]
        version = len(self.commits) - 1
        return Snapshot(version, f"id of {self.name}" if self.commits else None, txns[-1] if txns else None)

    def put(self, caller: Process, version: int, commit: Commit) -> list[Commit]:
        """Write this version of the log, if nobody has. Returns the commits that came first, if any."""
        if version < len(self.commits):
            return self.commits[version:]
        self.commits.append(commit)
        for witness in self.witnesses:
            witness.committed(caller, self, commit)
        return []


class SimulatedTarget:
    """A `buffer_delta.contracts.Target` on a simulated log, as one process sees it."""

    def __init__(self, world: World, host: Host, log: DeltaLog) -> None:
        self._network = world.network
        self._process = host.process
        self._counts = world.scheduler.counts
        self._log = log

    @property
    def name(self) -> str:
        return self._log.name

    def table_id(self) -> str | None:
        return self._snapshot("").table_id

    def committed(self, app_id: str) -> int | None:
        return self._snapshot(app_id).txn_version

    def rewritten_since(self, _app_id: str) -> Rewrite | None:
        return None  # nobody restores tables here

    def append(
        self, rows: Any, *, app_id: str, first: int, last: int, epoch: int, entries: int, accept_rewrites: bool = False
    ) -> int | None:
        del first, epoch, entries  # they only go into the commit's userMetadata
        del accept_rewrites  # nobody restores tables here
        seen = self._snapshot(app_id)
        if seen.txn_version is not None and seen.txn_version >= last:
            self._counts["commits skipped"] += 1
            return None
        commit = Commit(app_id, last, tuple(rows))
        self._call(f"{self.name}: write the files of {_describe(commit)}", lambda: None)
        if seen.version < 0:
            self._put(0, Commit(None, -1, ()))
        version = max(seen.version, 0) + 1
        for _ in range(REBASES_MAX):
            first_ones: list[Commit] = self._put(version, commit)
            if not first_ones:
                return len(commit.rows)
            if any(other.app_id == app_id for other in first_ones):
                self._counts["commits in conflict"] += 1
                raise ConcurrentCommit(f"another commit came first: {first_ones}", table=self.name, last=last)
            version += len(first_ones)
        raise JobFailed(f"{REBASES_MAX} commits came first")

    def _put(self, version: int, commit: Commit) -> list[Commit]:
        first_ones: list[Commit] = self._call(
            f"{self.name}: commit version {version}, {_describe(commit)}",
            lambda: self._log.put(self._process, version, commit),
            critical=True,
        )
        return first_ones

    def _snapshot(self, app_id: str) -> Snapshot:
        found: Snapshot = self._call(f"{self.name}: read the log", lambda: self._log.snapshot(app_id))
        return found

    def _call(self, what: str, execute: Any, *, critical: bool = False) -> Any:
        def lost(why: str) -> Answer:
            return False, JobFailed(f"{what}: no answer ({why})")

        return self._network.call(self._process, what, execute, lost=lost, critical=critical)


def _describe(commit: Commit) -> str:
    sequences = sorted({row.sequence for row in commit.rows})
    return f"txn {commit.txn_version} with rows of {sequences}"
