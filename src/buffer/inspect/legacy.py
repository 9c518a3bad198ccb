"""A queue of the older format, seen from outside: what waits, who works on it, whether it can be read.

Nothing is claimed and nothing is changed. The consumer manifest is read before the producer's, as everywhere (see
`buffer.legacy.manifests`). A batch may be finished while we look: what seems missing counts only if it still waits
at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any

from buffer.clock import Clock, SystemClock
from buffer.consume.fetch import FetchHandle
from buffer.errors import BufferQueueError, CorruptData, ManifestLost, ObjectNotFound, StorageError
from buffer.inspect.human import human_time, plural
from buffer.legacy.config import CollectorConfig
from buffer.legacy.format import (
    KeyValueEntry,
    consumer_manifest_path,
    decode_consumer_manifest,
    decode_producer_manifest,
    moves_path,
)
from buffer.legacy.manifests import MOVING_MS, PARKED_MS, is_stale
from buffer.legacy.moves import Moves, decode_moves
from buffer.legacy.queue import UNREADABLE, fetch_pairs
from buffer.store.base import CanGet

_SYSTEM_CLOCK = SystemClock()
DEFAULT_TIMEOUT_MS = CollectorConfig.heartbeat_timeout_ms


class State(Enum):
    """What is going on with a batch that is not done."""

    FREE = "free"
    CLAIMED = "claimed"
    STALE = "stale"
    MOVING = "moving"
    PARKED = "parked"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A batch that is pending and not done."""

    location: str
    state: State
    claimed_ms: int | None


@dataclass(frozen=True, slots=True)
class LegacyStatus:
    """One look at a queue of the older format."""

    store: str
    manifest: str
    waiting: tuple[Waiting, ...]
    """In the order of the queue."""
    done: int
    """Acked and not cleaned up yet."""
    moves: Moves | None
    """None if nobody has begun to migrate it."""

    def count(self, state: State) -> int:
        return Counter(batch.state for batch in self.waiting)[state]

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the same keys always."""
        moves = self.moves
        return {
            "format": "older",
            "store": self.store,
            "manifest": self.manifest,
            "consumer_manifest": consumer_manifest_path(self.manifest),
            "length": len(self.waiting),
            **{state.value: self.count(state) for state in State},
            "done": self.done,
            "migration": None
            if moves is None
            else {
                "target": moves.target,
                "client_id": moves.client_id,
                "batches": moves.batches,
                "pairs": moves.pairs,
                "under_way": len(moves.open),
            },
        }

    def facts(self) -> dict[str, str | None]:
        """For people."""
        oldest = min((batch.claimed_ms or 0 for batch in self.waiting if batch.state is State.CLAIMED), default=None)
        claimed, stale = self.count(State.CLAIMED), self.count(State.STALE)
        parked, moving, moves = self.count(State.PARKED), self.count(State.MOVING), self.moves
        return {
            "queue": f"{self.store} {self.manifest}",
            "format": "the older one, with two manifests: `buffer migrate` moves it into a new queue",
            "waiting": plural(len(self.waiting), "batches") if self.waiting else "nothing",
            "claimed": f"{plural(claimed, 'batches')}, the oldest refreshed {human_time(oldest)}" if claimed else None,
            "stale": f"{plural(stale, 'batches')}: their Collector is gone, anybody takes them over" if stale else None,
            "parked": f"{plural(parked, 'batches')} that cannot be read: `buffer verify` tells" if parked else "no",
            "done": f"{plural(self.done, 'batches')}, to be cleaned up" if self.done else None,
            "migration": None
            if moves is None
            else f"into the queue with the id {moves.target}: {plural(moves.batches, 'batches')} and "
            f"{plural(moves.pairs, 'pairs')} moved, {moving:,} taken",
        }


def is_legacy_manifest(data: bytes) -> bool:
    """Whether these bytes are a producer manifest of the older format. A manifest of the new one never is."""
    try:
        decode_producer_manifest(data)
    except CorruptData:
        return False
    return True


def legacy_status(
    store: CanGet, manifest_path: str, *, timeout_ms: int = DEFAULT_TIMEOUT_MS, clock: Clock = _SYSTEM_CLOCK
) -> LegacyStatus:
    """Look at a queue. Raises ObjectNotFound if there is none, ManifestLost, CorruptManifest, or the store's error."""
    moves = _get(store, moves_path(manifest_path))
    claims = _get(store, consumer_manifest_path(manifest_path))
    consumer = decode_consumer_manifest(claims, consumer_manifest_path(manifest_path))
    pending = _get(store, manifest_path)
    url = getattr(store, "url", "the store")
    if pending is None and not consumer.is_empty:
        raise ManifestLost(
            f"there is no producer manifest {manifest_path!r}, but a consumer manifest with claims: restore the former",
            location=manifest_path,
        )
    if pending is None:
        raise ObjectNotFound(f"{url} has no queue of the older format at {manifest_path!r}", location=manifest_path)
    now_ms, done = clock.now_ms(), set(consumer.done)
    producer = decode_producer_manifest(pending, manifest_path)

    def look(location: str) -> Waiting:
        ms = consumer.claimed.get(location)
        return Waiting(location, _state(ms, now_ms, timeout_ms), ms)

    return LegacyStatus(
        store=url,
        manifest=manifest_path,
        waiting=tuple(look(location) for location in dict.fromkeys(producer.pending) if location not in done),
        done=len(done & set(producer.pending)),
        moves=None if moves is None else decode_moves(moves, moves_path(manifest_path)),
    )


