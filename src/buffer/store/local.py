"""Plain files as a store with compare-and-swap, for one machine and many processes.

Rules that make it safe:

- Content appears by `rename` of a finished, fsynced temporary file, then the folder is fsynced. A reader, or a
  machine that loses power, sees the old content or the new, never a part; what `put` has returned is durable.
- Every change of an object (put, swap, delete) happens under an exclusive `flock`, so nothing comes between a
  comparison and its rename. Each operation opens the lock anew: threads exclude each other as processes do, and
  the kernel releases the lock of a process that dies.
- A version is a hash of the content, and a comparison reads it, under the lock: file times may be old news where
  the folder is on a server. No state is kept beside the files: copy the folder, and the queue moves.
- An object that was renamed into place while the folder's fsync failed is visible, but a power cut may take it
  back. Whoever got that error writes it anew before reading it again: what he reads back is durable.
- Below the root, which may be one, no symbolic link is followed (see `linked.py`), and only plain files are objects: a
  link could lead readers and the collector anywhere, or in circles, and a pipe would keep them waiting.

Names that begin with `.buffer-` belong to the store and are not locations: `.buffer-locks/` at the root holds a
fixed number of lock files, `.buffer-tmp-*` is a write in progress. A crash can leave one of those behind;
`delete_many` (the collector calls it) removes those older than a day from the folders it visits.

Folders are not objects, but they take up names: `a` and `a/b` cannot both be objects here. Use a file system
whose `flock` is shared by all writers: any local one, or NFS with locks; not a folder synced between machines.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from buffer.errors import InvalidInput, ObjectNotFound, StorageError, StoreUnusable
from buffer.store.base import (
    STATE_BYTES_MAX,
    DeleteFailure,
    Lost,
    Object,
    ObjectInfo,
    Outcome,
    Unknown,
    Version,
    Won,
    check_location,
    too_large,
)
from buffer.store.files import (
    RESERVED,
    LockTimeout,
    NotPlain,
    fsync_folder,
    link_new,
    locked,
    open_plain,
    pieces_of,
    refuse_links,
    remove_stale_temps,
    remove_temp,
    too_deep_is_empty,
    write_temp,
)
from buffer.store.stamps import Stamps, stamp_of

LOCK_FOLDER = RESERVED + "locks"
LOCK_COUNT = 1024  # bounded, though objects are not; two objects that share a lock only wait for each other
LOCK_TIMEOUT_S = 30.0  # a holder needs milliseconds; longer means it was stopped, and waiting will not help

_Failures: TypeAlias = list[DeleteFailure]  # inside the class, `list` is a method

_NO_OBJECT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_UNUSABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ELOOP})


class LocalStore:
    """Objects as files below `root`, which the first write creates. Safe in threads, processes and forks.

    It keeps no open files and no locks between calls. Pickles by its path.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        # Absolute now: a pickled store must not depend on the working folder of whoever opens it.
        self._root = Path(root).absolute()
        self._stamps = Stamps()
        self._unsettled: set[Path] = set()
        """Renamed into place, with an fsync of the folder that failed."""

    @property
    def url(self) -> str:
        return self._root.as_uri()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._root)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self._root),)

    def get(self, location: str) -> Object:
        """As the protocol says. The cause of ObjectNotFound tells whether a folder has that name."""
        return self._read(self._path(location))

    def get_bounded(self, location: str, max_bytes: int) -> bytes:
        return self._read_bytes(self._path(location), max_bytes)[0]

    def get_range(self, location: str, start: int, length: int) -> bytes:
        with self._opened(self._path(location)) as file:
            file.seek(start)
            return file.read(length)

    def get_if_changed(self, location: str, version: Version) -> Object | None:
        """As the protocol says. A file that carries the stamp it had when last read is not even opened."""
        path = self._path(location)
        if path not in self._unsettled and self._stamps.prove(path, version):
            return None
        found = self._read(path)
        return None if found.version == version else found

    def head(self, location: str) -> ObjectInfo:
        """Size and version. The version is a hash of the content, so the file is read, a piece at a time."""
        path = self._path(location)
        with self._opened(path) as file:
            version = _version_of(file)
            modified_ms = os.fstat(file.fileno()).st_mtime_ns // 1_000_000
            return ObjectInfo(location, file.tell(), version, modified_ms)

    def put(self, location: str, data: bytes | memoryview) -> None:
        self._put(self._path(location), [data])

    def _put(self, path: Path, pieces: Iterable[bytes | memoryview]) -> None:
        with self._errors("write", path):
            self._refuse_links(path)
            temp = write_temp(path.parent, pieces)
            try:
                # Only the rename is under the lock: a large upload must not hold up the swaps of others.
                with self._locked(path):
                    temp.replace(path)
                    self._settle_rename(path)
            finally:
                remove_temp(temp)

    def put_if_absent(self, location: str, data: bytes) -> Outcome:
        return self._swap(location, data, None)

    def put_if_match(self, location: str, data: bytes, version: Version) -> Outcome:
        return self._swap(location, data, version)

    def copy(self, source: str, target: str) -> None:
        path = self._path(target)
        with self._opened(self._path(source)) as file:
            self._put(path, pieces_of(file))

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """Every object below the folder. Versions are None: they would cost reading every file."""
        if after is not None:
            check_location(after)
        return self._walk(self._path(prefix) if prefix else self._root, prefix, after)

    def delete_many(self, locations: Sequence[str]) -> _Failures:
        paths = [(location, self._path(location)) for location in locations]
        failures = []
        for location, path in paths:
            try:
                with self._errors("delete", path):
                    self._delete(path)
            except (StorageError, InvalidInput) as error:  # a link in its path, say
                failures.append(DeleteFailure(location, error))
        for folder in {path.parent for _, path in paths}:
            remove_stale_temps(folder)
        return failures

    # Reading

    def _read(self, path: Path) -> Object:
        data, status = self._read_bytes(path, STATE_BYTES_MAX)
        self._stamps.remember(path, stamp_of(status), version := _version(data))
        return Object(data, version)

    def _read_bytes(self, path: Path, max_bytes: int) -> tuple[bytes, os.stat_result]:
        if path in self._unsettled:
            self._write_anew(path)
        with self._opened(path) as file:
            status = os.fstat(file.fileno())
            if status.st_size > max_bytes:
                raise too_large(self._location(path), self.url, status.st_size, max_bytes)
            return file.read(), status

    @contextmanager
    def _opened(self, path: Path) -> Iterator[BinaryIO]:
        with self._errors("read", path):
            try:
                self._refuse_links(path)
                with os.fdopen(open_plain(path), "rb") as file:
                    yield file
            except _NO_OBJECT as error:  # a folder, or something below a file, is no object
                if isinstance(error, NotADirectoryError) and not self._root.is_dir():
                    raise  # nothing will ever be found in this store
                raise self._not_found(self._location(path)) from error

    def _walk(self, folder: Path, prefix: str, after: str | None) -> Iterator[ObjectInfo]:
        with self._errors("list", folder):
            refuse_links(self._root, folder)
        pending = [(folder, prefix)]
        while pending:
            folder, prefix = pending.pop()
            missing_is_empty = suppress(*_NO_OBJECT)
            with self._errors("list", folder), missing_is_empty, too_deep_is_empty(), os.scandir(folder) as entries:
                for entry in entries:
                    location = f"{prefix}/{entry.name}" if prefix else entry.name
                    if after is not None and location < after and not after.startswith(location):
                        continue  # nor is anything below it wanted; first, for most may be such where little is
                    if not _is_location(location):
                        continue  # ours, or somebody's file that no location can name
                    if entry.is_dir(follow_symlinks=False):
                        pending.append((Path(entry.path), location))
                    elif (after is None or location > after) and entry.is_file(follow_symlinks=False):
                        with suppress(FileNotFoundError):  # deleted meanwhile
                            yield ObjectInfo(location, entry.stat(follow_symlinks=False).st_size, None)

    # Writing

    def _swap(self, location: str, data: bytes, expected: Version | None) -> Outcome:
        """Replace the object if its version is `expected` (None: if there is none).

        Until the rename nothing has happened, so a store that cannot be written is raised as such; after it the
        content is visible but perhaps not yet safe from a power cut, so any error is Unknown.
        """
        path = self._path(location)
        renamed = False
        try:
            with self._errors("write", path):
                if expected is not None and not path.exists():
                    return Lost()  # without making folders and locks for it
                with self._locked(path):
                    if not self._is_at(path, expected):
                        self._stamps.forget(path)  # reading back must not take its word for it either
                        return Lost()
                    temp = write_temp(path.parent, [data])
                    try:
                        if expected is None and not link_new(temp, path):
                            return Lost()
                        if expected is not None:
                            temp.replace(path)
                        renamed = True
                    finally:
                        remove_temp(temp)
                    self._settle_rename(path)
        except StorageError as error:
            if renamed or error.retryable:
                return Unknown(error)
            raise
        return Won(_version(data))

    def _is_at(self, path: Path, expected: Version | None) -> bool:
        if expected is not None:
            try:
                with self._opened(path) as file:
                    return _version_of(file) == expected
            except ObjectNotFound:
                return False
        try:
            return stat.S_ISDIR(path.lstat().st_mode)  # a folder: the write will say what is wrong
        except FileNotFoundError:
            return True

    def _settle_rename(self, path: Path) -> None:
        """Make the rename durable. Called under the lock; on an error the object is remembered as unsettled."""
        self._unsettled.add(path)
        fsync_folder(path.parent)
        self._unsettled.discard(path)

    def _write_anew(self, path: Path) -> None:
        """Put a new file with the same content in the place of one whose folder could not be synced.

        Syncing the folder once more would not do: after a failure a system may take for written what it dropped.
        """
        with self._errors("read", path), self._locked(path):
            try:
                with self._opened(path) as file:
                    temp = write_temp(path.parent, pieces_of(file))
            except ObjectNotFound:
                self._unsettled.discard(path)
                return
            try:
                temp.replace(path)
            finally:
                remove_temp(temp)
            self._settle_rename(path)

    def _delete(self, path: Path) -> None:
        self._refuse_links(path)
        try:
            if stat.S_ISDIR(path.lstat().st_mode):
                return
        except _NO_OBJECT:
            return  # without making folders and locks for it
        with self._locked(path):
            path.unlink(missing_ok=True)
            fsync_folder(path.parent)

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        """Hold the object's lock. Raises a retryable StorageError when it stays taken."""
        name = hashlib.blake2b(os.fsencode(path.relative_to(self._root)), digest_size=8).digest()
        lock = self._root / LOCK_FOLDER / f"{int.from_bytes(name, 'big') % LOCK_COUNT:04d}"
        self._refuse_links(path)
        refuse_links(self._root, lock.parent)  # which is ours
        try:
            with locked(lock, LOCK_TIMEOUT_S):
                yield
        except LockTimeout:
            raise StorageError(
                f"another process has held the lock of {str(path)!r} for {LOCK_TIMEOUT_S:g} s; "
                f"look who has {str(lock)!r} open, and whether it is stopped",
                location=self._location(path),
                url=self.url,
                retryable=True,
            ) from None

    def _refuse_links(self, path: Path) -> None:
        refuse_links(self._root, path.parent)

    # Names and errors

    def _path(self, location: str) -> Path:
        check_location(location)
        if location.startswith(RESERVED) or f"/{RESERVED}" in location:
            raise InvalidInput(
                f"the location {location!r} is not allowed in a local folder: "
                f"names that begin with {RESERVED!r} are the store's own"
            )
        return self._root / location

    def _location(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def _not_found(self, location: str) -> ObjectNotFound:
        return ObjectNotFound(
            f"there is no object {location!r} in {self.url}", location=location, url=self.url, retryable=False
        )

    @contextmanager
    def _errors(self, action: str, path: Path) -> Iterator[None]:
        """The one place where the system's errors become ours."""
        try:
            yield
        except OSError as error:
            raise self._explain(error, action, path) from error

    def _explain(self, error: OSError, action: str, path: Path) -> Exception:
        location, reason = self._location(path), error.strerror or str(error)
        if isinstance(error, NotPlain):
            return InvalidInput(
                f"cannot {action} {location!r} in {self.url}: {error.filename!r} is {reason}; below a store's folder "
                "there must be plain files and folders only"
            )
        if error.errno == errno.ENAMETOOLONG:
            return InvalidInput(f"the location {location!r} is too long for a file name: {reason}")
        if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST):
            if self._root.is_dir():
                return InvalidInput(
                    f"cannot {action} {location!r} in {self.url}: a folder has that name, or a file has the name "
                    "of one of its folders; in a local folder 'a' and 'a/b' cannot both be objects"
                )
            return StoreUnusable(
                f"the store {str(self._root)!r} is not a folder: a file stands in its path",
                location=location,
                url=self.url,
                retryable=False,
            )
        unusable = error.errno in _UNUSABLE
        hint = "; check the folder, its permissions and the free space" if unusable else ""
        if isinstance(error, PermissionError) and f"/{LOCK_FOLDER}/" in str(error.filename):
            hint = (
                f" for its lock, {str(error.filename)!r}; check the permissions: all who write to a store must be able "
                "to write to the locks that others made, as one user, or as a group with the umask 002"
            )
        return (StoreUnusable if unusable else StorageError)(
            f"cannot {action} {location!r} in the folder {str(path.parent)!r}: {reason}{hint}",
            location=location,
            url=self.url,
            retryable=not unusable,
        )


def _version(data: bytes) -> Version:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _version_of(file: BinaryIO) -> Version:
    digest = hashlib.blake2b(digest_size=16)
    for piece in pieces_of(file):
        digest.update(piece)
    return digest.hexdigest()


def _is_location(location: str) -> bool:
    if location.rsplit("/", 1)[-1].startswith(RESERVED):
        return False
    try:
        check_location(location)
    except InvalidInput:
        return False
    return True
