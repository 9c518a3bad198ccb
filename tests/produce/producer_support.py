"""What the producer's tests share: looking into a queue without a consumer, and a store that can be held."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from buffer.codec.batch import decode_batch
from buffer.config import ProducerConfig
from buffer.errors import ObjectNotFound
from buffer.manifest import Manifest
from buffer.model import BatchDescriptor
from buffer.produce.append import Committer
from buffer.produce.durability import Settled
from buffer.produce.intake import Intake, PendingBatch, check_call
from buffer.produce.producer import Producer
from buffer.store.base import DeleteFailure, Object, ObjectInfo, Outcome, Store, Version
from buffer.testing import ManualClock
from tests.nets import HANGS_S, wait_until

NEVER_MS = 3_600_000
"""A flush interval that no test reaches."""


def make_producer(store: Store | str, *, clock: Any = None, **settings: Any) -> Producer:
    """A producer that flushes only when told to, unless a setting says otherwise."""
    return Producer(ProducerConfig(**{"store": store, "flush_interval_ms": NEVER_MS, **settings}), clock=clock)


def await_blocked(producer: Producer, *calls: threading.Thread) -> None:
    """Wait until these calls, and no others, wait for room: whoever stands in the line has been refused before."""

    def are_there() -> bool:
        assert all(call.is_alive() for call in calls), "a call that has to wait went through"
        with producer._engine._lock:
            return len(producer._engine._turns) == len(calls)

    wait_until(are_there)


def queue_of(store: Store, manifest_path: str = "ingest/manifest") -> list[BatchDescriptor]:
    """The entries of the manifest, every byte of it checked; none if there is no manifest."""
    try:
        return list(Manifest.from_bytes(store.get(manifest_path).data))
    except ObjectNotFound:
        return []


def batches_of(store: Store, manifest_path: str = "ingest/manifest") -> list[list[bytes]]:
    """The entries of each batch in the queue, in order."""
    return [decode_batch(store.get(entry.location).data) for entry in queue_of(store, manifest_path)]


def entries_of(store: Store, manifest_path: str = "ingest/manifest") -> list[bytes]:
    return [entry for batch in batches_of(store, manifest_path) for entry in batch]


def objects_of(store: Store, prefix: str = "ingest") -> set[str]:
    """Names of all batch objects, also of those that are in no queue."""
    return {info.location for info in store.list(prefix) if info.location.endswith(".batch")}


class HeldStore:
    """Passes every call on; `hold("put")` makes calls of that operation wait until the block is left."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._gates: dict[str, threading.Event] = {}
        self._arrived = threading.Condition()
        self._waiting = 0

    @contextmanager
    def hold(self, *operations: str) -> Iterator[None]:
        gate = threading.Event()
        self._gates = {**self._gates, **dict.fromkeys(operations, gate)}
        try:
            yield
        finally:
            self._gates = {op: g for op, g in self._gates.items() if g is not gate}
            gate.set()

    def await_waiting(self, calls: int) -> None:
        """Wait until that many calls are being held."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: self._waiting >= calls, HANGS_S), f"{self._waiting} calls came"

    def _pass(self, operation: str) -> None:
        gate = self._gates.get(operation)
        if gate is None:
            return
        with self._arrived:
            self._waiting += 1
            self._arrived.notify_all()
        assert gate.wait(HANGS_S), f"{operation} was held for too long"
        with self._arrived:
            self._waiting -= 1

    @property
    def url(self) -> str:
        return self.store.url

    def get(self, location: str) -> Object:
        self._pass("get")
        return self.store.get(location)

    def get_if_changed(self, location: str, version: Version) -> Object | None:
        self._pass("get_if_changed")
        return self.store.get_if_changed(location, version)

    def head(self, location: str) -> ObjectInfo:
        return self.store.head(location)

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        return self.store.list(prefix, after=after)

    def put(self, location: str, data: bytes | memoryview) -> None:
        self._pass("put")
        self.store.put(location, data)

    def copy(self, source: str, target: str) -> None:
        self.store.copy(source, target)

    def put_if_absent(self, location: str, data: bytes) -> Outcome:
        self._pass("put_if_absent")
        return self.store.put_if_absent(location, data)

    def put_if_match(self, location: str, data: bytes, version: Version) -> Outcome:
        self._pass("put_if_match")
        return self.store.put_if_match(location, data, version)

    def delete_many(self, locations: Sequence[str]) -> Any:
        failures: list[DeleteFailure] = self.store.delete_many(locations)
        return failures


SEEDS = itertools.count(1)  # each line makes names of its own


class Line:
    """The sync half of a producer, driven step by step as the simulator does."""

    def __init__(self, store: Store, clock: ManualClock | None = None, **settings: object) -> None:
        self.clock = clock or ManualClock(seed=next(SEEDS))
        config = ProducerConfig(store=store, **settings)
        self.intake = Intake(config, self.clock)
        self.settled: list[tuple[PendingBatch, Settled]] = []
        self.committer = Committer(store, self.clock, config, lambda *one: self.settled.append(one))

    def enlist(self, *entries: bytes) -> PendingBatch:
        """One sealed batch of these entries, in its place in the queue."""
        handle = self.intake.offer(check_call(list(entries), b"", 1 << 20))
        assert handle is not None
        self.intake.seal()
        batch = self.intake.take()
        self.committer.enlist(batch)
        return batch

    def upload(self, *entries: bytes) -> PendingBatch:
        batch = self.enlist(*entries)
        self.committer.upload(batch)
        return batch

    def start_queue(self) -> None:
        """Make a manifest with one entry, so that later writes replace it."""
        self.upload(b"there before")
        assert self.committer.commit() == 1


def outcomes(*batches: PendingBatch) -> list[type]:
    return [type(batch.watcher.result()) for batch in batches]
