"""A queue as a batch read sees it: read once, nothing claimed, nothing written. Knows no Spark; `readers` calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pyarrow as pa

from buffer.codec.batch import FOOTER_BYTES, batch_info
from buffer.config import GIB
from buffer.consume.fetch import stored_bytes_max
from buffer.errors import CorruptBatch, ManifestLost, ObjectNotFound
from buffer.inspect.status import read_manifest
from buffer.manifest import Manifest
from buffer.marks import without_mark
from buffer.model import BatchDescriptor, Metadata
from buffer.names import dead_letter_source, dead_letters_folder
from buffer.store.base import CanGet, CanGetBounded, CanGetRange, CanList, CanPoll, Object
from buffer_delta.decode.grouping import group
from buffer_delta.decode.layout import INGESTED_AT, clamped_ms
from buffer_delta.decode.sizes import BatchSizes, CanSize
from buffer_delta.errors import SequenceGap
from buffer_delta.spark.source.options import ReadOptions

BATCH_COST_BYTES = 32 * 1024
"""What fetching a batch costs besides its bytes, in bytes: tiny batches make no tiny tasks, and no endless ones."""

BATCH_ROWS_PER_TASK = 1_000
"""Of the view `batches`."""
FOOTERS_AT_ONCE = 16
"""Requests on their way at the same time, while entries are counted."""

CALL_TYPE = pa.struct(
    [("start_index", pa.int64()), ("ingested_at", INGESTED_AT), ("payload", pa.binary())],
)
BATCHES_SCHEMA = pa.schema(
    [
        ("sequence", pa.int64()),
        ("location", pa.string()),
        ("bytes", pa.int64()),
        ("entries", pa.int64()),
        ("first_ingested_at", INGESTED_AT),
        ("last_ingested_at", INGESTED_AT),
        ("metadata", pa.list_(CALL_TYPE)),
    ]
)
"""The view `batches`: one row for each batch in the queue, from the manifest and a listing. None is fetched. How many
entries a batch has, only its last seven bytes tell: they are asked for on request."""

DEAD_LETTERS_PER_TASK = 16
"""Of the view `dead_letters`: each is an object of its own, and large."""

DEAD_LETTERS_SCHEMA = pa.schema(
    [("location", pa.string()), ("kept_as", pa.string()), ("bytes", pa.int64()), ("value", pa.binary())]
)
"""The view `dead_letters`: the whole objects of unreadable batches that a loader has kept beside the queue."""


class ManifestReader:
    """Reads the manifest again and again, without a claim. An unchanged one is not transferred."""

    def __init__(self, store: CanPoll, path: str) -> None:
        self._store = store
        self._path = path
        self._seen: tuple[Object, Manifest] | None = None

    def read(self) -> Manifest:
        """The newest manifest; an empty one while there is none. Raises ManifestLost, CorruptManifest."""
        try:
            if self._seen is None:
                found: Object | None = self._store.get(self._path)
            else:
                found = self._store.get_if_changed(self._path, self._seen[0].version)
        except ObjectNotFound as error:
            return self._missing(error)
        if found is not None:
            self._seen = (found, Manifest.from_bytes(found.data, location=self._path))
        assert self._seen is not None, "only what was seen before can be unchanged"
        return self._seen[1]

    def _missing(self, error: ObjectNotFound) -> Manifest:
        if self._seen is not None:
            raise ManifestLost(
                f"the manifest {self._path!r} was there and is gone; restore it",
                location=self._path,
                seen_next_sequence=self._seen[1].next_sequence,
            ) from error
        try:
            return read_manifest(self._store, self._path)  # it may be there by now, or its ledger says that it was
        except ObjectNotFound:
            return Manifest.empty()


def batches_in(manifest: Manifest, options: ReadOptions) -> list[BatchDescriptor]:
    """The batches that a read asks for. Raises SequenceGap if it names one that is gone from the queue."""
    first = manifest.first_sequence if options.from_sequence is None else options.from_sequence
    if first < manifest.first_sequence:
        raise SequenceGap(
            f"from_sequence={first}, but the queue {options.queue.manifest_path!r} starts at "
            f"{manifest.first_sequence}: what was before is processed and gone. Leave from_sequence out to read what "
            "is there",
            committed=first - 1,
            earliest=manifest.first_sequence,
        )
    stop = manifest.next_sequence if options.to_sequence is None else options.to_sequence + 1
    return list(islice(manifest.entries_from(first), max(0, min(stop, manifest.next_sequence) - first)))


def row_tasks(store: CanSize, batches: Sequence[BatchDescriptor], options: ReadOptions) -> list[list[BatchDescriptor]]:
    sizes = BatchSizes(store, options.queue.data_path_prefix).look_up(batches)
    return in_tasks(batches, sizes, options.partition_bytes)


def in_tasks(
    batches: Sequence[BatchDescriptor], sizes: Mapping[str, int], partition_bytes: int
) -> list[list[BatchDescriptor]]:
    """Contiguous groups of about `partition_bytes` each: by size, where tiny batches count for what a fetch costs."""
    weights = {location: size + BATCH_COST_BYTES for location, size in sizes.items()}
    return group(batches, weights, partition_bytes, cores=1)


def batch_rows(batches: Sequence[BatchDescriptor], sizes: Mapping[str, int]) -> pa.RecordBatch:
    """The rows of the view `batches`, without their entries. The size of an object that is gone is null."""
    calls = [[_call(item) for item in without_mark(batch.metadata)] for batch in batches]
    times = [[call["ingested_at"] for call in made] for made in calls]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([batch.sequence for batch in batches], pa.int64()),
            pa.array([batch.location for batch in batches], pa.string()),
            pa.array([sizes[batch.location] or None for batch in batches], pa.int64()),
            pa.nulls(len(batches), pa.int64()),
            pa.array([min(found, default=None) for found in times], INGESTED_AT),
            pa.array([max(found, default=None) for found in times], INGESTED_AT),
            pa.array(calls, BATCHES_SCHEMA.field("metadata").type),
        ],
        schema=BATCHES_SCHEMA,
    )


def with_entries(store: object, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of the view with how many entries the batches have; null for one that is gone, or is no batch."""
    if not isinstance(store, CanGetRange):
        return rows
    places = zip(rows["location"].to_pylist(), rows["bytes"].to_pylist(), strict=True)
    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        counts = list(pool.map(lambda place: _entries(store, *place), places))
    at = rows.schema.get_field_index("entries")
    return rows.set_column(at, rows.schema.field(at), pa.array(counts, pa.int64()))


