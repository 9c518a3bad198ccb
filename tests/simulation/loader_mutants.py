"""Breaks of the loader: plans, commits, acks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from buffer.fenced import FencedObject
from buffer.ledger import binding as bindings
from buffer.ledger import plan as decisions
from buffer.ledger.plan import Ledger, Plan
from buffer_delta.delta.state import Commit, TableState
from buffer_delta.delta.txn import Txn
from buffer_delta.errors import ConcurrentCommit
from buffer_delta.load import checks
from buffer_delta.load.commits import Commits
from buffer_delta.load.isolate import Search, Trouble, Undecided, Verdict
from buffer_delta.load.planning import Planning
from buffer_delta.load.plans import Plans
from buffer_delta.load.ports import Failure, Group
from buffer_delta.load.tables import LoaderTables
from buffer_delta.testing.delta_log import JobFailed, SimulatedFiles, SimulatedTarget
from buffer_delta.testing.work import SimulatedWork
from tests.simulation.mutants import FALSE_ALARM, GIVEN_UP, LOST, STUCK, TWICE, mutant

# The plan


def _commit_by_txn_alone(self: Commits, target: Any, rows: Any, plan: Plan, txn: Txn, _staged: Any) -> None:
    """Write until the table is at the range's end or beyond: what a loader without plans would do."""
    while True:
        with suppress(ConcurrentCommit):
            target.stage(rows, txn, self._tables.look(target.name)).commit()
        if self._tables.look(target.name).position >= plan.last:
            return


def _accept(*_: Any, **__: Any) -> None:
    """For checks that a mutant does without."""


@contextmanager
def _trusting_txn() -> Iterator[None]:
    """Without the checks that notice a broken plan before it does harm: the plan alone must be what prevents it."""
    with (
        patch.object(Commits, "_commit", _commit_by_txn_alone),
        patch.object(checks, "ledger_knows", _accept),
        patch.object(checks, "not_beyond", _accept),
        patch.object(checks, "not_inside", _accept),
        patch.object(checks, "may_commit", _accept),
    ):
        yield


def _plan_in_silence(self: Plans, epoch: int, _earlier: Plan | None, plan: Plan, **_: Any) -> Plan:
    """Without a word in the ledger."""
    self.check(epoch)
    return plan


@mutant("loader", sees=TWICE)
def plan_is_not_written() -> Iterator[None]:
    """The loader decides on a range and commits it, without a word in the ledger: the naive way."""

    with (
        patch.object(Plans, "plan", _plan_in_silence),
        patch.object(Plans, "revise", _plan_in_silence),
        _trusting_txn(),
    ):
        yield


@mutant("loader", sees=f"{TWICE}|LedgerBehind")
def plan_is_not_written_and_nothing_else_changes() -> Iterator[None]:
    """The same with all checks in place: they call for help, or a row is there twice."""

    with patch.object(Plans, "plan", _plan_in_silence), patch.object(Plans, "revise", _plan_in_silence):
        yield


@mutant("loader", sees=TWICE)
def found_plan_is_ignored() -> Iterator[None]:
    """A loader that takes over plans anew instead of replaying what its predecessor planned."""
    real = Plans.enter

    def enter(self: Plans, *args: Any, **also: Any) -> Ledger:
        entered = real(self, *args, **also)
        self._unsettled.append(entered.plan)  # so that it may be overwritten
        return replace(entered, plan=None)

    with patch.object(Plans, "enter", enter), _trusting_txn():
        yield


@mutant("loader", sees=f"{TWICE}|{LOST}")
def plan_is_shrunk_on_replay() -> Iterator[None]:
    """The successor replays the planned range without its last batch."""
    real = Planning._plan_again

    def again(self: Planning, plan: Plan) -> Any:
        descriptors = self._take_through(plan)
        if plan.attempts > 1 or len(descriptors) < 2:
            return real(self, plan)
        hand = self._hand
        hand.plan = hand._journal.plan(
            hand.epoch,
            plan,
            replace(plan.tried_again(), last=plan.last - 1, digest=self._works.own.digest),
            next_sequence=hand.queue.known().next_sequence,
            last_location=descriptors[-2].location,
        )
        return hand.plan, descriptors[:-1]

    with patch.object(Planning, "_plan_again", again), _trusting_txn():
        yield


