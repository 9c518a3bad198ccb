"""Binding a queue to one app and its main table: a thin shell over the journal. The decisions are `ledger.binding`'s.

A step looks at the ledger, then at the manifest, then writes, and is repeated until the ledger is born and ours. In
that order: who claimed meanwhile is found in the manifest, and who wrote the ledger meanwhile has made our write stale.
Used by the loader's `Plans`, and by the simulator's loaders that take a queue over from workers.

- Process dies after a write: the ledger names us and is not born, or is; nothing is claimed. The next start goes on.
- Reply lost: the next look finds our ledger, or the one before it, and decides anew.
- An older process wakes up: its write is refused by the version of the ledger, and its next look finds who is bound.
"""

from __future__ import annotations

from collections.abc import Iterator

from buffer.clock import Clock
from buffer.errors import ObjectNotFound
from buffer.journal import Journal
from buffer.ledger import binding as bindings
from buffer.ledger.binding import Binding
from buffer.ledger.plan import Ledger
from buffer.manifest import Manifest
from buffer.store.base import CanGet


class Binder:
    """The two objects of a queue, ledger and manifest, for one who has not claimed it. Not thread-safe."""

    def __init__(self, journal: Journal[Ledger], store: CanGet, manifest_path: str, clock: Clock) -> None:
        self._journal = journal
        self._store = store
        self._manifest_path = manifest_path
        self._clock = clock

    def bind(self, binding: Binding, settling: Iterator[float]) -> Ledger:
        """The ledger of this queue, made if this is a fresh queue. Raises QueueBound, LedgerLost.

        Workers with leases are shut out by it, if they have nothing in hand: what they have finished stays so. One of
        them that is between its claim and its write is waited for, as long as there are pauses in `settling`. Raises
        QueueBehindConsumer if the manifest was put back since they had the queue. On any other error the ledger is
        missing, not born, or bound to us: call again.
        """
        return self._journal.until(lambda: self._step(binding, settling))

    def _step(self, binding: Binding, settling: Iterator[float]) -> Ledger | None:
        """None: look again, whatever became of the write."""
        location = self._journal.location
        seen, ledger = self._journal.look()
        if bindings.is_bound(ledger, binding, location=location):
            return ledger
        queue_id = ledger.queue_id if ledger else self._clock.new_ulid()
        manifest = self.manifest()
        bound = bindings.bind(
            ledger,
            binding,
            queue_epoch=manifest.epoch,
            new_queue_id=queue_id,
            first_sequence=manifest.first_sequence,
            next_sequence=manifest.next_sequence,
            clock_ms=self._clock.now_ms(),
            location=location,
        )
        if bound is not None:
            self._journal.write(seen, bound)
        elif self._journal.read() == ledger:  # else another loader was faster
            pause_s = next(settling, None) if bindings.may_settle(ledger, manifest.epoch) else None
            if pause_s is None:
                raise bindings.used_before(ledger, location)
            self._clock.sleep(pause_s)
        return None

    def manifest(self) -> Manifest:
        """As it stands; an empty one where there is none yet. Raises CorruptManifest."""
        try:
            return Manifest.from_bytes(self._store.get(self._manifest_path).data, location=self._manifest_path)
        except ObjectNotFound:
            return Manifest.empty()
