"""What the tests of queues with leases share: a queue with batches, and a count of what the store is asked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from buffer.codec.batch import encode_batch
from buffer.config import ConsumerConfig, LeaseConfig
from buffer.consume.fetch import FetchHandle
from buffer.errors import StoreUnusable
from buffer.leases.queue import LeaseQueue
from buffer.ledger.leases import LeaseLedger, Leases
from buffer.manifest import Manifest
from buffer.marks import without_mark
from buffer.model import BatchDescriptor, Metadata
from buffer.queue import QueueProducer
from buffer.store.base import ObjectInfo, Store, Won
from buffer.store.open import open_store
from buffer.testing.clock import ManualClock

MANIFEST = "jobs/manifest"
DEAD = "dead/manifest"
TIMEOUT_MS = 30_000


class Work:
    """A queue in memory, and the clock that everybody shares."""

    def __init__(self, batches: int = 0, *, store: Store | None = None, **leases: Any) -> None:
        self.clock = ManualClock()
        self.store: Store = Dated(store or open_store("memory://"), self.clock)  # type: ignore[assignment]
        values = {"visibility_timeout_ms": TIMEOUT_MS, "max_delivery_attempts": 2, **leases}
        self.leases = LeaseConfig.from_dict(values)
        self.fill(batches)

    def fill(self, count: int, entries: Sequence[bytes] | None = None, metadata: Sequence[Metadata] = ()) -> None:
        for _ in range(count):
            location = f"jobs/{self.clock.new_ulid()}.batch"
            queue = QueueProducer(self.store, MANIFEST, self.clock)
            sequence = self.manifest().next_sequence
            self.store.put(location, encode_batch(list(entries or [b"%d" % sequence])))
            queue.append_locations([(location, tuple(metadata) or (Metadata(0, 7, b"m"),))])

    def config(self, store: Store | None = None, path: str = MANIFEST) -> ConsumerConfig:
        return ConsumerConfig(store=store or self.store, manifest_path=path, gc_enabled=False, fetch_attempts=1)

    def open(self, leases: LeaseConfig | None = None, *, store: Store | None = None, **also: Any) -> LeaseQueue:
        return LeaseQueue.open(self.config(store), leases or self.leases, clock=self.clock, **also)

    def manifest(self, path: str = MANIFEST) -> Manifest:
        try:
            return Manifest.from_bytes(self.store.get(path).data)
        except Exception:  # noqa: BLE001 - no manifest yet
            return Manifest.empty()

    def section(self, path: str = MANIFEST) -> Leases:
        section = self.ledger(path).leases
        assert section is not None
        return section

    def ledger(self, path: str = MANIFEST) -> LeaseLedger:
        return LeaseLedger.from_bytes(self.store.get(f"{path}.ledger").data)

    def dead_letters(self, path: str = DEAD) -> list[tuple[list[bytes], list[dict[str, Any]]]]:
        """What the dead-letter queue holds: the entries and what is said of them, batch by batch."""
        found = []
        for descriptor in self.manifest(path):
            said = [json.loads(item.payload) for item in without_mark(descriptor.metadata)]
            found.append((FetchHandle(self.store).fetch(descriptor).entries, said))
        return found

    def descriptors(self, path: str = MANIFEST) -> list[BatchDescriptor]:
        return list(self.manifest(path))

    def expire(self) -> None:
        self.clock.advance(TIMEOUT_MS / 1000)


class Dated:
    """A store that says when an object was written by the test's clock: a process that opens a queue compares them."""

    WRITES = ("put", "put_if_absent", "put_if_match")

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self._store, self._clock = store, clock
        self._modified_ms: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        if name not in self.WRITES:
            return call

        def written(location: str, *args: Any, **kwargs: Any) -> Any:
            outcome = call(location, *args, **kwargs)
            if name == "put" or isinstance(outcome, Won):
                self._modified_ms[location] = self._clock.now_ms()
            return outcome

        return written

    def head(self, location: str) -> ObjectInfo:
        return replace(self._store.head(location), modified_ms=self._modified_ms.get(location))


class Counting:
    """A store that counts what is asked of it, by operation and what it is asked about."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.calls: Counter[tuple[str, str]] = Counter()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.store, name)
        if not callable(call):
            return call

        def counted(location: Any, *args: Any, **kwargs: Any) -> Any:
            kind = location.rpartition(".")[2].rpartition("/")[2] if isinstance(location, str) else "many"
            self.calls[name, kind] += 1
            return call(location, *args, **kwargs)

        return counted


class Dying:
    """The store as a process sees it that dies at its n-th write: before it lands, or after. Then nothing works."""

    WRITES = ("put", "put_if_absent", "put_if_match", "copy", "delete_many")

    def __init__(self, store: Store) -> None:
        self.store = store
        self.writes_left: int | None = None
        self.lands = False
        self.is_dead = False

    def die_at(self, write: int, *, lands: bool) -> None:
        self.writes_left, self.lands = write, lands

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.store, name)
        if not callable(call):
            return call

        def made(*args: Any, **kwargs: Any) -> Any:
            if self.is_dead:
                raise StoreUnusable("this process is dead")
            if name in self.WRITES and self.writes_left is not None:
                self.is_dead = self.writes_left == 0
                self.writes_left -= 1
            if self.is_dead and not self.lands:
                raise StoreUnusable("the process dies before this write")
            result = call(*args, **kwargs)
            if self.is_dead:
                raise StoreUnusable("the process dies after this write")
            return result

        return made
