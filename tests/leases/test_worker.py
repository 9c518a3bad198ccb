"""The worker loop: what it acks and gives back, that it keeps its leases, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from buffer.clock import SystemClock
from buffer.config import ConsumerConfig, LeaseConfig
from buffer.consume.consumer import Consumer
from buffer.errors import Fenced, InvalidInput, StorageError
from buffer.leases import keeper
from buffer.leases.queue import LeaseQueue
from buffer.leases.retry import Fixed, PerException, Untouched
from buffer.leases.values import LeasedBatch
from buffer.leases.worker import worker
from buffer.testing import Fault, FaultyStore
from tests.leases.lease_support import DEAD, MANIFEST, Counting, Work
from tests.nets import wait_until


def test_should_hand_every_entry_to_the_handler_and_ack_it() -> None:
    work = Work()
    work.fill(3, [b"a", b"b"])
    seen: list[bytes] = []
    report = worker(work.open(), seen.append, drain=True)
    assert seen == [b"a", b"b"] * 3
    assert (report.batches_done, report.entries_done, report.entries_failed) == (3, 6, 0)
    assert work.section().finished_through == 2


def test_should_hand_over_whole_batches() -> None:
    work = Work(3)
    seen: list[int] = []

    def handle(batch: LeasedBatch) -> None:
        seen.append(batch.sequence)

    worker(work.open(), handle, per="batch", concurrency=2, drain=True)
    assert sorted(seen) == [0, 1, 2]


def test_should_run_asyncio_handlers_at_the_same_time() -> None:
    work = Work(5)
    together = asyncio.Barrier(5)
    seen: list[bytes] = []

    async def handle(entry: bytes) -> None:
        await together.wait()  # only if all five are there
        seen.append(entry)

    worker(work.open(), handle, concurrency=5, drain=True)
    assert sorted(seen) == [b"0", b"1", b"2", b"3", b"4"]


def test_should_count_a_handler_that_cancels_itself_as_failed() -> None:
    work = Work(1)

    async def handle(_entry: bytes) -> None:
        raise asyncio.CancelledError

    report = worker(work.open(), handle, retry=Fixed(0), drain=True)
    assert (report.entries_done, report.entries_failed) == (0, 2)
    assert work.section().batches[0].reason == "TimeoutError: the handler was cancelled"


def test_should_end_on_a_signal_that_comes_while_it_prepares_for_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may come when one handler is there and the other is not."""
    work = Work(1)
    install, came = signal.signal, []

    def install_and_send(number: int, handler: object) -> object:
        earlier = install(number, handler)  # type: ignore[arg-type]
        if number == signal.SIGTERM and not came:
            came.append(number)
            signal.raise_signal(signal.SIGTERM)
        return earlier

    monkeypatch.setattr(signal, "signal", install_and_send)
    seen: list[bytes] = []
    worker(work.open(), seen.append)  # not until the queue is empty, but until it is told to end
    assert came == [signal.SIGTERM]


def test_should_give_back_three_of_a_thousand_and_never_show_the_others_again() -> None:
    work = Work(0, dlq_strategy="skip", dlq=DEAD)
    work.fill(1, [b"%d" % i for i in range(1_000)])
    bad = {b"3", b"500", b"997"}
    calls: list[bytes] = []

    def handle(entry: bytes) -> None:
        calls.append(entry)
        if entry in bad:
            raise ValueError("no such customer")

    queue = work.open()
    report = worker(queue, handle, retry=Fixed(0), drain=True)
    assert (report.entries_done, report.entries_failed) == (997, 6)
    assert len(calls) == 1_003
    ((entries, (said,)),) = work.dead_letters()
    assert entries == [b"3", b"500", b"997"]
    assert (said["entries"], said["count"]) == ([[3, 3], [500, 500], [997, 997]], 2)
    assert said["reason"] == "ValueError: no such customer"
    assert work.section().finished_through == 0


