"""How many bytes of decoded batches may be in memory at once, for threads that fetch ahead.

What a batch expands to is known only once its stored bytes are there, and may be a thousand times as much. So a thread
asks before it decodes, and waits while there is no room. The first in line, and one where nobody holds anything, is
never kept waiting, or nothing would move: what is held is at most the limit, or one batch above it, and one batch
more. Called by `read_ahead` and `inspect.verify`.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from concurrent.futures import thread as pool_threads
from math import inf

from buffer.errors import Closed

assert pool_threads  # imported before `_lift_all` is registered: what is registered last runs first
_budgets: weakref.WeakSet[Budget] = weakref.WeakSet()


def _lift_all() -> None:
    for budget in list(_budgets):
        budget.lift()


# A pool's threads are waited for when the interpreter ends. One that waits for room in an iterator that was never
# closed would keep the process for ever. Finalizers and `atexit` come after that wait, hence the inner door.
getattr(threading, "_register_atexit", atexit.register)(_lift_all)


class Budget:
    """Bytes held, by sequence. Threads may share it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes: float = max_bytes
        self._held: dict[int, int] = {}
        self._front = 0
        self._closed = False
        self._changed = threading.Condition()
        _budgets.add(self)

    def reserve(self, sequence: int, size: int) -> None:
        """Wait until `size` bytes more fit, or until everything before this sequence is done. Raises Closed.

        What the sequence held before is given back.
        """
        with self._changed:
            self._held.pop(sequence, None)
            while not self._closed and sequence > self._front and not self._fits(size):
                self._changed.wait()
            if self._closed:
                raise Closed("the reading ended before this batch was needed")
            self._held[sequence] = size

    def _fits(self, size: int) -> bool:
        return not self._held or sum(self._held.values()) + size <= self._max_bytes

    def release(self, sequence: int) -> None:
        """The batch is no longer ours: handed out, or failed."""
        with self._changed:
            self._held.pop(sequence, None)
            self._changed.notify_all()

    def move_front(self, sequence: int) -> None:
        """All before this sequence are done."""
        with self._changed:
            self._front = sequence
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody wait any longer."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def lift(self) -> None:
        """No limit from now on, for the interpreter ends. Pools start nothing more then, so little is still to come."""
        with self._changed:
            self._max_bytes = inf
            self._changed.notify_all()
