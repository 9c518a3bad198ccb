"""Places in many entries at once, and what a type of a schema must be able to do with them. See `read`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from buffer_delta.formats.entries import Indices

Mask = npt.NDArray[np.bool_]
SHORT = "it ends in the middle of a value"
_VARINT_BYTES_MAX = 10


class Broken(ValueError):
    """What was found while walking through items."""


@dataclass
class Report:
    """What is wrong with entries, the first of each; and the cells that each may still use."""

    cells: Indices
    errors: dict[int, str] = field(default_factory=dict)

    def add(self, entries: Indices, reason: str) -> None:
        for entry in entries.tolist():
            self.errors.setdefault(entry, reason)


@dataclass
class Cursor:
    data: npt.NDArray[np.uint8]
    pos: Indices
    """The place in each row. Rows lie in the data one after the other."""
    end: Indices
    entry: Indices
    """The entry that each row belongs to."""
    report: Report
    failed: Mask = field(init=False)
    """The rows that have failed here."""

    def __post_init__(self) -> None:
        self.failed = np.zeros(len(self.pos), bool)

    def __len__(self) -> int:
        return len(self.pos)

    def rows(self, chosen: Indices) -> Cursor:
        return Cursor(self.data, self.pos[chosen], self.end[chosen], self.entry[chosen], self.report)

    def fail(self, rows: Indices, reason: str) -> None:
        """These rows are of no use; whatever is read from them now is nothing."""
        if len(rows):
            self.report.add(self.entry[rows], reason)
            self.pos[rows] = self.end[rows]
            self.failed[rows] = True

    def fail_where(self, mask: Mask, reason: str) -> None:
        if mask.any():
            self.fail(np.flatnonzero(mask), reason)

    def varints(self) -> Indices:
        """A zigzag number from each row; 0 from those that fail."""
        value = np.zeros(len(self), np.uint64)
        left = np.arange(len(self))
        for number in range(_VARINT_BYTES_MAX):
            short = self.pos[left] >= self.end[left]
            if short.any():
                self.fail(left[short], SHORT)
                left = left[~short]
            byte = self.data[self.pos[left]]
            if number == _VARINT_BYTES_MAX - 1 and (byte > 1).any():
                value[left[byte > 1]] = 0
                self.fail(left[byte > 1], "a number of more than 64 bits")
                left, byte = left[byte <= 1], byte[byte <= 1]
            value[left] |= (byte & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * number)
            self.pos[left] += 1
            left = left[byte >= 128]
            if not len(left):
                break
        found: Indices = (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64)
        return found

    def fixed(self, width: int) -> npt.NDArray[np.uint8]:
        """So many bytes from each row; zeros from those that fail."""
        self.fail_where(self.end - self.pos < width, SHORT)
        found = np.zeros((len(self), width), np.uint8)
        good = np.flatnonzero(self.end - self.pos >= width)
        found[good] = self.data[self.pos[good][:, None] + np.arange(width)]
        self.pos[good] += width
        return found

    def jump(self, lengths: Indices) -> None:
        """Over so many bytes of each row."""
        out = (lengths < 0) | (lengths > self.end - self.pos)
        self.fail_where(out, "a length beyond its end")
        self.pos += np.where(out, 0, lengths)

    def slices(self, lengths: Indices) -> pa.BinaryArray:
        """So many bytes from each row, copied by Arrow; none from those that fail."""
        count = len(self)
        out = (lengths < 0) | (lengths > self.end - self.pos)
        offsets = np.zeros(2 * count + 1, np.int32)  # each value, and the gap behind it
        offsets[0:-1:2] = np.where(out, self.end, self.pos)
        self.jump(lengths)
        offsets[1::2] = self.pos
        if count:
            offsets[-1] = offsets[-2]
        whole = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(self.data)])
        return whole.take(pa.array(np.arange(0, 2 * count, 2)))


class Node(ABC):
    """One type of a schema. Pickles."""

    kind: pa.DataType
    """Of the arrays. Null: there is nothing to keep."""
    min_bytes: int
    """What a value takes in an entry, at least."""

    @abstractmethod
    def read(self, cursor: Cursor) -> pa.Array:
        """A value from every row; anything from rows that fail."""

    @abstractmethod
    def skip(self, data: memoryview, pos: int, end: int) -> int:
        """Where the value at `pos` ends. Raises Broken, but checks no more than it needs to find that."""

    def skip_all(self, cursor: Cursor) -> None:
        """Past the value of every row. Checks no more than it needs to find where that ends."""
        data = memoryview(cursor.data)  # type: ignore[arg-type]  # numpy's types do not say that arrays are buffers
        for row, (pos, end) in enumerate(zip(cursor.pos.tolist(), cursor.end.tolist(), strict=True)):
            try:
                cursor.pos[row] = self.skip(data, pos, end)
            except Broken as error:
                cursor.fail(np.array([row]), str(error))


def long_at(data: memoryview, pos: int, end: int) -> tuple[int, int]:
    """A number, and the place behind it. Raises Broken."""
    value = 0
    for shift in range(0, 70, 7):
        if pos >= end:
            raise Broken(SHORT)
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), pos
    raise Broken("a number of more than 64 bits")


def within(pos: int, end: int) -> int:
    if pos > end:
        raise Broken(SHORT)
    return pos
