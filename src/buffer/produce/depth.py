"""Back-pressure by the length of the queue (`max_depth`): `produce` refuses while readers are too far behind.

The producer's own appends tell how long the queue is, so a call costs nothing while it is short. When it is too long
nobody appends, so the manifest is read again, once a second at most. Between two looks the last one counts: several
producers may overshoot by what they have under way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from buffer.cas import CasObject
from buffer.clock import Clock
from buffer.errors import QueueFull, StorageError
from buffer.manifest import Manifest
from buffer.store.base import CanSwap

LOOK_INTERVAL_S = 1.0  # a long manifest is large, and a caller that is refused may call again at once


class DepthGate:
    """Refuses calls while the queue is too long. Safe to use from any thread."""

    def __init__(
        self, store: CanSwap, manifest_path: str, clock: Clock, max_depth: int, seen: Callable[[], Manifest | None]
    ) -> None:
        """`seen` gives the manifest as the producer's appends last saw it."""
        self._object = CasObject(store, manifest_path, clock)
        self._clock = clock
        self._max_depth = max_depth
        self._seen = seen
        self._lock = threading.Lock()
        self._looked: Manifest | None = None
        self._next_look_s = clock.monotonic_s()

    def is_open(self) -> bool:
        """Whether calls may pass, by what is known without a look."""
        seen = self._seen()
        return seen is not None and len(self._newer(seen)) < self._max_depth

    def check(self) -> None:
        """Look again if it is time to. Raises QueueFull; of an error of the store the append will tell."""
        if self.is_open():
            return
        if self._lock.acquire(blocking=False):  # else another thread, or the call that a signal interrupted, looks
            try:
                if self._clock.monotonic_s() >= self._next_look_s:
                    self._look()
                    self._next_look_s = self._clock.monotonic_s() + LOOK_INTERVAL_S
            finally:
                self._lock.release()
        depth = len(self._newer(self._seen()))
        if depth >= self._max_depth:
            raise QueueFull(
                f"the queue {self._object.location!r} holds {depth:,} batches, and max_depth is {self._max_depth:,}: "
                "nothing was accepted. Call again when its readers have caught up",
                location=self._object.location,
                depth=depth,
                max_depth=self._max_depth,
            )

    def _look(self) -> None:
        try:
            data = self._object.read().data
        except StorageError as error:
            if not error.retryable:
                raise
            return  # a queue that cannot be looked at is not known to be too long
        self._looked = Manifest.empty() if data is None else Manifest.from_bytes(data, location=self._object.location)

    def _newer(self, seen: Manifest | None) -> Manifest:
        """Of two looks the later one: neither end of a queue ever goes back."""
        looked = self._looked or Manifest.empty()
        if seen is None:
            return looked
        return max(looked, seen, key=lambda manifest: (manifest.next_sequence, manifest.first_sequence))
