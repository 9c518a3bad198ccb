"""SIGINT and SIGTERM end a loader after the commit in hand; a second one ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from buffer.stopping import StopFlag


@contextmanager
def stopped_by_signals(stop: StopFlag, *, handle: bool) -> Iterator[None]:
    """While this lasts, a signal sets `stop`; only in the main thread, where Python has signals, and if `handle`."""
    if not handle or threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, _frame: FrameType | None) -> None:
        # It logs nothing: the thread may be in the middle of a write to the same stream.
        if stop.is_set():
            raise KeyboardInterrupt(f"second {signal.Signals(number).name}")
        stop.set()

    # None is a handler that was not set from Python: nobody can put that one back, and `signal` refuses it.
    earlier = {number: signal.getsignal(number) or signal.SIG_DFL for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in earlier:
            signal.signal(number, on_signal)
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
