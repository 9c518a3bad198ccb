"""What the protocol asks of the parts around it: tables that commit atomically, work that turns batches into rows.

Everything that can fail for what an entry holds happens in `Work.prepare` or in `Target.stage`, before anything of the
range is decided or committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from buffer.ledger.plan import Plan
from buffer.model import BatchDescriptor
from buffer_delta.decode.failures import Failure as Failure
from buffer_delta.decode.group import Group as Group
from buffer_delta.delta.state import Commit, TableState
from buffer_delta.delta.txn import Txn
from buffer_delta.load.isolate import Trouble as Trouble


class Staged(Protocol):
    """Rows that are written for a table, and not in it."""

    @property
    def seen(self) -> TableState:
        """The table that they are written for; as it was created, if it was not there."""
        ...

    def commit(self) -> Commit:
        """Put the rows and `txn.last` into the table, on top of the version that was seen; look again.

        Raises ConcurrentCommit where a commit that matters came between. After any error it may have landed: look.
        """
        ...


class Target(Protocol):
    """One table. A commit is one transaction that holds the rows and `txn.last`, or nothing."""

    @property
    def name(self) -> str:
        """As it is spelled in the configuration."""
        ...

    @property
    def place(self) -> str:
        """Where it is, in one spelling: what plans call it."""
        ...

    def identity(self) -> str | None:
        """The table's own id, which it keeps wherever it is moved; None if it is not there."""
        ...

    def look(self, app_id: str) -> TableState:
        """The table as it is now, by one read of its newest log. It is not created."""
        ...

    def nothing(self, seen: TableState) -> Any:
        """No rows, of the columns that a table has."""
        ...

    def stage(self, rows: Any, txn: Txn, seen: TableState) -> Staged:
        """Write the rows' files. Creates the table, but nothing is in it before the commit.

        Raises whatever the table has against a row.
        """
        ...

    def rehearse(self, rows: Any, txn: Txn, seen: TableState) -> None:
        """Raise what `stage` would, and leave nothing that anybody sees: no table is created either."""
        ...


class Work(Protocol):
    """Turning batches into rows: a pure function of bytes, the configuration behind `digest` and the tables' rules."""

    @property
    def digest(self) -> str: ...

    @property
    def known_digests(self) -> Collection[str]:
        """`digest`, and what an older release called the same configuration."""
        ...

    def main_alone(self) -> Work:
        """The same configuration without all tables but the main one: for ranges that others joined too late for."""
        ...

    def prepare(self, part: Group, seen: Callable[[str], TableState]) -> AbstractContextManager[Mapping[str, Any]]:
        """The rows for each target that gets some, by its name, and for the main one in any case.

        With several targets everything is decoded on entry, once.

        Where there are dead letters, rows that a table's rules refuse are among those, not in the others.

        `seen` tells what the target of that name looks like. Whoever asks makes the look on which the commit is based,
        so ask late, and only if rows depend on it.
        """
        ...

    def probe(self, part: Group, seen: Callable[[str], TableState]) -> Sequence[Failure]:
        """Read, decode and check every entry by itself, as far as that can be done for all at once; what fails.

        Raises what the job raises: an entry that ends the process is found by trying less.
        """
        ...

    def count(self, descriptor: BatchDescriptor) -> int:
        """How many entries a batch has."""
        ...

    def trouble(self, error: Exception) -> Trouble:
        """What an error of the other methods, or of a target's, says, and whether it can be the data's fault."""
        ...


@dataclass(frozen=True, slots=True)
class Rules:
    """What an operator decides."""

    app_id: str | None = None
    adopt: bool = False
    accept_gaps: bool = False
    max_delivery_attempts: int = 5
    dlq_strategy: Literal["skip", "block", "block_and_dlq"] = "block"
    has_dead_letters: bool = False
    """One of the tables is for what was set aside."""


@dataclass(frozen=True, slots=True)
class Done:
    """One range that is in its tables and acked."""

    plan: Plan
    descriptors: Sequence[BatchDescriptor]
    commits: Mapping[str, Commit]
    """What each target's write did; a table that had the range already, or got nothing, is not in it."""
