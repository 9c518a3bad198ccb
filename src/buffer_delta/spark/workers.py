"""What a task of ours does for the Python process it runs in. Both only save time.

**Acknowledging.** Spark sends a task through a loopback connection in two parts: what to do, then the rows. The JVM's
system holds the second, small one back until the first is acknowledged (Nagle's algorithm), and the worker's system
acknowledges after 40 ms, for there is nothing to send that it could go along with. A small range takes less than that.
So a task that begins lets its system acknowledge what has come.

**Freezing.** After each task Spark has the worker search all its objects for garbage, which takes as long for a few
hundred modules. After the first task those are exempted.
"""

from __future__ import annotations

import gc
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

_QUICKACK: int | None = getattr(socket, "TCP_QUICKACK", None)  # Linux alone has it, and the delay
_FILES = Path("/proc/self/fd")
_LOOPBACK = ("127.", "::1", "::ffff:127.")


def acknowledge() -> None:
    """Acknowledge at once what came through connections of this machine with itself. Where that fails it is late."""
    if _QUICKACK is None:
        return
    with suppress(OSError):
        for name in [int(path.name) for path in _FILES.iterdir()]:
            with suppress(OSError):  # closed meanwhile: the one that lists them, for one
                if stat.S_ISSOCK(os.fstat(name).st_mode):
                    _acknowledge(name, _QUICKACK)


def _acknowledge(opened: int, option: int) -> None:
    ours = os.dup(opened)  # for a socket of Python's closes its file
    try:
        found = socket.socket(fileno=ours)
    except OSError:
        os.close(ours)
        raise
    with found:
        if found.family not in (socket.AF_INET, socket.AF_INET6) or found.type != socket.SOCK_STREAM:
            return
        if str(found.getpeername()[0]).startswith(_LOOPBACK):
            found.setsockopt(socket.IPPROTO_TCP, option, 1)


class _Freezer:
    """Of this process."""

    def __init__(self) -> None:
        self._is_done = False

    def freeze(self) -> None:
        if not self._is_done:
            self._is_done = True
            gc.collect()  # what is garbage now would stay for ever
            gc.freeze()


freeze_once = _Freezer().freeze
"""Exempt all objects that there are by now from the search for garbage; later calls do nothing."""