def _entries(store: CanGetRange, location: str, size: int | None) -> int | None:
    if size is None or size < FOOTER_BYTES:
        return None
    try:
        return batch_info(store.get_range(location, size - FOOTER_BYTES, FOOTER_BYTES)).record_count
    except (ObjectNotFound, CorruptBatch):
        return None


def _call(item: Metadata) -> dict[str, Any]:
    time_us = clamped_ms(item.ingestion_time_ms) * 1000
    return {"start_index": item.start_index, "ingested_at": time_us, "payload": item.payload}


def dead_letters_in(store: CanList, prefix: str) -> list[str]:
    """Where the unreadable batches of a prefix are kept, if there are any.

    Of those directly in the prefix: what OpenData's Go producer writes lies a folder deeper, one for each of its runs.
    """
    listed = (info.location for info in store.list(dead_letters_folder(prefix)))
    return sorted(location for location in listed if dead_letter_source(location) is not None)


def dead_letter_row(store: CanGet, location: str) -> pa.RecordBatch:
    """The row of the view `dead_letters` for one of them."""
    if isinstance(store, CanGetBounded):
        data = store.get_bounded(location, stored_bytes_max(GIB))  # it may be as large as any batch
    else:
        data = store.get(location).data
    row = [dead_letter_source(location), location, len(data), data]
    return pa.RecordBatch.from_arrays(
        [pa.array([value], field.type) for value, field in zip(row, DEAD_LETTERS_SCHEMA, strict=True)],
        schema=DEAD_LETTERS_SCHEMA,
    )
