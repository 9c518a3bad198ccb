"""What a store must be able to do, and the three ways a conditional write can end.

A store is a flat map from location to bytes. Locations are used exactly as given: `#`, `%`, spaces and
non-ASCII letters are ordinary characters. Every implementation passes `buffer.testing.contract`.

    get, get_if_changed      raise ObjectNotFound where there is nothing, ObjectTooLarge above STATE_BYTES_MAX
    put_if_absent, put_if_match   never raise for a lost race: they return Won, Lost or Unknown,
                             and raise (InvalidInput, StoreUnusable) only if the write surely did not happen
    everything else          raises StorageError (retryable or not), ObjectNotFound, StoreUnusable, Throttled
    all of them              raise InvalidInput for a location that `check_location` refuses
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from buffer.errors import ObjectTooLarge
from buffer.names import check_location as check_location

STATE_BYTES_MAX = 512 << 20
"""What `get` and `get_if_changed` read at most: they are for manifests, ledgers and their like, and a queue of millions
of batches has a smaller one. Whoever can write to a store must not fill its readers' memory. Batches: `get_bounded`."""

Version: TypeAlias = str
"""Opaque: an ETag or a content hash. Two versions of one object are equal only if its content is."""


@dataclass(frozen=True, slots=True)
class Object:
    """An object's bytes and the version they had when read."""

    data: bytes = field(repr=False)
    version: Version


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    location: str
    size: int
    version: Version | None
    """None where a listing does not say."""
    modified_ms: int | None = None
    """When it was written, by the store's clock; None where that is not told. Listings do not tell."""


@dataclass(frozen=True, slots=True)
class Won:
    """The write happened, exactly once, and the object now has this version."""

    version: Version


@dataclass(frozen=True, slots=True)
class Lost:
    """The store says the condition did not hold.

    Do not trust it blindly: a client's own retry of a write that landed reports a lost race too.
    """


@dataclass(frozen=True, slots=True)
class Unknown:
    """The write may have happened, may happen later, or never: read back before deciding."""

    cause: Exception


Outcome: TypeAlias = Won | Lost | Unknown


@dataclass(frozen=True, slots=True)
class DeleteFailure:
    location: str
    cause: Exception


class CanGet(Protocol):
    def get(self, location: str) -> Object:
        """The whole object. Raises ObjectNotFound, and ObjectTooLarge above STATE_BYTES_MAX, before a byte is read."""
        ...


@runtime_checkable
class CanGetBounded(Protocol):
    """What a store may offer beside `Store`; ours do. A reader falls back on `get` where it is missing."""

    def get_bounded(self, location: str, max_bytes: int) -> bytes:
        """The whole object, its size checked before a byte is read. Raises ObjectNotFound, ObjectTooLarge.

        Without its version: this is for objects that are written once, and telling it may cost a look at every byte.
        """
        ...


@runtime_checkable
class CanGetRange(Protocol):
    """What a store may offer beside `Store`; ours do. Who looks at an object without it goes without the answer."""

    def get_range(self, location: str, start: int, length: int) -> bytes:
        """Some bytes of an object that has them; fewer, or an error, if it has not. Raises ObjectNotFound."""
        ...


class CanPoll(CanGet, Protocol):
    def get_if_changed(self, location: str, version: Version) -> Object | None:
        """None if the object still has this version (no transfer). Raises as `get` does."""
        ...


class CanSwap(CanPoll, Protocol):
    def put_if_absent(self, location: str, data: bytes) -> Outcome:
        """Create the object if there is none."""
        ...

    def put_if_match(self, location: str, data: bytes, version: Version) -> Outcome:
        """Replace the object if it still has this version. A missing object is Lost."""
        ...


class CanPut(Protocol):
    def put(self, location: str, data: bytes | memoryview) -> None:
        """Write the object, over whatever is there. When it returns, the bytes are durable."""
        ...


@runtime_checkable
class CanHead(Protocol):
    def head(self, location: str) -> ObjectInfo:
        """Size, version and time of the last write, without the bytes. Raises ObjectNotFound."""
        ...


class CanList(Protocol):
    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """Every object below the folder `prefix`, at any depth, in no particular order.

        `prefix` is a whole path segment: `list("ingest")` finds `ingest/a`, not `ingest2/a`. With `after`, only
        what has a greater location, by its UTF-8 bytes; most clouds find that without reading the names before. This
        holds for what lies directly in the folder: of deeper ones some may be missing, for servers sort folders in
        different ways.
        """
        ...


class CanDelete(Protocol):
    def delete_many(self, locations: Sequence[str]) -> list[DeleteFailure]:
        """Delete them all; what is not there counts as deleted. Returns the ones that failed."""
        ...


@runtime_checkable
class Store(CanSwap, CanPut, CanHead, CanList, CanDelete, Protocol):
    """Everything. Functions ask for the least they need (`CanGet`, `CanSwap`, …)."""

    @property
    def url(self) -> str:
        """Where the store is, without secrets."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Copy one object over whatever is at `target`. Raises ObjectNotFound."""
        ...


def too_large(location: str, url: str, size: int, max_bytes: int) -> ObjectTooLarge:
    """The error of every `get_bounded`."""
    return ObjectTooLarge(
        f"{location!r} in {url} has {size:,} bytes, and at most {max_bytes:,} may be read",
        location=location,
        url=url,
        retryable=False,
        size=size,
    )
