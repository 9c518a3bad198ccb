"""How a queue is doing, seen from outside: nothing is claimed, nothing is changed. Called by the command lines.

    print(queue_status(open_store("s3://bucket/path")))

`queue_status` reads manifest, ledger and, if asked, a listing; everything else here decides from what it read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Any, Literal, Protocol

from buffer.clock import Clock, SystemClock
from buffer.errors import CorruptLedger, InvalidInput, ManifestLost, ObjectNotFound
from buffer.inspect.human import human_bytes, human_seconds, human_time, plural
from buffer.ledger.from_workers import still_theirs, workers_of
from buffer.ledger.lease_steps import is_finished
from buffer.ledger.leases import Leases
from buffer.ledger.plan import Blocked, Ledger, Plan
from buffer.manifest import Manifest
from buffer.model import BatchDescriptor
from buffer.names import batch_ulid, ledger_path, ulid_time_ms
from buffer.store.base import CanGet, CanList, ObjectInfo

_SYSTEM_CLOCK = SystemClock()

PlanState = Literal["under way", "dequeued"]


class CanLook(CanGet, CanList, Protocol):
    """What looking needs of a store."""

    @property
    def url(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Objects:
    """The batch objects below a queue's prefix."""

    count: int
    bytes: int
    waiting_bytes: int
    """Of the batches that wait."""
    unreferenced: int
    """Objects in no entry: loaded already and not collected yet, or left behind by a producer that died."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One look at a queue.

    What workers with leases have finished does not wait, though it stays in the manifest for a while.
    """

    store: str
    manifest: str
    epoch: int
    first_sequence: int
    """The first that waits; the next one to come if none does."""
    next_sequence: int
    length: int
    """Batches that wait."""
    manifest_bytes: int
    oldest_ingestion_ms: int | None
    newest_ingestion_ms: int | None
    lag_seconds: float | None
    """How long the oldest waiting batch has waited; 0 if none waits, None if it does not tell."""
    objects: Objects | None
    """None if nobody asked for a listing."""
    ledger: Ledger | None
    """None if no loader was here."""

    @property
    def plan(self) -> Plan | None:
        return self.ledger.plan if self.ledger else None

    @property
    def blocked(self) -> Blocked | None:
        return self.ledger.blocked if self.ledger else None

    @property
    def plan_state(self) -> PlanState | None:
        """Whether the plan's batches are still in the queue.

        A loader dequeues them after the last table's commit. But a plain consumer may have done it, without any: what
        is committed, only the tables tell.
        """
        return plan_state(self.plan, self.first_sequence)

    @property
    def last_acked(self) -> int | None:
        """The newest sequence that a consumer is done with; None if it is done with none."""
        return self.first_sequence - 1 if self.first_sequence else None

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the same keys always."""
        ledger = self.ledger
        return {
            "store": self.store,
            "manifest": self.manifest,
            "epoch": self.epoch,
            "first_sequence": self.first_sequence,
            "next_sequence": self.next_sequence,
            "last_acked": self.last_acked,
            "length": self.length,
            "lag_seconds": self.lag_seconds,
            "oldest_ingestion_ms": self.oldest_ingestion_ms,
            "newest_ingestion_ms": self.newest_ingestion_ms,
            "manifest_bytes": self.manifest_bytes,
            "objects": dataclasses.asdict(self.objects) if self.objects else None,
            "ledger": {
                "queue_id": ledger.queue_id,
                "app_id": ledger.app_id,
                "tables": list(ledger.tables),
                "generation": ledger.generation,
                "epoch": ledger.epoch,
                "next_sequence": ledger.next_sequence,
            }
            if ledger
            else None,
            "plan": {**dataclasses.asdict(self.plan), "state": self.plan_state} if self.plan else None,
            "blocked": dataclasses.asdict(self.blocked) if self.blocked else None,
        }

    def facts(self) -> dict[str, str | None]:
        """For people: what each thing is called, and what it is. None where there is nothing to say."""
        return {
            "queue": f"{self.store} {self.manifest}",
            "waiting": _waiting(self),
            "lag": _lag(self),
            "newest": human_time(self.newest_ingestion_ms),
            "next sequence": str(self.next_sequence),
            "acked": f"through {self.last_acked}" if self.last_acked is not None else "nothing yet",
            "epoch": str(self.epoch) if self.epoch else "0, no consumer has claimed the queue yet",
            "manifest": human_bytes(self.manifest_bytes),
            "objects": _objects_fact(self.objects),
            "loader": f"{self.ledger.app_id} into {', '.join(self.ledger.tables)}"
            if self.ledger and self.ledger.app_id
            else "none so far",
            "plan": _plan_fact(self.plan, self.plan_state),
            "blocked": f"batches {self.blocked.first}..{self.blocked.last}: {self.blocked.reason}"
            if self.blocked
            else "no",
        }

    def __str__(self) -> str:
        return "\n".join(f"{name}: {value}" for name, value in self.facts().items() if value is not None)

    def _repr_html_(self) -> str:
        left = "style='text-align:left'"
        rows = "".join(
            f"<tr><th {left}>{escape(name)}</th><td {left}>{escape(value)}</td></tr>"
            for name, value in self.facts().items()
            if value is not None
        )
        return f"<table><caption>Queue</caption>{rows}</table>"


# Reading


def read_manifest(store: CanGet, manifest_path: str) -> Manifest:
    """The manifest as it is now. Raises ObjectNotFound, saying what to do, ManifestLost or CorruptManifest.

    InvalidInput if a folder or a file is in the way: no queue can come to be there.
    """
    try:
        data = store.get(manifest_path).data
    except ObjectNotFound as error:
        if isinstance(error.__cause__, IsADirectoryError | NotADirectoryError):
            is_folder = isinstance(error.__cause__, IsADirectoryError)
            raise InvalidInput(
                f"cannot read the manifest {manifest_path!r} in {getattr(store, 'url', 'the store')}: "
                f"{'it is a folder' if is_folder else 'a file has the name of one of its folders'}; correct the "
                "store or the manifest's path, or move what is in the way"
            ) from error
        ledger = read_ledger(store, manifest_path)
        if ledger is not None and ledger.was_claimed:
            raise ManifestLost(
                f"the manifest {manifest_path!r} is missing, but its ledger knows {ledger.next_sequence} "
                "sequences; restore the manifest",
                location=manifest_path,
                seen_next_sequence=ledger.next_sequence,
            ) from error
        raise ObjectNotFound(
            f"there is no queue yet: {getattr(store, 'url', 'the store')} has no manifest {manifest_path!r}. "
            "Produce something into it, or correct the store or the manifest's path",
            location=manifest_path,
        ) from error
    return Manifest.from_bytes(data, location=manifest_path)


def read_ledger(store: CanGet, manifest_path: str) -> Ledger | None:
    """The ledger beside a manifest; None if no loader was here. Raises CorruptLedger."""
    path = ledger_path(manifest_path)
    try:
        return Ledger.from_bytes(store.get(path).data)
    except ObjectNotFound:
        return None
    except CorruptLedger as error:
        raise CorruptLedger(f"{path!r}: {error}", location=path, version=error.version) from error


def queue_status(
    store: CanLook,
    manifest_path: str = "ingest/manifest",
    *,
    data_path_prefix: str | None = "ingest",
    clock: Clock = _SYSTEM_CLOCK,
) -> QueueStatus:
    """Look at a queue. Without a prefix the objects are not listed, which a prefix of millions makes slow.

    Raises ObjectNotFound if there is no queue, ManifestLost, CorruptData, or the store's error.
    """
    ledger = read_ledger(store, manifest_path)
    manifest = read_manifest(store, manifest_path)
    workers = _workers(ledger, manifest)
    objects = None
    if data_path_prefix is not None:
        objects = count_objects(store.list(data_path_prefix), manifest, workers)
    return status_of(store.url, manifest_path, manifest, ledger, objects, now_ms=clock.now_ms(), workers=workers)


# Deciding


def _workers(ledger: Ledger | None, manifest: Manifest) -> Leases | None:
    """Those who have the queue. A section that cannot be read hides nothing else: see `buffer leases status`."""
    if ledger is None:
        return None
    try:
        left = workers_of(ledger)
    except CorruptLedger:
        return None
    return still_theirs(left, ledger_epoch=ledger.epoch, queue_epoch=manifest.epoch, app_id=ledger.app_id)


def status_of(
    store: str,
    manifest_path: str,
    manifest: Manifest,
    ledger: Ledger | None,
    objects: Objects | None,
    *,
    now_ms: int,
    times: tuple[int | None, int | None] | None = None,
    workers: Leases | None = None,
) -> QueueStatus:
    """What was read, as one value. `store` is the store's public URL; `times` the `ingestion_times`, if known;
    `workers` the section of those who have the queue."""
    first = first_waiting(manifest, workers)
    length = len(manifest) if workers is None else max(0, workers.depth(manifest.next_sequence))
    oldest, newest = times or ingestion_times(manifest, first)
    return QueueStatus(
        store=store,
        manifest=manifest_path,
        epoch=manifest.epoch,
        first_sequence=first,
        next_sequence=manifest.next_sequence,
        length=length,
        manifest_bytes=len(manifest.to_bytes()),
        oldest_ingestion_ms=oldest,
        newest_ingestion_ms=newest,
        lag_seconds=_lag_seconds(length, oldest, now_ms),
        objects=objects,
        ledger=ledger,
    )


def first_waiting(manifest: Manifest, workers: Leases | None) -> int:
    """The first sequence that waits; the next one to come if none does."""
    if workers is None:
        return manifest.first_sequence
    return max(manifest.first_sequence, min(workers.finished_through + 1, manifest.next_sequence))


def ingestion_times(manifest: Manifest, first: int) -> tuple[int | None, int | None]:
    """When the first call of the batch `first` and the last call of the newest one were accepted, as far as they tell.

    Of a batch without metadata the name tells when it was made.
    """
    oldest = manifest.oldest() if first <= manifest.first_sequence else manifest.read(first)
    return _entry_time_ms(oldest, 0), _entry_time_ms(manifest.newest(), -1)


def _entry_time_ms(entry: BatchDescriptor | None, item: int) -> int | None:
    if entry is None:
        return None
    if entry.metadata:
        return entry.metadata[item].ingestion_time_ms
    ulid = batch_ulid(entry.location)
    return ulid_time_ms(ulid) if ulid else None


def _lag_seconds(length: int, oldest_ms: int | None, now_ms: int) -> float | None:
    if not length:
        return 0.0
    return None if oldest_ms is None else max(0, now_ms - oldest_ms) / 1000


def count_objects(listed: Iterable[ObjectInfo], manifest: Manifest, workers: Leases | None = None) -> Objects:
    """Sums over the batch objects of a listing; whatever else lies there is not counted."""
    waiting = {
        batch_ulid(entry.location): workers is None or not is_finished(workers, entry.sequence) for entry in manifest
    }
    count = total = waiting_bytes = unreferenced = 0
    for item in listed:
        ulid = batch_ulid(item.location)
        if ulid is None:
            continue
        count += 1
        total += item.size
        if ulid not in waiting:
            unreferenced += 1
        elif waiting[ulid]:
            waiting_bytes += item.size
    return Objects(count, total, waiting_bytes, unreferenced)


def plan_state(plan: Plan | None, first_sequence: int) -> PlanState | None:
    if plan is None:
        return None
    return "dequeued" if plan.last < first_sequence else "under way"


# Wording


def _waiting(status: QueueStatus) -> str:
    if not status.length:
        return "nothing"
    size = f", {human_bytes(status.objects.waiting_bytes)}" if status.objects else ""
    return f"{plural(status.length, 'batches')} ({status.first_sequence}..{status.next_sequence - 1}){size}"


def _lag(status: QueueStatus) -> str:
    if not status.length:
        return "none"
    if status.lag_seconds is None:
        return "unknown: neither metadata nor name of the oldest batch tells when it came"
    return f"{human_seconds(status.lag_seconds)}, the oldest batch came {human_time(status.oldest_ingestion_ms)}"


def _objects_fact(objects: Objects | None) -> str | None:
    if objects is None:
        return None
    size = f"{plural(objects.count, 'batches')}, {human_bytes(objects.bytes)}"
    return f"{size}; {objects.unreferenced:,} of them no longer in the queue" if objects.unreferenced else size


def _plan_fact(plan: Plan | None, state: PlanState | None) -> str | None:
    if plan is None:
        return None
    if state == "dequeued":
        return f"{plan.first}..{plan.last} is no longer in the queue; `buffer-delta status` tells if the tables have it"
    return f"{plan.first}..{plan.last} under way, attempt {plan.attempts}"
