"""A worker as a program: leases batches, logs what it was given and what it was told, until killed.

    python -m tests.leases.worker_process STORE STORE_OPTIONS_AS_JSON LOG

Lines of the log: `leased SEQUENCE LEASE COUNT`, then `done SEQUENCE ENTRY` for each entry, `acked SEQUENCE LEASE`.
A killed process loses no line that was written: the operating system has it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from buffer.config import ConsumerConfig
from buffer.errors import ContentionError, InvalidHandle, StorageError
from buffer.leases import LeasedBatch, LeaseQueue

MANIFEST = "jobs/manifest"


def open_queue(store: str, options: str) -> LeaseQueue:
    config = ConsumerConfig(store=store, store_options=json.loads(options), manifest_path=MANIFEST, gc_enabled=False)
    while True:
        try:
            return LeaseQueue.open(config)
        except (ContentionError, StorageError) as error:
            if isinstance(error, StorageError) and not error.retryable:
                raise


def main(store: str, options: str, log_path: str) -> None:
    with Path(log_path).open("a", buffering=1, encoding="utf-8") as log:

        def tell(*words: object) -> None:
            log.write(" ".join(map(str, words)) + "\n")

        queue = open_queue(store, options)
        tell("open")
        done: list[LeasedBatch] = []
        while True:
            try:
                held = queue.consume(3, wait_ms=0 if done else 500, acks=done)
            except InvalidHandle as error:
                lost = {sequence for _, sequence in error.handles}
                done = [batch for batch in done if batch.sequence not in lost]
                continue
            except (ContentionError, StorageError) as error:
                if isinstance(error, StorageError) and not error.retryable:
                    raise
                done = []  # acked or not: what is not comes again
                continue
            for batch in done:
                tell("acked", batch.sequence, batch.lease_id)
            for batch in held:
                tell("leased", batch.sequence, batch.lease_id, batch.delivery_count)
                for entry in batch.entries:
                    tell("done", batch.sequence, entry.decode())
            done = list(held)


if __name__ == "__main__":
    main(*sys.argv[1:])
