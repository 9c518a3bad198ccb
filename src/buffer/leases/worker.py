"""The loop people would write around a queue with leases: consume, call, ack; nack what raised; end in good order.

    worker(queue, resize, concurrency=8)                      # resize(entry: bytes), in threads
    worker(queue, call_service, concurrency=100)              # async def call_service(entry: bytes)
    worker(queue, load, per="batch", retry=Fixed(5_000))      # load(batch: LeasedBatch)

- One batch takes one place of `concurrency`; its entries are handled one after the other, in order. An entry whose
  handler returned is acked, whatever became of its neighbours: only those that raised are delivered again, after the
  pause that `retry` says (the longest, if several raised).
- Leases of work that goes on are extended at half their time (`keeper.py`), for as long as this process lives. One that
  was lost all the same (a machine that slept) is noticed: its results are dropped, for somebody else has the batch.
- Acks go along with the next consume, in one write; where that failed, alone, before anything else.
- SIGTERM and SIGINT, or `stop`: nothing new is taken, what runs is finished, and acked as soon as it is, then it
  returns.
- Errors of the store that may pass, and contention, are waited out. Fenced and lost state end the loop, once what
  runs has finished. So does a handler that ends its thread (`sys.exit`) or a policy that raises: its batch comes back
  when the lease ends, the others are answered for first.
- The process dies: nothing is lost; what it held is delivered again when the leases end.
"""

from __future__ import annotations

import inspect
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from buffer.backoff import Backoff
from buffer.errors import (
    BufferQueueError,
    CapExceeded,
    ContentionError,
    InvalidHandle,
    InvalidInput,
    StorageError,
)
from buffer.leases.executors import Executor, Outcome, Tasks, Threads
from buffer.leases.keeper import LeaseKeeper
from buffer.leases.queue import LeaseQueue
from buffer.leases.retry import Again, Exponential, RetryPolicy
from buffer.leases.values import LeasedBatch
from buffer.ledger.lease_rules import Ack, Nack
from buffer.ledger.leases import Handle
from buffer.stopping import StopFlag, on_signals

log = logging.getLogger(__name__)

MOMENT_S = 0.001  # not worth a sleep, which may round it to nothing
LOOK_S = 0.2  # how long a free place waits for running work before the queue is looked at again
IDLE_WAIT_MS = 1_000  # and how long an idle loop waits in the queue: a signal is answered that fast
TROUBLE = Backoff(first_s=0.5, max_s=30.0, attempts_max=1_000_000, jitter_from=0.5)
"""Pauses while the store is in trouble."""
ENDING = Backoff(first_s=0.5, max_s=5.0, attempts_max=5, jitter_from=0.5)
"""How long the end waits for a store in trouble: whoever sent SIGTERM waits, too."""

Handler = Callable[[Any], object] | Callable[[Any], Awaitable[object]]


@dataclass(slots=True)
class WorkerReport:
    """What a worker did, in batches and entries."""

    batches_done: int = 0
    entries_done: int = 0
    entries_failed: int = 0
    leases_lost: int = 0


class Stop(Protocol):
    """Says when to stop: a `threading.Event`, or anything like it."""

    def is_set(self) -> bool: ...


def worker(
    queue: LeaseQueue,
    handler: Handler,
    *,
    concurrency: int = 1,
    per: Literal["entry", "batch"] = "entry",
    retry: RetryPolicy | None = None,
    stop: Stop | None = None,
    signals: bool = True,
    drain: bool = False,
) -> WorkerReport:
    """Work the queue off until told to stop; see the module's rules.

    `stop` is a `threading.Event`, say, that somebody else sets. `drain` ends it when there is nothing left to deliver
    and nothing runs. `signals` installs handlers while it runs, if this is the main thread. Returns what was done.
    Raises Fenced, LedgerLost and the like.
    """
    if concurrency < 1 or per not in ("entry", "batch"):
        raise InvalidInput(f"concurrency={concurrency!r}, per={per!r}: at least 1, and 'entry' or 'batch'")
    signalled = StopFlag()
    is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
    with _signals(signalled) if signals else nullcontext(), LeaseKeeper(queue) as keeper:
        executor: Executor = Tasks(handler, per) if is_async else Threads(handler, per, concurrency)
        stops = (signalled,) if stop is None else (signalled, stop)
        loop = _Loop(queue, executor, keeper, concurrency, retry or Exponential(), stops, drain)
        try:
            loop.run()
        finally:
            executor.close()
        loop.report.leases_lost = keeper.lost
        return loop.report


