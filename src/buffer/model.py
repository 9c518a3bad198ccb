"""The values that travel between the parts: frozen, comparable, picklable. No behaviour, no I/O.

`BatchDescriptor` is what a driver hands to executors; `RawBatch` is what they fetched, still encoded;
`ConsumedBatch` is a decoded batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Metadata:
    """One range of entries that came with one `produce` call: from `start_index` up to the next item's."""

    start_index: int
    ingestion_time_ms: int
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class BatchDescriptor:
    """Where a batch lies and what the queue says about it. Small: send it to whoever fetches."""

    sequence: int
    location: str
    metadata: tuple[Metadata, ...] = ()


@dataclass(frozen=True, slots=True)
class RawBatch:
    """A fetched batch whose bytes were not decoded."""

    descriptor: BatchDescriptor
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class ConsumedBatch:
    """A fetched and decoded batch. Entries live in one Arrow array; `entries` makes `bytes` on demand."""

    sequence: int
    location: str
    metadata: tuple[Metadata, ...]
    array: pa.Array = field(repr=False)

    @cached_property
    def entries(self) -> list[bytes]:
        entries: list[bytes] = self.array.to_pylist()
        return entries

    def to_arrow(self) -> pa.Array:
        """The entries as a binary Arrow array, without a copy."""
        return self.array

    def __len__(self) -> int:
        return len(self.array)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConsumedBatch):
            return NotImplemented
        return (self.sequence, self.location, self.metadata) == (
            other.sequence,
            other.location,
            other.metadata,
        ) and bool(self.array.equals(other.array))

    def __hash__(self) -> int:
        return hash((self.sequence, self.location))
