"""Whether a file is still the one that was read, told by its inode, times and size. Used by `local.py`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from buffer.clock import SystemClock
from buffer.store.base import Version

COARSE_TICK_MS = 2_000  # of the coarsest file times in use (FAT)
FINE_TICK_MS = 100  # of times kept in nanoseconds: ten ticks of the slowest kernel clock
STAMPS_MAX = 64

Stamp: TypeAlias = tuple[int, int, int, int, int]

_clock = SystemClock()


class Stamps:
    """Which version a file had when it carried these inode, times and size: saves reading it again.

    Every write makes a new file, but inodes come back, and times are coarse: two writes within one tick can look
    the same. So a stamp is only remembered once it is older than a tick, when no later write can carry it: a busy
    queue's manifest is read again and again until then. Entries are replaced whole, so threads may share it.
    """

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Stamp, Version]] = {}

    def remember(self, path: Path, stamp: Stamp, version: Version) -> None:
        newest_ns = max(stamp[2], stamp[3])
        if _clock.now_ms() - newest_ns // 1_000_000 < tick_ms(newest_ns):
            self._known.pop(path, None)
            return
        if len(self._known) >= STAMPS_MAX:
            self._known.clear()  # callers poll one or two objects; batches are read once
        self._known[path] = (stamp, version)

    def forget(self, path: Path) -> None:
        self._known.pop(path, None)

    def prove(self, path: Path, version: Version) -> bool:
        """Whether the file is known to hold this version still. False means: read it."""
        known = self._known.get(path)
        if known is None or known[1] != version:
            return False
        try:
            return stamp_of(path.lstat()) == known[0]
        except OSError:
            return False  # reading it will say what is wrong


def stamp_of(status: os.stat_result) -> Stamp:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def tick_ms(time_ns: int) -> int:
    """How far apart two times must be to tell two writes apart, judged by the digits that this one has."""
    return FINE_TICK_MS if time_ns % 1_000_000 else COARSE_TICK_MS
