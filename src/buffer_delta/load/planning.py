"""Which range comes next, and its descriptors: the one that is promised already, or a new one that is written ahead.

A promised range is repeated as it is, whoever promised it. A new one begins where the main table ends, has no holes,
and is in the ledger before anything of it is in a table. Descriptors that were read and not loaded wait in `ready`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from buffer.ledger.from_workers import all_finished, finished_runs
from buffer.ledger.plan import Plan
from buffer.model import BatchDescriptor
from buffer_delta.delta.state import NOTHING
from buffer_delta.load import checks
from buffer_delta.load.hand import Hand
from buffer_delta.load.ports import Rules
from buffer_delta.load.tables import LoaderTables, Works

log = logging.getLogger(__name__)

Choose = Callable[[Sequence[BatchDescriptor]], int]
Planned = tuple[Plan, Sequence[BatchDescriptor]]


class Planning:
    """The descriptors that were read, and what to do with them next."""

    def __init__(self, hand: Hand, tables: LoaderTables, works: Works, rules: Rules) -> None:
        self._hand = hand
        self._tables = tables
        self._works = works
        self._rules = rules
        self._ready: deque[BatchDescriptor] = deque()
        self._waits_for_more = False

    def plan(self, choose: Choose, max_batches: int) -> Planned | None:
        """A plan that stands in the ledger, with its descriptors; None: there is nothing to load yet.

        `choose` says how many of at most `max_batches` descriptors make a good new range; 0: wait for more.
        Raises SequenceGap where batches between the main table and the queue are gone, unless the rules accept that.
        """
        promised, found = self._hand.plan, None
        if promised is not None and promised.last > self._hand.committed:
            found = self._plan_again(promised)
        return found or self._plan_next(choose, max_batches)

    def forget_through(self, last: int) -> None:
        """These are loaded."""
        while self._ready and self._ready[0].sequence <= last:
            self._ready.popleft()

    # A range that is promised already

    def _plan_again(self, plan: Plan) -> Planned | None:
        """As one more attempt."""
        descriptors = self._take_through(plan)
        if not descriptors:  # only with accepted gaps: the whole range has left the queue
            return None
        self._tables.look_again()  # an earlier attempt, of ours or of another loader's, may have got far
        again = self._tables.members.as_ours(
            plan.tried_again(), self._works.digests(), main_alone=self._hand.is_for_main_alone
        )
        if self._rules.accept_gaps:  # else the next start would refuse the table that was accepted here
            # Those of other places are kept: the main table may have been moved, and is bound by its id there.
            again = replace(again, table_ids={**again.table_ids, **self._tables.ids()})
        return self._hand.revise(plan, again, "planned"), descriptors

    def _take_through(self, plan: Plan) -> Sequence[BatchDescriptor]:
        queue = self._hand.queue
        for known in (True, False):
            missing = plan.last - (self._ready[-1].sequence if self._ready else plan.first - 1)
            if missing > 0:
                self._ready.extend(queue.next_descriptors(missing, known=known))
        taken = [d for d in self._ready if plan.first <= d.sequence <= plan.last]
        if len(taken) == plan.last - plan.first + 1:
            return taken
        earliest = self._ready[0].sequence if self._ready else queue.known().next_sequence
        if self._rules.accept_gaps:  # under the same version: whoever else commits this range, it is there once
            log.warning("accepting the loss of sequences %d..%d", plan.first, min(plan.last, earliest - 1))
            return taken
        raise checks.gap(self._tables.members.main, self._hand.committed, earliest, plan.after)

    # A new one

    def _plan_next(self, choose: Choose, max_batches: int) -> Planned | None:
        hand, ready = self._hand, self._ready
        room = max(0, max_batches - len(ready))
        ready.extend(hand.queue.next_descriptors(room, known=not self._waits_for_more))
        if not ready:  # while something waits it need not be read: the last ack has seen what is there
            ready.extend(hand.queue.next_descriptors(max_batches))
        if not ready:
            return None
        first = ready[0].sequence
        if first != hand.committed + 1:
            self._check_gap(first)
        in_a_row = _in_a_row(ready)
        count = min(choose(in_a_row), len(in_a_row))
        self._waits_for_more = count < 1  # then the next call looks at the queue, whatever is known
        if self._waits_for_more:
            return None
        descriptors = list(in_a_row[:count])
        plan = Plan(
            after=hand.committed,
            first=first,
            last=descriptors[-1].sequence,
            digest=self._works.own.digest,
            table_ids=self._tables.ids(),
            tables=self._tables.members.keys,
        )
        is_alone = len(self._tables.targets) == 1
        return hand.plan_next(plan, last_location=descriptors[-1].location, main_alone=is_alone), descriptors

    def _check_gap(self, first: int) -> None:
        """What lies between the table and the queue was finished by workers with leases, or its loss is accepted."""
        hand = self._hand
        gap = hand.committed + 1, first - 1
        if all_finished(finished_runs(hand.queue.leases), *gap):
            log.info("sequences %d..%d were finished by workers with leases: they are in no table", *gap)
        elif self._rules.accept_gaps:
            log.warning("accepting the loss of sequences %d..%d", *gap)
        else:
            planned = hand.plan.last if hand.plan else NOTHING
            raise checks.gap(self._tables.members.main, hand.committed, first, planned)


def _in_a_row(descriptors: Iterable[BatchDescriptor]) -> tuple[BatchDescriptor, ...]:
    """Those before the first sequence that workers with leases have finished: a range has no holes."""
    row: list[BatchDescriptor] = []
    for descriptor in descriptors:
        if row and descriptor.sequence != row[-1].sequence + 1:
            break
        row.append(descriptor)
    return tuple(row)
