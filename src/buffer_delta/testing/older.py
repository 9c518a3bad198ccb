"""A loader of the release before: what it did otherwise, over today's code. For queues that are upgraded in mid-range.

It committed the main table first, and every table, with rows or without; the least position of all was the frontier;
plans named no tables; the queue was bound to all tables. A ledger that a newer release has written in it refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from buffer.errors import CorruptLedger
from buffer.ledger.binding import Binding
from buffer.ledger.plan import Ledger, Plan
from buffer_delta.delta.state import TableState
from buffer_delta.load.members import Digests, Members
from buffer_delta.load.plans import Plans
from buffer_delta.load.ports import Target
from buffer_delta.load.protocol import LoadProtocol
from buffer_delta.load.tables import LoaderTables
from buffer_delta.testing.delta_log import Row
from buffer_delta.testing.work import SimulatedWork


class OlderMembers(Members):
    def frontier(self, _ledger: Ledger, tables: Mapping[str, TableState]) -> int:
        return min(tables[name].position for name in self.names)

    def of(self, _plan: Plan) -> tuple[str, ...]:
        return self.names

    def as_ours(self, plan: Plan, digests: Digests, *, main_alone: bool) -> Plan:  # noqa: ARG002
        return replace(plan, digest=digests.own)

    def told_by_main(self, plan: Plan) -> Plan:
        return plan


class OlderBinding(Binding):
    def fits(self, ledger: Ledger) -> bool:
        if ledger.places or (ledger.plan is not None and ledger.plan.tables is not None):
            raise CorruptLedger("unknown field", location=None)
        return self.app_id in (None, ledger.app_id) and ledger.tables == self.tables


class OlderTables(LoaderTables):
    def _members_of(self, targets: Sequence[Target]) -> Members:
        names = tuple(target.name for target in targets)
        return OlderMembers(names, names)

    def binding(self, app_id: str | None) -> Binding:
        return OlderBinding(app_id, self.members.names)


class OlderPlans(Plans):
    def _replace(self, epoch: int, earlier: Plan | None, plan: Plan, decide: Callable[..., Ledger]) -> Plan:
        return super()._replace(epoch, earlier, replace(plan, tables=None), decide)


class OlderWork(SimulatedWork):
    def _with_rows(self, rows: dict[str, list[Row]]) -> Mapping[str, list[Row]]:
        return rows


class OlderProtocol(LoadProtocol):
    tables_type = OlderTables
    plans_type = OlderPlans
