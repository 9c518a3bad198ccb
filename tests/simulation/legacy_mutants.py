"""Breaks of the older format's protocol: claims, acks, clean-up, appends. Each must be seen in its own worlds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from buffer.cas import Snapshot
from buffer.legacy import ingestor, manifests
from buffer.legacy.claims import Claims, CollectedBatch
from buffer.legacy.format import (
    ConsumerManifest,
    decode_producer_manifest,
    encode_consumer_manifest,
)
from buffer.legacy.ingestor import Flusher
from buffer.legacy.manifests import Ack, Held
from buffer.store.base import Won
from tests.simulation.mutants import Mutant

LEGACY_MUTANTS: dict[str, Mutant] = {}
"""Apart from the others: their worlds are not those that a seed picks from."""

NOT_OURS = r"which belongs to|is not stale|belongs to another|that belongs to"


def legacy_mutant(sees: str) -> Callable[[Callable[[], Iterator[None]]], Callable[[], Iterator[None]]]:
    def register(make: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
        LEGACY_MUTANTS[make.__name__] = Mutant(frozenset(), sees, contextmanager(make))
        return make

    return register


# Claims


@legacy_mutant(NOT_OURS)
def claim_without_token() -> Iterator[None]:
    """Whoever believes to hold a claim may ack it, whatever time stands there."""

    def judge(consumer: ConsumerManifest, location: str, *_: object) -> Ack:
        return Ack.OURS if location in consumer.claimed else Ack.LOST

    with patch.object(manifests, "judge_ack", judge):
        yield


@legacy_mutant(NOT_OURS)
def heartbeat_without_token() -> Iterator[None]:
    """One that wakes up refreshes what another has taken over."""
    real = manifests.refresh

    def refresh(consumer: ConsumerManifest, held: dict[str, Held], now_ms: int, timeout_ms: int) -> Any:
        for location, claim in held.items():
            if location in consumer.claimed:
                claim.tokens.add(consumer.claimed[location])
        return real(consumer, held, now_ms, timeout_ms)

    with patch.object(manifests, "refresh", refresh):
        yield


@legacy_mutant(NOT_OURS)
def late_heartbeat_writes_the_time() -> Iterator[None]:
    """A heartbeat may write what only a take-over writes: read back, nobody knows whose it is."""

    def refresh(consumer: ConsumerManifest, held: dict[str, Held], now_ms: int, _timeout_ms: int) -> Any:
        written = {
            location: max(now_ms, before + 1)
            for location, claim in held.items()
            if (before := consumer.claimed.get(location)) is not None and before in claim.tokens
        }
        return ConsumerManifest({**consumer.claimed, **written}, consumer.done), written

    with patch.object(manifests, "refresh", refresh):
        yield


@legacy_mutant(NOT_OURS)
def lost_claim_is_trusted() -> Iterator[None]:
    """The time read back is the one we wrote, so the claim must be ours."""

    def claim(self: Claims) -> Any:
        sent: dict[str, tuple[str, Held, bool]] = {}
        found: tuple[str, Held, bool] | None = None

        def change(seen: Snapshot) -> bytes | None:
            nonlocal found
            consumer, producer = self._both(seen)
            for location, earlier in sent.items():
                if consumer.claimed.get(location) == earlier[1].first_ms:
                    found = earlier
                    return None
            now_ms = self._clock.now_ms()
            location = manifests.choose(consumer, producer, self._held, now_ms, self._timeout_ms)
            found = None
            if location is None:
                return None
            claimed, token = manifests.claim(consumer, location, now_ms)
            found = sent[location] = location, Held(token), location in consumer.claimed
            return encode_consumer_manifest(claimed)

        self._consumer.update(change)
        if found is not None:
            self._held[found[0]] = found[1]
        return found

    with patch.object(Claims, "_claim", claim):
        yield


@legacy_mutant(r"its ack of|told that it lost")
def lost_ack_always_counts() -> Iterator[None]:
    """Done is done: after an ack without an answer it must have been ours."""
    real = manifests.judge_ack

    def judge(consumer: ConsumerManifest, location: str, held: Held, *rest: int) -> Ack:
        verdict = real(consumer, location, held, *rest)
        return Ack.COUNTED if verdict is Ack.UNKNOWN else verdict

    with patch.object(manifests, "judge_ack", judge):
        yield


@legacy_mutant(r"told that it lost")
def lost_ack_never_counts() -> Iterator[None]:
    """The claim is gone, so somebody else must have it."""
    real = manifests.judge_ack

    def judge(consumer: ConsumerManifest, location: str, held: Held, *rest: int) -> Ack:
        verdict = real(consumer, location, held, *rest)
        return verdict if verdict is Ack.OURS else Ack.LOST

    with patch.object(manifests, "judge_ack", judge):
        yield


# Clean-up


@legacy_mutant(r"delivered again")
def producer_manifest_is_read_first() -> Iterator[None]:
    """A clean-up between the two looks makes done batches look untouched."""

    def claim(self: Claims) -> Any:
        for _ in self._consumer.attempts():
            producer = decode_producer_manifest(self._producer.read().data)
            seen = self._consumer.read()
            consumer = self._decode(seen)
            now_ms = self._clock.now_ms()
            location = manifests.choose(consumer, producer, self._held, now_ms, self._timeout_ms)
            if location is None:
                return None
            claimed, token = manifests.claim(consumer, location, now_ms)
            if isinstance(self._consumer.write(seen, encode_consumer_manifest(claimed)), Won):
                self._held[location] = Held(token)
                return location, self._held[location], location in consumer.claimed
        raise self._consumer.contention(1)

    with patch.object(Claims, "_claim", claim):
        yield


@legacy_mutant(r"which is not done")
def clean_up_before_done() -> Iterator[None]:
    """The object and the pending location go first, the ack comes after."""
    real = Claims.ack

    def ack(self: Claims, batch: CollectedBatch) -> None:
        held = self._held.get(batch.location)
        if held is not None:
            self._delete_objects([batch.location], [])
            self._producer.update(lambda seen: self._removed(seen, {batch.location}))
        real(self, batch)

    with patch.object(Claims, "ack", ack):
        yield


@legacy_mutant(r"still pending|delivered again")
def done_is_forgotten_first() -> Iterator[None]:
    """The consumer manifest is cleaned before the producer's."""

    def clean_up(self: Claims) -> int:
        consumer, producer = self._both(self._consumer.read())
        gone = set(manifests.finished(consumer, producer))
        self._consumer.update(lambda seen: self._forgotten(seen, gone))
        self._producer.update(lambda seen: self._removed(seen, gone))
        return len(gone)

    with patch.object(Claims, "clean_up", clean_up):
        yield


