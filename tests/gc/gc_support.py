"""What the collector's tests share: objects of any age, queues that name them or not."""

from __future__ import annotations

from typing import Any

from buffer.clock import SystemClock
from buffer.config import GcConfig
from buffer.gc import collector as gc_module
from buffer.gc.collector import Collector
from buffer.manifest import Manifest
from buffer.queue import QueueConsumer, QueueProducer
from buffer.store.base import Store
from buffer.testing.clock import ManualClock
from tests.consume.consumer_support import MANIFEST, ulid_at

NOW_MS = 1_800_000_000_000
SECOND_MS = 1000
HOUR_MS = 3600 * SECOND_MS
DAY_MS = 24 * HOUR_MS
GRACE_MS = 600 * SECOND_MS


def put_batch(store: Store, age_ms: int, tail: int = 0, prefix: str = "ingest") -> str:
    """An object as an upload leaves it: not in the queue."""
    location = f"{prefix}/{ulid_at(NOW_MS - age_ms, tail)}.batch"
    store.put(location, b"")
    return location


def enqueue(store: Store, *locations: str) -> None:
    QueueProducer(store, MANIFEST, SystemClock()).append_locations([(location, ()) for location in locations])


def empty_manifest(store: Store) -> None:
    store.put(MANIFEST, Manifest.empty().claim().to_bytes())


def touch_manifest(store: Store) -> None:
    """Any change will do: a claim moves no entry."""
    QueueConsumer(store, MANIFEST, SystemClock()).claim()


def collector(store: Store, **settings: Any) -> Collector:
    return Collector(GcConfig(store=store, **settings), clock=ManualClock(NOW_MS))


def locations(store: Store) -> set[str]:
    return {item.location for item in store.list("ingest")} - {MANIFEST}


def collect_twice(store: Store, **settings: Any) -> gc_module.GcReport:
    """Two looks with a change of the manifest between them: whatever is deletable goes."""
    subject = collector(store, **settings)
    subject.collect_once()
    touch_manifest(store)
    return subject.collect_once()
