"""The new queue as a migration sees it: entries with numbers go in, each number once.

A producer with a client id does that; see `buffer.produce.producer`. When another migration is ahead, the producer is
told of a conflict: it is opened again and goes on behind what is in the queue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from buffer.clock import Clock
from buffer.config import ProducerConfig
from buffer.errors import BufferQueueError, IdempotencyConflict, InvalidInput, ProducerStopped, StateLost
from buffer.journal import Journal
from buffer.ledger.clients import ClientsView
from buffer.legacy.moves import Move
from buffer.produce.client_seqs import is_overtaken
from buffer.produce.intake import ENTRY_OVERHEAD_BYTES
from buffer.store.base import CanSwap

log = logging.getLogger(__name__)

RESUMES_MAX = 5  # in a row without progress; then it is no other migration that is in the way


class CanProduce(Protocol):
    """What is needed of a producer with a client id."""

    @property
    def next_client_seq(self) -> int: ...

    def produce(self, entries: list[bytes], metadata: bytes = b"", client_seq: range | None = None) -> object: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class NewQueue:
    """Where the pairs go. Not thread-safe."""

    def __init__(
        self, store: CanSwap, config: ProducerConfig, clock: Clock, open_producer: Callable[[str], CanProduce]
    ) -> None:
        """`open_producer` makes a producer with a client id."""
        self._config = config
        self._open_producer = open_producer
        self._ledger = Journal(store, config.manifest_path, clock, ClientsView, timeout_s=config.append_timeout_s)
        self._producer: CanProduce | None = None
        self._call_bytes_max = min(config.flush_size_bytes, config.max_batch_bytes)

    def queue_id(self) -> str | None:
        """The id of the queue; None if it has none yet."""
        view = self._ledger.read()
        return None if view is None else view.queue_id

    def open(self, client_id: str) -> str:
        """Open the queue for this client, which gives it an id if it had none; returns that."""
        self._open_producer(client_id).close()
        found = self.queue_id()
        assert found is not None, "a producer with a client id has made it"
        return found

    def problem(self, entries: Sequence[bytes]) -> InvalidInput | None:
        """Why these entries cannot be in the queue; None if they can."""
        most = self._config.max_batch_bytes - ENTRY_OVERHEAD_BYTES
        for index, entry in enumerate(entries):
            if len(entry) > most:
                return InvalidInput(
                    f"pair {index} takes {len(entry):,} bytes as an entry, but max_batch_bytes of the new queue is "
                    f"{self._config.max_batch_bytes:,}: raise it there, and for its readers"
                )
        return None

    def put(
        self, client_id: str, moves: Sequence[Move], entries_of: Callable[[Move], list[bytes]], *, floor: int
    ) -> int:
        """Make all these durable, of which some may be already; returns the largest number in the queue.

        `floor` is a number that was durable before. Raises StateLost if it is not, and what a producer raises; then
        some of it may be durable, and the next call goes on behind that.
        """
        stuck, place = 0, -1
        while True:
            if self._producer is None:
                self._producer = self._open_producer(client_id)
                self._check_floor(client_id, floor)
            elif self._producer.next_client_seq <= floor:  # another migration went on while this one waited
                self._drop()
                continue
            begun = self._producer.next_client_seq
            stuck = stuck + 1 if begun == place else 0
            place = begun
            try:
                return self._produce(self._producer, moves, entries_of)
            except BaseException as error:
                self._drop()
                is_behind = isinstance(error, IdempotencyConflict | ProducerStopped) and is_overtaken(error)
                if not is_behind or stuck == RESUMES_MAX:
                    raise

    def close(self) -> None:
        """End the producer. Raises what it had not reported."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def _produce(self, producer: CanProduce, moves: Sequence[Move], entries_of: Callable[[Move], list[bytes]]) -> int:
        for move in moves:
            at = producer.next_client_seq
            entries = entries_of(move) if at < move.end else []
            for start, end in self._cuts(entries, max(0, at - move.first)):
                producer.produce(entries[start:end], client_seq=range(move.first + start, move.first + end))
        producer.flush()
        return producer.next_client_seq - 1

    def _cuts(self, entries: Sequence[bytes], start: int) -> Iterator[tuple[int, int]]:
        """Where to cut them into calls that fit a batch."""
        while start < len(entries):
            end, size = start, 0
            while end < len(entries):
                size += len(entries[end]) + ENTRY_OVERHEAD_BYTES
                if size > self._call_bytes_max and end > start:
                    break
                end += 1
            yield start, end
            start = end

    def _check_floor(self, client_id: str, floor: int) -> None:
        assert self._producer is not None, "it was opened just now"
        found = self._producer.next_client_seq - 1
        if found < floor:
            raise StateLost(
                f"the new queue is at number {found} of client {client_id!r}, but {floor} was durable in it: it was "
                "restored from a backup, or the client was forgotten. Nothing was changed",
                location=self._config.manifest_path,
            )

    def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            producer.close()
        except BufferQueueError as error:  # what failed was raised before
            log.debug("a producer that failed was closed: %s", error)