# One seed in tens of thousands: two writes without a reply, and a third plan that is the first one again.
@mutant("loader", sees=f"{TWICE}|{LOST}|written by something that is not a loader", within=60_000)
def plan_that_stands_is_not_written_again() -> Iterator[None]:
    """A plan that stands is taken for written, although another one may be on its way to the same version."""

    def replaced(ledger: Ledger, plan: Plan, over: Any, location: str, **also: Any) -> Ledger:
        return real(ledger, plan, over, location, **{**also, "in_flight": False})

    real = decisions._replaced
    with patch.object(decisions, "_replaced", replaced):
        yield


@mutant("loader", sees=f"{TWICE}|{LOST}")
def plan_is_written_by_anyone() -> Iterator[None]:
    """A loader that was superseded may still write its plan: no look at the ledger's epoch."""

    def owned(self: FencedObject[Any, Any], value: Any, _epoch: int | None) -> Any:
        return self._require(value)

    def replaced(ledger: Ledger, plan: Plan, _over: Any, location: str, **also: Any) -> Ledger:
        return real(ledger, plan, [ledger.plan], location, **also)

    real, is_owned = decisions._replaced, FencedObject.owned

    def only_ledgers(self: FencedObject[Any, Any], value: Any, epoch: int | None) -> Any:
        """The manifest's owner is checked as ever."""
        return (owned if self._what == "ledger" else is_owned)(self, value, epoch)

    with (
        patch.object(FencedObject, "owned", only_ledgers),
        patch.object(decisions, "_replaced", replaced),
        _trusting_txn(),
    ):
        yield


@mutant("loader", sees=f"{STUCK}|{TWICE}|{FALSE_ALARM}")
def ledger_is_taken_back() -> Iterator[None]:
    """A loader enters with an epoch below the one that the ledger has."""

    def enter(ledger: Ledger, _binding: Any, *, epoch: int, **_: Any) -> Ledger:
        return ledger if ledger.epoch == epoch else ledger.changed(epoch=epoch)

    with patch.object(bindings, "enter", enter):
        yield


@mutant("loader", sees=f"{FALSE_ALARM}|{TWICE}|{LOST}", within=8000)
def blocked_is_looked_at_before_claiming_alone() -> Iterator[None]:
    """A loader that blocks between another's first look and its claim is not noticed, and `unblock` rewrites the
    plan of a loader that runs."""
    real = Plans.enter

    def enter(self: Plans, *args: Any, **also: Any) -> Ledger:
        return replace(real(self, *args, **also), blocked=None)

    with patch.object(Plans, "enter", enter):
        yield


@mutant("loader", sees=f"{TWICE}|{LOST}|dead letters")
def split_is_not_written() -> Iterator[None]:
    """Which batches are set aside is decided again by every attempt, also when one table has its part already."""
    real = Plans._replace

    def write(self: Plans, epoch: int, earlier: Plan | None, plan: Plan, decide: Any) -> Plan:
        forgotten: dict[str, Any] = {"quarantined": None, "entries": {}, "rules": None}
        if earlier is not None:
            earlier = replace(earlier, **forgotten)
        real(self, epoch, earlier, replace(plan, **forgotten), decide)
        return plan

    with patch.object(Plans, "_replace", write):
        yield


@mutant("loader", sees=f"{TWICE}|{LOST}")
def route_change_is_ignored() -> Iterator[None]:
    """A range that was split under one routing is completed under another."""
    with patch.object(checks, "same_configuration", _accept):
        yield


@mutant("loader", sees=f"{TWICE}|{LOST}", within=8000)
def rules_of_tables_may_change() -> Iterator[None]:
    """A constraint is taken away while a range is in one table, and its records go elsewhere from then on."""
    with patch.object(checks, "same_rules", _accept):
        yield


@mutant("loader", sees=GIVEN_UP)
def good_batches_are_given_up() -> Iterator[None]:
    """One bad batch, and its whole range is set aside."""
    real = SimulatedWork.probe

    def probe(self: SimulatedWork, part: Group, seen: Any) -> Sequence[Failure]:
        found = [failure for failure in real(self, part, seen) if failure.index is None]
        return [replace(found[0], sequence=d.sequence) for d in part.descriptors] if found else found

    with patch.object(SimulatedWork, "probe", probe):
        yield


@mutant("loader", sees=GIVEN_UP)
def lost_executors_are_blamed_on_batches() -> Iterator[None]:
    """A batch is set aside because the machine that read it, or the way to the store, failed."""
    real = SimulatedWork.probe

    def probe(self: SimulatedWork, part: Group, seen: Any) -> Sequence[Failure]:
        return [replace(failure, kind="data") for failure in real(self, part, seen)]

    with patch.object(SimulatedWork, "probe", probe):
        yield


