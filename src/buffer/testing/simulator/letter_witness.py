"""The part of a lease world's witness that knows of damaged batches and of dead letters. Nothing simulated sees it.

damaged    batches that can never be read any more: other bytes, or no object at all. What the world did is known
           here, so nobody may call a batch unreadable that can be read
parked     each comes into a dead-letter queue once, while the ledger says that it is on its way; with its records,
           or with the bytes that are left, or with the word that it is gone; under its own number and count
home       a redriven batch comes once for each time that it was parked, as it was; what is gone stays away
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from buffer.codec.batch import decode_batch
from buffer.manifest import Manifest
from buffer.model import BatchDescriptor
from buffer.testing.simulator.lease_view import LeaseView
from buffer.testing.simulator.scheduler import Process, Scheduler
from buffer.testing.simulator.store import ObjectServer
from buffer.testing.simulator.witness import Appended, QueueWitness, Record

DEAD_PATH = "dead/manifest"
OTHER_DEAD_PATH = "graves/manifest"
DEAD_PATHS = (DEAD_PATH, OTHER_DEAD_PATH)


class LetterWitness(QueueWitness):
    """Ground truth about what is damaged and what is parked."""

    def __init__(self, scheduler: Scheduler, server: ObjectServer, manifest_path: str) -> None:
        super().__init__(scheduler, server, manifest_path)
        self.section: LeaseView | None = None
        """The ledger as it stands."""
        self.damage: dict[int, str] = {}
        """What is wrong with a batch: `bytes` or `missing`."""
        self.parked: dict[int, set[int]] = {}
        self.copies: set[int] = set()
        """Parked and kept in the queue as well."""
        self.taken: dict[int, Process] = {}
        """Sequences that a plain consumer was given whole."""
        self.is_away: Counter[tuple[str, int]] = Counter()
        """How often a record is in a dead-letter queue, and not home."""
        self._garbage: dict[bytes | None, list[int]] = {}
        """Sequences by the bytes that are left of them."""
        self._garbage_away: Counter[bytes] = Counter()
        self._undamaged: dict[str, bytes] = {}
        self._dead_next = dict.fromkeys(DEAD_PATHS, 0)

    # What the world does to batches

    def damage_batch(self, sequence: int, kind: str) -> None:
        """Nobody did it and nobody is told: the object is just not what it was."""
        location = self.history[sequence].location
        self.damage[sequence] = kind
        self._counts[f"batches damaged: {kind}"] += 1
        self._scheduler.note("*", f"batch {sequence} is damaged: {kind}")
        self._undamaged[location] = self._server.objects[location]
        if kind == "missing":
            del self._server.objects[location]
            return
        garbage = f"what is left of {location}: no batch".encode()
        self._server.objects[location] = garbage
        self._garbage[garbage] = [sequence]

    def said_unreadable(self, process: Process, sequence: int) -> None:
        if sequence not in self.damage:
            self._violate(f"{process.name} was told that {sequence} cannot be read, but it can")
        self._counts["unreadable deliveries"] += 1

    def _batch_changed(self, caller: Process, location: str, before: bytes | None, after: bytes | None) -> None:
        if before in self._garbage and after == self._undamaged.get(location):
            return  # the upload arrives once more, and it is whole again
        super()._batch_changed(caller, location, before, after)

    # What comes home

    def _appended(self, caller: Process, entry: BatchDescriptor) -> None:
        data = self._server.objects.get(entry.location)
        if data not in self._garbage:
            super()._appended(caller, entry)
            return
        assert data is not None
        if not self._garbage_away[data]:
            self._violate(f"{caller.name} brought {entry.location} home as {entry.sequence}; it was not away")
        self._garbage_away[data] -= 1
        source = self.history[self._garbage[data][-1]]
        self._garbage[data].append(entry.sequence)
        self.damage[entry.sequence] = "bytes"
        self._sequence_of[entry.location] = entry.sequence
        self._counts["damaged batches redriven"] += 1
        self.history.append(Appended(entry.sequence, entry.location, source.records))

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

    # The dead-letter queues

    def _dead_changed(self, caller: Process, path: str, manifest: Manifest) -> None:
        for entry in manifest.entries_from(self._dead_next[path]):
            self._dead_next[path] = entry.sequence + 1
            self._letter_came(caller, path, entry)

    def _letter_came(self, caller: Process, path: str, entry: BatchDescriptor) -> None:
        letters = [letter for item in entry.metadata if (letter := _letter(item.payload)) is not None]
        data = decode_batch(self._server.objects[entry.location])
        if not letters or self.section is None:
            self._violate(f"{caller.name} put {data} into {path}, and nothing says where it comes from")
            return
        letter = letters[0]
        home, kind = letter["sequence"], letter["kind"]
        if kind == "entries":
            here = self._parked_entries(caller, home, [Record.from_bytes(item) for item in data])
        else:
            here = self._parked_whole(caller, home, kind, data)
        named = [letter["entries"] for letter in letters]
        if None not in named and here != {i for runs in named for first, last in runs for i in range(first, last + 1)}:
            self._violate(f"{caller.name} parked the entries {here} of {home}, and named them {named}")
        if None in named and len(here) < len(self.history[home].records):
            self._violate(f"{caller.name} parked {home} as if all of it were owed; it is only {here}")
        if home in self.parked:
            self._violate(f"{caller.name} parked {home}, which is in the dead-letter queue already")
        story = self.section.story(home)
        if story.state != "parking" and home not in self.taken:
            self._violate(f"{caller.name} put {home} into {path}, but it is not on its way there: {story}")
        if letter["count"] != story.count and home not in self.taken:
            self._violate(f"{home} was parked with a count of {letter['count']}; it is {story.count}")
        self.parked[home] = here
        if story.then_blocked:
            self.copies.add(home)
        self._counts["batches parked"] += 1

    def _parked_entries(self, caller: Process, home: int, records: list[Record]) -> set[int]:
        if home != self._home_of(records):
            self._violate(f"{caller.name} put {records} into the dead-letter queue, which are in no batch together")
            return set()
        for record in records:
            self.is_away[record.producer, record.key] += 1
        everything = self.history[home].records
        return {everything.index(record) for record in records}

    def _parked_whole(self, caller: Process, home: int, kind: str, data: list[bytes]) -> set[int]:
        """All that is owed is parked by this: there is no telling entries apart any more."""
        if self.damage.get(home) != kind:
            self._violate(f"{caller.name} parked {home} as {kind!r}, but it is {self.damage.get(home, 'fine')}")
        if kind == "bytes":
            (left,) = data
            if home not in self._garbage.get(left, ()):
                self._violate(f"{caller.name} parked {home} with other bytes than are left of it: {left!r}")
            self._garbage_away[left] += 1
        assert self.section is not None
        self._counts[f"batches parked as {kind}"] += 1
        return self.section.story(home).owes(len(self.history[home].records))

    def _home_of(self, records: list[Record]) -> int | None:
        """The newest batch that these records are in."""
        for appended in reversed(self.history):
            if set(records) <= set(appended.records):
                return appended.sequence
        return None


def _letter(payload: bytes) -> dict[str, Any] | None:
    try:
        letter = json.loads(payload)
    except ValueError:
        return None
    return letter if isinstance(letter, dict) and "dead_letter" in letter else None
