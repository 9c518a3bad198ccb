"""What a produce call gives back: a handle, and the watcher of the batch that the call went into.

All calls of one batch share one `DurabilityWatcher`, so a handle costs a few references and keeps no entry alive.
A watcher is settled once, by the producer: `Durable`, or the error that its batch ended with.

A call with a `client_seq` may fare worse than its batch's neighbours: some are in the queue from an earlier attempt.
So its handle looks through a `CallWatcher`, which says what the batch's fate means for that very call.

Whoever waits takes no lock: a signal handler may wait for a batch in the middle of another wait for it.
"""

from __future__ import annotations

import asyncio
import copy
import math
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from buffer.errors import BufferQueueError, IdempotencyConflict
from buffer.stopping import StopFlag


@dataclass(frozen=True, slots=True)
class Durable:
    """The batch is uploaded and stands in the queue: it survives the loss of this process."""

    sequence: int
    location: str


Settled: TypeAlias = Durable | BufferQueueError


class DurabilityWatcher:
    """Tells when a batch is durable, or why it will not be. Safe to use from any thread."""

    __slots__ = ("_callbacks", "_lock", "_settled")

    def __init__(self) -> None:
        self._lock = threading.Lock()  # for `settle` alone
        self._callbacks: list[Callable[[], None]] = []
        """Each is called when it is settled, perhaps more than once. Appending and popping are atomic."""
        self._settled: Settled | None = None

    def result(self) -> Settled | None:
        """`Durable`, or the error (returned, not raised); None until it is known. Never blocks."""
        return self._settled

    def await_durable(self, timeout: float | None = None) -> Durable:
        """Wait until the batch is durable. Raises the batch's error if it will never be by itself.

        After `timeout` seconds it raises TimeoutError; nothing is cancelled, wait again. In asyncio use
        `await handle`: this call blocks the thread.
        """
        if not self.wait(timeout):
            raise TimeoutError(f"the batch was not durable within {timeout:g} s; it still may become so")
        return self._unwrap()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the result is known, whatever it is; False if that took longer than `timeout` seconds."""
        if self._settled is not None:
            return True
        told = StopFlag()  # not a queue: a signal handler that runs across its deadline would make it wait for ever
        self._call_when_settled(told.set)
        try:
            told.wait(math.inf if timeout is None else timeout)
        finally:
            self._call_no_more(told.set)
        return self._settled is not None

    def __await__(self) -> Generator[Any, None, Durable]:
        return self._await().__await__()

    async def _await(self) -> Durable:
        if self.result() is None:
            woken = asyncio.get_running_loop().create_future()
            wake = threadsafe_waker(woken)
            self._call_when_settled(wake)
            try:
                await woken
            finally:
                self._call_no_more(wake)  # who waits with a limit, again and again, must not leave one each time
        return self._unwrap()

    def _unwrap(self) -> Durable:
        settled = self.result()
        assert settled is not None
        if isinstance(settled, Durable):
            return settled
        # A fresh one each time: handles share the error, and each raise would add its traceback to it.
        raise copy.copy(settled)

    def _call_when_settled(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)
        if self._settled is not None:  # and `settle` may have looked before there was anything to call
            callback()

    def _call_no_more(self, callback: Callable[[], None]) -> None:
        with suppress(ValueError):  # settled just now
            self._callbacks.remove(callback)

    def settle(self, settled: Settled) -> None:
        """For the producer: tell everyone. Only the first call counts."""
        with self._lock:
            if self._settled is not None:
                return
            self._settled = settled
        while self._callbacks:
            with suppress(IndexError):
                self._callbacks.pop(0)()

    def settle_after_fork(self, error: BufferQueueError) -> None:
        """For the producer, in a child process: locks may have been held by threads that are not here."""
        self._lock = threading.Lock()
        self._callbacks = []  # of the parent's event loops
        self.settle(error)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.result()!r})"


class CallWatcher(DurabilityWatcher):
    """What the fate of a batch means for one of its calls. Settled when the batch is."""

    __slots__ = ("_batch", "_client_seq", "_conflict")

    def __init__(
        self, batch: DurabilityWatcher, client_seq: int | range, conflict: IdempotencyConflict | None = None
    ) -> None:
        """`conflict` is what the call comes to once the batch is durable: it repeats a call in it, or before it."""
        self._batch = batch
        self._client_seq = client_seq
        self._conflict = conflict

    def result(self) -> Settled | None:
        settled = self._batch.result()
        if isinstance(settled, Durable):
            return self._conflict or settled
        if isinstance(settled, IdempotencyConflict):
            return settled.for_call(self._client_seq)
        return settled

    def wait(self, timeout: float | None = None) -> bool:
        return self._batch.wait(timeout)

    def _call_when_settled(self, callback: Callable[[], None]) -> None:
        self._batch._call_when_settled(callback)

    def _call_no_more(self, callback: Callable[[], None]) -> None:
        self._batch._call_no_more(callback)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallWatcher) and (self._batch, self._client_seq) == (other._batch, other._client_seq)

    def __hash__(self) -> int:
        return hash((self._batch, self._client_seq))


class WriteHandle:
    """One produce call that was accepted. `await handle` in asyncio waits like `watcher.await_durable()`."""

    __slots__ = ("_watcher", "client_seq", "ingestion_time_ms")

    def __init__(
        self, watcher: DurabilityWatcher, ingestion_time_ms: int, client_seq: int | range | None = None
    ) -> None:
        self._watcher = watcher
        self.ingestion_time_ms = ingestion_time_ms
        """The clock's time when the call was accepted, as it stands in the queue."""
        self.client_seq = client_seq
        """Its number among the calls of its client, or its numbers; None without a client id."""

    @property
    def watcher(self) -> DurabilityWatcher:
        """Tells what becomes of the call."""
        if self.client_seq is None:
            return self._watcher
        return CallWatcher(self._watcher, self.client_seq)

    @property
    def batch_watcher(self) -> DurabilityWatcher:
        """Tells what becomes of the batch that the call is in: the same object for all of its calls."""
        return self._watcher

    def __await__(self) -> Generator[Any, None, Durable]:
        return self.watcher.__await__()

    def __repr__(self) -> str:
        return f"WriteHandle(ingestion_time_ms={self.ingestion_time_ms}, {self.watcher!r})"


def threadsafe_waker(woken: asyncio.Future[None]) -> Callable[[], None]:
    """A function that any thread may call to complete `woken`, even if it or its loop is gone by then."""
    loop = woken.get_loop()

    def complete() -> None:
        if not woken.done():
            woken.set_result(None)

    def wake() -> None:
        try:
            loop.call_soon_threadsafe(complete)
        except RuntimeError:  # the loop was closed: nobody waits any more
            if not loop.is_closed():
                raise

    return wake
