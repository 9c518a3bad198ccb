"""The keeper of leases: it goes on as long as it is open, whatever comes between."""

from __future__ import annotations

import threading
from typing import Any

from buffer.clock import SystemClock
from buffer.consume.consumer import Consumer
from buffer.leases.keeper import LeaseKeeper
from buffer.leases.queue import LeaseQueue
from tests.leases.lease_support import Work

WAIT_S = 60  # for a thread; only a failing test waits so long


def test_should_extend_again_after_another_reader_came_and_went() -> None:
    work = Work(1)
    clock = SystemClock()
    queue = LeaseQueue.open(work.config(), work.leases, clock=clock)
    keeper = LeaseKeeper(queue)
    fenced, extended = threading.Event(), threading.Event()
    extend = keeper.extend_due

    def watched() -> None:
        try:
            extend()
        except Exception:
            fenced.set()
            raise
        if fenced.is_set():
            extended.set()

    keeper.extend_due = watched  # type: ignore[method-assign]
    asked_s = clock.monotonic_s()
    (batch,) = queue.consume()
    Consumer.new(work.config(), clock=clock)
    with keeper:
        keeper.hold(batch.handle, 1.0, asked_s - 1.0)  # due at once
        assert fenced.wait(WAIT_S)
        LeaseQueue.open(work.config(), clock=clock)  # takes the queue back
        assert extended.wait(WAIT_S)
        assert keeper.release(batch.handle)


def test_should_extend_again_after_an_error_that_nobody_thought_of() -> None:
    work = Work(1)
    clock = SystemClock()
    queue = LeaseQueue.open(work.config(), work.leases, clock=clock)
    keeper = LeaseKeeper(queue)
    failed, extended = threading.Event(), threading.Event()
    extend = keeper._queue.extend

    def out_of_memory(*args: Any) -> None:
        if not failed.is_set():
            failed.set()
            raise MemoryError
        extend(*args)
        extended.set()

    keeper._queue.extend = out_of_memory  # type: ignore[method-assign]
    asked_s = clock.monotonic_s()
    (batch,) = queue.consume()
    with keeper:
        keeper.hold(batch.handle, 1.0, asked_s - 1.0)  # due at once
        assert failed.wait(WAIT_S)
        assert extended.wait(WAIT_S)
