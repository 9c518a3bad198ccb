"""Ending: a flag that says "stop" from anywhere (other threads, signal handlers, destructors), and `with` blocks.

`threading.Event` cannot: `set` takes the lock that `wait` holds for moments, so a signal handler that sets the event on
which its own thread is just beginning to wait never returns. `queue.SimpleQueue` cannot either: in CPython 3.11 a `get`
with a timeout that a signal interrupts in its last moment waits for ever. This one waits for a lock that is held until
the flag is set; nobody holds another while he waits, and releasing never waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from buffer.errors import BufferQueueError

WAIT_MAX_S = 0.5  # at once, in the main thread: a signal that the system hands to another one does not end a wait here


class StopFlag:
    """Set once, for good. `set` never waits and may interrupt any other call, `set` itself too."""

    def __init__(self) -> None:
        self._is_set = False
        self._gate = threading.Lock()
        self._gate.acquire()

    def set(self) -> None:
        self._is_set = True
        self._open()

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is set, at most so long. Whether it is."""
        deadline_s = monotonic() + timeout_s
        in_main = threading.current_thread() is threading.main_thread()
        while not self._is_set and (left_s := deadline_s - monotonic()) > 0:
            if self._gate.acquire(timeout=min(left_s, WAIT_MAX_S) if in_main else min(left_s, threading.TIMEOUT_MAX)):
                self._open()  # for whoever waits beside us
        return self._is_set

    def _open(self) -> None:
        with suppress(RuntimeError):  # it is open already: another `set`, or one in the middle of this call
            self._gate.release()


def close_after(error: BaseException | None, close: Callable[[], None], what: str) -> None:
    """Close at the end of a `with` block. A failure must not hide the error that ended the block: it becomes a note."""
    try:
        close()
    except BufferQueueError as failure:
        if error is None:
            raise
        error.add_note(f"closing the {what} failed as well: {type(failure).__name__}: {failure}")