def test_should_lose_no_attempt_where_the_policy_says_so() -> None:
    work = Work(1)
    calls = 0

    def handle(_entry: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls < 10:
            raise TimeoutError

    worker(work.open(), handle, retry=PerException({TimeoutError: Untouched(0)}), drain=True)
    assert calls == 10
    assert work.section().finished_through == 0


@pytest.fixture
def watchful(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper looks at the clock, which the test moves, every few milliseconds."""
    monkeypatch.setattr(keeper, "REST_MAX_S", 0.005)


def hold_for_long(work: Work, batch: LeasedBatch) -> None:
    """Three times as long as its lease. No time passes before it was extended, however slow the machine is."""
    ends_ms = batch.until_ms
    for _ in range(6):
        work.clock.advance(batch.delivery.timeout_ms / 2000)
        wait_until(lambda earlier_ms=ends_ms: work.section().batches[0].until_ms > earlier_ms)  # type: ignore[misc]
        ends_ms = work.section().batches[0].until_ms


@pytest.mark.usefixtures("watchful")
def test_should_extend_the_leases_of_slow_work() -> None:
    work = Work(1, max_delivery_attempts=1)
    first_end = []

    def handle(batch: LeasedBatch) -> None:
        first_end.append(batch.until_ms)
        hold_for_long(work, batch)

    report = worker(work.open(), handle, per="batch", drain=True)
    assert (report.batches_done, report.leases_lost) == (1, 0)
    assert len(first_end) == 1


@pytest.mark.usefixtures("watchful")
def test_should_extend_them_while_a_consume_is_stuck_in_a_store_in_trouble() -> None:
    work = Work(1, max_delivery_attempts=1)
    first, stuck, may_go_on = work.descriptors()[0].location, threading.Event(), threading.Event()

    class Stuck(Counting):
        def get_bounded(self, location: str, *args: int) -> object:
            if location != first:
                stuck.set()
                may_go_on.wait()
            return self.store.get_bounded(location, *args)

    queue = work.open(store=Stuck(work.store))  # type: ignore[arg-type]

    def handle(batch: LeasedBatch) -> None:
        if batch.sequence == 0:
            work.fill(1)  # which the worker leases, and cannot fetch
            stuck.wait()
            hold_for_long(work, batch)
            may_go_on.set()

    report = worker(queue, handle, per="batch", concurrency=2, drain=True)
    assert report.batches_done >= 1
    assert work.section().finished_through >= 0


def test_should_drop_the_results_of_a_lease_that_was_lost() -> None:
    work = Work(2)
    queue, other = work.open(), work.open()
    taken: list[int] = []

    def sleep_through(entry: bytes) -> None:
        if entry == b"0" and not taken:
            work.expire()
            taken.extend(batch.sequence for batch in other.consume())

    report = worker(queue, sleep_through, drain=True)
    assert taken == [0]
    assert report.leases_lost == 1
    assert [p.lease_id for p in queue.peek()] != []
    assert work.section().finished == ((1, 1),)


def test_should_wait_out_a_store_in_trouble() -> None:
    work = Work(3)
    faulty = FaultyStore(work.store, [])
    queue = work.open(store=faulty)
    seen: list[bytes] = []
    faulty.add(Fault.before("get_if_changed", StorageError("away", retryable=True), location=MANIFEST, times=3))
    stop = threading.Event()

    def handle(entry: bytes) -> None:
        seen.append(entry)
        if len(seen) == 3:
            stop.set()

    worker(queue, handle, stop=stop)
    assert seen == [b"0", b"1", b"2"]
    assert work.section().finished_through == 2


def test_should_end_when_it_is_fenced() -> None:
    work = Work(2)
    queue = work.open()
    with pytest.raises(Fenced):
        worker(queue, lambda _entry: Consumer.new(work.config(), clock=work.clock))


def test_should_refuse_what_cannot_be_meant() -> None:
    queue = Work().open()
    with pytest.raises(InvalidInput):
        worker(queue, print, concurrency=0)
    with pytest.raises(InvalidInput):
        worker(queue, print, per="row")  # type: ignore[arg-type]


PROGRAM = """
import sys, threading
from buffer.config import ConsumerConfig
from buffer.leases.queue import LeaseQueue
from buffer.leases.worker import worker
may_end = threading.Event()
def handle(entry):
    print("started", flush=True)
    sys.stdin.readline()
with LeaseQueue.open(ConsumerConfig(store=sys.argv[1], manifest_path="jobs/manifest", gc_enabled=False)) as queue:
    print(worker(queue, handle), flush=True)
"""


def test_should_finish_what_runs_and_take_nothing_new_on_sigterm(tmp_path: Path) -> None:
    from buffer.store.open import open_store

    work = Work(3, store=open_store(str(tmp_path)))
    LeaseQueue.open(work.config(), LeaseConfig(), clock=SystemClock()).close()
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "started\n"
    child.send_signal(signal.SIGTERM)
    out, _ = child.communicate("go on\n")
    assert child.returncode == 0
    assert "batches_done=1" in out
    assert "started" not in out
    assert work.section().finished_through == 0
    assert work.section().batches == {}


def test_should_open_by_url(tmp_path: Path) -> None:
    config = ConsumerConfig(store=str(tmp_path), manifest_path=MANIFEST, gc_enabled=False)
    with LeaseQueue.open(config, LeaseConfig()) as queue:
        assert worker(queue, print, drain=True).batches_done == 0


def test_should_not_ack_what_a_handler_left_to_nobody() -> None:
    """A lambda around an `async def`, or a handler with a `yield` in it, returns at once and has done nothing."""

    async def resize(_entry: bytes) -> None: ...

    def steps(_entry: bytes) -> Iterator[None]:
        yield

    for handler in (lambda entry: resize(entry), steps):
        work = Work(1)
        with pytest.raises(InvalidInput, match="nobody runs"):
            worker(work.open(), handler, drain=True)
        assert work.section().finished_through == -1
