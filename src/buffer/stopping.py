"""Ending: a flag that says "stop" from anywhere (other threads, signal handlers, destructors), handlers of signals, and
`with` blocks.

`threading.Event` cannot: `set` takes the lock that `wait` holds for moments, so a signal handler that sets the event on
which its own thread is just beginning to wait never returns. `queue.SimpleQueue` cannot either: in CPython 3.11 a `get`
with a timeout that a signal interrupts in its last moment waits for ever. This one waits for a lock that is held until
the flag is set; nobody holds another while he waits, and releasing never waits.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from time import monotonic
from types import FrameType

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


@contextmanager
def on_signals(
    act: Callable[[signal.Signals], object], numbers: Collection[signal.Signals], *, once: bool = False
) -> Iterator[None]:
    """While this lasts, each of these signals calls `act`; then what handled it before is back, however the block ends.

    `once`: of each signal only the first one does, and the next is handled as before. Outside of the main thread this
    does nothing: Python has signals there alone. `act` may interrupt any line of the main thread, which may hold a lock
    or be in the middle of a write: it takes no lock, and it neither logs nor prints. It may raise.

    A child that forks off meanwhile has nothing here to bring to an end: its signals are handled as before.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # All of them before the first is replaced: a signal may come in between. None is a handler that was not set from
    # Python: nobody can put that one back, and `signal` refuses it.
    earlier = {number: signal.getsignal(number) or signal.SIG_DFL for number in numbers}
    pid = os.getpid()

    def handle(number: int, _frame: FrameType | None) -> None:
        came = signal.Signals(number)
        if os.getpid() != pid:
            signal.signal(came, earlier[came])
            signal.raise_signal(came)
            return
        act(came)
        if once:
            signal.signal(came, earlier[came])

    with ExitStack() as stack:
        for number, handler in earlier.items():
            stack.callback(signal.signal, number, handler)  # first: ours may raise as soon as it is there
            signal.signal(number, handle)
        yield


def join_once(thread: threading.Thread, waiting: set[int]) -> bool:
    """Wait for a thread's end, unless this is a handler that has interrupted its own thread in doing so: `join` takes a
    lock for a moment, and would wait for itself. Whether it has waited. `waiting` is the caller's, for all such calls.
    """
    me = threading.get_ident()
    if me in waiting:
        return False
    waiting.add(me)
    try:
        thread.join()
    finally:
        waiting.discard(me)
    return True


def close_after(error: BaseException | None, close: Callable[[], None], what: str) -> None:
    """Close at the end of a `with` block. A failure must not hide the error that ended the block: it becomes a note."""
    try:
        close()
    except BufferQueueError as failure:
        if error is None:
            raise
        error.add_note(f"closing the {what} failed as well: {type(failure).__name__}: {failure}")
