"""Putting one planned range into its tables: decode, look, stage, decide the split, commit, the main table last.

Nothing is decided or committed before all rows of all tables are staged: whatever a table has against a row is said
while the row can still be sent elsewhere. A commit runs on the very version that was looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from buffer.ledger.plan import Plan
from buffer.model import BatchDescriptor
from buffer_delta.delta.state import Commit, TableState
from buffer_delta.delta.txn import Txn
from buffer_delta.errors import CommitSkipped, ConcurrentCommit
from buffer_delta.load import checks
from buffer_delta.load.hand import Hand
from buffer_delta.load.ports import Group, Rules, Staged, Target
from buffer_delta.load.tables import LoaderTables, Seen, Works

log = logging.getLogger(__name__)

COMMIT_TRIES_MAX = 10  # per table and attempt; then the attempt fails and is counted


class Commits:
    """`commit_all` may be called again for the same plan after any error: a table that has its part is skipped."""

    def __init__(
        self, hand: Hand, tables: LoaderTables, works: Works, rules: Rules, reached: Callable[[str], None]
    ) -> None:
        self._hand = hand
        self._tables = tables
        self._targets = tables.targets
        self._members = tables.members
        self._works = works
        self._rules = rules
        self._reached = reached

    def commit_all(self, plan: Plan, descriptors: Sequence[BatchDescriptor]) -> dict[str, Commit]:
        """Returns what each table's write did; one that held the range already, or got nothing, is not in it."""
        commits: dict[str, Commit] = {}
        seen = Seen(self._tables.look)
        part = Group(descriptors, plan.quarantined or {}, plan.entries)
        with self._works.on(plan, self._members).prepare(part, seen.__getitem__) as filled:
            self._reached("decoded")
            said = {*seen, *filled}  # who had a say: an operator who accepts something adds nobody to it
            rows = {**filled, **self._accepting(plan, filled, seen)}
            names = [name for name in self._members.of(plan) if name in rows]  # the main one is, and it is the last
            for name in self._targets if plan.tables is None else names:  # before anything of the range is in any
                self._check_may_commit(plan, name, seen[name])
            self.check_untried(plan, seen)
            txn = Txn(self._tables.app_id, plan.first, plan.last, self._hand.epoch, len(descriptors))
            staged = {
                name: self._targets[name].stage(rows[name], txn, seen[name])
                for name in names
                if seen[name].position != plan.last
            }
            self._reached("staged")
            states = {**seen, **{name: files.seen for name, files in staged.items()}}
            asked = self._targets if plan.tables is None else said
            plan = self._decided(plan, {name: state for name, state in states.items() if name in asked})
            self._hand.is_untried = False
            for name in names:
                commit = self._commit(self._targets[name], rows[name], plan, txn, staged.get(name))
                if commit is not None:
                    commits[name] = commit
                self._reached(f"committed {name}")
        return commits

    def check_untried(self, plan: Plan, tables: Mapping[str, TableState]) -> None:
        """No table can hold a range of which no commit was tried: a successor would have fenced us.

        If one does, another queue is loaded under the same app_id, and acking ours would drop what is in no table.
        """
        if self._hand.is_untried and plan.last in checks.positions(tables):
            self.take_back(plan)

    def take_back(self, plan: Plan) -> NoReturn:
        """Raises LedgerBehind once the plan has left the ledger, for the next start would take it for done.

        Raises Fenced instead: a successor has loaded it. And what the store says: without its answer nobody can tell.
        """
        self._hand.withdraw()
        raise checks.behind(self._tables.app_id, plan.last, plan.after)

    def _accepting(self, plan: Plan, filled: Collection[str], seen: Seen) -> dict[str, Any]:
        """Nothing, for each table that gets none and from which rows were taken back, where an operator accepts that:
        the empty commit stands after it, so that the next start does not refuse the table once more."""
        names = [name for name in self._members.of(plan) if name not in filled] if self._rules.accept_gaps else []
        return {name: self._targets[name].nothing(seen[name]) for name in names if seen[name].rewrite is not None}

    def _decided(self, plan: Plan, tables: Mapping[str, TableState]) -> Plan:
        """The plan with its split, which stands in the ledger before the first of several tables has a row of it.

        Also where all rows go to the main table: another configuration may see that in another way, and only the split
        keeps it from taking the range on.
        """
        if len(self._members.of(plan)) == 1:  # whichever commit comes first stands
            return plan
        rules = self._members.rules_of(plan, tables)
        if plan.quarantined is not None and plan.rules is not None:
            checks.same_rules(plan, rules)
            return plan
        # Refused if a newer loader entered: where a record goes is decided once, before any commit.
        return self._hand.revise(plan, plan.split(plan.quarantined or {}, plan.entries, rules), "split")

    def _commit(self, target: Target, rows: Any, plan: Plan, txn: Txn, staged: Staged | None) -> Commit | None:
        """Write until the table itself says that it holds the range. Returns what the write did, if there was one."""
        if staged is None:  # it held the range before
            return None
        commit, state = None, staged.seen
        for _ in range(COMMIT_TRIES_MAX):
            if state.position == plan.last:
                return commit
            self._check_may_commit(plan, target.name, state)
            try:
                files = staged or target.stage(rows, txn, state)
                commit = files.commit()
            except ConcurrentCommit as error:
                log.info("a concurrent commit on %s: %s; looking again", target.name, error)
                state = self._tables.look(target.name)
            else:
                state = self._tables.known[target.name] = commit.after
                if not self._rules.accept_gaps:
                    checks.not_hidden(target.name, commit)
                checks.not_elsewhere(plan, target.name, files.seen, commit)
            staged = None  # the files belong to the version that they were staged for
            self._reached(f"appended {target.name}")
        if state.position == plan.last:
            return commit
        raise CommitSkipped(
            f"{COMMIT_TRIES_MAX} commits to {target.name!r} as {plan.last} left it at {state.position}: "
            "something else writes under this app_id or undoes the commits",
            table=target.name,
            committed=state.position,
            last=plan.last,
        )

    def _check_may_commit(self, plan: Plan, name: str, state: TableState) -> None:
        is_main = name == self._members.main
        keys = (self._members.key(name), name)
        checks.may_commit(plan, keys, state, self._hand.epoch, is_main=is_main, accept_gaps=self._rules.accept_gaps)
