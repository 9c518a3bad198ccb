"""Breaks of the older format's protocol: claims, acks, clean-up, appends. Each must be seen in its own worlds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from typing import Any
from unittest.mock import patch

from buffer.cas import Snapshot
from buffer.errors import ContentionError, IdempotencyConflict, ProducerStopped, StorageError
from buffer.legacy import ingestor, manifests
from buffer.legacy.claims import Claims, CollectedBatch
from buffer.legacy.format import (
    ConsumerManifest,
    ProducerManifest,
    decode_producer_manifest,
    encode_consumer_manifest,
)
from buffer.legacy.ingestor import Flusher
from buffer.legacy.manifests import Ack, Held
from buffer.legacy.migration import Migration
from buffer.legacy.moves import Move, Moves, encode_moves
from buffer.legacy.new_queue import NewQueue
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


# The migration


@legacy_mutant(r"moved again|in the queue already")
def claims_are_looked_at_before_the_list_of_moves() -> Iterator[None]:
    """Another migration finishes a batch between the two looks: it is numbered again."""

    def number(self: Migration) -> Moves:
        ready = self._line().ready
        self._read(ready)

        def change(seen: Snapshot) -> bytes | None:
            moves = self._decode_moves(seen)
            if moves.open:
                return None
            batches = [(where, len(self._entries[where])) for where in takewhile(self._entries.__contains__, ready)]
            return encode_moves(moves.assigned(batches)) if batches else None

        return self._decode_moves(self._list.update(change))

    with patch.object(Migration, "_number", number):
        yield


@legacy_mutant(r"is not in the new queue: it is lost")
def moved_before_it_is_durable() -> Iterator[None]:
    """The old queue is told first."""
    real = Migration.__init__

    class AcksFirst:
        def __init__(self, migration: Migration, target: NewQueue) -> None:
            self._migration = migration
            self._target = target

        def put(self, client_id: str, moves: Any, *rest: Any, **options: Any) -> int:
            self._migration._ack(moves)
            return self._target.put(client_id, moves, *rest, **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._target, name)

    def init(self: Migration, *args: Any, **options: Any) -> None:
        real(self, *args, **options)
        self._target = AcksFirst(self, self._target)  # type: ignore[assignment]

    with patch.object(Migration, "__init__", init):
        yield


@legacy_mutant(r"which is not done")
def retired_before_it_is_done() -> Iterator[None]:
    """Whoever comes next finds the claims, and no numbers: it gives new ones."""
    real = Migration._ack

    def ack(self: Migration, finished: tuple[Move, ...]) -> int:
        self._retire(finished, -1)
        return real(self, finished)

    with patch.object(Migration, "_ack", ack):
        yield


@legacy_mutant(r"moved again|in the queue already|which is not done")
def numbers_of_an_earlier_life_are_dropped() -> Iterator[None]:
    """A process begins with a list of its own."""
    real = Migration.open

    def open_anew(self: Migration) -> Moves:
        moves = real(self)

        def change(seen: Snapshot) -> bytes | None:
            found = self._decode_moves(seen)
            return encode_moves(replace(found, open=(), generation=found.generation + 1)) if found.open else None

        self._list.update(change)
        return moves

    with patch.object(Migration, "open", open_anew):
        yield


@legacy_mutant(r"is not in the new queue: it is lost")
def client_goes_on_behind_a_conflict() -> Iterator[None]:
    """What another migration may have in the queue is held for done: a conflict is taken for an answer."""
    real = NewQueue._produce

    def produce(self: NewQueue, producer: Any, moves: Any, entries_of: Any) -> int:
        try:
            return real(self, producer, moves, entries_of)
        except (ContentionError, ProducerStopped, StorageError, IdempotencyConflict):
            return max(move.end for move in moves) - 1

    with patch.object(NewQueue, "_produce", produce):
        yield


@legacy_mutant(r"were moved, in this order|behind call")
def order_is_not_waited_for() -> Iterator[None]:
    """What is behind another's claim is moved past it."""

    def line(consumer: ConsumerManifest, producer: ProducerManifest) -> manifests.Line:
        waiting = manifests._waiting(consumer, producer)
        ready = tuple(where for where in waiting if consumer.claimed.get(where) == manifests.MOVING_MS)
        return manifests.Line(ready, None, len(waiting))

    with patch.object(manifests, "line", line):
        yield
