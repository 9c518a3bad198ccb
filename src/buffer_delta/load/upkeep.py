"""What a loader does for its tables after a range is acked: see `delta/upkeep.py` for what, and for why it is safe.

Checkpoints are made on one thread beside the line, one at a time: while one is being made, the next that becomes due
replaces the one that waits, for a newer checkpoint is as good for both. `close` waits for the one in hand: a process
that cron starts would else never finish one. Compaction runs on the caller's thread, between two commits.

Whatever fails here is a warning. The rows are in the tables.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Protocol

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from buffer_delta.delta.state import Commit
from buffer_delta.spark.blame import brief

log = logging.getLogger(__name__)

CLOSE_WAIT_S = 60.0  # for a checkpoint in hand; it is a thread that does not hold up the end of the process
_TROUBLE = (PySparkException, Py4JError, OSError)
"""Whatever Spark, Delta, a store or a JVM that is ending has against it."""


class Kept(Protocol):
    """A table that is looked after."""

    def checkpoint_due(self, commit: Commit) -> bool: ...

    def checkpoint(self) -> None: ...

    def compact_due(self, commit: Commit, every: int) -> bool: ...

    def compact(self, target_bytes: int) -> tuple[int, int]: ...


class Upkeep:
    """Looks after the tables of one loader. `after` and `close` from the loader's thread."""

    def __init__(self, tables: Mapping[str, Kept], *, compact_every: int, target_bytes: int) -> None:
        self._tables = tables
        self._compact_every = compact_every
        self._target_bytes = target_bytes
        self._lock = threading.Lock()
        self._waiting: dict[str, Kept] = {}
        self._thread: threading.Thread | None = None

    def after(self, commits: Mapping[str, Commit]) -> None:
        """Some tables have new commits, and the range is acked."""
        for name, commit in commits.items():
            table = self._tables[name]
            try:
                if table.checkpoint_due(commit):
                    self._begin_checkpoint(name, table)
                if self._compact_every and table.compact_due(commit, self._compact_every):
                    removed, added = table.compact(self._target_bytes)
                    log.info("compacted %s: %d files became %d", name, removed, added)
            except _TROUBLE as error:
                log.warning("%s was not looked after, that comes again: %s", name, brief(error))

    def _begin_checkpoint(self, name: str, table: Kept) -> None:
        with self._lock:
            self._waiting[name] = table
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="buffer-checkpoints", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                name = next(iter(self._waiting))
                table = self._waiting.pop(name)
            try:
                table.checkpoint()
            except _TROUBLE as error:
                log.warning("no checkpoint of %s, that comes again: %s", name, brief(error))

    def close(self) -> None:
        """Wait for what is being made."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(CLOSE_WAIT_S)
