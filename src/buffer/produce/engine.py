"""The threads and locks of a `Producer`: what it hands every call on to.

One lock guards the intake; whatever touches a store happens outside it. Three kinds of daemon threads:

    timer      seals the open batch when its time has come, however busy the callers are
    uploader   (several) takes the oldest sealed batch, encodes and uploads it
    appender   appends what is uploaded, in order, and settles the watchers

A call that finds no room waits in line behind the calls that came before it.

With a client id every call gets its number when it is accepted, in the order in which calls are; and after the first
call that fails none is accepted any more (`append.py` says why).

**Signal handlers** run in the middle of whatever the main thread does, and what they have interrupted does not go on
before they return. So a `flush` or `close` that finds the lock held by its own thread cannot wait: it would wait for
itself. It is noted, and done by the interrupted call as soon as that lets go of the lock, before anything else of
that thread: also if the handler raises, so `close(); sys.exit()` in a handler leaves with everything flushed. What
could not be flushed is not raised there, for the interrupted call would seem to have failed: it is logged, and the
next `flush` or `close` reports it. A `produce` there is refused: it has a handle to return.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from buffer.clock import Clock
from buffer.config import ProducerConfig
from buffer.errors import BufferQueueError, Closed, InvalidInput, ProducerStopped
from buffer.marks import CLIENT_SEQ_MAX
from buffer.produce.append import Committer
from buffer.produce.at_exit import watch
from buffer.produce.client_seqs import ClientSeqs
from buffer.produce.depth import DepthGate
from buffer.produce.durability import DurabilityWatcher, Durable, Settled, WriteHandle, threadsafe_waker
from buffer.produce.failures import Failures, await_all, deadline_after, left_s, surviving
from buffer.produce.intake import Call, Intake, PendingBatch
from buffer.store.open import open_store

log = logging.getLogger(__name__)

TIMER_TICK_MIN_S = 0.001  # a clock that stands still must not make the timer spin


class ProducerEngine:
    """Locks and threads. It does not know its `Producer`, so a dropped one is noticed although they run."""

    def __init__(self, config: ProducerConfig, clock: Clock, client_id: str | None = None) -> None:
        store = open_store(config.store, **config.store_options)
        self.url = store.url
        self._clock = clock
        self._intake = Intake(config, clock)
        self._committer = Committer(store, clock, config, self._on_settled, client_id)
        self.client: ClientSeqs | None = None if client_id is None else ClientSeqs(client_id, self._committer.open())
        self._is_opened_checked = False
        self.depth = DepthGate(store, config.manifest_path, clock, config.max_depth, lambda: self._committer.seen)
        self._stopped: BufferQueueError | None = None
        """What a producer with a client id failed with: from then on it accepts nothing."""
        self._failures = Failures()
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
        watch(self)

    def _make_locks(self) -> None:
        self._lock = threading.RLock()
        """Never taken twice by one thread; it is one of this kind because it can tell that a thread holds it."""
        self._is_owned: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]  # as Condition asks it
        """Whether this thread holds the lock: then this is a signal handler: it must not wait, nor touch the intake."""
        self._deferred: deque[Callable[[], object]] = deque()
        """What a signal handler asked for while its own thread held the lock."""
        self._closing: set[int] = set()
        """Threads that wait for the end. A handler that interrupts one of them has nothing to add."""
        self._sealed = threading.Condition(self._lock)
        """A batch waits for an uploader."""
        self._uploaded = threading.Condition(self._lock)
        """The appender should look again."""
        self._turns: deque[threading.Condition] = deque()
        """Threads that wait for room. Only the first is tried: small calls must not starve a large one."""
        self._in_line: set[int] = set()
        """Which ones they are."""
        self._waiting_tasks: dict[asyncio.Future[None], Callable[[], None]] = {}
        """What wakes the asyncio tasks that wait for room."""

    def start(self) -> None:
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # the system gives no more of them: those that run would wait for nobody
            self._threads = [thread for thread in self._threads if thread.ident is not None]
            self._begin_close("the producer's threads could not be started")
            raise

    # Callers

    def check_depth(self) -> None:
        """Raises QueueFull; but Closed or ProducerStopped before that, for then no reader helps by catching up."""
        if self._refusal is not None:
            raise Closed(self._refusal)
        if self._stopped is not None and self.client is not None:
            raise ProducerStopped.after(self._stopped, self.client.client_id)
        self.depth.check()

    def accept(self, call: Call, metadata: bytes, client_seq: int | range | None = None) -> WriteHandle:
        if self._is_owned():
            raise self._interrupting()
        try:
            with self._lock:
                handle = None if self._turns else self._offer(call, metadata, client_seq)
                handle = handle or self._accept_in_turn(call, metadata, client_seq)
        finally:
            if self._deferred:
                self._do_deferred()
        return handle if self.client is None or not self._is_earlier(handle) else self._looked_at(handle)

    def _accept_in_turn(self, call: Call, metadata: bytes, client_seq: int | range | None) -> WriteHandle:
        turn, me = threading.Condition(self._lock), threading.get_ident()
        if me in self._in_line:  # its handler would wait behind it, and it for its handler
            raise self._interrupting()
        try:
            self._in_line.add(me)
            self._turns.append(turn)  # in here: one that stays there would keep all others waiting for ever
            while True:
                first_or_closed = self._turns[0] is turn or self._refuses
                handle = self._offer(call, metadata, client_seq) if first_or_closed else None
                if handle is not None:
                    return handle
                turn.wait()
        finally:
            self._in_line.discard(me)
            with suppress(ValueError):  # interrupted before it was there
                self._turns.remove(turn)
            self._tell_there_is_room()

    async def accept_async(self, call: Call, metadata: bytes, client_seq: int | range | None = None) -> WriteHandle:
        """Tasks do not stand in line: a loop that stopped running would hold up everyone behind it."""
        if self._is_owned():
            raise self._interrupting()
        while True:
            try:
                with self._lock:  # held for moments only, so it does not stall the loop
                    must_wait = self._turns and not self._refuses
                    handle = None if must_wait else self._offer(call, metadata, client_seq)
                    if handle is not None:
                        break
                    woken = asyncio.get_running_loop().create_future()
                    self._waiting_tasks[woken] = threadsafe_waker(woken)
                    woken.add_done_callback(lambda done: self._waiting_tasks.pop(done, None))  # if it is cancelled
            finally:
                if self._deferred:
                    self._do_deferred()
            await woken
        return await asyncio.to_thread(self._looked_at, handle) if self._is_earlier(handle) else handle

    def _is_earlier(self, handle: WriteHandle) -> bool:
        return self.client is not None and handle.client_seq is not None and self.client.is_earlier(handle.client_seq)

    def _looked_at(self, handle: WriteHandle) -> WriteHandle:
        """A replay of an earlier run's call, once its batch was looked at: outside the lock, it asks the store."""
        assert self.client is not None
        assert self._committer.replays is not None, "a client has both"
        return self._committer.replays.settled(handle, self.client.opened_at)

    def next_client_seq(self) -> int:
        """Where a client goes on. Raises BatchCollected or AppendOutcomeUnknown if what is before it may be gone."""
        assert self.client is not None, "only a client has numbers"
        if not self._is_opened_checked:
            self._committer.check_opened()
            self._is_opened_checked = True
        return self.client.next

    def _tell_there_is_room(self) -> None:
        if self._turns:
            self._turns[0].notify()
        elif self._waiting_tasks:
            self._wake_tasks()

    def _wake_tasks(self) -> None:
        tasks, self._waiting_tasks = self._waiting_tasks, {}
        for wake in list(tasks.values()):  # one may be cancelled meanwhile
            wake()

    @property
    def _refuses(self) -> bool:
        return self._refusal is not None or self._stopped is not None

    def _offer(self, call: Call, metadata: bytes, client_seq: int | range | None) -> WriteHandle | None:
        if self._refusal is not None:
            raise Closed(self._refusal)
        intake, client = self._intake, self.client
        if client is None:
            handle = intake.offer(call, metadata)
        else:
            number = client.next if client_seq is None else client_seq
            try:
                if client_seq is None and self._stopped is None and client.next <= CLIENT_SEQ_MAX:
                    handle = intake.offer(call, metadata, number)  # made for many small calls
                    if handle is not None:
                        client.counted(handle)
                else:
                    handle = self._offer_numbered(client, call, metadata, client_seq)
            except BaseException:
                self._count_all_the_same(client, number)
                raise
        if intake.sealed:
            self._sealed.notify()
        if self._timer_is_idle and intake.open is not None:
            self._timer_is_idle = False
            self._signals.put(False)
        return handle

    def _count_all_the_same(self, client: ClientSeqs, number: int | range) -> None:
        """A signal's handler has raised in the middle. A call that is in its batch is a replay if it is repeated."""
        batch = self._intake.newest
        last = number[-1] if isinstance(number, range) else number
        if batch is not None and batch.last_seq == last and client.next <= last:
            client.accepted(number, WriteHandle(batch.watcher, self._clock.now_ms(), number))

    def _offer_numbered(
        self, client: ClientSeqs, call: Call, metadata: bytes, client_seq: int | range | None
    ) -> WriteHandle | None:
        if self._stopped is not None:
            raise ProducerStopped.after(self._stopped, client.client_id)
        number = client.number(client_seq)
        if number is None:
            assert client_seq is not None, "a number that was counted is never used already"
            return client.replayed(client_seq, self._clock.now_ms())
        handle = self._intake.offer(call, metadata, number)
        if handle is not None:
            client.accepted(number, handle)
        return handle

    def _is_mine(self) -> bool:
        return self._is_owned()

    def _interrupting(self) -> InvalidInput:
        return InvalidInput(
            "produce was called by a signal handler, or a destructor, in the middle of a call of the same producer: "
            "what is half done there would get into the queue twice. Set a flag, and produce when the call has returned"
        )

    def _do_deferred(self) -> None:
        """What a signal handler could not do: called by each call that held the lock, after letting go of it."""
        if self._is_mine() or not self._deferred:
            return
        while self._deferred:
            with suppress(
                IndexError,  # a handler that came just now did it
                TimeoutError,  # it goes on in the background
                Closed,  # and closing flushes
            ):
                self._deferred.popleft()()
        if self._failures.first is not None:
            log.warning("a signal handler flushed or closed the producer of %r: %s", self.url, self._failures)

    def flush(self, timeout: float | None) -> None:
        if self._is_mine():
            self._deferred.append(lambda: self._seal_and_wait(timeout))
            return
        try:
            watchers = self._seal_and_wait(timeout)
            failures = self._take_failures()
        finally:
            self._do_deferred()
        if failures.first is None:  # perhaps another thread's flush reported what this one waited for, too
            for settled in (watcher.result() for watcher in watchers):
                if isinstance(settled, BufferQueueError):
                    failures.note(settled, entries=0)
        failures.raise_if_any()

    def _seal_and_wait(self, timeout: float | None) -> list[DurabilityWatcher]:
        with self._lock:
            if self._refusal is not None:
                raise Closed(self._refusal)
            self._intake.seal()
            self._sealed.notify_all()
            watchers = [batch.watcher for batch in (*self._committer.pending(), *self._intake.sealed)]
        await_all(watchers, timeout)
        return watchers

    def _take_failures(self) -> Failures:
        with self._lock:
            failures, self._failures = self._failures, Failures()
        return failures

    def close(self, timeout: float | None) -> None:
        me = threading.get_ident()
        if self._is_foreign or me in self._closing:
            return
        if self._is_mine():
            self._deferred.append(lambda: self._end(timeout))
            return
        try:
            self._end(timeout)
            failures = self._take_failures()
        finally:
            self._do_deferred()
        failures.raise_if_any()

    def _end(self, timeout: float | None) -> None:
        """Accept no more, and wait until the threads have ended."""
        self._begin_close("the producer is closed")
        deadline_s = deadline_after(timeout)
        me = threading.get_ident()
        self._closing.add(me)
        try:
            for thread in self._threads:
                thread.join(left_s(deadline_s))
                if thread.is_alive():
                    raise TimeoutError(f"the producer could not flush within {timeout:g} s; it goes on trying")
        finally:
            self._closing.discard(me)

    def _begin_close(self, refusal: str) -> None:
        with self._lock:
            if self._refusal is not None:
                return
            self._refusal = refusal
            self._intake.seal()
            self._sealed.notify_all()
            self._uploaded.notify_all()
            self._wake_all()  # they find it closed
        self._signals.put(False)

    def _wake_all(self) -> None:
        for turn in self._turns:
            turn.notify()
        self._wake_tasks()

    def abandon(self) -> bool:
        """The producer was dropped: flush and end in the background. False if it had been closed.

        Takes no lock: a garbage collection may run this in the middle of anything, with the lock held.
        """
        if self._refusal is not None:
            return False
        self._signals.put(True)
        return True

    def abandon_at_exit(self) -> str | None:
        was_open = self._refusal is None
        self._begin_close("the interpreter is exiting")
        return unclosed(f"the producer of {self.url!r}") if was_open else None

    def await_at_exit(self, deadline_s: float) -> None:
        for thread in self._threads:
            thread.join(left_s(deadline_s))

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
            with surviving("uploading a batch"):
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
            with surviving("appending batches"):
                self.depth.refresh()
                self._committer.commit()

    def _on_settled(self, batch: PendingBatch, settled: Settled) -> None:
        with self._lock:
            self._intake.release(batch)
            if not isinstance(settled, Durable):
                self._failures.note(settled, batch.entry_count)
                if self.client is not None and self._stopped is None:
                    self._stopped = settled
                    self._wake_all()
            self._tell_there_is_room()


def unclosed(producer: str) -> str:
    return f"{producer} was never closed: what no handle reported durable may be lost"
