"""What an Arrow stream would take in memory, told before it takes it.

A stream of a kilobyte may hold gigabytes: compressed buffers, rows of nothing, a long value in a dictionary that every
row refers to, runs, views into one another. So what a stream expands to is bounded by its own size: see `allowed`.
Two looks tell: at the messages before anything is read (`cost_of`: how long arrays and expanded buffers say they
are), and at arrays that refer to others before they are made plain (`expanded_bytes`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from buffer_delta.formats.entries import Indices

EXPANDED_MIN = 16 << 20
EXPANDED_PER_BYTE = 256

_BATCH, _DICTIONARY = 3, 2  # kinds of messages
_NODE_BYTES = 8  # of memory, for each row of each array, while it is checked and cast
_SIZE_MAX = 1 << 32
_LISTS = (pa.ListType, pa.LargeListType, pa.ListViewType, pa.LargeListViewType)
_VIEWS = frozenset([pa.string_view(), pa.binary_view()])


def allowed(entry_bytes: int, max_bytes: int) -> int:
    """What a stream of that size may expand to: so much, or 256 times its size, but never more than `max_bytes`."""
    return min(max_bytes, max(EXPANDED_MIN, EXPANDED_PER_BYTE * entry_bytes))


@dataclass(frozen=True, slots=True)
class Cost:
    """What the messages of a stream say, all together."""

    rows: int
    nodes: int
    """The lengths of all arrays at all depths."""
    buffers: int
    """Bytes of all buffers, expanded."""

    @property
    def read(self) -> int:
        """To read it as it is."""
        return self.buffers + _NODE_BYTES * self.nodes

    @property
    def plain(self) -> int:
        """At most, to make it plain: where every row may refer to everything."""
        return self.read + self.nodes * self.buffers


def cost_of(payload: pa.Buffer) -> Cost:
    """Raises ValueError or ArrowException if the messages make no sense."""
    rows = nodes = buffers = 0
    reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(payload))
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return Cost(rows, nodes, buffers)
        try:
            found = _Table.root(memoryview(message.metadata))
            length, inside, expanded = _batch_cost(found, message.body)
        except (struct.error, IndexError) as error:
            raise ValueError("a message that is damaged") from error
        rows, nodes, buffers = rows + length, nodes + inside, buffers + expanded


def _batch_cost(message: _Table, body: pa.Buffer | None) -> tuple[int, int, int]:
    kind = message.number(1, "<B")
    if kind not in (_BATCH, _DICTIONARY) or body is None:
        return 0, 0, 0
    header = message.table(2)
    batch = header.table(1) if kind == _DICTIONARY and header else header
    if batch is None:
        return 0, 0, 0
    places = batch.pairs(2)
    sizes = [size for _, size in places]
    if batch.table(3) is not None:
        sizes = [_expanded(memoryview(body), at, size) for at, size in places]
    nodes = sum(max(0, length) for length, _ in batch.pairs(1))
    return batch.number(0, "<q") if kind == _BATCH else 0, nodes, sum(max(0, size) for size in sizes)


def _expanded(body: memoryview, at: int, size: int) -> int:
    """A compressed buffer begins with its real length; -1: it is not compressed after all."""
    if size <= 0:
        return 0
    (length,) = struct.unpack_from("<q", body, at)
    return size if length == -1 else int(length)


class _Table:
    """A table of a message's metadata: flatbuffers, read just as far as is needed here."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at
        (back,) = struct.unpack_from("<i", data, at)
        self._fields = at - back
        if self._fields < 0:
            raise IndexError
        (self._fields_size,) = struct.unpack_from("<H", data, self._fields)

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        return cls(data, struct.unpack_from("<I", data, 0)[0])

    def _place(self, field: int) -> int:
        """0: it is not there."""
        slot = 4 + 2 * field
        if slot + 2 > self._fields_size:
            return 0
        (offset,) = struct.unpack_from("<H", self._data, self._fields + slot)
        return self._at + offset if offset else 0

    def number(self, field: int, form: str) -> int:
        at = self._place(field)
        return int(struct.unpack_from(form, self._data, at)[0]) if at else 0

    def table(self, field: int) -> _Table | None:
        at = self._place(field)
        return _Table(self._data, at + struct.unpack_from("<I", self._data, at)[0]) if at else None

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """A vector of pairs of 64-bit numbers: arrays (length, nulls) or buffers (place, length)."""
        at = self._place(field)
        if not at:
            return []
        at += struct.unpack_from("<I", self._data, at)[0]
        (count,) = struct.unpack_from("<I", self._data, at)
        return list(struct.iter_unpack("<qq", self._data[at + 4 : at + 4 + 16 * count]))


