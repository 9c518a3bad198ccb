"""A store that misbehaves on purpose, around any store that does not.

    FaultyStore(inner, [Fault.after("put_if_match")])            the write lands, the reply is lost
    FaultyStore(inner, [Fault.after("put_if_match", Lost)])      it lands, and the store says it did not
    FaultyStore(inner, [Fault.before("get", skip=2, times=3)])   two reads work, the next three fail
    FaultyStore(inner, [Fault.late("put_if_match")])             reply lost now, lands when `land()` is called
    FaultyStore(inner, seed=7, rate=0.2)                         every fifth call, the same ones for the same seed

A script is tried first to last: of the faults that fit a call, the first one that is not used up strikes.
How a fault shows depends on the operation: a conditional write returns the outcome (an error becomes the cause of
an Unknown, except StoreUnusable, which is raised as real stores do), `delete_many` returns failures, all others
raise.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from buffer.clock import Clock, SystemClock
from buffer.errors import InvalidInput, StorageError, StoreUnusable, Throttled
from buffer.store.base import DeleteFailure, Lost, Object, ObjectInfo, Outcome, Store, Unknown, Version

T = TypeVar("T")
Answer: TypeAlias = type[Lost] | type[Unknown] | type[StorageError] | StorageError
_Failures: TypeAlias = list[DeleteFailure]  # inside the class, `list` is a method

CONDITIONAL = ("put_if_absent", "put_if_match")
WRITES = (*CONDITIONAL, "put", "copy", "delete_many")
READS = ("get", "get_if_changed", "head", "list")
HISTORY_MAX = 10_000
LATE_CALLS_MAX = 8


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of misfortune. Make it with `before`, `after`, `late`, `throttle` or `delay`."""

    op: str
    """Name of the operation, or "*" for all."""
    when: Literal["before", "after", "late", "delay"]
    answer: Answer | None = None
    """None: Unknown from a conditional write, a retryable StorageError from all others."""
    location: str | None = None
    """Only calls for this location; None for any."""
    times: int = 1
    skip: int = 0
    """How many fitting calls pass unharmed first."""
    delay_s: float = 0.0
    after_calls: int | None = None
    """A late write lands before the n-th further call to the store; None: when the test calls `land()`."""

    def __post_init__(self) -> None:
        assert self.op in ("*", *WRITES, *READS), f"no operation {self.op!r}"
        assert self.op != "*" or self.answer not in (Lost, Unknown), "only conditional writes have outcomes"
        assert self.op in ("*", *CONDITIONAL) or self.answer not in (Lost, Unknown), f"{self.op} has no outcome"

    @classmethod
    def before(cls, op: str, answer: Answer | None = None, **rest: Any) -> Fault:
        """The request never arrives: nothing is done."""
        return cls(op, "before", answer, **rest)

    @classmethod
    def after(cls, op: str, answer: Answer | None = None, **rest: Any) -> Fault:
        """The request is carried out, but the answer does not say so."""
        return cls(op, "after", answer, **rest)

    @classmethod
    def late(cls, op: str, answer: Answer | None = None, **rest: Any) -> Fault:
        """The answer comes first; the request is carried out later, under its own condition."""
        assert op in WRITES, f"only a write can land late, not {op!r}"
        return cls(op, "late", answer, **rest)

    @classmethod
    def throttle(cls, op: str, **rest: Any) -> Fault:
        """The store asks for fewer requests: nothing is done."""
        return cls(op, "before", Throttled, **rest)

    @classmethod
    def delay(cls, op: str, seconds: float, **rest: Any) -> Fault:
        """The request takes longer, and works."""
        return cls(op, "delay", delay_s=seconds, **rest)

    def fits(self, op: str, location: str) -> bool:
        return self.op in ("*", op) and self.location in (None, location)


class Call(NamedTuple):
    """One call that came in, and the fault that struck it."""

    op: str
    location: str
    fault: Fault | None


