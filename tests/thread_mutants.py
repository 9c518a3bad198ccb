"""Deliberate breaks of what keeps the threads of producers and readers going, each found by a named test.

The simulator has no threads in it, so these are run over the tests with real ones: a process of its own for each, with
this module as a plugin of pytest that breaks the code before the test begins. See `test_thread_mutants`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest

from buffer.consume.read_ahead import ReadAhead
from buffer.produce import engine
from buffer.produce.engine import ProducerEngine

VARIABLE = "THREAD_MUTANT"
FAILS, HANGS = "MUTANT FAILS", "MUTANT HANGS"
HANGS_S = 20.0
PRODUCE, READ = "tests/produce", "tests/consume/test_read_ahead_acks.py"


@dataclass(frozen=True)
class ThreadMutant:
    apply: Callable[[], None]
    found_by: str
    """The test that fails, or never ends."""


MUTANTS: dict[str, ThreadMutant] = {}


def mutant(found_by: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def register(apply: Callable[[], None]) -> Callable[[], None]:
        MUTANTS[apply.__name__] = ThreadMutant(apply, found_by)
        return apply

    return register


def _replace(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


@mutant(f"{PRODUCE}/test_producer_signals.py::test_should_flush_from_a_handler_that_interrupts_produce")
def a_signal_handler_waits_for_the_lock_of_its_own_thread() -> None:
    _replace(ProducerEngine, "_is_mine", lambda _self: False)


@mutant(f"{PRODUCE}/test_producer_signals.py::test_should_keep_every_call_once_if_a_handler_produces_at_any_moment")
def a_signal_handler_produces_in_the_middle_of_its_own_call() -> None:
    make = ProducerEngine._make_locks

    def unaware(self: ProducerEngine) -> None:
        make(self)
        self._is_owned = lambda: False

    _replace(ProducerEngine, "_make_locks", unaware)


@mutant(f"{PRODUCE}/test_producer_signals.py::test_should_close_from_a_handler_that_interrupts_produce")
def what_a_signal_handler_asked_for_is_forgotten() -> None:
    _replace(ProducerEngine, "_do_deferred", lambda self: self._deferred.clear())


@mutant(f"{PRODUCE}/test_producer_faults.py::test_should_settle_and_go_on_when_an_upload_panics")
def a_panic_ends_the_thread_that_uploads() -> None:
    _replace(engine, "surviving", lambda _what: nullcontext())


@mutant(f"{PRODUCE}/test_producer_faults.py::test_should_settle_and_go_on_when_an_append_panics")
def a_panic_ends_the_thread_that_appends() -> None:
    _replace(engine, "surviving", lambda _what: nullcontext())


@mutant(f"{READ}::test_should_leave_only_the_batch_in_hand_when_400_were_processed_in_tens")
def the_batch_in_hand_is_forgotten_after_a_break() -> None:
    begin = ReadAhead.__init__

    def forgetful(self: ReadAhead, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self._position.drop_in_hand()

    _replace(ReadAhead, "__init__", forgetful)


@mutant(f"{READ}::test_should_ack_nothing_that_nobody_got")
def a_batch_counts_as_handed_out_before_it_is() -> None:
    def following(self: ReadAhead) -> Any:
        self._position.ack_in_hand()
        batch = self._take()
        if batch is None:
            raise StopIteration
        self._position.hand_out(batch.sequence, in_hand=self._auto_ack)
        self._slots.popleft()
        self._due = self._position.cursor
        self._budget.release(batch.sequence)
        self._budget.move_front(self._due)
        self._start_fetches()
        return batch

    _replace(ReadAhead, "__next__", following)


@mutant(f"{READ}::test_should_hand_out_and_ack_every_batch_when_threads_cannot_be_started")
def a_thread_that_cannot_be_started_ends_the_reading() -> None:
    def submit(self: ReadAhead, descriptor: Any) -> Any:
        return self._pool.submit(self._fetch, descriptor)

    _replace(ReadAhead, "_submit", submit)


# The plugin: only where this module is loaded as one


def pytest_configure() -> None:
    if name := os.environ.get(VARIABLE):
        MUTANTS[name].apply()


def pytest_runtest_setup(item: pytest.Item) -> None:
    timer = threading.Timer(HANGS_S, _end, [f"{HANGS} {item.nodeid}"])
    timer.daemon = True
    timer.start()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _end(f"{FAILS} {report.nodeid}")


def _end(words: str) -> None:
    """At once: threads that were broken may never end."""
    os.write(2, f"\n{words}\n".encode())
    os._exit(1)
