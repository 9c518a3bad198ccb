"""Cloud stores and memory, over obstore. The only module that imports it, and the one edge where its errors
become ours.

A conditional write that was refused for good (no bucket, no permission) raises only if the first request was
refused so; once a request had been repeated, an earlier one may have landed, and the answer is Unknown.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeAlias, TypeVar

import obstore
from obstore import exceptions as obs_errors
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from buffer.errors import (
    BufferQueueError,
    InvalidConfig,
    InvalidInput,
    ObjectNotFound,
    StorageError,
    StoreUnusable,
    Throttled,
    Unsupported,
)
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
from buffer.store.endpoints import check_endpoints
from buffer.store.failures import Failure, redact
from buffer.urls import parse_url

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutResult
    from obstore.store import ObjectStore

DEFAULT_RETRY: Mapping[str, Any] = {
    # Callers have deadlines of about a minute and decide themselves what to do next; obstore's own three
    # minutes of silent retries would overrun them.
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=5),
        "base": 2,
    },
}
DEFAULT_CLIENT: Mapping[str, Any] = {"connect_timeout": "5s", "timeout": "60s"}
PART_BYTES = 16 * 1024 * 1024
"""A larger object goes up in parts, side by side, so that a hiccup repeats a part and not all of it. A smaller one is
one request: in parts it would be at least four, of which each is paid for and costs the server more than the bytes."""
DELETE_CHUNK = 1000  # S3's limit for one request
DELETE_FAILURES_IN_A_ROW_MAX = 3  # then the store is in trouble: leave the rest for the next time

P = ParamSpec("P")
R = TypeVar("R")
_Failures: TypeAlias = list[DeleteFailure]  # inside the class, `list` is a method
_OBSTORE_ERRORS = (obs_errors.BaseError, OSError, NotImplementedError)

_memory: dict[str, MemoryStore] = {}
_memory_lock = threading.Lock()
_runtime_pid: int | None = None


class CloudStore:
    """Objects in a bucket or container: `s3://bucket/prefix`, `gs://…`, `az://…`, `abfss://…`; or `memory://name`.

    `options` go to obstore unchanged (`endpoint`, `region`, `access_key_id`, `client_options`, `retry_config`, …)
    and are never printed. What is not given there comes from the environment, as obstore reads it.

    Thread-safe. Pickles by URL and options, so a pickle holds the keys that were given as options. Not fork-safe:
    obstore's I/O threads do not exist in a forked child, and a request made there would hang and disturb the
    parent, so it raises StoreUnusable instead. Use the `spawn` or `forkserver` start method, or fork before the
    first request. (Spark's Python workers are forked from a daemon that makes none: they are fine.)
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        self._options = dict(options or {})
        self._kind, self._bucket, prefix = parse_url(url)
        self._prefix = f"{prefix}/" if prefix else ""
        self._url = f"{self._kind}://{self._bucket}" + (f"/{prefix}" if prefix else "")
        self._store = self._open()

    @property
    def url(self) -> str:
        return self._url

    def __repr__(self) -> str:
        names = "".join(f", {name}=…" for name in sorted(self._options))
        return f"CloudStore({self._url!r}{names})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._kind == "memory":
            raise InvalidInput(
                f"{self._url} cannot be pickled: memory belongs to one process, and another would see an empty "
                "store; use a folder or a bucket (s3://…) to share data between processes"
            )
        return CloudStore, (self._url, self._options)

    def get(self, location: str) -> Object:
        found = self._get(location, None)
        assert found is not None, "only a conditional get finds nothing new"
        return found

    def get_bounded(self, location: str, max_bytes: int) -> bytes:
        found = self._get(location, None, max_bytes)
        assert found is not None, "only a conditional get finds nothing new"
        return found.data

    def get_range(self, location: str, start: int, length: int) -> bytes:
        path = self._path(location)
        if not length:  # no server can be asked for that
            self.head(location)
            return b""
        try:
            return bytes(_native(obstore.get_range, self._ready(), path, start=start, length=length))
        except _OBSTORE_ERRORS as error:
            self._raise(error, "read", location)

    def get_if_changed(self, location: str, version: Version) -> Object | None:
        if self._kind != "gs":
            return self._get(location, version)
        # On GCS a version is a generation, which If-None-Match does not know: an ETag can stay the same while
        # the generation moves, and a caller that keeps the old one would never win a swap again.
        return None if self.head(location).version == version else self.get(location)

    def head(self, location: str) -> ObjectInfo:
        path = self._path(location)
        try:
            meta = _native(obstore.head, self._ready(), path)
        except _OBSTORE_ERRORS as error:
            self._raise(error, "read", location)
        modified_ms = int(meta["last_modified"].timestamp() * 1000)
        return ObjectInfo(location, meta["size"], self._version(meta, location), modified_ms)

    def put(self, location: str, data: bytes | memoryview) -> None:
        path = self._path(location)
        try:
            _native(
                obstore.put,
                self._ready(),
                path,
                data,
                use_multipart=False if self._kind == "memory" else None,  # parts would only be copied together again
                chunk_size=PART_BYTES,
            )
        except _OBSTORE_ERRORS as error:
            self._raise(error, "write", location)

    def put_if_absent(self, location: str, data: bytes) -> Outcome:
        return self._swap(location, data, None)

    def put_if_match(self, location: str, data: bytes, version: Version) -> Outcome:
        return self._swap(location, data, version)

    def copy(self, source: str, target: str) -> None:
        paths = self._path(source), self._path(target)
        try:
            _native(obstore.copy, self._ready(), *paths)
        except _OBSTORE_ERRORS as error:
            self._raise(error, "copy", source)

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        path = self._path(prefix) if prefix else self._prefix.rstrip("/")
        if after is not None:
            check_location(after)
        return self._list(path, prefix, after)

    def delete_many(self, locations: Sequence[str]) -> _Failures:
        """Delete them all. One reported as failed may yet be gone, when the store's answer was lost."""
        for location in locations:
            check_location(location)
        failures: _Failures = []
        for start in range(0, len(locations), DELETE_CHUNK):
            failures += self._delete_chunk(locations[start : start + DELETE_CHUNK])
        return failures

    def _get(self, location: str, unless: Version | None, max_bytes: int = STATE_BYTES_MAX) -> Object | None:
        path = self._path(location)
        try:
            found = _native(obstore.get, self._ready(), path, options={"if_none_match": unless} if unless else None)
            if found.meta["size"] > max_bytes:  # the body is still on the other side
                raise too_large(location, self._url, found.meta["size"], max_bytes)
            data = _native(found.bytes).to_bytes()
            return Object(data, self._version(found.meta, location))
        except obs_errors.NotModifiedError as error:
            if unless is None:  # a server, or a cache in front of it, that answers what nobody asked
                self._raise(error, "read", location)
            return None
        except _OBSTORE_ERRORS as error:
            self._raise(error, "read", location)

    def _list(self, path: str, prefix: str, after: str | None) -> Iterator[ObjectInfo]:
        # Azure and GCS spell versions in listings another way than everywhere else, or leave them out.
        versions = self._kind in ("s3", "memory")
        offset = self._prefix + after if after is not None else None
        try:
            pages = iter(_native(obstore.list, self._ready(), path or None, offset=offset))
            while (page := _native(next, pages, None)) is not None:
                for meta in page:
                    location = meta["path"].removeprefix(self._prefix)
                    if after is None or location > after:  # Azure's emulator takes the offset and does not obey it
                        yield ObjectInfo(location, meta["size"], meta["e_tag"] if versions else None)
        except _OBSTORE_ERRORS as error:
            self._raise(error, "list", prefix)

    def _swap(self, location: str, data: bytes, expected: Version | None) -> Outcome:
        path = self._path(location)
        store = self._ready()
        try:
            if expected is None:
                result = _native(obstore.put, store, path, data, mode="create")
            else:
                result = _native(
                    obstore.put,
                    store,
                    path,
                    data,
                    mode={"version": expected} if self._kind == "gs" else {"e_tag": expected},
                )
            return Won(self._version(result, location))
        except StoreUnusable as error:  # it landed, but without a version nobody can go on from it
            return Unknown(error)
        except _OBSTORE_ERRORS as error:
            failure = Failure(error)
            if failure.is_lost_race or (failure.is_not_found and expected is not None):
                return Lost()
            ours = self._explain(failure, "write", location)
            if isinstance(ours, StoreUnusable | InvalidInput) and failure.retries == 0:
                raise ours from None
            return Unknown(ours)

    def _delete_chunk(self, locations: Sequence[str]) -> _Failures:
        store = self._ready()
        paths = [self._path(location) for location in locations]
        try:
            _native(obstore.delete, store, paths)
        except _OBSTORE_ERRORS:
            # It stops at the first failure and says little: ask one by one.
            pass
        else:
            return []
        failures: _Failures = []
        in_a_row = 0
        for location, path in zip(locations, paths, strict=True):
            if in_a_row >= DELETE_FAILURES_IN_A_ROW_MAX:
                failures.append(DeleteFailure(location, failures[-1].cause))
                continue
            try:
                _native(obstore.delete, store, path)
                in_a_row = 0
            except _OBSTORE_ERRORS as error:
                cause = self._explain(Failure(error), "delete", location)
                if not isinstance(cause, ObjectNotFound):
                    failures.append(DeleteFailure(location, cause))
                    in_a_row += 1
        return failures

    def _path(self, location: str) -> str:
        check_location(location)
        return self._prefix + location

    def _version(self, meta: ObjectMeta | PutResult, location: str) -> Version:
        version = meta["version"] if self._kind == "gs" else meta["e_tag"]
        if version is None:
            raise Unsupported(
                f"{self._url} tells no version (ETag) of {location!r}: a store without them cannot hold a queue",
                location=location,
                url=self._url,
                retryable=False,
            )
        return version

    def _ready(self) -> ObjectStore:
        """The obstore handle, unless this process was forked off one that has used obstore before."""
        global _runtime_pid  # obstore's runtime is one per process, too
        pid = os.getpid()
        if _runtime_pid is None:
            _runtime_pid = pid
        if _runtime_pid != pid:
            raise StoreUnusable(
                f"{self._url} cannot be used in this process: it was forked from one that had used a store "
                "before, and obstore does not survive that; use multiprocessing's 'spawn' or 'forkserver'",
                url=self._url,
                retryable=False,
            )
        return self._store

    def _open(self) -> ObjectStore:
        if self._kind == "memory":
            if self._options:
                raise InvalidConfig(
                    f"{self._url} takes no options, but got {', '.join(sorted(self._options))}",
                    key="store_options",
                )
            return _memory_store(self._bucket)
        self._check_tables()
        check_endpoints(self._kind, self._options, os.environ)
        options = {
            **self._options,
            "client_options": {**DEFAULT_CLIENT, **(self._options.get("client_options") or {})},
            "retry_config": self._options.get("retry_config") or DEFAULT_RETRY,
        }
        try:
            if self._kind == "s3":
                return S3Store(self._bucket, **options)
            if self._kind == "gs":
                return GCSStore(self._bucket, **options)
            if self._kind == "az":
                return AzureStore(self._bucket, **options)
            return AzureStore.from_url(f"abfss://{self._bucket}/", **options)
        except (*_OBSTORE_ERRORS, ValueError, TypeError, OverflowError) as error:
            reason = redact(str(error), self._options, os.environ)
            raise InvalidConfig(
                f"{self._url} cannot be opened with the options "
                f"{', '.join(sorted(self._options)) or '(none)'}: {reason}",
                key="store_options",
            ) from None  # the text of the cause may hold a key

    def _check_tables(self) -> None:
        for name in ("client_options", "retry_config"):
            if not isinstance(self._options.get(name) or {}, Mapping):
                raise InvalidConfig(f"{self._url} needs a table of options as {name}", key="store_options")

    def _raise(self, error: BaseException, action: str, location: str) -> NoReturn:
        raise self._explain(Failure(error), action, location) from None  # the cause's text may hold a key

    def _explain(self, failure: Failure, action: str, location: str) -> BufferQueueError:
        facts: dict[str, Any] = {"location": location, "url": self._url, "retryable": False}
        if failure.is_bad_location:
            reason = redact(failure.reason, self._options, os.environ)
            return InvalidInput(f"the location {location!r} is not allowed in {self._url}: {reason}")
        if failure.is_missing_bucket or (failure.is_not_found and action == "write"):
            # A write finds no object missing: it is the bucket, also where the server does not say so.
            what = "container" if self._kind in ("az", "abfss") else "bucket"
            return StoreUnusable(
                f"cannot {action} {location!r}: the {what} of {self._url} does not exist; "
                "create it, or fix the URL or the endpoint",
                **facts,
            )
        if failure.is_not_found:
            return ObjectNotFound(f"there is no object {location!r} in {self._url}", **facts)
        text = f"cannot {action} {location!r} in {self._url}: {redact(failure.reason, self._options, os.environ)}"
        if failure.hint:
            return (Unsupported if failure.is_unsupported else StoreUnusable)(f"{text}; {failure.hint}", **facts)
        if failure.is_denied:
            return StoreUnusable(f"{text}; check the credentials and what they may do", **facts)
        facts["retryable"] = failure.is_retryable
        return (Throttled if failure.is_throttled else StorageError)(text, **facts)


def _memory_store(name: str) -> MemoryStore:
    """The store of that name in this process; one of its own each time where the name is empty."""
    if not name:
        return MemoryStore()
    with _memory_lock:
        return _memory.setdefault(name, MemoryStore())


def _native(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call obstore. A panic in there is no Exception in Python, and would end threads that could go on."""
    try:
        return function(*args, **kwargs)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # nowhere to import it from
            raise
        raise obs_errors.GenericError(f"obstore panicked: {error}") from None