@dataclass
class _Loop:
    queue: LeaseQueue
    executor: Executor
    keeper: LeaseKeeper
    concurrency: int
    retry: RetryPolicy
    stops: Sequence[Stop]
    drain: bool
    report: WorkerReport = field(default_factory=WorkerReport)
    running: dict[Future[Outcome], LeasedBatch] = field(default_factory=dict)
    acks: list[Ack] = field(default_factory=list)
    nacks: list[tuple[Handle, Again, str]] = field(default_factory=list)
    doubtful: set[Handle] = field(default_factory=set)
    """Of acks that were sent, and may have landed: if they do not hold any more, that is no loss."""
    fatal: BaseException | None = None
    """What no other delivery would help against: raised at the end."""

    def run(self) -> None:
        pauses = TROUBLE.pauses(self.queue.clock.jitter)
        try:
            while not self._is_stopped() and self.fatal is None:
                try:
                    found = self._turn()
                except (ContentionError, StorageError) as error:
                    if not _may_pass(error):
                        raise
                    log.warning("the store is in trouble, going on soon: %s", error)
                    self._wait(next(pauses))
                    continue
                pauses = TROUBLE.pauses(self.queue.clock.jitter)
                if self.drain and not found and not self.running and not self.acks:
                    return
        finally:
            self._finish()

    def _turn(self) -> bool:
        """Answer what has finished, fill the free places. Whether anything was found to do."""
        self._collect()
        if self.fatal is not None:
            return True  # nothing new is taken
        self._give_back()
        if self.doubtful:
            self._ack_now()  # alone: a consume may fail once more, over the manifest or a batch, until leases run out
        free = self.concurrency - len(self.running)
        if not free:
            self._wait(LOOK_S)
            return True
        idle = not self.running and not self.acks
        found = self._consume(free, wait_ms=IDLE_WAIT_MS if idle and not self.drain else 0)
        if not found and self.running:
            self._wait(LOOK_S)
        return found

    def _consume(self, free: int, wait_ms: int) -> bool:
        acks, self.acks = self.acks, []
        while True:
            asked_s = self.queue.clock.monotonic_s()
            try:
                delivered = self.queue.consume(free, wait_ms, acks, enough=self._is_called)
            except InvalidHandle as error:
                acks = self._without_lost(error, acks)
            except CapExceeded as error:  # the acks stand
                log.info("nothing more for now: %s", error)
                return False
            except (ContentionError, StorageError):
                self._keep(acks)
                raise
            else:
                break
        self.doubtful.clear()
        for batch in delivered:
            self.keeper.hold(batch.handle, batch.delivery.timeout_ms / 1000, asked_s)
            self.running[self.executor.start(batch)] = batch
        return bool(delivered)

    def _collect(self) -> None:
        """Sort what has finished into acks and nacks; drop what was lost."""
        for future in [future for future in self.running if future.done()]:
            batch = self.running.pop(future)
            is_held = self.keeper.release(batch.handle)
            error = future.exception()
            if error is None and is_held:  # else somebody else has it: what was made of it counts for nothing
                try:
                    self._sort(batch, future.result())
                except Exception as raised:  # noqa: BLE001 - a policy's: raised at the end, the others go first
                    error = raised
            self.fatal = self.fatal or error

    def _sort(self, batch: LeasedBatch, outcome: Outcome) -> None:
        self.report.entries_done += len(outcome.done)
        self.report.entries_failed += len(outcome.errors)
        self.report.batches_done += not outcome.errors
        if outcome.ack is not None:
            self.acks.append(outcome.ack)
        again = outcome.again(self.retry)
        if again is not None:
            self.nacks.append((batch.handle, again, outcome.reason))

    def _give_back(self) -> None:
        """Nack what failed; its good entries first, while the lease still holds."""
        if not self.nacks:
            return
        self._ack_now()
        failed = [Nack(handle, again.delay_ms, reason) for handle, again, reason in self.nacks if again.counts]
        for again in {again for _, again, _ in self.nacks if not again.counts}:
            handles = [handle for handle, other, _ in self.nacks if other == again]
            self._each(handles, lambda held, again=again: self.queue.snooze(held, again.delay_ms))  # type: ignore[misc]
        reasons = {nack.handle: nack for nack in failed}
        self._each(list(reasons), lambda held: self.queue.nack([reasons[handle] for handle in held]))
        self.nacks.clear()

    def _ack_now(self) -> None:
        acks, self.acks = self.acks, []
        while acks:
            try:
                self.queue.ack(acks)
                break
            except InvalidHandle as error:
                acks = self._without_lost(error, acks)
            except (ContentionError, StorageError):
                self._keep(acks)
                raise
        self.doubtful.clear()

    def _keep(self, acks: list[Ack]) -> None:
        """For another try."""
        self.acks = acks
        self.doubtful.update(ack.handle for ack in acks)

    def _each(self, handles: Sequence[Handle], verb: Callable[[Sequence[Handle]], None]) -> Sequence[Handle]:
        """Apply the verb to those that hold; what does not is lost. Returns those that hold."""
        while handles:
            try:
                verb(handles)
                return handles
            except InvalidHandle as error:
                lost = set(error.handles)
                for lease_id, sequence in lost:
                    self._lose(Handle(lease_id, sequence))
                handles = [handle for handle in handles if (handle.lease_id, handle.sequence) not in lost]
        return []

    def _without_lost(self, error: InvalidHandle, acks: Sequence[Ack]) -> list[Ack]:
        lost = set(error.handles)
        for handle in {Handle(lease_id, sequence) for lease_id, sequence in lost} - self.doubtful:
            self._lose(handle)
        return [ack for ack in acks if (ack.handle.lease_id, ack.handle.sequence) not in lost]

    def _lose(self, handle: Handle) -> None:
        self.keeper.lose(handle)
        self.nacks = [item for item in self.nacks if item[0] != handle]

    def _wait(self, seconds: float) -> None:
        """Until something has finished; where nothing runs, until it is time to stop. At most so long."""
        if self.running:
            wait(self.running, timeout=seconds, return_when=FIRST_COMPLETED)
            return
        deadline_s = self.queue.clock.monotonic_s() + seconds
        while not self._is_stopped() and (left_s := deadline_s - self.queue.clock.monotonic_s()) > MOMENT_S:
            self.queue.clock.sleep(min(left_s, LOOK_S))

    def _is_called(self) -> bool:
        """There is something better to do than to look for more."""
        return self._is_stopped() or any(future.done() for future in self.running)

    def _is_stopped(self) -> bool:
        return any(stop.is_set() for stop in self.stops)

    def _finish(self) -> None:
        """Let what runs come to its end; ack it, or give it back.

        Each as soon as it is done: nobody extends its lease any more, and the others may take long.
        """
        is_heard = True
        while self.running:
            self._wait(LOOK_S)
            self._collect()
            if is_heard:
                try:
                    self._answer()
                except BufferQueueError as error:
                    log.warning("what has finished could not be acked yet: %s", error)
                    is_heard = _may_pass(error)  # else it is raised when nothing runs any more
        self._insist(self._answer)
        if self.fatal is not None:
            raise self.fatal

    def _answer(self) -> None:
        self._give_back()
        self._ack_now()

    def _insist(self, call: Callable[[], None]) -> None:
        """Through trouble of the store that may pass; at last the error is raised."""
        for attempt in ENDING.attempts(self.queue.clock):
            try:
                call()
                return
            except (ContentionError, StorageError) as error:
                if attempt + 1 == ENDING.attempts_max or not _may_pass(error):
                    raise


def _may_pass(error: BufferQueueError) -> bool:
    return isinstance(error, ContentionError) or (isinstance(error, StorageError) and error.retryable)


def _signals(stopped: StopFlag) -> AbstractContextManager[None]:
    """SIGTERM and SIGINT end the loop in good order; a second one of them does what it always did."""
    return on_signals(lambda _number: stopped.set(), (signal.SIGTERM, signal.SIGINT), once=True)
