"""The threads and locks of a `Producer`: what it hands every call on to.

One lock guards the intake; whatever touches a store happens outside it. Three kinds of daemon threads:

    timer      seals the open batch when its time has come, however busy the callers are
    uploader   (several) takes the oldest sealed batch, encodes and uploads it
    appender   appends what is uploaded, in order, and settles the watchers

A call that finds no room waits in line behind the calls that came before it.
"""

from __future__ import annotations

import asyncio
import atexit
import copy
import os
import queue
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from buffer.batching import Call, Intake, PendingBatch
from buffer.clock import Clock, SystemClock
from buffer.commit import Committer
from buffer.config import ProducerConfig
from buffer.durability import DurabilityWatcher, Durable, Settled, WriteHandle, threadsafe_waker
from buffer.errors import BufferQueueError, Closed
from buffer.store.open import open_store

_real_time = SystemClock()
"""What threads wait by. The clock that is handed in decides what the entries and triggers see."""

TIMER_TICK_MIN_S = 0.001  # a clock that stands still must not make the timer spin
EXIT_WAIT_MAX_S = 2.0  # at interpreter exit, for all producers that were never closed


@dataclass(slots=True)
class _Failures:
    """Batches that failed and that no flush or close has reported: counts and the first error, not all of them."""

    batches: int = 0
    entries: int = 0
    first: BufferQueueError | None = None

    def note(self, error: BufferQueueError, entries: int) -> None:
        self.first = self.first or error
        self.batches += 1
        self.entries += entries

    def raise_if_any(self) -> None:
        if self.first is None:
            return
        error = copy.copy(self.first)
        entries = f" ({self.entries:,} entries)" if self.entries else ""
        error.args = (f"{self.batches:,} batches{entries} could not be made durable; the first: {error}",)
        raise error from self.first


