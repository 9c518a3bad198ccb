"""Back-pressure by the length of the queue: `produce` refuses while readers are too far behind.

Two caps, each of them 0 for none: the producer's own `max_depth`, on the batches in the manifest; and that of a queue
with leases, which stands in its ledger, on the batches that workers have not finished.

The producer's own appends tell how long the queue is, so a call costs nothing while it is short. The ledger is looked
at by the first call, and then by the thread that appends, once a second at most: a caller never waits for that. When
the queue is too long nobody appends, so both are read by whoever calls, once a second at most. Between two looks the
last one counts: several producers may overshoot by what they have under way.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from buffer.cas import CasObject
from buffer.clock import Clock
from buffer.errors import CorruptLedger, QueueFull, StorageError
from buffer.ledger.leases import LeaseLedger, Leases
from buffer.manifest import Manifest
from buffer.names import ledger_path
from buffer.store.base import CanSwap

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0  # a long manifest is large, and a caller that is refused may call again at once


def _nothing_more() -> None:
    """The ledger alone: an append tells of the manifest."""


class DepthGate:
    """Refuses calls while the queue is too long. Safe to use from any thread."""

    def __init__(
        self, store: CanSwap, manifest_path: str, clock: Clock, max_depth: int, seen: Callable[[], Manifest | None]
    ) -> None:
        """`seen` gives the manifest as the producer's appends last saw it."""
        self._object = CasObject(store, manifest_path, clock)
        self._ledger = CasObject(store, ledger_path(manifest_path), clock)
        self._clock = clock
        self._max_depth = max_depth
        self._seen = seen
        self._lock = threading.Lock()
        self._has_looked = False
        self.is_uncapped = False
        """Nobody has set a cap, as far as the last look tells: a call need not ask."""
        self._looked: Manifest | None = None
        self._went_back: Manifest | None = None
        """What an append had seen before a look that found less: the manifest was put back, or is gone."""
        self._leases: Leases | None = None
        self._next_look_s = clock.monotonic_s()

    def is_open(self) -> bool:
        """Whether calls may pass, by what is known without a look."""
        return self._has_looked and self._full() is None

    def check(self) -> None:
        """Look again if it is time to. Raises QueueFull; of an error of the store the append will tell."""
        if self.is_open():
            return
        self._look_if_due(self._look_at_manifest)
        full = self._full()
        if full is None:
            return
        depth, max_depth = full
        raise QueueFull(
            f"the queue {self._object.location!r} holds {depth:,} batches, and max_depth is {max_depth:,}: "
            "nothing was accepted. Call again when its readers have caught up",
            location=self._object.location,
            depth=depth,
            max_depth=max_depth,
        )

    def refresh(self) -> None:
        """By the thread that appends, with each append: the cap of the queue may have changed. Raises nothing."""
        self._look_if_due(_nothing_more)

    def _full(self) -> tuple[int, int] | None:
        """The depth and the cap that it has reached."""
        cap = self._queues_cap()
        if not self._max_depth and not cap:
            return None
        seen = self._seen()
        if seen is not None and seen is self._went_back:
            return None  # the next append says what is wrong: whoever is refused here would never learn it
        manifest = self._newer(seen)
        depth = len(manifest)
        if self._max_depth and depth >= self._max_depth:
            return depth, self._max_depth
        if cap and self._leases is not None:
            # Workers leave what is finished in the manifest for a while; a reader that took over from them does not
            # say in their section what it has done.
            depth = min(depth, self._leases.depth(manifest.next_sequence))
        return (depth, cap) if cap and depth >= cap else None

    def _queues_cap(self) -> int:
        return 0 if self._leases is None else self._leases.config.max_depth

    def _look_if_due(self, look_on: Callable[[], None]) -> None:
        if not self._lock.acquire(blocking=False):  # another thread, or the call that a signal interrupted, looks
            return
        try:
            if self._clock.monotonic_s() >= self._next_look_s:
                self._next_look_s = self._clock.monotonic_s() + LOOK_INTERVAL_S  # first: also where the look fails
                self._look_at_ledger()
                look_on()
                self._has_looked = True
                self.is_uncapped = not self._max_depth and not self._queues_cap()
        finally:
            self._lock.release()

    def _look_at_ledger(self) -> None:
        """A producer only passes by: it may have no right to read the ledger, and what is wrong with it others say."""
        try:
            data = self._ledger.read().data
            self._leases = None if data is None else LeaseLedger.from_bytes(data).leases
        except CorruptLedger:
            self._leases = None
        except StorageError as error:
            log.debug("the ledger %r cannot be looked at: %s", self._ledger.location, error)

    def _look_at_manifest(self) -> None:
        if not self._max_depth and not self._queues_cap():
            return
        seen = self._seen()  # before the look, which must find no less
        try:
            data = self._object.read().data
        except StorageError as error:
            if not error.retryable:
                raise
            return  # a queue that cannot be looked at is not known to be too long
        looked = Manifest.empty() if data is None else Manifest.from_bytes(data, location=self._object.location)
        is_back = seen is not None and (
            looked.next_sequence < seen.next_sequence or looked.first_sequence < seen.first_sequence
        )
        self._looked, self._went_back = looked, seen if is_back else None

    def _newer(self, seen: Manifest | None) -> Manifest:
        """Of two looks the later one: neither end of a queue ever goes back."""
        looked = self._looked or Manifest.empty()
        if seen is None:
            return looked
        return max(looked, seen, key=lambda manifest: (manifest.next_sequence, manifest.first_sequence))
