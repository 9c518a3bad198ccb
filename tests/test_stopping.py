"""A flag that may be set in the middle of anything; handlers of signals, and those that stood before them."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from buffer.stopping import StopFlag, on_signals


def test_should_end_every_wait_when_set() -> None:
    flag = StopFlag()
    assert not flag.wait(0)
    assert not flag.wait(0.001)
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.append(flag.wait(1000))) for _ in range(5)]
    for thread in threads:
        thread.start()
    flag.set()
    flag.set()
    for thread in threads:
        thread.join()
    assert results == [True] * 5
    assert flag.is_set()
    assert flag.wait(1000)


SIGNALS = """
import itertools, random, signal, sys
from buffer_delta.load.loader import Loader
from buffer.stopping import StopFlag

loader = object.__new__(Loader)
for round in range(3000):
    loader._stop = StopFlag() if len(sys.argv) < 2 else __import__("threading").Event()
    signal.signal(signal.SIGALRM, lambda *_: loader.stop())
    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00001, 0.0003))
    while not loader._stop.is_set():
        loader._stop.wait(0.00001)
print("done")
"""


def test_should_not_deadlock_when_a_signal_handler_stops_the_loader_that_begins_to_wait() -> None:
    """The handler runs in the thread that waits, at any moment: with a lock in between it would wait for itself."""
    pytest.importorskip("pyspark")
    ran = subprocess.run([sys.executable, "-c", SIGNALS], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("done\n", 0), ran.stderr


def test_should_be_set_by_a_handler_that_interrupts_another_set() -> None:
    flag = StopFlag()
    earlier = signal.signal(signal.SIGUSR1, lambda *_: flag.set())
    try:
        for _ in range(100):
            signal.raise_signal(signal.SIGUSR1)
            flag.set()
    finally:
        signal.signal(signal.SIGUSR1, earlier)
    assert flag.wait(1000)


USR = (signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture
def earlier() -> Iterator[list[str]]:
    """What handlers that stood there before were called with."""
    came: list[str] = []
    before = {number: signal.signal(number, lambda number, _: came.append(f"earlier {number}")) for number in USR}
    yield came
    for number, handler in before.items():
        signal.signal(number, handler)


def handlers() -> list[Any]:
    return [signal.getsignal(number) for number in USR]


def test_should_handle_signals_in_the_block_and_no_longer(earlier: list[str]) -> None:
    before, came = handlers(), []
    with on_signals(came.append, USR):
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR2)
        signal.raise_signal(signal.SIGUSR1)
    assert (came, earlier) == ([signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1], [])
    assert handlers() == before


@pytest.mark.parametrize("standing", [signal.SIG_DFL, signal.SIG_IGN])
def test_should_put_back_what_is_no_function(earlier: list[str], standing: signal.Handlers) -> None:
    signal.signal(signal.SIGUSR1, standing)
    with on_signals(lambda _: None, USR):
        assert signal.getsignal(signal.SIGUSR1) is not standing
    assert signal.getsignal(signal.SIGUSR1) is standing


def test_should_put_handlers_back_and_raise_what_ended_the_block(earlier: list[str]) -> None:
    before = handlers()
    with pytest.raises(RuntimeError, match="its own"), on_signals(lambda _: None, USR):
        raise RuntimeError("its own")
    assert handlers() == before


def test_should_raise_in_the_block_what_the_handler_raises(earlier: list[str]) -> None:
    before = handlers()

    def refuse(number: signal.Signals) -> None:
        raise KeyboardInterrupt(number.name)

    with pytest.raises(KeyboardInterrupt, match="SIGUSR2"), on_signals(refuse, USR):
        signal.raise_signal(signal.SIGUSR2)
    assert handlers() == before


@pytest.mark.parametrize("at", USR)
def test_should_put_all_back_when_the_handler_raises_before_the_block_begins(
    earlier: list[str], monkeypatch: pytest.MonkeyPatch, at: signal.Signals
) -> None:
    """A signal may come as soon as its handler is there, and the other one may not be there yet."""
    before, install, came = handlers(), signal.signal, []

    def install_and_send(number: signal.Signals, handler: Any) -> Any:
        replaced = install(number, handler)
        if number == at and not came:
            came.append(number)
            signal.raise_signal(number)
        return replaced

    def refuse(number: signal.Signals) -> None:
        raise KeyboardInterrupt(number.name)

    monkeypatch.setattr(signal, "signal", install_and_send)
    with pytest.raises(KeyboardInterrupt, match=at.name), on_signals(refuse, USR):
        raise AssertionError("the block begins")
    assert (handlers(), earlier) == (before, [])


def test_should_hand_the_second_of_a_signal_to_the_handler_before(earlier: list[str]) -> None:
    before, came = handlers(), []
    with on_signals(came.append, USR, once=True):
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR2)
    assert (came, earlier) == ([*USR], [f"earlier {signal.SIGUSR1}"])
    assert handlers() == before


@pytest.mark.parametrize("once", [False, True])
def test_should_nest(earlier: list[str], once: bool) -> None:
    before, came = handlers(), []
    with on_signals(lambda number: came.append(("outer", number)), USR):
        standing = handlers()
        with on_signals(lambda number: came.append(("inner", number)), [signal.SIGUSR1], once=once):
            for number in (*USR, signal.SIGUSR1):
                signal.raise_signal(number)
        assert handlers() == standing
        signal.raise_signal(signal.SIGUSR1)
    of_second = "outer" if once else "inner"
    assert [who for who, _ in came] == ["inner", "outer", of_second, "outer"]
    assert (handlers(), earlier) == (before, [])


def test_should_leave_signals_alone_outside_of_the_main_thread(earlier: list[str]) -> None:
    before, came, seen, errors = handlers(), [], [], []

    def run() -> None:
        with on_signals(came.append, USR):
            seen.append(handlers())
        try:
            with on_signals(came.append, USR):
                raise RuntimeError("its own")
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert (seen, errors, came) == ([before], ["its own"], [])
    assert handlers() == before


FROM_C = """
import signal
from buffer.stopping import on_signals

