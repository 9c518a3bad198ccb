"""A queue that many workers share: each batch is held by one of them at a time, until it is acked or its lease ends.

    with LeaseQueue.open(ConsumerConfig(store="s3://bucket/path"), LeaseConfig(visibility_timeout_ms=60_000)) as queue:
        while leased := queue.consume(10, wait_ms=5_000):
            for batch in leased:
                handle(batch.entries)
            queue.ack(leased)

Any number of processes open the same queue; there is no broker, all state is in the ledger. Delivery is at least once:
a lease that ran out, or whose holder died, is granted again, and counted. Work that takes longer than the lease must
`extend` it; `worker` does so by itself, and is the loop most people want.

- What cannot be read is given back: `deliver.py` says when, and for how long.
- What is used up is parked before anything else is delivered. Parking that fails is logged, stays exclusive until its
  time is up, and is then repeated by whoever consumes; the other batches go on meanwhile.
- The finished prefix leaves the manifest now and then, when the queue is idle, and on `close`: see `tidying.py`.

Cost of one cycle (`consume(n, acks=…)`): one conditional read of the manifest, one write of the ledger; where others
write, too, one read of the ledger before it. Calls from several threads are serialised; waiting holds nobody up.

Fork: it belongs to the process that opened it, for its writes have numbers. In a child its calls raise `Closed`, and
`close()` does nothing. Open another one after the fork.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Self

from buffer import metrics
from buffer.backoff import Backoff
from buffer.clients import marked_queue
from buffer.clock import Clock, SystemClock
from buffer.config import ConsumerConfig, LeaseConfig, ProducerConfig
from buffer.consume.dead_letters import DeadLetters, check_dlq, is_of_another_queue
from buffer.consume.fetch import FetchHandle
from buffer.errors import (
    ContentionError,
    InvalidConfig,
    InvalidInput,
    StorageError,
)
from buffer.gc.collector import Collector
from buffer.journal import Journal
from buffer.leases.door import LeaseDoor
from buffer.leases.redrive import Where, redrive
from buffer.leases.session import LeaseSession, Look, NoLeases
from buffer.leases.values import (
    Delivered,
    Done,
    Held,
    LeasedBatch,
    LeaseStats,
    Peeked,
    acks_of,
    handles_of,
    nacks_of,
    peeked,
    stats_of,
)
from buffer.ledger import lease_rules as rules
from buffer.ledger import parking
from buffer.ledger.lease_rules import Ack, Grant, Nack
from buffer.ledger.lease_steps import Stamp, is_finished, whole
from buffer.ledger.leases import LeaseLedger, Leases
from buffer.manifest import Manifest
from buffer.model import BatchDescriptor
from buffer.names import folder_of
from buffer.produce.adopt import append_uploads
from buffer.produce.durability import Durable
from buffer.produce.intake import Entries
from buffer.produce.upload import upload_entries
from buffer.store.open import open_store

log = logging.getLogger(__name__)

_SYSTEM_CLOCK = SystemClock()

MOMENT_S = 0.001  # not worth a sleep, which may round it to nothing
WAITING = Backoff(first_s=0.02, max_s=1.0, attempts_max=1_000_000, jitter_from=0.5)
"""Pauses between looks at a queue that has nothing to deliver; `wait_ms` ends them."""


class LeaseQueue(LeaseDoor):
    """One process's door to a queue with leases. Open it with `LeaseQueue.open`; close it with `close` or `with`.

    Every verb is one durable write, however many batches it names. It raises Fenced once another kind of reader has
    claimed the queue, LedgerLost or ManifestLost if state is gone, ContentionError if too many others wrote: then it
    may have happened or not, and a lease that nobody knows of runs out by itself.
    """

    @classmethod
    def open(
        cls,
        config: ConsumerConfig,
        leases: LeaseConfig | None = None,
        *,
        adopt: bool = False,
        claim: bool = True,
        clock: Clock = _SYSTEM_CLOCK,
    ) -> Self:
        """Join the workers of a queue, or be its first.

        The settings are the queue's own, kept in its ledger: without `leases` they are taken as they are, and another
        set is refused (InvalidConfig). Raises QueueBound if the queue feeds a loader, LedgerLost if it was consumed
        without leases before; `adopt=True` accepts that, fences that consumer, and begins with what is there. If a
        consumer has taken the queue over since, opening it takes it back; with `claim=False` it raises Fenced instead.
        """
        if leases is not None:
            check_dlq(config, leases)
        return cls._join(config, leases, clock, adopt=adopt, claim=claim)

    @classmethod
    def _join(
        cls,
        config: ConsumerConfig,
        leases: LeaseConfig | None,
        clock: Clock,
        *,
        adopt: bool = False,
        claim: bool = True,
    ) -> Self:
        store = open_store(config.store, **config.store_options)
        queue = marked_queue(config, store, clock)
        journal = Journal(store, config.manifest_path, clock, LeaseLedger, timeout_s=config.cas_timeout_s)
        worker = clock.new_ulid()[-10:]
        session = LeaseSession(queue, journal, clock, worker, lambda: store.head(journal.location).modified_ms)
        session.open(leases, adopt=adopt, claim=claim)
        collector = None
        if config.gc_enabled:
            collector = Collector(config.gc(), store=store, clock=clock)
            collector.start()
        handle = FetchHandle(store, config.max_batch_bytes, config.fetch_attempts, clock, config.prefixes())
        return cls(config, store, session, handle, DeadLetters(config, store, handle, clock), clock, collector)

    def twin(self) -> LeaseQueue:
        """Another door to the same queue, for another thread: calls on the two do not wait for each other."""
        config = self.config.replace(store=self.store, gc_enabled=False)
        return LeaseQueue.open(config, clock=self.clock, claim=False)

    # Delivering

    def consume(
        self,
        max_batches: int = 1,
        wait_ms: int = 0,
        acks: Done | Iterable[Done] = (),
        *,
        enough: Callable[[], bool] = lambda: False,
    ) -> Delivered:
        """Lease up to `max_batches`, and fetch them; `acks` are acked in the same write.

        Waits up to `wait_ms` for something to deliver, then returns nothing. What cannot be read or is to be parked on
        the way takes the time that it takes, for any number of batches: `enough` is asked in between, and ends that.
        Raises AckHoleCapExceeded or InFlightCapExceeded if only a cap stands in the way, and InvalidHandle for an ack
        that does not hold: that moves nothing. LocationRefused, BatchTooLarge, StorageError: see above. After a cap,
        LocationRefused or BatchTooLarge the acks stand; after any other error (Fenced, say) they may stand or not.
        """
        max_batches, wait_ms = whole("max_batches", max_batches, low=1), whole("wait_ms", wait_ms)
        done = acks_of(acks)
        deadline_s = self.clock.monotonic_s() + wait_ms / 1000
        pauses = WAITING.pauses(self.clock.jitter)
        snoozed: tuple[int, ...] = ()
        unreadable: tuple[int, ...] = ()
        while True:
            with self._verb("consume"):
                delivered, grant = self._consume_once(max_batches, done)
            done = []
            snoozed += delivered.snoozed
            is_work = bool(grant.orders or delivered.unreadable)
            unreadable += tuple(s for s in delivered.unreadable if s not in unreadable)  # it may come more than once
            delivered = replace(delivered, snoozed=snoozed, unreadable=unreadable)
            if delivered.batches or enough():
                return delivered
            if is_work:
                continue  # something was done: look again at once
            left_s = deadline_s - self.clock.monotonic_s()
            if left_s < MOMENT_S:
                if grant.stopped is not None:
                    raise grant.stopped
                return delivered
            self.clock.sleep(min(left_s, next(pauses, WAITING.max_s)))  # somebody may wait for weeks

    def _consume_once(self, max_batches: int, acks: Sequence[Ack]) -> tuple[Delivered, Grant]:
        def verb(section: Leases, by: Stamp, manifest: Manifest) -> tuple[Leases, Grant]:
            return rules.consume(section, by, _waiting(manifest), max_batches, acks)

        asked_s = self.clock.monotonic_s()
        manifest, section, grant = self._session.apply_to_queue(verb)
        stats = self._count(section, manifest, grant, len(acks))
        self._tidy_if_due(section, manifest, stats, idle=not grant.deliveries)
        if grant.orders:
            self._park(grant.orders, section)
        return self._delivery.fetch(grant.deliveries, manifest, asked_s), grant

    # Answering

    def ack(self, done: Done | Iterable[Done], entries: Sequence[int] | None = None) -> None:
        """These are done: batches, or `entries` (indices) of one. Raises InvalidHandle, and then nothing has moved."""
        acks = acks_of(done)
        if entries is not None:
            if not isinstance(done, LeasedBatch):
                raise InvalidInput(
                    "entries are acked of one batch at a time: pass the LeasedBatch, or `batch.done([…])`"
                )
            if not isinstance(entries, Iterable):
                raise InvalidInput(f"entries={entries!r} are not indices: pass a list of them")
            acks = [done.done(tuple(entries))]
        if not acks:
            return
        with self._verb("ack"):
            self._session.apply(lambda section, by: (rules.ack(section, by, acks), None))
        metrics.leases_acked.add(len(acks))

    def nack(self, failed: Held | Nack | Iterable[Held | Nack], delay_ms: int = 0, reason: str = "") -> None:
        """These failed: back to the queue, each after its own delay (`Nack`), or all after `delay_ms`."""
        nacks = nacks_of(failed, delay_ms, reason)
        if not nacks:
            return
        with self._verb("nack"):
            self._session.apply(lambda section, by: (rules.nack(section, by, nacks), None))
        metrics.leases_nacked.add(len(nacks))

    def snooze(self, held: Held | Iterable[Held], delay_ms: int = 0) -> None:
        """Give back untouched: the delivery stays counted, and one attempt more is allowed."""
        handles = handles_of(held)
        if handles:
            with self._verb("snooze"):
                self._session.apply(lambda section, by: (rules.snooze(section, by, handles, delay_ms), None))

    def extend(self, held: Held | Iterable[Held], additional_ms: int | None = None) -> None:
        """Hold for `additional_ms` from now on (the queue's timeout unless given). Never shortens; not a delivery."""
        handles = handles_of(held)
        if not handles:
            return

        def verb(section: Leases, by: Stamp) -> tuple[Leases, None]:
            more = section.config.visibility_timeout_ms if additional_ms is None else additional_ms
            return rules.extend(section, by, handles, more), None

        with self._verb("extend"):
            self._session.apply(verb)

    # For operators

    def unblock(self, sequence: int, attempts: int = 1) -> None:
        """Allow a blocked batch so many deliveries more."""
        with self._verb("unblock"):
            self._session.apply(lambda section, by: (parking.unblock(section, by, sequence, attempts), None))

    def park(self, sequence: int, reason: str = "given up by hand", *, unread: bool = True) -> bool:
        """Give a batch up: into the dead-letter queue with it. False: another worker is at it, or will be.

        By hand goes also what the settings of this process refuse, as it is, or as a word where it must not be read;
        not so with `unread=False`. Raises what asking again does not help against; the batch stays parking.
        """
        with self._verb("park"):
            _, section, orders = self._session.apply_to_queue(
                lambda section, by, manifest: parking.park(section, by, _waiting(manifest), sequence, reason)
            )
            trouble = self._park(orders, section, unread=sequence if unread else None) if orders else None
            if isinstance(trouble, ContentionError) or (isinstance(trouble, StorageError) and trouble.retryable):
                return False
            if trouble is not None:
                raise trouble
            look = self._session.look()
            return is_finished(look.leases, sequence)

    def purge(self) -> int:
        """Finish all that waits, unseen, but what is being parked. Returns how many batches."""
        with self._verb("purge"):
            manifest, section, count = self._session.apply_to_queue(
                lambda section, by, manifest: rules.purge(section, by, _waiting(manifest))
            )
            self._tidy(section, manifest)
            return count

    def configure(self, leases: LeaseConfig | None = None, **changes: Any) -> None:
        """Other settings for the queue, for all its workers, from now on.

        With `changes` the settings that stand by then but for those: nobody's change of another one is lost.
        """
        if not (isinstance(leases, LeaseConfig) or (leases is None and changes)):
            raise InvalidConfig("configure takes a LeaseConfig, or settings by name", key="leases", value=leases)

        def verb(section: Leases, by: Stamp) -> tuple[Leases, None]:
            wanted = (leases or section.config).replace(**changes)
            check_dlq(self.config, wanted)
            return rules.configure(section, by, wanted), None

        with self._verb("configure"):
            self._session.apply(verb)

    def redrive(
        self,
        max_per_second: float | None = None,
        max_batches: int | None = None,
        *,
        on_moved: Callable[[], None] | None = None,
    ) -> int:
        """Bring dead letters back into this queue, each exactly once, oldest first; returns how many batches.

        The dead-letter queue gets leases of its own for that. Raises QueueBound if it feeds a loader, InvalidConfig if
        it has leases that park elsewhere. May be interrupted and called again, also by several at once. What other
        queues have parked there stays: `configure` the dead-letter queue's own `dlq` to bring those home. So does what
        is parked while this runs: one that comes back because it failed again waits for the next redrive.
        """
        with self._verb("settings"):
            look = self._session.look()
        config, queue_id, path = look.leases.config, look.queue_id, self.config.manifest_path
        if config.dlq is None:
            raise InvalidConfig(
                "this queue has no dead-letter queue: there is nothing to redrive", key="dlq", value=None
            )
        away = self.config.replace(manifest_path=config.dlq, data_path_prefix=folder_of(config.dlq), former_prefixes=())
        wanted = LeaseConfig(dlq=path)
        try:
            letters = LeaseQueue.open(away, None, clock=self.clock)
        except NoLeases:
            # Unchecked: what goes home lies in our own prefix, wherever our manifest is.
            letters = LeaseQueue._join(away, wanted, self.clock, adopt=True)
        letters._dead_letters.prefixes[path] = self.config.data_path_prefix
        with letters:
            end = letters.stats().next_sequence  # else what always fails would go round in circles, and this never end
            return redrive(
                letters,
                path,
                max_per_second,
                max_batches,
                on_moved,
                where=lambda letter: letter.sequence < end and not is_of_another_queue(letter, queue_id, path),
            )

    def peek(self, max_batches: int = 10, *, where: Where | None = None) -> list[Peeked]:
        """The oldest unfinished batches as they stand, or those of them that `where` says. Leases nothing."""
        max_batches = whole("max_batches", max_batches)
        with self._verb("peek"):
            look = self._session.look()
            now_ms = self._session.now_ms(look.leases)
            found = islice(filter(where or (lambda _: True), _unfinished(look)), max_batches)
            return [peeked(look.leases, entry.sequence, entry.location, now_ms) for entry in found]

    def stats(self) -> LeaseStats:
        with self._verb("stats"):
            look = self._session.look()
            now_ms = self._session.now_ms(look.leases)
            return stats_of(look.leases, look.manifest.next_sequence, self.clock.now_ms(), now_ms)

    @property
    def settings(self) -> LeaseConfig:
        """The queue's settings as they stand."""
        with self._verb("settings"):
            return self._session.look().leases.config

    def produce(self, entries: Entries, metadata: bytes = b"") -> Durable:
        """Put entries into the queue as one batch, durable when this returns, if `max_depth` leaves room for it.

        For what workers themselves add now and then; a `Producer` is made for streams. Raises QueueFull and what
        `append_uploads` does. Several at once may overshoot by what they have under way.
        """
        self.check_room()
        config = ProducerConfig(
            store=self.store,
            manifest_path=self.config.manifest_path,
            data_path_prefix=self.config.data_path_prefix,
            append_timeout_s=self.config.cas_timeout_s,
        )
        upload = upload_entries(entries, metadata, store=self.store, clock=self.clock, config=config)
        (durable,) = append_uploads([upload], store=self.store, clock=self.clock, config=config)
        metrics.leases_produced.add(1)
        return durable

    def check_room(self) -> None:
        """Raises QueueFull if `max_depth` batches wait: ask before producing."""
        with self._verb("check_room"):
            look = self._session.look()
            rules.check_depth(look.leases, look.manifest.next_sequence, self.config.manifest_path)


def _waiting(manifest: Manifest) -> range:
    return range(manifest.first_sequence, manifest.next_sequence)


def _unfinished(look: Look) -> Iterator[BatchDescriptor]:
    for descriptor in look.manifest.entries_from(look.leases.finished_through + 1):
        if not is_finished(look.leases, descriptor.sequence):
            yield descriptor
