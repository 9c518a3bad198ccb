"""From rows to batches in the store, and from those into the queue. Knows no Spark; `writers` calls it.

Tasks upload, under names of their own attempt (`upload_rows`); the driver appends what the tasks that count have
uploaded, all of it in one write (`buffer.produce.adopt.append_uploads`).

- A task dies, or is repeated, or loses against its speculative twin: what it uploaded is in no message that counts, and
  no entry names it: an orphan that the collector removes.
- The driver dies before the append: nothing is in the queue. After it: everything is.
- Order: by the number of the task, and in a task by its rows.
- A job that takes longer than `gc_grace_s`, counted from the upload of its first task, may find uploads collected:
  the write fails then, with nothing appended. Give the grace period that the readers' collectors have.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from buffer.clock import Clock
from buffer.codec.batch import encode_batch_parts
from buffer.config import ProducerConfig
from buffer.manifest import PackedMetadata
from buffer.produce.intake import CALL_OVERHEAD_BYTES, ENTRY_OVERHEAD_BYTES, check_call
from buffer.produce.upload import Upload, put_under_new_name
from buffer.store.base import CanPut
from buffer_delta.formats.entries import as_binary, chunks
from buffer_delta.spark.source.encode import Encoder


def upload_rows(
    rows: Iterable[pa.RecordBatch], encoder: Encoder, *, store: CanPut, clock: Clock, config: ProducerConfig
) -> list[Upload]:
    """Upload the rows of a task, as batches of about `flush_size_bytes`. Raises InvalidInput or the store's error."""
    uploads: list[Upload] = []
    batch = _Batch()
    limit = min(config.flush_size_bytes, config.max_batch_bytes)
    # Half for the bytes, half for what each entry takes besides them: pieces of any shape stay below the limit.
    piece_bytes, piece_rows = max(1, limit // 2), max(1, limit // 2 // ENTRY_OVERHEAD_BYTES)
    for record_batch in rows:
        for entries, metadata in encoder.parts(record_batch):
            for _, chunk in chunks(as_binary(entries), piece_bytes, piece_rows):
                _, count, block_bytes = check_call(chunk, metadata, config.max_batch_bytes)
                size = block_bytes + batch.overhead(metadata)
                if batch.count and batch.size + size > limit:
                    uploads.append(batch.upload(store, clock, config))
                    batch = _Batch()
                batch.add(chunk, count, block_bytes, metadata)
    if batch.count:
        uploads.append(batch.upload(store, clock, config))
    return uploads


class _Batch:
    """Entries that become one object; neighbours with the same metadata share an item."""

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        """On the wire: of the entries, and of what the manifest holds about them."""
        self._block_bytes = 0
        self._parts: list[Any] = []
        self._starts: list[int] = []
        self._payloads: list[bytes] = []

    def overhead(self, metadata: bytes) -> int:
        same = self._payloads and self._payloads[-1] == metadata
        return 0 if same else CALL_OVERHEAD_BYTES + len(metadata)

    def add(self, entries: pa.Array, count: int, block_bytes: int, metadata: bytes) -> None:
        overhead = self.overhead(metadata)
        if overhead:
            self._starts.append(self.count)
            self._payloads.append(metadata)
        self._parts.append(entries)
        self.count += count
        self._block_bytes += block_bytes
        self.size += block_bytes + overhead

    def upload(self, store: CanPut, clock: Clock, config: ProducerConfig) -> Upload:
        packed = PackedMetadata.pack(self._starts, [clock.now_ms()] * len(self._starts), self._payloads)
        data = encode_batch_parts(self._parts, config.compression)
        name = put_under_new_name(data, store=store, clock=clock, prefix=config.data_path_prefix)
        payload_bytes = self._block_bytes - ENTRY_OVERHEAD_BYTES * self.count
        return Upload(name.location, packed, self.count, payload_bytes, len(data))
