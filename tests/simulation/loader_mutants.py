"""Breaks of the loader: plans, commits, acks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from buffer.cas import Snapshot
from buffer.ledger import Ledger, Plan
from buffer_delta import checks
from buffer_delta.contracts import Failure
from buffer_delta.errors import ConcurrentCommit
from buffer_delta.journal import Journal
from buffer_delta.protocol import LoadProtocol
from buffer_delta.testing.delta_log import JobFailed, SimulatedTarget
from buffer_delta.testing.work import SimulatedWork
from tests.simulation.mutants import FALSE_ALARM, GIVEN_UP, LOST, STUCK, TWICE, mutant

# The plan


def _commit_by_txn_alone(self: LoadProtocol, target: Any, rows: Any, plan: Plan, entries: int) -> None:
    """Append until the table is at the range's end or beyond: what a loader without plans would do."""
    while True:
        with suppress(ConcurrentCommit):
            target.append(rows, app_id=self.app_id, first=plan.first, last=plan.last, epoch=self.epoch, entries=entries)
        if self._position(target) >= plan.last:
            return


def _accept(*_: Any, **__: Any) -> None:
    """For checks that a mutant does without."""


@contextmanager
def _trusting_txn() -> Iterator[None]:
    """Without the checks that notice a broken plan before it does harm: the plan alone must be what prevents it."""
    with (
        patch.object(LoadProtocol, "_commit", _commit_by_txn_alone),
        patch.object(checks, "ledger_knows", _accept),
        patch.object(checks, "not_beyond", _accept),
        patch.object(checks, "not_inside", _accept),
    ):
        yield


def _plan_in_silence(self: Journal, epoch: int, _earlier: Plan | None, plan: Plan, **_: Any) -> Plan:
    """Without a word in the ledger."""
    self.check(epoch)
    return plan


@mutant("loader", sees=TWICE)
def plan_is_not_written() -> Iterator[None]:
    """The loader decides on a range and commits it, without a word in the ledger: the naive way."""

    with (
        patch.object(Journal, "plan", _plan_in_silence),
        patch.object(Journal, "revise", _plan_in_silence),
        _trusting_txn(),
    ):
        yield


@mutant("loader", sees=f"{TWICE}|LedgerBehind")
def plan_is_not_written_and_nothing_else_changes() -> Iterator[None]:
    """The same with all checks in place: they call for help, or a row is there twice."""

    with patch.object(Journal, "plan", _plan_in_silence), patch.object(Journal, "revise", _plan_in_silence):
        yield


@mutant("loader", sees=TWICE)
def found_plan_is_ignored() -> Iterator[None]:
    """A loader that takes over plans anew instead of replaying what its predecessor planned."""
    real = Journal.enter

    def enter(self: Journal, *args: Any) -> Ledger:
        entered = real(self, *args)
        self._unsettled.append(entered.plan)  # so that it may be overwritten
        return replace(entered, plan=None)

    with patch.object(Journal, "enter", enter), _trusting_txn():
        yield


@mutant("loader", sees=f"{TWICE}|{LOST}")
def plan_is_shrunk_on_replay() -> Iterator[None]:
    """The successor replays the planned range without its last batch."""
    real = LoadProtocol._plan_again

    def again(self: LoadProtocol, plan: Plan) -> Any:
        descriptors = self._take_through(plan)
        if plan.attempts > 1 or len(descriptors) < 2:
            return real(self, plan)
        assert self.consumer is not None
        self._plan = self._journal.plan(
            self.epoch,
            plan,
            replace(plan.tried_again(), last=plan.last - 1, digest=self._work.digest),
            next_sequence=self.consumer.manifest().next_sequence,
            last_location=descriptors[-2].location,
        )
        return self._plan, descriptors[:-1]

    with patch.object(LoadProtocol, "_plan_again", again), _trusting_txn():
        yield


@mutant("loader", sees=f"{TWICE}|{LOST}")
def plan_is_written_by_anyone() -> Iterator[None]:
    """A loader that was superseded may still write its plan: no look at the ledger's epoch."""

    def mine(self: Journal, seen: Snapshot, _epoch: int) -> Ledger:
        ledger = self._require(seen)
        self._unsettled.append(ledger.plan)  # type: ignore[arg-type]  # None is as good as any plan here
        return ledger

    with patch.object(Journal, "_mine", mine), _trusting_txn():
        yield


@mutant("loader", sees=f"{STUCK}|{TWICE}|{FALSE_ALARM}")
def ledger_is_taken_back() -> Iterator[None]:
    """A loader enters with an epoch below the one that the ledger has."""

    def enter(self: Journal, epoch: int, _app_id: str, _tables: Sequence[str]) -> Ledger:
        def change(seen: Snapshot) -> bytes | None:
            ledger = self._require(seen)
            return None if ledger.epoch == epoch else ledger.changed(epoch=epoch).to_bytes()

        return self._require(self._cas.update(change))

    with patch.object(Journal, "enter", enter):
        yield


