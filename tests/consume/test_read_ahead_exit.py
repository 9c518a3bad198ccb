"""The interpreter ends while an iterator that nobody closed still reads ahead: the process ends, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from buffer.config import ProducerConfig
from buffer.produce.producer import Producer
from tests.nets import HANGS_S

READER = """
import itertools
import sys
import threading
import time
from buffer import Consumer, ConsumerConfig
from buffer.store import LocalStore

calls, barrier = itertools.count(), threading.Barrier(4)

class Together(LocalStore):
    def get_bounded(self, location, max_bytes):
        if next(calls) in range(1, 5):
            barrier.wait()  # before any of the four has told how large it is
        return super().get_bounded(location, max_bytes)

consumer = Consumer.new(ConsumerConfig(store=Together(sys.argv[1]), gc_enabled=False))
batches = consumer.batches(prefetch=4, max_bytes=1_500_000, auto_ack=True)
print(next(batches).sequence, flush=True)
while not batches._budget._changed._waiters:  # a thread waits for room
    time.sleep(0.001)
"""
RAISES = "raise RuntimeError('the caller failed')"
GOES_ON = """
def read():
    threading.main_thread().join()  # by then the interpreter has begun to end
    print(*(batch.sequence for batch in batches), flush=True)

threading.Thread(target=read).start()
"""


def _run(folder: Path, end: str) -> subprocess.CompletedProcess[str]:
    with Producer(ProducerConfig(store=str(folder), flush_interval_ms=60_000)) as producer:
        for size in (10, *[1 << 20] * 6):  # the first tells little of what is to come
            producer.produce([bytes(size)])
            producer.flush()
    command = [sys.executable, "-c", READER + end, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANGS_S)


def test_should_end_when_the_caller_failed_with_threads_that_wait_for_room(tmp_path: Path) -> None:
    ran = _run(tmp_path, RAISES)
    assert ran.stdout.split() == ["0"]
    assert "the caller failed" in ran.stderr
    assert ran.returncode == 1


def test_should_read_to_the_end_in_a_thread_that_outlives_the_main_one(tmp_path: Path) -> None:
    ran = _run(tmp_path, GOES_ON)
    assert ran.stdout.split() == [str(sequence) for sequence in range(7)], ran.stderr
    assert ran.returncode == 0
