"""Fetches what was leased, and gives back what cannot be read, so that no lease is held for nothing.

- A batch that is gone or cannot be decoded is a failed delivery like any other: given back at once, with the reason,
  and judged after `max_delivery_attempts`.
- A batch that this worker may not read (a location outside its folders, more than its `max_batch_bytes`, no
  permission) waits for a lease's time, so that another worker gets it, and is blocked when it is used up, whatever the
  strategy. A worker that reads nothing at all is told after `REFUSED_MAX` of them: consume raises the cause.
- What the store fails to read for now is nobody's fault: snoozed for as long. The others are delivered; if there are
  none, the error is raised.
- Fetching takes half of a lease's time at most, for the work needs some, too; what is left then is snoozed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from buffer import metrics
from buffer.clock import Clock
from buffer.consume.fetch import REFUSALS, FetchHandle
from buffer.errors import BufferQueueError, CorruptBatch, ObjectNotFound, StorageError
from buffer.leases.session import LeaseSession
from buffer.leases.values import Delivered, LeasedBatch
from buffer.ledger import lease_rules as rules
from buffer.ledger.lease_rules import Delivery, Nack
from buffer.ledger.lease_steps import Stamp
from buffer.ledger.leases import Leases
from buffer.manifest import Manifest
from buffer.marks import as_handed_out

log = logging.getLogger(__name__)

REFUSED_MAX = 10  # batches in a row that a worker may not read: then its settings are wrong, not the batches


class Fetching:
    """One worker's reading. Not thread-safe: its lease queue calls it under a lock."""

    def __init__(self, session: LeaseSession, handle: FetchHandle, clock: Clock) -> None:
        self._session = session
        self._handle = handle
        self._clock = clock
        self._refused_in_a_row = 0

    def fetch(self, deliveries: Sequence[Delivery], manifest: Manifest, asked_s: float) -> Delivered:
        """Fetch what was leased; give back what cannot be read. Raises what kept it from reading anything."""
        batches: list[LeasedBatch] = []
        failed: list[Nack] = []
        refused: list[Nack] = []
        away: list[Nack] = []
        trouble: CorruptBatch | StorageError | None = None
        for index, delivery in enumerate(deliveries):
            if index and self._clock.monotonic_s() - asked_s > delivery.timeout_ms / 2000:
                away += [Nack(late.handle) for late in deliveries[index:]]
                break
            descriptor = manifest.read(delivery.handle.sequence)
            assert descriptor is not None, "what is leased stands in the manifest that it was leased by"
            try:
                batches.append(LeasedBatch(delivery, self._handle.fetch(as_handed_out(descriptor))))
                self._refused_in_a_row = 0
            except (CorruptBatch, StorageError) as error:
                log.warning("batch %d cannot be read: %s", delivery.handle.sequence, error)
                nack = Nack(delivery.handle, delivery.timeout_ms, f"{type(error).__name__}: {error}")
                if isinstance(error, StorageError) and error.retryable and not isinstance(error, ObjectNotFound):
                    away.append(nack)
                    trouble = error
                elif isinstance(error, (*REFUSALS, StorageError)) and not isinstance(error, ObjectNotFound):
                    refused.append(nack)
                    self._refused_in_a_row += 1
                    trouble = error if self._refused_in_a_row >= REFUSED_MAX else trouble
                else:
                    failed.append(replace(nack, delay_ms=0))
        if len(batches) < len(deliveries):
            self._give_back(failed, refused, away)
        if trouble is not None and not batches:
            raise trouble
        return Delivered(tuple(batches), _sequences([*failed, *refused]), _sequences(away))

    def _give_back(self, failed: Sequence[Nack], refused: Sequence[Nack], away: Sequence[Nack]) -> None:
        """In one write. If it fails, the leases run out."""

        def verb(section: Leases, by: Stamp) -> tuple[Leases, None]:
            section = rules.refuse(rules.nack(section, by, failed), by, refused)
            for delay_ms in {nack.delay_ms for nack in away}:  # the store failed, not the batch: no attempt is lost
                handles = [nack.handle for nack in away if nack.delay_ms == delay_ms]
                section = rules.snooze(section, by, handles, delay_ms)
            return section, None

        try:
            self._session.apply(verb)
            metrics.leases_nacked.add(len(failed) + len(refused))
        except BufferQueueError as error:
            log.warning("could not give back what was not read, the leases run out: %s", error)


def _sequences(nacks: Sequence[Nack]) -> tuple[int, ...]:
    return tuple(nack.handle.sequence for nack in nacks)