@mutant("loader", sees=GIVEN_UP)
def lost_executors_are_blamed_on_entries() -> Iterator[None]:
    """A trial fails because a machine was lost, and the entry in it is set aside at once."""
    real = Search._blame

    def blame(self: Search, part: Group, trouble: Trouble) -> None:
        with patch.object(Search, "_check_the_machines", _accept), patch.object(Search, "_attempt", lambda *_: trouble):
            real(self, part, trouble)

    with (
        patch.object(SimulatedWork, "trouble", lambda _self, error: Trouble(repr(error), "data")),
        patch.object(Search, "_blame", blame),
    ):
        yield


@mutant("loader", sees=STUCK)
def only_reading_is_tried() -> Iterator[None]:
    """What cannot be fetched is found, and nothing else is looked for."""

    def run(self: Search) -> Verdict:
        self._lab.attempt = lambda _part: None  # type: ignore[method-assign]
        failures = self._lab.probe(self._whole)
        if isinstance(failures, Trouble) or any(failure.kind == "infra" for failure in failures):
            raise Undecided("not now")
        return Verdict({failure.sequence: failure.error for failure in failures if failure.index is None})

    with patch.object(Search, "run", run):
        yield


@mutant("loader", sees=LOST)
def isolated_entries_are_forgotten() -> Iterator[None]:
    """They are left out of the tables, and are not among the dead letters either."""
    real = SimulatedWork._entries

    def entries(self: SimulatedWork, part: Group, descriptor: Any) -> Iterator[tuple[int, bytes, bool]]:
        return (found for found in real(self, part, descriptor) if not found[2])

    with patch.object(SimulatedWork, "_entries", entries):
        yield


@mutant("loader", sees=STUCK)
def tables_are_written_after_the_split() -> Iterator[None]:
    """A table says what it has against a row only when nothing can be decided any more."""
    real_stage, real_commit = SimulatedTarget._write_files, SimulatedTarget.commit

    def commit(self: SimulatedTarget, files: SimulatedFiles) -> Commit:
        if files.content is not None:
            real_stage(self, files.content.rows, files.txn, files.seen)
        return real_commit(self, files)

    with (
        patch.object(SimulatedTarget, "_write_files", lambda *_: None),
        patch.object(SimulatedTarget, "commit", commit),
    ):
        yield


# Committing and acking


@mutant("loader", sees=LOST)
def ack_before_commit() -> Iterator[None]:
    real = Commits.commit_all

    def commit_all(self: Commits, plan: Plan, descriptors: Sequence[Any]) -> Any:
        self._hand.queue._position._dequeue(plan.last)
        return real(self, plan, descriptors)

    with patch.object(Commits, "commit_all", commit_all):
        yield


@mutant("loader", sees=f"{FALSE_ALARM}|{STUCK}|{LOST}|{TWICE}")
def committed_is_cached() -> Iterator[None]:
    """The position of a table is read once per process and kept, moved on by its own appends alone."""
    real_look, real_commit = SimulatedTarget.look, SimulatedTarget.commit

    def look(self: Any, app_id: str) -> TableState:
        if not hasattr(self, "cached"):
            self.cached = real_look(self, app_id)
        return self.cached

    def commit(self: Any, files: SimulatedFiles) -> Commit:
        done = real_commit(self, files)
        self.cached = replace(done.after, position=files.txn.last)
        return replace(done, after=self.cached)

    with patch.object(SimulatedTarget, "look", look), patch.object(SimulatedTarget, "commit", commit):
        yield


@mutant("loader", sees=LOST)
def lost_commit_is_trusted() -> Iterator[None]:
    """An append without an answer counts as done; the table is not asked."""
    real = Commits._commit

    def commit_one(self: Commits, *args: Any) -> Any:
        try:
            return real(self, *args)
        except JobFailed:
            return None

    with patch.object(Commits, "_commit", commit_one):
        yield


@mutant("loader", sees=FALSE_ALARM)
def no_second_look_at_the_tables() -> Iterator[None]:
    """After entering, the loader does not ask the tables again whether its predecessor got further."""
    real = LoaderTables.look_at_all

    def look_once(self: Any, ledger: Ledger) -> dict[str, TableState]:
        if not hasattr(self, "looked"):
            self.looked = real(self, ledger)
        return self.looked

    with patch.object(LoaderTables, "look_at_all", look_once):
        yield
