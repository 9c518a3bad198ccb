"""From an uploaded batch to a durable one: append its location to the queue, in order.

`Committer` does it for a producer, whose batches come and fail one by one; `adopt.py` for batches that others have
uploaded. It acts synchronously and keeps no threads, so a simulator can drive it step by step:

    committer = Committer(store, clock, config, on_settled)
    committer.enlist(batch)     # in produce order; fixes the place in the queue
    committer.upload(batch)     # any thread, several at once
    committer.commit()          # one thread at a time; appends all that is ready in one write

Rules:
- A batch is appended only when it and all batches enlisted before it are uploaded, or failed and gone.
- A batch that cannot be uploaded fails its own handles with the cause and steps aside for the later ones.
- A batch whose name is no longer valid (`upload.py` says how long it is) gets a new one: it is uploaded again, or
  copied by whoever does not have its bytes. That happens only inside `draw`, where no earlier attempt to append it
  can still land (see `queue.py`).
- An append that surely did not happen is tried again until `append_timeout_s` has passed since the batch was
  ready. One that cannot be decided fails with `AppendOutcomeUnknown`: repeating it might double the batch.
- What lands so late that its batch may be gone is looked at before anybody says durable of it: `groups.LateLook`.
- Whatever goes wrong in `upload` and `commit` settles the batches that it happened to. They raise only what is no
  Exception, a panic in a native library say, and after settling.
- **With a client id** a batch that fails takes all later ones with it, enlisted or not (`ProducerStopped`). The queue
  knows only the largest client_seq of a client. If a later call got in where an earlier one failed, the earlier one,
  repeated, would be taken for a replay, and be lost. For the same reason nothing of a group is written if one of its
  calls is at or below the mark: what is not fails, too, and is batched anew by whoever repeats it.
  An append that might still land when time is up is a call to be repeated, and whoever repeats it finds out. A late
  win is not: its entry is in the queue, with its mark, and no repetition changes that. It fails with what the look
  said: its batch is gone (`BatchCollected`: its entries are produced again under a new client_seq), or nobody could see
  it. It stops the producer like any other failure, so that what comes later does not overtake it. And a conflict, of
  this run or a later one, says that a call is in the queue only after a look at its batch: `replays.py`.
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
from buffer.attempts import AppendGroup, ClientSpan
from buffer.clients import ClientGuard
from buffer.clock import Clock
from buffer.config import MIB, ProducerConfig
from buffer.errors import (
    AppendOutcomeUnknown,
    BufferQueueError,
    ContentionError,
    IdempotencyConflict,
    ProducerStopped,
    StorageError,
)
from buffer.manifest import Manifest
from buffer.marks import Mark
from buffer.produce.durability import Durable, Settled
from buffer.produce.groups import LateLook, append_group, count_flushed, queue_producer, rename_stale
from buffer.produce.intake import PendingBatch
from buffer.produce.replays import Replays
from buffer.produce.upload import name_valid_s, put_under_new_name
from buffer.store.base import CanHead, CanPut, CanSwap

GROUP_BATCHES_MAX = 1024  # one append stays one short write, however long the store was away
GROUP_METADATA_BYTES_MAX = 8 * MIB


class CanCommit(CanSwap, CanPut, CanHead, Protocol):
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
        client_id: str | None = None,
    ) -> None:
        """`on_settled` is told of every batch once, before its watcher is; it must not raise.

        With a `client_id` all calls have a number, and `open` comes first.
        """
        self._store = store
        self._clock = clock
        self._prefix = config.data_path_prefix
        self._compression = config.compression
        self._append_timeout_s = config.append_timeout_s
        self._name_valid_s = name_valid_s(config)
        self._on_settled = on_settled
        self._queue = queue_producer(store, clock, config)
        self._client_id = client_id
        if client_id is not None:
            self._queue.guard = ClientGuard(
                client_id, store, config.manifest_path, clock, timeout_s=config.append_timeout_s
            )
        self._late_look = LateLook(store, clock, config)
        self._config = config
        self.replays: Replays | None = None if client_id is None else Replays(client_id, store, clock, config)
        """Of calls that were in the queue when this one opened."""
        self._opened_at: Mark | None = None
        self._lock = threading.Lock()  # guards what follows; held for moments only
        self._pending: deque[PendingBatch] = deque()
        self._settling: set[int] = set()
        """Those of them that somebody is settling at this moment."""
        self._stopped: BufferQueueError | None = None
        """What the first batch of a client failed with: no later one may be appended."""

    def open(self) -> int:
        """How far the client is in the queue: the largest client_seq there, -1 for none.

        Makes the ledger ready to keep marks. Raises MarksLost and the store's errors; then call again.
        """
        guard = self._queue.guard
        assert isinstance(guard, ClientGuard), "only a client opens"
        durable_seq = guard.open(self._queue.read)
        self._opened_at = guard.own
        return durable_seq

    def check_opened(self) -> None:
        """Look at what earlier runs appended last, if that may have been too late. Raises BatchCollected, or
        AppendOutcomeUnknown if nobody can see it. Safe from any thread."""
        assert self.replays is not None, "only a client opens"
        self.replays.check_newest(self._opened_at)

    @property
    def seen(self) -> Manifest | None:
        """The queue as the last append saw it."""
        return self._queue.seen

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
        """Encode and upload one batch. If that fails, the batch is settled with the cause. Raises no Exception."""
        try:
            if self._stopped is not None:
                raise self._stopped_by(self._stopped, batch)
            batch.encode(self._compression, self._client_id)
            self._put_under_new_name(batch)
        except Exception as error:  # noqa: BLE001 - whatever it was, the handles must learn of it
            self._fail([batch], error)
        except BaseException as error:  # a panic in a native library, too; what else it means is for the caller
            self._fail([batch], error)
            raise

    def _put_under_new_name(self, batch: PendingBatch) -> None:
        assert batch.data is not None, "encode comes first"
        name = put_under_new_name(batch.data, store=self._store, clock=self._clock, prefix=self._prefix)
        batch.valid_until_s = name.made_s + self._name_valid_s
        batch.location = name.location  # last: from here on `commit` may take it

    # Append

    def commit(self) -> int:
        """Append every batch that is ready, in one write; returns how many became durable. Raises no Exception.

        Batches whose append surely did not happen stay and are tried by the next call, until their time is up.
        """
        group: list[PendingBatch] = []

        def draw() -> AppendGroup:
            nonlocal group
            group = self._ready()
            self._upload_stale_again(group)
            return append_group(group, self._span(group))

        self._ready()  # starts the time that the first ones may wait, should the manifest not even be readable
        try:
            sequences = self._queue.append(draw)
        except _UploadAgainFailed as error:
            self._fail([error.batch], error.cause)
        except ContentionError as error:
            self._fail(self._out_of_time(), error)
        except StorageError as error:
            self._fail(self._out_of_time() if error.retryable else group or self._ready(), error)
        except IdempotencyConflict as error:
            self._fail(group or self._ready(), self._looked_at(error))
        except BufferQueueError as error:
            self._fail(group or self._ready(), self._to_be_repeated(error, group))
        except Exception as error:  # noqa: BLE001 - whatever it was, the handles must learn of it
            self._fail(group or self._ready(), self._to_be_repeated(self._unforeseen(group, error), group))
        except BaseException as error:
            self._fail(group or self._ready(), self._to_be_repeated(self._unforeseen(group, error), group))
            raise
        else:
            return self._landed(group, sequences)
        return 0

    def _landed(self, group: list[PendingBatch], sequences: range) -> int:
        try:
            found = self._late_look.settled(zip(sequences, group, strict=True))
        except BaseException as error:  # settled all the same: what stays pending would be appended once more
            self._fail(group, self._unforeseen(group, error))
            if not isinstance(error, Exception):
                raise
            return 0
        settled: list[tuple[PendingBatch, Settled]] = []
        errors: list[BufferQueueError] = []
        for batch, outcome in zip(group, found, strict=True):
            if isinstance(outcome, Durable):
                settled.append((batch, outcome))
                continue
            errors.append(outcome)  # with a client id, too: the mark is in the queue, so no repetition tells more
            _drop_locals(outcome)
            settled.append((batch, outcome))
        if errors and self._client_id is not None:
            settled += self._stop(group, errors[0])  # the group is in the queue: those behind it are not
        self._settle(settled)
        return sum(isinstance(outcome, Durable) for outcome in found)

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

    def _span(self, group: list[PendingBatch]) -> ClientSpan | None:
        first, last = group[0].first_seq, group[-1].last_seq
        return None if first is None or last is None else ClientSpan(first, last)

    def _upload_stale_again(self, group: list[PendingBatch]) -> None:
        def rename(batch: PendingBatch) -> None:
            try:
                self._put_under_new_name(batch)
            except Exception as error:  # handed on with the batch that it belongs to
                raise _UploadAgainFailed(batch, error) from error

        rename_stale(group, rename, self._clock, self._name_valid_s)

    def _out_of_time(self) -> list[PendingBatch]:
        now_s = self._clock.monotonic_s()
        return [
            batch
            for batch in self.pending()
            if batch.ready_since_s is not None and now_s - batch.ready_since_s >= self._append_timeout_s
        ]

    def _to_be_repeated(self, error: BufferQueueError, group: list[PendingBatch]) -> BufferQueueError:
        """With a client id it needs no look whether an append has landed: it is repeated, and found out then."""
        if self._client_id is None or not isinstance(error, AppendOutcomeUnknown):
            return error
        return ProducerStopped.after(error, self._client_id, group[0].first_seq if group else None)

    def _looked_at(self, conflict: IdempotencyConflict) -> IdempotencyConflict:
        """Somebody, an older run of this client say, was faster: are the batches of those calls there?"""
        if self._client_id is None or conflict.client_seq > conflict.durable_seq:
            return conflict
        replays = Replays(self._client_id, self._store, self._clock, self._config)  # anew: it came after we opened
        doubts = replays.doubts(conflict.client_seq, conflict.durable_seq)
        return conflict.doubted(doubts) if doubts else conflict

    def _unforeseen(self, group: list[PendingBatch], cause: BaseException) -> AppendOutcomeUnknown:
        error = AppendOutcomeUnknown(
            f"the append of {len(group)} batches to {self._queue.manifest_path!r} ended with "
            f"{type(cause).__name__}: {cause}; look for them there before producing them again",
            location=self._queue.manifest_path,
            locations=tuple(batch.location or "" for batch in group),
        )
        error.__cause__ = cause
        return error

    # Settle

    def _fail(self, batches: Iterable[PendingBatch], cause: BaseException) -> None:
        if isinstance(cause, BufferQueueError):
            error = cause
        else:
            error = BufferQueueError(f"the batch could not be uploaded: {type(cause).__name__}: {cause}")
            error.__cause__ = cause
        _drop_locals(error)
        failed = list(batches)
        settled: list[tuple[PendingBatch, Settled]] = [(batch, error) for batch in failed]
        if self._client_id is not None and failed:
            settled += self._stop(failed, error)
        self._settle(settled)

    def _stop(self, failed: list[PendingBatch], error: BufferQueueError) -> list[tuple[PendingBatch, Settled]]:
        """No later batch of this client may be appended; returns those that wait, with what they end with."""
        ids = {id(batch) for batch in failed}
        with self._lock:
            self._stopped = self._stopped or error
            pending = list(self._pending)
        first = next((index for index, batch in enumerate(pending) if id(batch) in ids), len(pending))
        return [(batch, self._stopped_by(error, batch)) for batch in pending[first:] if id(batch) not in ids]

    def _stopped_by(self, error: BufferQueueError, batch: PendingBatch) -> ProducerStopped:
        assert self._client_id is not None, "only a client stops"
        return ProducerStopped.after(error, self._client_id, batch.first_seq)

    def _settle(self, settled: list[tuple[PendingBatch, Settled]]) -> None:
        now_s = self._clock.monotonic_s()
        with self._lock:  # a client's batch may fail by itself while an earlier one takes it along: one of them tells
            settled = [
                (batch, outcome)
                for batch, outcome in settled
                if id(batch) not in self._settling and batch.watcher.result() is None
            ]
            self._settling |= {id(batch) for batch, _ in settled}
        for batch, outcome in settled:
            if isinstance(outcome, Durable):
                count_flushed(batch.entry_count, batch.payload_bytes, len(batch.data or b""))
                metrics.flush_duration_seconds.record(now_s - batch.sealed_s)
            batch.data = batch.metadata = None
            self._on_settled(batch, outcome)
            batch.watcher.settle(outcome)
        gone = {id(batch) for batch, _ in settled}
        with self._lock:  # last: whoever looks meanwhile finds each batch pending or settled, never neither
            self._pending = deque(batch for batch in self._pending if id(batch) not in gone)
            self._settling -= gone


def _drop_locals(error: BaseException | None) -> None:
    """Forget the variables in an error's tracebacks: a handle keeps the error, and they would keep the bytes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
