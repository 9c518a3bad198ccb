"""A system that gives no more threads."""

from __future__ import annotations

import threading

import pytest


def allow_threads(patch: pytest.MonkeyPatch, count: int) -> None:
    """From here on so many can be started."""
    left, start = count, threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        nonlocal left
        if left == 0:
            raise RuntimeError("can't start new thread")
        left -= 1
        start(thread)

    patch.setattr(threading.Thread, "start", limited)
