"""The plain types of Avro, and those that a logical type makes of them. See `read` for what they are part of.

boolean, int, long, float, double      BOOLEAN, INT, BIGINT, FLOAT, DOUBLE
bytes, fixed; string, enum             BINARY; STRING
date                                   DATE
timestamp-millis, timestamp-micros     TIMESTAMP; local-timestamp-… TIMESTAMP_NTZ
decimal, up to 38 digits               DECIMAL(p, s)
any other logical type                 what it stands on: times of day and nanoseconds are numbers
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from buffer_delta.formats.avro.cursor import Cursor, Node, long_at, within
from buffer_delta.formats.avro.read import texts
from buffer_delta.formats.entries import Indices

_INT_MAX = (1 << 31) - 1
_MILLIS_MAX = ((1 << 63) - 1) // 1000
_DECIMAL_BYTES = 16


@dataclass(frozen=True)
class BooleanNode(Node):
    kind: pa.DataType
    min_bytes: int = 1

    def read(self, cursor: Cursor) -> pa.Array:
        found = cursor.fixed(1)[:, 0]
        cursor.fail_where(found > 1, "a boolean that is neither 0 nor 1")
        return pa.array(found == 1)

    def skip(self, _data: memoryview, pos: int, end: int) -> int:
        return within(pos + 1, end)

    def skip_all(self, cursor: Cursor) -> None:
        cursor.jump(np.ones(len(cursor), np.int64))


@dataclass(frozen=True)
class NumberNode(Node):
    """int and long, and the times that are such numbers."""

    kind: pa.DataType
    is_int: bool = False
    is_millis: bool = False
    min_bytes: int = 1

    def read(self, cursor: Cursor) -> pa.Array:
        found = cursor.varints()
        if self.is_int:
            out = (found < -_INT_MAX - 1) | (found > _INT_MAX)
            cursor.fail_where(out, "a number of more than 32 bits where the schema has an int")
            return pa.array(np.where(out, 0, found).astype(np.int32)).view(self.kind)
        if self.is_millis:
            out = (found < -_MILLIS_MAX) | (found > _MILLIS_MAX)
            cursor.fail_where(out, "a time that a TIMESTAMP cannot hold")
            found = np.where(out, 0, found) * 1000
        return pa.array(found).view(self.kind)

    def skip(self, data: memoryview, pos: int, end: int) -> int:
        return long_at(data, pos, end)[1]

    def skip_all(self, cursor: Cursor) -> None:
        cursor.varints()


@dataclass(frozen=True)
class FloatNode(Node):
    kind: pa.DataType
    min_bytes: int

    def read(self, cursor: Cursor) -> pa.Array:
        return pa.array(cursor.fixed(self.min_bytes).view(f"<f{self.min_bytes}")[:, 0])

    def skip(self, _data: memoryview, pos: int, end: int) -> int:
        return within(pos + self.min_bytes, end)

    def skip_all(self, cursor: Cursor) -> None:
        cursor.jump(np.full(len(cursor), self.min_bytes, np.int64))


@dataclass(frozen=True)
class BytesNode(Node):
    """bytes, string and fixed; and decimals, which are kept in the first or the last."""

    kind: pa.DataType
    size: int | None = None
    """Of a fixed."""

    @property
    def min_bytes(self) -> int:  # type: ignore[override]  # computed here
        return 1 if self.size is None else self.size

    def read(self, cursor: Cursor) -> pa.Array:
        found = cursor.slices(self._lengths(cursor))
        if pa.types.is_string(self.kind):
            return texts(cursor, found)
        return decimals(cursor, found, self.kind) if pa.types.is_decimal(self.kind) else found

    def skip(self, data: memoryview, pos: int, end: int) -> int:
        length = self.size
        if length is None:
            length, pos = long_at(data, pos, end)
        return within(pos + length, end) if length >= 0 else within(end + 1, end)

    def skip_all(self, cursor: Cursor) -> None:
        cursor.jump(self._lengths(cursor))

    def _lengths(self, cursor: Cursor) -> Indices:
        return cursor.varints() if self.size is None else np.full(len(cursor), self.size, np.int64)


@dataclass(frozen=True)
class EnumNode(Node):
    symbols: Sequence[str]
    kind: pa.DataType
    min_bytes: int = 1

    def read(self, cursor: Cursor) -> pa.Array:
        found = cursor.varints()
        out = (found < 0) | (found >= len(self.symbols))
        cursor.fail_where(out, "a symbol that its enum does not have")
        return pa.array(self.symbols, pa.string()).take(pa.array(np.where(out, 0, found)))

    def skip(self, data: memoryview, pos: int, end: int) -> int:
        return long_at(data, pos, end)[1]

    def skip_all(self, cursor: Cursor) -> None:
        cursor.varints()


def decimals(cursor: Cursor, values: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    """Big-endian numbers as decimals. Those of more digits than the type has fail."""
    limit = 10**kind.precision
    found = bytearray()
    for row, value in enumerate(values.to_pylist()):
        number = int.from_bytes(value, "big", signed=True)
        if not -limit < number < limit:
            cursor.fail(np.array([row]), f"a decimal of more than {kind.precision} digits")
            number = 0
        found += number.to_bytes(_DECIMAL_BYTES, "little", signed=True)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(bytes(found))])
