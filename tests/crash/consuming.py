"""A consumer that keeps what it read together with the last sequence, as anyone does who wants exactly once.

It may be dropped and replaced at any time, as a crash would: the next one starts from what was kept.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence

from buffer.config import ConsumerConfig
from buffer.consume.consumer import Consumer
from buffer.errors import ContentionError, ObjectNotFound, StorageError


class KeepingConsumer:
    """`drain` reads what is there; `crash` forgets everything but what was kept."""

    def __init__(self, config: ConsumerConfig, *, batches_max: int = 1000) -> None:
        self.found: defaultdict[str, list[int]] = defaultdict(list)
        """Ids by producer, in queue order."""
        self.last: int | None = None
        self.troubles = 0
        """Calls that failed for the store's reasons and were repeated."""
        self._config = config
        self._batches_max = batches_max
        self._consumer: Consumer | None = None

    def drain(self) -> bool:
        """Read, keep and ack what is in the queue, or some of it; True if it was empty."""
        try:
            consumer = self._consumer = self._consumer or Consumer.new(self._config, self.last)
            descriptors = consumer.next_descriptors(self._batches_max)
            for descriptor in descriptors:
                self._keep(descriptor.sequence, consumer.fetch_descriptor(descriptor).entries)
            if descriptors:
                consumer.ack_through(descriptors[-1].sequence)
        except ObjectNotFound:
            raise  # the queue names a batch that is gone: that never passes
        except (StorageError, ContentionError):
            self.troubles += 1
            self.crash()
            return False
        return not descriptors

    def _keep(self, sequence: int, entries: Sequence[bytes]) -> None:
        expected = 0 if self.last is None else self.last + 1
        assert sequence == expected, f"sequence {sequence} came, but {expected} is next"
        for entry in entries:
            fields = json.loads(entry)
            self.found[fields["by"]].append(fields["id"])
        self.last = sequence

    def crash(self) -> None:
        if self._consumer is not None:
            self._consumer.abandon()
            self._consumer = None

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
