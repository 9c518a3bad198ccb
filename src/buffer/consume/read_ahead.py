"""Reading ahead: fetch the next batches in threads while the caller works on this one. For people without Spark.

Made by `Consumer.batches`. One thread iterates; the pool's threads only fetch, and know nothing of the consumer.

- **Order.** Batches come out in queue order, whichever fetch ends first. A fetch that failed raises when its batch
  is due, not before; the consumer's cursor stays on it, and asking again tries it again.
- **Bounds.** At most `prefetch` batches are being fetched or wait to be handed out. Sizes are known only after a
  fetch, so one under way counts as much as the largest recent one, and another one starts only if all of it fits
  `max_bytes`. The first fetch runs alone, to learn a size; one batch is always allowed, or nothing would move.
  What was handed out is the caller's and counts no more. What a batch expands to is known once its stored bytes are
  there: a thread waits with decoding until all of it fits (`Budget`), whatever the estimate was.
- **Threads** that cannot be started are done without: the batch that is due is then fetched by the caller's own.
- **The manifest** is read once for up to `prefetch` times `LOOKAHEAD` batches, so a fenced consumer notices within
  as many, or at its next dequeue, whichever comes first.
- **Acks** may come in any order and from any thread. They move the consumer's own mark up to the first batch that
  lacks one; they, and the batch that `auto_ack` will ack next, are the consumer's, so that another iterator goes on
  with them. It dequeues every 100 acks, when the queue is drained, and in `close`: a crash repeats what lies
  between.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from buffer.config import MIB
from buffer.consume.budget import Budget
from buffer.consume.cursor import Position
from buffer.consume.fetch import FetchHandle, with_way_past
from buffer.errors import BufferQueueError, Closed, CorruptBatch, InvalidInput, ObjectNotFound
from buffer.model import BatchDescriptor, ConsumedBatch
from buffer.stopping import StopFlag

log = logging.getLogger(__name__)

LOOKAHEAD = 16
"""Descriptors taken from one read of the manifest, for each fetch that may be under way."""
PREFETCH_MAX = 256  # one thread each
PREFETCH_DEFAULT = 8
MAX_BYTES_DEFAULT = 256 * MIB
POLL_INTERVAL_DEFAULT_S = 1.0  # of an iteration that waits for more: an unchanged manifest costs one short reply
ESTIMATE_DECAY = 0.9  # one huge batch slows the next dozen fetches, not the whole run


@dataclass(slots=True)
class _Slot:
    """A batch on its way. `future` is None if no thread fetches it: none could be started, or it has failed."""

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


def _fetch(handle: FetchHandle, budget: Budget, descriptor: BatchDescriptor) -> ConsumedBatch:
    try:
        return handle.fetch_within(descriptor, partial(budget.reserve, descriptor.sequence))
    except BaseException:
        budget.release(descriptor.sequence)
        raise


class _Task:
    """A fetch for the pool, which cannot take back what it queued when it could not start a thread for it."""

    def __init__(self, fetch: Callable[[], ConsumedBatch]) -> None:
        self._fetch: Callable[[], ConsumedBatch] | None = fetch

    def __call__(self) -> ConsumedBatch:
        if self._fetch is None:
            raise CancelledError
        return self._fetch()

    def forget(self) -> None:
        self._fetch = None


class ReadAhead:
    """An iterator of batches in order, fetched ahead. Close it, use it in `with`, or drop it: its threads end.

    Iterate in one thread; `ack`, `stop` and `close` may be called from any, and `stop` from a signal handler.
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
        self._budget = Budget(max_bytes)
        self._fetch = partial(_fetch, handle, self._budget)  # it must not know `self`: a dropped iterator shall go
        self._prefetch = prefetch
        self._max_bytes = max_bytes
        self._auto_ack = auto_ack
        self._poll_interval_s = poll_interval_s
        self._due = position.cursor
        """The sequence that comes out next."""
        self._budget.move_front(self._due)
        self._known: deque[BatchDescriptor] = deque()
        """Entries of the queue that follow the ones in the slots."""
        self._drained = False
        """The last look found the end of the queue."""
        self._looked_in_vain = False
        """… and nothing else."""
        self._slots: deque[_Slot] = deque()
        self._estimate_bytes = 0
        self._pool_lock = threading.Lock()
        self._closed = StopFlag()
        self._ended = StopFlag()
        """No batch comes out any more: closed, or told to stop; then the one in hand is still acked."""
        self._pool = ThreadPoolExecutor(prefetch, thread_name_prefix="buffer-fetch")
        # For an iterator that is dropped, as after `break`: there is nobody to wait for the threads.
        weakref.finalize(self, _end, self._pool, self._budget)

    # Iterating

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumedBatch:
        """The next batch. Without `poll_interval_s` the iteration ends when the queue is drained; with it, when this
        iterator or the consumer is closed or `stop` was called.

        On an error the cursor has not moved: asking again tries the same batch again. With `auto_ack`, asking
        for the next batch acks the one before; an error of that ack is raised here, and it is tried again too.
        """
        if not self._closed.is_set():
            try:
                self._position.ack_in_hand()
            except Closed:
                if self._poll_interval_s is None:
                    raise
        batch = self._take()
        if batch is None:
            raise StopIteration
        slot = self._slots[0]
        is_ours = False
        try:
            self._slots.popleft()
            self._estimate_bytes = max(_size_bytes(batch), int(self._estimate_bytes * ESTIMATE_DECAY))
            self._start_fetches()  # so that the place it leaves is used while the caller works
            self._position.check_cursor(batch.sequence)
            is_ours = True
            self._position.hand_out(batch.sequence, in_hand=self._auto_ack)
            self._due = self._position.cursor
            self._budget.release(batch.sequence)
            self._budget.move_front(self._due)
        except BaseException:  # nobody got it, also if a signal's handler has raised behind `hand_out`
            if is_ours:
                self._position.take_back(batch.sequence)
                self._due = batch.sequence
            if not self._slots or self._slots[0] is not slot:
                self._slots.appendleft(slot)
            raise
        return batch

    def _take(self) -> ConsumedBatch | None:
        """Wait for the batch that is due; None if there is none to come. It stays in its slot for now."""
        while not self._ended.is_set():
            try:
                self._position.check_cursor(self._due)
                self._look_ahead()
            except Closed:
                if self._poll_interval_s is None:
                    raise
                break  # it waited for more, and there will be none
            self._start_fetches()
            if self._slots:
                batch = self._await(self._slots[0])
                if batch is not None:
                    return batch
            else:
                self._position.flush_pending()
                if self._poll_interval_s is None:
                    break
                self._ended.wait(self._poll_interval_s)
        self.close()
        return None

    def _await(self, slot: _Slot) -> ConsumedBatch | None:
        """The slot's batch; None if the iterator was closed meanwhile."""
        try:
            if slot.future is None:
                slot.future = _done(self._fetch(slot.descriptor))  # by ourselves: every thread may be waiting for us
            return slot.future.result()
        except CancelledError:
            return None
        except (ObjectNotFound, CorruptBatch) as error:
            slot.future = None
            self._position.look()  # a fenced consumer's batches may be gone: then say that instead
            raise with_way_past(error, slot.descriptor.sequence) from error
        except Closed:
            return None  # the budget's, when `close` came first
        except BaseException:
            if slot.future is not None and slot.future.done():  # else it was our waiting that was interrupted
                slot.future = None
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
        first = self._slots[-1].descriptor.sequence + 1 if busy else self._due
        self._known.extend(self._position.peek(first, limit))
        self._drained = len(self._known) < limit
        self._looked_in_vain = not self._known

    def _start_fetches(self) -> None:
        while self._known and len(self._slots) < self._prefetch and self._has_room():
            future = self._submit(self._known[0])
            if future is None and (self._slots or self._closed.is_set()):
                return
            slot = _Slot(self._known[0], future)
            try:
                self._slots.append(slot)
            finally:  # also if a signal's handler raises: it stands in one of the two
                self._known.popleft()

    def _has_room(self) -> bool:
        if not self._slots:
            return True
        sizes = [slot.size_bytes() for slot in self._slots]
        held = [size for size in sizes if size is not None]
        estimate = max(self._estimate_bytes, *held, 0)
        unknown = len(sizes) - len(held) + 1
        return estimate > 0 and sum(held) + unknown * estimate <= self._max_bytes

    def _submit(self, descriptor: BatchDescriptor) -> Future[ConsumedBatch] | None:
        """None if it was closed, or if no thread can be started now."""
        task = _Task(partial(self._fetch, descriptor))
        with self._pool_lock:
            if self._closed.is_set():
                return None
            try:
                return self._pool.submit(task)
            except RuntimeError as error:
                task.forget()
                log.warning("reading ahead with fewer threads: %s", error)
                return None

    # Acking and ending

    def skip(self, sequence: int) -> None:
        """Go past the batch that is due without reading it: one that is gone or damaged for good. Then ack it.

        With `auto_ack` asking for the next one does. Raises InvalidInput if another batch is due.
        """
        if sequence != self._due or not (self._slots or self._known):
            raise InvalidInput(f"skip({sequence}) is not allowed: the batch that is due is {self._due}")
        self._position.hand_out(sequence, in_hand=self._auto_ack)
        (self._slots or self._known).popleft()
        self._due = self._position.cursor
        self._budget.release(sequence)
        self._budget.move_front(self._due)

    def ack(self, batch: ConsumedBatch | int) -> None:
        """Say that a batch that came out is done with, in any order. On an error nothing has moved: call again."""
        self._position.ack_any(batch.sequence if isinstance(batch, ConsumedBatch) else batch)

    def stop(self) -> None:
        """End the iteration before its next batch, without waiting for anything. The loop's own thread closes."""
        self._ended.set()

    def close(self) -> None:
        """End the threads, waiting for fetches under way, and dequeue what was acked. The consumer stays open.

        Batches that were fetched and not handed out are dropped; the consumer's cursor stands on the first.
        """
        self._ended.set()
        with self._pool_lock:
            self._closed.set()
        self._budget.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._position.flush_pending()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._position.drop_in_hand()
        try:
            self.close()
        except BufferQueueError as trouble:
            if error is None:
                raise
            log.warning("acks were not dequeued, their batches will come again: %s", trouble)


def _done(batch: ConsumedBatch) -> Future[ConsumedBatch]:
    future: Future[ConsumedBatch] = Future()
    future.set_result(batch)
    return future


def _end(pool: ThreadPoolExecutor, budget: Budget) -> None:
    """For an iterator that is dropped. Without waiting: there is nobody to wait for the threads."""
    budget.close()
    pool.shutdown(wait=False, cancel_futures=True)
