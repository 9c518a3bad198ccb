"""Collecting in a process that is too short for a collector's own thread: a load or a drain that cron starts.

A collector deletes after two looks with a change of the manifest between them (`collector.py`). A short process has
that change in its hand: it claims the queue. So the first look comes **before** the claim, the second at the end, and
nothing about the first one need be remembered for the next process:

    first look      finds what is deletable, deletes nothing
    claim, acks     each makes a new version of the manifest: an append from before the first look can no longer land
    second look     deletes what both have found

What it takes for granted is what the rules take for granted, no more: whether the manifest has changed is read from
the manifest, not concluded from the fact that we claimed. Without a claim, on an idle queue, two looks in a row delete
only what is more than a day old; the next run that has something to load takes the rest.

If the process dies between the two, nothing was deleted, and the next one begins anew. If another consumer takes over,
the second look finds its epoch and deletes nothing. A look that fails is a warning: the work itself has been done.
"""

from __future__ import annotations

import logging

from buffer.clock import Clock
from buffer.config import GcConfig
from buffer.errors import BufferQueueError, ObjectNotFound, StorageError
from buffer.gc.collector import CollectedStore, Collector, GcReport

log = logging.getLogger(__name__)


class ShortRun:
    """The two looks of one process. `begin` before the queue is claimed, `end` when the work is done."""

    def __init__(self, config: GcConfig, *, store: CollectedStore, clock: Clock) -> None:
        self._collector = Collector(config, store=store, clock=clock)
        self._store = store
        self._manifest_path = config.manifest_path
        self._has_looked = False

    def begin(self) -> None:
        """The first look. On a queue that does not exist yet there is nothing to see, and nothing to warn about."""
        try:
            self._store.get(self._manifest_path)
        except ObjectNotFound:
            return
        except StorageError as error:
            log.warning("could not look for batches to delete, leaving that to the next run: %s", error)
            return
        self._has_looked = self._look() is not None

    def end(self, epoch: int | None = None) -> int:
        """The second look, of the consumer that claimed `epoch`. Returns how many objects were deleted."""
        if not self._has_looked:
            return 0
        self._collector.epoch = epoch
        report = self._look()
        return len(report.deleted) if report is not None else 0

    def _look(self) -> GcReport | None:
        try:
            return self._collector.collect_once()
        except BufferQueueError as error:
            log.warning("could not look for batches to delete, leaving that to the next run: %s", error)
            return None
