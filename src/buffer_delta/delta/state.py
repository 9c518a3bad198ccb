"""What a table looked like, and what a commit did to it, as values. Pure: no Spark.

The protocol decides by them, the simulator makes them from a model of Delta's log, `delta/log.py` from a real one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from buffer_delta.delta.rules import TableRules

NOTHING = -1
"""The position of a table that has loaded nothing."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Something that took back rows which the table's transaction still counts as committed."""

    operation: str
    version: int
    timestamp: str


@dataclass(frozen=True, slots=True)
class TableState:
    """What one look at the newest log found. All of it is of one version."""

    version: int | None = None
    """None: there is no table."""
    table_id: str | None = None
    """Delta's id of the table; one dropped and made again has another."""
    position: int = NOTHING
    """The last sequence that the app has committed."""
    rewrite: Rewrite | None = None
    """What took rows back since then."""
    schema: Any = field(default=None, repr=False)
    """The columns, a Spark StructType."""
    rules: TableRules = field(default=TableRules(), repr=False)
    """What it demands of rows besides."""
    mark: str | None = field(default=None, repr=False, compare=False)
    """The first line of that version's commit, which no other one has; None where it is not known."""
    snapshot: Any = field(default=None, repr=False, compare=False)
    """What a writer needs to commit on top of this very version."""


NO_TABLE = TableState()


@dataclass(frozen=True, slots=True)
class Commit:
    """What one write did. `rows`, `files` and `bytes` are 0 where it was skipped."""

    version: int | None
    """The table's version that it made; None if Delta held the range for done and wrote nothing."""
    rows: int
    files: int
    bytes: int
    seconds: float
    after: TableState
    """The look after the write: `position` tells whether the table holds the range."""
    hidden: Rewrite | None = None
    """What took rows back while this was written. Our commit came after it, and hides it from every later look."""

    @property
    def skipped(self) -> bool:
        return self.version is None
