"""What a writer is: it puts prepared rows into a table, in one transaction. A new way to write is a new file here.

The rules of every writer:
- The transaction runs on the very version that `prepared.seen` is of. Its position is below `txn.last`; the caller
  has looked, and a writer that decides by another version checks again.
- It holds the rows, `txn.app_id` with `txn.last`, and `txn.to_note()`; or nothing of them.
- It conflicts with any other transaction that moves the same app's position. What else may come between is Delta's
  business: an append need not conflict with it.
- **Staging.** A writer that can write the files first and commit them later says so by having `stage`. Then every
  table's rows are written before anything is committed anywhere: a row that its table refuses is found while it can
  still be sent elsewhere. Files that are staged and never committed are orphans, which VACUUM takes.
- What the rows are computed from is no part of the transaction: a transform that reads the table itself sees whatever
  version is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from buffer_delta.delta.state import TableState
from buffer_delta.delta.txn import Txn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Prepared:
    """Rows that fit the table as it was seen."""

    rows: DataFrame
    seen: TableState
    merge_schema: bool
    """New columns of the rows become columns of the table."""


@dataclass(frozen=True, slots=True)
class Written:
    """What the writer knows of its commit."""

    version: int
    rows: int
    files: int
    bytes: int


class Writer(Protocol):
    @property
    def casts(self) -> bool:
        """Whether it changes values to make them fit a column of another type; then only what fits may come here."""
        ...

    @property
    def leaves_checkpoints(self) -> bool:
        """Whether its commits leave out the checkpoint that Delta would make now and then, for the caller to make."""
        ...

    def write(self, prepared: Prepared, txn: Txn) -> Written | None:
        """Commit. None: this writer is not told what became of it, look at the log.

        Raises what Spark and Delta raise; then nothing is known to be written, and it may be.
        """
        ...


class Staged(Protocol):
    """Files that are written, and in no table yet."""

    def commit(self) -> Written | None:
        """As `Writer.write`."""
        ...


@runtime_checkable
class StagingWriter(Writer, Protocol):
    def stage(self, prepared: Prepared, txn: Txn) -> Staged:
        """Write the files, which does all that may fail for what the rows hold. Nobody sees them."""
        ...


@dataclass(frozen=True, slots=True)
class Unstaged:
    """For a writer that does both at once: everything is left to the commit."""

    writer: Writer
    prepared: Prepared
    txn: Txn

    def commit(self) -> Written | None:
        return self.writer.write(self.prepared, self.txn)


def stage(writer: Writer, prepared: Prepared, txn: Txn) -> Staged:
    """The way of this writer."""
    return writer.stage(prepared, txn) if isinstance(writer, StagingWriter) else Unstaged(writer, prepared, txn)
