"""Which batch objects may go, and the collector that deletes them.

Deleting a batch that is still wanted loses data for good, so every rule errs towards keeping. An object is
**deletable** if all of these hold; each line names the loss it prevents:

    a direct child of the prefix, named       another queue's batches below the prefix, or a file of the user's
    `{ULID}.batch`, upper case
    no manifest entry names that ULID         a batch that waits in the queue. The path is not compared: one ULID
                                              is one batch, however a writer spelled its folder
    older than the oldest entry               a batch of a slow producer, on a queue that lags behind. Entries of
                                              another writer (`foreign.py`) do not count: they would hold ours back
    older than the grace period               a batch that was uploaded and whose append is still under way
    the manifest is there                     everything: without one, nothing is referenced
    its next_sequence never went back,        the batches that a restored backup has forgotten: an operator may
    here or in the ledger                     want to append them again
    no other manifest lies in the prefix      the batches of a second queue that was put into the same folder

**The race with producers.** A producer uploads X, then appends it. Between the two X is unreferenced, and an
append that hangs in the network may land much later. Producers check, after reading the manifest and before every
attempt, that X is younger than half the grace period, and else upload it again under a new ULID. So once X is
older than the grace period (on clocks that differ by up to half of it) no new attempt can name it, and an attempt
under way is conditional on a manifest version that was read before our look. Hence **two looks**: X goes only if
the cycle before found it deletable too, and the manifest has changed in between. No version ever comes back, so an
attempt from before the first look can no longer match; and if it landed, X is referenced now. On a manifest that
does not change, nothing but time can tell, so there X must be a day old: no request lives that long, unless its
machine slept. So these go last, and only if the manifest still has not changed right before. Where an append lands in
spite of all that, its producer looks whether X is still there before it says durable (`produce/groups.py`).

**The order of reading**: the clock, then the listing, the ledger, and the manifest last. The age is measured at
the earliest moment, so a slow listing makes no object older. Whatever was listed and then appended is found in the
manifest. The ledger repeats a next_sequence that the manifest reached before, so read first it is never ahead.

A process that dies in a cycle has deleted some of what it would have; the next one finds the rest, after two looks
of its own. A prefix belongs to one manifest: a second one's batches would look like orphans. A second manifest
in the folder is noticed (`_neighbours`), one elsewhere whose batches come here is not. A queue that begins after
the listing is safe all the same: its producers upload nothing that is old enough to go.

The decision itself is pure and stands in `_collection`; here is the collector that looks, asks it and acts.
"""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Protocol, Self

from buffer import metrics
from buffer.clock import Clock, SystemClock
from buffer.config import GcConfig
from buffer.errors import BufferQueueError, Closed, ObjectNotFound, StorageError
from buffer.gc.foreign import old_enough, runs_to_ask
from buffer.gc.neighbours import Neighbours
from buffer.gc.rules import (
    QUIET_GRACE_MS,
    Decision,
    Kept,
    Look,
    Refusal,
    deletable,
)
from buffer.ledger.clients import known_sequences as known_to_clients
from buffer.ledger.leases import known_sequences as known_to_leases
from buffer.ledger.plan import Ledger
from buffer.manifest import Manifest
from buffer.names import (
    ForeignBatch,
    batch_location,
    batch_ulid,
    folder_of,
    foreign_batch,
    foreign_location,
    ledger_path,
)
from buffer.stopping import StopFlag
from buffer.store.base import CanDelete, CanHead, CanList, CanPoll, DeleteFailure, ObjectInfo, Version
from buffer.store.open import open_store

__all__ = [
    "CANDIDATES_MAX",
    "QUIET_GRACE_MS",
    "CollectedStore",
    "Collector",
    "Decision",
    "GcReport",
    "Kept",
    "Look",
    "Refusal",
    "deletable",
]

log = logging.getLogger(__name__)

CANDIDATES_MAX = 100_000  # per cycle, oldest first: memory stays bounded on a prefix never collected before
DELETE_CHUNK = 1000  # S3's limit for one request; `close` is noticed between chunks
CLOSE_WAIT_S = 30.0  # for a request that is under way; the thread is a daemon and ends after it

