"""Knows what really happened to the queue, and what must never happen. Nothing that is simulated can see it.

It watches every change of the store at the moment it happens, and hears what actors were told:

    appended     sequences have no gaps; the batch is there and was never in the queue before; each record is in the
                 queue once at most, in the order in which its producer was given it, and not after its producer
                 was told that it is not
    claimed      epochs go up one by one, and each belongs to the process whose write landed
    dequeued     only by the owner of the epoch, only from the front, only what `may_dequeue` allows
    deleted      no batch that the queue still holds, unless its append landed a day after it was named
    durable      the batch stands in the queue at that sequence with those records
    marks        a client's numbers only grow along the queue, and the mark of a batch is the largest in it; of two
                 producers with one client id, none goes on behind a call of the other that it has not seen
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from buffer.codec.batch import decode_batch
from buffer.config import GC_GRACE_MIN_S, QUIET_GRACE_S
from buffer.manifest import Manifest
from buffer.marks import mark_of
from buffer.model import BatchDescriptor
from buffer.names import batch_ulid, ulid_time_ms
from buffer.testing.simulator.clock import START_MS
from buffer.testing.simulator.scheduler import Process, Scheduler
from buffer.testing.simulator.store import ObjectServer

LATE_FROM_S = QUIET_GRACE_S - GC_GRACE_MIN_S
"""From this age on, with clocks as far apart as they may be, a collector deletes what nobody names."""


@dataclass(frozen=True, slots=True)
class Record:
    """What a producer sends, and all that is known of it, as one entry of a batch.

    `key` is the thing that must arrive exactly once; it may be sent several times, by later calls or lives, when
    its producer was told that it did not arrive.
    """

    producer: str
    key: int
    life: int
    call: int
    """Counts the calls of a life; of a producer with a client id it is the client_seq."""
    kind: str
    """Where it goes: see the loader's simulated tables. Of no meaning to the queue."""

    def to_bytes(self) -> bytes:
        return f"{self.producer}:{self.key}:{self.life}:{self.call}:{self.kind}".encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Record:
        producer, key, life, call, kind = data.decode().split(":")
        return cls(producer, int(key), int(life), int(call), kind)

    def __str__(self) -> str:
        return f"record {self.key} of {self.producer} (life {self.life}, call {self.call})"


@dataclass(frozen=True, slots=True)
class Appended:
    """One batch that was put into the queue."""

    sequence: int
    location: str
    records: tuple[Record, ...]


