"""After too many attempts: what is to blame for it, and what the rules say is done with that.

The search itself is `isolate.py`, on the trials of `trials.py`. What it finds is set aside by the split of the plan, or
the range is blocked for an operator. Where it can tell nothing, nothing is decided, and a later attempt asks again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from buffer.errors import ContentionError, StorageError
from buffer.ledger.entries import count, listed, merged
from buffer.ledger.plan import Blocked as BlockedState
from buffer.ledger.plan import Plan
from buffer.model import BatchDescriptor
from buffer_delta.delta.txn import Txn
from buffer_delta.errors import Blocked
from buffer_delta.load import checks
from buffer_delta.load.hand import Hand
from buffer_delta.load.isolate import Search, TooMany, Undecided, Verdict
from buffer_delta.load.ports import Group, Rules
from buffer_delta.load.tables import LoaderTables, Works
from buffer_delta.load.trials import Trials

log = logging.getLogger(__name__)

BLAMED_SHOWN_MAX = 10  # of entries in a message; the ledger has them all


class Judge:
    """Asked before each attempt; most of the time there is nothing to judge."""

    def __init__(self, hand: Hand, tables: LoaderTables, works: Works, rules: Rules) -> None:
        self._hand = hand
        self._tables = tables
        self._works = works
        self._rules = rules

    def judged(self, plan: Plan, descriptors: Sequence[BatchDescriptor]) -> Plan:
        """The plan, with what is to blame set aside if that is due. Raises Blocked."""
        if plan.attempts > self._rules.max_delivery_attempts and self._may_decide(plan):
            return self._isolate(plan, descriptors)
        return plan

    def _may_decide(self, plan: Plan) -> bool:
        """Whether more of the range may be set aside.

        With several tables not once the split is final: one of them may hold a row that would be a dead letter then.
        With one, whichever commit comes first stands.
        """
        if plan.quarantined is None or len(self._tables.members.of(plan)) == 1:
            return True
        # What an operator gave up, or an earlier search, may not be all. Nothing is committed before the rules stand in
        # the plan; where adopting made it, or an older release that wrote none, a table tells.
        return plan.rules is None and max(checks.positions(self._tables.known)) < plan.first

    def _isolate(self, plan: Plan, descriptors: Sequence[BatchDescriptor]) -> Plan:
        search = Search(self._lab(plan), Group(descriptors, plan.quarantined or {}, plan.entries))
        try:
            found, is_complete = search.run(), True
        except Undecided as why:  # what is decided stays decided: a later attempt will tell
            log.warning("nothing is decided on %d..%d: %s", plan.first, plan.last, why)
            return plan
        except TooMany:
            found, is_complete = search.found, False
        self._hand.check()  # a missing batch may mean that a successor is done with it
        if is_complete and not found:
            return plan
        batches = {**(plan.quarantined or {}), **found.batches}
        entries = merged(plan.entries, found.entries)
        if is_complete and self._rules.dlq_strategy == "skip" and self._goes_to_all(plan):
            log.warning("setting aside (see `buffer-delta dead-letters list`): %s", _some(found))
            return self._hand.revise(plan, plan.split(batches, entries), "split")
        raise self._blocked(
            plan, found, BlockedState(plan.first, plan.last, _why(plan, found, is_complete), batches, entries)
        )

    def _lab(self, plan: Plan) -> Trials:
        tables = self._tables
        txn = Txn(tables.app_id, plan.first, plan.last, self._hand.epoch, 0)
        return Trials(self._works.on(plan, tables.members), tables.targets, txn, tables.look)

    def _goes_to_all(self, plan: Plan) -> bool:
        """Also to the table for what is set aside: a plan may be older than that."""
        return self._tables.members.are_all_in(plan)

    def _blocked(self, plan: Plan, found: Verdict, state: BlockedState) -> Blocked:
        """The error, once the ledger says it too."""
        try:
            self._hand.block(state)
        except (ContentionError, StorageError) as error:
            # It may stand there or land later, for an operator to act on: only a new start may go on from here.
            log.warning(
                "could not tell whether the ledger says that %d..%d is blocked: %s", plan.first, plan.last, error
            )
        joined = ""
        if not self._goes_to_all(plan):
            joined = (
                ". The range was begun for the main table alone: to load it with the tables that joined since, the "
                "dead letters for one, stop every loader, run `buffer-delta unblock --replan`, and start one"
            )
        return Blocked(
            f"batches {plan.first}..{plan.last}: {state.reason}: {_some(found)}. Fix what is wrong and run "
            f"`buffer-delta unblock`, or give these up with `buffer-delta unblock --skip`{joined}",
            first=plan.first,
            last=plan.last,
            attempts=plan.attempts,
            batches=tuple(sorted(found.batches)),
            entries=tuple((sequence, index) for sequence, index, _ in listed(found.entries)),
        )


def _why(plan: Plan, found: Verdict, is_complete: bool) -> str:
    """Why the range is blocked, in short."""
    entries = count(found.entries)
    what = [f"{len(found.batches)} of its batches"] if found.batches else []
    what += [f"{entries} of its entries"] if entries or not what else []
    if is_complete:
        return f"{' and '.join(what)} cannot be loaded after {plan.attempts - 1} attempts"
    return (
        f"{' and '.join(what)}, and more than can be told apart one by one, cannot be loaded: look at the transform, "
        "the schema and the table first"
    )


def _some(found: Verdict) -> str:
    lines = list(found.lines())
    more = len(lines) - BLAMED_SHOWN_MAX
    return "; ".join(lines[:BLAMED_SHOWN_MAX]) + (f"; and {more} more" if more > 0 else "")
