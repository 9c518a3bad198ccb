"""A flag that may be set in the middle of anything."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from buffer.stopping import StopFlag


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
