"""The two moments at which the interpreter tells producers that the world changes: a fork, and the end."""

from __future__ import annotations

import atexit
import os
import warnings
import weakref
from typing import Protocol

from buffer.clock import SystemClock

EXIT_WAIT_MAX_S = 2.0  # at interpreter exit, for all producers that were never closed

_real_time = SystemClock()


class Watched(Protocol):
    def forget_after_fork(self) -> None:
        """In a child: only the parent can settle what is under way."""
        ...

    def abandon_at_exit(self) -> str | None:
        """The interpreter ends: begin to flush. What its user is to be warned of."""
        ...

    def await_at_exit(self, deadline_s: float) -> None:
        """Wait for that, until then at most."""
        ...


_watched: weakref.WeakSet[Watched] = weakref.WeakSet()
"""Those of this process."""


def watch(engine: Watched) -> None:
    _watched.add(engine)


def _forget_after_fork() -> None:
    for engine in list(_watched):
        engine.forget_after_fork()
    _watched.clear()


def _abandon_at_exit() -> None:
    deadline_s = _real_time.monotonic_s() + EXIT_WAIT_MAX_S
    engines = list(_watched)
    unclosed = [engine.abandon_at_exit() for engine in engines]  # all of them: one may wait for a store until the end
    for engine in engines:
        engine.await_at_exit(deadline_s)
    for text in filter(None, unclosed):  # last: where warnings are errors, it raises
        warnings.warn(text, ResourceWarning, stacklevel=1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(_abandon_at_exit)
