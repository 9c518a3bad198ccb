"""A producer with a client id and no threads: the real numbers, batching and committer, driven by its caller.

For simulations, and for tests that stop a process at a chosen request.
"""

from __future__ import annotations

from buffer.clock import Clock
from buffer.config import ProducerConfig
from buffer.errors import BufferQueueError
from buffer.produce.append import CanCommit, Committer
from buffer.produce.client_seqs import ClientSeqs
from buffer.produce.durability import WriteHandle
from buffer.produce.intake import Intake, PendingBatch, check_call


class SteppedProducer:
    """`produce` buffers; `flush` uploads and appends, and raises what failed."""

    def __init__(self, store: CanCommit, config: ProducerConfig, clock: Clock, client_id: str) -> None:
        self._max_batch_bytes = config.max_batch_bytes
        self._intake = Intake(config, clock)
        self._committer = Committer(store, clock, config, self._on_settled, client_id)
        self._seqs = ClientSeqs(client_id, self._committer.open())
        self._failed: BufferQueueError | None = None

    @property
    def next_client_seq(self) -> int:
        return self._seqs.next

    def produce(self, entries: list[bytes], metadata: bytes = b"", client_seq: range | None = None) -> WriteHandle:
        number = self._seqs.number(client_seq)
        assert number is not None, "it is never given a number twice"
        handle = self._intake.offer(check_call(entries, metadata, self._max_batch_bytes), metadata, number)
        assert handle is not None, "its buffer is never full"
        self._seqs.accepted(number, handle)
        return handle

    def flush(self) -> None:
        self._intake.seal()
        while self._intake.sealed:
            self._committer.enlist(self._intake.sealed[0])
            self._committer.upload(self._intake.take())
        while not self._committer.is_idle:
            self._committer.commit()
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Nothing is under way between two calls."""

    def _on_settled(self, batch: PendingBatch, outcome: object) -> None:
        self._intake.release(batch)
        if isinstance(outcome, BufferQueueError):
            self._failed = self._failed or outcome
