"""Taking a queue over from workers that share it by leases.

A consumer claims the manifest first. Then its epoch goes into the ledger: from that write on no worker's ack counts
any more, so what the section calls finished is all that was finished, and the consumer skips it.

**What is being parked belongs to the dead-letter queue**, and not to the consumer: its copy may be there already, or
arrive any moment, from a parker that does not know yet that it is fenced. Nobody can call that back, so the consumer
walks the way to its end, as any worker would: each batch goes into the dead-letter queue under its ordinal, which makes
it exactly once whoever was faster, and then it is finished. Only then does the consumer begin to read.

- Dies between claim and write: workers are fenced by the manifest at their next consume; some acks may still land,
  and the next one to open the queue finds them.
- Dies while it parks: the section says parking, so whoever opens the queue next, consumer or worker, goes on with it.
- A parker wakes up: its append finds its mark and adds nothing, its last write finds the newer epoch.
- The ledger knows a newer epoch: somebody claimed after us. Fenced; what was parked until then stays parked.
- The ledger knows sequences that the manifest has never held: it was put back from a backup, and gives them to other
  batches. Nothing is taken over; but for its epoch the manifest is as it was.
- A queue without leases costs one read here, and nothing else.

What is finished only in part is handed out whole: a consumer knows batches, not entries. What was copied and blocked
(`block_and_dlq`) is handed out, too: the copy is one more, by that strategy. A loader reads through a consumer, and is
stricter before it binds the queue (`ledger/from_workers.py`): it never gets here with anything that is parking.
"""

from __future__ import annotations

from buffer import metrics
from buffer.clock import Clock
from buffer.config import ConsumerConfig
from buffer.consume.dead_letters import DeadLetters
from buffer.consume.fetch import FetchHandle
from buffer.consume.letters import Source
from buffer.errors import Fenced
from buffer.journal import Journal
from buffer.ledger.from_workers import check_same_queue
from buffer.ledger.lease_steps import Stamp
from buffer.ledger.leases import LeaseLedger, Leases
from buffer.ledger.parking import ParkOrder, finish_parking, to_be_parked
from buffer.manifest import Manifest
from buffer.store.base import Store


def take_over(
    config: ConsumerConfig, store: Store, handle: FetchHandle, clock: Clock, claimed: Manifest
) -> Leases | None:
    """Fence the workers of a queue that was claimed like this; returns what they leave.

    Raises Fenced, and QueueBehindConsumer if this is not the queue that they had: then nothing was written. Raises what
    keeps it from parking, too: call again, from the claim on.
    """
    epoch = claimed.epoch
    journal = Journal(store, config.manifest_path, clock, LeaseLedger, timeout_s=config.cas_timeout_s)

    def enter(ledger: LeaseLedger | None, sent: bool) -> LeaseLedger | None:
        if ledger is None or ledger.leases is None or (ledger.epoch == epoch and sent):
            return ledger
        if ledger.epoch >= epoch:  # the same number, and not ours: the manifest was put back from a backup
            raise Fenced.by_newer("consumer", "ledger", epoch=epoch, current=ledger.epoch)
        # No worker grants or acks by a manifest that was claimed after it: what they know, this one has.
        check_same_queue(ledger.leases, next_sequence=claimed.next_sequence, location=config.manifest_path)
        return ledger.changed(epoch=epoch)

    ledger = journal.update(enter).after
    if ledger is None or ledger.leases is None:
        return None
    orders = to_be_parked(ledger.leases)
    if not orders:
        return ledger.leases
    done = _parked(orders, ledger, DeadLetters(config, store, handle, clock), claimed, config.manifest_path)
    by = Stamp(clock.new_ulid()[-10:], 1, clock_ms=0)  # which moves no time

    def finish(ledger: LeaseLedger) -> LeaseLedger:
        assert ledger.leases is not None, "sections do not go away under an epoch"
        return ledger.changed(leases=finish_parking(ledger.leases, by, ledger.leases.parker or "", done))

    leases = journal.update_owned(epoch, finish).leases
    metrics.leases_parked.add(len(done))
    return leases


def _parked(
    orders: tuple[ParkOrder, ...], ledger: LeaseLedger, letters: DeadLetters, claimed: Manifest, path: str
) -> list[ParkOrder]:
    """Those that are in the dead-letter queue now. What left with `last_acked` is the consumer's: it said so."""
    assert ledger.leases is not None
    dlq = ledger.leases.config.dlq
    assert dlq is not None, "it cannot change while something is being parked"
    done = []
    for order in orders:
        descriptor = claimed.read(order.sequence)
        if descriptor is not None:
            letters.park(order, descriptor, Source(ledger.queue_id, path), dlq)
            done.append(order)
    return done
