"""Where the items of arrays and maps begin: the one thing that each entry must be walked through for.

Step by step for all rows at once, one item of each, as long as there are many of them; the few with long arrays are
walked to their end one by one, in Python.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from buffer_delta.formats.avro.cursor import Broken, Cursor, Node, long_at, within
from buffer_delta.formats.cells import leaves
from buffer_delta.formats.entries import Indices

MANY = 64
"""Rows for which a step of numpy is faster than as many of Python."""
_NO_STOP = -1


@dataclass
class Items:
    """Where the items of arrays or maps lie: those of row 0, then those of row 1, …"""

    cursor: Cursor
    counts: Indices
    """Of each row."""

    @property
    def offsets(self) -> pa.Array:
        return pa.array(np.concatenate([np.zeros(1, np.int64), np.cumsum(self.counts)]).astype(np.int32))


def walk(cursor: Cursor, item: Node, kind: pa.DataType) -> Items:
    """The items of the array or map that comes next in each row. `kind` is what an item becomes."""
    found = _Walk(cursor, item)
    found.together()
    found.one_by_one()
    rows, starts, stops = found.items()
    np.subtract.at(cursor.report.cells, cursor.entry[rows], leaves(kind))
    over = cursor.report.cells[cursor.entry] < 0
    cursor.fail_where(over & ~cursor.failed, "its arrays and maps would take too much room for its size")
    kept = ~cursor.failed[rows]
    rows, starts, stops = rows[kept], starts[kept], stops[kept]
    counts = np.bincount(rows, minlength=len(cursor)).astype(np.int64)
    return Items(Cursor(cursor.data, starts, stops, cursor.entry[rows], cursor.report), counts)


@dataclass
class _Walk:
    cursor: Cursor
    item: Node
    left: Indices = field(init=False)
    """Items of the block that each row is in."""
    stop: Indices = field(init=False)
    """Where that block ends, if it says so."""
    active: Indices = field(init=False)
    """Rows that are not at their end."""
    found: list[tuple[Indices, Indices, Indices]] = field(default_factory=list)
    """Rows, and where an item of each starts and stops."""

    def __post_init__(self) -> None:
        count = len(self.cursor)
        self.left, self.stop = np.zeros(count, np.int64), np.full(count, _NO_STOP, np.int64)
        self.active = np.flatnonzero(~self.cursor.failed)

    def together(self) -> None:
        while len(self.active) >= MANY:
            self._begin_blocks()
            rows = self.active[self.left[self.active] > 0]
            inside = self.cursor.rows(rows)
            starts = inside.pos.copy()
            self.item.skip_all(inside)
            self._moved(rows, inside)
            self.left[rows] -= 1
            self.found.append((rows, starts, inside.pos))
            self.active = rows[~inside.failed]

    def _begin_blocks(self) -> None:
        """Read the head of a block in the rows that are at one. Those at the end, or that fail, are not active."""
        cursor = self.cursor
        rows = self.active[self.left[self.active] == 0]
        wrong = rows[(self.stop[rows] != _NO_STOP) & (self.stop[rows] != cursor.pos[rows])]
        cursor.fail(wrong, "a block of items is not as long as it says")
        inside = cursor.rows(rows)
        counts = inside.varints()
        self.stop[rows] = _NO_STOP
        sized = np.flatnonzero((counts < 0) & ~inside.failed)
        if len(sized):
            deeper = inside.rows(sized)
            sizes = np.maximum(deeper.varints(), 0)
            deeper.fail_where(sizes > deeper.end - deeper.pos, "a block of items ends beyond its entry")
            self.stop[rows[sized]] = deeper.pos + sizes
            inside.pos[sized] = deeper.pos
            inside.failed[sized] |= deeper.failed
        counts = np.where(counts == np.iinfo(np.int64).min, np.iinfo(np.int64).max, np.abs(counts))
        too_many = counts > (inside.end - inside.pos) // self.item.min_bytes
        for row in np.flatnonzero(too_many & ~inside.failed).tolist():
            room = int(inside.end[row] - inside.pos[row])
            inside.fail(np.array([row]), f"{counts[row]:,} items in {room:,} bytes")
        self._moved(rows, inside)
        self.left[rows] = np.where(inside.failed, 0, counts)
        self.active = self.active[(self.left[self.active] > 0) & ~cursor.failed[self.active]]

    def _moved(self, rows: Indices, inside: Cursor) -> None:
        """Take over where a part of the rows has got to."""
        self.cursor.pos[rows] = inside.pos
        self.cursor.failed[rows] |= inside.failed

    def one_by_one(self) -> None:
        data = memoryview(self.cursor.data)  # type: ignore[arg-type]  # numpy's types do not say that they are buffers
        for row in self.active.tolist():
            pos, end = int(self.cursor.pos[row]), int(self.cursor.end[row])
            starts: list[int] = []
            stops: list[int] = []
            try:
                begun = int(self.left[row]), int(self.stop[row])
                self.cursor.pos[row] = walk_blocks(data, pos, end, self.item, (starts, stops), begun)
            except Broken as error:
                self.cursor.fail(np.array([row]), str(error))
            places = np.array(starts, np.int64), np.array(stops, np.int64)
            self.found.append((np.full(len(starts), row, np.int64), *places))

    def items(self) -> tuple[Indices, Indices, Indices]:
        """Row by row, in order."""
        none = (np.zeros(0, np.int64),) * 3
        rows, starts, stops = (np.concatenate(part) for part in zip(none, *self.found, strict=True))
        order = np.lexsort((starts, rows))
        return rows[order], starts[order], stops[order]


def walk_blocks(
    data: memoryview,
    pos: int,
    end: int,
    item: Node,
    found: tuple[list[int], list[int]] | None = None,
    begun: tuple[int, int] = (0, _NO_STOP),
) -> int:
    """Where an array or a map ends. Its items go into `found`: where they start, where they stop.

    `begun`: how many items are left of a block that was begun, and where it ends, if it says so. Raises Broken.
    """
    count, stop = begun
    while True:
        for _ in range(count):
            start, pos = pos, item.skip(data, pos, end)
            if found is not None:
                found[0].append(start)
                found[1].append(pos)
        if stop not in (_NO_STOP, pos):
            raise Broken("a block of items is not as long as it says")
        count, pos = long_at(data, pos, end)
        if count == 0:
            return pos
        stop = _NO_STOP
        if count < 0:
            count = -count
            size, pos = long_at(data, pos, end)
            stop = within(pos + max(size, 0), end)
        if count > (end - pos) // item.min_bytes:
            raise Broken(f"{count:,} items in {end - pos:,} bytes")
