"""What a queue is bound to: one app and one main table, in the section `plan`. Pure; the decisions of a loader's start.

The main table is bound by what it is: the place of its files, whatever way that is spelled, or Delta's id of it, which
it keeps when it is moved or renamed. The other tables may change: they join and leave with plans (`ledger.plan`).

As in `ledger.plan`, every decision is a function from the ledger that stands to the one that shall stand, and must be
right on whatever a crash, a lost reply or another loader left behind. What workers with leases left is taken over by
the binding itself (`from_workers.py`): from that write on none of them writes any more.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from buffer.errors import CorruptLedger, Fenced, LedgerLost, QueueBound
from buffer.ledger.envelope import Envelope
from buffer.ledger.from_workers import check_free, check_same_queue, is_between, is_left, workers_of
from buffer.ledger.leases import Leases
from buffer.ledger.plan import SECTIONS_OBEYED, Ledger, Plan
from buffer.names import manifest_path_of


@dataclass(frozen=True, slots=True)
class Binding:
    """What a loader was asked to feed. Without an app_id: whatever the ledger names, or a name made of its id."""

    app_id: str | None
    tables: tuple[str, ...]
    """As they are spelled, the main one first."""
    places: tuple[str, ...] = ()
    """Where they really are, in the same order; empty: their names tell."""
    main_id: str | None = None
    """The main table's own id: one that was moved or renamed keeps it."""
    main_position: int = -1
    """How far the main table was loaded by the app that the ledger names; -1: nothing, or nobody has asked."""

    @property
    def keys(self) -> tuple[str, ...]:
        """What plans call the tables."""
        return self.places or self.tables

    def fits(self, ledger: Ledger) -> bool:
        """The app and the main table are what the queue is bound to. The other tables may change."""
        if self.app_id not in (None, ledger.app_id):
            return False
        bound = (ledger.places or ledger.tables)[:1]
        if bound == self.keys[:1] or (not ledger.places and ledger.tables[:1] == self.tables[:1]):
            return True
        if ledger.plan is None or not bound:
            return False
        known = ledger.plan.table_ids.get(bound[0])
        if known is None:  # the first plan made the table: then it is the one that this app has loaded with that plan
            return self.main_position == ledger.plan.last
        return known == self.main_id

    def of(self, queue_id: str) -> dict[str, Any]:
        return {"app_id": self.app_id or f"buffer/{queue_id}", **self.named()}

    def named(self) -> dict[str, Any]:
        return {"tables": self.tables, "places": self.places}


def is_bound(ledger: Ledger | None, binding: Binding, *, location: str) -> bool:
    """Whether the ledger is born and names this binding. Raises QueueBound if it names another."""
    if ledger is None:
        return False
    ledger.check_sections(SECTIONS_OBEYED, location=location)
    if ledger.is_unbound:
        return False
    if not binding.fits(ledger):
        raise _bound_elsewhere(ledger, binding)
    return ledger.born


def bind(
    ledger: Ledger | None,
    binding: Binding,
    *,
    queue_epoch: int,
    new_queue_id: str,
    first_sequence: int = 0,
    next_sequence: int | None = None,
    clock_ms: int = 0,
    location: str | None = None,
) -> Ledger | None:
    """The next step of a ledger that is not bound yet towards one that is: made, then born.

    None if the queue was consumed before, with nothing to say into what. That is so only if the ledger is still this
    one afterwards: another loader may have given birth to it and claimed since it was read. Workers with leases do say
    it, as long as the queue is as they left it: it begins there (`first_sequence`), and nobody has claimed it since.
    Raises QueueBound while they are at work, and QueueBehindConsumer if it never held (`next_sequence`) what they had.

    Two steps, because the ledger and the queue's epoch are two objects: a consumer that claims between the look at
    the epoch and the making of the ledger is found by the second look.
    """
    workers = workers_of(ledger, location=location)
    if workers is None:
        if queue_epoch > 0:
            return None
    else:
        assert ledger is not None
        _check_same(workers, queue_epoch, next_sequence, location)
        epochs = {"ledger_epoch": ledger.epoch, "queue_epoch": queue_epoch}
        if not is_left(workers, **epochs, first_sequence=first_sequence, is_shut=not ledger.is_unbound):
            return None
        check_free(workers, clock_ms)
    if ledger is None:
        return Ledger(queue_id=new_queue_id, **binding.of(new_queue_id))
    if ledger.is_unbound:
        return ledger.changed(**binding.of(ledger.queue_id))
    return ledger.changed(born=True)


