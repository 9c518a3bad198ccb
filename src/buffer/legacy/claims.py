"""One Collector's work on the two manifests, without threads: claim, read, ack, heartbeat, clean up, park.

`Collector` adds the heartbeat's thread; a simulator drives `Claims` step by step. One thread calls `next_batch`,
`ack` and `unpark`; one other may call `beat` at any moment. They share nothing but `Held` values, and each of them
only ever adds what it is about to write before it writes it. The rules themselves are in `manifests.py`.

**What a crash or a lost answer does**

    after a claim             nobody acks it; it goes stale and is taken over
    after an ack              it is done or it is not; if not, it goes stale and is delivered again
    while parking             see `parked.py`
    within a clean-up         see `queue.py`
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from buffer.cas import Snapshot
from buffer.clock import Clock
from buffer.errors import AckOutcomeUnknown, BufferQueueError, ClaimLost
from buffer.legacy import manifests
from buffer.legacy.config import CollectorConfig
from buffer.legacy.format import KeyValueEntry, encode_consumer_manifest
from buffer.legacy.manifests import Ack, Held
from buffer.legacy.queue import UNREADABLE, CanCollect, LegacyQueue

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CollectedBatch:
    """A batch that was claimed and read. Hand it to `ack` when its entries are processed."""

    entries: list[KeyValueEntry] = field(repr=False)
    location: str
    claimed_ms: int
    """Which claim of the location this is."""


class Claims(LegacyQueue):
    """The manifests as one Collector sees them."""

    def __init__(self, store: CanCollect, config: CollectorConfig, clock: Clock) -> None:
        super().__init__(store, config, clock)
        self._read_tries = config.read_tries
        self._heartbeat = self._cas(self._consumer.location)  # a `CasObject` has one owner: this one is the heartbeat's
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
            self._mark_parked(location, held.tokens)
            return None
        try:
            return self._fetch(location)
        except UNREADABLE as error:
            self._set_aside(location, held, error)
            return None

    def _drop(self, location: str, held: Held) -> None:
        if self._held.get(location) is held:
            del self._held[location]

    # Parking

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
        self._mark_parked(location, held.tokens)
        log.error("%r cannot be read and is parked, see %r: %s", location, self._parked.location, why)

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
