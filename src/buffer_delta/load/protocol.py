"""Exactly once: the order of steps that brings a queue into tables, whatever dies in between.

Knows no Spark: tables are `Target`s, turning batches into rows is `Work`. The loader drives it on Delta, the
simulator on a model of Delta's log, with the same code.

The danger: loader A plans 10..20 and stalls; B takes over, plans 10..25; A wakes and commits 10..20 as version 20;
B commits 10..25 as 25. Delta skips only versions it has passed, so 10..20 are there twice. Hence the plan is
written ahead (`Plans.plan`): B finds A's plan and replays exactly 10..20 under the same version, and whichever
commit comes second is skipped or conflicts.

What happens if the process dies right after …
    binding, claiming   nothing was promised; the next start does it again under a new epoch
    planning            the next loader replays that range
    staging             the same; files that no table knows are left, and perhaps an empty table
    deciding the split  the same, and it obeys the split
    one table's commit  the next loader skips that table and completes the others; the main one is the last
    the main commit     the next start reads its position, dequeues through it, goes on
    the ack             nothing is left to do

What a range costs: the manifest is read once, and not at all while batches that are known wait; the plan is one write
of the ledger; each table that gets rows, and the main one, is looked at once before its commit and once after it; the
ack is one write of the manifest. With several tables configured the split is one more write of the ledger. A table that
gets no rows costs nothing: no file, no commit, no look. The look before stands as late as it can: behind the decoding,
before the split is written and anything is committed.

The parts: `start.py` binds, checks and claims; `planning.py` writes the range ahead; `judge.py` decides on what fails
every time; `commits.py` puts the range into its tables; `hand.py` holds the plan between them. Here is their order.

Which tables a plan goes to, and in which order, is `members.py`. All rows of all tables are written (staged) before the
split is decided, and before the first of them is committed. So whatever a table has against a row, or a configuration
against a table, is said while the row can still be sent elsewhere, and while the configuration can still be changed.
What fails every time is searched for after `max_delivery_attempts` (`judge.py`), and the split says where it goes.

The commit runs on the very version that was looked at, so what comes between is a conflict, or reported right after.
Where the plan needs to know a table (its id), it is as the last look saw it; the look before the commit compares.

An older process that wakes up can commit only the range it planned, which its successor replayed or will find
committed; every other write of its own is refused, by the ledger's epoch or by the manifest's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from buffer.clock import Clock
from buffer.config import ConsumerConfig
from buffer.consume.consumer import Consumer
from buffer.errors import Fenced, LedgerLost, StorageError
from buffer.ledger.plan import Plan
from buffer.model import BatchDescriptor
from buffer.store.base import Store
from buffer_delta.delta.state import Commit, TableState
from buffer_delta.load import checks
from buffer_delta.load.commits import Commits
from buffer_delta.load.hand import Hand
from buffer_delta.load.judge import Judge
from buffer_delta.load.planning import Choose, Planning
from buffer_delta.load.plans import Plans
from buffer_delta.load.ports import Done, Rules, Target, Work
from buffer_delta.load.start import Start
from buffer_delta.load.tables import LoaderTables, Works

log = logging.getLogger(__name__)


def _unwatched(_step: str) -> None:
    """The default for `reached`."""


class LoadProtocol:
    """One loader's life: `open`, then `step` until told to stop, then `close`.

    After an error from `step` that is not Fenced, StateLost or Blocked, `step` may be called again: it repeats the
    same range as the next attempt. `reached` is told the name of every step that was just completed.
    """

    tables_type: ClassVar[type[LoaderTables]] = LoaderTables
    plans_type: ClassVar[type[Plans]] = Plans
    """Both for `buffer_delta.testing.older`, which has those of the release before."""

    def __init__(
        self,
        config: ConsumerConfig,
        store: Store,
        targets: Sequence[Target],
        work: Work,
        clock: Clock,
        rules: Rules,
        *,
        reached: Callable[[str], None] = _unwatched,
        open_table: Callable[[str], Target] | None = None,
    ) -> None:
        """`targets`: the main table first. `open_table` makes one of a name that only the ledger has."""
        journal = self.plans_type(store, config.manifest_path, clock, timeout_s=config.cas_timeout_s)
        self._tables = tables = self.tables_type(targets, open_table)
        works = Works.of(work, tables.targets)
        self._rules = rules
        self._reached = reached
        self._hand = hand = Hand(journal, reached)
        self._start = Start(config, store, clock, journal, tables, work, rules, reached)
        self._planning = Planning(hand, tables, works, rules)
        self._judge = Judge(hand, tables, works, rules)
        self._commits = Commits(hand, tables, works, rules, reached)

    @property
    def consumer(self) -> Consumer | None:
        """Ours between `open` and `close`."""
        return self._hand.consumer

    @property
    def app_id(self) -> str:
        """Empty before `open`."""
        return self._tables.app_id

    @property
    def epoch(self) -> int:
        return self._hand.epoch

    @property
    def committed(self) -> int:
        """Through which sequence everything is loaded."""
        return self._hand.committed

    @property
    def plan(self) -> Plan | None:
        """The range in hand, or planned last."""
        return self._hand.plan

    def tables(self) -> Mapping[str, TableState]:
        """Each table as the last look saw it."""
        return dict(self._tables.known)

    def open(self) -> None:
        """Bind, check, claim and enter. Refusals that concern state come before anything is claimed."""
        entered = self._start.enter()
        self._tables.app_id = entered.ledger.app_id or ""
        self._hand.take(entered.consumer, entered.ledger, entered.committed)
        try:
            self._start.check(entered)
        except BaseException:
            self.close()
            raise

    def step(self, choose: Choose, max_batches: int) -> Done | None:
        """Load one range; None if the queue has nothing new, or nothing that is worth a commit yet.

        `choose` says how many of the descriptors at hand (at most `max_batches`) make a good range; 0: wait for more.
        A range that is promised already does not wait.
        """
        if self._hand.must_withdraw and self._hand.plan is not None:
            self._commits.take_back(self._hand.plan)
        planned = self._planning.plan(choose, max_batches)
        if planned is None:
            return None
        try:
            return self._run(*planned)
        except Exception as error:
            self._raise_if_superseded(error)
            raise

    def _run(self, plan: Plan, descriptors: Sequence[BatchDescriptor]) -> Done:
        hand = self._hand
        checks.not_beyond(plan, self._tables.known, hand.epoch)
        self._commits.check_untried(plan, self._tables.known)
        commits: dict[str, Commit] = {}
        if self._tables.are_missing(plan):  # else only the ack is
            commits = self._commits.commit_all(self._judge.judged(plan, descriptors), descriptors)
        plan = hand.plan or plan
        named = self._tables.members.told_by_main(plan)
        if named != plan:
            plan = hand.revise(plan, named, "named")
        if not self._rules.accept_gaps:
            checks.held_by_the_same(plan, self._tables.members.by_keys(self._tables.known))
        # The location: if the manifest was put back meanwhile, that sequence may be another batch, in no table.
        hand.queue.ack_through(plan.last, location=descriptors[-1].location)
        self._reached("acked")
        hand.committed = plan.last
        self._planning.forget_through(plan.last)
        return Done(plan, descriptors, commits)

    def _raise_if_superseded(self, error: Exception) -> None:
        """A batch that is gone, a commit that fails: perhaps a successor was here. Then say that instead."""
        try:
            self._hand.check()
        except (Fenced, LedgerLost) as why:
            raise why from error
        except StorageError as trouble:
            log.warning("could not look at the ledger after a failure: %s", trouble)

    def close(self) -> None:
        """Give the consumer back. What was acked is dequeued already; nothing else is pending."""
        self._hand.give_back()
