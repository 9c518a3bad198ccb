"""Knows what really happened to a queue of the older format, and what must never happen.

appended     no location and no record twice; the object is there; not after its Ingestor was told that it is not
removed      from pending only what is done; from done only what is not pending any more
claimed      never what is done, as long as it is pending; taken over only when stale
delivered    to the process whose claim landed, with the pairs that were ingested
done         by the owner of the claim alone, and whoever is told so, or told otherwise, is told the truth
deleted      no batch that is not done
moved        into the new queue, each pair once and in the order of the old one, before the batch is done; what was
             moved is done by the migration and by nobody else
in the end   everything is done, or, if nobody can read it, parked
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from buffer.codec.keyvalue import decode_pair
from buffer.legacy.format import (
    ConsumerManifest,
    KeyValueEntry,
    consumer_manifest_path,
    decode_batch,
    decode_consumer_manifest,
    decode_producer_manifest,
    moves_path,
    parked_path,
)
from buffer.legacy.manifests import MOVING_MS, PARKED_MS
from buffer.legacy.moves import decode_moves
from buffer.legacy.parked import decode_parked
from buffer.marks import mark_of
from buffer.model import BatchDescriptor
from buffer.testing.simulator.scheduler import Process, Scheduler
from buffer.testing.simulator.store import ObjectServer
from buffer.testing.simulator.witness import QueueWitness, Record

LEGACY_PREFIX = "legacy"
LEGACY_PATH = "legacy/manifest.json"
CONSUMER_PATH = consumer_manifest_path(LEGACY_PATH)
PARKED_PATH = parked_path(LEGACY_PATH)
MOVES_PATH = moves_path(LEGACY_PATH)


@dataclass(frozen=True, slots=True)
class Tenure:
    """One claim, from when it landed until it is acked or taken over; heartbeats do not end it."""

    process: Process
    first_ms: int


class MovedWitness(QueueWitness):
    """The new queue: its entries are pairs, and their numbers are the migration's."""

    def _record(self, entry: bytes) -> Record:
        return Record.from_bytes(decode_pair(entry)[1])

    def _check_mark(self, caller: Process, entry: BatchDescriptor, _records: tuple[Record, ...]) -> None:
        mark = mark_of(entry.metadata)
        if mark is None:
            self._violate(f"{caller.name} appended {entry.location} without a mark")
        elif mark[1] <= self._marks.get(mark[0], -1):
            self._violate(f"{caller.name} appended {mark}, but is at {self._marks[mark[0]]}")
        else:
            self._marks[mark[0]] = mark[1]

    def moved(self) -> set[tuple[str, int]]:
        return set(self._landed)

    def in_order(self) -> list[tuple[str, int]]:
        return [(record.producer, record.key) for batch in self.history for record in batch.records]


