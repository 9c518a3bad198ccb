"""The consumer: claims a queue, reads its batches in order, acks them.

    with Consumer.new(ConsumerConfig(store="s3://bucket/path")) as consumer:
        while (batch := consumer.next_batch()) is not None:
            handle(batch.entries)
            consumer.ack(batch.sequence)

One consumer at a time owns a queue: opening another one fences this one. Three ways to read, on one cursor:
`next_batch` (simplest), `batches` (fetches ahead in threads), `next_descriptors` with `fetch_handle` (the fetching
happens elsewhere, on Spark executors say). Delivery is at least once: what was not dequeued when the process died
comes again. To get exactly once, keep the last sequence together with the results, and open with `last_acked`.

What it costs: `next_batch` is one conditional read of the manifest (an unchanged one transfers nothing) and one
read of the batch. `ack` is one conditional read, because a fenced consumer must not go on believing that it made
progress; every 100th writes the manifest instead. `ack_through` is always such a write, for any number of batches.
"""

from __future__ import annotations

import html
import logging
import threading
import weakref
from types import TracebackType
from typing import Self

from buffer.clients import marked_queue
from buffer.clock import Clock, SystemClock
from buffer.config import ConsumerConfig
from buffer.consume.cursor import Position
from buffer.consume.fetch import FetchHandle, with_way_past
from buffer.consume.read_ahead import MAX_BYTES_DEFAULT, POLL_INTERVAL_DEFAULT_S, PREFETCH_DEFAULT, ReadAhead
from buffer.consume.takeover import take_over
from buffer.errors import BufferQueueError, CorruptBatch, InvalidInput, ObjectNotFound
from buffer.gc.collector import Collector
from buffer.ledger.leases import Leases
from buffer.manifest import Manifest
from buffer.model import BatchDescriptor, ConsumedBatch
from buffer.store.base import Store
from buffer.store.open import open_store

log = logging.getLogger(__name__)

_SYSTEM_CLOCK = SystemClock()


