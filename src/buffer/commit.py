"""From a sealed batch to a durable one: upload it, then append its location to the queue, in produce order.

`Committer` acts synchronously and keeps no threads, so a simulator can drive it step by step:

    committer = Committer(store, clock, config, on_settled)
    committer.enlist(batch)     # in produce order; fixes the place in the queue
    committer.upload(batch)     # any thread, several at once; never raises
    committer.commit()          # one thread at a time; appends all that is ready in one write; never raises

Rules:
- A batch is appended only when it and all batches enlisted before it are uploaded, or failed and gone.
- A batch that cannot be uploaded fails its own handles with the cause and steps aside for the later ones.
- An upload is repeated under the name it has: the content never changes, so a put that landed twice is one put.
- A batch whose name is older than half the collector's grace period gets a new name and is uploaded again. That
  happens only inside `draw`, where no earlier attempt to append it can still land (see `queue.py`).
- An append that surely did not happen is tried again until `append_timeout_s` has passed since the batch was
  ready. One that cannot be decided fails with `AppendOutcomeUnknown`: repeating it might double the batch.
- The process dies: a batch is in the queue or it is not; no handle said durable before it was. What was
  uploaded and not appended is an orphan that the collector removes.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Protocol

from buffer import metrics
from buffer.batching import PendingBatch
from buffer.clock import Clock
from buffer.config import MIB, ProducerConfig
from buffer.durability import Durable, Settled
from buffer.errors import AppendOutcomeUnknown, BufferQueueError, ContentionError, StorageError
from buffer.queue import AppendGroup, QueueProducer
from buffer.store.base import CanPut, CanSwap

UPLOAD_ATTEMPTS_MAX = 6  # on top of what the store's own client repeats; then the batch fails
UPLOAD_BACKOFF_FIRST_S = 0.1
UPLOAD_BACKOFF_MAX_S = 5.0

GROUP_BATCHES_MAX = 1024  # one append stays one short write, however long the store was away
GROUP_METADATA_BYTES_MAX = 8 * MIB

RENAME_ROUNDS_MAX = 3  # a store too slow for the grace period is reported, not chased


class CanCommit(CanSwap, CanPut, Protocol):
    """What the producer needs of a store."""


class _UploadAgainFailed(Exception):
    """Ends an append from inside `draw`, where nothing is in flight."""

    def __init__(self, batch: PendingBatch, cause: Exception) -> None:
        super().__init__(batch, cause)
        self.batch = batch
        self.cause = cause


def _nobody_counts(_batch: PendingBatch, _settled: Settled) -> None:
    """The default for `on_settled`."""


class Committer:
    """Uploads and appends batches. `upload` is safe from many threads; `commit` belongs to one at a time."""

    def __init__(
        self,
        store: CanCommit,
        clock: Clock,
        config: ProducerConfig,
        on_settled: Callable[[PendingBatch, Settled], None] = _nobody_counts,
    ) -> None:
        """`on_settled` is told of every batch once, before its watcher is; it must not raise."""
        self._store = store
        self._clock = clock
        self._prefix = config.data_path_prefix
        self._compression = config.compression
        self._append_timeout_s = config.append_timeout_s
        self._name_valid_s = config.gc_grace_s / 2
        self._on_settled = on_settled
        self._queue = QueueProducer(
            store,
            config.manifest_path,
            clock,
            timeout_s=config.append_timeout_s,
            observe=metrics.manifest_observer("producer"),
        )
        self._lock = threading.Lock()  # guards _pending; held for moments only
        self._pending: deque[PendingBatch] = deque()

    # What waits

    def enlist(self, batch: PendingBatch) -> None:
        """Give the batch its place in the queue: behind all that were enlisted before."""
        with self._lock:
            self._pending.append(batch)

    def pending(self) -> list[PendingBatch]:
        """Batches that are not settled yet, in produce order."""
        with self._lock:
            return list(self._pending)

    @property
    def is_ready(self) -> bool:
        """Whether `commit` has something to append."""
        with self._lock:
            return bool(self._pending) and self._pending[0].location is not None

    @property
    def is_idle(self) -> bool:
        return not self._pending

    def forget_after_fork(self) -> list[PendingBatch]:
        """In a child process: the batches that only the parent can settle. The lock may be held by nobody."""
        self._lock = threading.Lock()
        pending, self._pending = list(self._pending), deque()
        return pending

    # Upload

    def upload(self, batch: PendingBatch) -> None:
        """Encode and upload one batch. If that fails, the batch is settled with the cause. Never raises."""
        try:
            batch.encode(self._compression)
            self._put_under_new_name(batch)
        except Exception as error:  # noqa: BLE001 - whatever it was, the handles must learn of it
            self._fail([batch], error)

    def _put_under_new_name(self, batch: PendingBatch) -> None:
        assert batch.data is not None, "encode comes first"
        made_s = self._clock.monotonic_s()  # before the name: an age may be overestimated, never under
        location = f"{self._prefix}/{self._clock.new_ulid()}.batch"
        for attempt in range(1, UPLOAD_ATTEMPTS_MAX + 1):
            try:
                self._store.put(location, batch.data)
                break
            except StorageError as error:
                if not error.retryable or attempt == UPLOAD_ATTEMPTS_MAX:
                    raise
            ceiling = min(UPLOAD_BACKOFF_MAX_S, UPLOAD_BACKOFF_FIRST_S * 2**attempt)
            self._clock.sleep(self._clock.jitter(0.0, ceiling))
        batch.made_s = made_s
        batch.location = location  # last: from here on `commit` may take it

    # Append

    def commit(self) -> int:
        """Append every batch that is ready, in one write; returns how many became durable. Never raises.

        Batches whose append surely did not happen stay and are tried by the next call, until their time is up.
        """
        group: list[PendingBatch] = []

        def draw() -> AppendGroup:
            nonlocal group
            group = self._ready()
            self._upload_stale_again(group)
            return AppendGroup(
                entries=[(b.location or "", b.metadata or ()) for b in group],
                valid_until_s=min(b.made_s for b in group) + self._name_valid_s,
            )

        self._ready()  # starts the time that the first ones may wait, should the manifest not even be readable
        try:
            sequences = self._queue.append(draw)
        except _UploadAgainFailed as error:
            self._fail([error.batch], error.cause)
        except ContentionError as error:
            self._fail(self._out_of_time(), error)
        except StorageError as error:
            self._fail(self._out_of_time() if error.retryable else group or self._ready(), error)
        except BufferQueueError as error:
            self._fail(group or self._ready(), error)
        except Exception as error:  # noqa: BLE001 - whatever it was, the handles must learn of it
            self._fail(group or self._ready(), self._unforeseen(group, error))
        else:
            self._settle([(b, Durable(s, b.location or "")) for b, s in zip(group, sequences, strict=True)])
            return len(group)
        return 0

    def _ready(self) -> list[PendingBatch]:
        """The batches at the head that are all uploaded, as many as fit one append."""
        with self._lock:
            ready = list(takewhile(lambda batch: batch.location is not None, self._pending))
        now_s = self._clock.monotonic_s()
        group: list[PendingBatch] = []
        metadata_bytes = 0
        for batch in ready[:GROUP_BATCHES_MAX]:
            assert batch.metadata is not None, "encode made it"
            metadata_bytes += len(batch.metadata.data)
            if group and metadata_bytes > GROUP_METADATA_BYTES_MAX:
                break
            if batch.ready_since_s is None:
                batch.ready_since_s = now_s
            group.append(batch)
        return group

    def _upload_stale_again(self, group: list[PendingBatch]) -> None:
        for _ in range(RENAME_ROUNDS_MAX):
            stale = [b for b in group if self._clock.monotonic_s() - b.made_s > self._name_valid_s]
            if not stale:
                return
            for batch in stale:
                try:
                    self._put_under_new_name(batch)
                except Exception as error:  # handed on with the batch that it belongs to
                    raise _UploadAgainFailed(batch, error) from error
        raise StorageError(
            f"uploading {len(group)} batches takes longer than half of gc_grace_s, {self._name_valid_s:g} s: use "
            "smaller batches, or a longer gc_grace_s for producers and collector alike",
            retryable=True,
        )

    def _out_of_time(self) -> list[PendingBatch]:
        now_s = self._clock.monotonic_s()
        return [
            batch
            for batch in self.pending()
            if batch.ready_since_s is not None and now_s - batch.ready_since_s >= self._append_timeout_s
        ]

    def _unforeseen(self, group: list[PendingBatch], cause: Exception) -> AppendOutcomeUnknown:
        error = AppendOutcomeUnknown(
            f"the append of {len(group)} batches to {self._queue.manifest_path!r} ended with "
            f"{type(cause).__name__}: {cause}; look for them there before producing them again",
            location=self._queue.manifest_path,
            locations=tuple(batch.location or "" for batch in group),
        )
        error.__cause__ = cause
        return error

    # Settle

    def _fail(self, batches: Iterable[PendingBatch], cause: Exception) -> None:
        if isinstance(cause, BufferQueueError):
            error = cause
        else:
            error = BufferQueueError(f"the batch could not be uploaded: {type(cause).__name__}: {cause}")
            error.__cause__ = cause
        _drop_locals(error)
        self._settle([(batch, error) for batch in batches])

    def _settle(self, settled: list[tuple[PendingBatch, Settled]]) -> None:
        now_s = self._clock.monotonic_s()
        for batch, outcome in settled:
            if isinstance(outcome, Durable):
                metrics.batches_flushed.add(1)
                metrics.entries_flushed.add(batch.entry_count)
                metrics.bytes_flushed.add(batch.payload_bytes)
                metrics.bytes_written.add(len(batch.data or b""))
                metrics.flush_duration_seconds.record(now_s - batch.sealed_s)
            batch.data = batch.metadata = None
            self._on_settled(batch, outcome)
            batch.watcher.settle(outcome)
        gone = {id(batch) for batch, _ in settled}
        with self._lock:  # last: whoever looks meanwhile finds each batch pending or settled, never neither
            self._pending = deque(batch for batch in self._pending if id(batch) not in gone)


def _drop_locals(error: BaseException | None) -> None:
    """Forget the variables in an error's tracebacks: a handle keeps the error, and they would keep the bytes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
