"""Breaks of the rules for several tables: which come first, which tell how far the queue is, who joins when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from buffer.ledger.plan import Ledger, Plan
from buffer_delta.delta.state import TableState
from buffer_delta.load import checks, members
from buffer_delta.load.commits import Commits
from buffer_delta.load.judge import Judge
from buffer_delta.load.members import Digests, Members
from buffer_delta.load.planning import Planning
from buffer_delta.load.tables import LoaderTables
from buffer_delta.testing.older import OlderMembers
from tests.simulation.loader_mutants import _accept
from tests.simulation.mutants import FALSE_ALARM, LOST, STUCK, TWICE, mutant

REFUSED = "LedgerBehind|SequenceGap|Fenced"


def _own_set(self: Members, plan: Plan, digests: Digests, *, main_alone: bool) -> Plan:
    """Whatever the plan names."""
    if plan.quarantined is not None:
        return plan
    return replace(plan, tables=self.keys, digest=digests.own)


@mutant("loader", sees=LOST)
def main_table_is_first() -> Iterator[None]:
    """Its position says that all tables have the range, and they do not yet."""

    def of(self: Members, plan: Plan) -> tuple[str, ...]:
        names = real(self, plan)
        return (names[-1], *names[:-1])

    real = Members.of
    with patch.object(Members, "of", of):
        yield


@mutant("loader", sees=f"{TWICE}|{LOST}", within=4000)
def pending_plan_is_run_with_the_own_set() -> Iterator[None]:
    """An older loader of one table commits the record that its successor has sent to a table that joined."""
    with patch.object(Members, "as_ours", _own_set):
        yield


@mutant("loader", sees=f"{TWICE}|{LOST}|{FALSE_ALARM}|LedgerBehind")
def replay_is_widened() -> Iterator[None]:
    """The successor adds what came meanwhile to the range that it replays."""
    real = Planning._plan_again

    def again(self: Planning, plan: Plan) -> Any:
        hand = self._hand
        self._ready.extend(hand.queue.next_descriptors(plan.last + 2 - hand.committed, known=False))
        further = [d for d in self._ready if d.sequence == plan.last + 1]
        if not further or plan.quarantined is not None:
            return real(self, plan)
        wider = replace(plan, last=plan.last + 1)
        hand.plan = hand._journal.plan(
            hand.epoch,
            plan,
            wider,
            next_sequence=hand.queue.known().next_sequence,
            last_location=further[0].location,
        )
        return real(self, wider)

    with patch.object(Planning, "_plan_again", again):
        yield


@mutant("loader", sees=f"{FALSE_ALARM}|{STUCK}|QueueBound")
def frontier_is_the_least_position() -> Iterator[None]:
    """A table that got nothing counts as one that lacks its part."""
    with patch.object(Members, "frontier", OlderMembers.frontier):
        yield


@mutant("loader", sees=f"{LOST}|{REFUSED}")
def frontier_is_the_largest_position() -> Iterator[None]:
    """A table that has its part of the plan in hand speaks for the main one."""

    def frontier(self: Members, _ledger: Ledger, tables: Mapping[str, TableState]) -> int:
        return max(tables[name].position for name in self.names)

    with patch.object(Members, "frontier", frontier):
        yield


@mutant("loader", sees=f"{TWICE}|{LOST}")
def split_is_by_the_older_configuration() -> Iterator[None]:
    """Whoever finds a range that was begun under another configuration goes on with its own, and so does the other."""
    with patch.object(checks, "same_configuration", _accept):
        yield


@mutant("loader", sees=f"{TWICE}|{LOST}", within=4000)
def split_is_changed_afterwards() -> Iterator[None]:
    """A loader that takes a decided range over decides again, though a table may have its part."""

    def as_ours(self: Members, plan: Plan, digests: Digests, *, main_alone: bool) -> Plan:
        return real(self, plan if main_alone else replace(plan, **_UNDECIDED), digests, main_alone=main_alone)

    real = Members.as_ours
    with patch.object(Members, "as_ours", as_ours), patch.object(checks, "same_configuration", _accept):
        yield


_UNDECIDED: dict[str, Any] = {"quarantined": None, "entries": {}, "rules": None}


@mutant("loader", sees=LOST, within=8000)
def older_plans_are_told_by_the_main_table() -> Iterator[None]:
    """A plan of the release before, which committed the main table first, counts as done with that."""

    def nothing(_ledger: Ledger) -> tuple[str, ...]:
        return ()

    def are_missing(self: LoaderTables, plan: Plan) -> bool:
        return self.known[self.members.main].position < plan.last

    with (
        patch.object(members, "waits_for", nothing),
        patch.object(LoaderTables, "are_missing", are_missing),
    ):
        yield


@mutant("loader", sees=LOST, within=4000)
def set_aside_for_a_table_that_joined_too_late() -> Iterator[None]:
    """Entries of a range that goes to the main table alone are set aside, for dead letters that it does not have."""
    with patch.object(Judge, "_goes_to_all", lambda _self, _plan: True):
        yield


@mutant("loader", sees=f"{TWICE}|{LOST}")
def split_is_written_only_where_another_table_gets_rows() -> Iterator[None]:
    """Another configuration sends a record of the range elsewhere, and nothing tells it that the range was begun."""
    real = Commits._decided

    def decided(self: Commits, plan: Plan, tables: Mapping[str, TableState]) -> Plan:
        return plan if set(tables) == {self._members.main} else real(self, plan, tables)

    with patch.object(Commits, "_decided", decided):
        yield
