"""A queue under a streaming query: where it stands, what comes next, what is acked. Knows no Spark; `readers` calls it.

Spark writes the end of a range into the checkpoint, then has the range planned and run, then notes in the checkpoint
that it is done; on a restart it replays exactly the range whose end is noted and which is not done. So:

- **The queue is claimed** before the first range is planned, before the first ack, and otherwise as early as can be.
  Not in the first look of a query without a checkpoint, unless it was told where to start: a query that dies between
  its claim and its first offset would find a queue that was read before and no checkpoint, and refuse to go on
  (`StartUnknown`). This way an epoch above 0 means that batches were handed out.
- **A query's beginning is not in its checkpoint.** While its first range is not done, each restart asks for it again
  (`initial`), and then either replays that range (`planned`) or, if no range was noted, looks for one (`latest`). So
  the refusal comes in `latest`, and a range is planned from the beginning that its end names.
- **What lies before a `start` that Spark names is done**, and is acked: in `latest`, which comes even while the queue
  is idle. (Spark's own `commit` of a range comes only while the next one is made.)
- Process dies before the ack: the next one names the same start, and acks. Ack's reply lost: a dequeue is idempotent.
- An older process of the same query wakes up: its epoch is not the queue's any more, every call raises Fenced.
- `ack=false` claims and acks nothing, writes nothing, and may run beside anybody.
- A loader's queue is refused. The ledger is read before the claim and again after it: a loader that comes to be in
  between finds the epoch taken, or is found here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from buffer.clock import Clock
from buffer.config import ConsumerConfig
from buffer.consume.consumer import Consumer
from buffer.errors import Fenced
from buffer.inspect.status import read_ledger
from buffer.manifest import Manifest
from buffer.model import BatchDescriptor
from buffer.store.base import Store
from buffer_delta.decode.grouping import choose_count
from buffer_delta.decode.sizes import BatchSizes
from buffer_delta.spark.source.offsets import (
    Offset,
    batches_between,
    check_held,
    check_same,
    check_unread,
    first_offset,
    range_start,
    refuse_bound,
)
from buffer_delta.spark.source.options import ReadOptions
from buffer_delta.spark.source.snapshot import ManifestReader, in_tasks


class QueueStream:
    """One streaming query's side of a queue. One process, one thread at a time."""

    def __init__(self, store: Store, options: ReadOptions, clock: Clock) -> None:
        self._store = store
        self._options = options
        self._clock = clock
        self._path = options.queue.manifest_path
        self._reader = ManifestReader(store, self._path)
        self._sizes = BatchSizes(store, options.queue.data_path_prefix)
        self._consumer: Consumer | None = None
        self._first: Offset | None = None
        """Where a query without a checkpoint begins, while nothing says that this is noted in one."""
        self._target: int | None = None
        """Under AvailableNow: what was next when the query began."""

    def initial(self) -> Offset:
        """Where a query begins whose first range is not done. Raises what `first_offset` raises, and QueueBound."""
        with self._worded():
            if self._options.ack:
                refuse_bound(read_ledger(self._store, self._path), self._path)
            offset = first_offset(self._look(), self._options.start, self._path)
            self._first = offset if self._options.start is None else None
            return offset

    def stop_at_now(self) -> None:
        """From now on behave as if no batch came after those that are there."""
        with self._worded():
            self._target = self._look().next_sequence

    def latest(self, start: Offset, *, limited: bool) -> Offset:
        """The end of the range that begins at `start`, which is all there is, or as much as the limits allow.

        Acks what lies before `start`. Raises StartUnknown, SequenceGap, QueueBehindConsumer, ManifestLost, QueueBound
        or Fenced; then nothing has moved, except that the queue may be claimed and what lies before `start` acked.
        """
        with self._worded():
            if self._options.ack and start != self._first:
                self._claimed(start)
                self._ack(start)
            manifest = self._look()
            if self._options.ack and self._consumer is None:
                check_unread(manifest, self._path)
            check_held(manifest, start.next, self._path)
            check_same(manifest, start, self._path)
            return self._end(manifest, start, limited)

    def planned(self, start: Offset, end: Offset) -> list[list[BatchDescriptor]]:
        """The batches of a range, grouped for tasks. The same range gives the same batches whenever it is asked for."""
        if start == end:
            return []
        with self._worded():
            start = range_start(start, end)
            if self._options.ack:
                self._claimed(start)
            batches = batches_between(self._look(), start, end, self._path)
            return in_tasks(batches, self._sizes.look_up(batches), self._options.partition_bytes)

    def done(self, end: Offset) -> None:
        """Everything before `end` was processed: ack it."""
        with self._worded():
            if self._options.ack:
                self._claimed(end)
                self._ack(end)

    def latest_seen(self) -> Offset:
        """The end of the queue, for progress reports."""
        with self._worded():
            return Offset.at(self._look().next_sequence)

    # Inside

    def _look(self) -> Manifest:
        return self._reader.read() if self._consumer is None else self._consumer.manifest()

    def _claimed(self, start: Offset) -> Consumer:
        """The consumer that holds the queue; the first call claims it and acks what lies before `start`."""
        if self._consumer is not None:
            return self._consumer
        refuse_bound(read_ledger(self._store, self._path), self._path)
        manifest = self._reader.read()
        check_held(manifest, start.next, self._path)
        check_same(manifest, start, self._path)
        consumer = Consumer.new(self._with_store(), start.last_done, clock=self._clock)
        try:
            refuse_bound(read_ledger(self._store, self._path), self._path)
            check_held(consumer.known(), start.next, self._path)
        except BaseException:
            consumer.abandon()
            raise
        self._consumer = consumer
        return consumer

    def _with_store(self) -> ConsumerConfig:
        return self._options.queue.replace(store=self._store, store_options={})

    def _ack(self, done: Offset) -> None:
        consumer = self._consumer
        assert consumer is not None, "claimed before"
        last = done.last_done
        if last is None or (consumer.last_acked is not None and last <= consumer.last_acked):
            return
        check_held(consumer.manifest(), done.next, self._path)
        handed_out = consumer.next_descriptors(max(0, done.next - consumer.cursor), known=True)
        consumer.ack_through(last, location=done.after)
        self._sizes.forget(handed_out)

    def _end(self, manifest: Manifest, start: Offset, limited: bool) -> Offset:
        stop = manifest.next_sequence if self._target is None else min(self._target, manifest.next_sequence)
        if stop <= start.next:
            return start
        if limited:
            batches = list(
                islice(manifest.entries_from(start.next), min(stop - start.next, self._options.max_batches_per_trigger))
            )
            sizes = self._sizes.look_up(batches)
            most_bytes, most_batches = self._options.max_bytes_per_trigger, self._options.max_batches_per_trigger
            last: BatchDescriptor | None = batches[choose_count(batches, sizes, most_bytes, most_batches) - 1]
        else:
            last = manifest.read(stop - 1)
        assert last is not None, "start.next < stop <= next_sequence"
        return Offset(start.next, last.sequence + 1, last.location)

    @contextmanager
    def _worded(self) -> Iterator[None]:
        """Fenced, in the words of a query."""
        try:
            yield
        except Fenced as error:
            raise Fenced(
                f"another query or consumer has taken over the queue {self._path!r} (this query claimed it as epoch "
                f"{error.epoch}, now it is at epoch {error.current_epoch}). One at a time reads a queue: leave this "
                "query stopped, for a restart would fence the other one in turn",
                epoch=error.epoch,
                current_epoch=error.current_epoch,
            ) from error