# Arrays


def refers(kind: pa.DataType) -> bool:
    """Whether rows of the type may share values, so that they take more room when each has its own."""
    if isinstance(kind, pa.BaseExtensionType):
        return refers(kind.storage_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind) or kind in _VIEWS:
        return True
    if isinstance(kind, pa.ListViewType | pa.LargeListViewType):
        return True
    return any(refers(kind.field(at).type) for at in range(kind.num_fields))


def expanded_bytes(array: pa.Array) -> Indices:
    """What each row takes when it has its own values."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return expanded_bytes(array.storage)
    if types.is_dictionary(kind):
        return _taken(expanded_bytes(array.dictionary), array.indices)
    if types.is_run_end_encoded(kind):
        return expanded_bytes(array.values)[_runs(array)]
    if types.is_struct(kind):
        parts = [expanded_bytes(values) for values in array.flatten()]
        return _capped(np.sum(parts, axis=0, dtype=np.int64)) if parts else np.ones(len(array), np.int64)
    if types.is_map(kind):
        pairs = expanded_bytes(array.keys) + expanded_bytes(array.items)
        return _sums(pairs, array.offsets.to_numpy()[:-1], array.offsets.to_numpy()[1:])
    if isinstance(kind, pa.FixedSizeListType):
        starts = (np.arange(len(array)) + array.offset) * kind.list_size
        return _sums(expanded_bytes(array.values), starts, starts + kind.list_size)
    if isinstance(kind, _LISTS):
        starts = array.offsets.to_numpy()
        if isinstance(kind, pa.ListViewType | pa.LargeListViewType):
            return _sums(expanded_bytes(array.values), starts, starts + array.sizes.to_numpy())
        return _sums(expanded_bytes(array.values), starts[:-1], starts[1:])
    return _leaf_bytes(array)


def _leaf_bytes(array: pa.Array) -> Indices:
    kind = array.type
    if types.is_large_binary(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_string(kind):
        lengths = pc.binary_length(array)
    elif kind in _VIEWS:
        lengths = pa.array(_view_lengths(array))
    else:
        return np.full(len(array), 8 if not types.is_primitive(kind) else max(1, kind.bit_width // 8), np.int64)
    found: Indices = lengths.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64) + 8
    return found


def _view_lengths(array: pa.Array) -> Indices:
    """The first of the four 32-bit numbers of each view."""
    views = np.frombuffer(array.buffers()[1], np.int32) if len(array) else np.zeros(0, np.int32)
    lengths = views[4 * array.offset : 4 * (array.offset + len(array)) : 4].astype(np.int64)
    found: Indices = np.where(array.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    return found


def _taken(sizes: Indices, indices: pa.Array) -> Indices:
    places = indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes[places] if len(sizes) else np.zeros(len(places), np.int64)


def _runs(array: pa.Array) -> Indices:
    """The run that each row belongs to."""
    ends = array.run_ends.to_numpy().astype(np.int64)
    found: Indices = np.searchsorted(ends, np.arange(len(array)) + array.offset, side="right")
    return found


def _sums(sizes: Indices, starts: Indices, ends: Indices) -> Indices:
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return _capped(total[np.maximum(ends, starts)] - total[starts] + 8)


def _capped(sizes: Indices) -> Indices:
    """Far beyond what is allowed, but so that sums of them stay within 64 bits."""
    return np.minimum(sizes, _SIZE_MAX)


def row_bytes(schema: pa.Schema) -> int:
    """What a row of nulls takes."""
    return sum(_null_bytes(field.type) for field in schema)


def _null_bytes(kind: pa.DataType) -> int:
    if types.is_struct(kind):
        return sum(_null_bytes(field.type) for field in kind)
    return max(1, kind.bit_width // 8) if types.is_primitive(kind) else 16 if types.is_decimal(kind) else 4
