"""What can go wrong between a queue and its tables. One tree with the core's errors, named by remedy.

BufferQueueError                     (buffer.errors)
├── QueueBound              (buffer.errors) the queue feeds another app or other tables: use those, or adopt it
├── SequenceGap             batches between table and queue are gone: an operator accepts the loss, or not
├── StartUnknown            a query without a checkpoint on a queue that was read before: say where it starts
├── RouteChanged            finish the planned range with the old configuration, or unblock it for another one
├── Blocked                 a range cannot be loaded: fix it, then unblock
├── CommitSkipped           Delta took the append but not the rows: something else uses this app_id
├── ConcurrentCommit        another commit came between: read the table's position again, then decide
├── RedriveUnfinished       dead letters are on their way to another queue: finish that redrive first
├── SchemaMismatch          rows and table disagree on columns: let the table evolve, or fix the schema
├── NullRefused             rows lack a value that the table demands: give them one, or drop the constraint
├── RowsMissing             files hold other rows than were counted: nothing is committed, start again and tell us
├── SparkUnusable           this Spark session cannot write Delta tables: the message says what it lacks
│   └── JavaMissing         no Java that Spark could run on
└── StateLost                        (buffer.errors)
    ├── LedgerBehind        the tables are ahead of the plans: wrong app_id, or a ledger from a backup
    └── TableChanged        rows that count as loaded are no longer in the table
        ├── TableReplaced       … because the table was dropped, or dropped and made again
        └── TableRewritten      … because it was restored, replaced or overwritten
"""

from __future__ import annotations

from buffer.errors import BufferQueueError, QueueBound, StateLost

__all__ = [
    "Blocked",
    "CommitSkipped",
    "ConcurrentCommit",
    "JavaMissing",
    "LedgerBehind",
    "NullRefused",
    "QueueBound",
    "RedriveUnfinished",
    "RouteChanged",
    "RowsMissing",
    "SchemaMismatch",
    "SequenceGap",
    "SparkUnusable",
    "StartUnknown",
    "TableChanged",
    "TableReplaced",
    "TableRewritten",
]


class SequenceGap(BufferQueueError):
    """The queue does not go on where the tables stopped. Nothing was committed."""

    committed: int
    earliest: int


class StartUnknown(BufferQueueError):
    """Nothing tells what of the queue was processed already. Nothing was claimed."""

    location: str
    first_sequence: int
    next_sequence: int


class RouteChanged(BufferQueueError):
    """A range was begun under another configuration and may be in some tables already."""

    first: int
    last: int
    planned_digest: str
    digest: str


class Blocked(BufferQueueError):
    """A range holds batches or entries that cannot be loaded, and the rules say to stop. Nothing was committed."""

    first: int
    last: int
    attempts: int
    batches: tuple[int, ...]
    """The sequences of those that cannot be read at all."""
    entries: tuple[tuple[int, int], ...]
    """Sequence and index of those that fail every time."""


class CommitSkipped(BufferQueueError):
    """Commits went through, yet the table's position is not the one that was written."""

    table: str
    committed: int
    last: int


class ConcurrentCommit(BufferQueueError):
    """Another commit came between; or our own did, if its reply was lost. Read the table's position, then decide."""

    table: str
    app_id: str
    last: int
    reason: str
    """Delta's name for the conflict, like `ConcurrentTransactionException`."""


class SchemaMismatch(BufferQueueError):
    """The rows do not fit the table's columns. Nothing was written."""

    table: str
    columns: tuple[str, ...]


class NullRefused(BufferQueueError):
    """Rows have a null in a column that is NOT NULL. Nothing was committed."""

    column: str
    """Its path through structs, with dots."""
    rows: int
    """How many, of the batch that was looked at."""


class RowsMissing(BufferQueueError):
    """The files of a range do not hold the rows that were counted for it. Nothing was committed."""

    counted: int
    written: int


class RedriveUnfinished(BufferQueueError):
    """A redrive of this table to another queue was interrupted. Nothing was changed."""

    queue_id: str
    place: str
    """Where that queue is."""
    letters: int


class SparkUnusable(BufferQueueError):
    """The Spark session lacks what a loader needs, or none could be started."""

    found: str


class JavaMissing(SparkUnusable):
    """Spark needs a Java runtime of version 17 or later."""


class LedgerBehind(StateLost):
    """The tables have committed more than this queue's ledger ever planned."""

    committed: int
    planned_last: int


class TableChanged(StateLost):
    """Rows that count as loaded are gone from the table. Nothing was changed; an operator must decide."""

    table: str


class TableReplaced(TableChanged):
    """The table is not the one that was loaded before."""

    expected_id: str
    found_id: str | None


class TableRewritten(TableChanged):
    """RESTORE, CREATE OR REPLACE or an overwrite took rows back; Delta keeps their transaction all the same."""

    operation: str
    version: int
