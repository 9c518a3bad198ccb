"""A queue of the older format on a memory store, with a clock that moves only when told to."""

from __future__ import annotations

from typing import Any

from buffer.legacy.claims import Claims, CollectedBatch
from buffer.legacy.config import CollectorConfig, IngestorConfig
from buffer.legacy.format import (
    ConsumerManifest,
    KeyValueEntry,
    ProducerManifest,
    consumer_manifest_path,
    decode_consumer_manifest,
    decode_producer_manifest,
    encode_batch,
    encode_consumer_manifest,
    encode_producer_manifest,
)
from buffer.legacy.ingestor import Flusher
from buffer.produce.durability import Durable
from buffer.store import Store, open_store
from buffer.testing import ManualClock
from tests.legacy.golden import T0_MS

PATH = "q/manifest.json"
CONSUMER_PATH = "q/manifest.consumer.json"
PARKED_PATH = "q/manifest.parked.json"
TIMEOUT_MS = 30_000


def pair(text: str) -> KeyValueEntry:
    return KeyValueEntry(text.encode(), text.encode())


class LegacyQueue:
    def __init__(self, store: Store | None = None, path: str = PATH) -> None:
        self.store = store or open_store("memory://")
        self.path = path
        self.clock = ManualClock(start_ms=T0_MS)

    def claims(self, store: Any = None, **settings: Any) -> Claims:
        store = store or self.store
        config = CollectorConfig(store=store, manifest_path=self.path, data_path_prefix="q", **settings)
        return Claims(store, config, self.clock)

    def flusher(self, store: Any = None, **settings: Any) -> Flusher:
        store = store or self.store
        config = IngestorConfig(store=store, manifest_path=self.path, data_path_prefix="q", **settings)
        return Flusher(store, config, self.clock)

    def ingest(self, *texts: str) -> list[str]:
        """One batch for each; returns their locations."""
        settled = self.flusher().flush([encode_batch([pair(text)]) for text in texts])
        return [each.location for each in settled if isinstance(each, Durable)]

    def plant(self, pending: list[str], consumer: ConsumerManifest | None = None) -> None:
        """Manifests as somebody else wrote them."""
        self.store.put(self.path, encode_producer_manifest(ProducerManifest(tuple(pending))))
        if consumer is not None:
            self.store.put(consumer_manifest_path(self.path), encode_consumer_manifest(consumer))

    def plant_batch(self, location: str, *texts: str) -> None:
        self.store.put(location, encode_batch(pair(text) for text in texts))

    @property
    def pending(self) -> list[str]:
        return list(decode_producer_manifest(self.store.get(self.path).data).pending)

    @property
    def consumer(self) -> ConsumerManifest:
        return decode_consumer_manifest(self.store.get(consumer_manifest_path(self.path)).data)

    def objects(self) -> set[str]:
        return {info.location for info in self.store.list("q")}


def next_of(claims: Claims) -> CollectedBatch:
    """Claim one batch; there has to be one."""
    batch = claims.next_batch()
    assert batch is not None
    return batch


def drain(claims: Claims) -> list[CollectedBatch]:
    """Collect and ack whatever there is."""
    batches = []
    while (batch := claims.next_batch()) is not None:
        batches.append(batch)
        claims.ack(batch)
    return batches
