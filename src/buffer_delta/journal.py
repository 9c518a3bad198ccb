"""The ledger over compare-and-swap: binding a queue to tables, entering with an epoch, writing plans ahead.

Every write is a `CasObject.update` whose change looks at what is there first, so a lost reply is harmless: the
next look finds either our content (done) or the content before it (write again). Only the holder of an epoch
writes under it, so within one epoch the ledger has one author.

What each call leaves behind if the process dies right after it:
    bind    a ledger that names us; nothing claimed. The next start finds it and goes on
    enter   our epoch; older loaders find it at their next ledger write and stop
    plan    a range that the next loader must replay exactly
    split   where each batch of that range goes; obeyed by whoever replays it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buffer.cas import CasObject, Snapshot
from buffer.clock import Clock
from buffer.errors import CorruptLedger, CorruptManifest, Fenced, LedgerLost, ObjectNotFound, StorageError
from buffer.ledger import Blocked, Ledger, Plan, ledger_path
from buffer.manifest import Manifest
from buffer.store.base import CanSwap
from buffer_delta.errors import QueueBound


class Journal:
    """One loader's view of the ledger. Not thread-safe."""

    def __init__(self, store: CanSwap, manifest_path: str, clock: Clock, *, timeout_s: float = 60.0) -> None:
        self.location = ledger_path(manifest_path)
        self._manifest_path = manifest_path
        self._store = store
        self._clock = clock
        self._cas = CasObject(store, self.location, clock, timeout_s=timeout_s)
        self._unsettled: list[Plan] = []
        """Plans sent under our epoch by calls that failed: one may stand, or land later. None was acted on."""

    def read(self) -> Ledger | None:
        return self._parse(self._cas.read())

    # Before anything is claimed

    def bind(self, app_id: str | None, tables: Sequence[str]) -> Ledger:
        """The ledger of this queue, made if this is a fresh queue. Raises QueueBound, LedgerLost.

        On any other error the ledger is missing, not born, or bound to us: call again.
        """
        trouble: StorageError | None = None
        tried = 0
        for attempt in self._cas.attempts():
            tried = attempt + 1
            try:
                ledger = self._bind_once(app_id, tuple(tables))
            except StorageError as error:
                if not error.retryable:
                    raise
                trouble = error
            else:
                trouble = None
                if ledger:
                    return ledger
        raise trouble or self._cas.contention(tried)

    def _bind_once(self, app_id: str | None, tables: tuple[str, ...]) -> Ledger | None:
        """One step towards a ledger that is born and ours; None: look again, whatever became of the write."""
        seen = self._cas.read()
        ledger = self._parse(seen)
        if ledger is None:
            if self._queue_epoch() == 0:
                self._cas.write(seen, self._new(app_id, tables).to_bytes())
            elif self.read() is None:  # else another loader has made it in between, and claimed
                raise self._used_before()
        elif not self._is_ours(ledger, app_id, tables):
            raise self._bound(ledger, app_id, tables)
        elif ledger.born:
            return ledger
        elif self._queue_epoch() > 0:
            # Another loader may have given birth to it in between, and claimed: then it has changed by now.
            if self.read() == ledger:
                raise self._used_before()
        else:
            self._cas.write(seen, ledger.changed(born=True).to_bytes())
        return None

    def adopt(
        self, app_id: str, tables: Sequence[str], committed: int, *, furthest: int | None = None, digest: str = ""
    ) -> Ledger:
        """Take the queue over, whatever its ledger says: the operator vouches that no other loader runs.

        `committed` is what every table holds, `furthest` what one of them does: where they differ, a range was
        committed to some tables only. It becomes the plan, to be completed; if some of its batches had been sent to
        the dead letters, that is not known any more, and they are tried again.
        A ledger that is ours already stays, unless a table is ahead of its plan or in the middle of it. So this may
        be left switched on.
        """
        tables = tuple(tables)
        most = committed if furthest is None else furthest
        plan = None
        if most > committed:
            plan = Plan(after=committed, first=committed + 1, last=most, digest=digest, attempts=0, quarantined={})
        elif most >= 0:
            plan = Plan(after=most - 1, first=most, last=most, attempts=0)

        def change(seen: Snapshot) -> bytes | None:
            try:
                ledger = self._parse(seen) or self._new(app_id, tables)
            except CorruptLedger as error:
                if error.version is not None:  # written by a newer release, which knows more than we do
                    raise
                ledger = self._new(app_id, tables)
            fits = most < ledger.plan.first or most == ledger.plan.last if ledger.plan else most < 0
            if ledger.born and self._is_ours(ledger, app_id, tables) and fits:
                return None
            return ledger.changed(
                born=True, app_id=app_id, tables=tables, plan=plan, last_location=None, blocked=None
            ).to_bytes()

        return self._require(self._cas.update(change))

    # Under our epoch

    def enter(self, epoch: int, app_id: str, tables: Sequence[str]) -> Ledger:
        """Put our epoch into the ledger, plan kept. Raises Fenced if a newer loader did first."""
        sent = False

        def change(seen: Snapshot) -> bytes | None:
            nonlocal sent
            ledger = self._require(seen)
            if not self._is_ours(ledger, app_id, tuple(tables)):
                raise self._bound(ledger, app_id, tuple(tables))
            if ledger.epoch == epoch and sent:
                return None
            if ledger.epoch >= epoch:
                raise _fenced(epoch, ledger.epoch)
            sent = True
            return ledger.changed(epoch=epoch).to_bytes()

        entered = self._require(self._cas.update(change))
        self._unsettled.clear()  # they were sent against a version that is gone now
        return entered

    def check(self, epoch: int) -> Ledger:
        """The ledger, if no newer loader has entered. Raises Fenced, LedgerLost."""
        return self._mine(self._cas.read(), epoch)

    def plan(self, epoch: int, earlier: Plan | None, plan: Plan, *, next_sequence: int, last_location: str) -> Plan:
        """Write a new plan over the one that is finished. Raises Fenced."""
        return self._replace(
            epoch, earlier, plan, next_sequence=next_sequence, last_location=last_location, blocked=None
        )

    def revise(self, epoch: int, earlier: Plan, plan: Plan) -> Plan:
        """Count an attempt, or decide the split, of the plan that is there. Raises Fenced."""
        return self._replace(epoch, earlier, plan)

    def block(self, epoch: int, blocked: Blocked) -> None:
        def change(seen: Snapshot) -> bytes | None:
            ledger = self._mine(seen, epoch)
            return None if ledger.blocked == blocked else ledger.changed(blocked=blocked).to_bytes()

        self._cas.update(change)

    def unblock(self, *, skip: bool) -> Blocked | None:
        """Let the next start try the blocked range again, or send its bad batches to the dead letters.

        Returns what was blocked; None if nothing was. Needs no epoch: a blocked loader has stopped.
        """
        released: Blocked | None = None

        def change(seen: Snapshot) -> bytes | None:
            nonlocal released
            ledger = self._parse(seen)
            if ledger is None or ledger.blocked is None or ledger.plan is None:
                return None
            released = ledger.blocked
            plan = ledger.plan.forgiven()
            if skip:
                plan = plan.split(ledger.blocked.batches)
            return ledger.changed(blocked=None, plan=plan).to_bytes()

        self._cas.update(change)
        return released

    def replan(self) -> Plan | None:
        """Forget what was decided about the planned range, so that the next start may load it in another way.

        Returns the plan as it was; None if there is nothing to forget. Needs no epoch: the operator vouches that no
        loader runs, for one that does could still commit a table as it was decided, and that no table holds the range.
        """
        forgotten: Plan | None = None

        def change(seen: Snapshot) -> bytes | None:
            nonlocal forgotten
            ledger = self._parse(seen)
            if ledger is None or ledger.plan is None or ledger.plan.quarantined is None:
                return None
            forgotten = ledger.plan
            return ledger.changed(plan=ledger.plan.undecided()).to_bytes()

        self._cas.update(change)
        return forgotten

    def _replace(self, epoch: int, earlier: Plan | None, plan: Plan, **also: Any) -> Plan:
        def change(seen: Snapshot) -> bytes | None:
            ledger = self._mine(seen, epoch)
            if ledger.plan == plan:
                return None
            if ledger.plan != earlier and ledger.plan not in self._unsettled:
                raise self._lost(f"its plan {ledger.plan} was written by something that is not a loader")
            return ledger.changed(plan=plan, **also).to_bytes()

        if plan not in self._unsettled:
            self._unsettled.append(plan)
        self._cas.update(change)
        self._unsettled.clear()
        return plan

    # Reading

    def _parse(self, seen: Snapshot) -> Ledger | None:
        if seen.data is None:
            return None
        return Ledger.from_bytes(seen.data, location=self.location)

    def _require(self, seen: Snapshot) -> Ledger:
        ledger = self._parse(seen)
        if ledger is None or not ledger.born:
            raise self._lost("it is gone" if ledger is None else "it was made anew")
        return ledger

    def _mine(self, seen: Snapshot, epoch: int) -> Ledger:
        ledger = self._require(seen)
        if ledger.epoch != epoch:
            raise _fenced(epoch, ledger.epoch)
        return ledger

    def _queue_epoch(self) -> int:
        try:
            return Manifest.from_bytes(self._store.get(self._manifest_path).data).epoch
        except ObjectNotFound:
            return 0
        except CorruptManifest as error:
            raise CorruptManifest(
                f"{self._manifest_path!r}: {error}", location=self._manifest_path, version=error.version
            ) from error

    def _new(self, app_id: str | None, tables: tuple[str, ...]) -> Ledger:
        queue_id = self._clock.new_ulid()
        return Ledger(queue_id=queue_id, app_id=app_id or f"buffer/{queue_id}", tables=tables)

    # Refusing

    @staticmethod
    def _is_ours(ledger: Ledger, app_id: str | None, tables: tuple[str, ...]) -> bool:
        return app_id in (None, ledger.app_id) and ledger.tables == tables

    def _bound(self, ledger: Ledger, app_id: str | None, tables: tuple[str, ...]) -> QueueBound:
        return QueueBound(
            f"this queue feeds the app {ledger.app_id!r} into {list(ledger.tables)}; it was asked to feed "
            f"{app_id or 'the same app'!r} into {list(tables)}. One queue feeds one app: another one's acks would "
            "drop what this one never loaded. Use those settings, another queue, or adopt=True with an explicit "
            "app_id to take this queue over",
            app_id=app_id,
            tables=tables,
            bound_app_id=ledger.app_id,
            bound_tables=ledger.tables,
        )

    def _used_before(self) -> LedgerLost:
        return LedgerLost(
            f"the queue was consumed before, and there is no ledger {self.location!r} that says into what: either it "
            "was deleted, and a half-done commit could be repeated, or a consumer without tables reads this queue, "
            "and what it acked is gone. Put the ledger back, or use a queue of its own for each consumer and loader; "
            "or, if no other one runs, pass adopt=True with the app_id that the table was loaded with (DESCRIBE "
            "HISTORY shows it in userMetadata), or with a new one for a new table",
            location=self.location,
        )

    def _lost(self, what: str) -> LedgerLost:
        return LedgerLost(
            f"the ledger {self.location!r} is lost: {what}. Without it a half-done commit could be repeated. Put "
            "it back, or make sure that no loader runs and pass adopt=True with the app_id that the table was "
            "loaded with (DESCRIBE HISTORY shows it in userMetadata)",
            location=self.location,
        )


def _fenced(epoch: int, current: int) -> Fenced:
    return Fenced(
        f"this loader entered with epoch {epoch}, the ledger is at {current}: another loader took over. Stop; "
        "a restart would fence that one in turn",
        epoch=epoch,
        current_epoch=current,
    )