assert signal.getsignal(signal.SIGABRT) is None
came = []
try:
    with on_signals(came.append, [signal.SIGABRT, signal.SIGUSR1], once=ONCE):
        signal.raise_signal(signal.SIGABRT)
        raise RuntimeError("its own")
except RuntimeError as error:
    print(error, came == [signal.SIGABRT], signal.getsignal(signal.SIGABRT).name)
"""


@pytest.mark.parametrize("once", [False, True])
def test_should_replace_a_handler_that_was_set_from_c_and_leave_the_systems_own_behind(once: bool) -> None:
    """Python knows nothing of it but None, and cannot put it back. Its own faulthandler sets some in C."""
    program = [sys.executable, "-X", "faulthandler", "-c", FROM_C.replace("ONCE", str(once))]
    ran = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("its own True SIG_DFL\n", 0), ran.stderr


FORKED = """
import os, signal, threading
from buffer.stopping import on_signals

came, codes = [], []
signal.signal(signal.SIGUSR1, lambda *_: os._exit(9))

def fork(number):
    child = os.fork()
    if child == 0:
        signal.raise_signal(number)
        os._exit(0)  # it went on
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

with on_signals(came.append, [signal.SIGTERM, signal.SIGUSR1], once=ONCE):
    thread = threading.Thread(target=fork, args=(signal.SIGTERM,))  # as handlers of a worker run
    thread.start()
    thread.join()
    fork(signal.SIGUSR1)
    signal.raise_signal(signal.SIGTERM)
print(codes, came == [signal.SIGTERM])
"""


@pytest.mark.parametrize("once", [False, True])
def test_should_leave_the_signals_of_a_child_that_forks_off_to_whoever_had_them_before(once: bool) -> None:
    """Or `terminate` of a process that a worker's handler has started would do nothing."""
    program = [sys.executable, "-W", "ignore", "-c", FORKED.replace("ONCE", str(once))]
    ran = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == (f"[{-signal.SIGTERM}, 9] True\n", 0), ran.stderr
