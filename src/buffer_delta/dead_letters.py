"""What could not become rows: the columns of the dead-letter table, and how its rows are told from the good ones.

`rows.decode(..., split=True)` gives one DataFrame with both; a row whose last column, `_dead`, is set is a dead
letter. Nothing in one depends on when or how often it was tried, so a replayed range writes the same ones.

Of an unreadable batch a row holds the first `BYTES_MAX` bytes. A larger one is copied, before its row is made, to
where no collector looks: its own object goes once the range is acked.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from buffer.errors import ObjectNotFound
from buffer.model import BatchDescriptor
from buffer.store.base import CanHead

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

DEAD = "_dead"
"""The column that marks a dead letter while good and bad rows travel together, unless the data has one like it."""

FOLDER = "dead_letters"
"""Beside the batches of a queue: the whole objects of batches too large for a row. Nothing deletes them."""

WHOLE_BATCH = -1
"""The `_index` of a dead letter that stands for a whole batch."""

BYTES_MAX = 16 << 20
"""Of an unreadable batch that its row keeps: enough to look at it, not enough to hurt the table."""

DEAD_TYPE = pa.struct(
    [
        ("_sequence", pa.int64()),
        ("_index", pa.int32()),
        ("_ingested_at", pa.timestamp("us", tz="UTC")),
        ("location", pa.string()),
        ("error", pa.string()),
        ("bytes", pa.binary()),
    ]
)


def unused_name(name: str, columns: Collection[str]) -> str:
    """The name, or one like it: Spark does not tell cases apart, and would take it for a column of the data."""
    used = {column.lower() for column in columns}
    while name.lower() in used:
        name += "_"
    return name


def good_rows(frame: DataFrame) -> DataFrame:
    mark = frame.columns[-1]
    return frame.where(frame[mark].isNull()).drop(mark)


def dead_rows(frame: DataFrame) -> DataFrame:
    """`_sequence, _index, _ingested_at, location, error, bytes`: one row for each record or batch set aside."""
    mark = frame.columns[-1]
    return frame.where(frame[mark].isNotNull()).select(f"{mark}.*")


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


def _kept(store: CanCopy, location: str) -> str | None:
    folder, slash, name = location.rpartition("/")
    target = f"{folder}{slash}{FOLDER}/{name}.dead"  # neither the folder nor the name is a batch's
    size, kept = _size(store, location), _size(store, target)
    if size is None or size == kept:
        return target if kept is not None else None
    if size <= BYTES_MAX:
        return None
    try:
        store.copy(location, target)
    except ObjectNotFound:  # it went just now: there is nothing to keep
        return None
    log.warning("%r cannot be read and is too large for a dead letter: kept as %r", location, target)
    return target


def _size(store: CanHead, location: str) -> int | None:
    try:
        return store.head(location).size
    except ObjectNotFound:
        return None
