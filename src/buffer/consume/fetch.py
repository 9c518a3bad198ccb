"""Fetching batches: one descriptor in, one batch out, from any thread, process or Spark executor.

A `FetchHandle` holds no state and never touches the manifest, so it needs no epoch and cannot be fenced. It
pickles with its store; a memory store refuses that, because its objects live in one process only.

How a fetch fails, and what was done about it before:

    ObjectNotFound    raised at once: asking again brings no object back. The batch was acked and collected; or
                      this process is a fenced one that has not noticed yet, so look at the manifest
    StorageError      tried `attempts` times, with jittered pauses between, if the store says it is retryable
    CorruptBatch      raised after a second read. One more GET is nothing beside the consequences (a loader
                      stops, or sets the batch aside for good), and it tells a damaged object from a body that
                      was damaged or cut on the way, where no layer below could verify it. An object too large
                      to be a batch is not read at all
    LocationRefused   a kind of CorruptBatch, raised at once: whoever can write a manifest must not make its readers
                      fetch what is not the queue's. `names.location_problem` decides
    BatchTooLarge     a kind of CorruptBatch: over `max_batch_bytes`. As above, another reader's settings may allow it
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from buffer import metrics
from buffer.backoff import Backoff
from buffer.clock import Clock, SystemClock
from buffer.codec.batch import FOOTER_BYTES, batch_info, decode_batch_arrow, expanded_bytes
from buffer.config import GIB
from buffer.errors import (
    BatchTooLarge,
    CorruptBatch,
    InvalidInput,
    LocationRefused,
    ObjectNotFound,
    ObjectTooLarge,
    StorageError,
)
from buffer.model import BatchDescriptor, ConsumedBatch, RawBatch
from buffer.names import location_problem
from buffer.store.base import CanGet, CanGetBounded, CanGetRange, CanHead

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

REFUSALS = (LocationRefused, BatchTooLarge)
"""What this reader's own settings do not let it read: another one may well do so."""

FETCH_BACKOFF = Backoff(
    first_s=0.05,
    max_s=5.0,
    attempts_max=5,  # a fetch pauses for less than a second in all
    jitter_from=0.5,
)
READS_OF_CORRUPT = 2

_SYSTEM_CLOCK = SystemClock()
T = TypeVar("T")


def stored_bytes_max(max_batch_bytes: int) -> int:
    """The largest object that can be a batch: zstd may make what it cannot compress a little larger."""
    return max_batch_bytes + (max_batch_bytes >> 7) + (1 << 16)


