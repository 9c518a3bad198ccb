"""Which tables a plan goes to, and which of them tells how far the queue is loaded. Pure.

**The main table commits last, and always; the others before it, and only where the range has rows for them.** So the
main table's position alone is the frontier: what it has, all have. Another table that is ahead of it holds its part of
the plan in hand; one that is behind got nothing, or joined later.

**A plan is finished with the tables that it names**; the loader's own set begins with the next one. Which plans another
set may meet, and what becomes of them (`as_ours`):

    to the main table alone        it stays so. There is no split: an older loader, which knows of no other table, may
                                   commit all of the range into the main one at any moment. Had a successor sent a
                                   record of it to a table that joined, it would be in both
    to several, not decided yet    ours from now on. Nothing of it can be in a table or get there: the split is written
                                   before the first commit, and an older epoch cannot write it
    to several, decided            as it was begun, by the same configuration; another one is refused (`RouteChanged`)

**Plans of the release before** name no tables, and were committed main table first. Such a plan is done when all tables
that the ledger names are at its end (`frontier`); a loader that has finished it says so by naming the tables, before
the ack. If it dies before that, the batches are still there and the range is gone through again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from buffer.ledger.plan import Ledger, Plan, waits_for
from buffer_delta.delta.rules import digest_of
from buffer_delta.delta.state import TableState


@dataclass(frozen=True, slots=True)
class Members:
    """The tables of one loader, the main one first."""

    names: tuple[str, ...]
    keys: tuple[str, ...]
    """What plans call them, in the same order: where they are."""

    @property
    def main(self) -> str:
        return self.names[0]

    def key(self, name: str) -> str:
        return self.keys[self.names.index(name)]

    def by_keys(self, tables: Mapping[str, TableState]) -> dict[tuple[str, ...], TableState]:
        """By what plans call the tables: where they are, and, those of older releases, as they are spelled."""
        keys = dict(zip(self.names, self.keys, strict=True))
        return {(keys.get(name, name), name): state for name, state in tables.items()}

    # How far

    def frontier(self, ledger: Ledger, tables: Mapping[str, TableState]) -> int:
        """Through which sequence everything is loaded. `tables` are ours, and those that `waits_for` names."""
        return min(tables[name].position for name in (self.main, *waits_for(ledger)[1:]))

    def others(self, ledger: Ledger) -> list[str]:
        """The tables that `waits_for` names and that are not ours. The main one is: it is bound, wherever it is now."""
        return [name for name in waits_for(ledger)[1:] if name not in self.names]

    def ahead(self, tables: Mapping[str, TableState]) -> list[int]:
        """The positions of tables that hold more than the main one."""
        main = tables[self.main].position
        return [state.position for state in tables.values() if state.position > main]

    # Into which

    def of(self, plan: Plan) -> tuple[str, ...]:
        """Our tables that a plan which we have taken on goes to, in the order of their commits: the main one last."""
        is_alone = plan.tables is not None and len(plan.tables) == 1
        return (self.main,) if is_alone else (*self.names[1:], self.main)

    def are_all_in(self, plan: Plan) -> bool:
        """Whether it goes to all our tables: it may be older than some of them."""
        return len(self.of(plan)) == len(self.names)

    def as_ours(self, plan: Plan, digests: Digests, *, main_alone: bool) -> Plan:
        """A plan that was found, as we take it on; see above."""
        if main_alone:
            return replace(plan, tables=self.keys[:1], digest=digests.alone)
        if plan.quarantined is not None:
            return plan
        return replace(plan, tables=self.keys, digest=digests.own)

    def told_by_main(self, plan: Plan) -> Plan:
        """A plan of the release before, now that all tables hold their part of it: from here on the main one tells."""
        return replace(plan, tables=self.keys) if plan.tables is None else plan

    # Under which rules

    def rules_of(self, plan: Plan, seen: Mapping[str, TableState]) -> str:
        """Names the rules of the tables that had a say in where the plan's records go."""
        if plan.tables is None:  # as the release before did
            return digest_of({name: seen[name].rules for name in self.names})
        # The main table is the one that is bound, wherever it was moved to.
        keys = {name: "main" if name == self.main else self.key(name) for name in seen}
        return digest_of({keys[name]: state.rules for name, state in seen.items()})


@dataclass(frozen=True, slots=True)
class Digests:
    """Names for a loader's configuration."""

    own: str
    alone: str
    """… without all tables but the main one."""
