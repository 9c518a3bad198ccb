"""What could not become rows: the columns of the dead-letter table, and how its rows are told from the good ones.

Under the policy `DeadLetter` good and bad rows travel together; a row whose last column, `_dead`, is set is a dead
letter. Nothing in one depends on when or how often it was tried, so a replayed range writes the same ones.

Of an unreadable batch a row holds the first `BYTES_MAX` bytes. A larger one is copied, before its row is made, to
where no collector looks: its own object goes once the range is acked. So is the batch of an entry that is too large.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from buffer.errors import InvalidInput, ObjectNotFound
from buffer.model import BatchDescriptor
from buffer.names import dead_letter_location
from buffer.store.base import CanHead
from buffer_delta.decode.layout import INGESTED_AT, ranges_of
from buffer_delta.formats.entries import Indices
from buffer_delta.formats.names import same_name_key

log = logging.getLogger(__name__)

DEAD = "_dead"
"""The column that marks a dead letter while good and bad rows travel together, unless the data has one like it."""

WHOLE_BATCH = -1
"""The `_index` of a dead letter that stands for a whole batch."""

BYTES_MAX = 16 << 20
"""Of an unreadable batch that its row keeps: enough to look at it, not enough to hurt the table."""

DEAD_TYPE = pa.struct(
    [
        ("_sequence", pa.int64()),
        ("_index", pa.int32()),
        ("_ingested_at", INGESTED_AT),
        ("location", pa.string()),
        ("error", pa.string()),
        ("bytes", pa.binary()),
        ("_entry_metadata", pa.binary()),
    ]
)


def unused_name(name: str, columns: Collection[str]) -> str:
    """The name, or one like it: Spark does not tell cases apart, and would take it for a column of the data."""
    used = set(map(same_name_key, columns))
    while same_name_key(name) in used:
        name += "_"
    return name


def dead_entries(
    descriptor: BatchDescriptor, entries: Indices, index: Indices, errors: Sequence[str], payloads: pa.Array
) -> pa.StructArray:
    """One for each of these entries of a batch, in DEAD_TYPE."""
    times, metadata = ranges_of(descriptor.metadata, entries)
    return pa.StructArray.from_arrays(
        [
            pa.array(np.full(len(index), descriptor.sequence, np.int64)),
            pa.array(index.astype(np.int32)),
            times,
            pa.array([descriptor.location] * len(index), pa.string()),
            pa.array(errors, pa.string()),
            payloads,
            metadata,
        ],
        fields=list(DEAD_TYPE),
    )


def dead_batch(descriptor: BatchDescriptor, error: str, data: bytes | None) -> pa.StructArray:
    """One for a whole batch, with as much of its object as a row may hold; None: there is no object."""
    if data is not None and len(data) > BYTES_MAX:
        error += f"; here are the first {BYTES_MAX:,} of its {len(data):,} bytes"
        data = data[:BYTES_MAX]
    first, whole = np.zeros(1, np.int64), np.array([WHOLE_BATCH], np.int64)
    return dead_entries(descriptor, first, whole, [error], pa.array([data], pa.binary()))


@runtime_checkable
class CanCopy(CanHead, Protocol):
    def copy(self, source: str, target: str) -> None:
        """Copy one object. Raises ObjectNotFound."""
        ...


def keep_whole(
    store: CanCopy, descriptors: Iterable[BatchDescriptor], quarantined: Mapping[int, str]
) -> dict[int, str]:
    """Copy the quarantined batches that are too large for a row; the errors, with where the copies are.

    Any number of times: a copy that is there already is left alone. A storage error is raised, for without the copy
    the range must not be acked.
    """
    errors = dict(quarantined)
    for descriptor in descriptors:
        if descriptor.sequence in errors:
            kept = _kept(store, descriptor.location)
            if kept is not None:
                errors[descriptor.sequence] += f"; the whole object is kept as {kept!r}"
    return errors


def keep_batch(store: object, location: str) -> str | None:
    """Copy the batch of an entry that is too large for a row, as above; where the copy is, None if there is none."""
    return _kept(store, location, larger_than=-1) if isinstance(store, CanCopy) else None


def _kept(store: CanCopy, location: str, *, larger_than: int | None = None) -> str | None:
    target = dead_letter_location(location)
    size, kept = _size(store, location), _size(store, target)
    if size is None or size == kept:
        return target if kept is not None else None
    if size <= (BYTES_MAX if larger_than is None else larger_than):
        return None
    try:
        store.copy(location, target)
    except (ObjectNotFound, InvalidInput):  # it went just now, or no store has such a name: there is nothing to keep
        return None
    log.warning("%r, or an entry of it, is too large for a dead letter: kept as %r", location, target)
    return target


def _size(store: CanHead, location: str) -> int | None:
    try:
        return store.head(location).size
    except (ObjectNotFound, InvalidInput):  # a location that no store accepts, or a link: there is no such object
        return None
