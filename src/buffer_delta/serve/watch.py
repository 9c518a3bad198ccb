"""Looks at a queue now and then, and puts together what is known: the only maker of a `Status` that is served.

One thread looks (`LOOK_S`). Whoever asks gets what the last look found, judged at this moment: a store that does not
answer holds up no request, and no request, however many there are, costs the store anything.

What a look costs: the manifest and the ledger, both only if they changed, and, if batches came, a listing that begins
at the oldest name that is not known yet. Nothing is claimed and nothing is written.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol

from buffer.clock import Clock, SystemClock
from buffer.config import ConsumerConfig
from buffer.errors import BufferQueueError, ObjectNotFound
from buffer.inspect.status import QueueStatus, first_waiting, ingestion_times, read_manifest, status_of
from buffer.leases.values import stats_of
from buffer.ledger.clients import Clients, ClientsView, hole
from buffer.ledger.from_workers import still_theirs
from buffer.ledger.leases import LeaseLedger, Leases
from buffer.ledger.plan import Ledger
from buffer.manifest import Manifest
from buffer.marks import newest_marks
from buffer.names import ledger_path
from buffer.stopping import StopFlag
from buffer.store.base import CanHead, CanList, CanPoll, Version
from buffer_delta.decode.sizes import BatchSizes
from buffer_delta.serve.facts import LoaderFacts
from buffer_delta.serve.status import ClientFacts, Limits, Status, TableStatus

log = logging.getLogger(__name__)

LOOK_S = 5.0
SIZED_MAX = 20_000  # batches; a longer backlog's bytes are not known
SAMPLE_S = 10.0
SAMPLES_KEPT = 360  # one hour
CLIENTS_SHOWN = 10
MARKED_ENTRIES_MAX = 20_000  # of a longer queue the marks that still lie in it are not gathered: that reads all of it


class CanWatch(CanPoll, CanHead, CanList, Protocol):
    """What watching needs of a store."""

    @property
    def url(self) -> str: ...


class Watched(Protocol):
    """A loader in this process."""

    def facts(self) -> LoaderFacts: ...

    def known_manifest(self) -> Manifest | None:
        """As it saw the manifest last; None while it is not open."""
        ...


@dataclass(frozen=True, slots=True)
class Sample:
    """What the charts are drawn of. Totals, not rates: a missed sample loses nothing."""

    time_ms: int
    lag_seconds: float | None
    lag_batches: int | None
    next_sequence: int | None
    first_sequence: int | None
    rows: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the looks have found so far."""

    manifest: Manifest | None = None
    manifest_version: Version = ""
    ledger: Ledger | None = None
    ledger_version: Version = ""
    leases: Leases | None = None
    """The section, whoever has the queue now."""
    section: Clients | None = None
    clients: ClientFacts | None = None
    sizes: tuple[int, ...] | None = None
    """Stored bytes of the first 0, 1, 2, … batches of `manifest`; None: not counted."""

    @property
    def workers(self) -> Leases | None:
        """The section while the queue is the workers'."""
        leases, ledger, manifest = self.leases, self.ledger, self.manifest
        if ledger is None or manifest is None:
            return None
        return still_theirs(leases, ledger_epoch=ledger.epoch, queue_epoch=manifest.epoch, app_id=ledger.app_id)

    def bytes_in(self, manifest: Manifest | None) -> int | None:
        """Of the batches of this manifest, ours or a newer one: without those that came since our look. None if all
        that wait came since."""
        if manifest is not None and not manifest.entry_count:
            return 0
        if manifest is None or self.manifest is None or self.sizes is None:
            return None
        sizes, begin, head = self.sizes, self.manifest.first_sequence, first_waiting(manifest, self.workers)
        if self.manifest.next_sequence <= head < manifest.next_sequence:
            return None

        def before(sequence: int) -> int:
            return sizes[min(max(0, sequence - begin), len(sizes) - 1)]

        finished = () if self.workers is None else self.workers.finished
        done = sum(before(last + 1) - before(first) for first, last in finished)
        return sizes[-1] - before(head) - done


