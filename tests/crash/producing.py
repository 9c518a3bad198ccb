"""A producer that keeps an honest log of what it was told, and the process around it.

    python -m tests.crash.producing '{"name": …, "log": …, "settings": {…}, …}'

Entries are JSON records `{"by": name, "id": n}`, numbered through. The log has one line for a range of ids and
what is known of it, written after it became known and not before. The last line about an id counts:

    D first last      durable: in the queue exactly once, from now on and whatever happens
    F first last      failed, and surely not in the queue (StorageError, ContentionError)
    R first last      produced again after F: nothing is known
    U first last      AppendOutcomeUnknown: there once, or not at all
    X first last …    any other error: a finding

Ids that no line speaks of were under way when the process died: there once, or not at all.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections import deque
from itertools import count
from typing import Any

from buffer.config import ProducerConfig
from buffer.errors import AppendOutcomeUnknown, ContentionError, StorageError
from buffer.produce.durability import Durable, WriteHandle
from buffer.produce.producer import Producer
from tests.crash.processes import on_end_of_input, say

WINDOW = 200  # calls that may be under way; bounds the memory of this process
CLOSE_TIMEOUT_S = 60.0


def record(name: str, number: int, padding: str = "") -> bytes:
    fields: dict[str, Any] = {"by": name, "id": number}
    return json.dumps({**fields, "pad": padding} if padding else fields).encode()


class LoggedProducer:
    """Produces ranges of ids; what fails for sure is produced again. One thread uses it."""

    def __init__(self, name: str, log: str, settings: dict[str, Any], padding: str = "") -> None:
        self.name = name
        self.counts = dict.fromkeys("DFRUX", 0)
        self._padding = padding
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._pending: deque[tuple[WriteHandle, int, int]] = deque()
        self._producer = Producer(ProducerConfig(**settings))

    def produce(self, first: int, last: int) -> None:
        entries = [record(self.name, number, self._padding) for number in range(first, last + 1)]
        handle = self._producer.produce(entries, metadata=self.name.encode())
        self._pending.append((handle, first, last))

    def settle(self, *, window: int = WINDOW, again: bool = True) -> None:
        """Log what is known by now; wait while more than `window` calls are under way."""
        while self._pending and (len(self._pending) > window or self._pending[0][0].watcher.result() is not None):
            handle, first, last = self._pending.popleft()
            handle.watcher.wait()
            settled = handle.watcher.result()
            if isinstance(settled, Durable):
                self._note("D", first, last)
            elif isinstance(settled, AppendOutcomeUnknown):
                self._note("U", first, last)
            elif isinstance(settled, StorageError | ContentionError):
                self._note("F", first, last)
                if again:
                    self._note("R", first, last)
                    self.produce(first, last)
            else:
                self._note("X", first, last, f" {settled!r}")

    def close(self) -> None:
        """Flush, and log the rest. Failures are in the log, so they are not raised."""
        try:
            self._producer.close(CLOSE_TIMEOUT_S)
        except (StorageError, ContentionError, AppendOutcomeUnknown) as error:
            sys.stderr.write(f"close: {error!r}\n")
        self.settle(window=0, again=False)
        os.close(self._log)

    def _note(self, what: str, first: int, last: int, more: str = "") -> None:
        self.counts[what] += last - first + 1
        os.write(self._log, f"{what} {first} {last}{more}\n".encode())


def run(options: dict[str, Any]) -> None:
    """Produce at a steady pace until the standard input ends, then close and say the counts."""
    stop = threading.Event()
    on_end_of_input(stop.set)
    chance = random.Random(options["name"])
    producer = LoggedProducer(
        options["name"], options["log"], options["settings"], "x" * options.get("padding_bytes", 0)
    )
    say(ready=os.getpid())
    pause_s = 1.0 / options.get("calls_per_s", 50)
    entries_max = options.get("entries_max", 10)
    next_id = options.get("first_call_entries", 0)  # a large batch loads code that small ones do without
    if next_id:
        producer.produce(0, next_id - 1)
    due_s = time.monotonic()
    for _ in count():
        last = next_id + chance.randrange(entries_max)
        producer.produce(next_id, last)
        next_id = last + 1
        producer.settle()
        # After a stall it goes on at the same pace: a burst of all that was missed is another kind of load.
        due_s = max(due_s + pause_s, time.monotonic() - pause_s)
        if stop.wait(max(0.0, due_s - time.monotonic())):
            break
    producer.close()
    say(done=producer.counts, ids=next_id)


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
