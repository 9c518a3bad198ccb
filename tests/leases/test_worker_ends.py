"""The end of a worker, and of its handlers: what is done is acked, whatever became of the rest; nobody hangs."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable

import pytest

from buffer.consume.consumer import Consumer
from buffer.errors import Fenced, InvalidInput, ObjectNotFound, StorageError
from buffer.leases.executors import Tasks
from buffer.leases.keeper import LeaseKeeper
from buffer.leases.queue import LeaseQueue
from buffer.leases.retry import Again, Fixed
from buffer.leases.worker import _Loop, worker
from buffer.ledger.leases import Handle, Phase
from tests.leases.lease_support import MANIFEST, Counting, Work


def after_rounds(monkeypatch: pytest.MonkeyPatch, began: threading.Event) -> threading.Event:
    """Set when a worker has looked twenty times at what runs since `began`."""
    rounds, passed, wait = iter(range(20)), threading.Event(), _Loop._wait

    def counted(loop: _Loop, seconds: float) -> None:
        if began.is_set() and next(rounds, None) is None:
            passed.set()
        wait(loop, seconds)

    monkeypatch.setattr(_Loop, "_wait", counted)
    return passed


def test_should_ack_what_is_done_while_the_rest_still_runs_after_it_was_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody extends its lease any more, and whoever sent the signal may lose patience."""
    work = Work(2)
    stop, both = threading.Event(), threading.Barrier(2)
    may_end = after_rounds(monkeypatch, stop)
    finished: list[object] = []

    def handle(entry: bytes) -> None:
        both.wait()
        if entry == b"1":
            stop.set()
            return
        may_end.wait()
        finished.append(work.section().finished)

    worker(work.open(), handle, concurrency=2, stop=stop)
    assert finished == [((1, 1),)]
    assert work.section().finished_through == 1


def test_should_let_the_rest_finish_when_no_ack_counts_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(2)
    both, taken = threading.Barrier(2), threading.Event()
    may_end = after_rounds(monkeypatch, taken)
    ended: list[bytes] = []

    async def handle(entry: bytes) -> None:
        await asyncio.to_thread(both.wait)
        if entry == b"1":
            Consumer.new(work.config(), clock=work.clock)
            taken.set()
        else:
            await asyncio.to_thread(may_end.wait)
        ended.append(entry)

    with pytest.raises(Fenced):
        worker(work.open(), handle, concurrency=2)
    assert ended == [b"1", b"0"]


def test_should_end_with_an_asyncio_handler_that_ends_the_process() -> None:
    """Asyncio lets a SystemExit end the event loop: whoever waited for it would wait for ever, and keep its leases."""

    async def leave(_entry: bytes) -> None:
        sys.exit(3)

    async def leave_in_a_task(_entry: bytes) -> None:
        await asyncio.gather(leave(b""))

    for handler in (leave, leave_in_a_task):
        work = Work(1)
        with pytest.raises(SystemExit):
            worker(work.open(), handler, drain=True)
        assert work.section().finished_through == -1


def test_should_end_when_a_task_ends_the_event_loop_in_the_moment_it_is_closed() -> None:
    async def handle(_batch: object) -> None: ...

    tasks = Tasks(handle, "batch")
    both, call = threading.Event(), tasks._loop.call_soon_threadsafe

    def with_an_exit(callback: Callable[[], object]) -> None:
        call(callback)
        call(sys.exit)
        both.set()

    call(both.wait)
    tasks._loop.call_soon_threadsafe = with_an_exit  # type: ignore[method-assign,assignment]
    tasks.close()


def test_should_ack_what_an_asyncio_handler_did_before_it_cancelled_its_own_task() -> None:
    work = Work(2)

    async def handle(_entry: bytes) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()  # which takes effect at the next await: there is none

    assert worker(work.open(), handle, drain=True).batches_done == 2
    assert work.section().finished_through == 1


def test_should_ack_the_others_when_handlers_end_their_threads() -> None:
    work = Work(3)
    together = threading.Barrier(3)

    def handle(entry: bytes) -> None:
        together.wait()
        if entry != b"1":
            sys.exit(3)

    with pytest.raises(SystemExit):
        worker(work.open(), handle, concurrency=3, drain=True)
    assert work.section().finished == ((1, 1),)


