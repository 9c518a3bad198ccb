"""SIGINT and SIGTERM end a loader after the commit in hand; a second one ends it at once."""

from __future__ import annotations

import signal
from contextlib import AbstractContextManager, nullcontext

from buffer.stopping import StopFlag, on_signals


def stopped_by_signals(stop: StopFlag, *, handle: bool) -> AbstractContextManager[None]:
    """While this lasts, a signal sets `stop`; only in the main thread, where Python has signals, and if `handle`."""

    def end(number: signal.Signals) -> None:
        if stop.is_set():
            raise KeyboardInterrupt(f"second {number.name}")
        stop.set()

    return on_signals(end, (signal.SIGINT, signal.SIGTERM)) if handle else nullcontext()
