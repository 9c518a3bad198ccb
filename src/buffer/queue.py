"""The manifest over compare-and-swap: producers append groups of locations, one consumer claims and dequeues.

**An append attempt** is (version read, expected sequence E, exact group of locations). When its outcome is not
`Won`, `decide` looks at the newest manifest:

    a location of ours stands at its slot     LANDED       the whole group did: one write carried it
    another location stands there, or the     DEAD         its version can never match again; only now may
    queue ends short of the group, at                      batches join the group or get new names
    another version
    the version is still the one read         PENDING      it may land later: repeat the very same bytes
    all slots were dequeued                   UNDECIDABLE  AppendOutcomeUnknown

- Process dies after the write: the group is in the queue, no handle said so. Before it: nothing happened.
- Reply lost: `decide` finds out. An older process wakes up: its version is stale, the store refuses it.

**A claim whose reply was lost is never trusted**, even if the epoch read back is the number we wrote: another
consumer may have written the same one. Claim again; the loop in `CasObject.update` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from math import inf

from buffer.cas import CasObject, Snapshot, unobserved
from buffer.clock import Clock
from buffer.errors import (
    AppendOutcomeUnknown,
    CorruptManifest,
    Fenced,
    InvalidInput,
    ManifestLost,
    ObjectNotFound,
    QueueBehindConsumer,
    StorageError,
)
from buffer.ledger import Ledger, ledger_path
from buffer.manifest import Manifest, NewEntry
from buffer.model import BatchDescriptor
from buffer.store.base import CanSwap, Outcome, Unknown, Version, Won


@dataclass(frozen=True, slots=True)
class AppendGroup:
    """Batches that go into the queue in one write, in this order."""

    entries: Sequence[NewEntry]
    valid_until_s: float = inf
    """Monotonic time after which no write may name these locations: a collector could have taken them."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One append that was sent, or is about to be."""

    seen: Snapshot
    expected_sequence: int
    locations: tuple[str, ...]
    result: Manifest
    """What stands if this attempt wins."""
    valid_until_s: float = inf

    @property
    def sequences(self) -> range:
        return range(self.expected_sequence, self.expected_sequence + len(self.locations))


class Verdict(Enum):
    LANDED = "landed"
    DEAD = "dead"
    PENDING = "pending"
    UNDECIDABLE = "undecidable"


def decide(attempt: Attempt, version: Version | None, manifest: Manifest) -> Verdict:
    """What became of an attempt, given a manifest read after it was sent."""
    if version == attempt.seen.version:
        return Verdict.PENDING
    slots = attempt.sequences
    if manifest.next_sequence < slots.stop:
        return Verdict.DEAD
    visible = max(slots.start, manifest.first_sequence)
    if visible >= slots.stop:
        return Verdict.UNDECIDABLE
    entry = manifest.read(visible)
    assert entry is not None, "first_sequence <= visible < slots.stop <= next_sequence"
    ours = entry.location == attempt.locations[visible - slots.start]
    return Verdict.LANDED if ours else Verdict.DEAD