@mutant("loader", sees=f"{FALSE_ALARM}|{TWICE}|{LOST}")
def blocked_is_looked_at_before_claiming_alone() -> Iterator[None]:
    """A loader that blocks between another's first look and its claim is not noticed, and `unblock` rewrites the
    plan of a loader that runs."""
    real = Journal.enter

    def enter(self: Journal, *args: Any) -> Ledger:
        return replace(real(self, *args), blocked=None)

    with patch.object(Journal, "enter", enter):
        yield


@mutant("loader", sees=f"{TWICE}|{LOST}|dead letters")
def split_is_not_written() -> Iterator[None]:
    """Which batches are set aside is decided again by every attempt, also when one table has its part already."""
    real = Journal._replace

    def write(self: Journal, epoch: int, earlier: Plan | None, plan: Plan, **also: Any) -> Plan:
        if earlier is not None:
            earlier = replace(earlier, quarantined=None)
        real(self, epoch, earlier, replace(plan, quarantined=None), **also)
        return plan

    with patch.object(Journal, "_replace", write):
        yield


@mutant("loader", sees=f"{TWICE}|{LOST}")
def route_change_is_ignored() -> Iterator[None]:
    """A range that was split under one routing is completed under another."""
    with patch.object(checks, "same_configuration", _accept):
        yield


@mutant("loader", sees=f"{TWICE}|{LOST}")
def split_is_changed_afterwards() -> Iterator[None]:
    """A batch that cannot be read is set aside although the split is written and a table may hold its rows."""
    real = LoadProtocol._commit_all

    def commit_all(self: LoadProtocol, plan: Plan, descriptors: Sequence[Any]) -> Any:
        if plan.quarantined is not None and plan.attempts > self._rules.max_delivery_attempts:
            plan = self._quarantine(plan, descriptors)
        return real(self, plan, descriptors)

    with patch.object(LoadProtocol, "_commit_all", commit_all):
        yield


@mutant("loader", sees=GIVEN_UP)
def good_batches_are_given_up() -> Iterator[None]:
    """One bad batch, and its whole range is set aside."""
    real = SimulatedWork.probe

    def probe(self: SimulatedWork, descriptors: Sequence[Any]) -> Sequence[Failure]:
        found = real(self, descriptors)
        return [replace(found[0], sequence=descriptor.sequence) for descriptor in descriptors] if found else found

    with patch.object(SimulatedWork, "probe", probe):
        yield


@mutant("loader", sees=GIVEN_UP)
def lost_executors_are_blamed_on_batches() -> Iterator[None]:
    """A batch is set aside because the machine that read it, or the way to the store, failed."""
    real = SimulatedWork.probe

    def probe(self: SimulatedWork, descriptors: Sequence[Any]) -> Sequence[Failure]:
        return [replace(failure, kind="data") for failure in real(self, descriptors)]

    with patch.object(SimulatedWork, "probe", probe):
        yield


# Committing and acking


@mutant("loader", sees=LOST)
def ack_before_commit() -> Iterator[None]:
    real = LoadProtocol._commit_all

    def commit_all(self: LoadProtocol, plan: Plan, descriptors: Sequence[Any]) -> Any:
        assert self.consumer is not None
        self.consumer._position._dequeue(plan.last)
        return real(self, plan, descriptors)

    with patch.object(LoadProtocol, "_commit_all", commit_all):
        yield


@mutant("loader", sees=f"{FALSE_ALARM}|{STUCK}|{LOST}|{TWICE}")
def committed_is_cached() -> Iterator[None]:
    """The position of a table is read once per process and kept, moved on by its own appends alone."""
    real_committed, real_append = SimulatedTarget.committed, SimulatedTarget.append

    def committed(self: Any, app_id: str) -> int | None:
        if not hasattr(self, "cached"):
            self.cached = real_committed(self, app_id)
        return self.cached

    def append(self: Any, rows: Any, *, last: int, **facts: Any) -> Any:
        result = real_append(self, rows, last=last, **facts)
        self.cached = last
        return result

    with patch.object(SimulatedTarget, "committed", committed), patch.object(SimulatedTarget, "append", append):
        yield


@mutant("loader", sees=LOST)
def one_table_speaks_for_all() -> Iterator[None]:
    """The position is the largest of the tables', not the least."""
    real = LoadProtocol._positions

    def most(self: LoadProtocol, app_id: str) -> list[int]:
        positions = real(self, app_id)
        return [max(positions)] * len(positions)

    with patch.object(LoadProtocol, "_positions", most):
        yield


@mutant("loader", sees=LOST)
def lost_commit_is_trusted() -> Iterator[None]:
    """An append without an answer counts as done; the table is not asked."""
    real = LoadProtocol._commit

    def commit_one(self: LoadProtocol, *args: Any) -> Any:
        try:
            return real(self, *args)
        except JobFailed:
            return None

    with patch.object(LoadProtocol, "_commit", commit_one):
        yield


@mutant("loader", sees=FALSE_ALARM)
def no_second_look_at_the_tables() -> Iterator[None]:
    """After entering, the loader does not ask the tables again whether its predecessor got further."""
    real = LoadProtocol._positions

    def look_once(self: Any, app_id: str) -> list[int]:
        if self.consumer is not None:
            return real(self, app_id)
        if not hasattr(self, "looked"):
            self.looked = real(self, app_id)
        return self.looked

    with patch.object(LoadProtocol, "_positions", look_once):
        yield
