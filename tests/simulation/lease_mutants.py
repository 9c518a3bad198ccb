"""Breaks of the leases: expiry, counts, acks, parking, redrive. Each takes one rule away."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from buffer.leases import session as lease_session
from buffer.leases.queue import LeaseQueue
from buffer.leases.time import QueueTime
from buffer.ledger import lease_rules, parking
from buffer.ledger.lease_rules import Ack
from buffer.ledger.lease_steps import Stamp, after, stamped, with_batches
from buffer.ledger.leases import Batch, Handle, Leases, Phase, State
from buffer.ledger.parking import ParkOrder
from buffer.manifest import PackedMetadata
from buffer.model import Metadata
from buffer.produce.marked import MarkedQueue
from buffer.produce.upload import put_under_new_name
from buffer.testing.simulator.world import MANIFEST_PATH
from tests.simulation.mutants import STUCK, Mutant

LEASE_MUTANTS: dict[str, Mutant] = {}
"""Apart from the others: their worlds are not those that a seed picks from."""


def mutant(sees: str, within: int = 2000) -> Callable[[Callable[[], Iterator[None]]], Callable[[], Iterator[None]]]:
    def register(make: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
        LEASE_MUTANTS[make.__name__] = Mutant(frozenset(), sees, contextmanager(make), within)
        return make

    return register


@mutant(sees=STUCK)
def expiry_is_ignored() -> Iterator[None]:
    """What a dead worker holds is held for ever."""

    def phase(self: Batch, now_ms: int) -> Phase:
        found = real(self, now_ms)
        return Phase.LEASED if found is Phase.AVAILABLE and self.lease is not None else found

    real = Batch.phase
    with patch.object(Batch, "phase", phase):
        yield


@mutant(sees=r"leased \d+, which lease .* holds")
def leases_are_not_looked_at() -> Iterator[None]:
    """Two workers hold one batch."""

    def phase(self: Batch, now_ms: int) -> Phase:
        found = real(self, now_ms)
        return Phase.AVAILABLE if found is Phase.LEASED else found

    real = Batch.phase
    with patch.object(Batch, "phase", phase):
        yield


@mutant(sees=r"the count of \d+ is \d+; leases granted")
def counts_are_kept_in_memory() -> Iterator[None]:
    """Each worker counts its own deliveries, and starts at 0 when it is restarted."""
    memory: dict[tuple[str, int], int] = {}

    def granted(section: Leases, by: Stamp, *args: Any) -> Any:
        changed, deliveries, stopped = real(section, by, *args)
        counts = {}
        for delivery in deliveries:
            key = (by.worker, delivery.handle.sequence)
            memory[key] = memory.get(key, 0) + 1
            batch = changed.batches[delivery.handle.sequence]
            counts[delivery.handle.sequence] = dataclasses.replace(batch, count=max(batch.count - 1, memory[key]))
        return with_batches(changed, counts), deliveries, stopped

    real = lease_rules._granted
    with patch.object(lease_rules, "_granted", granted):
        yield


@mutant(sees=r"shortened the lease")
def extend_shortens() -> Iterator[None]:
    """An extension counts from now, whatever was promised before."""

    def extend(section: Leases, by: Stamp, handles: Sequence[Handle], additional_ms: int) -> Leases:
        now = section.now_ms(by.clock_ms)
        lease_rules._check_held(section, now, handles)
        until = after(now, additional_ms)
        changes = {h.sequence: dataclasses.replace(section.batches[h.sequence], until_ms=until) for h in handles}
        return stamped(with_batches(section, changes), by, now)

    with patch.object(lease_rules, "extend", extend):
        yield


@mutant(sees=r"after its lease .* had run out")
def acks_count_after_expiry() -> Iterator[None]:
    """Nobody else has it yet, so what harm can it do?"""

    def is_held(section: Leases, _now: int, handle: Handle) -> bool:
        batch = section.batches.get(handle.sequence)
        return batch is not None and batch.lease == handle.lease_id and batch.state is State.OPEN

    with patch.object(lease_rules, "_is_held", is_held):
        yield


@mutant(sees=r"finished as parked, but")
def parked_before_copied() -> Iterator[None]:
    """The end state first, then the copy: whoever dies in between loses the batch."""

    def park(self: LeaseQueue, orders: Sequence[ParkOrder], section: Leases, unread: int | None = None) -> Any:
        self._session.apply(lambda now, by: (parking.finish_parking(now, by, section.parker or "", list(orders)), None))
        return real(self, orders, section, unread)

    real = LeaseQueue._park
    with patch.object(LeaseQueue, "_park", park):
        yield


@mutant(sees=r"the frontier went back|has given it a story again|were acked before|which is not finished")
def frontier_goes_back() -> Iterator[None]:
    """Whoever opens the queue anew believes the manifest, which still has what is finished."""

    def claimed(section: Leases, by: Stamp, epoch: int, first_sequence: int) -> Leases:
        entered = real(section, by, epoch, first_sequence)
        return dataclasses.replace(entered, finished_through=first_sequence - 1, finished=())

    real = lease_session.claimed
    with patch.object(lease_session, "claimed", claimed):
        yield


@mutant(sees=r"was judged after|stuck")
def unblock_forgets() -> Iterator[None]:
    """Open again, but with no attempt more: the next consume blocks it again."""

    def unblock(section: Leases, by: Stamp, sequence: int, attempts: int = 1) -> Leases:
        opened = real(section, by, sequence, attempts)
        extra = section.batches[sequence].extra
        return with_batches(opened, {sequence: dataclasses.replace(opened.batches[sequence], extra=extra)})

    real = parking.unblock
    with patch.object(parking, "unblock", unblock):
        yield


@mutant(sees=r"in the dead-letter queue already|in the queue already|in no batch together")
def moved_without_a_mark() -> Iterator[None]:
    """Parking and redrive append without looking whether it was done before."""
    with patch.object(MarkedQueue, "append", _unmarked):
        yield


@mutant(sees=r"came home as \d+, but it is in the queue already", within=4000)
def redrive_without_a_mark() -> Iterator[None]:
    """What is parked has its mark; the way back has none."""
    real = MarkedQueue.append

    def append(self: MarkedQueue, *args: Any) -> bool:
        goes_home = self._config.manifest_path == MANIFEST_PATH
        return _unmarked(self, *args) if goes_home else real(self, *args)

    with patch.object(MarkedQueue, "append", append):
        yield


def _unmarked(
    self: MarkedQueue, data: bytes, metadata: Sequence[Metadata], _client_seq: int, folder: str, *_: Any
) -> bool:
    name = put_under_new_name(data, store=self._store, clock=self._clock, prefix=folder)
    items = PackedMetadata.pack(
        [item.start_index for item in metadata],
        [item.ingestion_time_ms for item in metadata],
        [item.payload for item in metadata],
    )
    self._queue.guard = None
    self._queue.append_locations([(name.location, items)])
    return True


@mutant(sees=r"turned the queue's time back|holds until")
def time_is_the_workers_own() -> Iterator[None]:
    """A clock that is behind brings leases back to life."""
    with patch.object(Leases, "now_ms", lambda _self, clock_ms: clock_ms):
        yield


@mutant(sees=r"ahead of the store's")
def every_clock_is_believed() -> Iterator[None]:
    """A clock that is a year ahead ends all leases, and holds the time still for a year."""

    def now_ms(self: QueueTime, time_ms: int) -> int:
        return max(self._clock.now_ms(), time_ms)

    with patch.object(QueueTime, "now_ms", now_ms):
        yield


@mutant(sees=STUCK)
def time_waits_for_the_slow() -> Iterator[None]:
    """Where all clocks are behind what the section says, what a dead worker holds is held until theirs come so far."""

    def running_ms(_self: QueueTime, time_ms: int) -> int:
        return time_ms

    with patch.object(QueueTime, "running_ms", running_ms):
        yield


@mutant(sees=r"more is owed|were acked before|not those owed")
def part_acks_replace_each_other() -> Iterator[None]:
    """What is owed is counted from the whole batch at every ack of a part."""

    def acked(section: Leases, now: int, acks: Sequence[Ack]) -> Leases:
        whole = {
            ack.handle.sequence: dataclasses.replace(section.batches[ack.handle.sequence], owed=None)
            for ack in acks
            if ack.entries is not None and ack.handle.sequence in section.batches
        }
        return real(with_batches(section, whole), now, acks)

    real = lease_rules._acked
    with patch.object(lease_rules, "_acked", acked):
        yield


@mutant(sees=r"holes, and the cap is")
def holes_are_not_bounded() -> Iterator[None]:
    with patch.object(lease_rules.Holes, "admit", lambda _self, _sequence: True):
        yield


@mutant(sees=r"was leased before \d+ was finished")
def order_is_a_wish() -> Iterator[None]:
    """The line goes on while its head is delayed."""

    def offers(section: Leases, now: int, waiting: range, _in_flight: int) -> Iterator[tuple[range, Batch]]:
        for run, batch in lease_rules._unfinished(section, waiting):
            if batch.phase(now) is Phase.AVAILABLE and not parking.is_used_up(section, batch):
                yield run, batch

    with patch.object(lease_rules, "_offers", offers):
        yield


@mutant(sees=r"the ledger never granted|believes|told \d+ deliveries|had run out")
def every_grant_is_believed() -> Iterator[None]:
    """What was decided is handed out although the write may not have landed."""

    def apply(self: lease_session.LeaseSession, verb: Any, manifest: Any, _sent: Any) -> Any:
        ledger = self._journal.read()
        section = self._owned(ledger)
        if manifest is not None:
            self._check_fits(section, manifest)
        changed, told = verb(section, self._stamp(self.now_ms(section)))
        assert ledger is not None
        if changed is not section:
            seen, _ = self._journal.look()
            self._journal.write(seen, ledger.changed(leases=changed))
        return changed, told

    with patch.object(lease_session.LeaseSession, "_apply", apply):
        yield
