"""The manifest over compare-and-swap: producers append groups of locations, one consumer claims and dequeues.

**An append attempt** whose outcome is not `Won` is looked for in the newest manifest: see `attempts.py`.

With a `Guard`, which knows how far the producer's client is in the queue, nothing is undecidable: it tells whether
what was dequeued was ours. And it is asked before every new attempt, on the very manifest that the attempt replaces,
so no call gets into the queue that is there already.

- Process dies after the write: the group is in the queue, no handle said so. Before it: nothing happened.
- Reply lost: `decide` finds out. An older process wakes up: its version is stale, the store refuses it.

**A claim whose reply was lost is never trusted**, even if the epoch read back is the number we wrote: another
consumer may have written the same one. Claim again; the loop in `CasObject.update` does.

**Entries leave in one place**, `QueueConsumer._without`, whoever dequeues and why. What must be kept of them is kept
before: every keeper is called with the very entries that the write to come removes, before each attempt of it.
- Process dies between the keeping and the write: what was kept is of entries that are still in the queue, and is kept
  again when they leave. So a keeper must be idempotent, and what it keeps must not matter while they are there.
- The write loses: the keepers are called again, with the entries of the manifest that is replaced then.
- A keeper fails: its error ends the call, and nothing has left.
- An older process wakes up: its keepers may run once more, its write is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from buffer import metrics
from buffer.attempts import AppendGroup, Attempt, Guard, Verdict, decide
from buffer.cas import CAS_BACKOFF, CasObject, Snapshot, unobserved
from buffer.clock import Clock
from buffer.errors import (
    AppendOutcomeUnknown,
    InvalidInput,
    ManifestLost,
    ObjectNotFound,
    QueueBehindConsumer,
    StorageError,
)
from buffer.fenced import FencedObject
from buffer.leaving import Keeper, Leaving
from buffer.ledger.clients import known_sequences as known_to_clients
from buffer.ledger.leases import known_sequences as known_to_leases
from buffer.ledger.plan import Ledger
from buffer.manifest import Manifest, NewEntry
from buffer.model import BatchDescriptor
from buffer.names import ledger_path
from buffer.store.base import CanSwap, Outcome, Unknown, Version, Won


def manifest_observer(role: Literal["producer", "consumer"]) -> Callable[[Outcome], None]:
    """What `QueueProducer` and `QueueConsumer` take as `observe`: counts how their writes of the manifest end."""
    attributes = {"role": role}

    def observe(outcome: Outcome) -> None:
        instrument = metrics.manifest_writes if isinstance(outcome, Won) else metrics.manifest_conflicts
        instrument.add(1, attributes)

    return observe


class _Queue:
    """Reading the manifest, with a memory: it never silently starts over."""

    def __init__(
        self,
        store: CanSwap,
        manifest_path: str,
        clock: Clock,
        *,
        timeout_s: float = CAS_BACKOFF.timeout_s,
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
        manifest = Manifest.from_bytes(seen.data, location=self.manifest_path)
        if known:
            self._check_went_on(known[1], manifest)
            manifest = manifest.following(known[1])
        self._known = (seen.version, manifest)
        return manifest

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
        known = max(ledger.next_sequence, known_to_clients(ledger), known_to_leases(ledger))
        if (ledger.was_claimed or known) and not self._is_there():
            raise ManifestLost(
                f"the manifest {self.manifest_path!r} is missing, but its ledger knows {known} "
                "sequences; restore the manifest, or start a new queue with a manifest_path in another folder",
                location=self.manifest_path,
                seen_next_sequence=known,
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

    guard: Guard | None = None

    def read(self) -> Manifest:
        """The newest manifest; an empty one where there is none yet."""
        return self._parse(self._cas.read())

    @property
    def seen(self) -> Manifest | None:
        """The manifest as it was when last read or written."""
        return self._known[1] if self._known else None

    def append(self, draw: Callable[[], AppendGroup]) -> range:
        """Append the group that `draw` gives, in one write; returns its sequences.

        `draw` is asked once at first and again each time an attempt is surely dead, or its names are too old before
        one was made: every group it returns must hold what the one before held, perhaps renamed, and may hold more.
        Its errors end the call with nothing in flight. Raises ContentionError (nothing was appended: call again),
        AppendOutcomeUnknown (nobody can tell), the store's error if nothing was sent, what the guard raises, or
        ManifestLost or CorruptManifest: what became of a write in flight then is for whoever fixes that to find out.
        """
        attempt: Attempt | None = None
        group: AppendGroup | None = None
        trouble: Exception | None = None
        tried = 0
        for index in self._cas.attempts():
            tried = index + 1
            try:
                seen = self._cas.read()
                manifest = self._parse(seen)
                verdict = self._decide(attempt, seen, manifest) if attempt else None
            except StorageError as error:
                if error.retryable:
                    trouble = error
                    continue
                if attempt:
                    raise self._ambiguous(attempt) from error
                raise
            if attempt:
                if verdict is Verdict.LANDED:
                    return self._landed(attempt)
                if verdict is Verdict.UNDECIDABLE or (verdict is Verdict.PENDING and self._is_stale(attempt)):
                    raise self._ambiguous(attempt) from trouble
                if verdict is Verdict.DEAD:
                    attempt = None
            is_repeat = attempt is not None
            if attempt is None:
                group = draw() if group is None or self._is_stale(group) else group
                try:
                    attempt = self._prepare(seen, manifest, group)
                except StorageError as error:  # the guard's, which reads: with pauses between, as for the manifest
                    if not error.retryable:
                        raise
                    trouble = error
                    continue
                group = None
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
        if self.guard:
            self.guard.check(manifest, group)
        return Attempt(
            seen=seen,
            expected_sequence=manifest.next_sequence,
            locations=tuple(location for location, _ in group.entries),
            result=manifest.append_all(group.entries),
            valid_until_s=group.valid_until_s,
            client_seqs=group.client_seqs,
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
            self._landed(attempt)
        return outcome

    def _landed(self, attempt: Attempt) -> range:
        if self.guard:
            self.guard.won(attempt)
        return attempt.sequences

    def _decide(self, attempt: Attempt, seen: Snapshot, manifest: Manifest) -> Verdict:
        verdict = decide(attempt, seen.version, manifest)
        if verdict is Verdict.UNDECIDABLE and self.guard:
            return self.guard.decide(manifest, attempt)
        return verdict

    def _is_stale(self, named: Attempt | AppendGroup) -> bool:
        return self._clock.monotonic_s() > named.valid_until_s

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
            return self._landed(attempt)
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

    def __init__(
        self,
        store: CanSwap,
        manifest_path: str,
        clock: Clock,
        *,
        keepers: Sequence[Keeper] = (),
        timeout_s: float = CAS_BACKOFF.timeout_s,
        observe: Callable[[Outcome], None] = unobserved,
    ) -> None:
        super().__init__(store, manifest_path, clock, timeout_s=timeout_s, observe=observe)
        self._keepers = tuple(keepers)
        self._object: FencedObject[Manifest, Manifest] = FencedObject(
            self._cas,
            parse=self._parse,
            require=lambda manifest: manifest,
            went_back=self._went_back,
            who="consumer",
            what="queue",
        )

    def claim(self, last_acked: int | None = None) -> Manifest:
        """Take the next epoch and dequeue through `last_acked`, in one write. Returns the manifest written.

        Raises QueueBehindConsumer before anything is claimed. On any error nothing is owned: call again.
        """

        def claimed(manifest: Manifest, _sent: bool) -> Manifest:
            if last_acked is not None:
                self._check_holds(manifest, last_acked)
                manifest = self._without(manifest, last_acked)
            return manifest.claim()

        self.epoch = None
        manifest = self._object.update(claimed).after
        self.epoch = manifest.epoch
        return manifest

    def look(self) -> Manifest:
        """The newest manifest, whoever owns it."""
        return self._object.read()

    def read(self) -> Manifest:
        """The newest manifest. Raises Fenced."""
        return self._object.read_owned(self.epoch)

    def peek(self) -> BatchDescriptor | None:
        """The oldest entry. Raises Fenced."""
        return next(iter(self.read()), None)

    def dequeue(self, through: int, location: str | None = None, *, at: int | None = None) -> Manifest:
        """Remove the entries up to and including `through`. Raises Fenced, QueueBehindConsumer, and ManifestLost if
        that entry, or the one `at` a sequence before it, has not the `location` given.

        On a storage error or ContentionError they may be gone or still there: call again, it is idempotent.
        """

        def shorter(manifest: Manifest, _sent: bool) -> Manifest:
            self._check_holds(manifest, through)
            if location is not None:
                self._check_same(manifest, through if at is None else at, location)
            return self._without(manifest, through)

        # From memory, if nobody else wrote: the owner alone dequeues, so what it saw last is where it goes on.
        return self._object.owned(self._object.update_owned(self.epoch, shorter, optimistic=True).after, self.epoch)

    def _without(self, manifest: Manifest, through: int) -> Manifest:
        """The manifest without the entries up to `through`, once what must be kept of them is kept.

        The very same manifest if they are gone already.
        """
        if through < manifest.first_sequence:
            return manifest
        for keep in self._keepers:
            keep(Leaving(manifest, through))
        return manifest.dequeue(through)

    def _check_same(self, manifest: Manifest, sequence: int, location: str) -> None:
        found = manifest.read(sequence)
        if found is not None and found.location != location:
            raise self._replaced(sequence, location, found.location, manifest)

    def _replaced(self, sequence: int, location: str, found: str, manifest: Manifest) -> ManifestLost:
        return ManifestLost(
            f"sequence {sequence} of {self.manifest_path!r} was {location!r} when it was handed out, now it is "
            f"{found!r}: the manifest was restored from a backup or replaced. Put the newest one back, or start a new "
            "queue with a manifest_path in another folder",
            location=self.manifest_path,
            next_sequence=manifest.next_sequence,
        )

    def _went_back(self, manifest: Manifest, epoch: int) -> ManifestLost:
        return ManifestLost(
            f"the manifest {self.manifest_path!r} went back: this consumer claimed it with epoch {epoch}, now it is at "
            f"{manifest.epoch}. It was restored from a backup. Put the newest one back, or stop all consumers and "
            "start one again",
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
