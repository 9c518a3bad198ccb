"""One Collector's work on the two manifests, without threads: claim, read, ack, heartbeat, clean up, park.

`Collector` adds the heartbeat's thread; a simulator drives `Claims` step by step. One thread calls `next_batch`,
`ack` and `unpark`; one other may call `beat` at any moment. They share nothing but `Held` values, and each of them
only ever adds what it is about to write before it writes it. The rules themselves are in `manifests.py`.

**What a crash or a lost answer does**

    after a claim             nobody acks it; it goes stale and is taken over
    after an ack              it is done or it is not; if not, it goes stale and is delivered again
    while parking             see `parked.py`
    within a clean-up         1 done durably → 2 objects deleted → 3 gone from pending → 4 gone from done
                              Only what is done is touched. Between any two steps it still is done, so nobody
                              delivers it, and the next clean-up repeats all steps without harm

Objects go first. Were they last, a crash before would leave them for ever; and an Ingestor that lost the answer to
an append, and finds its location no longer pending, could not tell "collected and cleaned up" from "never
appended". This way the object's absence tells (see `ingestor.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from buffer.cas import CasObject, Snapshot
from buffer.clock import Clock
from buffer.consume.fetch import FetchHandle
from buffer.errors import (
    AckOutcomeUnknown,
    BufferQueueError,
    ClaimLost,
    CorruptBatch,
    InvalidInput,
    ManifestLost,
    ObjectNotFound,
)
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
from buffer.legacy.manifests import Ack, Held
from buffer.legacy.parked import ParkedFile, Unreadable, decode_parked, encode_parked
from buffer.model import BatchDescriptor
from buffer.names import check_location
from buffer.store.base import CanDelete, CanSwap

log = logging.getLogger(__name__)


class CanCollect(CanSwap, CanDelete, Protocol):
    """What a Collector needs of a store."""


@dataclass(frozen=True, slots=True)
class CollectedBatch:
    """A batch that was claimed and read. Hand it to `ack` when its entries are processed."""

    entries: list[KeyValueEntry] = field(repr=False)
    location: str
    claimed_ms: int
    """Which claim of the location this is."""


class Claims:
    """The manifests as one Collector sees them."""

    def __init__(self, store: CanCollect, config: CollectorConfig, clock: Clock) -> None:
        def cas(path: str) -> CasObject:
            return CasObject(store, path, clock, timeout_s=config.cas_timeout_s)

        self._store = store
        self._clock = clock
        self._timeout_ms = config.heartbeat_timeout_ms
        self._threshold = config.done_cleanup_threshold
        self._read_tries = config.read_tries
        self._producer = cas(config.manifest_path)
        self._consumer = cas(consumer_manifest_path(config.manifest_path))
        self._heartbeat = cas(self._consumer.location)  # a `CasObject` has one owner: this one is the heartbeat's
        self._parked = cas(parked_path(config.manifest_path))
        self._reader = FetchHandle(store, attempts=config.fetch_attempts, clock=clock)
        self._held: dict[str, Held] = {}

    @property
    def held(self) -> list[str]:
        """Locations whose claims are believed to be ours."""
        return list(self._held)

    # Claiming and reading

    def next_batch(self) -> CollectedBatch | None:
        """Claim the next batch and read it; None if there is nothing to claim.

        A batch that cannot be read is counted, perhaps parked, and passed over. On any other error the claim, if
        there is one, is left to go stale: nothing is lost.
        """
        while (found := self._claim()) is not None:
            location, held, is_taken_over = found
            try:
                entries = self._read(location, held, is_taken_over)
            except BaseException:
                self._drop(location, held)
                raise
            if entries is not None:
                return CollectedBatch(entries, location, held.first_ms)
            self._drop(location, held)
        return None

    def _claim(self) -> tuple[str, Held, bool] | None:
        found: tuple[str, Held, bool] | None = None

        def change(seen: Snapshot) -> bytes | None:
            nonlocal found
            consumer, producer = self._both(seen)
            now_ms = self._clock.now_ms()
            location = manifests.choose(consumer, producer, self._held, now_ms, self._timeout_ms)
            if location is None:
                found = None
                return None
            claimed, token = manifests.claim(consumer, location, now_ms)
            found = location, Held(token), location in consumer.claimed
            return encode_consumer_manifest(claimed)

        # It returns once a claim is Won or there is none to make: a claim without an answer is never trusted.
        self._consumer.update(change)
        if found is not None:
            self._held[found[0]] = found[1]  # before it is read: that may take longer than a heartbeat
        return found

    def _read(self, location: str, held: Held, is_taken_over: bool) -> list[KeyValueEntry] | None:
        """The entries; None if the batch was set aside."""
        if is_taken_over and self._parked_file().is_parked(location):
            self._mark_parked(location, held)
            return None
        try:
            data = self._reader.fetch_raw(BatchDescriptor(0, object_location(location))).data
            return decode_batch(data, location)
        except (CorruptBatch, ObjectNotFound, InvalidInput) as error:
            self._set_aside(location, held, error)
            return None

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

    def _drop(self, location: str, held: Held) -> None:
        if self._held.get(location) is held:
            del self._held[location]

    # Parking

    def parked(self) -> Mapping[str, Unreadable]:
        """What is set aside for good, and why."""
        return {where: what for where, what in self._parked_file().unreadable.items() if what.parked}

    def unpark(self, location: str) -> None:
        """Let a parked batch be tried again, as often as any other. Call it again if it fails."""
        # First the file: whoever takes the claim over before that would park it again.
        self._update_parked(lambda file: file.without({location}))

        def change(seen: Snapshot) -> bytes | None:
            consumer = self._decode(seen)
            if consumer.claimed.get(location) != manifests.PARKED_MS:
                return None
            return encode_consumer_manifest(manifests.unpark(consumer, location))

        self._consumer.update(change)

    def _set_aside(self, location: str, held: Held, error: BufferQueueError) -> None:
        # Only while it is ours: a batch that another one has finished and cleaned up cannot be read either.
        if self._decode(self._consumer.read()).claimed.get(location) not in held.tokens:
            log.info("%r was taken over before it could be read", location)
            return
        why = f"{type(error).__name__}: {error}"
        file = self._update_parked(lambda file: file.count(location, held.first_ms, why, self._read_tries))
        tries = len(file.unreadable[location].tries)
        if not file.is_parked(location):
            log.warning("%r cannot be read (try %d of %d): %s", location, tries, self._read_tries, why)
            return
        self._mark_parked(location, held)
        log.error("%r cannot be read and is parked, see %r: %s", location, self._parked.location, why)

    def _mark_parked(self, location: str, held: Held) -> None:
        def change(seen: Snapshot) -> bytes | None:
            consumer = self._decode(seen)
            is_ours = consumer.claimed.get(location) in held.tokens
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

    # Heartbeats

    def beat(self) -> list[str]:
        """Refresh all claims in one write; returns those that turn out to be lost. On an error, call again."""
        held = dict(self._held)
        if not held:
            return []
        written: dict[str, int] = {}

        def change(seen: Snapshot) -> bytes | None:
            nonlocal written
            now_ms = self._clock.now_ms()
            refreshed, written = manifests.refresh(self._decode(seen), held, now_ms, self._timeout_ms)
            for location, token in written.items():
                held[location].tokens.add(token)  # before it is sent: from then on it may be found
            return encode_consumer_manifest(refreshed) if written else None

        self._heartbeat.update(change)
        # One with an ack under way is gone because that landed, or lost: `ack` finds out.
        lost = [where for where in held if where not in written and held[where].acked_over_ms is None]
        for location in lost:
            self._drop(location, held[location])
        return lost

    # Acks

    def ack(self, batch: CollectedBatch) -> None:
        """Mark the batch as done. Raises ClaimLost or AckOutcomeUnknown; after other errors it may be called again."""
        location, held = batch.location, self._held.get(batch.location)
        if held is None or held.first_ms != batch.claimed_ms:
            raise self._claim_lost(location)

        def change(seen: Snapshot) -> bytes | None:
            consumer = self._decode(seen)
            verdict = manifests.judge_ack(consumer, location, held, self._clock.now_ms(), self._timeout_ms)
            if verdict is Ack.COUNTED:
                return None
            if verdict is Ack.LOST:
                raise self._claim_lost(location)
            if verdict is Ack.UNKNOWN:
                raise AckOutcomeUnknown(
                    f"{location!r} is done, but the answer to our ack was lost for so long that another Collector "
                    "may have taken it over and acked it: see whose results are there before you use ours",
                    location=location,
                )
            held.acked_over_ms = consumer.claimed[location]
            return encode_consumer_manifest(manifests.ack(consumer, location))

        try:
            stands = self._consumer.update(change)
        except (ClaimLost, AckOutcomeUnknown):
            self._drop(location, held)
            raise
        self._drop(location, held)
        if len(self._decode(stands).done) >= self._threshold:
            try:
                self.clean_up()
            except BufferQueueError as error:
                log.warning("the clean-up after an ack was left to the next one: %s: %s", type(error).__name__, error)

    def release(self, batch: CollectedBatch) -> None:
        """Refresh its claim no more: it goes stale, and somebody gets the batch again."""
        held = self._held.get(batch.location)
        if held is not None and held.first_ms == batch.claimed_ms:
            self._drop(batch.location, held)

    def _claim_lost(self, location: str) -> ClaimLost:
        return ClaimLost(
            f"this Collector does not hold {location!r}: it was acked before, or not refreshed for "
            f"{self._timeout_ms:,} ms and taken over by another one; drop what was made of it",
            location=location,
        )

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