def _state(claimed_ms: int | None, now_ms: int, timeout_ms: int) -> State:
    if claimed_ms is None:
        return State.FREE
    if claimed_ms in (PARKED_MS, MOVING_MS):
        return State.PARKED if claimed_ms == PARKED_MS else State.MOVING
    return State.STALE if is_stale(claimed_ms, now_ms, timeout_ms) else State.CLAIMED


def _get(store: CanGet, location: str) -> bytes | None:
    try:
        return store.get(location).data
    except ObjectNotFound:
        return None


# Reading


@dataclass(frozen=True, slots=True)
class CheckedPairs:
    """One batch that was read, or the reason why it was not."""

    location: str
    state: State
    pairs: int = 0
    bytes: int = 0
    """Of keys and values."""
    problem: str | None = None
    error: str = ""


def check_pairs(reader: FetchHandle, waiting: Iterable[Waiting], jobs: int = 4) -> Iterator[CheckedPairs]:
    """Read these batches, `jobs` at a time, in order. Whatever is wrong with one is in its result."""
    batches = list(waiting)
    with ThreadPoolExecutor(jobs, thread_name_prefix="buffer-verify") as pool:
        for start in range(0, len(batches), jobs):
            yield from pool.map(lambda batch: _check(reader, batch), batches[start : start + jobs])


def _check(reader: FetchHandle, batch: Waiting) -> CheckedPairs:
    pairs = try_pairs(reader, batch.location)
    if isinstance(pairs, BufferQueueError):
        missing = isinstance(pairs, ObjectNotFound)
        damaged = missing or not isinstance(pairs, StorageError)
        problem = "missing" if missing else "corrupt" if damaged else "unreadable"
        return CheckedPairs(batch.location, batch.state, problem=problem, error=str(pairs))
    size = sum(len(pair.key) + len(pair.value) for pair in pairs)
    return CheckedPairs(batch.location, batch.state, len(pairs), size)


def try_pairs(reader: FetchHandle, location: str) -> list[KeyValueEntry] | BufferQueueError:
    """The pairs of a batch, or why they cannot be had."""
    try:
        return fetch_pairs(reader, location)
    except (*UNREADABLE, StorageError) as error:
        return error


def still_bad(checked: Iterable[CheckedPairs], newest: LegacyStatus) -> Sequence[CheckedPairs]:
    """Those with a problem that still wait."""
    waiting = {batch.location for batch in newest.waiting}
    return [item for item in checked if item.problem is not None and item.location in waiting]