class FaultyStore:
    """Passes every call on to `store`, except where a fault strikes. Thread-safe as `store` is.

    `seed` and `rate` add random faults of all kinds to the script; `heal()` ends them all.
    """

    def __init__(
        self,
        store: Store,
        faults: Iterable[Fault] = (),
        *,
        seed: int | None = None,
        rate: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        assert rate == 0.0 or seed is not None, "random faults need a seed: print it, and a failure can be repeated"
        self.store = store
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._script = list(faults)
        self._random = random.Random(seed)
        self._rate = rate
        self._late: list[tuple[int | None, Callable[[], object]]] = []
        self._count = 0
        self._history: deque[Call] = deque(maxlen=HISTORY_MAX)

    # For the test

    def add(self, *faults: Fault) -> None:
        """Append to the script."""
        with self._lock:
            self._script += faults

    @property
    def unused(self) -> list[Fault]:
        """What is left of the script. A test that scripts faults should see this empty at the end."""
        with self._lock:
            return self._script[:]

    @property
    def history(self) -> list[Call]:
        """The calls so far, oldest first."""
        with self._lock:
            return [*self._history]

    @property
    def pending(self) -> int:
        """How many late writes have not landed yet."""
        with self._lock:
            return len(self._late)

    def land(self) -> None:
        """Carry out every late write now, in the order they were sent."""
        with self._lock:
            due, self._late = [effect for _, effect in self._late], []
        for effect in due:
            effect()

    def heal(self) -> None:
        """No more faults from now on; late writes land."""
        with self._lock:
            self._script.clear()
            self._rate = 0.0
        self.land()

    # The store

    @property
    def url(self) -> str:
        return self.store.url

    def __repr__(self) -> str:
        return f"FaultyStore({self.store!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise InvalidInput("a FaultyStore cannot be pickled: its script and its late writes live in one process")

    def get(self, location: str) -> Object:
        return self._run("get", location, lambda: self.store.get(location))

    def get_if_changed(self, location: str, version: Version) -> Object | None:
        return self._run("get_if_changed", location, lambda: self.store.get_if_changed(location, version))

    def head(self, location: str) -> ObjectInfo:
        return self._run("head", location, lambda: self.store.head(location))

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        return self._run("list", prefix, lambda: self.store.list(prefix, after=after))

    def put(self, location: str, data: bytes | memoryview) -> None:
        return self._run("put", location, lambda: self.store.put(location, data))

    def copy(self, source: str, target: str) -> None:
        return self._run("copy", source, lambda: self.store.copy(source, target))

    def put_if_absent(self, location: str, data: bytes) -> Outcome:
        return self._swap("put_if_absent", location, lambda: self.store.put_if_absent(location, data))

    def put_if_match(self, location: str, data: bytes, version: Version) -> Outcome:
        return self._swap("put_if_match", location, lambda: self.store.put_if_match(location, data, version))

    def delete_many(self, locations: Sequence[str]) -> _Failures:
        try:
            first = locations[0] if locations else ""
            return self._run("delete_many", first, lambda: self.store.delete_many(locations))
        except _Struck as struck:
            return [DeleteFailure(location, struck.error) for location in locations]

    # How faults strike

    def _run(self, op: str, location: str, effect: Callable[[], T]) -> T:
        try:
            return self._strike(op, location, effect)
        except _Struck as struck:
            if op == "delete_many":
                raise
            raise struck.error from None

    def _swap(self, op: str, location: str, effect: Callable[[], Outcome]) -> Outcome:
        try:
            return self._strike(op, location, effect)
        except _Struck as struck:
            if struck.fault.answer is Lost:
                return Lost()
            if isinstance(struck.error, StoreUnusable):
                raise struck.error from None
            return Unknown(struck.error)

    def _strike(self, op: str, location: str, effect: Callable[[], T]) -> T:
        """Carry the call out unless a fault says otherwise. Raises _Struck when the caller must not learn."""
        fault, due = self._next(op, location)
        for landing in due:
            landing()
        if fault is None:
            return effect()
        if fault.when == "delay":
            self._clock.sleep(fault.delay_s)
            return effect()
        if fault.when == "after":
            effect()
        elif fault.when == "late":
            with self._lock:
                due_at = None if fault.after_calls is None else self._count + fault.after_calls
                self._late.append((due_at, effect))
        raise _Struck(fault, _error(fault, op, location, self.url))

    def _next(self, op: str, location: str) -> tuple[Fault | None, Sequence[Callable[[], object]]]:
        """Note the call, and find the fault that strikes it and the late writes that land before it."""
        with self._lock:
            self._count += 1
            fault = self._scripted(op, location) or self._drawn(op)
            self._history.append(Call(op, location, fault))
            due = [effect for at, effect in self._late if at is not None and at <= self._count]
            self._late = [(at, effect) for at, effect in self._late if at is None or at > self._count]
        return fault, due

    def _scripted(self, op: str, location: str) -> Fault | None:
        for i, fault in enumerate(self._script):
            if not fault.fits(op, location):
                continue
            if fault.skip:
                self._script[i] = replace(fault, skip=fault.skip - 1)
                continue
            if fault.times > 1:
                self._script[i] = replace(fault, times=fault.times - 1)
            else:
                del self._script[i]
            return fault
        return None

    def _drawn(self, op: str) -> Fault | None:
        if not self._rate or self._random.random() >= self._rate:
            return None
        kinds = [Fault.before(op), Fault.throttle(op)]
        if op in WRITES:
            kinds += [Fault.after(op), Fault.late(op, after_calls=self._random.randint(1, LATE_CALLS_MAX))]
        if op in CONDITIONAL:
            kinds += [Fault.before(op, Lost), Fault.after(op, Lost)]
        return self._random.choice(kinds)


class _Struck(Exception):
    def __init__(self, fault: Fault, error: StorageError) -> None:
        super().__init__(str(error))
        self.fault = fault
        self.error = error


def _error(fault: Fault, op: str, location: str, url: str) -> StorageError:
    if isinstance(fault.answer, StorageError):
        return fault.answer
    cls = StorageError
    if fault.answer is not None and issubclass(fault.answer, StorageError):
        cls = fault.answer
    return cls(
        f"injected fault: {op} of {location!r} failed {fault.when} its effect",
        location=location,
        url=url,
        retryable=not issubclass(cls, StoreUnusable),
    )
