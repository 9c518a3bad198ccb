"""Knows what really happened on a queue with leases, and what must never happen. Nothing that is simulated sees it.

It watches each write of the ledger as a step from one section to the next, and hears what workers were told:

    leased     only what nobody holds, is not finished and not kept back; the count is the number of leases ever granted
    answered   only under a lease that holds: an ack after its end is none; an extension never shortens
    entries    are acked once; what is owed only shrinks; nothing that was acked is delivered again
    judged     only what was delivered as often as it may be, by the settings, `snooze` and `unblock`
    parked     finished only once it stands in the dead-letter queue, where it comes once; with `block_and_dlq` it stays
               in the queue as well, and may be worked on
    redriven   comes home once for each time that it was parked
    always     time, counts and the frontier never go back; and time is never far ahead, whatever the clocks say
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from buffer.codec.batch import decode_batch
from buffer.leases.time import CLOCK_AHEAD_MAX_MS
from buffer.ledger.lease_steps import is_finished
from buffer.ledger.leases import FRESH, Batch, LeaseLedger, Leases, State
from buffer.ledger.ranges import numbers
from buffer.manifest import Manifest
from buffer.model import BatchDescriptor
from buffer.names import ledger_path
from buffer.testing.simulator.clock import START_MS
from buffer.testing.simulator.scheduler import Process, Scheduler
from buffer.testing.simulator.store import ObjectServer
from buffer.testing.simulator.witness import QueueWitness, Record

DEAD_PATH = "dead/manifest"


class LeaseWitness(QueueWitness):
    """Ground truth about one queue with leases and its dead-letter queue."""

    def __init__(self, scheduler: Scheduler, server: ObjectServer, manifest_path: str) -> None:
        super().__init__(scheduler, server, manifest_path)
        self._ledger_path = ledger_path(manifest_path)
        self.section: Leases | None = None
        self.grants: defaultdict[int, set[str]] = defaultdict(set)
        """The leases that ever covered a sequence, by the ledger."""
        self._unblocked: Counter[int] = Counter()
        self._snoozed: Counter[int] = Counter()
        """Deliveries that a sequence may have at least, beyond the settings, as far as somebody was told."""
        self.acked: defaultdict[int, set[int]] = defaultdict(set)
        self.parked: dict[int, set[int]] = {}
        self.is_away: Counter[tuple[str, int]] = Counter()
        """How often a record is in the dead-letter queue, and not home."""
        self._owed_at: dict[tuple[int, str], set[int]] = {}
        self._dead_next = 0
        self._dead_first = 0
        self.may_dequeue.append(self._may_dequeue)

    # The ledger

    def changed(self, caller: Process, location: str, before: bytes | None, after: bytes | None) -> None:
        if location == self._ledger_path and after is not None:
            section = LeaseLedger.from_bytes(after).leases
            if self.section is not None and section is not None and section != self.section:
                self._step(caller, self.section, section)
            self.section = section
        elif location == DEAD_PATH and after is not None:
            self._dead_changed(caller, Manifest.from_bytes(after))
        else:
            super().changed(caller, location, before, after)

    def _step(self, caller: Process, old: Leases, new: Leases) -> None:
        if new.time_ms < old.time_ms:
            self._violate(f"{caller.name} turned the queue's time back, from {old.time_ms} to {new.time_ms}")
        true_ms = START_MS + int(self._scheduler.now_s * 1000)
        if new.time_ms > true_ms + CLOCK_AHEAD_MAX_MS:
            self._violate(f"{caller.name} put the queue's time {new.time_ms - true_ms} ms ahead of the store's")
        if new.finished_through < old.finished_through:
            self._violate(f"the frontier went back, from {old.finished_through} to {new.finished_through}")
        for sequence in old.batches.keys() | new.batches.keys():
            self._batch_step(caller, sequence, old, new)
        if new.holes > new.config.max_ack_holes:
            self._violate(f"{new.holes} holes, and the cap is {new.config.max_ack_holes}")
        in_flight = sum(batch.is_leased(new.time_ms) for batch in new.batches.values())
        if in_flight > new.config.max_in_flight:
            self._violate(f"{in_flight} batches in flight, and the cap is {new.config.max_in_flight}")

    def _batch_step(self, caller: Process, sequence: int, old: Leases, new: Leases) -> None:
        before, after = old.batches.get(sequence, FRESH), new.batches.get(sequence)
        if is_finished(old, sequence):
            self._violate(f"{sequence} was finished, and {caller.name} has given it a story again")
        if after is None:
            self._finished(caller, sequence, before, new)
            return
        if after.count < before.count:
            self._violate(f"the count of {sequence} went back, from {before.count} to {after.count}")
        if after.lease is not None and after.lease != before.lease:
            self._granted(caller, sequence, before, after, new)
        elif after.lease is not None and after.until_ms < before.until_ms:
            self._violate(f"{caller.name} shortened the lease of {sequence}")
        elif (after.until_ms > before.until_ms or after.owed != before.owed) and after.state is State.OPEN:
            self._check_holds(caller, sequence, before, new, "extended, gave back or acked a part of")
        if after.owed != before.owed:
            left = self._owed(sequence, before) - self._owed(sequence, after)
            if self._owed(sequence, after) - self._owed(sequence, before):
                self._violate(f"more is owed of {sequence} than before: {before.owed}, now {after.owed}")
            self._acked(sequence, left)
        if before.state is State.OPEN and after.state is not State.OPEN and not self._is_by_hand(after):
            self._judged(sequence, before, new)

    def _granted(self, caller: Process, sequence: int, before: Batch, after: Batch, new: Leases) -> None:
        assert after.lease is not None
        if before.is_leased(new.time_ms):
            self._violate(f"{caller.name} leased {sequence}, which lease {before.lease} holds until {before.until_ms}")
        if before.state is not State.OPEN:
            self._violate(f"{caller.name} leased {sequence}, which is {before.state}")
        self.grants[sequence].add(after.lease)
        self._owed_at[sequence, after.lease] = self._owed(sequence, before)
        if after.count != len(self.grants[sequence]):
            self._violate(f"the count of {sequence} is {after.count}; leases granted: {len(self.grants[sequence])}")
        if new.config.ordering_required and sequence != new.finished_through + 1:
            self._violate(f"{sequence} was leased before {new.finished_through + 1} was finished")

    def _check_holds(self, caller: Process, sequence: int, before: Batch, new: Leases, what: str) -> None:
        if not before.is_leased(new.time_ms):
            self._violate(f"{caller.name} {what} {sequence} after its lease {before.lease} had run out")

    def _finished(self, caller: Process, sequence: int, before: Batch, new: Leases) -> None:
        if not is_finished(new, sequence):
            self._violate(f"{caller.name} made the story of {sequence} undone")
        owed = self._owed(sequence, before)
        if before.state is State.PARKING:
            if self.parked.get(sequence) != owed:
                self._violate(f"{sequence} was finished as parked, but {owed} of it are not in the dead-letter queue")
            return
        if before.ordinal and not before.is_leased(new.time_ms):  # given up by hand, after it was copied
            if not owed <= self.parked.get(sequence, set()):
                self._violate(f"{sequence} was given up, but {owed} of it are not in the dead-letter queue")
            return
        self._check_holds(caller, sequence, before, new, "acked")
        self._acked(sequence, owed)

    def _judged(self, sequence: int, before: Batch, new: Leases) -> None:
        more = max(self._unblocked[sequence], self._snoozed[sequence])
        allowed = new.config.max_delivery_attempts + more
        if before.count < allowed:
            self._violate(f"{sequence} was judged after {before.count} deliveries, but it may have {allowed}")

    def _is_by_hand(self, after: Batch) -> bool:
        return after.reason == "given up by hand"

    def _owed(self, sequence: int, batch: Batch) -> set[int]:
        if batch.owed is None:
            return set(range(len(self.history[sequence].records)))
        return set(numbers(batch.owed, below=len(self.history[sequence].records)))

    def _acked(self, sequence: int, entries: set[int]) -> None:
        again = self.acked[sequence] & entries
        if again:
            self._violate(f"entries {again} of {sequence} were acked before")
        self.acked[sequence] |= entries

    # The two manifests

    def _check_dequeuer(self, caller: Process, epoch: int) -> None:
        if self.section is None or self.section.epoch != epoch:
            self._violate(f"{caller.name} dequeued under epoch {epoch}, which the workers do not share")

    def _may_dequeue(self, batch: object) -> str | None:
        sequence = getattr(batch, "sequence", -1)
        return None if self.section is not None and is_finished(self.section, sequence) else "it is not finished"

    def _check_mark(self, caller: Process, entry: BatchDescriptor, records: tuple[Record, ...]) -> None:
        """Ordinals are no calls of a producer: that each comes once is checked by what comes."""

    def _record_landed(self, record: Record, sequence: int) -> None:
        key = (record.producer, record.key)
        if key in self._landed:
            if not self.is_away[key]:
                self._violate(f"{record} came home as {sequence}, but it is in the queue already")
            self.is_away[key] -= 1
            return
        super()._record_landed(record, sequence)

    def _dead_changed(self, caller: Process, manifest: Manifest) -> None:
        self._dead_first = manifest.first_sequence
        for entry in manifest.entries_from(self._dead_next):
            self._dead_next = entry.sequence + 1
            records = [Record.from_bytes(data) for data in decode_batch(self._server.objects[entry.location])]
            self._dead_came(caller, records)

    def _dead_came(self, caller: Process, records: list[Record]) -> None:
        home = self._home_of(records)
        if home is None:
            self._violate(f"{caller.name} put {records} into the dead-letter queue, which are in no batch together")
            return
        if home in self.parked:
            self._violate(f"{caller.name} parked {home}, which is in the dead-letter queue already")
        everything = self.history[home].records
        self.parked[home] = {everything.index(record) for record in records}
        self._counts["batches parked"] += 1
        for record in records:
            self.is_away[record.producer, record.key] += 1

    def _home_of(self, records: list[Record]) -> int | None:
        """The newest batch that these records are in."""
        for appended in reversed(self.history):
            if set(records) <= set(appended.records):
                return appended.sequence
        return None

    # What workers were told

    def delivered(self, process: Process, sequence: int, lease_id: str, count: int, indices: Iterable[int]) -> None:
        if lease_id not in self.grants[sequence]:
            self._violate(f"{process.name} was given {sequence} under {lease_id}, which the ledger never granted")
        if count > len(self.grants[sequence]):
            self._violate(f"{process.name} was told {count} deliveries of {sequence}: {self.grants[sequence]}")
        if set(indices) != self._owed_at.get((sequence, lease_id)):
            self._violate(f"{process.name} was given the entries {indices} of {sequence}, which are not those owed")

    def unblocked(self, sequence: int, count: int, attempts: int) -> None:
        """`count` is what it was before the call: by now there may be more."""
        assert self.section is not None
        granted = count + attempts - self.section.config.max_delivery_attempts
        self._unblocked[sequence] = max(self._unblocked[sequence], granted)

    def snoozed(self, sequence: int) -> None:
        self._snoozed[sequence] += 1

    # The end

    @property
    def is_worked_off(self) -> bool:
        """Everything is finished, and dequeued."""
        section = self.section
        return section is not None and section.finished_through + 1 == len(self.history) == self.first_sequence

    @property
    def is_dead_queue_empty(self) -> bool:
        return self._dead_first == self._dead_next

    def _copies_stay(self) -> bool:
        return self.section is not None and self.section.config.dlq_strategy == "block_and_dlq"

    def check_worked_off(self) -> None:
        """Each entry was acked, or is in the dead-letter queue."""
        for appended in self.history:
            acked, parked = self.acked[appended.sequence], self.parked.get(appended.sequence, set())
            everything = set(range(len(appended.records)))
            both = acked & parked if not self._copies_stay() else set()
            if acked | parked != everything or both:
                self._violate(f"of {appended.sequence} were acked {acked}, parked {parked}, of {everything}")
