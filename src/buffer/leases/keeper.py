"""Keeps the leases of work that goes on, from a thread of its own: whatever else is slow, they are extended in time.

It has its own door to the queue, so a consume that waits for a store in trouble does not hold it up. A lease is
extended when half of its time is over, by this process's monotonic clock and counted from before it was asked for: so
it surely holds until then, whatever the queue's time says. What is lost all the same is remembered.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from buffer.backoff import Backoff
from buffer.errors import BufferQueueError, InvalidHandle
from buffer.leases.queue import LeaseQueue
from buffer.ledger.leases import Handle

log = logging.getLogger(__name__)

REST_MAX_S = 1.0  # new leases may be shorter than those that are held
AGAIN = Backoff(first_s=0.05, max_s=1.0, attempts_max=1_000_000, jitter_from=0.5)
"""Pauses after an extension that did not get through."""


@dataclass(slots=True)
class _Lease:
    timeout_s: float
    until_s: float

    @property
    def due_s(self) -> float:
        return self.until_s - self.timeout_s / 2


class LeaseKeeper:
    """Use it in `with`. `hold` and `release` may be called from any thread."""

    def __init__(self, queue: LeaseQueue) -> None:
        self._queue = queue.twin()
        self._clock = queue.clock
        self._lock = threading.Lock()
        self._leases: dict[Handle, _Lease] = {}
        self._changed = threading.Event()
        self._closed = False
        self._lost = 0
        self._thread = threading.Thread(target=self._run, name="buffer-lease-keeper", daemon=True)

    def hold(self, handle: Handle, timeout_s: float, asked_s: float) -> None:
        """Keep this lease, which was asked for at `asked_s`, until it is released."""
        with self._lock:
            self._leases[handle] = _Lease(timeout_s, asked_s + timeout_s)
        self._changed.set()

    def release(self, handle: Handle) -> bool:
        """Let go of it; whether it is still held, as far as anybody knows."""
        with self._lock:
            return self._leases.pop(handle, None) is not None

    def lose(self, handle: Handle) -> None:
        """It is not held any more."""
        with self._lock:
            self._lost += 1
            self._leases.pop(handle, None)
        log.warning("the lease of batch %d was lost: it is delivered again", handle.sequence)

    @property
    def lost(self) -> int:
        return self._lost

    def extend_due(self) -> None:
        """Extend what is past half its time. Raises the store's errors; what does not hold any more is lost."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            due = {handle: lease.timeout_s for handle, lease in self._leases.items() if lease.due_s <= now_s}
        handles: Sequence[Handle] = list(due)
        while handles:
            timeout_s = max(due[handle] for handle in handles)
            try:
                self._queue.extend(handles, round(timeout_s * 1000))
            except InvalidHandle as error:
                gone = {Handle(lease_id, sequence) for lease_id, sequence in error.handles}
                handles = [handle for handle in handles if handle not in gone]
                self._lose_held(gone)
                continue
            with self._lock:
                for handle in handles:
                    if handle in self._leases:
                        self._leases[handle].until_s = now_s + due[handle]
            return

    def _lose_held(self, gone: set[Handle]) -> None:
        for handle in gone:
            with self._lock:
                is_held = handle in self._leases  # else it was acked or given back meanwhile
            if is_held:
                self.lose(handle)

    def _run(self) -> None:
        pauses = AGAIN.pauses(self._clock.jitter)
        rest_s = REST_MAX_S
        while not self._closed:
            self._changed.wait(rest_s)
            self._changed.clear()
            try:
                self.extend_due()
            except BufferQueueError as error:  # also Fenced: others may give the queue back before any consume notices
                log.warning("leases could not be extended, trying again: %s", error)
                rest_s = next(pauses)
            except Exception:  # a thread that ends here would let every lease run out, without a word
                log.exception("leases could not be extended, trying again")
                rest_s = next(pauses)
            else:
                pauses = AGAIN.pauses(self._clock.jitter)
                rest_s = self._rest_s()

    def _rest_s(self) -> float:
        with self._lock:
            next_s = min((lease.due_s for lease in self._leases.values()), default=math.inf)
        return min(REST_MAX_S, max(0.001, next_s - self._clock.monotonic_s()))

    def __enter__(self) -> LeaseKeeper:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._closed = True
        self._changed.set()
        self._thread.join()
        self._queue.close()
