"""Where one consumer stands in its queue: what it has handed out, acked and dequeued. Used by `Consumer`.

    dequeued ≤ acked < next_ack ≤ cursor ≤ next_sequence          (sequences; each only ever grows)

Rules:
- Durable first, memory after: a dequeue that fails leaves every mark where it was. Whether it landed or not,
  repeating the call is right: a dequeue of what is gone changes nothing.
- What workers with leases have finished is nobody's to ack: it leaves with the ack of what comes after it; at the end
  of the queue with the one before it; at its head when the queue is taken over.
- Acks are dequeued every `ACKS_PER_DEQUEUE`; what a crash leaves between is handed out again by the next consumer.
- A batch that was acked before an older one (`ack_any`) waits for it here, whichever iterator handed it out. One that
  is **in hand** was handed out by an iterator with `auto_ack`: asking for the next one, in any way, acks it.
- Every look at the manifest notices a newer consumer (Fenced) and a manifest that is gone or went back
  (ManifestLost). Nothing moves then.
- Calls from several threads are serialised.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from itertools import islice

from buffer import metrics
from buffer.clock import Clock
from buffer.errors import (
    Closed,
    CorruptManifest,
    Fenced,
    InvalidInput,
    OutOfOrderAck,
    QueueAheadOfConsumer,
)
from buffer.ledger.ranges import Runs, holds
from buffer.manifest import Manifest
from buffer.marks import as_handed_out
from buffer.model import BatchDescriptor
from buffer.names import batch_ulid, ulid_time_ms
from buffer.queue import QueueConsumer

log = logging.getLogger(__name__)

ACKS_PER_DEQUEUE = 100
LAG_INTERVAL_S = 1.0  # for the gauge: finding the oldest entry costs as much as handing one out


def _nothing() -> None:
    """The default for `on_fenced`."""


class Position:
    """The cursor and the acks of one claimed epoch."""

    def __init__(
        self,
        queue: QueueConsumer,
        claimed: Manifest,
        last_acked: int | None,
        clock: Clock,
        *,
        finished: Runs = (),
        on_fenced: Callable[[], None] = _nothing,
    ) -> None:
        """`finished` are sequences that workers with leases have done: they are never handed out."""
        self._queue = queue
        self._clock = clock
        self._on_fenced = on_fenced
        self._lock = threading.RLock()
        self._last_acked = last_acked
        self._finished = finished
        self._next_ack = self.past(claimed.first_sequence if last_acked is None else last_acked + 1)
        self._cursor = self._next_ack
        self._not_dequeued = 0
        self._ahead: set[int] = set()
        """Acked before an older batch that was not."""
        self._in_hand: int | None = None
        self._closed = False
        self._seen = claimed
        self._lag_due_s = clock.monotonic_s()
        self._measure()

    # Looking

    @property
    def cursor(self) -> int:
        """The sequence that is handed out next."""
        return self._cursor

    @property
    def next_ack(self) -> int:
        """The oldest sequence that was not acked yet."""
        return self._next_ack

    @property
    def last_acked(self) -> int | None:
        return self._last_acked

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def seen(self) -> Manifest:
        """The manifest as it was at the last look."""
        return self._seen

    def past(self, sequence: int) -> int:
        """This sequence, or the first one after it that is not finished."""
        return next((last + 1 for first, last in self._finished if first <= sequence <= last), sequence)

    def look(self) -> Manifest:
        """The newest manifest; if it did not change, nothing is transferred. Raises Fenced."""
        with self._lock:
            self.check_open()
            return self._owned(self._queue.read)

    def peek(self, first: int, limit: int) -> list[BatchDescriptor]:
        """At most `limit` entries from `first` on, moving nothing.

        Raises QueueAheadOfConsumer if `first` is gone: what was never handed out is never skipped in silence.
        """
        manifest = self.look()
        if manifest.first_sequence > first:
            raise QueueAheadOfConsumer(
                f"sequence {first} is next, but {self._queue.manifest_path!r} starts at "
                f"{manifest.first_sequence}: another consumer dequeued what lies between. Find out which; to "
                f"accept the loss, open the consumer with last_acked={manifest.first_sequence - 1}",
                location=self._queue.manifest_path,
                expected=first,
                first_sequence=manifest.first_sequence,
            )
        return self._entries(manifest, first, limit)

    def length(self, manifest: Manifest | None = None) -> int:
        """How many entries were not acked yet, in this manifest or the one seen last."""
        manifest = self._seen if manifest is None else manifest  # an empty one is false
        return manifest.next_sequence - max(self._next_ack, manifest.first_sequence)

    def lag_ms(self, manifest: Manifest | None = None) -> int:
        """The age of the oldest entry that was not acked yet; 0 if there is none or it does not tell."""
        manifest = self._seen if manifest is None else manifest  # an empty one is false
        made_ms = self._entry_time_ms(manifest, max(self._next_ack, manifest.first_sequence))
        return 0 if made_ms is None else max(0, self._clock.now_ms() - made_ms)

    # Handing out

    def take(self, limit: int, *, known: bool = False) -> list[BatchDescriptor]:
        """Hand out at most `limit` entries. Starts at the oldest entry there is, if the cursor's is gone.

        With `known` without a look: those that the manifest seen last holds.
        """
        with self._lock:
            self.check_open()
            manifest = self._seen if known else self.look()
            taken = self._entries(manifest, max(self._cursor, manifest.first_sequence), limit)
            if taken:
                self._cursor = self.past(taken[-1].sequence + 1)
                metrics.descriptors_handed_out.add(len(taken))
            return taken

    def hand_out(self, sequence: int, *, in_hand: bool = False) -> None:
        """Move the cursor past `sequence`, which must be where it stands. Raises InvalidInput if it is not."""
        with self._lock:
            self.check_cursor(sequence)
            self.ack_in_hand()  # by `skip`, too: nobody else would, and every later ack would wait for it
            self._cursor = self.past(sequence + 1)
            self._in_hand = sequence if in_hand else None
            metrics.descriptors_handed_out.add(1)

    def take_back(self, sequence: int) -> None:
        """The batch that was handed out last, if it was, reached nobody: it is not acked, and comes again."""
        with self._lock:
            if self._cursor == self.past(sequence + 1) and self._next_ack <= sequence:
                self._cursor = sequence
                self._in_hand = None if self._in_hand == sequence else self._in_hand

    def ack_in_hand(self) -> None:
        """Ack the batch in hand, if there is one and nobody did. On any error it stays in hand: call again."""
        with self._lock:
            sequence = self._in_hand
            if sequence is not None and sequence >= self._next_ack and sequence not in self._ahead:
                self.ack_any(sequence)
            self._in_hand = None

    def drop_in_hand(self) -> None:
        """The caller failed on the batch in hand: it is not acked, and comes again to the next consumer."""
        with self._lock:
            self._in_hand = None

    def check_cursor(self, expected: int) -> None:
        self.check_open()
        if self._cursor != expected:
            raise InvalidInput(
                f"the consumer's cursor is at {self._cursor}, this reader is at {expected}: something else reads "
                "from the same consumer. Use one way at a time; call batches() again to go on from the cursor"
            )

    # Acking

    def ack(self, sequence: int) -> None:
        """Ack exactly `next_ack`. On any error no mark has moved: call again."""
        with self._lock:
            self.check_open()
            if sequence != self._next_ack:
                raise OutOfOrderAck(
                    f"out-of-order ack of {sequence!r}: the next one to ack is {self._next_ack}",
                    sequence=sequence,
                    expected=self._next_ack,
                )
            self._check_handed_out(sequence)
            if self._not_dequeued + 1 < ACKS_PER_DEQUEUE:
                self.look()
            self.mark_through(sequence)

    def ack_any(self, sequence: int) -> None:
        """Ack a batch that was handed out, in any order, without a look at the manifest. On an error no mark moved."""
        with self._lock:
            oldest = self._next_ack
            if not oldest <= sequence < self._cursor or sequence in self._ahead:
                raise OutOfOrderAck(
                    f"ack of {sequence}: it was acked before, or was not handed out (handed out and not acked: "
                    f"{oldest} to {self._cursor - 1})",
                    sequence=sequence,
                    expected=oldest,
                )
            end = oldest
            while end == sequence or end in self._ahead:
                end = self.past(end + 1)
            if end > oldest:
                self.mark_through(end - 1)
            else:
                self._ahead.add(sequence)

    def mark_through(self, sequence: int) -> None:
        """Ack up to `sequence` without a look at the manifest, except when it is time to dequeue."""
        with self._lock:
            self.check_open()
            self._check_handed_out(sequence)
            pending = self._not_dequeued + sequence + 1 - self._next_ack
            if pending >= ACKS_PER_DEQUEUE:
                self._dequeue(sequence)
                pending = 0
            self._acked(sequence, pending)

    def ack_through(self, sequence: int, location: str | None = None) -> None:
        """Dequeue up to `sequence`, past the last ack. On any error no mark has moved: call again.

        The entry must be at `location`, if that is given. Raises ManifestLost if it is not.
        """
        with self._lock:
            self.check_open()
            if sequence < self._next_ack:
                raise OutOfOrderAck(
                    f"non-monotonic ack_through({sequence}): it is acked up to {self._next_ack - 1} already",
                    sequence=sequence,
                    expected=self._next_ack,
                )
            self._check_handed_out(sequence)
            self._dequeue(sequence, location)
            self._acked(sequence, 0)

    def drop_finished(self) -> None:
        """Dequeue what workers have finished at the head of the queue: nothing is acked before it that would take it
        along. Costs nothing where there is none. On any error call again."""
        with self._lock:
            first = self._seen.first_sequence
            through = self.past(max(self._next_ack, first)) - 1
            if through >= first:
                self._dequeue(through)

    def flush(self) -> None:
        """Dequeue what is acked. Raises Fenced even if there is nothing to dequeue."""
        with self._lock:
            if self._not_dequeued:
                self.flush_pending()
            else:
                self.look()

    def flush_pending(self) -> None:
        """Dequeue what is acked; without anything to dequeue there is no look at the manifest.

        Works after `close`, so that a flush that failed there can be tried again.
        """
        with self._lock:
            if self._not_dequeued:
                assert self._last_acked is not None, "something was acked"
                self._dequeue(self._last_acked)
                self._not_dequeued = 0

    def close(self) -> None:
        """Refuse every further call but `flush_pending`."""
        with self._lock:
            self._closed = True

    def abandon(self) -> None:
        """Refuse every further call, and forget the acks that were not dequeued."""
        with self._lock:
            self._closed = True
            self._not_dequeued = 0

    # Inside

    def _owned(self, call: Callable[[], Manifest]) -> Manifest:
        try:
            self._seen = call()
        except Fenced:
            self._on_fenced()
            raise
        self._measure()
        return self._seen

    def _dequeue(self, sequence: int, location: str | None = None) -> None:
        """Up to `sequence`, which is at `location`. What workers have finished behind it goes along where nothing comes
        after that: else the ack of what does takes it."""
        last = self.past(sequence + 1) - 1
        if sequence < last and last + 1 >= self._seen.next_sequence:
            self._owned(lambda: self._queue.dequeue(last, location, at=sequence))
        else:
            self._owned(lambda: self._queue.dequeue(sequence, location))

    def _acked(self, sequence: int, pending: int) -> None:
        while (following := self.past(sequence + 1)) in self._ahead:
            sequence, pending = following, pending + 1
        if self._ahead:
            self._ahead = {ahead for ahead in self._ahead if ahead > sequence}
        metrics.acks.add(sequence + 1 - self._next_ack)
        self._last_acked, self._next_ack, self._not_dequeued = sequence, self.past(sequence + 1), pending

    def _check_handed_out(self, sequence: int) -> None:
        if sequence >= self._cursor:
            raise OutOfOrderAck(
                f"ack of {sequence}, which was not handed out yet: the cursor is at {self._cursor}",
                sequence=sequence,
                expected=self._next_ack,
            )

    def check_open(self) -> None:
        if self._closed:
            raise Closed(f"the consumer of {self._queue.manifest_path!r} was closed; open another one")

    def _entries(self, manifest: Manifest, first: int, limit: int) -> list[BatchDescriptor]:
        entries = (entry for entry in manifest.entries_from(first) if not holds(self._finished, entry.sequence))
        return [as_handed_out(entry) for entry in islice(entries, limit)]

    def _entry_time_ms(self, manifest: Manifest, sequence: int) -> int | None:
        # A manifest of its own: it remembers the place read last, which is the cursor's for the one we keep.
        own = Manifest.from_bytes(manifest.to_bytes(), location=self._queue.manifest_path)
        entry = own.read(sequence)
        if entry is None:
            return None
        if entry.metadata:
            return min(item.ingestion_time_ms for item in entry.metadata)
        ulid = batch_ulid(entry.location)
        return ulid_time_ms(ulid) if ulid else None

    def _measure(self) -> None:
        length = self.length()
        metrics.queue_length.set(length)
        if length and self._clock.monotonic_s() < self._lag_due_s:
            return
        self._lag_due_s = self._clock.monotonic_s() + LAG_INTERVAL_S
        try:
            metrics.consumer_lag_seconds.set(self.lag_ms() / 1000)
        except CorruptManifest as error:
            # Only a gauge: whoever asks for that entry gets the error.
            log.warning("no lag for %r: %s", self._queue.manifest_path, error)
