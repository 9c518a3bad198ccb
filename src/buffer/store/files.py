"""Files that survive a power cut, and locks between processes. Knows nothing of objects: `local.py` does.

No function follows a symbolic link in the last part of a path, or waits for the other end of a pipe. Every function
lets the system's `OSError` through; the caller says what it means.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from buffer.backoff import Backoff
from buffer.clock import SystemClock

RESERVED = ".buffer-"
"""Names that begin so are never objects."""
TEMP_PREFIX = RESERVED + "tmp-"
TEMP_AGE_MAX_S = 86_400  # no write takes a day: what is older was left by a crash
LOCK_POLL = Backoff(first_s=0.0002, max_s=0.005, attempts_max=1_000_000_000)
"""Looks at a lock that is taken; the time that is given for it ends them."""
READ_BYTES = 1 << 20

_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})

_clock = SystemClock()


class LockTimeout(Exception):
    """The lock stayed taken. Nothing was done."""


class NotPlain(OSError):
    """A symbolic link, a pipe or a device stands where a plain file or a folder belongs."""


def open_plain(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a plain file. A folder is IsADirectoryError; a link, a pipe or a device is NotPlain, without waiting."""
    try:
        # Without O_NONBLOCK, opening a pipe waits for somebody at its other end.
        opened = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):
            raise NotPlain(error.errno, "not a plain file", str(path)) from error
        raise
    mode = os.fstat(opened).st_mode
    if stat.S_ISREG(mode):
        return opened
    os.close(opened)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise NotPlain(errno.ENXIO, "not a plain file", str(path))


def refuse_links(root: Path, folder: Path) -> None:
    """Raise NotPlain if a folder below the root is a symbolic link: it could lead anywhere, or in circles.

    Whoever put the root where it is may have used links; below it nobody needs any.
    """
    for parent in (folder, *folder.parents):
        if parent == root:
            return
        if parent.is_symlink():
            raise NotPlain(errno.ELOOP, "a symbolic link", str(parent))


def write_temp(folder: Path, pieces: Iterable[bytes | memoryview]) -> Path:
    """A finished, durable file in `folder` under a name of its own. On an error nothing is left."""
    make_folder(folder)
    temp = folder / f"{TEMP_PREFIX}{_clock.new_ulid()}"
    try:
        with temp.open("xb", buffering=0) as file:
            for piece in pieces:
                view = memoryview(piece)
                while view:
                    view = view[file.write(view) :]
            os.fsync(file.fileno())
    except BaseException:  # also when interrupted: it would lie there until the sweep
        remove_temp(temp)
        raise
    return temp


def remove_temp(temp: Path) -> None:
    """Remove a temporary file, if it is still there. One that cannot be removed is left to the sweep: what became of
    the write does not depend on it, and a rename that has happened must be made durable all the same."""
    with suppress(OSError):
        temp.unlink()


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
    try:
        fsync_folder(folder.parent)
    except OSError:
        with suppress(OSError):  # found there the next time, it would pass for durable
            folder.rmdir()
        raise


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
            if entry.name.startswith(TEMP_PREFIX) and entry.stat(follow_symlinks=False).st_mtime < oldest_s:
                Path(entry.path).unlink(missing_ok=True)


@contextmanager
def locked(lock: Path, timeout_s: float) -> Iterator[None]:
    """Hold the lock file exclusively, against threads and processes alike. Raises LockTimeout.

    It polls: a blocking `flock` could not be given up when the holder is stopped.
    """
    for _ in replace(LOCK_POLL, timeout_s=timeout_s).attempts(_clock):
        if (held := _try_lock(lock)) is not None:
            break
    else:
        raise LockTimeout
    try:
        yield
    finally:
        fcntl.flock(held, fcntl.LOCK_UN)  # closing alone is not enough: a child forked meanwhile has the file too
        os.close(held)


def _try_lock(lock: Path) -> int | None:
    """An open file that holds the lock, or None if it is taken. Closing the file releases it."""
    try:
        held = open_plain(lock, os.O_RDWR | os.O_CREAT)
    except FileNotFoundError:
        make_folder(lock.parent)
        held = open_plain(lock, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(held).st_ino == lock.lstat().st_ino:
            return held
    except (BlockingIOError, FileNotFoundError):
        pass  # taken; or somebody removed the lock file, and others may lock a new one
    except BaseException:
        os.close(held)
        raise
    os.close(held)
    return None


def pieces_of(file: BinaryIO) -> Iterator[bytes]:
    """A file that may be larger than memory."""
    while piece := file.read(READ_BYTES):
        yield piece


def link_new(temp: Path, path: Path) -> bool:
    """Give the file its name if nothing has it yet: the file system decides, whatever this machine remembers."""
    try:
        os.link(temp, path, follow_symlinks=False)
    except FileExistsError:
        if path.is_dir() and not path.is_symlink():
            raise
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        temp.replace(path)  # the lock must do
    return True


@contextmanager
def too_deep_is_empty() -> Iterator[None]:
    """A folder whose path is longer than the system allows: no location leads there either."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