def test_should_ack_the_others_when_a_policy_raises() -> None:
    work = Work(3)
    together = threading.Barrier(3)

    class Broken:
        def decide(self, _error: Exception, _delivery_count: int) -> Again:
            raise LookupError("no policy")

    def handle(entry: bytes) -> None:
        together.wait()
        if entry != b"1":
            raise ValueError

    with pytest.raises(LookupError):
        worker(work.open(), handle, concurrency=3, retry=Broken(), drain=True)
    assert work.section().finished == ((1, 1),)


def test_should_give_back_the_others_when_a_policy_names_no_time() -> None:
    work = Work(3)
    together = threading.Barrier(3)

    class Growing:
        def decide(self, error: Exception, _delivery_count: int) -> Again:
            return Again(1.5 if error.args == (b"0",) else 60_000)  # type: ignore[arg-type]

    def handle(entry: bytes) -> None:
        together.wait()
        if entry != b"1":
            raise ValueError(entry)

    with pytest.raises(InvalidInput, match=r"a time in ms is 1\.5"):
        worker(work.open(), handle, concurrency=3, retry=Growing(), drain=True)
    assert work.section().finished == ((1, 1),)
    assert [p.phase for p in work.open().peek()] == [Phase.LEASED, Phase.DELAYED]


def test_should_end_with_a_handler_that_ends_its_thread_after_its_lease_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = Work(1)
    noticed, lose = threading.Event(), LeaseKeeper.lose

    def told(keeper: LeaseKeeper, handle: Handle) -> None:
        lose(keeper, handle)
        noticed.set()

    def leave(_entry: bytes) -> None:
        work.expire()
        noticed.wait()
        sys.exit(3)

    monkeypatch.setattr(LeaseKeeper, "lose", told)
    with pytest.raises(SystemExit):
        worker(work.open(), leave, stop=noticed)


def test_should_give_back_what_raised_an_error_without_words() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise AttributeError("request")

    def handle(_entry: bytes) -> None:
        raise Mute

    work = Work(1)
    assert worker(work.open(), handle, retry=Fixed(0), drain=True).entries_failed == 2
    assert work.section().batches[0].reason == "Mute, and its text raised AttributeError"


def test_should_end_in_the_middle_of_many_batches_that_nobody_can_read() -> None:
    work = Work(50)
    stop = threading.Event()

    class Emptied(Counting):
        def get_bounded(self, location: str, *_args: int) -> object:
            stop.set()
            raise ObjectNotFound("gone", location=location)

    queue = LeaseQueue.open(work.config(Emptied(work.store)), work.leases, clock=work.clock)  # type: ignore[arg-type]
    worker(queue, print, stop=stop)
    assert [(s, b.count) for s, b in work.section().batches.items()] == [(0, 1)]


def test_should_not_call_a_lease_lost_whose_ack_landed_before_the_store_failed() -> None:
    work = Work(2)
    second = work.descriptors()[1].location

    class Away(Counting):
        def get_bounded(self, location: str, *args: int) -> object:
            if location == second:
                raise StorageError("away", retryable=True)
            return self.store.get_bounded(location, *args)

    seen: list[bytes] = []
    queue = work.open(store=Away(work.store))  # type: ignore[arg-type]
    report = worker(queue, seen.append, drain=True)
    assert seen == [b"0"]
    assert work.section().finished_through == 0
    assert (report.batches_done, report.leases_lost) == (1, 0)


def test_should_ack_what_is_done_while_the_manifest_cannot_be_read() -> None:
    """The ledger is there: what waits for the manifest would be done once more, when the lease has run out."""
    work = Work(1)
    done = threading.Event()
    failures: list[int] = []

    class Away(Counting):
        def get_if_changed(self, location: str, *args: object) -> object:
            if location == MANIFEST and done.is_set() and len(failures) < 20:
                failures.append(work.section().finished_through)
                raise StorageError("away", retryable=True)
            return self.store.get_if_changed(location, *args)  # type: ignore[arg-type]

    queue = work.open(store=Away(work.store))  # type: ignore[arg-type]
    report = worker(queue, lambda _entry: done.set(), drain=True)
    assert set(failures[1:]) == {0}
    assert (report.batches_done, report.leases_lost) == (1, 0)
