"""The loader's part of the ledger: binding a queue to tables, entering with an epoch, writing plans ahead.

A thin shell: the decisions are `buffer.ledger.binding`'s and `.plan`'s, the steps of a binding are `buffer.binder`'s,
reading and writing is `buffer.journal`'s.
Used by `protocol.py`, by `buffer-delta unblock` and by the simulator's loaders and operators.

What each call leaves behind if the process dies right after it:
    bind      a ledger that names us; nothing claimed. The next start finds it and goes on
    enter     our epoch; older loaders find it at their next ledger write and stop
    plan      a range that the next loader must replay exactly, into the tables that it names
    revise    an attempt more, or where each batch of that range goes; obeyed by whoever replays it
    withdraw  the plan before, for nobody has begun with this one; the next start finds what the tables hold
    block     a reason to stop, for an operator; the next start finds it
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from buffer.binder import Binder
from buffer.cas import CAS_BACKOFF
from buffer.clock import Clock
from buffer.errors import CorruptLedger
from buffer.journal import Journal
from buffer.leases.session import SETTLING
from buffer.ledger import binding as bindings
from buffer.ledger import plan as decisions
from buffer.ledger.binding import Binding
from buffer.ledger.from_workers import finished_runs, workers_of
from buffer.ledger.plan import Blocked, Ledger, Plan, QueueSeen
from buffer.ledger.ranges import Runs
from buffer.store.base import CanSwap


class Plans:
    """One loader's view of the ledger. Not thread-safe."""

    def __init__(
        self, store: CanSwap, manifest_path: str, clock: Clock, *, timeout_s: float = CAS_BACKOFF.timeout_s
    ) -> None:
        self._clock = clock
        self._journal = Journal(store, manifest_path, clock, Ledger, timeout_s=timeout_s)
        self._binder = Binder(self._journal, store, manifest_path, clock)
        self.location = self._journal.location
        self._binding: Binding | None = None
        """Ours, once we have entered: the ledger names our tables with the first plan that goes to them."""
        self._unsettled: list[Plan | None] = []
        """Plans sent under our epoch by calls that failed: one may stand, or land later. None was acted on."""

    def read(self) -> Ledger | None:
        return self._journal.read()

    # Before anything is claimed

    def bind(self, binding: Binding) -> Ledger:
        """The ledger of this queue, made if this is a fresh queue; see `Binder.bind` for what it raises."""
        return self._binder.bind(binding, SETTLING.pauses(self._clock.jitter))

    def adopt(
        self,
        binding: Binding,
        committed: int,
        *,
        ahead: Collection[int] = (),
        digest: str = "",
        may_complete: bool = True,
    ) -> Ledger:
        """Take the queue over, whatever its ledger says: the operator vouches that no other loader runs.

        It stays as it is where that is right already, so this may be left switched on. Raises LedgerLost, and nothing
        has changed, for a range in some tables only that may not be completed without knowing how it was split, and
        QueueBehindConsumer like `bind`.
        """
        queue_id = self._clock.new_ulid()

        def adopted(ledger: Ledger | None, _sent: bool) -> Ledger:
            # After the ledger, so it has all that workers know. Where there were none, nobody asks.
            manifest = self._binder.manifest() if ledger is not None and "leases" in ledger.sections else None
            return bindings.adopt(
                ledger,
                binding,
                committed=committed,
                ahead=ahead,
                digest=digest,
                new_queue_id=queue_id,
                location=self.location,
                may_complete=may_complete,
                queue_epoch=manifest.epoch if manifest is not None else None,
                next_sequence=manifest.next_sequence if manifest is not None else None,
                clock_ms=self._clock.now_ms(),
            )

        applied = self._journal.update(adopted, salvage=bindings.salvaged)
        assert applied.after is not None, "adopting leaves a ledger"
        return applied.after

    # Under our epoch

    def enter(self, epoch: int, binding: Binding, *, taken_over: bool = False) -> Ledger:
        """Put our epoch into the ledger, plan and tables kept. Raises Fenced if a newer loader did first.

        `taken_over`: our consumer has put it there already, to take the queue over from workers.
        """
        applied = self._journal.update(
            lambda ledger, sent: bindings.enter(
                ledger, binding, epoch=epoch, sent=sent or taken_over, location=self.location
            )
        )
        assert applied.after is not None, "entering needs a ledger"
        self._unsettled.clear()  # they were sent against a version that is gone now
        self._binding = binding
        return applied.after

    def check(self, epoch: int) -> Ledger:
        """The ledger, if no newer loader has entered. Raises Fenced, LedgerLost."""
        return self._journal.read_owned(epoch)

    def plan(self, epoch: int, earlier: Plan | None, plan: Plan, *, next_sequence: int, last_location: str) -> Plan:
        """Write a new plan over the one that is finished. Raises Fenced."""
        seen = QueueSeen(next_sequence, last_location)
        return self._replace(
            epoch, earlier, plan, lambda ledger, plan, **facts: decisions.planned(ledger, plan, seen=seen, **facts)
        )

    def revise(self, epoch: int, earlier: Plan, plan: Plan) -> Plan:
        """Count an attempt, or decide the split, of the plan that is there. Raises Fenced."""
        return self._replace(epoch, earlier, plan, decisions.revised)

    def _replace(self, epoch: int, earlier: Plan | None, plan: Plan, decide: Callable[..., Ledger]) -> Plan:
        over = (earlier, *self._unsettled)
        if plan not in self._unsettled:
            self._unsettled.append(plan)
        ours = self._binding
        names = ours.named() if ours is not None and plan.tables == ours.keys else None
        in_flight = any(sent != plan for sent in self._unsettled)
        facts = {"over": over, "location": self.location, "names": names, "in_flight": in_flight}
        self._journal.update_owned(epoch, lambda ledger: decide(ledger, plan, **facts))
        self._unsettled.clear()
        return plan

    def withdraw(self, epoch: int, plan: Plan, earlier: Plan | None) -> None:
        """Put the plan before it in place of one that nobody has begun with. Raises Fenced."""
        self._journal.update_owned(
            epoch, lambda ledger: decisions.withdrawn(ledger, plan, earlier, location=self.location)
        )

    def block(self, epoch: int, blocked: Blocked) -> None:
        self._journal.update_owned(epoch, lambda ledger: decisions.blocked_by(ledger, blocked, location=self.location))

    # By an operator

    def unblock(self, *, skip: bool) -> Blocked | None:
        """Let the next start try the blocked range again, or send its bad batches to the dead letters.

        Returns what was blocked; None if nothing was. Needs no epoch: a blocked loader has stopped.
        """
        before = self._journal.update(lambda ledger, _sent: decisions.unblocked(ledger, skip=skip)).before
        return before.blocked if before else None

    def replan(self, looked_at: Plan | None = None) -> Plan | None:
        """Forget what was decided about the planned range, so that the next start may load it in another way.

        Returns the plan as it was; None if there is nothing to forget. Needs no epoch: the operator vouches that no
        loader runs, for one that does could still commit a table as it was decided, and that no table holds the range.
        Raises InvalidInput if that was found out of a plan which is not the one that stands.
        """
        before = self._journal.update(lambda ledger, _sent: decisions.replanned(ledger, looked_at)).before
        return before.plan if before else None

    def finished(self) -> Runs:
        """What workers with leases have finished, as far as the ledger can tell."""
        try:
            return finished_runs(workers_of(self._journal.read(), location=self.location))
        except CorruptLedger:  # whoever has to obey it says so
            return ()