class Watch:
    """What is known of one queue. `look` is for one thread, everything else for any."""

    def __init__(
        self,
        store: CanWatch,
        config: ConsumerConfig,
        *,
        loader: Watched | None = None,
        limits: Limits | None = None,
        with_objects: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._path = config.manifest_path
        self._sizes = BatchSizes(store, config.data_path_prefix, kept_max=SIZED_MAX) if with_objects else None
        self._sized_version: Version = ""
        self._loader = loader
        self._limits = limits or Limits()
        self._clock = clock or SystemClock()
        self._seen = _Seen()
        self._timed: tuple[Manifest, int, tuple[int | None, int | None]] | None = None
        """The manifest that was told of last, what waits first in it, and what `ingestion_times` says of them."""
        self._problem: str | None = None
        self._looked_s = self._moved_s = self._clock.monotonic_s()
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_KEPT)
        self._sampled_s: float | None = None
        self._stop = StopFlag()
        self._thread: threading.Thread | None = None

    # Looking

    def look(self) -> None:
        """Look once. A failure is kept as what it said; it is never raised."""
        try:
            seen = self._read()
        except BufferQueueError as error:
            if self._problem is None:
                log.warning("cannot look at the queue: %s", error)
            self._problem = str(error)
        except Exception as error:
            log.warning("a look at the queue failed", exc_info=True)
            self._problem = f"{type(error).__name__}: {error}"
        else:
            now_s = self._clock.monotonic_s()
            if _has_moved(self._seen, seen, self._clock.now_ms()):
                self._moved_s = now_s
            self._seen, self._problem, self._looked_s = seen, None, now_s
        self._sample()

    def _read(self) -> _Seen:
        """Everything that can fail for what an object holds fails here, not where somebody asks."""
        ledger, ledger_version, leases, section = self._read_ledger()
        manifest, version = self._read_manifest()
        same = (version, ledger_version) == (self._seen.manifest_version, self._seen.ledger_version)
        clients = self._seen.clients if same else _client_facts(section, manifest) if section is not None else None
        sizes = self._sizes_of(manifest, version)
        found = _Seen(manifest, version, ledger, ledger_version, leases, section, clients, sizes)
        self._status_of(manifest, ledger, found.workers, self._clock.now_ms())
        if leases is not None:
            stats_of(leases, manifest.next_sequence, self._clock.now_ms())
        return found

    def _sizes_of(self, manifest: Manifest, version: Version) -> tuple[int, ...] | None:
        if self._sizes is None or manifest.entry_count > SIZED_MAX:
            return None
        if version == self._sized_version:
            return self._seen.sizes
        batches = list(manifest)
        known = self._sizes.look_up(batches)
        found = tuple(accumulate((known[batch.location] for batch in batches), initial=0))
        self._sized_version = version  # after it: a listing that failed is tried again
        return found

    def _read_manifest(self) -> tuple[Manifest, Version]:
        seen = self._seen
        try:
            found = (
                self._store.get_if_changed(self._path, seen.manifest_version)
                if seen.manifest is not None
                else self._store.get(self._path)
            )
        except ObjectNotFound:
            read_manifest(self._store, self._path)  # says what that means
            raise
        if found is None:
            assert seen.manifest is not None, "it was asked for as a change"
            return seen.manifest, seen.manifest_version
        manifest = Manifest.from_bytes(found.data, location=self._path)
        return manifest.following(seen.manifest) if seen.manifest is not None else manifest, found.version

    def _read_ledger(self) -> tuple[Ledger | None, Version, Leases | None, Clients | None]:
        seen, path = self._seen, ledger_path(self._path)
        try:
            found = (
                self._store.get_if_changed(path, seen.ledger_version) if seen.ledger_version else self._store.get(path)
            )
        except ObjectNotFound:
            return None, "", None, None
        if found is None:
            return seen.ledger, seen.ledger_version, seen.leases, seen.section
        return (
            Ledger.from_bytes(found.data, location=path),
            found.version,
            LeaseLedger.from_bytes(found.data, location=path).leases,
            ClientsView.from_bytes(found.data, location=path).clients,
        )

    # Telling

    def status(self) -> Status:
        """What is known, judged now."""
        seen, problem, now_ms, now_s = self._seen, self._problem, self._clock.now_ms(), self._clock.monotonic_s()
        loader = self._loader.facts() if self._loader else None
        known = self._loader.known_manifest() if self._loader else None
        manifest = _newer(seen.manifest, known)
        queue = None
        if manifest is not None:
            queue = self._status_of(manifest, seen.ledger, seen.workers, now_ms)
        leases = None
        if seen.workers is not None and manifest is not None:
            leases = stats_of(seen.workers, manifest.next_sequence, now_ms)
        return Status(
            time_ms=now_ms,
            queue=queue,
            queue_problem=problem,
            queue_seconds=now_s - self._looked_s,
            still_seconds=now_s - self._moved_s,
            loader=loader,
            tables=_tables(loader, queue),
            leases=leases,
            clients=seen.clients,
            backlog_bytes=seen.bytes_in(manifest),
            limits=self._limits,
            place=f"{self._store.url} {self._path}",
        )

    def _status_of(self, manifest: Manifest, ledger: Ledger | None, workers: Leases | None, now_ms: int) -> QueueStatus:
        """Whoever asks again about the same manifest costs no second walk to its end, and no parse of its entries."""
        first, timed = first_waiting(manifest, workers), self._timed  # looked at once: another thread may be asking
        if timed is None or timed[0] is not manifest or timed[1] != first:
            self._timed = timed = (manifest, first, ingestion_times(manifest, first))
        times = timed[2]
        return status_of(
            self._store.url, self._path, manifest, ledger, None, now_ms=now_ms, times=times, workers=workers
        )

    def history(self) -> list[Sample]:
        """The last hour, the newest last."""
        return list(self._samples)

    def _sample(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._sampled_s is not None and now_s - self._sampled_s < SAMPLE_S:
            return
        self._sampled_s = now_s
        status = self.status()
        self._samples.append(
            Sample(
                status.time_ms,
                status.lag_seconds,
                status.lag_batches,
                status.queue.next_sequence if status.queue else None,
                status.queue.first_sequence if status.queue else None,
                status.loader.rows if status.loader else None,
                status.loader.bytes if status.loader else None,
            )
        )

    # Living

    def start(self, look_s: float = LOOK_S) -> None:
        def run() -> None:
            self.look()
            while not self._stop.wait(look_s):
                self.look()

        self._thread = threading.Thread(target=run, name="buffer-delta-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more. A look that hangs in the store is not waited for: it changes nothing."""
        self._stop.set()


def one_look(
    store: CanWatch,
    config: ConsumerConfig,
    queue: QueueStatus,
    tables: tuple[TableStatus, ...] = (),
    *,
    limits: Limits | None = None,
    clock: Clock | None = None,
) -> Status:
    """A status of a single look, which cannot tell whether the queue moves; `queue` and `tables` are the caller's."""
    watch = Watch(store, config, limits=limits, with_objects=False, clock=clock)
    watch.look()
    return replace(
        watch.status(),
        queue=queue,
        still_seconds=None,
        tables=tables,
        backlog_bytes=queue.objects.waiting_bytes if queue.objects else None,
    )


# Deciding


def _has_moved(before: _Seen, now: _Seen, now_ms: int) -> bool:
    """Whether somebody took something from the queue, or there is, or was, nothing to take.

    Of workers one that holds a batch is at work: its lease says until when. What is delayed is not to be taken.
    """
    if before.manifest is None or now.manifest is None:
        return True
    if not before.manifest.entry_count or not now.manifest.entry_count:
        return True
    if before.workers != now.workers:  # one of them wrote, or others have the queue now
        return True
    if now.workers is not None:
        stats = stats_of(now.workers, now.manifest.next_sequence, now_ms)
        return bool(stats.in_flight) or not stats.ready
    return before.manifest.first_sequence != now.manifest.first_sequence


def _newer(looked: Manifest | None, known: Manifest | None) -> Manifest | None:
    """Of the watch's own look and the loader's the one that knows more."""
    if looked is None or known is None:
        return known if looked is None else looked
    return max((looked, known), key=lambda m: (m.epoch, m.first_sequence, m.next_sequence))


def _tables(loader: LoaderFacts | None, queue: QueueStatus | None) -> tuple[TableStatus, ...]:
    """As the loader saw them; else only their names, which the ledger has: looking at them needs Spark."""
    if loader is not None and loader.tables:
        main = loader.tables[0].position  # what it has, all have; the others are behind where they got nothing
        lag = None if queue is None else max(0, queue.next_sequence - 1 - (-1 if main is None else main))
        return tuple(
            TableStatus(
                table=seen.table,
                exists=seen.version is not None,
                committed=seen.position,
                lag_batches=lag,
                version=seen.version,
            )
            for seen in loader.tables
        )
    names = queue.ledger.tables if queue and queue.ledger else ()
    return tuple(TableStatus(name, None, None, None) for name in names)


def _client_facts(clients: Clients, manifest: Manifest) -> ClientFacts:
    marks = dict(clients.marks)
    if manifest.entry_count <= MARKED_ENTRIES_MAX:
        for name, mark in newest_marks(manifest).items():
            known = marks.get(name)
            if known is None or mark.client_seq > known.client_seq:
                marks[name] = mark
    lost = hole(clients, manifest)
    newest = sorted(marks.items(), key=lambda item: item[1].sequence, reverse=True)[:CLIENTS_SHOWN]
    return ClientFacts(
        count=len(marks),
        lost=(lost.first, lost.last) if lost else None,
        newest=tuple((name, mark.client_seq, mark.sequence) for name, mark in newest),
    )
