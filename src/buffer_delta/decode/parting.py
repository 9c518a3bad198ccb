"""Rows of several tables, told apart where they are made: which go where, and into files in the same pass. Pure.

A range is decoded once for all of its tables, and a table that gets nothing costs nothing: no query asks for it.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from buffer_delta.decode.group import Group

Decode: TypeAlias = Callable[[Group], Iterator[pa.RecordBatch]]
"""The rows of all tables, together."""


@dataclass(frozen=True)
class Parting:
    """Where a row goes, by its own columns. The same as `load.work` does in a query, which knows more ways."""

    main: str
    dead_letters: str | None = None
    """The table for rows whose last column is set, and of which nothing but that column goes there."""
    route: str | None = None
    """The column whose text names a route."""
    routes: Mapping[str, str] = field(default_factory=dict)
    """Text -> table."""

    def parts(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows of each table that gets some."""
        if self.dead_letters is not None:
            mark = batch.column(batch.num_columns - 1)
            if mark.null_count < len(mark):
                yield self.dead_letters, pa.RecordBatch.from_struct_array(mark.drop_null())
                batch = batch.filter(mark.is_null())
            batch = batch.select(range(batch.num_columns - 1))
        for table, rows in self._routed(batch):
            if rows.num_rows:
                yield table, rows

    def _routed(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self.route is None:
            yield self.main, rows
            return
        texts = rows.column(self.route).cast(pa.string())
        which = pc.index_in(texts, pa.array(list(self.routes), pa.string()))
        if which.null_count == len(which):
            yield self.main, rows
            return
        for number, table in enumerate(self.routes.values()):
            yield table, rows.filter(pc.fill_null(pc.equal(which, number), False))
        yield self.main, rows.filter(which.is_null())

    def columns(self, table: str, schema: pa.Schema) -> pa.Schema:
        """What one table gets of rows with this schema."""
        if self.dead_letters is None:
            return schema
        if table == self.dead_letters:
            return pa.schema(list(schema.field(len(schema) - 1).type))
        return pa.schema(list(schema)[:-1])

    @staticmethod
    def knows(kind: pa.DataType) -> bool:
        """Whether the text of such a column is the same here and in Spark."""
        return bool(pa.types.is_string(kind) or pa.types.is_boolean(kind) or pa.types.is_integer(kind))


class Feed(Protocol):
    """What rows are given to, batch by batch."""

    def add(self, rows: pa.RecordBatch, /) -> None: ...

    @property
    def held_bytes(self) -> int:
        """Of rows that wait in memory."""
        ...

    @property
    def held_max_bytes(self) -> int:
        """As many as one alone may hold."""
        ...

    def relieve(self) -> None:
        """Hold fewer."""
        ...

    def end(self) -> list[bytes]:
        """That was all: what became of them, in a few bytes."""
        ...

    def stop(self) -> None:
        """In any case, and last."""
        ...


class Feeding(Protocol):
    """A sink that can be fed. It pickles, and equal ones do the same."""

    def begin(self) -> Feed: ...


@dataclass(frozen=True)
class Found:
    """What one task made of its group."""

    counts: Mapping[str, int]
    """Rows, of the tables that get some."""
    told: Mapping[str, list[bytes]]
    """What the sinks said, where there was one."""
    has_rescued: bool = False
    """It stopped at a row with something in the column that was watched, and the rest of this says nothing."""

    @classmethod
    def of(cls, text: bytes) -> Found:
        return cls(*pickle.loads(text))


@dataclass(frozen=True)
class PartTask:
    """Decodes a group once, counts the rows of each table, and feeds those whose sink is known.

    All of these together hold no more in memory than one of them may, however many tables there are."""

    decode: Decode
    parting: Parting
    sinks: Mapping[str, Feeding]
    watched: str | None = None
    """A column that must be null in every row, or the whole task is in vain."""

    def __call__(self, group: Group) -> Iterator[bytes]:
        counts: Counter[str] = Counter()
        feeds: dict[str, Feed] = {}
        try:
            for batch in self.decode(group):
                if self.watched is not None and batch.column(self.watched).null_count < batch.num_rows:
                    yield pickle.dumps(({}, {}, True))
                    return
                for table, rows in self.parting.parts(batch):
                    counts[table] += rows.num_rows
                    if table in self.sinks:
                        if table not in feeds:
                            feeds[table] = self.sinks[table].begin()
                        feeds[table].add(rows)
                        _relieve(feeds.values())
            told = {table: feed.end() for table, feed in feeds.items()}
        finally:
            for feed in feeds.values():
                feed.stop()
        yield pickle.dumps((dict(counts), told))


def _relieve(feeds: Collection[Feed]) -> None:
    most = max(feed.held_max_bytes for feed in feeds)
    while sum(feed.held_bytes for feed in feeds) > most:
        max(feeds, key=lambda feed: feed.held_bytes).relieve()


@dataclass(frozen=True)
class OnePart:
    """Decodes a group, and keeps the rows of one table."""

    decode: Decode
    parting: Parting
    table: str

    def __call__(self, group: Group) -> Iterator[pa.RecordBatch]:
        for batch in self.decode(group):
            yield from (rows for table, rows in self.parting.parts(batch) if table == self.table)