class QueueWitness:
    """Ground truth about one queue."""

    def __init__(self, scheduler: Scheduler, server: ObjectServer, manifest_path: str) -> None:
        self.history: list[Appended] = []
        """Every batch ever appended; the index is its sequence."""
        self.first_sequence = 0
        self.may_dequeue: list[Callable[[Appended], str | None]] = []
        """Each says why a batch may not leave the queue yet, or None."""
        self._violate = scheduler.violate
        self._counts = scheduler.counts
        self._server = server
        self._manifest_path = manifest_path
        self._manifest = Manifest.empty()
        self._entries: list[BatchDescriptor] = []
        self._owners: dict[int, Process] = {}
        self._first_before: dict[int, int] = {}
        """By epoch: where the queue began when it was claimed."""
        self._sequence_of: dict[str, int] = {}
        self._landed: dict[tuple[str, int], Record] = {}
        self._denied: set[Record] = set()
        self._durable: set[tuple[str, int]] = set()
        self._deleted: set[str] = set()
        self._landed_late: set[int] = set()
        self._holes: set[int] = set()
        """Sequences whose objects were collected around the moment of a very late append: nobody may rely on them."""
        self._scheduler = scheduler
        self._last_call: dict[tuple[str, int], int] = {}
        self._marks: dict[str, int] = {}
        self._seen_marks: dict[tuple[str, int], int] = {}
        """By producer and life: the newest call of its client that it knows of."""
        self.marks_may_be_lost = False
        """Somebody who knows no marks takes entries out of the queue."""
        server.witnesses.append(self)

    # What happens to the store

    def changed(self, caller: Process, location: str, before: bytes | None, after: bytes | None) -> None:
        if location == self._manifest_path:
            self._manifest_changed(caller, after)
        elif batch_ulid(location):
            self._batch_changed(caller, location, before, after)

    def _batch_changed(self, caller: Process, location: str, before: bytes | None, after: bytes | None) -> None:
        if after is not None:
            if before is not None and before != after:
                self._violate(f"{caller.name} wrote other content over {location}")
            return
        self._deleted.add(location)
        sequence = self._sequence_of.get(location)
        if sequence is not None and sequence >= self.first_sequence:
            if sequence in self._landed_late:
                self._holes.add(sequence)
                return
            self._violate(f"{caller.name} deleted {location}, which is in the queue as {sequence}")

    def _manifest_changed(self, caller: Process, data: bytes | None) -> None:
        if data is None:
            self._violate(f"{caller.name} deleted the manifest")
            return
        old, new = self._manifest, Manifest.from_bytes(data)
        old_entries, entries = self._entries, list(new)
        removed = new.first_sequence - old.first_sequence
        kept = old_entries[removed:] if removed >= 0 else old_entries
        if removed < 0 or entries[: len(kept)] != kept:
            self._violate(f"{caller.name} rewrote the queue: from {old} {old_entries} to {new} {entries}")
            return
        self._manifest, self._entries, self.first_sequence = new, entries, new.first_sequence
        if new.epoch != old.epoch:
            if new.epoch != old.epoch + 1:
                self._violate(f"{caller.name} wrote epoch {new.epoch} over {old.epoch}")
            self._owners[new.epoch], self._first_before[new.epoch] = caller, old.first_sequence
        elif removed:
            self._check_dequeuer(caller, new.epoch)
        for entry in old_entries[:removed]:
            for rule in self.may_dequeue:
                why = rule(self.history[entry.sequence])
                if why:
                    self._violate(f"{caller.name} dequeued {entry.sequence}, but {why}")
        for entry in entries[len(kept) :]:
            self._appended(caller, entry)

    def _check_dequeuer(self, caller: Process, epoch: int) -> None:
        owner = self._owners.get(epoch)
        if owner is not caller:
            self._violate(f"{caller.name} dequeued under epoch {epoch}, which belongs to {owner}")

    def _appended(self, caller: Process, entry: BatchDescriptor) -> None:
        if entry.sequence != len(self.history):
            self._violate(f"{caller.name} appended {entry.sequence}, but {len(self.history)} comes next")
        earlier = self._sequence_of.get(entry.location)
        if earlier is not None:
            self._violate(f"{caller.name} appended {entry.location} as {entry.sequence}; it is {earlier} already")
        if self._is_late(entry.location):
            self._landed_late.add(entry.sequence)
            self._counts["appends a day late"] += 1
        data = self._server.objects.get(entry.location)
        if data is None and entry.sequence in self._landed_late and entry.location in self._deleted:
            self._counts["holes"] += 1
            self._holes.add(entry.sequence)
            self._sequence_of[entry.location] = entry.sequence
            self.history.append(Appended(entry.sequence, entry.location, ()))
            return
        if data is None:
            self._violate(f"{caller.name} appended {entry.location} as {entry.sequence}, but there is no such object")
            return
        records = tuple(self._record(entry) for entry in decode_batch(data))
        self._sequence_of[entry.location] = entry.sequence
        if not caller.alive:
            self._counts["appends of the dead"] += 1
        self.history.append(Appended(entry.sequence, entry.location, records))
        self._check_mark(caller, entry, records)
        for record in records:
            self._record_landed(record, entry.sequence)

    def _record(self, entry: bytes) -> Record:
        return Record.from_bytes(entry)

    def _check_mark(self, caller: Process, entry: BatchDescriptor, records: tuple[Record, ...]) -> None:
        mark = mark_of(entry.metadata)
        if mark is None:
            return
        client_id, client_seq = mark
        client_seqs = [record.call for record in records]
        before = self._marks.get(client_id, -1)
        if client_seq != max(client_seqs):
            self._violate(f"{caller.name} marked {entry.sequence} with {client_seq}, but its calls are {client_seqs}")
        if min(client_seqs) <= before:
            self._violate(f"{caller.name} appended the calls {client_seqs} of {client_id!r}, which is at {before}")
        life = (records[0].producer, records[0].life)
        if self._seen_marks.get(life, before) != before:
            self._violate(
                f"{caller.name} went on with the calls {client_seqs} of {client_id!r} behind a twin's call {before}: "
                f"it knew of {self._seen_marks[life]} only"
            )
        self._marks[client_id] = self._seen_marks[life] = max(client_seq, before)

    def _is_late(self, location: str) -> bool:
        """Whether its name is so old that a collector may have taken it for an orphan on a quiet queue."""
        ulid = batch_ulid(location)
        age_s = self._scheduler.now_s + (START_MS - ulid_time_ms(ulid)) / 1000 if ulid else 0.0
        return age_s > LATE_FROM_S

    def is_hole(self, sequence: int) -> bool:
        return sequence in self._holes

    def _record_landed(self, record: Record, sequence: int) -> None:
        earlier = self._landed.setdefault((record.producer, record.key), record)
        if earlier is not record:
            self._violate(f"{record} came as {sequence}, but is in the queue already: {earlier}")
        if record in self._denied:
            self._violate(f"{record} came as {sequence} after its producer was told that it would not")
        life = (record.producer, record.life)
        if record.call < self._last_call.get(life, 0):
            self._violate(f"{record} came as {sequence}, behind call {self._last_call[life]} of the same producer")
        self._last_call[life] = record.call

    # What actors were told

    def claimed(self, process: Process, epoch: int) -> None:
        """A consumer believes that it owns this epoch."""
        if self._owners.get(epoch) is not process:
            owner = self._owners.get(epoch)
            self._violate(f"{process.name} believes to own epoch {epoch}, which belongs to {owner}")

    def first_before(self, epoch: int) -> int:
        """The first sequence in the queue when this epoch was claimed, before the claim itself dequeued any."""
        return self._first_before[epoch]

    def opened(self, producer: str, life: int, durable_seq: int) -> None:
        """A producer with a client id was told how far the client is."""
        self._seen_marks[producer, life] = durable_seq

    def said_durable(self, records: Iterable[Record], sequence: int, location: str) -> None:
        appended = self.history[sequence] if sequence < len(self.history) else None
        hole = sequence in self._holes
        if hole or appended is None or appended.location != location or not set(records) <= set(appended.records):
            self._violate(f"{location} was said to be durable as {sequence}, but there is {appended}")
        self._durable.update((record.producer, record.key) for record in records)

    def said_absent(self, records: Iterable[Record], error: Exception) -> None:
        """An error claimed that these are not in the queue and will not be."""
        for record in records:
            if self._landed.get((record.producer, record.key)) == record:
                self._violate(f"{record} is in the queue, but its producer got {type(error).__name__}: {error}")
            self._denied.add(record)

    def said_present(self, records: Iterable[Record], why: object) -> None:
        """Somebody was told that these were in the queue before."""
        for record in records:
            if (record.producer, record.key) not in self._landed:
                self._violate(f"{record} is not in the queue, but its producer was told so: {why}")

    def said_marks_lost(self, error: Exception) -> None:
        if not self.marks_may_be_lost:
            self._violate(f"no mark was lost, but a producer ended with {type(error).__name__}: {error}")
        self._counts["marks lost"] += 1

    def handed_out(self, process: Process, sequence: int, location: str, entries: list[bytes]) -> None:
        """A consumer was given a batch."""
        appended = self.history[sequence] if sequence < len(self.history) else None
        if appended is None or appended.location != location:
            self._violate(f"{process.name} was given {location} as {sequence}, but there is {appended}")
        elif [record.to_bytes() for record in appended.records] != entries:
            self._violate(f"{process.name} was given other entries of {sequence} than were produced: {entries}")

    def owns(self, process: Process) -> bool:
        """Whether the newest claim is this process's."""
        return self._owners.get(self._manifest.epoch) is process

    # The end

    @property
    def is_drained(self) -> bool:
        return self.first_sequence == len(self.history)

    def check_landed(self, producer: str, keys: Iterable[int]) -> None:
        for key in keys:
            if (producer, key) not in self._landed:
                self._violate(f"record {key} of {producer} never came")

    def check_end(self) -> None:
        """What was said to be durable is in the history; more than that each step has checked."""
        for key in sorted(self._durable - self._landed.keys()):
            self._violate(f"record {key[1]} of {key[0]} was durable and is gone")
