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

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pyarrow as pa
from pyspark.sql.functions import lit

from buffer_delta.delta.state import TableState
from buffer_delta.delta.txn import Txn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


class Sink(Protocol):
    """What a task does with rows instead of handing them on: it eats them and tells in a few bytes what it did.

    It pickles, and equal ones do the same.
    """

    def __call__(self, batches: Iterable[pa.RecordBatch], /) -> Iterator[bytes]: ...


class Rows(Protocol):
    """Rows for one table that are not computed yet. Computed twice, they are the same."""

    @property
    def schema(self) -> StructType:
        """Their columns, all nullable."""
        ...

    @property
    def count(self) -> int | None:
        """How many there are, where it is known: then a writer commits so many or nothing."""
        ...

    def frame(self) -> DataFrame:
        """As a DataFrame, lazily."""
        ...

    def drained(self, sink: Sink) -> list[bytes]:
        """Compute them where they are, on the executors, into a sink in each task; what the sinks told.

        Of a task that ran more than once, one attempt's words are here.
        """
        ...

    def with_nulls(self, columns: StructType) -> Rows:
        """With these columns besides, null in every row."""
        ...


@dataclass(frozen=True, slots=True)
class FrameRows:
    """Rows that a DataFrame computes."""

    rows: DataFrame

    @property
    def schema(self) -> StructType:
        """A literal is never null in a frame, which is no rule for a table."""
        columns: StructType = self.rows.schema.toNullable()
        return columns

    @property
    def count(self) -> None:
        return None

    def frame(self) -> DataFrame:
        return self.rows

    def drained(self, sink: Sink) -> list[bytes]:
        # mapInArrow takes a name with a dot or a backquote for something else: the columns get theirs back there.
        plain = self.rows.toDF(*(f"c{number}" for number in range(len(self.rows.columns))))
        told = _Told(sink, tuple(self.rows.columns))
        found: Sequence[tuple[bytes]] = plain.mapInArrow(told, "told binary").collect()
        return [bytes(said) for (said,) in found]

    def with_nulls(self, columns: StructType) -> FrameRows:
        return FrameRows(self.rows.withColumns({f.name: lit(None).cast(f.dataType) for f in columns.fields}))


@dataclass(frozen=True, slots=True)
class _Told:
    """A sink as mapInArrow wants it."""

    sink: Sink
    names: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for told in self.sink(batch.rename_columns(list(self.names)) for batch in batches):
            yield pa.RecordBatch.from_pydict({"told": pa.array([told], pa.binary())})


def as_rows(rows: Rows | DataFrame) -> Rows:
    return rows if hasattr(rows, "drained") else FrameRows(rows)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Rows that fit the table as it was seen."""

    rows: Rows
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


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why a writer does not write this table, or these rows."""

    reason: str


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