class LegacyWitness:
    """Ground truth about one queue of the older format."""

    def __init__(
        self,
        scheduler: Scheduler,
        server: ObjectServer,
        *,
        timeout_ms: int,
        read_tries: int,
        moved: MovedWitness | None = None,
    ) -> None:
        """`moved` watches the queue that this one is migrated to, if it is."""
        self._violate = scheduler.violate
        self._counts = scheduler.counts
        self._server = server
        self._timeout_ms = timeout_ms
        self._read_tries = read_tries
        self._moved = moved
        self._pending: tuple[str, ...] = ()
        self._consumer = ConsumerManifest()
        self._batches: dict[str, list[KeyValueEntry] | None] = {}
        """Every batch ever appended; None for those that nobody can read."""
        self._tenures: dict[str, Tenure] = {}
        """The newest claim of each location."""
        self._ever_held: defaultdict[str, set[Tenure]] = defaultdict(set)
        self._done_by: dict[str, Tenure] = {}
        self._numbered: set[str] = set()
        """What ever had numbers in the new queue."""
        self._landed: dict[tuple[str, int], Record] = {}
        self._denied: set[Record] = set()
        self._durable: set[tuple[str, int]] = set()
        server.witnesses.append(self)

    def plant(self, location: str, data: bytes | None) -> None:
        """Before the run: somebody has appended a batch that nobody can read, or that is not there at all."""
        if data is not None:
            self._server.objects[location] = data
        self._batches[location] = None
        self._pending = (*self._pending, location)

    # What happens to the store

    def changed(self, caller: Process, location: str, before: bytes | None, after: bytes | None) -> None:
        if location == LEGACY_PATH:
            self._producer_changed(caller, after)
        elif location == CONSUMER_PATH:
            self._consumer_changed(caller, after)
        elif location == PARKED_PATH:
            self._parked_changed(caller, after)
        elif location == MOVES_PATH:
            self._moves_changed(caller, before, after)
        elif not location.startswith(f"{LEGACY_PREFIX}/"):
            return
        elif after is None and location not in self._done_by:
            self._violate(f"{caller.name} deleted {location}, which is not done")
        elif after is not None and before not in (None, after):
            self._violate(f"{caller.name} wrote other content over {location}")

    def _producer_changed(self, caller: Process, data: bytes | None) -> None:
        if data is None:
            self._violate(f"{caller.name} deleted the producer manifest")
            return
        old, self._pending = self._pending, decode_producer_manifest(data).pending
        for location in set(old) - set(self._pending):
            if location not in self._done_by:
                self._violate(f"{caller.name} removed {location} from pending, which is not done: it is lost")
        kept = [location for location in old if location in self._pending]
        if list(self._pending[: len(kept)]) != kept:
            self._violate(f"{caller.name} changed the order of pending from {old} to {self._pending}")
        for location in self._pending[len(kept) :]:
            self._appended(caller, location)

    def _appended(self, caller: Process, location: str) -> None:
        if location in self._batches:
            self._violate(f"{caller.name} appended {location}, which was in the queue already")
        data = self._server.objects.get(location)
        if data is None:
            self._violate(f"{caller.name} appended {location}, but there is no such object")
            return
        if not caller.alive:
            self._counts["appends of the dead"] += 1
        self._batches[location] = entries = decode_batch(data)
        for entry in entries:
            record = Record.from_bytes(entry.value)
            if self._landed.setdefault((record.producer, record.key), record) is not record:
                self._violate(f"{record} came in {location}, but is in the queue already")
            if record in self._denied:
                self._violate(f"{record} came in {location} after its Ingestor was told that it would not")

    def _consumer_changed(self, caller: Process, data: bytes | None) -> None:
        if data is None:
            self._violate(f"{caller.name} deleted the consumer manifest")
            return
        old, new = self._consumer, decode_consumer_manifest(data)
        self._consumer = new
        for location in set(old.done) - set(new.done):
            if location in self._pending:
                self._violate(f"{caller.name} forgot that {location} is done, which is still pending")
        for location, ms in new.claimed.items():
            if old.claimed.get(location) != ms:
                self._claimed(caller, location, old.claimed.get(location), ms)
        for location in old.claimed.keys() - new.claimed.keys():
            self._unclaimed(caller, location, is_done=location in new.done and location not in old.done)
        for location in set(new.done) - set(old.done) - old.claimed.keys():
            self._violate(f"{caller.name} acked {location}, which nobody has claimed")

    def _claimed(self, caller: Process, location: str, before: int | None, ms: int) -> None:
        tenure = self._tenures.get(location)
        if location in self._done_by:
            if location in self._pending:
                self._violate(f"{caller.name} claimed {location}, which is done: it is delivered again")
            self._counts["claims that landed after the clean-up"] += 1
        if ms == MOVING_MS:
            self._counts["batches taken to be moved"] += 1
        if before is not None and ms <= before:
            self._violate(f"{caller.name} set the time of {location} back from {before} to {ms}")
        if ms == PARKED_MS and self._batches.get(location) is not None:
            self._violate(f"{caller.name} parked {location}, which can be read")
        is_stale = before is None or ms > before + self._timeout_ms
        is_owner = tenure is not None and (tenure.process is caller or tenure.first_ms == MOVING_MS)
        if not is_stale and not is_owner:
            self._violate(f"{caller.name} wrote {ms} over the claim of {tenure}, {before}, which is not stale")
        if is_stale and ms != PARKED_MS:
            self._counts["claims taken over"] += before is not None
            self._tenures[location] = Tenure(caller, ms)
            self._ever_held[location].add(Tenure(caller, ms))

    def _unclaimed(self, caller: Process, location: str, *, is_done: bool) -> None:
        tenure = self._tenures[location]
        if is_done:
            if tenure.first_ms == MOVING_MS:
                self._check_moved(caller, location)
            elif tenure.process is not caller:
                self._violate(f"{caller.name} acked {location}, which belongs to {tenure}")
            if self._batches.get(location) is None:
                self._violate(f"{caller.name} acked {location}, which nobody can read")
            self._done_by.setdefault(location, tenure)
        elif location in self._pending:
            self._violate(f"{caller.name} dropped the claim of {location}")

    def _check_moved(self, caller: Process, location: str) -> None:
        assert self._moved is not None, "there is a migration"
        landed = self._moved.moved()
        for pair in self._batches.get(location) or ():
            record = Record.from_bytes(pair.value)
            if (record.producer, record.key) not in landed:
                self._violate(f"{caller.name} acked {location}, but {record} is not in the new queue: it is lost")

    def _moves_changed(self, caller: Process, before: bytes | None, after: bytes | None) -> None:
        if after is None:
            self._violate(f"{caller.name} deleted the list of moves")
            return
        new = decode_moves(after, MOVES_PATH)
        old = new if before is None else decode_moves(before, MOVES_PATH)
        for move in set(new.open) - set(old.open):
            if move.location in self._numbered:
                self._violate(f"{caller.name} gave numbers to {move.location}, which has had some: it is moved again")
            self._numbered.add(move.location)
        for move in set(old.open) - set(new.open):
            if move.location not in self._done_by:
                self._violate(f"{caller.name} retired {move.location}, which is not done")

    def _parked_changed(self, caller: Process, data: bytes | None) -> None:
        for location in decode_parked(data, PARKED_PATH).unreadable:
            if self._batches.get(location) is not None:
                done = ": it is done, and delivered again" if location in self._done_by else ""
                self._violate(f"{caller.name} held {location} for unreadable, which can be read{done}")

    # What actors were told

    def said_durable(self, records: Iterable[Record], location: str) -> None:
        for record in records:
            if self._landed.get((record.producer, record.key)) != record:
                self._violate(f"{record} was said to be durable in {location}, but it is not in the queue")
            self._durable.add((record.producer, record.key))

    def said_absent(self, records: Iterable[Record], error: Exception) -> None:
        for record in records:
            if self._landed.get((record.producer, record.key)) == record:
                self._violate(f"{record} is in the queue, but its Ingestor got {type(error).__name__}: {error}")
            self._denied.add(record)

    def delivered(self, process: Process, location: str, claimed_ms: int, entries: list[KeyValueEntry]) -> None:
        if Tenure(process, claimed_ms) not in self._ever_held[location]:
            self._violate(f"{process.name} was given {location} for the claim {claimed_ms}, which belongs to another")
        if self._batches[location] != entries:
            self._violate(f"{process.name} was given other pairs of {location} than were ingested: {entries}")
        self._counts["batches delivered"] += 1

    def told_acked(self, process: Process, location: str, claimed_ms: int) -> None:
        if self._done_by.get(location) != Tenure(process, claimed_ms):
            by = self._done_by.get(location)
            self._violate(f"{process.name} was told that its ack of {location} counts, but that belongs to {by}")

    def told_lost(self, process: Process, location: str, claimed_ms: int) -> None:
        if self._done_by.get(location) == Tenure(process, claimed_ms):
            self._violate(f"{process.name} was told that it lost {location} ({claimed_ms}), but its ack counts")

    # The end

    @property
    def is_drained(self) -> bool:
        return all(
            location in self._done_by if batch is not None else self._consumer.claimed.get(location) == PARKED_MS
            for location, batch in self._batches.items()
        )

    def check_end(self) -> None:
        for producer, key in sorted(self._durable - self._landed.keys()):
            self._violate(f"record {key} of {producer} was durable and is gone")
        named = {*self._pending, *self._consumer.done}
        for location in self._done_by:
            if location not in named and location in self._server.objects:
                self._violate(f"{location} was cleaned up, but its object is still there")
        parked = decode_parked(self._server.objects.get(PARKED_PATH), PARKED_PATH)
        for location, batch in self._batches.items():
            if batch is not None:
                continue
            if location not in self._pending or not parked.is_parked(location):
                self._violate(f"{location} cannot be read and is not parked")
            elif self._moved is not None:
                continue  # the migration parks at once
            elif len(parked.unreadable[location].tries) < self._read_tries:  # a count that lands late may add one
                self._violate(f"{location} was parked after {parked.unreadable[location].tries}")
        if self._moved is not None:
            self._check_moved_in_order(self._moved.in_order())

    def _check_moved_in_order(self, found: list[tuple[str, int]]) -> None:
        by_migration = {where for where, tenure in self._done_by.items() if tenure.first_ms == MOVING_MS}
        expected = []
        for location, pairs in self._batches.items():  # in the order in which they were appended
            records = [Record.from_bytes(pair.value) for pair in pairs or ()]
            if location in by_migration:
                expected += [(record.producer, record.key) for record in records]
        if found != expected:
            self._violate(f"the new queue has {found}, but {expected} were moved, in this order")
        self._counts["pairs moved"] += len(found)
