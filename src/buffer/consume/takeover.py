"""Taking a queue over from workers that share it by leases.

A consumer claims the manifest first. Then its epoch goes into the ledger: from that write on no worker's ack counts
any more, so what the section calls finished is all that was finished, and the consumer skips it.

- Dies between claim and write: workers are fenced by the manifest at their next consume; some acks may still land,
  and the next one to open the queue finds them.
- The ledger knows a newer epoch: somebody claimed after us. Fenced.
- A queue without leases costs one read here, and nothing else.

What is finished only in part is handed out whole: a consumer knows batches, not entries.
"""

from __future__ import annotations

from buffer.clock import Clock
from buffer.errors import Fenced
from buffer.journal import Journal
from buffer.ledger.leases import LeaseLedger, Leases
from buffer.store.base import CanSwap


def take_over(store: CanSwap, manifest_path: str, clock: Clock, epoch: int, *, timeout_s: float) -> Leases | None:
    """Fence the workers of a queue that was claimed with this epoch; returns what they leave. Raises Fenced."""

    def decide(ledger: LeaseLedger | None, _sent: bool) -> LeaseLedger | None:
        if ledger is None or ledger.leases is None or ledger.epoch == epoch:
            return ledger
        if ledger.epoch > epoch:
            raise Fenced.by_newer("consumer", "ledger", epoch=epoch, current=ledger.epoch)
        return ledger.changed(epoch=epoch)

    ledger = Journal(store, manifest_path, clock, LeaseLedger, timeout_s=timeout_s).update(decide).after
    return None if ledger is None else ledger.leases