@legacy_mutant(r"in the queue already")
def clean_up_empties_the_producer_manifest() -> Iterator[None]:
    """The last location goes too: the manifest comes back to an earlier content, and a late append matches it."""
    with patch.object(manifests, "finished", lambda consumer, _producer: list(dict.fromkeys(consumer.done))):
        yield


@legacy_mutant(r"in the queue already|still there")
def objects_go_last() -> Iterator[None]:
    """An Ingestor that lost an answer cannot tell what was cleaned up from what was never appended."""

    def clean_up(self: Claims) -> int:
        consumer, producer = self._both(self._consumer.read())
        gone = manifests.finished(consumer, producer)
        if gone:
            self._producer.update(lambda seen: self._removed(seen, set(gone)))
            self._consumer.update(lambda seen: self._forgotten(seen, set(gone)))
            self._delete_objects(gone, [])
        return len(gone)

    with patch.object(Claims, "clean_up", clean_up):
        yield


@legacy_mutant(r"which can be read")
def unreadable_is_counted_without_token() -> Iterator[None]:
    """What another one has finished and cleaned up is held for unreadable."""

    def set_aside(self: Claims, location: str, held: Held, error: Exception) -> None:
        file = self._update_parked(lambda file: file.count(location, held.first_ms, str(error), self._read_tries))
        if file.is_parked(location):
            self._mark_parked(location, held.tokens)

    with patch.object(Claims, "_set_aside", set_aside):
        yield


# Appends


@legacy_mutant(r"in the queue already")
def append_is_repeated_blindly() -> Iterator[None]:
    """What is not pending any more was never appended."""
    with patch.object(Flusher, "_is_there", lambda *_: True):
        yield


@legacy_mutant(r"its Ingestor got|was told that it would not")
def append_gives_up_too_surely() -> Iterator[None]:
    """Out of attempts, an append that may still land is called a failure."""
    real = Flusher._append

    def append(self: Flusher, locations: list[str]) -> None:
        try:
            real(self, locations)
        except ingestor.AppendOutcomeUnknown as error:
            raise self._manifest.contention(1) from error

    with patch.object(Flusher, "_append", append):
        yield
