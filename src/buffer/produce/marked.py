"""Appending batches under client marks, one at a time and without threads: how parking and redrive become exactly once.

Each batch has a number of its own, larger than the ones before it. It is uploaded under a fresh name and appended with
that number as its mark; if the queue knows the number already, nothing is appended. So the same call may be repeated by
anybody, any number of times, as long as numbers come in order:

- Process dies after the upload: an orphan, which the collector removes. After the append: the repeat finds the mark.
- Reply lost: the mark tells (`clients.py`). An older process wakes up: its number is known, it appends nothing.
- The append lands a day late, and the collector has taken the batch for an orphan: it is put again, under the name that
  the queue has now, before it counts. Died before that: the repeat finds the mark, looks for the batch, and does it.
- Whoever gives the numbers was put back from a backup, and gives one for the second time: the batch that stands under
  it is another one. `NumberReused`, and nothing is said to be there; as long as that one is in the queue to be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from buffer.attempts import AppendGroup, ClientSpan
from buffer.clients import ClientGuard
from buffer.clock import Clock
from buffer.config import ProducerConfig
from buffer.errors import (
    AppendOutcomeUnknown,
    BatchCollected,
    ContentionError,
    IdempotencyConflict,
    ObjectNotFound,
    StateLost,
)
from buffer.manifest import PackedMetadata
from buffer.marks import encode_mark, mark_of, marked
from buffer.model import BatchDescriptor, Metadata
from buffer.produce.append import CanCommit
from buffer.produce.durability import Durable
from buffer.produce.groups import LateLook, append_group, queue_producer
from buffer.produce.upload import name_valid_s, put_under_new_name

Same = Callable[[BatchDescriptor], bool]
"""Whether an entry of the queue is the very batch that is to be appended."""


class NumberReused(StateLost):
    """A number that stands for one batch in the queue was given to another one. Nothing was written."""


def _unasked(_entry: BatchDescriptor) -> bool:
    return True


@dataclass(slots=True)
class _Put:
    """A batch under the name that it has for now."""

    location: str
    metadata: PackedMetadata
    valid_until_s: float


class MarkedQueue:
    """One client's way into a queue. Not thread-safe."""

    def __init__(self, client_id: str, store: CanCommit, config: ProducerConfig, clock: Clock) -> None:
        self.client_id = client_id
        self._store = store
        self._config = config
        self._clock = clock
        self._queue = queue_producer(store, clock, config)
        self._late_look = LateLook(store, clock, config)
        # Not alone: whoever parks has its numbers from the section, and each stands for one batch.
        self._guard = ClientGuard(
            client_id, store, config.manifest_path, clock, timeout_s=config.append_timeout_s, alone=False
        )
        self._queue.guard = self._guard
        self._durable_seq: int | None = None

    def append(
        self, data: bytes, metadata: Sequence[Metadata], client_seq: int, folder: str, is_same: Same = _unasked
    ) -> bool:
        """Put an encoded batch into `folder` and the queue, under this number; False: it is there.

        Raises the store's errors, ContentionError, MarksLost: then call again, with the same number and content,
        before any larger one. Raises NumberReused if what is there is not the same.
        """
        if self._durable_seq is None:
            self._durable_seq = self._guard.open(self._queue.read)
        if client_seq <= self._durable_seq:
            self._put_back(data, client_seq, is_same)
            return False
        items = PackedMetadata.pack(
            [item.start_index for item in metadata],
            [item.ingestion_time_ms for item in metadata],
            [item.payload for item in metadata],
        )
        packed = marked(items, encode_mark(self.client_id, client_seq))

        put = _Put("", packed, 0.0)

        def draw() -> AppendGroup:  # asked only while nothing is in flight: a new name each time is safe
            name = put_under_new_name(data, store=self._store, clock=self._clock, prefix=folder)
            put.location, put.valid_until_s = name.location, name.made_s + name_valid_s(self._config)
            return append_group([put], ClientSpan(client_seq, client_seq))

        try:
            (sequence,) = self._queue.append(draw)
        except IdempotencyConflict:
            self._put_back(data, client_seq, is_same)
            return False
        except AppendOutcomeUnknown as error:  # to others that may mean a double; here the number tells, at the repeat
            raise ContentionError(
                f"nobody answered whether number {client_seq} of {self.client_id!r} is in "
                f"{self._config.manifest_path!r}: call again, the queue knows the number if it is",
                location=self._config.manifest_path,
                attempts=1,
            ) from error
        (settled,) = self._late_look.settled([(sequence, put)])
        if isinstance(settled, BatchCollected):
            self._store.put(put.location, data)  # it stands in the queue now: no collector takes it for an orphan again
            (settled,) = self._late_look.settled([(sequence, put)])
        if not isinstance(settled, Durable):
            raise settled
        self._durable_seq = client_seq
        return True

    def _put_back(self, data: bytes, client_seq: int, is_same: Same) -> None:
        """The number is known: put its batch again, if it waits in the queue and its object is gone.

        If readers finish it at this very moment, an orphan is left, which the collector removes.
        """
        for entry in self._queue.read():
            if mark_of(entry.metadata) == (self.client_id, client_seq):
                if not is_same(entry):
                    raise NumberReused(
                        f"number {client_seq} of {self.client_id!r} stands for another batch already, at sequence "
                        f"{entry.sequence} of {self._config.manifest_path!r}: the ledger that gives the numbers was "
                        "put back from a backup. Put the newest one back",
                        location=self._config.manifest_path,
                    )
                try:
                    self._store.head(entry.location)
                except ObjectNotFound:
                    self._store.put(entry.location, data)
