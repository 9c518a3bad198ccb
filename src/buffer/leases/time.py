"""The time of a queue with leases, as one worker tells it: a wrong clock ends no lease early, and keeps none for ever.

A lease is held until a time, and all workers must agree on the time: whatever they say, no two leases hold one batch,
for the section's time never goes back. What a wrong clock can do is subtler. One that is a year ahead would end every
lease at once, and then hold the time still for a year: no lease of a worker that dies would ever end. One that is
behind would wait for its own hour to come. So a worker says the greatest of:

    running   the section's time when this worker first saw it, and what has passed since by its monotonic clock. That
              much has surely passed since the write that stored it, whoever made it. So time never stands still while
              anybody looks, whatever the wall clocks say; and no lease ends early by it
    store     the store's time, where it was asked: or a clock that is right would end the leases of one that is behind
    own       its wall clock, if that is not ahead of the store's time by more than `CLOCK_AHEAD_MAX_MS`

**The store's time** is when the ledger was last written, as the store says it: a lower bound of now. A process asks for
it once (`head`), before it says its own time for the first time, and its monotonic clock carries it on. A ledger that
was written long ago says little, so it is written again, unchanged, and asked about once more. That is one request in a
process's life, three on a queue that was idle.

So no write puts the section's time ahead of the store's by more than `CLOCK_AHEAD_MAX_MS`, however many clocks are
wrong. A worker with a wrong clock works on, and says so in its log. Too slow is safe: leases hold for longer then.

- Process dies after the ledger was written unchanged: nothing happened.
- A machine sleeps: its monotonic clock may stand still meanwhile, so its wall clock looks ahead of what it knew of the
  store; it asks again, `ASK_EVERY_S` after the last time at the earliest.
- A store that tells no times: the wall clock is believed, as ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from buffer.clock import Clock

log = logging.getLogger(__name__)

CLOCK_AHEAD_MAX_MS = 60_000  # clocks that are kept in step differ by far less
ASK_EVERY_S = 60.0  # a worker whose clock is wrong asks that often


class QueueTime:
    """One worker's. Not thread-safe."""

    def __init__(self, clock: Clock, modified: Callable[[], int | None], rewrite: Callable[[], None]) -> None:
        """`modified` says when the ledger was written, by the store's clock; `rewrite` writes it as it is."""
        self._clock = clock
        self._modified = modified
        self._rewrite = rewrite
        self._seen: tuple[int, float] | None = None
        """The newest time of the section, and when we saw it first, by our monotonic clock."""
        self._store: tuple[int, float] | None = None
        """A time that had come for the store at a moment of our monotonic clock."""
        self._asked_s: float | None = None
        self._is_silent = False

    def now_ms(self, time_ms: int) -> int | None:
        """The time for a write on a section with this one. None: nobody can tell before `ask`."""
        running, own = self.running_ms(time_ms), self._clock.now_ms()
        if own <= running or self._is_silent:
            return max(own, running)
        store = self._store_ms()
        if store is not None and own <= store + CLOCK_AHEAD_MAX_MS:
            return max(own, running, store)
        if store is None or self._asked_s is None or self._clock.monotonic_s() - self._asked_s >= ASK_EVERY_S:
            return None
        return max(running, store)

    def running_ms(self, time_ms: int) -> int:
        """The section's time, carried on for as long as we know it."""
        now_s = self._clock.monotonic_s()
        if self._seen is None or time_ms > self._carried_on(self._seen):
            self._seen = (time_ms, now_s)
        return self._carried_on(self._seen)

    def ask(self) -> None:
        """Compare our clock with the store's. Raises the store's errors: call again."""
        self._hear(self._modified())
        store = self._store_ms()
        if store is not None and self._clock.now_ms() > store + CLOCK_AHEAD_MAX_MS:
            self._rewrite()
            self._hear(self._modified())
        store = self._store_ms()
        self._asked_s = self._clock.monotonic_s()
        if self._is_silent or store is None:
            return
        ahead_ms = self._clock.now_ms() - store
        if ahead_ms > CLOCK_AHEAD_MAX_MS:
            log.warning(
                "this machine's clock is %d s ahead of the store's: leases go by the store's time here; set the clock",
                ahead_ms // 1000,
            )

    def _hear(self, modified_ms: int | None) -> None:
        if modified_ms is None:
            self._is_silent = True
            log.warning("the store does not say when objects were written: this machine's clock is believed as it is")
            return
        known = self._store_ms()
        self._store = (max(modified_ms, 0 if known is None else known), self._clock.monotonic_s())

    def _store_ms(self) -> int | None:
        return None if self._store is None else self._carried_on(self._store)

    def _carried_on(self, known: tuple[int, float]) -> int:
        time_ms, at_s = known
        return time_ms + int((self._clock.monotonic_s() - at_s) * 1000)
