"""Reading ahead: fetch the next batches in threads while the caller works on this one. For people without Spark.

Made by `Consumer.batches`. One thread iterates; the pool's threads only fetch, and know nothing of the consumer.

- **Order.** Batches come out in queue order, whichever fetch ends first. A fetch that failed raises when its batch
  is due, not before; the consumer's cursor stays on it, and asking again tries it again.
- **Bounds.** At most `prefetch` batches are being fetched or wait to be handed out. Sizes are known only after a
  fetch, so one under way counts as much as the largest recent one, and another one starts only if all of it fits
  `max_bytes`. The first fetch runs alone, to learn a size; one batch is always allowed, or nothing would move.
  What was handed out is the caller's and counts no more.
- **The manifest** is read once for up to `prefetch` times `LOOKAHEAD` batches, so a fenced consumer notices within
  as many, or at its next dequeue, whichever comes first.
- **Acks** may come in any order and from any thread. They move the consumer's own mark up to the first batch that
  lacks one. It dequeues every 100 acks, when the queue is drained, and in `close`: a crash repeats what lies
  between.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from buffer.config import MIB
from buffer.errors import BufferQueueError, InvalidInput, ObjectNotFound, OutOfOrderAck
from buffer.fetch import FetchHandle
from buffer.model import BatchDescriptor, ConsumedBatch
from buffer.position import Position

log = logging.getLogger(__name__)

LOOKAHEAD = 16
"""Descriptors taken from one read of the manifest, for each fetch that may be under way."""
PREFETCH_MAX = 256  # one thread each
PREFETCH_DEFAULT = 8
MAX_BYTES_DEFAULT = 256 * MIB
ESTIMATE_DECAY = 0.9  # one huge batch slows the next dozen fetches, not the whole run


@dataclass(slots=True)
class _Slot:
    """A batch on its way. `future` is None after a failed fetch was reported, until it is tried again."""

    descriptor: BatchDescriptor
    future: Future[ConsumedBatch] | None

    def size_bytes(self) -> int | None:
        """What it holds in memory; None while nobody can know."""
        if self.future is None:
            return 0
        if not self.future.done():
            return None
        if self.future.cancelled() or self.future.exception() is not None:
            return 0
        return _size_bytes(self.future.result())


def _size_bytes(batch: ConsumedBatch) -> int:
    return max(1, int(batch.array.nbytes))


class ReadAhead:
    """An iterator of batches in order, fetched ahead. Close it, use it in `with`, or drop it: its threads end.

    Iterate in one thread; `ack` and `close` may be called from any.
    """

    def __init__(
        self,
        position: Position,
        handle: FetchHandle,
        *,
        prefetch: int = PREFETCH_DEFAULT,
        max_bytes: int = MAX_BYTES_DEFAULT,
        auto_ack: bool = False,
        poll_interval_s: float | None = None,
    ) -> None:
        if not 1 <= prefetch <= PREFETCH_MAX:
            raise InvalidInput(f"prefetch={prefetch} is not allowed: it must be 1 to {PREFETCH_MAX}")
        if max_bytes < 1:
            raise InvalidInput(f"max_bytes={max_bytes} is not allowed: it must be at least 1")
        if poll_interval_s is not None and not poll_interval_s > 0:
            raise InvalidInput(
                f"poll_interval_s={poll_interval_s} is not allowed: give seconds above 0, or None to end when the "
                "queue is drained"
            )
        self._position = position
        self._fetch = handle.fetch
        self._prefetch = prefetch
        self._max_bytes = max_bytes
        self._auto_ack = auto_ack
        self._poll_interval_s = poll_interval_s
        self._due = position.cursor
        """The sequence that comes out next."""
        self._known: deque[BatchDescriptor] = deque()
        """Entries of the queue that follow the ones in the slots."""
        self._drained = False
        """The last look found the end of the queue."""
        self._looked_in_vain = False
        """… and nothing else."""
        self._slots: deque[_Slot] = deque()
        self._estimate_bytes = 0
        self._unacked: int | None = None
        self._acked: set[int] = set()
        """Acked ahead of an older batch that was not."""
        self._ack_lock = threading.Lock()
        self._pool_lock = threading.Lock()
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(prefetch, thread_name_prefix="buffer-fetch")
        # For an iterator that is dropped, as after `break`: there is nobody to wait for the threads.
        weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

    # Iterating

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumedBatch:
        """The next batch. Without `poll_interval_s` the iteration ends when the queue is drained.

        On an error the cursor has not moved: asking again tries the same batch again. With `auto_ack`, asking
        for the next batch acks the one before; an error of that ack is raised here, and it is tried again too.
        """
        if self._unacked is not None and not self._closed.is_set():
            self.ack(self._unacked)
            self._unacked = None
        batch = self._take()
        if batch is None:
            raise StopIteration
        self._position.hand_out(batch.sequence)
        self._slots.popleft()
        self._due = batch.sequence + 1
        self._estimate_bytes = max(_size_bytes(batch), int(self._estimate_bytes * ESTIMATE_DECAY))
        if self._auto_ack:
            self._unacked = batch.sequence
        self._start_fetches()  # so that the place it leaves is used while the caller works
        return batch

    def _take(self) -> ConsumedBatch | None:
        """Wait for the batch that is due; None if there is none to come. It stays in its slot for now."""
        while not self._closed.is_set():
            self._position.check_cursor(self._due)
            self._look_ahead()
            self._start_fetches()
            if self._slots:
                batch = self._await(self._slots[0])
                if batch is not None:
                    return batch
            else:
                self._position.flush_pending()
                if self._poll_interval_s is None:
                    break
                self._closed.wait(self._poll_interval_s)
        self.close()
        return None

    def _await(self, slot: _Slot) -> ConsumedBatch | None:
        """The slot's batch; None if the iterator was closed meanwhile."""
        slot.future = slot.future or self._submit(slot.descriptor)
        if slot.future is None:
            return None
        try:
            return slot.future.result()
        except CancelledError:
            return None
        except BufferQueueError as error:
            slot.future = None
            if isinstance(error, ObjectNotFound):
                self._position.look()  # a fenced consumer's batches may be gone: then say that instead
            raise

    def _look_ahead(self) -> None:
        """Read the manifest if the known entries are used up, but near the queue's end not for every batch:
        there once when half of the slots are free, and again when all are."""
        if self._known:
            return
        busy = len(self._slots)
        if busy and self._drained and (busy > self._prefetch // 2 or self._looked_in_vain):
            return
        limit = self._prefetch * LOOKAHEAD
        self._known.extend(self._position.peek(self._due + busy, limit))
        self._drained = len(self._known) < limit
        self._looked_in_vain = not self._known

    def _start_fetches(self) -> None:
        while self._known and len(self._slots) < self._prefetch and self._has_room():
            future = self._submit(self._known[0])
            if future is None:
                return
            self._slots.append(_Slot(self._known.popleft(), future))

    def _has_room(self) -> bool:
        if not self._slots:
            return True
        sizes = [slot.size_bytes() for slot in self._slots]
        held = [size for size in sizes if size is not None]
        estimate = max(self._estimate_bytes, *held, 0)
        unknown = len(sizes) - len(held) + 1
        return estimate > 0 and sum(held) + unknown * estimate <= self._max_bytes

    def _submit(self, descriptor: BatchDescriptor) -> Future[ConsumedBatch] | None:
        with self._pool_lock:
            return None if self._closed.is_set() else self._pool.submit(self._fetch, descriptor)

    # Acking and ending

    def ack(self, batch: ConsumedBatch | int) -> None:
        """Say that a batch that came out is done with, in any order. On an error nothing has moved: call again."""
        sequence = batch.sequence if isinstance(batch, ConsumedBatch) else batch
        with self._ack_lock:
            oldest = self._position.next_ack
            if not oldest <= sequence < self._position.cursor or sequence in self._acked:
                raise OutOfOrderAck(
                    f"ack of {sequence}: it was acked before, or was not handed out (handed out and not acked: "
                    f"{oldest} to {self._position.cursor - 1})",
                    sequence=sequence,
                    expected=oldest,
                )
            end = oldest
            while end == sequence or end in self._acked:
                end += 1
            if end > oldest:
                self._position.mark_through(end - 1)
            self._acked.add(sequence)
            self._acked.difference_update(range(oldest, end))

    def close(self) -> None:
        """End the threads, waiting for fetches under way, and dequeue what was acked. The consumer stays open.

        Batches that were fetched and not handed out are dropped; the consumer's cursor stands on the first.
        """
        with self._pool_lock:
            self._closed.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._position.flush_pending()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except BufferQueueError as trouble:
            if error is None:
                raise
            log.warning("acks were not dequeued, their batches will come again: %s", trouble)