class _Queue:
    """Reading the manifest, with a memory: it never silently starts over."""

    def __init__(
        self,
        store: CanSwap,
        manifest_path: str,
        clock: Clock,
        *,
        timeout_s: float = 60.0,
        observe: Callable[[Outcome], None] = unobserved,
    ) -> None:
        self.manifest_path = manifest_path
        self._store = store
        self._clock = clock
        self._cas = CasObject(store, manifest_path, clock, timeout_s=timeout_s, observe=observe)
        self._known: tuple[Version | None, Manifest] | None = None
        """The newest manifest that was there, read or written. None: there was none so far."""

    def _parse(self, seen: Snapshot) -> Manifest:
        """The manifest of a snapshot. Raises ManifestLost where a queue would start over or run backwards."""
        if seen.data is None:
            self._check_may_be_missing()
            return Manifest.empty()
        known = self._known
        if known and known[0] == seen.version:
            return known[1]
        with self._located():
            manifest = Manifest.from_bytes(seen.data)
        if known:
            self._check_went_on(known[1], manifest)
            manifest = manifest.following(known[1])
        self._known = (seen.version, manifest)
        return manifest

    @contextmanager
    def _located(self) -> Iterator[None]:
        """Damage found inside is reported with the place of the manifest."""
        try:
            yield
        except CorruptManifest as error:
            raise CorruptManifest(
                f"{self.manifest_path!r}: {error}",
                location=self.manifest_path,
                offset=error.offset,
                version=error.version,
            ) from error

    def _check_may_be_missing(self) -> None:
        if self._known:
            seen_next_sequence = self._known[1].next_sequence
            raise ManifestLost(
                f"the manifest {self.manifest_path!r} was there (next sequence {seen_next_sequence}) and is "
                "gone; restore it, or start a new queue with a manifest_path in another folder",
                location=self.manifest_path,
                seen_next_sequence=seen_next_sequence,
            )
        path = ledger_path(self.manifest_path)
        try:
            ledger = Ledger.from_bytes(self._store.get(path).data, location=path)
        except ObjectNotFound:
            return
        # The ledger was read after the manifest, so a loader may have made both in between. A second look tells;
        # if the manifest is there by now, whatever is written over its absence loses.
        if ledger.was_claimed and not self._is_there():
            raise ManifestLost(
                f"the manifest {self.manifest_path!r} is missing, but its ledger knows {ledger.next_sequence} "
                "sequences; restore the manifest, or start a new queue with a manifest_path in another folder",
                location=self.manifest_path,
                seen_next_sequence=ledger.next_sequence,
            )

    def _is_there(self) -> bool:
        try:
            self._store.get(self.manifest_path)
        except ObjectNotFound:
            return False
        return True

    def _check_went_on(self, earlier: Manifest, manifest: Manifest) -> None:
        if manifest.next_sequence < earlier.next_sequence or manifest.first_sequence < earlier.first_sequence:
            raise ManifestLost(
                f"the manifest {self.manifest_path!r} went back: its first and next sequence were "
                f"{earlier.first_sequence} and {earlier.next_sequence}, now {manifest.first_sequence} and "
                f"{manifest.next_sequence}. It was restored or replaced, and sequences would be used twice: stop "
                "all writers and decide which state is right",
                location=self.manifest_path,
                next_sequence=manifest.next_sequence,
                seen_next_sequence=earlier.next_sequence,
            )


class QueueProducer(_Queue):
    """Appends batch locations. One owner at a time; many producers may append to one manifest."""

    def append(self, draw: Callable[[], AppendGroup]) -> range:
        """Append the group that `draw` gives, in one write; returns its sequences.

        `draw` is asked once at first and again each time an attempt is surely dead: every group it returns
        must hold what the one before held, perhaps renamed, and may hold more. Its errors end the call with
        nothing in flight. Raises ContentionError (nothing was appended: call again), AppendOutcomeUnknown
        (nobody can tell), the store's error if nothing was sent, or ManifestLost or CorruptManifest: what became
        of a write in flight then is for whoever mends the manifest to find out.
        """
        attempt: Attempt | None = None
        trouble: Exception | None = None
        tried = 0
        for index in self._cas.attempts():
            tried = index + 1
            try:
                seen = self._cas.read()
                manifest = self._parse(seen)
            except StorageError as error:
                if error.retryable:
                    trouble = error
                    continue
                if attempt:
                    raise self._ambiguous(attempt) from error
                raise
            if attempt:
                verdict = self._decide(attempt, seen, manifest)
                if verdict is Verdict.LANDED:
                    return attempt.sequences
                if verdict is Verdict.UNDECIDABLE or (verdict is Verdict.PENDING and self._is_stale(attempt)):
                    raise self._ambiguous(attempt) from trouble
                if verdict is Verdict.DEAD:
                    attempt = None
            is_repeat = attempt is not None
            attempt = attempt or self._prepare(seen, manifest, draw())
            outcome = self._send(attempt, is_repeat)
            if isinstance(outcome, Won):
                return attempt.sequences
            trouble = outcome.cause if isinstance(outcome, Unknown) else None
        return self._give_up(attempt, tried, trouble)

    def append_locations(self, entries: Sequence[NewEntry]) -> range:
        """Append this very group. Repeating the call after an error that says so is safe; see `append`."""
        return self.append(lambda: AppendGroup(entries))

    def _prepare(self, seen: Snapshot, manifest: Manifest, group: AppendGroup) -> Attempt:
        if not group.entries:
            raise InvalidInput("an append needs at least one location")
        return Attempt(
            seen=seen,
            expected_sequence=manifest.next_sequence,
            locations=tuple(location for location, _ in group.entries),
            result=manifest.append_all(group.entries),
            valid_until_s=group.valid_until_s,
        )

    def _send(self, attempt: Attempt, is_repeat: bool) -> Outcome:
        try:
            outcome = self._cas.write(attempt.seen, attempt.result.to_bytes())
        except StorageError as error:  # this write was refused, but an earlier one may still land
            if is_repeat:
                raise self._ambiguous(attempt) from error
            raise
        if isinstance(outcome, Won):  # remembered, or its loss before the next look would go unnoticed
            self._known = (outcome.version, attempt.result)
        return outcome

    def _decide(self, attempt: Attempt, seen: Snapshot, manifest: Manifest) -> Verdict:
        with self._located():
            return decide(attempt, seen.version, manifest)

    def _is_stale(self, attempt: Attempt) -> bool:
        return self._clock.monotonic_s() > attempt.valid_until_s

    def _give_up(self, attempt: Attempt | None, tried: int, trouble: Exception | None) -> range:
        """Attempts or time are up: one last look decides whether calling again is safe."""
        if attempt is None:
            raise trouble or self._cas.contention(tried)
        try:
            seen = self._cas.read()
            verdict = self._decide(attempt, seen, self._parse(seen))
        except StorageError as error:
            raise self._ambiguous(attempt) from error
        if verdict is Verdict.LANDED:
            return attempt.sequences
        if verdict is Verdict.DEAD:
            raise self._cas.contention(tried) from trouble
        raise self._ambiguous(attempt) from trouble

    def _ambiguous(self, attempt: Attempt) -> AppendOutcomeUnknown:
        return AppendOutcomeUnknown(
            f"{len(attempt.locations)} batches from {attempt.locations[0]!r} on may or may not be in "
            f"{self.manifest_path!r} at sequence {attempt.expected_sequence}; look for them there or in the "
            "table before producing them again",
            location=self.manifest_path,
            locations=attempt.locations,
            expected_sequence=attempt.expected_sequence,
        )