class ProducerEngine:
    """Locks and threads. It does not know its `Producer`, so a dropped one is noticed although they run."""

    def __init__(self, config: ProducerConfig, clock: Clock) -> None:
        store = open_store(config.store, **config.store_options)
        self.url = store.url
        self._clock = clock
        self._intake = Intake(config, clock)
        self._committer = Committer(store, clock, config, self._on_settled)
        self._failures = _Failures()
        self._refusal: str | None = None
        """Why no call is accepted any more; None while they are."""
        self._is_foreign = False
        self._signals: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """Wakes the timer; True tells it to close. Its put is safe even inside a garbage collection."""
        self._timer_is_idle = True
        self._make_locks()
        targets: list[Callable[[], None]] = [
            self._run_timer,
            self._run_appender,
            *[self._run_uploader] * config.upload_concurrency,
        ]
        self._threads = [
            threading.Thread(target=target, name=f"buffer-producer-{target.__name__[5:]}", daemon=True)
            for target in targets
        ]
        _engines.add(self)

    def _make_locks(self) -> None:
        self._lock = threading.Lock()
        self._sealed = threading.Condition(self._lock)
        """A batch waits for an uploader."""
        self._uploaded = threading.Condition(self._lock)
        """The appender should look again."""
        self._turns: deque[threading.Condition] = deque()
        """Threads that wait for room. Only the first is tried: small calls must not starve a large one."""
        self._waiting_tasks: list[Callable[[], None]] = []
        """What wakes the asyncio tasks that wait for room."""

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    # Callers

    def accept(self, call: Call, metadata: bytes) -> WriteHandle:
        with self._lock:
            handle = None if self._turns else self._offer(call, metadata)
            return handle or self._accept_in_turn(call, metadata)

    def _accept_in_turn(self, call: Call, metadata: bytes) -> WriteHandle:
        turn = threading.Condition(self._lock)
        self._turns.append(turn)
        try:
            while True:
                first_or_closed = self._turns[0] is turn or self._refusal is not None
                handle = self._offer(call, metadata) if first_or_closed else None
                if handle is not None:
                    return handle
                turn.wait()
        finally:
            self._turns.remove(turn)
            self._tell_there_is_room()

    async def accept_async(self, call: Call, metadata: bytes) -> WriteHandle:
        """Tasks do not stand in line: a loop that stopped running would hold up everyone behind it."""
        loop = asyncio.get_running_loop()
        while True:
            with self._lock:  # held for moments only, so it does not stall the loop
                must_wait = self._turns and self._refusal is None
                handle = None if must_wait else self._offer(call, metadata)
                if handle is not None:
                    return handle
                woken = loop.create_future()
                self._waiting_tasks.append(threadsafe_waker(loop, woken))
            await woken

    def _tell_there_is_room(self) -> None:
        if self._turns:
            self._turns[0].notify()
        elif self._waiting_tasks:
            self._wake_tasks()

    def _wake_tasks(self) -> None:
        tasks, self._waiting_tasks = self._waiting_tasks, []
        for wake in tasks:
            wake()

    def _offer(self, call: Call, metadata: bytes) -> WriteHandle | None:
        if self._refusal is not None:
            raise Closed(self._refusal)
        intake = self._intake
        handle = intake.offer(call, metadata)
        if intake.sealed:
            self._sealed.notify()
        if self._timer_is_idle and intake.open is not None:
            self._timer_is_idle = False
            self._signals.put(False)
        return handle

    def flush(self, timeout: float | None) -> None:
        with self._lock:
            if self._refusal is not None:
                raise Closed(self._refusal)
            self._intake.seal()
            self._sealed.notify_all()
            watchers = [batch.watcher for batch in (*self._committer.pending(), *self._intake.sealed)]
        _await_all(watchers, timeout)
        with self._lock:
            failures, self._failures = self._failures, _Failures()
        if failures.first is None:  # perhaps another thread's flush reported what this one waited for, too
            for settled in (watcher.result() for watcher in watchers):
                if isinstance(settled, BufferQueueError):
                    failures.note(settled, entries=0)
        failures.raise_if_any()

    def close(self, timeout: float | None) -> None:
        if self._is_foreign:
            return
        self._begin_close("the producer is closed")
        deadline_s = None if timeout is None else _real_time.monotonic_s() + timeout
        for thread in self._threads:
            thread.join(None if deadline_s is None else max(0.0, deadline_s - _real_time.monotonic_s()))
            if thread.is_alive():
                raise TimeoutError(f"the producer could not flush within {timeout:g} s; it goes on trying")
        with self._lock:
            failures, self._failures = self._failures, _Failures()
        failures.raise_if_any()

    def _begin_close(self, refusal: str) -> None:
        with self._lock:
            if self._refusal is not None:
                return
            self._refusal = refusal
            self._intake.seal()
            self._sealed.notify_all()
            self._uploaded.notify_all()
            for turn in self._turns:  # they find it closed
                turn.notify()
            self._wake_tasks()
        self._signals.put(False)

    def abandon(self) -> bool:
        """The producer was dropped: flush and end in the background. False if it had been closed.

        Takes no lock: a garbage collection may run this in the middle of anything, with the lock held.
        """
        if self._refusal is not None:
            return False
        self._signals.put(True)
        return True

    def abandon_at_exit(self, deadline_s: float) -> None:
        if self._refusal is None:
            warnings.warn(unclosed(f"the producer of {self.url!r}"), ResourceWarning, stacklevel=1)
        self._begin_close("the interpreter is exiting")
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - _real_time.monotonic_s()))

    def forget_after_fork(self) -> None:
        """In a child process: none of the threads is here, and locks may be held by nobody."""
        self._refusal = (
            f"this producer was made in process {os.getppid()}; its threads did not come along into the forked "
            f"process {os.getpid()}: make a producer after the fork"
        )
        self._is_foreign = True
        self._make_locks()
        intake = self._intake
        unsettled = [*self._committer.forget_after_fork(), *intake.sealed, *([intake.open] if intake.open else [])]
        for batch in unsettled:
            batch.watcher.settle_after_fork(Closed(f"only the parent can tell what became of this: {self._refusal}"))

    # Threads

    def _run_timer(self) -> None:
        timeout: float | None = None
        while True:
            try:
                abandoned = self._signals.get(timeout=timeout)
            except queue.Empty:
                abandoned = False
            if abandoned:
                self._begin_close("the producer was dropped")
            with self._lock:
                if self._refusal is not None:
                    return
                self._intake.seal_if_due()
                if self._intake.sealed:
                    self._sealed.notify()
                deadline_s = self._intake.deadline_s
                self._timer_is_idle = deadline_s is None
            timeout = None if deadline_s is None else max(TIMER_TICK_MIN_S, deadline_s - self._clock.monotonic_s())

    def _run_uploader(self) -> None:
        while True:
            with self._lock:
                while not self._intake.sealed:
                    if self._refusal is not None:
                        return
                    self._sealed.wait()
                self._committer.enlist(self._intake.sealed[0])
                batch = self._intake.take()
                self._tell_there_is_room()
            self._committer.upload(batch)
            del batch  # while this thread waits, a settled batch should be gone
            with self._lock:
                self._uploaded.notify()

    def _run_appender(self) -> None:
        while True:
            with self._lock:
                while not self._committer.is_ready:
                    if self._refusal is not None and self._intake.is_empty and self._committer.is_idle:
                        return
                    self._uploaded.wait()
            self._committer.commit()

    def _on_settled(self, batch: PendingBatch, settled: Settled) -> None:
        with self._lock:
            self._intake.release(batch)
            if not isinstance(settled, Durable):
                self._failures.note(settled, batch.entry_count)
            self._tell_there_is_room()


def _await_all(watchers: Iterable[DurabilityWatcher], timeout: float | None) -> None:
    """Wait until each is settled, whatever it says."""
    deadline_s = None if timeout is None else _real_time.monotonic_s() + timeout
    for watcher in watchers:
        if not watcher.wait(None if deadline_s is None else max(0.0, deadline_s - _real_time.monotonic_s())):
            raise TimeoutError(f"not everything was durable within {timeout:g} s; the flush goes on")


def unclosed(producer: str) -> str:
    return f"{producer} was never closed: what no handle reported durable may be lost"


_engines: weakref.WeakSet[ProducerEngine] = weakref.WeakSet()
"""Those of this process, for the two moments at which the interpreter tells us that the world changes."""


def _forget_after_fork() -> None:
    for engine in list(_engines):
        engine.forget_after_fork()
    _engines.clear()


def _abandon_at_exit() -> None:
    deadline_s = _real_time.monotonic_s() + EXIT_WAIT_MAX_S
    for engine in list(_engines):
        engine.abandon_at_exit(deadline_s)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(_abandon_at_exit)
