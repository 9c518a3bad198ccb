"""What the consumer's tests share: queues with batches in them, and a store that reports what is asked of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from buffer.clock import SystemClock, make_ulid
from buffer.codec.batch import encode_batch
from buffer.config import ConsumerConfig
from buffer.consume.consumer import Consumer
from buffer.manifest import Manifest
from buffer.model import BatchDescriptor, Metadata
from buffer.queue import QueueProducer
from buffer.store.base import DeleteFailure, Object, ObjectInfo, Outcome, Store, Version
from tests.nets import HANGS_S, wait_until

MANIFEST = "ingest/manifest"


def config(store: Store, **settings: Any) -> ConsumerConfig:
    return ConsumerConfig(store=store, **{"gc_enabled": False, **settings})


def fill(
    store: Store,
    count: int = 1,
    *,
    entries: Callable[[int], list[bytes]] = lambda i: [b"%d" % i],
    metadata: Sequence[Metadata] = (),
) -> list[BatchDescriptor]:
    """Put `count` batches into the queue, in one append; batch i holds `entries(i)`."""
    new = []
    for index in range(count):
        location = f"ingest/{SystemClock().new_ulid()}.batch"
        store.put(location, encode_batch(entries(index)))
        new.append((location, tuple(metadata)))
    sequences = QueueProducer(store, MANIFEST, SystemClock()).append_locations(new)
    return [BatchDescriptor(s, location, items) for s, (location, items) in zip(sequences, new, strict=True)]


def manifest_of(store: Store) -> Manifest:
    return Manifest.from_bytes(store.get(MANIFEST).data)


def ulid_at(time_ms: int, tail: int = 0) -> str:
    return make_ulid(time_ms, tail.to_bytes(10, "big"))


class Tapped:
    """A store that tells `tap(operation, location)` of each call before it is made; errors of `tap` are raised."""

    def __init__(self, store: Store, tap: Callable[[str, str], None] | None = None) -> None:
        self.store = store
        self.tap = tap
        self.calls: list[tuple[str, str]] = []

    def _tell(self, operation: str, location: str) -> None:
        self.calls.append((operation, location))
        if self.tap:
            self.tap(operation, location)

    @property
    def url(self) -> str:
        return self.store.url

    def get(self, location: str) -> Object:
        self._tell("get", location)
        return self.store.get(location)

    def get_if_changed(self, location: str, version: Version) -> Object | None:
        self._tell("get_if_changed", location)
        return self.store.get_if_changed(location, version)

    def put(self, location: str, data: bytes) -> None:
        self._tell("put", location)
        self.store.put(location, data)

    def put_if_absent(self, location: str, data: bytes) -> Outcome:
        self._tell("put_if_absent", location)
        return self.store.put_if_absent(location, data)

    def put_if_match(self, location: str, data: bytes, version: Version) -> Outcome:
        self._tell("put_if_match", location)
        return self.store.put_if_match(location, data, version)

    def head(self, location: str) -> ObjectInfo:
        self._tell("head", location)
        return self.store.head(location)

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        self._tell("list", prefix)
        return self.store.list(prefix, after=after)

    def delete_many(self, locations: Sequence[str]) -> Any:  # of DeleteFailure; `list` is a method here
        for location in locations:
            self._tell("delete_many", location)
        failures: Sequence[DeleteFailure] = self.store.delete_many(locations)
        return failures

    def copy(self, source: str, target: str) -> None:
        self._tell("copy", source)
        self.store.copy(source, target)


def fetchers() -> int:
    return sum(thread.name.startswith("buffer-fetch") for thread in threading.enumerate())


class Gated(Tapped):
    """Fetches of batches wait at a gate; `inside` counts those that wait or work, `most` the most so far."""

    def __init__(self, store: Store, open: bool = False) -> None:
        super().__init__(store)
        self.gate = threading.Event()
        self.lock = threading.Lock()
        self.inside = self.started = self.most = 0
        if open:
            self.gate.set()

    def get(self, location: str) -> Any:
        if not location.endswith(".batch"):
            return super().get(location)
        with self.lock:
            self.inside += 1
            self.started += 1
            self.most = max(self.most, self.inside)
        try:
            assert self.gate.wait(HANGS_S)
            return super().get(location)
        finally:
            with self.lock:
                self.inside -= 1

    def settle(self, started: int) -> None:
        """Wait until so many fetches were begun and all of them ended."""
        wait_until(lambda: self.started == started and self.inside == 0)


def collectors() -> int:
    return sum(thread.name == "buffer-gc" for thread in threading.enumerate())


def assert_no_collectors() -> None:
    wait_until(lambda: collectors() == 0)


def marks(consumer: Consumer) -> tuple[int | None, int]:
    return consumer.last_acked, consumer.cursor


def busy_consumer(store: Store, **settings: Any) -> Consumer:
    """6 batches in the queue, 4 handed out, 2 acked, of which 1 is dequeued."""
    fill(store, 6)
    consumer = Consumer.new(config(store, **settings))
    consumer.next_descriptors(4)
    consumer.ack_through(0)
    consumer.ack(1)
    return consumer


CALLS: dict[str, Callable[[Consumer], Any]] = {
    "next_batch": lambda c: c.next_batch(),
    "next_descriptors": lambda c: c.next_descriptors(1),
    "ack": lambda c: c.ack(2),
    "ack_through": lambda c: c.ack_through(3),
    "flush": lambda c: c.flush(),
    "manifest": lambda c: c.manifest(),
    "len": lambda c: len(c),
    "lag_seconds": lambda c: c.lag_seconds(),
    "batches": lambda c: next(c.batches()),
}
"""Every call that looks at the queue, for a `busy_consumer`."""
