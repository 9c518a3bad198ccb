"""An Ingestor of the older format: the real `Flusher`, and an application that does as it is told.

What surely is not in the queue is ingested again; what is unknown is left alone; what a crash left open is unknown.
"""

from __future__ import annotations

from collections import deque

from buffer.errors import AppendOutcomeUnknown
from buffer.legacy.config import IngestorConfig
from buffer.legacy.format import KeyValueEntry, encode_batch
from buffer.legacy.ingestor import Flusher
from buffer.produce.durability import Durable
from buffer.testing.simulator.faults import Span
from buffer.testing.simulator.legacy_witness import LEGACY_PATH, LEGACY_PREFIX, LegacyWitness
from buffer.testing.simulator.witness import Record
from buffer.testing.simulator.world import Actor, Host, World

BATCHES_PER_FLUSH_MAX = 2
RECORDS_PER_BATCH_MAX = 2


class LegacyIngestorActor(Actor):
    """Ingests `keys` records."""

    def __init__(
        self, world: World, name: str, witness: LegacyWitness, *, keys: int, think_s: Span, append_timeout_s: float
    ) -> None:
        super().__init__(world, name)
        self.witness = witness
        self.todo = deque(range(keys))
        self.think_s = think_s
        self.append_timeout_s = append_timeout_s
        self.is_flushing = False

    @property
    def is_done(self) -> bool:
        return not self.todo and not self.is_flushing

    def crashed(self) -> None:
        self.is_flushing = False  # nobody was told: they may be in the queue or not

    def run(self, host: Host) -> None:
        config = IngestorConfig(
            store=host.store,
            manifest_path=LEGACY_PATH,
            data_path_prefix=LEGACY_PREFIX,
            append_timeout_s=self.append_timeout_s,
        )
        flusher = Flusher(host.store, config, host.clock)
        flushes = 0
        while self.todo:
            flushes += 1
            self._flush(flusher, [self._draw_batch(flushes) for _ in range(self._draw(BATCHES_PER_FLUSH_MAX))])
            host.process.sleep(self.draw(self.think_s))

    def _draw(self, most: int) -> int:
        return 1 + self.world.scheduler.random.randrange(most)

    def _draw_batch(self, call: int) -> list[Record]:
        count = min(len(self.todo), self._draw(RECORDS_PER_BATCH_MAX))
        return [Record(self.name, self.todo.popleft(), self.life, call, "a") for _ in range(count)]

    def _flush(self, flusher: Flusher, drawn: list[list[Record]]) -> None:
        batches = [records for records in drawn if records]
        self.is_flushing = True
        settled = flusher.flush(
            [encode_batch(KeyValueEntry(b"%d" % record.key, record.to_bytes()) for record in each) for each in batches]
        )
        self.is_flushing = False
        for records, outcome in zip(batches, settled, strict=True):
            self.world.scheduler.counts[f"batch settled: {type(outcome).__name__}"] += 1
            if isinstance(outcome, Durable):
                self.witness.said_durable(records, outcome.location)
            elif not isinstance(outcome, AppendOutcomeUnknown):
                self.witness.said_absent(records, outcome)
                self.todo.extend(record.key for record in records)
