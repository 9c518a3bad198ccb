"""What the tests of queue and journal share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from buffer.clock import SystemClock
from buffer.errors import ObjectNotFound
from buffer.manifest import Manifest, NewEntry
from buffer.queue import QueueConsumer, QueueProducer
from buffer.store import Outcome, Store, Version, open_store
from buffer.testing import ManualClock

PATH = "ingest/manifest"


def memory() -> Store:
    """A memory store of its own."""
    return open_store(f"memory://{SystemClock().new_ulid()}")


def producer(store: Store, clock: ManualClock | None = None) -> QueueProducer:
    return QueueProducer(store, PATH, clock or ManualClock())


def consumer(store: Store, clock: ManualClock | None = None) -> QueueConsumer:
    return QueueConsumer(store, PATH, clock or ManualClock())


def claimed(store: Store) -> QueueConsumer:
    queue = consumer(store)
    queue.claim()
    return queue


def named(*locations: str) -> Sequence[NewEntry]:
    return [(location, ()) for location in locations]


def append(store: Store, *locations: str) -> range:
    """Append as some other producer would."""
    return producer(store).append_locations(named(*locations))


def manifest_in(store: Store) -> Manifest:
    return Manifest.from_bytes(store.get(PATH).data)


def queued(store: Store) -> list[tuple[int, str]]:
    """Sequence and location of every entry; a missing manifest holds none."""
    try:
        return [(entry.sequence, entry.location) for entry in manifest_in(store)]
    except ObjectNotFound:
        return []


def replace(store: Store, manifest: Manifest) -> None:
    """Put a manifest there as an operator would: without asking what was."""
    store.put(PATH, manifest.to_bytes())


def nothing() -> None:
    """The default of `Written`: do not interfere."""


class Written:
    """A store that keeps what the conditional writes carried, and lets a test interfere before and after each."""

    def __init__(
        self, store: Any, interfere: Callable[[], object] = nothing, *, then: Callable[[], object] = nothing
    ) -> None:
        self.store = store
        self.interfere = interfere
        self.then = then
        self.writes: list[tuple[Version | None, bytes]] = []

    def put_if_absent(self, location: str, data: bytes) -> Outcome:
        self.writes.append((None, data))
        self.interfere()
        outcome: Outcome = self.store.put_if_absent(location, data)
        self.then()
        return outcome

    def put_if_match(self, location: str, data: bytes, version: Version) -> Outcome:
        self.writes.append((version, data))
        self.interfere()
        outcome: Outcome = self.store.put_if_match(location, data, version)
        self.then()
        return outcome

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)