_SYSTEM_CLOCK = SystemClock()


class CollectedStore(CanPoll, CanHead, CanList, CanDelete, Protocol):
    """What a collector needs of a store."""


@dataclass(frozen=True, slots=True)
class GcReport:
    """What one cycle did; with `dry_run`, what it would have done."""

    now_ms: int
    dry_run: bool
    listed: int = 0
    """Batch objects in the prefix."""
    deleted: tuple[str, ...] = ()
    """Locations that were deleted, or would be."""
    waiting: tuple[str, ...] = ()
    """Locations that are deletable so far and need another look."""
    failed: tuple[DeleteFailure, ...] = ()
    """Deletes that failed; the next cycle tries them again."""
    refusal: Refusal | None = None
    """Why nothing at all was considered for deletion; None in an ordinary cycle."""
    shared: str | None = None
    """With `Refusal.SHARED`: which object makes it so, and the way out."""
    kept: Mapping[Kept, int] = field(default_factory=dict)
    """How many of the rest stay, and why."""


class Collector:
    """Deletes batch objects that no manifest entry needs any more, when told to or on a thread of its own.

    With an `epoch` it belongs to the consumer that claimed it, and stops once another one has claimed the queue.
    """

    def __init__(
        self,
        config: GcConfig,
        *,
        store: CollectedStore | None = None,
        clock: Clock = _SYSTEM_CLOCK,
        epoch: int | None = None,
    ) -> None:
        self.config = config
        self.epoch = epoch
        self._store = store if store is not None else open_store(config.store, **config.store_options)
        self._clock = clock
        self._grace_ms = int(config.gc_grace_s * 1000)
        self._lock = threading.Lock()
        self._previous: Look | None = None
        self._previous_foreign: frozenset[str] = frozenset()
        """What the last look found deletable of another writer's objects."""
        self._known_next_sequence = 0
        self._distrust: str | None = None
        self._neighbours = Neighbours(self._store, config.manifest_path, config.data_path_prefix)
        self._stopped = StopFlag()  # `stop` is a finalizer too, and those run in the middle of anything
        self._thread: threading.Thread | None = None

    # One cycle

    def collect_once(self, now_ms: int | None = None, dry_run: bool = False) -> GcReport:
        """One cycle. Raises StorageError or CorruptData if it could not look; then nothing was deleted.

        With `dry_run` nothing is deleted and the look does not count as one. A delete that fails does not raise:
        it is in the report and is tried again by the next cycle. `now_ms` is for those who keep their own time.
        """
        if self._stopped.is_set():
            raise Closed("this collector was closed; make another one")
        with self._lock:
            started_s = self._clock.monotonic_s()
            report = self._cycle(self._clock.now_ms() if now_ms is None else now_ms, dry_run)
            metrics.gc_duration_seconds.record(self._clock.monotonic_s() - started_s)
            return report

    def _cycle(self, now_ms: int, dry_run: bool) -> GcReport:
        ulids, listed, strangers, foreign = self._list()
        known = max(self._known_next_sequence, self._ledger_next_sequence())
        manifest, version = self._read_manifest()
        decision = deletable(
            ulids,
            manifest,
            version,
            now_ms=now_ms,
            grace_ms=self._grace_ms,
            previous=self._previous,
            known_next_sequence=known,
        )
        refusal = decision.refusal
        if self._distrust:
            refusal = Refusal.WENT_BACK
        elif refusal is None and manifest is not None and self.epoch is not None and manifest.epoch != self.epoch:
            refusal = Refusal.FENCED
        if refusal is not None or manifest is None or version is None:
            return self._refuse(GcReport(now_ms, dry_run, listed, refusal=refusal), manifest, known)
        self._known_next_sequence = manifest.next_sequence
        if shared := self._neighbours.problem(strangers):
            report = GcReport(now_ms, dry_run, listed, refusal=Refusal.SHARED, shared=shared)
            return self._refuse(report, manifest, known)
        report = GcReport(
            now_ms,
            dry_run,
            listed,
            deleted=self._locations(decision.delete),
            waiting=self._locations(decision.wait),
            kept={**decision.kept, Kept.LATER: listed - len(ulids)},
        )
        report = report if dry_run else self._act(report, decision, version)
        return self._collect_foreign(report, foreign, manifest, version) if self.config.gc_foreign else report

    def _collect_foreign(
        self, report: GcReport, listed: Iterable[ForeignBatch], manifest: Manifest, version: Version
    ) -> GcReport:
        """What another writer's objects add to a cycle: see `foreign`."""
        runs = runs_to_ask(listed, manifest, report.now_ms)
        prefix, known = self.config.data_path_prefix, self._previous_foreign
        try:
            found = old_enough(runs, self._store, prefix, report.now_ms, known)
        except StorageError as error:  # ours are gone by now: the report must say so
            log.warning("leaving another writer's batches to the next cycle: could not ask for their age: %s", error)
            return report
        delete = [location for location in found if location in known]
        wait = tuple(location for location in found if location not in known)
        if report.dry_run:
            return replace(report, deleted=(*report.deleted, *delete), waiting=(*report.waiting, *wait))
        if not delete or not self._is_unchanged(version):
            self._previous_foreign = frozenset(found)
            return replace(report, waiting=(*report.waiting, *found))
        failures, untried = self._delete(delete)
        kept = {failure.location for failure in failures}.union(untried)
        self._previous_foreign = frozenset(kept.union(wait))
        gone = tuple(location for location in delete if location not in kept)
        metrics.gc_files_deleted.add(len(gone))
        metrics.gc_files_failed.add(len(failures))
        log.info("deleted %d batches of another writer, %d failed, %d wait", len(gone), len(failures), len(wait))
        return replace(
            report,
            deleted=(*report.deleted, *gone),
            waiting=(*report.waiting, *wait),
            failed=(*report.failed, *failures),
        )

    def _list(self) -> tuple[Sequence[str], int, Sequence[ObjectInfo], Sequence[ForeignBatch]]:
        """The oldest batches, how many there are in all, what else lies beside them, and another writer's below."""
        listed = 0
        strangers: list[ObjectInfo] = []
        foreign: list[ForeignBatch] = []

        def batches() -> Iterator[str]:
            nonlocal listed
            prefix = self.config.data_path_prefix
            for item in self._store.list(prefix):
                if folder_of(item.location) != prefix:  # further down: none of our business, unless asked for
                    batch = foreign_batch(item.location) if self.config.gc_foreign else None
                    if batch is not None and item.location == foreign_location(prefix, batch):
                        foreign.append(batch)
                        if len(foreign) > 2 * CANDIDATES_MAX:
                            foreign[:] = sorted(foreign)[:CANDIDATES_MAX]
                    continue
                if (ulid := batch_ulid(item.location)) is not None:
                    listed += 1
                    yield ulid
                else:
                    self._neighbours.note(item, strangers)

        # Whatever is deletable is older than all that stays: the bound never hides the one by the other.
        return heapq.nsmallest(CANDIDATES_MAX, batches()), listed, strangers, foreign

    def _ledger_next_sequence(self) -> int:
        path = ledger_path(self.config.manifest_path)
        try:
            ledger = Ledger.from_bytes(self._store.get(path).data, location=path)
        except ObjectNotFound:  # a queue without one is a valid queue
            return 0
        return max(ledger.next_sequence, known_to_clients(ledger), known_to_leases(ledger))

    def _read_manifest(self) -> tuple[Manifest, Version] | tuple[None, None]:
        path = self.config.manifest_path
        try:
            found = self._store.get(path)
        except ObjectNotFound:
            return None, None
        return Manifest.from_bytes(found.data, location=path), found.version

    def _refuse(self, report: GcReport, manifest: Manifest | None, known: int) -> GcReport:
        """Forget the earlier look, which says nothing about the manifest to come, and say why."""
        self._previous = None
        self._previous_foreign = frozenset()
        path = self.config.manifest_path
        if report.refusal is Refusal.FENCED:
            log.info("another consumer has claimed %r: this collector leaves the work to the other's", path)
        elif report.refusal is Refusal.MISSING:
            log.warning("deleting nothing: there is no manifest %r; restore it, or correct manifest_path", path)
        elif report.refusal is Refusal.SHARED:
            log.warning("deleting nothing: %s", report.shared)
        else:
            # For good: once it has caught up, the batches it forgot would look like any other orphan.
            self._distrust = self._distrust or (
                f"the manifest {path!r} went back from next sequence {known} to "
                f"{0 if manifest is None else manifest.next_sequence}, so it was restored or replaced. Decide "
                "which state is right, then start the collector anew"
            )
            log.warning("deleting nothing: %s", self._distrust)
        return report

    def _act(self, report: GcReport, decision: Decision, version: Version) -> GcReport:
        failures, untried = self._delete_all(report.deleted, decision, version)
        kept = {failure.location for failure in failures}.union(untried)
        by_location = dict(zip(report.deleted, decision.delete, strict=True))
        self._previous = decision.look(version, [by_location[location] for location in kept])
        deleted = tuple(location for location in report.deleted if location not in kept)
        metrics.gc_files_deleted.add(len(deleted))
        metrics.gc_files_failed.add(len(failures))
        log.info(
            "deleted %d batches, %d failed, %d wait for another look",
            len(deleted),
            len(failures),
            len(report.waiting),
        )
        return replace(report, deleted=deleted, failed=tuple(failures))

    def _locations(self, ulids: Iterable[str]) -> tuple[str, ...]:
        return tuple(batch_location(self.config.data_path_prefix, ulid) for ulid in ulids)

    def _delete_all(
        self, locations: Sequence[str], decision: Decision, version: Version
    ) -> tuple[list[DeleteFailure], Sequence[str]]:
        """Which deletes failed, and which were not tried. What rests on an unchanged manifest comes last."""
        quiet = self._locations(sorted(decision.quiet))
        failures, untried = self._delete([location for location in locations if location not in set(quiet)])
        if not quiet or untried or not self._is_unchanged(version):
            return failures, [*untried, *quiet]
        more, left = self._delete(quiet)
        return failures + more, left

    def _is_unchanged(self, version: Version) -> bool:
        try:
            return self._store.get_if_changed(self.config.manifest_path, version) is None
        except StorageError as error:
            log.warning("leaving the rest to the next cycle: could not look at the manifest again: %s", error)
            return False

    def _delete(self, locations: Sequence[str]) -> tuple[list[DeleteFailure], Sequence[str]]:
        """Which deletes failed, and which were not tried because the collector is closing."""
        failures: list[DeleteFailure] = []
        for start in range(0, len(locations), DELETE_CHUNK):
            if self._stopped.is_set():
                return failures, locations[start:]
            chunk = locations[start : start + DELETE_CHUNK]
            try:
                failures += self._store.delete_many(chunk)
            except StorageError as error:
                failures += [DeleteFailure(location, error) for location in chunk]
        for failure in failures[:10]:  # a store that is down fails thousands alike
            log.warning("could not delete %r, trying again next time: %s", failure.location, failure.cause)
        return failures, ()

    # The thread

    def start(self) -> None:
        """Collect every `gc_interval_s` on a daemon thread, until `close`. The first look is one interval away."""
        if self._stopped.is_set():
            raise Closed("this collector was closed; make another one")
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="buffer-gc", daemon=True)
            thread.start()
            self._thread = thread  # last: one that could not be started cannot be waited for

    def _run(self) -> None:
        while not self._stopped.wait(self.config.gc_interval_s):
            try:
                report = self.collect_once()
            except Closed:
                return
            except BufferQueueError as error:
                log.warning("the collector could not look, trying again in %g s: %s", self.config.gc_interval_s, error)
                continue
            except Exception:  # of somebody else's store, say: a thread that ends here would let everything pile up
                log.exception("the collector failed unforeseen, trying again in %g s", self.config.gc_interval_s)
                continue
            if report.refusal is Refusal.FENCED:
                return

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Ask the thread to end, without waiting. Safe to call from anywhere, any number of times."""
        self._stopped.set()

    def close(self) -> None:
        """Stop the thread. Waits for the request that is under way, not for the rest of the cycle."""
        self.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
