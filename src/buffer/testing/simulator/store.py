"""One simulated object store, and the client that each process has of it.

The store itself is a map that changes in one step per request; all trouble lies between it and its clients
(`faults.py`). Versions are hashes of the content, as ETags are, so that content which came back would match again.
Whoever wants to know of every change, the moment it happens, is a `Witness`.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

from buffer.errors import ObjectNotFound, StorageError, Throttled
from buffer.store.base import DeleteFailure, Lost, Object, ObjectInfo, Outcome, Unknown, Version, Won
from buffer.testing.simulator.faults import Answer, Network
from buffer.testing.simulator.scheduler import Process
from buffer.testing.simulator.trace import describe, short

URL = "simulated://store"
PAGE_OBJECTS = 4  # per request of a listing: things change between the pages


_Failures: TypeAlias = list[DeleteFailure]  # inside the class, `list` is a method


class Witness(Protocol):
    """Sees every change of the store."""

    def changed(self, caller: Process, location: str, before: bytes | None, after: bytes | None) -> None:
        """`after` is None for a deletion. The change has happened."""
        ...


def version_of(data: bytes) -> Version:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


class ObjectServer:
    """What is stored. Every method is one atomic step."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 0) -> None:
        self.objects: dict[str, bytes] = {}
        self.modified_ms: dict[str, int] = {}
        self._now_ms = now_ms
        self.witnesses: list[Witness] = []

    def get(self, location: str) -> Object:
        data = self.objects.get(location)
        if data is None:
            raise ObjectNotFound(f"there is no object at {location!r}", location=location, url=URL, retryable=False)
        return Object(data, version_of(data))

    def head(self, location: str) -> ObjectInfo:
        found = self.get(location)
        return ObjectInfo(location, len(found.data), found.version, self.modified_ms[location])

    def get_if_changed(self, location: str, version: Version) -> Object | None:
        found = self.get(location)
        return None if found.version == version else found

    def put(self, caller: Process, location: str, data: bytes) -> None:
        self._change(caller, location, data)

    def put_if_absent(self, caller: Process, location: str, data: bytes) -> Outcome:
        if location in self.objects:
            return Lost()
        self._change(caller, location, data)
        return Won(version_of(data))

    def put_if_match(self, caller: Process, location: str, data: bytes, version: Version) -> Outcome:
        before = self.objects.get(location)
        if before is None or version_of(before) != version:
            return Lost()
        self._change(caller, location, data)
        return Won(version_of(data))

    def list_page(self, prefix: str, behind: str) -> list[ObjectInfo]:
        names = sorted(name for name in self.objects if name.startswith(f"{prefix}/"))
        start = bisect_right(names, behind)
        return [
            ObjectInfo(name, len(self.objects[name]), version_of(self.objects[name]))
            for name in names[start : start + PAGE_OBJECTS]
        ]

    def delete(self, caller: Process, location: str) -> None:
        if location in self.objects:
            self._change(caller, location, None)

    def _change(self, caller: Process, location: str, after: bytes | None) -> None:
        before = self.objects.get(location)
        if after is None:
            del self.objects[location]
        else:
            self.objects[location] = after
            self.modified_ms[location] = self._now_ms()
        for witness in self.witnesses:
            witness.changed(caller, location, before, after)


