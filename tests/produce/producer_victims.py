"""Processes that the producer's tests start, fork and kill. Run as a script: `producer_victims.py WHAT FOLDER`.

`nursery`  forks a producing child for each line `NAME` on its standard input, and prints the child's process id.
           Forking is what makes fifty of them cheap: the imports are paid once.
`forks`    forks while other threads produce; prints what the children met.
`leaves`   ends without closing its producer. `hangs` does so while an upload never returns.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from itertools import count
from pathlib import Path

from buffer.errors import Closed
from buffer.produce.producer import Producer
from buffer.store import LocalStore

WINDOW = 40
FORKS = 10
HANGS_S = 900.0  # as in tests/nets.py, which a script cannot import


def nursery(folder: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries them
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _produce_until_killed(folder, line.strip())
        print(pid, flush=True)  # noqa: T201  (the answer to whoever started this)


def _produce_until_killed(folder: str, name: str) -> None:
    """Log each entry after its handle said durable, and not before."""
    producer = Producer.open(store=f"{folder}/queue", flush_interval_ms=1, flush_size_bytes=200)
    log = os.open(f"{folder}/{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    waiting: deque[tuple[bytes, object]] = deque()
    for index in count():
        entry = f"{name}-{index}".encode()
        waiting.append((entry, producer.produce([entry]).watcher))
        if len(waiting) >= WINDOW:
            durable, watcher = waiting.popleft()
            watcher.await_durable()
            os.write(log, durable + b"\n")


def forks(folder: str) -> None:
    producer = Producer.open(store=f"{folder}/queue", flush_interval_ms=1)
    stop = threading.Event()

    def keep_busy() -> None:
        while not stop.wait(0.0002):
            producer.produce([b"busy"])

    busy = [threading.Thread(target=keep_busy) for _ in range(2)]
    for thread in busy:
        thread.start()
    statuses = []
    for _ in range(FORKS):
        handle = producer.produce([b"before the fork"])
        pid = os.fork()
        if pid == 0:
            signal.alarm(int(HANGS_S))  # a child that hangs is a finding, not a reason to wait
            os._exit(_try_in_child(producer, handle, folder))
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        handle.watcher.await_durable(HANGS_S)
    stop.set()
    for thread in busy:
        thread.join()
    producer.close()
    print(statuses)  # noqa: T201


def _try_in_child(producer: Producer, handle: object, folder: str) -> int:
    """0 if everything of the parent's is refused at once and a producer of one's own works."""
    try:
        for call in (
            lambda: producer.produce([b"in the child"]),
            producer.flush,
            lambda: handle.watcher.await_durable(HANGS_S),
        ):
            try:
                call()
            except Closed as error:
                if "fork" not in str(error):
                    return 1
            else:
                # A handle may have been durable before the fork; anything else must be refused.
                if handle.watcher.result() is None:
                    return 2
        producer.close()
        with Producer.open(store=f"{folder}/own") as own:
            own.produce([b"own"])
    except BaseException as error:  # noqa: BLE001 - the parent has to hear of it, whatever it is
        print(repr(error), file=sys.stderr, flush=True)  # noqa: T201
        return 3
    return 0


def leaves(folder: str) -> None:
    producer = Producer.open(store=f"{folder}/queue", flush_interval_ms=60_000)
    producer.produce([b"left behind"])
    globals()["kept"] = producer  # alive until the interpreter goes


class _Hanging(LocalStore):
    def put(self, location: str, data: bytes | memoryview) -> None:
        time.sleep(3600)


def hangs(folder: str) -> None:
    producer = Producer.open(store=_Hanging(Path(folder) / "queue"), flush_size_bytes=1)
    producer.produce([b"never arrives"])
    globals()["kept"] = producer


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