def adopt(
    ledger: Ledger | None,
    binding: Binding,
    *,
    committed: int,
    ahead: Collection[int] = (),
    digest: str,
    new_queue_id: str,
    location: str,
    may_complete: bool = True,
    queue_epoch: int | None = None,
    next_sequence: int | None = None,
    clock_ms: int = 0,
) -> Ledger:
    """The ledger of a queue that is taken over, whatever it says now.

    `committed` is the main table's position, `ahead` are those of tables that are beyond it: they hold their part of a
    range that the main table lacks, all of the same one. It becomes the plan, to be completed: where a record goes
    depends on nothing but itself. With dead letters that is not so. What of the range was set aside for them is not
    known any more, and it would be in no table if it can be loaded now; so without `may_complete` this raises
    LedgerLost. Tables behind the main one got nothing, or joined later. A ledger that fits already stays, unless a
    table is ahead of its plan or in the middle of it. Raises QueueBound while workers have something in hand, and
    QueueBehindConsumer if the queue, read after the ledger, never held what they had.
    """
    furthest = max(committed, *ahead, -1)
    plan = None
    if furthest > committed:
        plan = Plan(committed, committed + 1, furthest, digest=digest, attempts=0, quarantined={}, tables=binding.keys)
    elif furthest >= 0:
        plan = Plan(furthest - 1, furthest, furthest, attempts=0, tables=binding.keys)
    found = ledger or Ledger(queue_id=new_queue_id)
    found.check_sections(SECTIONS_OBEYED, location=location)
    covers = furthest < found.plan.first or furthest == found.plan.last if found.plan else furthest < 0
    if ledger is not None and ledger.born and binding.fits(ledger) and covers:
        return ledger
    workers = workers_of(found, location=location)
    if workers is not None:
        _check_same(workers, queue_epoch, next_sequence, location)
        check_free(workers, clock_ms)
    if len(set(ahead)) > 1:
        raise _strangers(location, committed, ahead)
    if furthest > committed and not may_complete:
        raise _split_unknown(location, committed + 1, furthest)
    return found.changed(**binding.of(found.queue_id), born=True, plan=plan, last_location=None, blocked=None)


def _check_same(workers: Leases, queue_epoch: int | None, next_sequence: int | None, location: str | None) -> None:
    if next_sequence is not None:
        path = manifest_path_of(location or "")
        check_same_queue(workers, next_sequence=next_sequence, epoch=queue_epoch, location=path)


def may_settle(ledger: Ledger | None, queue_epoch: int) -> bool:
    """Whether a queue with leases that cannot be bound now may be in a moment: see `is_between`."""
    workers = workers_of(ledger)
    if ledger is None or workers is None:
        return False
    return is_between(workers, ledger_epoch=ledger.epoch, queue_epoch=queue_epoch)


def salvaged(data: bytes, error: CorruptLedger) -> Ledger | None:
    """What adopting may still use of a ledger that could not be read: the envelope and the sections of others.

    Raises the error if a newer release wrote it, which knows more than we do.
    """
    if error.version is not None:
        raise error
    try:
        found = Envelope.from_bytes(data)
    except CorruptLedger:
        return None
    others = {name: document for name, document in found.sections.items() if name != Ledger.SECTION}
    return Ledger(found.queue_id, found.generation, found.epoch, others)


