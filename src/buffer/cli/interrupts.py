"""Ctrl-C for every command. Installed once, by `shell.run`; whatever waits, waits by `InterruptibleClock.sleep`.

Three things kept a command that waits from ending, each of them rarely:

- A program started in the background by a script finds SIGINT ignored, and Python then never raises KeyboardInterrupt.
  Our handler is installed whatever was there before: whoever sends a signal to this very process means it.
- A KeyboardInterrupt that is raised while a destructor or a callback of native code runs is printed and dropped. So
  the handler notes the signal before it raises, and every wait looks at the note.
- A signal that the system hands to another thread does not end a long sleep of the main one. So sleeps are short.

The handler takes no lock and prints nothing: it may run in the middle of any call.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from buffer.clock import SystemClock
from buffer.stopping import on_signals

SLEEP_MAX_S = 0.2

_noted: list[int] = []
"""Signals that came. One process, one list: there is one set of signal handlers too."""


def _on_signal(number: signal.Signals) -> None:
    _noted.append(number)
    raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt in the block, at the latest at the next wait."""
    if threading.current_thread() is not threading.main_thread():  # the notes are the main thread's
        yield
        return
    _noted.clear()
    try:
        with on_signals(_on_signal, [signal.SIGINT]):
            yield
    finally:
        _noted.clear()


def check_interrupt() -> None:
    """Raise KeyboardInterrupt if a signal came, even if the one that its handler raised was dropped."""
    if _noted and threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt


class InterruptibleClock(SystemClock):
    """The system's clock; its sleeps end when a signal comes."""

    def sleep(self, seconds: float) -> None:
        end_s = self.monotonic_s() + seconds
        check_interrupt()
        while (left_s := end_s - self.monotonic_s()) > 0:
            super().sleep(min(left_s, SLEEP_MAX_S))
            check_interrupt()
