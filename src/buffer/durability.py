"""What a produce call gives back: a handle, and the watcher of the batch that the call went into.

All calls of one batch share one `DurabilityWatcher`, so a handle costs two references and keeps no entry alive.
A watcher is settled once, by the producer: `Durable`, or the error that its batch ended with.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias

from buffer.errors import BufferQueueError


@dataclass(frozen=True, slots=True)
class Durable:
    """The batch is uploaded and stands in the queue: it survives the loss of this process."""

    sequence: int
    location: str


Settled: TypeAlias = Durable | BufferQueueError


class DurabilityWatcher:
    """Tells when a batch is durable, or why it will not be. Safe to use from any thread."""

    __slots__ = ("_callbacks", "_changed", "_lock", "_settled")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._callbacks: list[Callable[[], None]] = []
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
        return self._settled is not None or self._changed.wait(timeout)

    def __await__(self) -> Generator[Any, None, Durable]:
        return self._await().__await__()

    async def _await(self) -> Durable:
        if self._settled is None:
            loop = asyncio.get_running_loop()
            woken = loop.create_future()
            self._call_when_settled(threadsafe_waker(loop, woken))
            await woken
        return self._unwrap()

    def _unwrap(self) -> Durable:
        settled = self._settled
        assert settled is not None
        if isinstance(settled, Durable):
            return settled
        # A fresh one each time: handles share the error, and each raise would add its traceback to it.
        raise copy.copy(settled)

    def _call_when_settled(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if self._settled is None:
                self._callbacks.append(callback)
                return
        callback()

    def settle(self, settled: Settled) -> None:
        """For the producer: tell everyone. Only the first call counts."""
        with self._lock:
            if self._settled is not None:
                return
            self._settled = settled
            callbacks, self._callbacks = self._callbacks, []
        self._changed.set()
        for callback in callbacks:
            callback()

    def settle_after_fork(self, error: BufferQueueError) -> None:
        """For the producer, in a child process: locks may have been held by threads that are not here."""
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._callbacks = []  # of the parent's event loops
        self.settle(error)

    def __repr__(self) -> str:
        return f"DurabilityWatcher({self._settled!r})"


class WriteHandle:
    """One produce call that was accepted. `await handle` in asyncio waits like `watcher.await_durable()`."""

    __slots__ = ("ingestion_time_ms", "watcher")

    def __init__(self, watcher: DurabilityWatcher, ingestion_time_ms: int) -> None:
        self.watcher = watcher
        self.ingestion_time_ms = ingestion_time_ms
        """The clock's time when the call was accepted, as it stands in the queue."""

    def __await__(self) -> Generator[Any, None, Durable]:
        return self.watcher.__await__()

    def __repr__(self) -> str:
        return f"WriteHandle(ingestion_time_ms={self.ingestion_time_ms}, {self.watcher!r})"


def threadsafe_waker(loop: asyncio.AbstractEventLoop, woken: asyncio.Future[None]) -> Callable[[], None]:
    """A function that any thread may call to complete `woken`, even if it or its loop is gone by then."""

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