def enter(ledger: Ledger | None, binding: Binding, *, epoch: int, sent: bool, location: str) -> Ledger:
    """Put an epoch into the ledger, plan kept. Raises Fenced if a newer loader did first.

    The same epoch is ours only if we have `sent` it, here or while taking the queue over from workers: nobody else
    claimed that number and got an answer.
    """
    if ledger is None:
        raise Ledger.lost(location, "it is gone")
    if ledger.unusable:
        raise Ledger.lost(location, ledger.unusable)
    ledger.check_sections(SECTIONS_OBEYED, location=location)
    if not binding.fits(ledger):
        raise _bound_elsewhere(ledger, binding)
    if ledger.epoch == epoch and sent:
        return ledger
    if ledger.epoch >= epoch:
        raise Fenced.by_newer("loader", "ledger", epoch=epoch, current=ledger.epoch)
    return ledger.changed(epoch=epoch)


# Refusing


def _bound_elsewhere(ledger: Ledger, binding: Binding) -> QueueBound:
    main, asked = list(ledger.tables[:1]), list(binding.tables[:1])
    return QueueBound(
        f"this queue feeds the app {ledger.app_id!r} into {main}{_at(ledger.places)}; it was asked to feed "
        f"{binding.app_id or 'the same app'!r} into {asked}{_at(binding.places)}. One queue feeds one app and one main "
        "table: another one's acks would drop what this one never loaded. Use those settings, or another queue. A "
        "table that was moved or renamed with its log goes on by itself once the new name finds it; for one that was "
        "copied or made again, or if the queue was bound by mistake, pass adopt=True (--adopt) with an explicit app_id",
        app_id=binding.app_id,
        tables=binding.tables,
        bound_app_id=ledger.app_id,
        bound_tables=ledger.tables,
    )


def _at(places: tuple[str, ...]) -> str:
    return f" ({places[0]})" if places else ""


def _strangers(location: str, committed: int, ahead: Collection[int]) -> LedgerLost:
    return LedgerLost(
        f"the ledger {location!r} is lost, and the tables do not tell what was under way: the main one is at sequence "
        f"{committed}, others at {sorted(set(ahead))}, and one range brings all to the same. The main table is not the "
        "one that was loaded with them, or it was put back. Name the right one, or leave the others out and adopt the "
        "queue for the main table alone",
        location=location,
        first=committed + 1,
        last=max(ahead),
    )


def _split_unknown(location: str, first: int, last: int) -> LedgerLost:
    return LedgerLost(
        f"the batches {first}..{last} are in some tables and not in all, and only the ledger {location!r} as it was "
        "then says which of their entries were set aside for the dead letters: adopting the queue could lose those, or "
        "load them twice. "
        "Put that ledger back and start without adopt. If there is none, compare the tables on that range, then pass "
        "on_gap='skip' (--on-gap skip) together with adopt=True (--adopt) once: what is not set aside again goes to "
        "the tables that lack the range, and to no other",
        location=location,
        first=first,
        last=last,
    )


def used_before(ledger: Ledger | None, location: str) -> LedgerLost:
    """Why `bind` has no answer to this ledger."""
    if ledger is not None and "leases" in ledger.sections:
        return LedgerLost(
            "the queue was consumed before by another reader than its workers with leases, and the ledger "
            f"{location!r} does not say what that one has done: some of what waits may be done, some may be gone. Stop "
            "it, then let a worker open the queue once more, which takes it back, and start the loader when that has "
            "nothing in hand; or, if no other loader runs, pass adopt=True (--adopt) with an app_id",
            location=location,
        )
    return LedgerLost(
        f"the queue was consumed before, and there is no ledger {location!r} that says into what: either it was "
        "deleted, and a half-done commit could be repeated, or a consumer without tables reads this queue, and what "
        "it acked is gone. Put the ledger back, or use a queue of its own for each consumer and loader; or, if no "
        "other one runs, pass adopt=True (--adopt) with the app_id that the table was loaded with (DESCRIBE HISTORY "
        "shows it in userMetadata), or with a new one for a new table",
        location=location,
    )
