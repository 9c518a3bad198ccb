"""Fetching batches: one descriptor in, one batch out, from any thread, process or Spark executor.

A `FetchHandle` holds no state and never touches the manifest, so it needs no epoch and cannot be fenced. It
pickles with its store; a memory store refuses that, because its objects live in one process only.

How a fetch fails, and what was done about it before:

    ObjectNotFound    raised at once: asking again brings no object back. The batch was acked and collected; or
                      this process is a fenced one that has not noticed yet, so look at the manifest
    StorageError      tried `attempts` times, with jittered pauses between, if the store says it is retryable
    CorruptBatch      raised after a second read. One more GET is nothing beside the consequences (a loader
                      stops, or sets the batch aside for good), and it tells a damaged object from a body that
                      was damaged or cut on the way, where no layer below could verify it
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from buffer import metrics
from buffer.batch import decode_batch_arrow
from buffer.clock import Clock, SystemClock
from buffer.config import GIB
from buffer.errors import CorruptBatch, InvalidInput, ObjectNotFound, StorageError
from buffer.model import BatchDescriptor, ConsumedBatch, RawBatch
from buffer.store.base import CanGet

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 5.0  # with 5 attempts a fetch pauses for less than a second in all
READS_OF_CORRUPT = 2

_SYSTEM_CLOCK = SystemClock()
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FetchHandle:
    """Reads batches by their descriptors. Stateless: share it between threads, pickle it to other processes."""

    store: CanGet
    max_batch_bytes: int = GIB
    """A batch that would expand past this is refused as corrupt, before memory is spent on it."""
    attempts: int = 5
    """How often a read that failed for the store's reasons is tried."""
    clock: Clock = _SYSTEM_CLOCK

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidInput(f"attempts={self.attempts} is not allowed: a fetch needs at least one")

    def fetch(self, descriptor: BatchDescriptor) -> ConsumedBatch:
        """The decoded batch. Raises ObjectNotFound, StorageError or CorruptBatch; nothing moves either way."""
        array = self.fetch_arrow(descriptor)
        return ConsumedBatch(descriptor.sequence, descriptor.location, descriptor.metadata, array)

    def fetch_arrow(self, descriptor: BatchDescriptor) -> pa.BinaryArray:
        """The entries alone, as an Arrow array: no Python object is made per entry."""
        return self._timed(lambda: self._fetch_decoded(descriptor))

    def fetch_raw(self, descriptor: BatchDescriptor) -> RawBatch:
        """The object as it is stored, for callers that decode it themselves or pass it on."""
        return RawBatch(descriptor, self._timed(lambda: self._get(descriptor.location)))

    def _fetch_decoded(self, descriptor: BatchDescriptor) -> pa.BinaryArray:
        for read in range(1, READS_OF_CORRUPT + 1):
            data = self._get(descriptor.location)
            try:
                array = decode_batch_arrow(data, max_batch_bytes=self.max_batch_bytes)
            except CorruptBatch as error:
                del data  # it may be large, and the traceback would keep it while the next read fills memory
                if read < READS_OF_CORRUPT:
                    log.warning("%r does not decode (%s), reading it again", descriptor.location, error)
                    continue
                raise CorruptBatch(
                    f"{descriptor.location!r} (sequence {descriptor.sequence}): {error}",
                    location=descriptor.location,
                    offset=error.offset,
                    version=error.version,
                ) from error
            metrics.entries_collected.add(len(array))
            return array
        raise AssertionError("the last read returns or raises")

    def _get(self, location: str) -> bytes:
        for attempt in range(1, self.attempts + 1):
            try:
                data = self.store.get(location).data
            except ObjectNotFound:
                raise
            except StorageError as error:
                if not error.retryable or attempt == self.attempts:
                    raise
                ceiling = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** (attempt - 1))
                pause_s = self.clock.jitter(ceiling / 2, ceiling)
                log.info(
                    "reading %r failed (attempt %d of %d), again in %.2f s: %s",
                    location,
                    attempt,
                    self.attempts,
                    pause_s,
                    error,
                )
                self.clock.sleep(pause_s)
            else:
                metrics.bytes_collected.add(len(data))
                return data
        raise AssertionError("the last attempt returns or raises")

    def _timed(self, read: Callable[[], T]) -> T:
        started_s = self.clock.monotonic_s()
        result = read()
        metrics.batches_collected.add(1)
        metrics.fetch_duration_seconds.record(self.clock.monotonic_s() - started_s)
        return result
