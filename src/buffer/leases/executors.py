"""Where a worker's handlers run: in threads, or on an event loop; and how the entries of a batch fared."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from buffer.errors import InvalidInput
from buffer.leases.retry import Again, RetryPolicy
from buffer.leases.values import LeasedBatch
from buffer.ledger.lease_rules import Ack

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the entries of one batch fared."""

    batch: LeasedBatch
    done: tuple[int, ...]
    errors: tuple[Exception, ...] = ()

    @property
    def ack(self) -> Ack | None:
        if not self.errors:
            return self.batch.done()
        return self.batch.done(self.done) if self.done else None

    @property
    def reason(self) -> str:
        """Why the rest comes back."""
        kind = type(self.errors[0]).__name__
        try:
            return f"{kind}: {self.errors[0]}"
        except Exception as error:  # noqa: BLE001 - somebody else's `__str__`: it must not end the worker
            return f"{kind}, and its text raised {type(error).__name__}"

    def again(self, retry: RetryPolicy) -> Again | None:
        """When to deliver the rest again; None if there is none."""
        answers = [retry.decide(error, self.batch.delivery_count) for error in self.errors]
        if not answers:
            return None
        return Again(max(a.delay_ms for a in answers), counts=any(a.counts for a in answers))


class Executor(Protocol):
    """Where handlers run."""

    def start(self, batch: LeasedBatch) -> Future[Outcome]: ...

    def close(self) -> None: ...


class Threads:
    """Plain handlers, one thread for each batch at a time."""

    def __init__(self, handler: Callable[[Any], object], per: str, concurrency: int) -> None:
        self._handler = handler
        self._per = per
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="buffer-worker")

    def start(self, batch: LeasedBatch) -> Future[Outcome]:
        return self._pool.submit(self._run, batch)

    def _run(self, batch: LeasedBatch) -> Outcome:
        done: list[int] = []
        errors: list[Exception] = []
        for indices, argument in _calls(batch, self._per):
            try:
                result = self._handler(argument)
            except Exception as error:  # noqa: BLE001 - whatever a handler raises is a failed delivery
                errors.append(error)
                continue
            _check_ran(self._handler, result)
            done.extend(indices)
        return Outcome(batch, tuple(done), tuple(errors))

    def close(self) -> None:
        self._pool.shutdown()


class Tasks:
    """Handlers for asyncio, on an event loop in a thread of its own.

    Every batch has an answer, whatever its handler does: cancel its own task, or end the process with `sys.exit`, in a
    task of its own even. Asyncio lets that end the event loop, and whoever waits would wait for ever.
    """

    def __init__(self, handler: Callable[[Any], Any], per: str) -> None:
        self._handler = handler
        self._per = per
        self._loop = asyncio.new_event_loop()
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop itself keeps none of them alive
        self._thread = threading.Thread(target=self._serve, name="buffer-worker", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._closed:  # or a task that ends the loop in the moment of `close` would have it go on for ever
            try:
                self._loop.run_forever()
                return
            except (SystemExit, KeyboardInterrupt) as error:  # whoever awaits that task is told, if the loop goes on
                log.warning("a task of the handler ended with %r", error)

    def start(self, batch: LeasedBatch) -> Future[Outcome]:
        answer: Future[Outcome] = Future()
        self._loop.call_soon_threadsafe(self._begin, batch, answer)
        return answer

    def _begin(self, batch: LeasedBatch, answer: Future[Outcome]) -> None:
        task = self._loop.create_task(self._told(batch, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _told(self, batch: LeasedBatch, answer: Future[Outcome]) -> None:
        try:
            outcome = await self._run(batch)
        except BaseException as error:  # noqa: BLE001 - it goes to the worker's thread, which raises it
            answer.set_exception(error)
        else:
            answer.set_result(outcome)

    async def _run(self, batch: LeasedBatch) -> Outcome:
        done: list[int] = []
        errors: list[Exception] = []
        for indices, argument in _calls(batch, self._per):
            try:
                await self._handler(argument)
            except asyncio.CancelledError:  # by the handler's own doing: nobody else knows this task
                errors.append(TimeoutError("the handler was cancelled"))
            except Exception as error:  # noqa: BLE001 - whatever a handler raises is a failed delivery
                errors.append(error)
            else:
                done.extend(indices)
        return Outcome(batch, tuple(done), tuple(errors))

    def close(self) -> None:
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _check_ran(handler: object, result: object) -> None:
    """A coroutine or a generator that nobody runs has done nothing: an ack of it would lose the entry."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()
        raise InvalidInput(
            f"the handler {handler!r} returned a {type(result).__name__} that nobody runs, so nothing was done: pass "
            "the `async def` function itself, and no generator"
        )


def _calls(batch: LeasedBatch, per: str) -> Iterator[tuple[Sequence[int], Any]]:
    if per == "batch":
        yield tuple(batch.indices), batch
    else:
        for index, entry in zip(batch.indices, batch.entries, strict=True):
            yield (index,), entry
