"""What a store must be able to do, and the three ways a conditional write can end.

A store is a flat map from location to bytes. Locations are used exactly as given: `#`, `%`, spaces and
non-ASCII letters are ordinary characters. Every implementation passes `buffer.testing.contract`.

    get, get_if_changed      raise ObjectNotFound where there is nothing
    put_if_absent, put_if_match   never raise for a lost race: they return Won, Lost or Unknown,
                             and raise (InvalidInput, StoreUnusable) only if the write surely did not happen
    everything else          raises StorageError (retryable or not), ObjectNotFound, StoreUnusable, Throttled
    all of them              raise InvalidInput for a location that `check_location` refuses
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from buffer.errors import InvalidInput

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
        """The whole object. Raises ObjectNotFound."""
        ...


class CanPoll(CanGet, Protocol):
    def get_if_changed(self, location: str, version: Version) -> Object | None:
        """None if the object still has this version (no transfer). Raises ObjectNotFound."""
        ...


class CanSwap(CanPoll, Protocol):
    def put_if_absent(self, location: str, data: bytes) -> Outcome:
        """Create the object if there is none."""
        ...

    def put_if_match(self, location: str, data: bytes, version: Version) -> Outcome:
        """Replace the object if it still has this version. A missing object is Lost."""
        ...


class CanPut(Protocol):
    def put(self, location: str, data: bytes) -> None:
        """Write the object, over whatever is there. When it returns, the bytes are durable."""
        ...


class CanHead(Protocol):
    def head(self, location: str) -> ObjectInfo:
        """Size and version without the bytes. Raises ObjectNotFound."""
        ...


class CanList(Protocol):
    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object below the folder `prefix`, at any depth, in no particular order.

        `prefix` is a whole path segment: `list("ingest")` finds `ingest/a`, not `ingest2/a`.
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


def check_location(location: str) -> None:
    """Refuse what some store would silently change, or could not keep: InvalidInput says what is wrong.

    A location is one or more segments with `/` between them. No segment is empty, `.` or `..`, and none holds
    a control character: HTTP stores normalize or reject those, and folders would lead outside the root.
    """
    if not isinstance(location, str) or not location:
        raise InvalidInput(f"the location {location!r} is not allowed: it must be a non-empty str")
    for segment in location.split("/"):
        if segment in ("", ".", ".."):
            raise InvalidInput(
                f"the location {location!r} is not allowed: it has a segment {segment!r}; "
                "write it like 'ingest/a', with no '/' at either end, no '//', no '.' and no '..'"
            )
    if any(c < " " or c == "\x7f" or "\ud800" <= c <= "\udfff" for c in location):
        raise InvalidInput(
            f"the location {location!r} is not allowed: it holds a control character or a lone surrogate"
        )
