"""Where a row came from: the provenance columns, their names and their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from buffer.model import BatchDescriptor, Metadata
from buffer_delta.config import FORMER_METADATA
from buffer_delta.formats.entries import Indices

INGESTED_AT = pa.timestamp("us", tz="UTC")
_FIELDS = {
    "_sequence": "sequence",
    "_index": "index",
    "_ingested_at": "ingested_at",
    "_entry_metadata": "metadata",
    FORMER_METADATA: "metadata",
}


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The names of the provenance columns; None leaves one out."""

    sequence: str | None = "_sequence"
    index: str | None = "_index"
    ingested_at: str | None = "_ingested_at"
    metadata: str | None = "_entry_metadata"
    entry: str | None = None
    """A column for the entry that a row is from, where `index` counts rows: for who checks rows, not for tables."""

    @classmethod
    def renamed(cls, columns: Mapping[str, str | None]) -> Self:
        """From `{"_sequence": "seq", "_entry_metadata": None}`, which `LoaderConfig` has checked."""
        return cls(**{_FIELDS[name]: new for name, new in columns.items()})

    def arrow_fields(self) -> list[pa.Field]:
        wanted = (
            (self.sequence, pa.int64()),
            (self.index, pa.int32()),
            (self.ingested_at, INGESTED_AT),
            (self.metadata, pa.binary()),
            (self.entry, pa.int64()),
        )
        return [pa.field(name, kind) for name, kind in wanted if name is not None]

    def arrays(self, descriptor: BatchDescriptor, entries: Indices, index: Indices) -> list[pa.Array]:
        """Their values, for rows of these entries of a batch, under these numbers."""
        times, payloads = ranges_of(descriptor.metadata, entries)
        made = {
            self.sequence: lambda: pa.array(np.full(len(index), descriptor.sequence, np.int64)),
            self.index: lambda: pa.array(index.astype(np.int32)),
            self.ingested_at: lambda: times,
            self.metadata: lambda: payloads,
            self.entry: lambda: pa.array(entries),
        }
        return [made[field.name]() for field in self.arrow_fields()]


def ranges_of(metadata: Sequence[Metadata], entries: Indices) -> tuple[pa.Array, pa.Array]:
    """The ingestion time and the metadata payload of each entry, by the ranges of the batch's items.

    Of several items that start at one index the last counts, so an empty range covers nothing. Items out of
    order, which only a foreign writer makes, start where the one before them does. Entries before the first item
    have neither.
    """
    if not metadata:
        return pa.nulls(len(entries), INGESTED_AT), pa.nulls(len(entries), pa.binary())
    starts = np.maximum.accumulate(np.array([item.start_index for item in metadata], np.int64))
    item_of = np.searchsorted(starts, entries, side="right") - 1
    which = pa.array(item_of, mask=item_of < 0)
    times = pa.array([clamped_ms(item.ingestion_time_ms) for item in metadata], pa.int64())
    times = pc.multiply(times, 1000).cast(INGESTED_AT)
    payloads = pa.array([item.payload for item in metadata], pa.binary())
    return times.take(which), payloads.take(which)


def clamped_ms(time_ms: int) -> int:
    """A time that Spark can hold: any 64-bit number may stand in a manifest."""
    limit = (2**63 - 1) // 1000
    return max(-limit, min(limit, time_ms))
