"""The numbers of one client's calls: which comes next, and which were used already. Decisions only.

Used by the producer, under its lock. Numbers only grow. A number that is not the next one or beyond is a replay:
nothing of it is written, and its handle fails with `IdempotencyConflict`, once it is sure that the conflict is true.

- Below where the client was in the queue when the producer opened: an earlier run produced it, in order, so it is in
  the queue. That holds if every run began at the first call that was not durable and gave it the same number.
- Accepted by this producer: it is in the queue as soon as the batches accepted so far are durable.
- Passed over by this producer: it is not.
"""

from __future__ import annotations

from collections import deque

from buffer.errors import BatchCollected, IdempotencyConflict, InvalidInput
from buffer.marks import CLIENT_SEQ_MAX
from buffer.produce.durability import CallWatcher, DurabilityWatcher, WriteHandle

RANGES_MAX = 1000  # of numbers without a gap; beyond, an old replay's conflict does not tell whether it is in the queue


class ClientSeqs:
    """One producer's numbers. Not thread-safe."""

    def __init__(self, client_id: str, durable_seq: int) -> None:
        """`durable_seq` is where the client is in the queue, -1 for nowhere."""
        self.client_id = client_id
        self.opened_at = durable_seq
        self.next = durable_seq + 1
        self._start = self.next
        """Where the newest run of accepted numbers without a gap began."""
        self._earlier: deque[tuple[int, int]] = deque(maxlen=RANGES_MAX)
        self._last: DurabilityWatcher | None = None

    def number(self, client_seq: int | range | None) -> int | range | None:
        """The number for a call that gave this one, or none; None: it is a replay. Raises InvalidInput."""
        if client_seq is None:
            client_seq = self.next
            if client_seq > CLIENT_SEQ_MAX:
                raise InvalidInput(f"client {self.client_id!r} has used up its numbers: use another client_id")
        first = client_seq[0] if isinstance(client_seq, range) else client_seq
        return client_seq if first >= self.next else None

    def counted(self, handle: WriteHandle) -> None:
        """A call with the next number went into a batch."""
        self._last = handle.batch_watcher
        self.next += 1

    def accepted(self, client_seq: int | range, handle: WriteHandle) -> None:
        """A call with this number went into a batch."""
        first, last = (client_seq[0], client_seq[-1]) if isinstance(client_seq, range) else (client_seq, client_seq)
        if first != self.next:
            if self.next > self._start:
                self._earlier.append((self._start, self.next - 1))
            self._start = first
        self._last = handle.batch_watcher
        self.next = last + 1

    def is_earlier(self, given: int | range) -> bool:
        """Whether a call with this number, or a part of it, is of an earlier run, by where the client was at first.

        Its batch is looked at before anybody says that it is in the queue (`replays.py`): `replayed` reads nothing.
        """
        return (given[0] if isinstance(given, range) else given) <= self.opened_at

    def replayed(self, given: int | range, now_ms: int) -> WriteHandle:
        """The handle of a call whose number was used already. It settles when the calls before it have."""
        first, last = (given[0], given[-1]) if isinstance(given, range) else (given, given)
        if last <= self.opened_at or self._last is None:
            watcher = DurabilityWatcher()
            watcher.settle(self._conflict(first, self.opened_at, in_queue=True if last <= self.opened_at else None))
            return WriteHandle(watcher, now_ms, given)
        conflict = self._conflict(first, self.next - 1, in_queue=self._was_accepted(last))
        return WriteHandle(CallWatcher(self._last, given, conflict), now_ms, given)

    def _was_accepted(self, client_seq: int) -> bool | None:
        if client_seq >= self.next:
            return None  # the end of a range whose beginning is in the queue
        if client_seq >= self._start:
            return True
        if any(first <= client_seq <= last for first, last in self._earlier):
            return True
        if len(self._earlier) == RANGES_MAX and client_seq < self._earlier[0][0]:
            return None
        return False

    def _conflict(self, client_seq: int, durable_seq: int, *, in_queue: bool | None) -> IdempotencyConflict:
        return IdempotencyConflict.of(self.client_id, client_seq, durable_seq=durable_seq, in_queue=in_queue)


def is_overtaken(error: BaseException | None) -> bool:
    """Whether a failure began with a conflict: an append of an earlier run has landed since this one opened.

    Not if its batch is gone: nobody goes on behind that. One that could not be seen is looked at by the next run,
    before that goes on behind it (`Replays.check_newest`).
    """
    while error is not None and not isinstance(error, IdempotencyConflict):
        error = error.__cause__
    return error is not None and not any(isinstance(doubt.error, BatchCollected) for doubt in error.doubts or ())
