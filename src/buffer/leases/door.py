"""What every verb of a `LeaseQueue` shares: one at a time, timed, tidied up after; parking what was ordered; the end.

- The finished prefix leaves the manifest now and then (`tidying.py`), and on `close`.
- Calls from several threads are serialised. After `close`, and in a forked child, every verb raises `Closed`.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from buffer import metrics
from buffer.clock import Clock
from buffer.config import ConsumerConfig
from buffer.consume.dead_letters import DeadLetters
from buffer.consume.fetch import FetchHandle
from buffer.consume.letters import Source
from buffer.errors import BufferQueueError, Closed, ContentionError, Fenced, InvalidHandle, StorageError
from buffer.gc.collector import Collector
from buffer.leases.deliver import Fetching
from buffer.leases.session import LeaseSession
from buffer.leases.values import LeaseStats, stats_of
from buffer.ledger import parking
from buffer.ledger.lease_rules import Grant
from buffer.ledger.leases import FRESH, Leases, State
from buffer.ledger.parking import ParkOrder
from buffer.manifest import Manifest
from buffer.store.base import Store

log = logging.getLogger(__name__)


class LeaseDoor:
    """One process's door to a queue with leases, without the verbs."""

    def __init__(
        self,
        config: ConsumerConfig,
        store: Store,
        session: LeaseSession,
        handle: FetchHandle,
        dead_letters: DeadLetters,
        clock: Clock,
        collector: Collector | None,
    ) -> None:
        """Use `LeaseQueue.open`: this takes the parts that it makes."""
        self.config = config
        self.store = store
        self.clock = clock
        self._session = session
        self._delivery = Fetching(session, handle, clock)
        self._dead_letters = dead_letters
        self._collector = collector
        self._lock = threading.RLock()
        self._closed = False
        self._pid = os.getpid()
        if collector is not None:
            # The collector does not know the queue, so a dropped queue can go, and takes it along.
            weakref.finalize(self, collector.stop)

    def _park(self, orders: Sequence[ParkOrder], section: Leases, unread: int | None = None) -> BufferQueueError | None:
        """Carry out what was ordered. What fails stays parking, and is repeated when its time is up: returns why.

        `unread` is the sequence that goes whether this process may read it or not.
        """
        look = self._session.look()
        source = Source(look.queue_id, self.config.manifest_path)
        done: list[ParkOrder] = []
        trouble: BufferQueueError | None = None
        for order in orders:
            try:
                descriptor = look.manifest.read(order.sequence)
                batch = look.leases.batches.get(order.sequence, FRESH)
                if descriptor is None or batch.state is not State.PARKING or batch.ordinal != order.ordinal:
                    continue  # another one was faster, and the settings may be other ones since
                assert look.leases.config.dlq is not None, "it cannot change while something is being parked"
                dlq, is_unread = look.leases.config.dlq, order.sequence == unread
                self._dead_letters.park(order, descriptor, source, dlq, unread=is_unread)
            except BufferQueueError as error:
                trouble = error
                log.warning("batch %d could not be parked, it will be tried again: %s", order.sequence, error)
                break  # in order of the ordinals: a later mark must not come first
            done.append(order)
        if done:
            parker = section.parker or ""
            self._session.apply(lambda now, by: (parking.finish_parking(now, by, parker, done), None))
            metrics.leases_parked.add(len(done))
        return trouble

    def _tidy_if_due(self, section: Leases, manifest: Manifest, stats: LeaseStats, *, idle: bool) -> None:
        left = manifest.next_sequence - 1 - section.finished_through
        finished = manifest.entry_count - left
        if self._session.tidying.is_due(finished, left, idle=idle, in_flight=stats.in_flight):
            self._tidy(section, manifest)

    def _tidy(self, section: Leases, manifest: Manifest) -> None:
        """Take the finished prefix out of the manifest."""
        if section.finished_through < manifest.first_sequence:
            return
        try:
            self._session.dequeue(section)
        except (ContentionError, StorageError) as error:
            log.warning("the finished batches stay in the manifest for now: %s", error)
        except Fenced as error:  # by a worker that is opening the queue, maybe: the next consume waits to find out
            log.info("the finished batches stay in the manifest for now: %s", error)

    def _count(self, section: Leases, manifest: Manifest, grant: Grant, acked: int) -> LeaseStats:
        metrics.leases_acked.add(acked)
        metrics.leases_consumed.add(len(grant.deliveries))
        metrics.leases_expired.add(grant.ran_out)
        stats = stats_of(section, manifest.next_sequence, self._session.now_ms(section))
        metrics.leases_depth.set(stats.depth)
        metrics.leases_in_flight.set(stats.in_flight)
        metrics.leases_holes.set(stats.holes)
        metrics.leases_blocked.set(stats.blocked)
        return stats

    @contextmanager
    def _verb(self, name: str) -> Iterator[None]:
        """One call: alone, not after `close` or a fork, timed and counted."""
        if os.getpid() != self._pid:  # before the lock: a thread that is not in the child may hold it
            raise Closed(f"this lease queue was opened in process {self._pid}: open one after the fork")
        with self._lock:
            if self._closed:
                raise Closed(f"the lease queue of {self.config.manifest_path!r} was closed; open another one")
            started_s = self.clock.monotonic_s()
            try:
                yield
            except InvalidHandle as error:
                metrics.leases_handle_errors.add(len(error.handles))
                raise
            finally:
                elapsed_s = self.clock.monotonic_s() - started_s
                metrics.leases_duration_seconds.record(elapsed_s, {"verb": name})

    # Ending

    def close(self) -> None:
        """Dequeue what is finished. Leases that are held stay: they run out, or their acks come from elsewhere."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._collector is not None:
                self._collector.close()
            try:
                look = self._session.look()
                self._tidy(look.leases, look.manifest)
            except BufferQueueError as error:
                log.warning("closing without a last look at the queue: %s", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LeaseQueue({self.store!r}, manifest_path={self.config.manifest_path!r})"