class StoreClient:
    """The store as one process sees it: a `buffer.store.base.Store` whose every call is a scheduling point."""

    url = URL

    def __init__(self, server: ObjectServer, network: Network, process: Process) -> None:
        self._server = server
        self._network = network
        self._process = process

    def get(self, location: str) -> Object:
        found: Object = self._read("get", location, lambda: self._server.get(location))
        return found

    def get_if_changed(self, location: str, version: Version) -> Object | None:
        found: Object | None = self._read(
            "get_if_changed", location, lambda: self._server.get_if_changed(location, version)
        )
        return found

    def head(self, location: str) -> ObjectInfo:
        found: ObjectInfo = self._call(
            "head", location, lambda: self._server.head(location), tell=lambda info: f"written at {info.modified_ms}"
        )
        return found

    def put(self, location: str, data: bytes | memoryview) -> None:
        sent = bytes(data)
        self._call("put", location, lambda: self._server.put(self._process, location, sent), data=sent)

    def put_if_absent(self, location: str, data: bytes) -> Outcome:
        return self._swap(
            "put_if_absent", location, data, lambda: self._server.put_if_absent(self._process, location, data)
        )

    def put_if_match(self, location: str, data: bytes, version: Version) -> Outcome:
        return self._swap(
            "put_if_match",
            location,
            data,
            lambda: self._server.put_if_match(self._process, location, data, version),
        )

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        behind = after or ""
        while True:
            page: list[ObjectInfo] = self._call(
                "list",
                f"{prefix} behind {short(behind)!r}",
                lambda behind=behind: self._server.list_page(prefix, behind),  # type: ignore[misc]  # a default argument's type is not inferred in a lambda
                tell=lambda found: " ".join(short(info.location) for info in found) or "no more",
            )
            yield from page
            if len(page) < PAGE_OBJECTS:
                return
            behind = page[-1].location

    def delete_many(self, locations: Sequence[str]) -> _Failures:
        random = self._process.scheduler.random
        chance = 0.0 if self._network.is_calm else self._network.weather.lost_reply

        def execute() -> _Failures:
            failures = []
            for location in locations:
                fails = random.random() < chance
                if not fails or random.random() < 0.5:  # a delete that is reported as failed may have happened
                    self._server.delete(self._process, location)
                if fails:
                    failures.append(DeleteFailure(location, _unreachable(location, "reported as failed")))
            return failures

        failures: list[DeleteFailure] = self._call(
            "delete_many", " ".join(map(short, locations)), execute, critical=True
        )
        return failures

    def copy(self, source: str, target: str) -> None:
        def execute() -> None:
            self._server.put(self._process, target, self._server.get(source).data)

        self._call("copy", f"{short(source)} to {short(target)}", execute)

    # Sending

    def _read(self, name: str, location: str, execute: Callable[[], Object | None]) -> Any:
        def tell(found: Object | None) -> str:
            return "unchanged" if found is None else describe(location, found.data)

        return self._call(name, location, execute, tell=tell)

    def _call(
        self,
        name: str,
        location: str,
        execute: Callable[[], Any],
        *,
        data: bytes | None = None,
        critical: bool = False,
        tell: Callable[[Any], str] = repr,
    ) -> Any:
        def lost(why: str) -> Answer:
            return False, _unreachable(location, why)

        def refused() -> Answer:
            return False, Throttled(f"too many requests for {location!r}", location=location, retryable=True)

        return self._network.call(
            self._process,
            self._title(name, location, data),
            execute,
            lost=lost,
            refused=refused,
            critical=critical,
            tell=tell,
        )

    def _swap(self, name: str, location: str, data: bytes, execute: Callable[[], Outcome]) -> Outcome:
        def lost(why: str) -> Answer:
            return True, Unknown(_unreachable(location, why))

        def refused() -> Answer:
            return True, Unknown(Throttled("too many requests", location=location, retryable=True))

        outcome: Outcome = self._network.call(
            self._process,
            self._title(name, location, data),
            execute,
            lost=lost,
            refused=refused,
            critical=True,
            tell=lambda outcome: type(outcome).__name__,
        )
        return outcome

    def _title(self, name: str, location: str, data: bytes | None) -> str:
        if self._process.scheduler.trace is None:
            return name
        return f"{name} {short(location)}" + (f" {describe(location, data)}" if data is not None else "")


def _unreachable(location: str, why: str) -> StorageError:
    return StorageError(f"no answer for {location!r} ({why.replace('_', ' ')})", location=location, retryable=True)
