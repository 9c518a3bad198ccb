"""One life of a producer with a client id. It is killed, and the next one repeats all that was not seen durable.

    python -m tests.crash.numbering '{"name": …, "settings": {…}, "seen": PATH, "last_call": n, "seed": n}'

Call n holds the records `n * ENTRIES_PER_CALL` and the following ones, and has n as its client_seq. The file `seen` is
the application's memory: how many calls it knows to be in the queue. Some lives do not look at it and begin where the
queue says that the client is; some begin before it, which must be recognised. A life that fails says so and ends: the
next one goes on. It is done when `last_call` is in the queue.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import deque
from pathlib import Path
from typing import Any

from buffer.config import ProducerConfig
from buffer.errors import BufferQueueError, ContentionError, IdempotencyConflict, ProducerStopped, StorageError
from buffer.produce.durability import Durable, WriteHandle
from buffer.produce.producer import Producer
from tests.crash.processes import on_end_of_input, say
from tests.crash.producing import record

ENTRIES_PER_CALL = 3
WINDOW = 40
REPLAYS_MAX = 3
PASSES = (StorageError, ContentionError, IdempotencyConflict, ProducerStopped)
"""What a life may legally end with. Anything else is a finding."""
FAILED = 10
"""The exit code of a life that ended with one of these; Python's own for anything else is 1."""


class Seen:
    """How many calls are known to be in the queue; survives a kill."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self.calls = int(self._path.read_text()) if self._path.exists() else 0

    def add(self, call: int) -> None:
        if call >= self.calls:
            self.calls = call + 1
            fresh = self._path.with_suffix(".new")
            fresh.write_text(str(self.calls))
            fresh.rename(self._path)


class Life:
    def __init__(self, options: dict[str, Any]) -> None:
        self._name: str = options["name"]
        self._seen = Seen(options["seen"])
        self._chance = random.Random(options["seed"])
        self._producer = Producer(ProducerConfig(**options["settings"]), client_id=self._name)
        self._pending: deque[tuple[WriteHandle, int]] = deque()
        self.conflicts = 0

    def run(self, last_call: int) -> None:
        for call in range(self._begin(), last_call + 1):
            entries = [record(self._name, call * ENTRIES_PER_CALL + n) for n in range(ENTRIES_PER_CALL)]
            self._pending.append((self._producer.produce(entries, client_seq=call), call))
            self._settle(WINDOW)
        self._settle(0)
        self._producer.close()

    def _begin(self) -> int:
        known, at = self._seen.calls, self._producer.next_client_seq
        assert at >= known, f"{known} calls were durable, but the queue has {at}"
        way = self._chance.random()
        if way < 0.3:
            return at
        return known if way < 0.7 else max(0, known - self._chance.randrange(REPLAYS_MAX + 1))

    def _settle(self, window: int) -> None:
        while self._pending and (len(self._pending) > window or self._pending[0][0].watcher.result() is not None):
            handle, call = self._pending.popleft()
            handle.watcher.wait()
            settled = handle.watcher.result()
            if isinstance(settled, IdempotencyConflict):
                self.conflicts += 1
                assert settled.in_queue is not False, settled
            elif not isinstance(settled, Durable):
                assert isinstance(settled, BufferQueueError)
                raise settled
            self._seen.add(call)


def main(options: dict[str, Any]) -> None:
    on_end_of_input(lambda: os._exit(3))
    try:
        life = Life(options)
        say(ready=os.getpid())
        life.run(options["last_call"])
    except PASSES as error:
        if isinstance(error, StorageError) and not error.retryable:
            raise
        say(failed=repr(error))
        os._exit(FAILED)
    say(done=life.conflicts)
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
