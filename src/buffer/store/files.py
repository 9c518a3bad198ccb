"""Files that survive a power cut, and locks between processes. Knows nothing of objects: `local.py` does.

Every function lets the system's `OSError` through; the caller says what it means.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from buffer.clock import SystemClock

RESERVED = ".buffer-"
"""Names that begin so are never objects."""
TEMP_PREFIX = RESERVED + "tmp-"
TEMP_AGE_MAX_S = 86_400  # no write takes a day: what is older was left by a crash
LOCK_POLL_FIRST_S = 0.0002
LOCK_POLL_MAX_S = 0.005

_clock = SystemClock()


class LockTimeout(Exception):
    """The lock stayed taken. Nothing was done."""


def write_temp(folder: Path, data: bytes) -> Path:
    """A finished, durable file in `folder` under a name of its own. On an error nothing is left."""
    make_folder(folder)
    temp = folder / f"{TEMP_PREFIX}{_clock.new_ulid()}"
    try:
        with temp.open("xb", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            os.fsync(file.fileno())
    except BaseException:  # also when interrupted: it would lie there until the sweep
        temp.unlink(missing_ok=True)
        raise
    return temp


def make_folder(folder: Path) -> None:
    """Create the folder and its parents so that they survive a power cut."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    try:
        folder.mkdir()
    except FileExistsError:
        if not folder.is_dir():  # a file has that name
            raise
    fsync_folder(folder.parent)


def fsync_folder(folder: Path) -> None:
    """Make the names in the folder durable: a rename alone is not."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def remove_stale_temps(folder: Path) -> None:
    """Remove temporary files that a crash left behind. Failing to is harmless: they are never read."""
    oldest_s = _clock.now_ms() / 1000 - TEMP_AGE_MAX_S
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(TEMP_PREFIX) and entry.stat().st_mtime < oldest_s:
                Path(entry.path).unlink(missing_ok=True)


@contextmanager
def locked(lock: Path, timeout_s: float) -> Iterator[None]:
    """Hold the lock file exclusively, against threads and processes alike. Raises LockTimeout.

    It polls: a blocking `flock` could not be given up when the holder is stopped.
    """
    deadline_s = _clock.monotonic_s() + timeout_s
    pause_s = LOCK_POLL_FIRST_S
    while (held := _try_lock(lock)) is None:
        if _clock.monotonic_s() > deadline_s:
            raise LockTimeout
        _clock.sleep(_clock.jitter(0.0, pause_s))
        pause_s = min(LOCK_POLL_MAX_S, pause_s * 2)
    try:
        yield
    finally:
        fcntl.flock(held, fcntl.LOCK_UN)  # closing alone is not enough: a child forked meanwhile has the file too
        os.close(held)


def _try_lock(lock: Path) -> int | None:
    """An open file that holds the lock, or None if it is taken. Closing the file releases it."""
    try:
        held = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    except FileNotFoundError:
        make_folder(lock.parent)
        held = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(held).st_ino == lock.stat().st_ino:
            return held
    except (BlockingIOError, FileNotFoundError):
        pass  # taken; or somebody removed the lock file, and others may lock a new one
    except BaseException:
        os.close(held)
        raise
    os.close(held)
    return None