class QueueConsumer(_Queue):
    """Reads and dequeues under a claimed epoch. Every call but `claim` raises Fenced once another claimed."""

    epoch: int | None = None

    def claim(self, last_acked: int | None = None) -> Manifest:
        """Take the next epoch and dequeue through `last_acked`, in one write. Returns the manifest written.

        Raises QueueBehindConsumer before anything is claimed. On any error nothing is owned: call again.
        """

        def change(seen: Snapshot) -> bytes:
            manifest = self._parse(seen)
            if last_acked is not None:
                self._check_holds(manifest, last_acked)
                with self._located():
                    manifest = manifest.dequeue(last_acked)
            return manifest.claim().to_bytes()

        self.epoch = None
        claimed = self._parse(self._cas.update(change))
        self.epoch = claimed.epoch
        return claimed

    def read(self) -> Manifest:
        """The newest manifest. Raises Fenced."""
        return self._owned(self._cas.read())

    def peek(self) -> BatchDescriptor | None:
        """The oldest entry. Raises Fenced."""
        manifest = self.read()
        with self._located():
            return next(iter(manifest), None)

    def dequeue(self, through: int, location: str | None = None) -> Manifest:
        """Remove the entries up to and including `through`. Raises Fenced, QueueBehindConsumer, and ManifestLost if
        that entry has not the `location` given.

        On a storage error or ContentionError they may be gone or still there: call again, it is idempotent.
        """

        def change(seen: Snapshot) -> bytes | None:
            manifest = self._owned(seen)
            self._check_holds(manifest, through)
            if through < manifest.first_sequence:
                return None
            with self._located():
                found = manifest.read(through) if location is not None else None
                if found is not None and found.location != location:
                    raise self._replaced(through, location, found.location, manifest)
                return manifest.dequeue(through).to_bytes()

        return self._owned(self._cas.update(change))

    def _owned(self, seen: Snapshot) -> Manifest:
        manifest = self._parse(seen)
        if self.epoch is None or manifest.epoch != self.epoch:
            raise Fenced(
                f"this consumer holds epoch {self.epoch}, the queue is at {manifest.epoch}: another consumer "
                "took over. Stop; a restart would fence that one in turn",
                epoch=self.epoch,
                current_epoch=manifest.epoch,
            )
        return manifest

    def _replaced(self, sequence: int, location: str | None, found: str, manifest: Manifest) -> ManifestLost:
        return ManifestLost(
            f"sequence {sequence} of {self.manifest_path!r} was {location!r} when it was handed out, now it is "
            f"{found!r}: the manifest was restored from a backup or replaced. Put the newest one back, or start a new "
            "queue with a manifest_path in another folder",
            location=self.manifest_path,
            next_sequence=manifest.next_sequence,
        )

    def _check_holds(self, manifest: Manifest, sequence: int) -> None:
        if sequence >= manifest.next_sequence:
            raise QueueBehindConsumer(
                f"sequence {sequence} was acked, but {self.manifest_path!r} has only ever held sequences below "
                f"{manifest.next_sequence}: it is another queue, or was restored from a backup",
                location=self.manifest_path,
                last_acked=sequence,
                next_sequence=manifest.next_sequence,
            )
