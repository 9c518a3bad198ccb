"""A queue of the older format, a new one, and a migration between them that can be stopped at any request."""

from __future__ import annotations

from typing import Any

from buffer.codec.batch import decode_batch
from buffer.codec.keyvalue import decode_pair
from buffer.config import ProducerConfig
from buffer.legacy.config import CollectorConfig
from buffer.legacy.format import KeyValueEntry
from buffer.legacy.migration import Migration
from buffer.legacy.new_queue import NewQueue
from buffer.manifest import Manifest
from buffer.produce.durability import WriteHandle
from buffer.store import Store, open_store
from buffer.testing.stepped import SteppedProducer
from tests.legacy.legacy_support import LegacyQueue

WRITES = ("put", "put_if_absent", "put_if_match", "delete_many", "copy")


class Killed(BaseException):
    """The process is gone."""


class MortalStore:
    """The process that uses it dies at its n-th write: before the write, or after it."""

    def __init__(self, store: Store, dies_at: int, *, after: bool) -> None:
        self._store = store
        self._left = dies_at
        self._after = after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in WRITES:
            return found

        def call(*args: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left < 0 or (self._left == 0 and not self._after):
                raise Killed
            answer = found(*args, **options)
            if self._left == 0:
                raise Killed
            return answer

        return call


class EagerProducer(SteppedProducer):
    """Every call is durable before the next one is accepted."""

    def produce(self, *call: Any, **options: Any) -> WriteHandle:
        handle = super().produce(*call, **options)
        self.flush()
        return handle


class Move:
    """An old queue and a new one."""

    def __init__(self) -> None:
        self.old = LegacyQueue()
        self.new_store = open_store("memory://")

    def migration(
        self,
        old: Any = None,
        new: Any = None,
        *,
        window: int = 2,
        threshold: int = 3,
        producer: type[SteppedProducer] = SteppedProducer,
        **settings: Any,
    ) -> Migration:
        old, new, clock = old or self.old.store, new or self.new_store, self.old.clock
        config = CollectorConfig(store=old, manifest_path=self.old.path, done_cleanup_threshold=threshold)
        produce = ProducerConfig(store=new, **settings)
        target = NewQueue(new, produce, clock, lambda client_id: producer(new, produce, clock, client_id))
        return Migration(old, config, clock, target, window=window)

    def run(self, migration: Migration | None = None) -> int:
        """Until nothing is left to move; returns how many batches were."""
        migration = migration or self.migration()
        migration.open()
        moved = 0
        while (step := migration.step()).batches:
            moved += step.batches
        return moved

    def batches(self) -> list[list[KeyValueEntry]]:
        """What the new queue has."""
        manifest = Manifest.from_bytes(self.new_store.get("ingest/manifest").data)
        return [
            [KeyValueEntry(*decode_pair(entry)) for entry in decode_batch(self.new_store.get(batch.location).data)]
            for batch in manifest
        ]

    def keys(self) -> list[str]:
        return [pair.key.decode() for batch in self.batches() for pair in batch]
