"""Compare-and-swap on one object, bounded. Knows nothing of queues: the manifest and the ledger give it meaning.

`CasObject.update` is the loop for changes that may be computed again from whatever is there (claim, dequeue,
ledger writes). Appending needs more care (see `queue.py`) and drives `read`, `write` and `attempts` itself.

What a crash or a lost reply does to `update`: the write happened or it did not, and nobody was told. The next
caller reads what is there and computes its change from that, so every `change` must be right in both cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from buffer.clock import Clock
from buffer.errors import ContentionError, ObjectNotFound, StorageError
from buffer.store.base import CanSwap, Outcome, Unknown, Version, Won

CAS_ATTEMPTS_MAX = 64  # then ContentionError: the caller sheds load
BACKOFF_FIRST_S = 0.004
BACKOFF_MAX_S = 1.0  # GCS allows about one write a second to one object


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
        timeout_s: float = 60.0,
        attempts_max: int = CAS_ATTEMPTS_MAX,
        observe: Callable[[Outcome], None] = unobserved,
    ) -> None:
        self.location = location
        self._store = store
        self._clock = clock
        self._timeout_s = timeout_s
        self._attempts_max = attempts_max
        self._observe = observe
        self._last: Snapshot = ABSENT

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

        Raises the store's error only where trying again cannot help: this write was refused.
        """
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
        deadline = self._clock.monotonic_s() + self._timeout_s
        for attempt in range(self._attempts_max):
            if attempt:
                ceiling = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2**attempt)
                self._clock.sleep(self._clock.jitter(0.0, ceiling))
                if self._clock.monotonic_s() > deadline:
                    return
            yield attempt

    def update(self, change: Callable[[Snapshot], bytes | None]) -> Snapshot:
        """Write what `change` makes of the newest content, until it is Won or `change` returns None.

        Returns the content that now stands: ours, if we wrote. Errors of `change` end the loop. When attempts or
        time are up raises ContentionError, or the store's error if nothing could be read. A write whose reply was
        lost may still stand then; calling again is safe either way, for `change` decides anew.
        """
        trouble: Exception | None = None
        tried, wrote = 0, False
        for attempt in self.attempts():
            tried = attempt + 1
            try:
                seen = self.read()
            except StorageError as error:
                if not error.retryable:
                    raise
                trouble = error
                continue
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

    def contention(self, attempts: int) -> ContentionError:
        return ContentionError(
            f"gave up on {self.location!r} after {attempts} attempts within {self._timeout_s:g} s; "
            "call again, or write less often: larger batches, fewer writers",
            location=self.location,
            attempts=attempts,
        )
