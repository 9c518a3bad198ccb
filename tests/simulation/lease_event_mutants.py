"""More breaks of the leases: what cannot be read, other readers, purge, settings, operators."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

from buffer.config import LeaseConfig
from buffer.consume import consumer, takeover
from buffer.consume.dead_letters import DeadLetters, Parcel
from buffer.journal import Journal
from buffer.leases import session as lease_session
from buffer.leases.deliver import Fetching
from buffer.leases.values import Delivered
from buffer.ledger import binding, lease_rules, parking
from buffer.ledger.lease_rules import Ack, Delivery, Nack
from buffer.ledger.lease_steps import Stamp, finish, stamped, with_batches
from buffer.ledger.leases import Batch, LeaseLedger, Leases, State
from buffer.ledger.parking import ParkOrder
from buffer.model import BatchDescriptor
from tests.simulation.lease_mutants import mutant

# Batches that nobody can read


@mutant(sees=r"which nobody was given")
def unreadable_counts_as_acked() -> Iterator[None]:
    """What cannot be read need not be delivered again, so it is done."""

    def give_back(self: Fetching, failed: Sequence[Nack], refused: Sequence[Nack], away: Sequence[Nack]) -> None:
        if failed:
            acks = [Ack(nack.handle) for nack in failed]
            self._session.apply(lambda section, by: (lease_rules.ack(section, by, acks), None))
        real(self, (), refused, away)

    real = Fetching._give_back
    with patch.object(Fetching, "_give_back", give_back):
        yield


@mutant(sees=r"cannot be read, but it can")
def one_bad_batch_spoils_the_others() -> Iterator[None]:
    """All that was leased with it comes back as unreadable."""

    def fetch(self: Fetching, deliveries: Sequence[Delivery], manifest: Any, asked_s: float) -> Delivered:
        found = real(self, deliveries, manifest, asked_s)
        if not found.unreadable:
            return found
        return Delivered(unreadable=tuple(delivery.handle.sequence for delivery in deliveries))

    real = Fetching.fetch
    with patch.object(Fetching, "fetch", fetch):
        yield


@mutant(sees=r"with other bytes than are left of it|as 'missing', but it is bytes")
def bytes_are_not_kept() -> Iterator[None]:
    """A word about the batch is parked, and not what is left of it."""

    def undecodable(
        self: DeadLetters, order: ParkOrder, descriptor: BatchDescriptor, source: Any, error: str
    ) -> Parcel:
        return self._whole(order, descriptor, source, "bytes", b"it was damaged", error)

    with patch.object(DeadLetters, "_undecodable", undecodable):
        yield


@mutant(sees=r"finished as parked, but")
def what_is_gone_is_dropped() -> Iterator[None]:
    """There is nothing to park, so nothing is said."""

    def parcel(self: DeadLetters, *args: Any) -> Parcel | None:
        found = real(self, *args)
        return None if found is not None and b'"kind": "missing"' in found.metadata[0].payload else found

    real = DeadLetters._parcel
    with patch.object(DeadLetters, "_parcel", parcel):
        yield


@mutant(sees=r"as if all of it were owed", within=4000)
def damaged_batches_owe_everything() -> Iterator[None]:
    """A batch that was acked in part before it was damaged is parked as if it were not."""

    def whole(self: DeadLetters, order: ParkOrder, *args: Any) -> Parcel:
        return real(self, dataclasses.replace(order, owed=None), *args)

    real = DeadLetters._whole
    with patch.object(DeadLetters, "_whole", whole):
        yield


# Another reader takes over


@mutant(sees=r"which workers have finished")
def takeover_forgets_what_is_finished() -> Iterator[None]:
    """A consumer begins with what the manifest holds."""

    def take_over(*args: Any) -> Leases | None:
        real(*args)
        return None

    real = consumer.take_over
    with patch.object(consumer, "take_over", take_over):
        yield


@mutant(sees=r"which no worker can find in the ledger")
def takeover_leaves_the_ledger_alone() -> Iterator[None]:
    """A consumer believes that its claim of the manifest keeps workers from acking."""

    def take_over(config: Any, store: Any, _handle: Any, clock: Any, _claimed: Any) -> Leases | None:
        ledger = Journal(store, config.manifest_path, clock, LeaseLedger).read()
        return None if ledger is None else ledger.leases

    with patch.object(consumer, "take_over", take_over):
        yield


@mutant(sees=r"which is on its way to the dead-letter queue")
def takeover_forgets_what_is_parking() -> Iterator[None]:
    """A copy may be in the dead-letter queue, and the consumer reads the batch as well."""
    with patch.object(takeover, "to_be_parked", lambda _section: ()):
        yield


@mutant(sees=r"changed the leases of a queue that|given a story again|were acked before|had run out")
def workers_do_not_look_at_the_ledgers_epoch() -> Iterator[None]:
    """One that wakes up acks on, whoever has the queue now."""

    def owned(self: lease_session.LeaseSession, ledger: LeaseLedger | None) -> Leases:
        section = self._obeyed(ledger)
        assert section is not None
        return section

    with patch.object(lease_session.LeaseSession, "_owned", owned):
        yield


@mutant(sees=r"bound the queue to a loader while")
def loader_comes_whenever_it_likes() -> Iterator[None]:
    with patch.object(binding, "check_free", lambda _leases, _clock_ms: None):
        yield


@mutant(sees=r"changed the leases of a queue that feeds")
def workers_do_not_see_the_loader() -> Iterator[None]:
    """They go on until it has claimed."""

    def obeyed(_self: lease_session.LeaseSession, ledger: LeaseLedger | None) -> Leases | None:
        return None if ledger is None else ledger.leases

    with patch.object(lease_session.LeaseSession, "_obeyed", obeyed):
        yield


# Purge


@mutant(sees=r"finished as parked, but|but it is not on its way there", within=6000)
def purge_forgets_what_is_parking() -> Iterator[None]:
    """All that waits is finished, on its way to the dead-letter queue or not."""

    def purge(section: Leases, by: Stamp, waiting: range) -> tuple[Leases, int]:
        opened = {s: dataclasses.replace(batch, state=State.OPEN) for s, batch in section.batches.items()}
        return real(with_batches(section, opened), by, waiting)

    real = lease_rules.purge
    with patch.object(lease_rules, "purge", purge):
        yield


@mutant(sees=r"were purged; it was|and left")
def purge_spares_what_is_leased() -> Iterator[None]:
    """… and counts it all the same."""

    def purge(section: Leases, by: Stamp, waiting: range) -> tuple[Leases, int]:
        now = section.now_ms(by.clock_ms)
        purged, count = real(section, by, waiting)
        kept = {s: batch for s, batch in section.batches.items() if batch.is_leased(now)}
        if not kept:
            return purged, count
        done = set(waiting) - kept.keys() - {s for s, b in section.batches.items() if b.state is State.PARKING}
        return stamped(finish(section, {s for s in done if s > section.finished_through}), by, now), count

    real = lease_rules.purge
    with patch.object(lease_rules, "purge", purge):
        yield


# Settings


@mutant(sees=r"changed the settings, and the batches with them")
def configure_resets_counts() -> Iterator[None]:
    """Other attempts are allowed, so counting starts anew."""

    def configure(section: Leases, by: Stamp, config: LeaseConfig) -> Leases:
        fresh = {s: dataclasses.replace(batch, count=0) for s, batch in section.batches.items()}
        return real(with_batches(section, fresh), by, config)

    real = lease_rules.configure
    with patch.object(lease_rules, "configure", configure):
        yield


@mutant(sees=r"while .* are on their way there", within=6000)
def configure_changes_where_parked_batches_go() -> Iterator[None]:
    def configure(section: Leases, by: Stamp, config: LeaseConfig) -> Leases:
        return stamped(dataclasses.replace(section, config=config), by, section.now_ms(by.clock_ms))

    with patch.object(lease_rules, "configure", configure):
        yield


@mutant(sees=r"batches in flight, and the cap is")
def lowered_caps_are_for_new_workers() -> Iterator[None]:
    """Each worker keeps to the settings that it opened the queue with."""
    first: dict[str, LeaseConfig] = {}

    def granted(section: Leases, by: Stamp, *args: Any) -> Any:
        config = first.setdefault(by.worker, section.config)
        changed, deliveries, stopped = real(dataclasses.replace(section, config=config), by, *args)
        return dataclasses.replace(changed, config=section.config), deliveries, stopped

    real = lease_rules._granted
    with patch.object(lease_rules, "_granted", granted):
        yield


@mutant(sees=r"was judged by")
def strategy_is_the_first_one() -> Iterator[None]:
    """What is used up is always parked and finished, whatever the settings say by now."""

    def judge(section: Leases, now: int) -> tuple[Leases, tuple[int, ...]]:
        if section.config.dlq is None:
            return real(section, now)
        config = dataclasses.replace(section.config, dlq_strategy="skip", ordering_required=False)
        judged, blocked = real(dataclasses.replace(section, config=config), now)
        return dataclasses.replace(judged, config=section.config), blocked

    real = parking.judge
    with patch.object(lease_rules, "judge", judge):
        yield


# By hand


@mutant(sees=r"leased \d+, which was delivered as often as it may be|was judged after")
def snooze_and_unblock_are_never_used_up() -> Iterator[None]:
    """Whoever was given one attempt more has as many as it likes."""

    def is_used_up(section: Leases, batch: Batch) -> bool:
        return real(section, batch) and not batch.extra

    real = parking.is_used_up
    with patch.object(parking, "is_used_up", is_used_up), patch.object(lease_rules, "is_used_up", is_used_up):
        yield


@mutant(sees=r"was given up, but|which lease .* holds|finished as parked, but|after its lease .* had run out")
def park_by_hand_looks_at_no_lease() -> Iterator[None]:
    """A batch is given up while somebody works on it, and nobody copies it."""

    def park(section: Leases, by: Stamp, _waiting: range, sequence: int, _reason: str = "") -> Any:
        return stamped(finish(section, {sequence}), by, section.now_ms(by.clock_ms)), ()

    with patch.object(parking, "park", park):
        yield


@mutant(sees=r"but its holder had done only")
def acks_of_parts_are_of_the_whole_beside_a_consume() -> Iterator[None]:
    """An ack that goes along with a consume is of the whole batch or of nothing."""

    def consume(section: Leases, by: Stamp, waiting: range, max_batches: int, acks: Sequence[Ack] = ()) -> Any:
        return real(section, by, waiting, max_batches, [dataclasses.replace(ack, entries=None) for ack in acks])

    real = lease_rules.consume
    with patch.object(lease_rules, "consume", consume):
        yield
