"""What a store really does, found out by doing it: can it be reached, does it honour conditional writes.

A queue rests on two promises of its store: of two writers who create an object one loses, and a write on an old version
loses. A server that answers "done" to both would lose entries without a word, so it is tried out, on an object of our
own that is deleted afterwards: `{prefix}/.check-{ULID}`, a name that no reader and no collector takes for a batch.
If the process dies in between, that object is left; it is in nobody's way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from buffer.clock import Clock
from buffer.errors import BufferQueueError, ObjectNotFound, StoreUnusable
from buffer.inspect.human import human_seconds, plural
from buffer.inspect.status import QueueStatus, queue_status
from buffer.store.base import Lost, Outcome, Store, Unknown, Won

CLOCK_SLACK_S = 5.0
CLOCK_WRONG_S = 300.0  # half of the collector's grace: beyond it, batches could be deleted too early

Verdict = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    said: str


def finding(what: str, look: Callable[[], str]) -> Finding:
    """What a look says; an error of ours is what is wrong."""
    try:
        return Finding(what, "ok", look())
    except BufferQueueError as error:
        return Finding(what, "wrong", str(error))


def check_store(store: Store, manifest_path: str, prefix: str, clock: Clock) -> list[Finding]:
    """Reachable, honest, and a clock that is not behind: without anything of the queue being changed."""
    found = [finding("store", lambda: _reach(store, manifest_path))]
    if found[0].verdict == "wrong":
        return found
    found.append(finding("conditional writes", lambda: try_conditional_writes(store, prefix, clock)))
    return [*found, *_store_clock(store, prefix, clock)]


def _store_clock(store: Store, prefix: str, clock: Clock) -> list[Finding]:
    """Ours against the store's, where that tells when it wrote an object."""
    location = f"{prefix}/.check-{clock.new_ulid()}"
    before_ms = clock.now_ms()
    try:
        store.put(location, b"what time is it?")
        modified_ms = store.head(location).modified_ms
    except BufferQueueError as error:
        return [Finding("store's clock", "wrong", str(error))]
    finally:
        store.delete_many([location])
    if modified_ms is None:
        return []
    # Whole seconds on most servers, and the write took a while: what is left over is a difference.
    off_s = max(before_ms - modified_ms - 1000, modified_ms - clock.now_ms(), 0) / 1000
    said = f"this machine's is within {human_seconds(max(off_s, 1.0))} of it"
    if off_s <= CLOCK_SLACK_S:
        return [Finding("store's clock", "ok", said)]
    verdict: Verdict = "wrong" if off_s > CLOCK_WRONG_S else "note"
    return [Finding("store's clock", verdict, f"this machine's is {human_seconds(off_s)} off: set it by NTP")]


def check_queue(store: Store, manifest_path: str, clock: Clock) -> tuple[QueueStatus | None, list[Finding]]:
    """The queue as it is, and what the times in it say about our clock."""
    try:
        queue = queue_status(store, manifest_path, data_path_prefix=None, clock=clock)
    except ObjectNotFound:
        return None, [Finding("queue", "note", "there is none yet: the first producer makes it")]
    except BufferQueueError as error:
        return None, [Finding("queue", "wrong", str(error))]
    waiting = plural(queue.length, "batches")
    found = [Finding("queue", "ok", f"{waiting} waiting, next sequence {queue.next_sequence}, epoch {queue.epoch}")]
    if queue.blocked is not None:
        said = f"batches {queue.blocked.first}..{queue.blocked.last}: {queue.blocked.reason}"
        found.append(Finding("blocked", "wrong", f"{said}; see `buffer-delta unblock`"))
    return queue, [*found, _clock(queue, clock)]


def _clock(queue: QueueStatus, clock: Clock) -> Finding:
    if queue.newest_ingestion_ms is None:
        return Finding("clock", "note", "nothing in the queue tells the time of another machine")
    ahead_s = (queue.newest_ingestion_ms - clock.now_ms()) / 1000
    if ahead_s > CLOCK_SLACK_S:
        said = f"a producer's clock is {human_seconds(ahead_s)} ahead of this one: set them by NTP"
        return Finding("clock", "wrong" if ahead_s > CLOCK_WRONG_S else "note", said)
    return Finding("clock", "ok", f"the newest entry is {human_seconds(max(0.0, -ahead_s))} old, by this clock")


def _reach(store: Store, manifest_path: str) -> str:
    try:
        store.head(manifest_path)
    except ObjectNotFound:
        return f"{store.url} answers; it has no {manifest_path!r} yet"
    return f"{store.url} answers"


def try_conditional_writes(store: Store, prefix: str, clock: Clock) -> str:
    """Raises StoreUnusable if a write goes through that must not, or the other way round."""
    location = f"{prefix}/.check-{clock.new_ulid()}"
    try:
        first = _won(store, store.put_if_absent(location, b"1"), "creating an object")
        _lost(store, location, store.put_if_absent(location, b"2"), b"1", "creating an object that is there")
        second = _won(store, store.put_if_match(location, b"3", first), "writing on the newest version")
        _lost(store, location, store.put_if_match(location, b"4", first), b"3", "writing on an old version")
        if store.get_if_changed(location, second) is not None:
            raise _dishonest(store, "asking for a change where there is none was answered with the object")
    finally:
        store.delete_many([location])
    return "of two writers one loses, as a queue needs it"


def _won(store: Store, outcome: Outcome, what: str) -> str:
    match outcome:
        case Won(version):
            return version
        case Unknown(cause):
            raise StoreUnusable(f"{store.url}: {what} has no known outcome: {cause}") from cause
    raise _dishonest(store, f"{what} was refused")


def _lost(store: Store, location: str, outcome: Outcome, kept: bytes, what: str) -> None:
    if isinstance(outcome, Unknown):
        raise StoreUnusable(f"{store.url}: {what} has no known outcome: {outcome.cause}") from outcome.cause
    if not isinstance(outcome, Lost) or store.get(location).data != kept:
        raise _dishonest(store, f"{what} went through")


def _dishonest(store: Store, what: str) -> StoreUnusable:
    return StoreUnusable(
        f"{store.url} does not keep its word on conditional writes: {what}. A queue there would lose entries; use "
        "another server, or another release of it"
    )