@dataclass(frozen=True, slots=True)
class FetchHandle:
    """Reads batches by their descriptors. Stateless: share it between threads, pickle it to other processes."""

    store: CanGet
    max_batch_bytes: int = GIB
    """A batch that would expand past this is refused as corrupt, before memory is spent on it."""
    attempts: int = FETCH_BACKOFF.attempts_max
    """How often a read that failed for the store's reasons is tried."""
    clock: Clock = _SYSTEM_CLOCK
    prefixes: tuple[str, ...] = ()
    """The folders of the queue: a location outside of them is refused. None given: any folder."""

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise InvalidInput(f"attempts={self.attempts} is not allowed: a fetch needs at least one")

    def fetch(self, descriptor: BatchDescriptor) -> ConsumedBatch:
        """The decoded batch. Raises ObjectNotFound, StorageError or CorruptBatch; nothing moves either way."""
        array = self.fetch_arrow(descriptor)
        return ConsumedBatch(descriptor.sequence, descriptor.location, descriptor.metadata, array)

    def fetch_arrow(self, descriptor: BatchDescriptor) -> pa.BinaryArray:
        """The entries alone, as an Arrow array: no Python object is made per entry."""
        return self._timed(lambda: self._fetch_decoded(descriptor, _reserve_nothing))

    def fetch_within(self, descriptor: BatchDescriptor, reserve: Callable[[int], None]) -> ConsumedBatch:
        """Like `fetch`; `reserve` is told how many bytes the batch expands to before it does, and may wait."""
        array = self._timed(lambda: self._fetch_decoded(descriptor, reserve))
        return ConsumedBatch(descriptor.sequence, descriptor.location, descriptor.metadata, array)

    def refusal(self, descriptor: BatchDescriptor) -> str | None:
        """Why this batch is not to be read, as far as its location tells; None if it may be."""
        return location_problem(descriptor.location, self.prefixes)

    def fetch_raw(self, descriptor: BatchDescriptor) -> RawBatch:
        """The object as it is stored, for callers that decode it themselves or pass it on."""
        return RawBatch(descriptor, self._timed(lambda: self._get(descriptor)))

    def count(self, descriptor: BatchDescriptor) -> int | None:
        """How many entries its footer claims, by a read of the footer alone; None: this store cannot tell.

        Raises ObjectNotFound, StorageError, or CorruptBatch where there is no footer.
        """
        if problem := self.refusal(descriptor):
            raise LocationRefused(f"sequence {descriptor.sequence}: {problem}", location=descriptor.location)
        if not (isinstance(self.store, CanGetRange) and isinstance(self.store, CanHead)):
            return None
        size = self.store.head(descriptor.location).size
        start = max(0, size - FOOTER_BYTES)
        return batch_info(self.store.get_range(descriptor.location, start, size - start)).record_count

    def _fetch_decoded(self, descriptor: BatchDescriptor, reserve: Callable[[int], None]) -> pa.BinaryArray:
        for read in range(1, READS_OF_CORRUPT + 1):
            data = self._get(descriptor)
            try:
                reserve(expanded_bytes(data, self.max_batch_bytes))
                array = decode_batch_arrow(data, max_batch_bytes=self.max_batch_bytes)
            except CorruptBatch as error:
                del data  # it may be large, and the traceback would keep it while the next read fills memory
                if read < READS_OF_CORRUPT:
                    log.info("%r does not decode (%s), reading it again", descriptor.location, error)
                    continue
                raise type(error)(
                    f"{descriptor.location!r} (sequence {descriptor.sequence}): {error}",
                    location=descriptor.location,
                    offset=error.offset,
                    version=error.version,
                ) from error
            metrics.entries_collected.add(len(array))
            return array
        raise AssertionError("the last read returns or raises")

    def _get(self, descriptor: BatchDescriptor) -> bytes:
        location = descriptor.location
        if problem := self.refusal(descriptor):
            raise LocationRefused(f"sequence {descriptor.sequence}: {problem}", location=location)
        pauses = replace(FETCH_BACKOFF, attempts_max=self.attempts).pauses(self.clock.jitter)
        for attempt in range(1, self.attempts + 1):
            try:
                data = self._read(location)
            except ObjectNotFound:
                raise
            except ObjectTooLarge as error:
                raise BatchTooLarge(
                    f"{location!r} (sequence {descriptor.sequence}) has {error.size:,} bytes, more than any batch "
                    f"within max_batch_bytes={self.max_batch_bytes:,}; raise it if the batch is genuine",
                    location=location,
                ) from error
            except InvalidInput as error:  # no call of ours was wrong: this store cannot have such an object
                raise LocationRefused(f"sequence {descriptor.sequence}: {error}", location=location) from error
            except StorageError as error:
                if not error.retryable or attempt == self.attempts:
                    raise
                pause_s = next(pauses)
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

    def _read(self, location: str) -> bytes:
        if isinstance(self.store, CanGetBounded):
            return self.store.get_bounded(location, stored_bytes_max(self.max_batch_bytes))
        return self.store.get(location).data

    def _timed(self, read: Callable[[], T]) -> T:
        started_s = self.clock.monotonic_s()
        result = read()
        metrics.batches_collected.add(1)
        metrics.fetch_duration_seconds.record(self.clock.monotonic_s() - started_s)
        return result


def _reserve_nothing(_size: int) -> None:
    """For a caller that holds one batch at a time."""


def with_way_past(error: ObjectNotFound | CorruptBatch, sequence: int) -> ObjectNotFound | CorruptBatch:
    """The error of a batch that no reader will ever get, with the way on for one who reads in order."""
    way = f"If it cannot be brought back, go on without it: skip({sequence}), then ack it"
    return type(error)(f"{error}. {way}", **error.facts)
