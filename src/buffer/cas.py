"""Compare-and-swap on one object, bounded. Knows nothing of queues: the manifest and the ledger give it meaning.

`CasObject.update` is the loop for changes that may be computed again from whatever is there (claim, dequeue,
ledger writes). Appending needs more care (see `queue.py`) and drives `read`, `write` and `attempts` itself.

What a crash or a lost reply does to `update`: the write happened or it did not, and nobody was told. The next
caller reads what is there and computes its change from that, so every `change` must be right in both cases.

**Writing from memory** (`update(…, optimistic=True)`): the first try is made on the content that we read or wrote
last, without a read. It is safe because the store compares versions: if anybody wrote in between, our version is
stale, nothing is replaced, and we read and decide as ever. Contents never come back (epochs, sequences and
generations grow), so a version that matches means the very content that was decided on. What memory cannot do is
refuse: "nothing to do" or an error found in it may be out of date, so both are decided again on a fresh read. Only a
write may rest on memory. An older process that wakes up gets no further than before: its write loses, and the read
after it tells why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from buffer.backoff import Backoff
from buffer.clock import Clock
from buffer.errors import ContentionError, ObjectNotFound, ObjectTooLarge, StorageError
from buffer.store.base import STATE_BYTES_MAX, CanSwap, Outcome, Unknown, Version, Won

CAS_ATTEMPTS_MAX = 64  # then ContentionError: the caller sheds load
CAS_BACKOFF = Backoff(
    first_s=0.008,
    max_s=1.0,  # GCS allows about one write a second to one object
    attempts_max=CAS_ATTEMPTS_MAX,
    timeout_s=60.0,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was read: bytes and version, or neither where there is no object."""

    data: bytes | None = field(repr=False)
    version: Version | None


ABSENT = Snapshot(None, None)


def unobserved(_outcome: Outcome) -> None:
    """The default observer: nobody counts."""


class CasObject:
    """One object, changed only by compare-and-swap. Not thread-safe: one owner each."""

    def __init__(
        self,
        store: CanSwap,
        location: str,
        clock: Clock,
        *,
        timeout_s: float = CAS_BACKOFF.timeout_s,
        observe: Callable[[Outcome], None] = unobserved,
    ) -> None:
        self.location = location
        self._store = store
        self._clock = clock
        self._backoff = replace(CAS_BACKOFF, timeout_s=timeout_s)
        self._observe = observe
        self._last: Snapshot = ABSENT
        self._memory_pays = True
        """Whether what we remembered was the newest the last time. Where others write all the time it rarely is, and
        a write that is bound to lose costs more than a read."""

    def read(self) -> Snapshot:
        """The newest content. If it did not change since the last look, nothing is transferred."""
        try:
            if self._last.version is None:
                found = self._store.get(self.location)
            else:
                changed = self._store.get_if_changed(self.location, self._last.version)
                if changed is None:
                    return self._last
                found = changed
        except ObjectNotFound:
            self._last = ABSENT
            return ABSENT
        self._last = Snapshot(found.data, found.version)
        return self._last

    def write(self, seen: Snapshot, data: bytes) -> Outcome:
        """Replace what was seen. Only `Won` is an answer; after anything else, read before deciding.

        Raises the store's error only where trying again cannot help: this write was refused. So is one that nobody
        could read again.
        """
        if len(data) > STATE_BYTES_MAX:
            raise ObjectTooLarge(
                f"{self.location!r} would have {len(data):,} bytes, and at most {STATE_BYTES_MAX:,} can be read again: "
                "let its consumers catch up first, and write fewer, larger batches with less metadata",
                location=self.location,
                retryable=False,
                size=len(data),
            )
        outcome: Outcome
        try:
            if seen.version is None:
                outcome = self._store.put_if_absent(self.location, data)
            else:
                outcome = self._store.put_if_match(self.location, data, seen.version)
        except StorageError as error:
            if not error.retryable:
                raise
            outcome = Unknown(error)  # a 429 is contention like any other, and no proof that nothing happened
        self._observe(outcome)
        if isinstance(outcome, Won):
            self._last = Snapshot(data, outcome.version)
        return outcome

    def attempts(self) -> Iterator[int]:
        """Count attempts, with jittered pauses between them, until attempts or time run out."""
        return self._backoff.attempts(self._clock)

    def update(self, change: Callable[[Snapshot], bytes | None], *, optimistic: bool = False) -> Snapshot:
        """Write what `change` makes of the newest content, until it is Won or `change` returns None.

        Returns the content that now stands: ours, if we wrote. Errors of `change` end the loop. When attempts or
        time are up raises ContentionError, or the store's error if nothing could be read. A write whose reply was
        lost may still stand then; calling again is safe either way, for `change` decides anew.

        With `optimistic` the first try is on the content remembered, and costs no read; see the module's rules.
        """
        trouble: Exception | None = None
        tried, wrote = 0, False
        if optimistic and self._memory_pays:
            outcome = self._write_from_memory(change)
            if isinstance(outcome, Won):
                return self._last
            wrote = outcome is not None
            self._memory_pays = not wrote
            trouble = outcome.cause if isinstance(outcome, Unknown) else None
        for attempt in self.attempts():
            tried = attempt + 1
            remembered = self._last
            try:
                seen = self.read()
            except StorageError as error:
                if not error.retryable:
                    raise
                trouble = error
                continue
            self._memory_pays = self._memory_pays or seen is remembered
            data = change(seen)
            if data is None:
                return seen
            outcome = self.write(seen, data)
            if isinstance(outcome, Won):
                return self._last
            wrote = True
            if isinstance(outcome, Unknown):
                trouble = outcome.cause
        if trouble and not wrote:  # the store is down, not busy
            raise trouble
        raise self.contention(tried) from trouble

    def _write_from_memory(self, change: Callable[[Snapshot], bytes | None]) -> Outcome | None:
        """One try without a read; None if nothing was sent."""
        if self._last.version is None:
            return None
        try:
            data = change(self._last)
        except Exception:  # noqa: BLE001 - what memory refuses is decided again on what is really there
            return None
        return None if data is None else self.write(self._last, data)

    def until(self, step: Callable[[], T | None]) -> T:
        """Repeat `step` until it answers, through errors of the store that may pass, as long as `update` would try.

        For changes that look at other objects between the read and the write. A step that answers None is repeated.
        """
        trouble: StorageError | None = None
        tried = 0
        for attempt in self.attempts():
            tried = attempt + 1
            try:
                answer = step()
            except StorageError as error:
                if not error.retryable:
                    raise
                trouble = error
            else:
                trouble = None
                if answer is not None:
                    return answer
        raise trouble or self.contention(tried)

    def contention(self, attempts: int) -> ContentionError:
        return ContentionError(
            f"gave up on {self.location!r} after {attempts} attempts within {self._backoff.timeout_s:g} s; "
            "call again, or write less often: larger batches, fewer writers",
            location=self.location,
            attempts=attempts,
        )