class Consumer:
    """Reads one queue under a claimed epoch. Open it with `Consumer.new`, close it with `close` or `with`.

    `next_batch`, `next_descriptors`, `ack`, `ack_through` and `flush` raise Fenced once another consumer has
    claimed the queue, ManifestLost if the manifest is gone or went back, and a StorageError if the store failed.
    In all of these cases this consumer's state is as it was, and repeating the call after a storage error is safe,
    whether the write behind it landed or not. After `close` every call raises Closed. Calls from several threads
    are serialised.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        store: Store,
        handle: FetchHandle,
        position: Position,
        epoch: int,
        collector: Collector | None,
        leases: Leases | None = None,
    ) -> None:
        """Use `Consumer.new`: this takes the parts that it makes."""
        self.leases = leases
        """What workers left, if the queue was taken over from them. What they have finished is not handed out."""
        self.config = config
        self.store = store
        self.epoch = epoch
        """What this consumer claimed; a newer one has a higher epoch."""
        self._handle = handle
        self._position = position
        self._collector = collector
        self._reading = threading.Lock()
        self._following: weakref.WeakSet[ReadAhead] = weakref.WeakSet()
        if collector is not None:
            # The collector does not know the consumer, so a dropped consumer can go, and takes it along.
            weakref.finalize(self, collector.stop)

    @classmethod
    def new(cls, config: ConsumerConfig, last_acked: int | None = None, *, clock: Clock = _SYSTEM_CLOCK) -> Self:
        """Claim the queue, which fences any other consumer, and dequeue through `last_acked`, in one write.

        Reading starts after `last_acked`; where it is None, at the oldest batch there is. An empty store is an
        empty queue. A queue that workers share by leases is taken over from them: what they have finished is skipped
        (and leaves the queue with what is acked, at its head at once), and what was on its way to their dead-letter
        queue is brought there first (LocationRefused, BatchTooLarge).
        Raises QueueBehindConsumer if the queue never held `last_acked`, ManifestLost if there was a manifest and it is
        gone; then nothing was claimed. After ContentionError or StorageError it may have been. Raises
        QueueBehindConsumer, too, if the queue never held what workers had; then it was claimed, and not taken over.
        """
        if last_acked is not None and (
            not isinstance(last_acked, int) or isinstance(last_acked, bool) or last_acked < 0
        ):
            raise InvalidInput(
                f"last_acked={last_acked!r} is not allowed: pass the sequence of the last batch that is done "
                "with, or None if there is none"
            )
        store = open_store(config.store, **config.store_options)
        queue = marked_queue(config, store, clock)
        claimed = queue.claim(last_acked)
        collector = None
        if config.gc_enabled:
            collector = Collector(config.gc(), store=store, clock=clock, epoch=claimed.epoch)
        handle = FetchHandle(store, config.max_batch_bytes, config.fetch_attempts, clock, config.prefixes())
        leases = take_over(config, store, handle, clock, claimed)
        if leases is not None:
            # Finished by workers, whether it has left the manifest or not: nothing that this consumer has missed.
            known = claimed.first_sequence - 1 if last_acked is None else last_acked
            last_acked = leases.finished_through if leases.finished_through > known else last_acked
        position = Position(
            queue,
            claimed,
            last_acked,
            clock,
            finished=leases.finished if leases else (),
            on_fenced=collector.stop if collector else lambda: None,
        )
        if leases is not None:
            position.drop_finished()
        consumer = cls(config, store, handle, position, claimed.epoch, collector, leases)
        if collector is not None:
            collector.start()
        return consumer

    # Reading

    def next_batch(self) -> ConsumedBatch | None:
        """The batch at the cursor, fetched and decoded; None at the end of the queue.

        The cursor moves only after a successful fetch: after StorageError, ObjectNotFound or CorruptBatch the next
        call tries the same batch again; `skip` goes past it. Raises QueueAheadOfConsumer if another consumer dequeued
        what comes next.
        """
        ours: int | None = None
        try:
            with self._reading:
                self._position.ack_in_hand()
                descriptors = self._position.peek(self._position.cursor, 1)
                if not descriptors:
                    return None
                batch = self._fetched(descriptors[0])
                self._position.check_cursor(batch.sequence)
                ours = batch.sequence
                self._position.hand_out(batch.sequence)
                return batch
        except BaseException:  # a signal's handler may raise when it is handed out, and nobody gets it
            if ours is not None:
                self._position.take_back(ours)
            raise

    def _fetched(self, descriptor: BatchDescriptor) -> ConsumedBatch:
        try:
            return self._handle.fetch(descriptor)
        except (ObjectNotFound, CorruptBatch) as error:
            self._position.look()  # a fenced consumer's batches may be gone: then say that instead
            raise with_way_past(error, descriptor.sequence) from error

    def skip(self, sequence: int) -> None:
        """Hand out the batch at the cursor without reading it: one that is gone or damaged for good. Then ack it.

        An entry without an object is what an append leaves that landed a day too late (BatchCollected). With `batches`
        use `skip` of the iterator. Raises InvalidInput if the cursor is not there, or the queue has no such batch yet.
        """
        with self._reading:
            if not self._position.peek(self._position.cursor, 1):
                raise InvalidInput(f"skip({sequence}) is not allowed: the queue has nothing at the cursor")
            self._position.hand_out(sequence)

    def next_descriptors(self, limit: int, *, known: bool = False) -> list[BatchDescriptor]:
        """Hand out at most `limit` batches without fetching them: one read of the manifest, none for 0.

        With `known` it is never read: there come only those that the last look or ack has seen, which may be none
        while more are in the queue.

        They are contiguous, but for what workers with leases have finished, and are not handed out again. They start at
        the cursor, **or at the oldest batch there is if the cursor's is gone** (another consumer dequeued it): compare
        the first sequence with the one you expect, where a loss matters. `next_batch` and `batches` raise instead.
        """
        if limit < 0:
            raise InvalidInput(f"next_descriptors({limit}) is not allowed: ask for 0 or more")
        self._position.check_open()
        if not limit:
            return []
        with self._reading:
            self._position.ack_in_hand()
            return self._position.take(limit, known=known)

    def fetch_descriptor(self, descriptor: BatchDescriptor) -> ConsumedBatch:
        """Fetch and decode one batch here. See `FetchHandle.fetch`."""
        self._position.check_open()
        return self._handle.fetch(descriptor)

    def fetch_handle(self) -> FetchHandle:
        """What fetches, to be used from any thread or process. It outlives this consumer."""
        return self._handle

    def batches(
        self,
        *,
        prefetch: int = PREFETCH_DEFAULT,
        max_bytes: int = MAX_BYTES_DEFAULT,
        auto_ack: bool = False,
        follow: bool = False,
        poll_interval_s: float | None = None,
    ) -> ReadAhead:
        """Iterate over the batches in order, fetching up to `prefetch` of them, or `max_bytes`, ahead in threads.

        The iteration ends when the queue is drained. With `follow` it waits for more instead, looking every
        `poll_interval_s` (1 s, unless given; giving it is enough), until `stop()` or `close()` of the iterator or
        `close()` of this consumer, each from any thread; once another consumer took over it raises Fenced. Ack with
        `ack(batch)` of the iterator, in any order; or with `auto_ack`, where asking for the next batch acks the
        one before. Acks are dequeued every 100, at the end, and by `close`. The cursor moves as batches come out,
        so after a `break` the consumer goes on where the loop stopped: asking for the next batch, in whatever way,
        acks the one that the loop was left with. Until then, or if `with` is left by an error, it is not acked.

            with consumer.batches(prefetch=8, auto_ack=True) as batches:
                for batch in batches:
                    handle(batch.to_arrow())

            with consumer.batches(follow=True, auto_ack=True) as batches:
                signal.signal(signal.SIGTERM, lambda *_: batches.stop())
                for batch in batches:  # for ever, or until SIGTERM
                    handle(batch.to_arrow())
        """
        self._position.check_open()
        batches = ReadAhead(
            self._position,
            self._handle,
            prefetch=prefetch,
            max_bytes=max_bytes,
            auto_ack=auto_ack,
            poll_interval_s=POLL_INTERVAL_DEFAULT_S if follow and poll_interval_s is None else poll_interval_s,
        )
        if follow or poll_interval_s is not None:
            self._following.add(batches)
        return batches

    # Acking

    def ack(self, sequence: int) -> None:
        """The batch is done with. Strictly in order: the first one is `last_acked + 1`, or the first handed out.

        Looks at the manifest, and dequeues every 100th time. On OutOfOrderAck, Fenced or a storage error the state
        is as it was.
        """
        self._position.ack(sequence)

    def ack_through(self, sequence: int, *, location: str | None = None) -> None:
        """Everything up to `sequence` is done with: dequeue it in one write.

        With the `location` of the batch at `sequence`, which its descriptor tells, a manifest in which that sequence
        is another batch is refused (ManifestLost): it was put back from a backup since.
        Rejects what is acked already and what was not handed out (OutOfOrderAck). The queue moves first, this
        consumer's state after: on Fenced nothing has moved; after a storage error call again.
        """
        self._position.ack_through(sequence, location)

    def flush(self) -> None:
        """Dequeue what is acked. On Fenced nothing has moved; after a storage error call again."""
        self._position.flush()

    # Looking

    @property
    def last_acked(self) -> int | None:
        """The last sequence that was acked, dequeued or not; None if there is none."""
        return self._position.last_acked

    @property
    def cursor(self) -> int:
        """The sequence that is handed out next."""
        return self._position.cursor

    @property
    def closed(self) -> bool:
        return self._position.closed

    def manifest(self) -> Manifest:
        """The newest manifest, with the entries that are acked and not yet dequeued. Raises Fenced."""
        return self._position.look()

    def known(self) -> Manifest:
        """The manifest as the last look saw it, or as the last dequeue wrote it. Reads nothing, notices nothing."""
        return self._position.seen

    def known_lag(self) -> tuple[int, float]:
        """What `len` and `lag_seconds` would say of `known()`, without a look: batches, and seconds as of now."""
        return self._position.length(), self._position.lag_ms() / 1000

    def __len__(self) -> int:
        """How many batches in the queue were not acked yet. Looks at the manifest; raises Fenced."""
        return self._position.length(self._position.look())

    def __bool__(self) -> bool:
        """A consumer is true, empty queue or not: `if consumer:` must not read from a store."""
        return True

    def lag_seconds(self) -> float:
        """The age of the oldest entry that was not acked yet; 0 if there is none. Raises Fenced."""
        return self._position.lag_ms(self._position.look()) / 1000

    # Ending

    def close(self) -> None:
        """Dequeue what is acked, and stop the collector. Closed again, it does nothing.

        If the dequeue fails the consumer is closed all the same, and the error is raised: those batches come again
        to a consumer that is opened without `last_acked`. Calling `close` once more tries the dequeue once more.
        """
        self._end_work()
        self._position.close()
        self._position.flush_pending()

    def abandon(self) -> None:
        """Close without touching the queue: acks that were not dequeued are forgotten."""
        self._end_work()
        self._position.abandon()

    def _end_work(self) -> None:
        for batches in tuple(self._following):
            batches.stop()  # one that waits for more would else find out at its next look
        if self._collector is not None:
            self._collector.close()

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

    # Showing: as of the last look, for printing an object must not read from a store

    def _facts(self) -> dict[str, str]:
        position = self._position
        return {
            "queue": f"{self.config.manifest_path} in {self.store.url}",
            "epoch": str(self.epoch),
            "last acked": "nothing" if position.last_acked is None else str(position.last_acked),
            "cursor": str(position.cursor),
            "length": str(position.length()),
            "lag": f"{position.lag_ms() / 1000:.1f} s",
            "state": "closed" if position.closed else "open",
        }

    def __repr__(self) -> str:
        facts = self._facts()
        queue = facts.pop("queue")
        return f"<Consumer of {queue}: {', '.join(f'{name} {value}' for name, value in facts.items())}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
            for name, value in self._facts().items()
        )
        return f"<table><caption>Consumer, as of its last look at the queue</caption>{rows}</table>"
