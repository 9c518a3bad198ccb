"""From rows to batches in the store, and from those into the queue. Knows no Spark; `writers` calls it.

Tasks upload, under names of their own attempt (`upload_rows`); the driver appends what the tasks that count have
uploaded, all of it in one write (`buffer.produce.adopt.append_uploads`).

- A task dies, or is repeated, or loses against its speculative twin: what it uploaded is in no message that counts, and
  no entry names it: an orphan that the collector removes.
- The driver dies before the append: nothing is in the queue. After it: everything is.
- Order: by the number of the task, and in a task by its rows.
- **The reply to the append is lost**: the write is one call of a client of its own (`append_once`), so it is repeated,
  and what is in the queue already is recognised by its mark, and its batches by a look at them. A later write forgets
  the marks of those that are long over. The driver dies: nobody repeats that call; a job that is run again appends
  again, unless it has a number of its own (`client_id`, `client_seq`).
- **Once nobody can tell, no later error can.** The first attempt that ended so may land at any time, or has. Whatever
  a repetition fails with is true of the repetition alone; so the write ends as not known, and never as "not appended".
- A job that takes longer than `gc_grace_s`, counted from the upload of its first task, may find uploads collected:
  the write fails then, with nothing appended. Give the grace period that the readers' collectors have.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from buffer.backoff import Backoff
from buffer.clients import ClientGuard, ClientLedger
from buffer.clock import Clock
from buffer.codec.batch import encode_batch_parts
from buffer.config import ProducerConfig
from buffer.errors import (
    AppendOutcomeUnknown,
    BatchCollected,
    ContentionError,
    IdempotencyConflict,
    InvalidInput,
    MarksLost,
    ProducerStopped,
    StorageError,
)
from buffer.manifest import PackedMetadata
from buffer.names import ulid_time_ms
from buffer.produce.adopt import CallId, CanAppend, append_uploads
from buffer.produce.groups import queue_producer
from buffer.produce.intake import CALL_OVERHEAD_BYTES, ENTRY_OVERHEAD_BYTES, check_call
from buffer.produce.upload import Upload, put_under_new_name
from buffer.store.base import CanPut
from buffer_delta.formats.entries import as_binary, chunks
from buffer_delta.spark.source.encode import Encoder

log = logging.getLogger(__name__)

ULID_CHARS = 26
ONCE = "spark/once/"
"""The clients of single writes: this, and a ULID."""
FORGET_AFTER_S = 7 * 24 * 3600
"""Marks of writes that began longer ago go when another write comes; half of it is more than any write may take."""
REPEATS = Backoff(first_s=0.5, max_s=5.0, attempts_max=5)


def append_once(uploads: Sequence[Upload], *, store: CanAppend, clock: Clock, config: ProducerConfig) -> None:
    """Append all uploads in one write, once, also where a reply is lost. On an error nothing was appended, but for
    these: ProducerStopped and AppendOutcomeUnknown (nobody could tell, five times in a row: look before the job is run
    again), BatchCollected (it was appended too late, and a batch is gone), StateLost and CorruptData (the queue needs
    an operator, who finds out).

    A queue whose marks were lost, to a reader that knows none, gets them without one.
    """
    ulid = clock.new_ulid()
    call = CallId(f"{ONCE}{ulid}", 0)
    _forget_old(store, clock, config)
    guard = ClientGuard(
        call.client_id, store, config.manifest_path, clock, timeout_s=config.append_timeout_s, alone=False
    )
    try:
        guard.open(queue_producer(store, clock, config).read)
    except MarksLost as error:  # found out before anything is sent: afterwards nobody could go on without a mark
        log.warning("this write goes without a mark: %s", error)
        append_uploads(uploads, store=store, clock=clock, config=config)
        return
    unknown: ProducerStopped | AppendOutcomeUnknown | None = None
    for _ in REPEATS.attempts(clock):
        if unknown is not None and clock.now_ms() - ulid_time_ms(ulid) > FORGET_AFTER_S * 1000 // 2:
            break  # we were asleep: its mark may be forgotten
        try:
            append_uploads(uploads, store=store, clock=clock, config=config, call=call)
        except IdempotencyConflict:
            log.info("the reply to %s was lost, and it is in the queue with its batches", call)
        except BatchCollected:
            raise
        except (ProducerStopped, AppendOutcomeUnknown) as error:
            unknown = error
            continue
        except Exception as error:
            if unknown is None:
                raise
            if _passes(error):
                continue
            raise unknown from error
        return
    assert unknown is not None, "every attempt that goes on to the next leaves it"
    raise unknown


def _passes(error: Exception) -> bool:
    return isinstance(error, ContentionError) or (isinstance(error, StorageError) and error.retryable)


def _forget_old(store: CanAppend, clock: Clock, config: ProducerConfig) -> None:
    ledger = ClientLedger(store, config.manifest_path, clock, timeout_s=config.append_timeout_s)
    section = ledger.read()
    before_ms = clock.now_ms() - FORGET_AFTER_S * 1000
    old = [name for name in (section.marks if section is not None else ()) if _began_before(name, before_ms)]
    if not old:
        return
    with suppress(InvalidInput):  # another write has forgotten them by now
        ledger.forget(old)


def _began_before(client_id: str, time_ms: int) -> bool:
    ulid = client_id.removeprefix(ONCE)
    return client_id.startswith(ONCE) and len(ulid) == ULID_CHARS and ulid_time_ms(ulid) < time_ms


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
