"""A queue of the older format over compare-and-swap: its manifests, what is parked, its objects, the clean-up.

What a Collector (`claims.py`) and the migration (`migration.py`) share. Each of them has one of its own, and nothing
here remembers anything but what was read last.

**A crash within a clean-up:** 1 done durably → 2 objects deleted → 3 gone from pending → 4 gone from done. Only what is
done is touched. Between any two steps it still is done, so nobody delivers it, and the next clean-up repeats all steps
without harm.

Objects go first. Were they last, a crash before would leave them for ever; and an Ingestor that lost the answer to
an append, and finds its location no longer pending, could not tell "collected and cleaned up" from "never
appended". This way the object's absence tells (see `ingestor.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from buffer.cas import CasObject, Snapshot
from buffer.clock import Clock
from buffer.consume.fetch import FetchHandle
from buffer.errors import CorruptBatch, InvalidInput, ManifestLost, ObjectNotFound
from buffer.legacy import manifests
from buffer.legacy.config import CollectorConfig
from buffer.legacy.format import (
    ConsumerManifest,
    KeyValueEntry,
    ProducerManifest,
    consumer_manifest_path,
    decode_batch,
    decode_consumer_manifest,
    decode_producer_manifest,
    encode_consumer_manifest,
    encode_producer_manifest,
    object_location,
    parked_path,
)
from buffer.legacy.parked import ParkedFile, Unreadable, decode_parked, encode_parked
from buffer.model import BatchDescriptor
from buffer.names import check_location
from buffer.store.base import CanDelete, CanSwap

log = logging.getLogger(__name__)

UNREADABLE = (CorruptBatch, ObjectNotFound, InvalidInput)
"""What `fetch_pairs` raises for a batch that nobody can read; whatever else it raises is the store's."""


class CanCollect(CanSwap, CanDelete, Protocol):
    """What is needed of a store."""


def fetch_pairs(reader: FetchHandle, location: str) -> list[KeyValueEntry]:
    """The pairs of a batch. Raises one of UNREADABLE, and StorageError."""
    data = reader.fetch_raw(BatchDescriptor(0, object_location(location))).data
    return decode_batch(data, location)


class LegacyQueue:
    """The files of one queue. Not thread-safe."""

    def __init__(self, store: CanCollect, config: CollectorConfig, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._cas_timeout_s = config.cas_timeout_s
        self._timeout_ms = config.heartbeat_timeout_ms
        self._threshold = config.done_cleanup_threshold
        self._producer = self._cas(config.manifest_path)
        self._consumer = self._cas(consumer_manifest_path(config.manifest_path))
        self._parked = self._cas(parked_path(config.manifest_path))
        self._reader = FetchHandle(store, config.max_batch_bytes, config.fetch_attempts, clock)

    def _cas(self, path: str) -> CasObject:
        return CasObject(self._store, path, self._clock, timeout_s=self._cas_timeout_s)

    def _fetch(self, location: str) -> list[KeyValueEntry]:
        return fetch_pairs(self._reader, location)

    # Both manifests

    def _both(self, seen: Snapshot) -> tuple[ConsumerManifest, ProducerManifest]:
        """The consumer manifest as it was seen, and the producer's as it is now: in this order, see `manifests`."""
        consumer = self._decode(seen)
        pending = self._producer.read()
        if pending.data is None and not consumer.is_empty:
            raise self._manifest_lost()
        return consumer, decode_producer_manifest(pending.data, self._producer.location)

    def _decode(self, seen: Snapshot) -> ConsumerManifest:
        return decode_consumer_manifest(seen.data, self._consumer.location)

    def _manifest_lost(self) -> ManifestLost:
        return ManifestLost(
            f"there is no producer manifest at {self._producer.location!r}, but a consumer manifest with claims at "
            f"{self._consumer.location!r}: restore the former; nothing was changed",
            location=self._producer.location,
        )

    # What is parked

    def parked(self) -> Mapping[str, Unreadable]:
        """What is set aside for good, and why."""
        return {where: what for where, what in self._parked_file().unreadable.items() if what.parked}

    def _mark_parked(self, location: str, tokens: Collection[int]) -> None:
        """Let the claim, if it is one of these, be one that never goes stale."""

        def change(seen: Snapshot) -> bytes | None:
            consumer = self._decode(seen)
            is_ours = consumer.claimed.get(location) in tokens
            return encode_consumer_manifest(manifests.park(consumer, location)) if is_ours else None

        self._consumer.update(change)

    def _parked_file(self) -> ParkedFile:
        return decode_parked(self._parked.read().data, self._parked.location)

    def _update_parked(self, decide: Callable[[ParkedFile], ParkedFile]) -> ParkedFile:
        def change(seen: Snapshot) -> bytes | None:
            before = decode_parked(seen.data, self._parked.location)
            after = decide(before)
            return None if after == before else encode_parked(after)

        return decode_parked(self._parked.update(change).data, self._parked.location)

    # Clean-up

    def clean_up(self) -> int:
        """Remove what is done: objects, pending locations, done marks. Returns how many. See the order above."""
        consumer, producer = self._both(self._consumer.read())
        finished = manifests.finished(consumer, producer)
        removed = self._delete_objects(finished, manifests.remove(producer, set(finished)).pending)
        if not removed:
            return 0
        self._producer.update(lambda seen: self._removed(seen, removed))
        self._consumer.update(lambda seen: self._forgotten(seen, removed))
        if removed & self._parked_file().unreadable.keys():
            self._update_parked(lambda file: file.without(removed))
        return len(removed)

    def _delete_objects(self, gone: Iterable[str], kept: Iterable[str]) -> set[str]:
        """Delete their objects; returns the locations without those whose object could not be deleted."""
        needed = {object_location(where) for where in kept}  # two spellings of one object
        doomed = {object_location(where) for where in gone if _is_allowed(where)} - needed
        failures = self._store.delete_many(sorted(doomed)) if doomed else []
        for failure in failures:
            log.warning(
                "%r could not be deleted and stays until the next clean-up: %s", failure.location, failure.cause
            )
        failed = {failure.location for failure in failures}
        return {where for where in gone if object_location(where) not in failed}

    def _removed(self, seen: Snapshot, gone: set[str]) -> bytes | None:
        if seen.data is None:
            raise self._manifest_lost()
        before = decode_producer_manifest(seen.data, self._producer.location)
        after = manifests.remove(before, gone)
        return None if after == before else encode_producer_manifest(after)

    def _forgotten(self, seen: Snapshot, gone: set[str]) -> bytes | None:
        consumer, producer = self._both(seen)
        after = manifests.forget(consumer, producer, gone)
        return None if after == consumer else encode_consumer_manifest(after)


def _is_allowed(location: str) -> bool:
    """Whether a store could have an object there; what a foreign writer put into a manifest may be anything."""
    try:
        check_location(object_location(location))
    except InvalidInput:
        return False
    return True
