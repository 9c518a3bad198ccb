"""A model of Delta's log: the rules that exactly-once depends on, and nothing else.

A transaction reads a snapshot, writes files, then puts the next version of the log if nobody has. The real log's
rules, as measured on a real table:

    txnVersion <= what the snapshot has for that app   the append returns without a word and writes nothing
    another commit came first, without a txn of        it is tried again as the version after that
    the same app
    … with a txn of the same app                       ConcurrentTransactionException
    … with other constraints                           MetadataChangedException
    there is no table yet                              it is created first, in a version of its own, by whoever
                                                       puts that one first
    a row that the table refuses                       writing the files fails, for all rows

A client whose put landed but whose answer was lost finds "another commit" there, its own, and reports a conflict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from buffer.testing.simulator.faults import Answer
from buffer.testing.simulator.scheduler import Process
from buffer.testing.simulator.world import Host, World
from buffer_delta.delta.rules import TableRules
from buffer_delta.delta.state import NO_TABLE, NOTHING, TableState
from buffer_delta.delta.state import Commit as Done
from buffer_delta.delta.txn import Txn
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
    checked: bool = True
    """The table looks at what it holds: not so among the dead letters."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of the log."""

    app_id: str | None
    txn_version: int
    rows: tuple[Row, ...]
    rules: TableRules | None = None
    """Others than before, if it changes them."""


class RowRefused(Exception):
    """What Delta raises while it writes a row that the table's constraints, or its files' format, do not allow."""


class TableWitness(Protocol):
    def committed(self, caller: Process, table: DeltaLog, commit: Commit) -> None:
        """The commit is in the log."""
        ...


class DeltaLog:
    """One table. Every method is one atomic step."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.table_id = f"id of {name}"
        """… at first: it is kept when the table is renamed."""
        self.commits: list[Commit] = []
        self.witnesses: list[TableWitness] = []

    def look(self, app_id: str) -> TableState:
        """The newest version. Nobody restores, drops or changes tables here."""
        if not self.commits:
            return NO_TABLE
        txns = [commit.txn_version for commit in self.commits if commit.app_id == app_id]
        rules = [commit.rules for commit in self.commits if commit.rules is not None]
        return TableState(
            len(self.commits) - 1,
            self.table_id,
            txns[-1] if txns else NOTHING,
            rules=rules[-1] if rules else TableRules(),
        )

    def put(self, caller: Process, version: int, commit: Commit) -> list[Commit]:
        """Write this version of the log, if nobody has. Returns the commits that came first, if any."""
        if version < len(self.commits):
            return self.commits[version:]
        self.commits.append(commit)
        for witness in self.witnesses:
            witness.committed(caller, self, commit)
        return []


Refuses: TypeAlias = Callable[[Row, TableRules], bool]


class SimulatedTarget:
    """A `buffer_delta.load.ports.Target` on a simulated log, as one process sees it."""

    def __init__(self, world: World, host: Host, log: DeltaLog, refuses: Refuses = lambda _row, _rules: False) -> None:
        self._network = world.network
        self._process = host.process
        self._counts = world.scheduler.counts
        self._log = log
        self._refuses = refuses

    @property
    def name(self) -> str:
        return self._log.name

    @property
    def place(self) -> str:
        return self._log.name

    def identity(self) -> str | None:
        found: TableState = self._call(f"{self.name}: read the log", lambda: self._log.look(""))
        return found.table_id

    def look(self, app_id: str) -> TableState:
        found: TableState = self._call(f"{self.name}: read the log", lambda: self._log.look(app_id))
        return found

    def nothing(self, seen: TableState) -> Any:
        del seen
        return ()

    def stage(self, rows: Any, txn: Txn, seen: TableState) -> SimulatedFiles:
        if seen.position >= txn.last:
            self._counts["commits skipped"] += 1
            return SimulatedFiles(self, txn, seen, None)
        if seen.version is None:
            self._put(0, Commit(None, -1, ()))
            seen = self.look(txn.app_id)
            if seen.position != NOTHING:
                raise ConcurrentCommit("somebody else created the table", table=self.name, last=txn.last)
        self._write_files(rows, txn, seen)
        return SimulatedFiles(self, txn, seen, Commit(txn.app_id, txn.last, tuple(rows)))

    def rehearse(self, rows: Any, txn: Txn, seen: TableState) -> None:
        self._write_files(rows, txn, seen)

    def _write_files(self, rows: Any, txn: Txn, seen: TableState) -> None:
        what = f"{self.name}: write the files of {_describe(Commit(txn.app_id, txn.last, tuple(rows)))}"
        if self._call(what, lambda: any(self._refuses(row, seen.rules) for row in rows)):
            raise RowRefused(f"{self.name} refuses a row")  # Delta does not say which

    def commit(self, files: SimulatedFiles) -> Done:
        commit, txn, seen = files.content, files.txn, files.seen
        if commit is None:
            return Done(None, 0, 0, 0, 0.0, seen)
        version = (seen.version or 0) + 1
        for _ in range(REBASES_MAX):
            first_ones: list[Commit] = self._put(version, commit)
            if not first_ones:
                return Done(version, len(commit.rows), 1, 0, 0.0, self.look(txn.app_id))
            if any(other.app_id == txn.app_id or other.rules is not None for other in first_ones):
                self._counts["commits in conflict"] += 1
                raise ConcurrentCommit(f"another commit came first: {first_ones}", table=self.name, last=txn.last)
            version += len(first_ones)
        raise JobFailed(f"{REBASES_MAX} commits came first")

    def _put(self, version: int, commit: Commit) -> list[Commit]:
        first_ones: list[Commit] = self._call(
            f"{self.name}: commit version {version}, {_describe(commit)}",
            lambda: self._log.put(self._process, version, commit),
            critical=True,
        )
        return first_ones

    def _call(self, what: str, execute: Any, *, critical: bool = False) -> Any:
        def lost(why: str) -> Answer:
            return False, JobFailed(f"{what}: no answer ({why})")

        return self._network.call(self._process, what, execute, lost=lost, critical=critical)


@dataclass(frozen=True)
class SimulatedFiles:
    """Files that are written, and in no version of the log."""

    target: SimulatedTarget
    txn: Txn
    seen: TableState
    content: Commit | None

    def commit(self) -> Done:
        return self.target.commit(self)


def _describe(commit: Commit) -> str:
    sequences = sorted({row.sequence for row in commit.rows})
    return f"txn {commit.txn_version} with rows of {sequences}"
