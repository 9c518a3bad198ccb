"""A worker as a program: leases batches, logs what it was given and what it was told, until killed.

    python -m tests.crash.leasing '{"store": URL, "options": {…}, "log": PATH, "max_batches": 3}'

Lines of the log: `leased SEQUENCE LEASE COUNT NANOSECONDS`, then `done SEQUENCE ENTRY LEASE NANOSECONDS` for each
entry, `acked SEQUENCE LEASE`, `snoozed SEQUENCE` for what was given back unread, and `trouble` where a consume ended
without an answer. The time is the monotonic one, which all processes of a machine share. A killed process loses no line
that was written: the operating system has it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from buffer.config import ConsumerConfig
from buffer.errors import CapExceeded, ContentionError, InvalidHandle, StorageError
from buffer.leases import LeasedBatch, LeaseQueue
from tests.crash.processes import on_end_of_input

MANIFEST = "jobs/manifest"


def open_queue(store: str, options: dict[str, Any]) -> LeaseQueue:
    config = ConsumerConfig(store=store, store_options=options, manifest_path=MANIFEST, gc_enabled=False)
    while True:
        try:
            return LeaseQueue.open(config)
        except (ContentionError, StorageError) as error:
            if isinstance(error, StorageError) and not error.retryable:
                raise


def main(options: dict[str, Any]) -> None:
    on_end_of_input(lambda: os._exit(3))
    with Path(options["log"]).open("a", buffering=1, encoding="utf-8") as log:

        def tell(*words: object) -> None:
            log.write(" ".join(map(str, words)) + "\n")

        queue = open_queue(options["store"], options["options"])
        done: list[LeasedBatch] = []
        while True:
            try:
                held = queue.consume(options["max_batches"], wait_ms=0 if done else 500, acks=done)
            except InvalidHandle as error:
                lost = {sequence for _, sequence in error.handles}
                done = [batch for batch in done if batch.sequence not in lost]
                continue
            except (CapExceeded, ContentionError, StorageError) as error:
                if isinstance(error, StorageError) and not error.retryable:
                    raise
                tell("trouble")
                done = []  # acked or not: what is not comes again
                continue
            for sequence in held.snoozed:
                tell("snoozed", sequence)
            for batch in done:
                tell("acked", batch.sequence, batch.lease_id)
            for batch in held:
                tell("leased", batch.sequence, batch.lease_id, batch.delivery_count, time.monotonic_ns())
                for entry in batch.entries:
                    tell("done", batch.sequence, entry.decode(), batch.lease_id, time.monotonic_ns())
            done = list(held)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
