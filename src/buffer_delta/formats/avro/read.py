"""Avro values of many entries at once, as Arrow arrays.

A `Cursor` has a place in each of its rows, which are entries, or the items of their arrays. A `Node` reads one value
from every row, moves the places on, and gives an array: what costs time runs in numpy and Arrow, not once for each
value. Arrays and maps are walked through first, to find where each item begins (`walk`); then their items are rows.

Every byte is checked. What the specification does not allow fails its entry and no other: an end in the middle, a
number of more than 64 bits, a boolean that is neither 0 nor 1, an index or a length out of range, text that is not
UTF-8, a key twice in one map. (The libraries that were tried take some of these for values.) Memory is bounded by the
bytes in hand: an item takes at least one byte, and what items take besides is bounded by cells (see `cells`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from buffer_delta.formats.avro.cursor import Broken, Cursor, Node, long_at
from buffer_delta.formats.avro.walk import walk, walk_blocks
from buffer_delta.formats.entries import Indices, invalid_utf8


def scattered(values: pa.Array, rows: Indices, count: int) -> pa.Array:
    """The values at their rows, of so many; null elsewhere."""
    if len(rows) == count:
        return values
    places = np.full(count, -1, np.int64)
    places[rows] = np.arange(len(rows))
    return values.take(pa.array(places, mask=places < 0))


# Arrays and maps


def read_all(cursor: Cursor, node: Node) -> pa.Array:
    """A value from every row, which must take the whole row."""
    values = node.read(cursor)
    cursor.fail_where(cursor.pos != cursor.end, "there is something behind its end")
    return values


@dataclass(frozen=True)
class ArrayNode(Node):
    item: Node
    min_bytes: int = 1

    @property
    def kind(self) -> pa.DataType:
        return pa.list_(self.item.kind)

    def read(self, cursor: Cursor) -> pa.Array:
        items = walk(cursor, self.item, self.item.kind)
        return pa.ListArray.from_arrays(items.offsets, read_all(items.cursor, self.item))

    def skip(self, data: memoryview, pos: int, end: int) -> int:
        return walk_blocks(data, pos, end, self.item)


@dataclass(frozen=True)
class MapNode(Node):
    pair: RecordNode
    """Of the key, which is a string, and the value."""
    min_bytes: int = 1

    @property
    def kind(self) -> pa.DataType:
        return pa.map_(pa.string(), self.pair.fields[1][1].kind)

    def read(self, cursor: Cursor) -> pa.Array:
        items = walk(cursor, self.pair, self.pair.fields[1][1].kind)
        pairs = read_all(items.cursor, self.pair)
        keys = pairs.field(0)
        twice = _twice(keys, np.repeat(np.arange(len(cursor)), items.counts))
        cursor.fail(twice, "a key twice in one map")
        return pa.MapArray.from_arrays(items.offsets, keys, pairs.field(1))

    def skip(self, data: memoryview, pos: int, end: int) -> int:
        return walk_blocks(data, pos, end, self.pair)


def _twice(keys: pa.Array, rows: Indices) -> Indices:
    """The rows that have a key twice."""
    if not len(keys):
        return rows
    codes = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
    found, counts = np.unique(rows * (int(codes.max()) + 1) + codes, return_counts=True)
    twice: Indices = np.unique(found[counts > 1] // (int(codes.max()) + 1))
    return twice


# Records and unions


@dataclass(frozen=True)
class RecordNode(Node):
    fields: Sequence[tuple[str, Node]]

    @property
    def kind(self) -> pa.DataType:
        kept = [pa.field(name, node.kind) for name, node in self.fields if not pa.types.is_null(node.kind)]
        return pa.struct(kept) if kept else pa.null()

    @property
    def min_bytes(self) -> int:  # type: ignore[override]  # computed here
        return sum(node.min_bytes for _, node in self.fields)

    def read(self, cursor: Cursor) -> pa.Array:
        arrays = [node.read(cursor) for _, node in self.fields]
        kind = self.kind
        if pa.types.is_null(kind):
            return pa.nulls(len(cursor))
        kept = [array for array in arrays if not pa.types.is_null(array.type)]
        return pa.StructArray.from_arrays(kept, fields=list(kind))

    def skip(self, data: memoryview, pos: int, end: int) -> int:
        for _, node in self.fields:
            pos = node.skip(data, pos, end)
        return pos

    def skip_all(self, cursor: Cursor) -> None:
        for _, node in self.fields:
            node.skip_all(cursor)


@dataclass(frozen=True)
class UnionNode(Node):
    """Null where the branch is one of nothing; the value where one other branch is left, or where all others are
    numbers that one type holds; else a struct with a field for each of the others, all null but one."""

    branches: Sequence[Node]
    held: pa.DataType | None
    """The type of all branches together; None: a struct."""
    min_bytes: int = 1

    @property
    def kind(self) -> pa.DataType:
        return self.held if self.held is not None else pa.struct(self._members())

    def _members(self) -> list[pa.Field]:
        kept = [node.kind for node in self.branches if not pa.types.is_null(node.kind)]
        return [pa.field(f"member{number}", kind) for number, kind in enumerate(kept)]

    def read(self, cursor: Cursor) -> pa.Array:
        parts, where = [], []
        for number, rows in self._rows(cursor):
            node, inside = self.branches[number], cursor.rows(rows)
            values = node.read(inside)
            cursor.pos[rows] = inside.pos
            cursor.failed[rows] |= inside.failed
            if not pa.types.is_null(node.kind):
                parts.append(values)
                where.append(rows)
        return self._joined(parts, where, len(cursor))

    def _rows(self, cursor: Cursor) -> list[tuple[int, Indices]]:
        """The rows of each branch; the places move on to their values."""
        chosen = cursor.varints()
        out = (chosen < 0) | (chosen >= len(self.branches))
        cursor.fail_where(out, "a branch of a union that it does not have")
        return [(number, np.flatnonzero((chosen == number) & ~out)) for number in range(len(self.branches))]

    def _joined(self, parts: list[pa.Array], where: list[Indices], count: int) -> pa.Array:
        if self.held is not None and pa.types.is_null(self.held):
            return pa.nulls(count)
        if self.held is not None:
            together = pa.concat_arrays([part.cast(self.held) if part.type != self.held else part for part in parts])
            places = np.full(count, -1, np.int64)
            places[np.concatenate(where)] = np.arange(len(together))
            if len(parts) == 1:
                return scattered(together, where[0], count)
            return together.take(pa.array(places, mask=places < 0))
        members = [scattered(part, rows, count) for part, rows in zip(parts, where, strict=True)]
        there = np.zeros(count, bool)
        there[np.concatenate(where)] = True
        return pa.StructArray.from_arrays(members, fields=self._members(), mask=pa.array(~there))

    def skip(self, data: memoryview, pos: int, end: int) -> int:
        chosen, pos = long_at(data, pos, end)
        if not 0 <= chosen < len(self.branches):
            raise Broken("a branch of a union that it does not have")
        return self.branches[chosen].skip(data, pos, end)

    def skip_all(self, cursor: Cursor) -> None:
        for number, rows in self._rows(cursor):
            inside = cursor.rows(rows)
            self.branches[number].skip_all(inside)
            cursor.pos[rows] = inside.pos
            cursor.failed[rows] |= inside.failed


@dataclass(frozen=True)
class NullNode(Node):
    kind: pa.DataType = field(default_factory=pa.null)
    min_bytes: int = 0

    def read(self, cursor: Cursor) -> pa.Array:
        return pa.nulls(len(cursor))

    def skip(self, _data: memoryview, pos: int, _end: int) -> int:
        return pos

    def skip_all(self, _cursor: Cursor) -> None:
        """It takes no bytes."""


def texts(cursor: Cursor, values: pa.BinaryArray) -> pa.StringArray:
    """Bytes as text; rows that are none fail."""
    bad = invalid_utf8(values)
    if bad:
        rows = np.array([row for row, _ in bad], np.int64)
        cursor.fail(rows, "text that is not UTF-8")
        is_bad = np.zeros(len(values), bool)
        is_bad[rows] = True
        values = pc.if_else(pa.array(is_bad), pa.scalar(b"", pa.binary()), values)
    return values.cast(pa.string())
