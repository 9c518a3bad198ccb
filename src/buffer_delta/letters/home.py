"""The queue that dead letters go back to. Each claim becomes one batch, under the number of the claim as its mark.

Entries and the metadata of their calls are what they were; the ingestion time is now: whoever reads the table by it
would never look at last week's again, and a lag of a week would alarm somebody.
"""

from __future__ import annotations

from collections.abc import Sequence

from buffer.clients import ClientLedger
from buffer.clock import Clock
from buffer.codec.batch import encode_batch
from buffer.config import ProducerConfig
from buffer.errors import LedgerLost
from buffer.inspect.status import read_manifest
from buffer.journal import Journal
from buffer.ledger.envelope import Envelope
from buffer.marks import Mark, newest_marks
from buffer.model import Metadata
from buffer.produce.marked import MarkedQueue
from buffer.store.base import Store
from buffer_delta.letters.values import Letter


class QueueHome:
    """Opened for one dead-letter table, whose client it is. Not thread-safe."""

    def __init__(self, client_id: str, store: Store, config: ProducerConfig, clock: Clock) -> None:
        """Makes the queue's ledger ready for marks. Raises what reading a queue does, if there is none."""
        self._client_id = client_id
        self._store = store
        self._config = config
        self._clock = clock
        read_manifest(store, config.manifest_path)  # a misspelt path must not become a new queue
        self._ledger = ClientLedger(store, config.manifest_path, clock, timeout_s=config.append_timeout_s)
        self._ledger.open(lambda: read_manifest(store, config.manifest_path))
        self._queue = MarkedQueue(client_id, store, config, clock)
        found = Journal(store, config.manifest_path, clock, Envelope).read()
        if found is None:
            raise LedgerLost(f"the ledger {self._ledger.location!r} was there a moment ago and is gone")
        self.queue_id = found.queue_id

    @property
    def place(self) -> str:
        return f"{self._store.url} {self._config.manifest_path}"

    def last_number(self) -> int:
        mark = self._mark()
        return -1 if mark is None else mark.client_seq

    def put(self, number: int, letters: Sequence[Letter]) -> int | None:
        data = encode_batch([letter.payload for letter in letters])
        self._queue.append(data, self._items(letters), number, self._config.data_path_prefix)
        mark = self._mark()
        return mark.sequence if mark is not None and mark.client_seq == number else None

    def _items(self, letters: Sequence[Letter]) -> list[Metadata]:
        now_ms = self._clock.now_ms()
        items: list[Metadata] = []
        for index, letter in enumerate(letters):
            if not items or items[-1].payload != letter.metadata:
                items.append(Metadata(index, now_ms, letter.metadata))
        return items

    def _mark(self) -> Mark | None:
        manifest = read_manifest(self._store, self._config.manifest_path)
        found = newest_marks(manifest, client_id=self._client_id).get(self._client_id)
        section = self._ledger.read()  # after the manifest: marks move from there to here
        kept = section.marks.get(self._client_id) if section is not None else None
        both = [mark for mark in (found, kept) if mark is not None]
        return max(both, key=lambda mark: mark.client_seq, default=None)
