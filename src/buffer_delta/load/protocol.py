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

Which tables a plan goes to, and in which order, is `members.py`. All rows of all tables are written (staged) before the
split is decided, and before the first of them is committed. So whatever a table has against a row, or a configuration
against a table, is said while the row can still be sent elsewhere, and while the configuration can still be changed.
What fails every time is searched for after `max_delivery_attempts` (`isolate.py`), and the split says where it goes.

The commit runs on the very version that was looked at, so what comes between is a conflict, or reported right after.
Where the plan needs to know a table (its id), it is as the last look saw it; the look before the commit compares.

An older process that wakes up can commit only the range it planned, which its successor replayed or will find
committed; every other write of its own is refused, by the ledger's epoch or by the manifest's.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from buffer.clock import Clock
from buffer.config import ConsumerConfig
from buffer.consume.consumer import Consumer
from buffer.errors import ContentionError, Fenced, LedgerLost, QueueBound, StorageError
from buffer.ledger.binding import Binding
from buffer.ledger.entries import count, listed, merged
from buffer.ledger.from_workers import all_finished, finished_runs
from buffer.ledger.plan import Blocked as BlockedState
from buffer.ledger.plan import Ledger, Plan, is_for_main_alone
from buffer.model import BatchDescriptor
from buffer.store.base import Store
from buffer_delta.delta.state import NOTHING, Commit, TableState
from buffer_delta.delta.txn import Txn
from buffer_delta.errors import Blocked, CommitSkipped, ConcurrentCommit, TableReplaced
from buffer_delta.load import checks
from buffer_delta.load.isolate import Search, TooMany, Undecided, Verdict
from buffer_delta.load.members import Digests, Members
from buffer_delta.load.plans import Plans
from buffer_delta.load.ports import Done, Group, Rules, Staged, Target, Work
from buffer_delta.load.trials import Trials

log = logging.getLogger(__name__)

STARTS_MAX = 20  # each restart of the start means that another loader made progress meanwhile
BLAMED_SHOWN_MAX = 10  # of entries in a message; the ledger has them all
COMMIT_TRIES_MAX = 10  # per table and attempt; then the attempt fails and is counted


def _unwatched(_step: str) -> None:
    """The default for `reached`."""


class LoadProtocol:
    """One loader's life: `open`, then `step` until told to stop, then `close`.

    After an error from `step` that is not Fenced, StateLost or Blocked, `step` may be called again: it repeats the
    same range as the next attempt. `reached` is told the name of every step that was just completed.
    """

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
        assert targets, "a loader needs a table"
        self._config = config
        self._store = store
        self._targets = {target.name: target for target in targets}
        assert len(self._targets) == len(targets), "every table has a name of its own"
        self._members = Members(tuple(self._targets), tuple(target.place for target in targets))
        self._open_table = open_table
        self._work = work
        self._alone = work if len(targets) == 1 else work.main_alone()
        self._clock = clock
        self._rules = rules
        self._reached = reached
        self._journal = Plans(store, config.manifest_path, clock, timeout_s=config.cas_timeout_s)
        self._ready: deque[BatchDescriptor] = deque()
        self._plan: Plan | None = None
        self._waits_for_more = False
        self._is_for_main_alone = False
        """The plan that was found when we entered."""
        self._known: dict[str, TableState] = {}
        """Each table as it was at our last look, for what may be a little old."""
        self.consumer: Consumer | None = None
        self.app_id = ""
        self.committed = NOTHING

    @property
    def epoch(self) -> int:
        assert self.consumer is not None, "open() comes first"
        return self.consumer.epoch

    @property
    def plan(self) -> Plan | None:
        """The range in hand, or planned last."""
        return self._plan

    def tables(self) -> Mapping[str, TableState]:
        """Each table as the last look saw it."""
        return dict(self._known)

    # Start

    def open(self) -> None:
        """Bind, check, claim and enter. Refusals that concern state come before anything is claimed."""
        for _ in range(STARTS_MAX):
            committed, binding = self._look_before_claiming()
            consumer = Consumer.new(self._config, committed if committed > NOTHING else None, clock=self._clock)
            try:
                self._reached("claimed")
                ledger = self._journal.enter(consumer.epoch, binding, taken_over=consumer.leases is not None)
                self._reached("entered")
                tables = self._look_at_all(ledger)
                found = self._members.frontier(ledger, tables)
            except BaseException:
                consumer.abandon()
                raise
            if found != committed:
                # An older loader committed between our look and our claim: look again.
                consumer.abandon()
                continue
            self.consumer, self.app_id, self.committed, self._plan = consumer, ledger.app_id or "", found, ledger.plan
            self._is_for_main_alone = is_for_main_alone(ledger)
            try:
                # Again: a loader may have blocked after our look, and an operator may rewrite a blocked plan.
                checks.not_blocked(ledger)
                skips = self._rules.accept_gaps
                checks.pending_plan(ledger, found, self._members.main, accept_gaps=skips)
                checks.same_configuration(ledger, found, tables, self._work.known_digests, accept_gaps=skips)
                checks.nothing_to_nowhere(ledger, found, has_dead_letters=self._rules.has_dead_letters)
            except BaseException:
                self.close()
                raise
            return
        raise Fenced(f"{STARTS_MAX} starts in a row found another loader at work; stop one of them")

    def _look_before_claiming(self) -> tuple[int, Binding]:
        binding = self._binding()
        if self._rules.adopt:
            assert self._rules.app_id, "LoaderConfig wants an app_id with adopt"
            # The queue first, the tables after: an ack comes after the commit, so a loader beside us makes no gap.
            first = 0 if self._rules.accept_gaps else checks.queue_start(self._store, self._config.manifest_path)
            tables = {name: target.look(self._rules.app_id) for name, target in self._targets.items()}
            main, position = self._members.main, tables[self._members.main].position
            checks.meets_queue(
                main, position, first, self._journal.finished()
            )  # before it is bound to a table that it cannot go on with
            ledger = self._journal.adopt(
                binding,
                position,
                ahead=self._members.ahead(tables),
                digest=self._work.digest,
                may_complete=self._rules.accept_gaps or not self._rules.has_dead_letters,
            )
        else:
            ledger, binding = self._bound(binding)
        assert ledger.app_id is not None, "a bound ledger names its app"
        self._reached("bound")
        # The tables first, the ledger after: plans are written ahead, so the ledger is never behind them.
        tables = self._look_at_all(ledger)
        ledger = self._journal.read() or ledger
        if not tables.keys() >= set(self._members.others(ledger)):  # planned by an older release since we looked
            tables = self._look_at_all(ledger)
        committed = self._members.frontier(ledger, tables)
        checks.not_blocked(ledger)
        checks.ledger_knows(ledger, max(checks.positions(tables)))
        checks.not_inside(ledger.plan, tables)
        skips = self._rules.accept_gaps
        checks.same_configuration(ledger, committed, tables, self._work.known_digests, accept_gaps=skips)
        checks.nothing_to_nowhere(ledger, committed, has_dead_letters=self._rules.has_dead_letters)
        checks.same_queue(ledger, self._store, self._config.manifest_path)
        if not self._rules.accept_gaps:
            self._check_same_tables(ledger, tables)
        return committed, replace(binding, app_id=ledger.app_id)

    def _binding(self) -> Binding:
        main = self._targets[self._members.main]
        return Binding(self._rules.app_id, self._members.names, self._members.keys, main.identity())

    def _bound(self, binding: Binding) -> tuple[Ledger, Binding]:
        """… and the binding that fits it. A main table that is elsewhere now tells by what it has loaded that it is
        the one, where its id is not known yet: the first plan stands before there is a table."""
        try:
            return self._journal.bind(binding), binding
        except QueueBound:
            ledger = self._journal.read()
            if ledger is None or ledger.app_id is None:
                raise
            position = self._targets[self._members.main].look(ledger.app_id).position
            binding = replace(binding, main_position=position)
            return self._journal.bind(binding), binding

    def _check_same_tables(self, ledger: Ledger, tables: Mapping[str, TableState]) -> None:
        """The plan may be of a loader that created a table after our look: then look again, now after the plan."""
        try:
            checks.same_tables(ledger.plan, self._by_key(tables))
        except TableReplaced:
            checks.same_tables(ledger.plan, self._by_key(self._look_at_all(ledger)))

    # Loop

    def step(self, choose: Callable[[Sequence[BatchDescriptor]], int], max_batches: int) -> Done | None:
        """Load one range; None if the queue has nothing new, or nothing that is worth a commit yet.

        `choose` says how many of the descriptors at hand (at most `max_batches`) make a good range; 0: wait for more.
        A range that is promised already does not wait.
        """
        pending = self._plan is not None and self._plan.last > self.committed
        plan, descriptors = self._plan_again(self._plan) if pending and self._plan else (None, ())
        if plan is None:
            plan, descriptors = self._plan_next(choose, max_batches)
        if plan is None:
            return None
        try:
            return self._run(plan, descriptors)
        except Exception as error:
            self._raise_if_superseded(error)
            raise

    def _raise_if_superseded(self, error: Exception) -> None:
        """A batch that is gone, a commit that fails: perhaps a successor was here. Then say that instead."""
        try:
            self._journal.check(self.epoch)
        except (Fenced, LedgerLost) as why:
            raise why from error
        except StorageError as trouble:
            log.warning("could not look at the ledger after a failure: %s", trouble)

    def _plan_again(self, plan: Plan) -> tuple[Plan | None, Sequence[BatchDescriptor]]:
        """The range that is promised already, as one more attempt."""
        descriptors = self._take_through(plan)
        if not descriptors:  # only with accepted gaps: the whole range has left the queue
            return None, ()
        self._look_again()  # an earlier attempt, of ours or of another loader's, may have got far
        digests = Digests(self._work.digest, self._alone.digest)
        again = self._members.as_ours(plan.tried_again(), digests, main_alone=self._is_for_main_alone)
        if self._rules.accept_gaps:  # else the next start would refuse the table that was accepted here
            # Those of other places are kept: the main table may have been moved, and is bound by its id there.
            again = replace(again, table_ids={**again.table_ids, **self._table_ids()})
        self._plan = self._journal.revise(self.epoch, plan, again)
        self._reached("planned")
        return self._plan, descriptors

    def _take_through(self, plan: Plan) -> Sequence[BatchDescriptor]:
        assert self.consumer is not None
        for known in (True, False):
            missing = plan.last - (self._ready[-1].sequence if self._ready else plan.first - 1)
            if missing > 0:
                self._ready.extend(self.consumer.next_descriptors(missing, known=known))
        taken = [d for d in self._ready if plan.first <= d.sequence <= plan.last]
        if len(taken) == plan.last - plan.first + 1:
            return taken
        earliest = self._ready[0].sequence if self._ready else self.consumer.known().next_sequence
        if self._rules.accept_gaps:  # under the same version: whoever else commits this range, it is there once
            log.warning("accepting the loss of sequences %d..%d", plan.first, min(plan.last, earliest - 1))
            return taken
        raise checks.gap(self._members.main, self.committed, earliest, plan.after)

    def _plan_next(
        self, choose: Callable[[Sequence[BatchDescriptor]], int], max_batches: int
    ) -> tuple[Plan | None, Sequence[BatchDescriptor]]:
        assert self.consumer is not None
        room = max(0, max_batches - len(self._ready))
        self._ready.extend(self.consumer.next_descriptors(room, known=not self._waits_for_more))
        if not self._ready:  # while something waits it need not be read: the last ack has seen what is there
            self._ready.extend(self.consumer.next_descriptors(max_batches))
        if not self._ready:
            return None, ()
        first = self._ready[0].sequence
        if first != self.committed + 1:
            self._check_gap(first)
        in_a_row = _in_a_row(self._ready)
        count = min(choose(in_a_row), len(in_a_row))
        self._waits_for_more = count < 1  # then the next call looks at the queue, whatever is known
        if self._waits_for_more:
            return None, ()
        descriptors = [self._ready[index] for index in range(count)]
        plan = Plan(
            after=self.committed,
            first=first,
            last=descriptors[-1].sequence,
            digest=self._work.digest,
            table_ids=self._table_ids(),
            tables=self._members.keys,
        )
        self._is_for_main_alone = len(self._targets) == 1
        self._plan = self._journal.plan(
            self.epoch,
            self._plan,
            plan,
            next_sequence=self.consumer.known().next_sequence,
            last_location=descriptors[-1].location,
        )
        self._reached("planned")
        return self._plan, descriptors

    def _check_gap(self, first: int) -> None:
        """What lies between the table and the queue was finished by workers with leases, or its loss is accepted."""
        assert self.consumer is not None
        gap = self.committed + 1, first - 1
        if all_finished(finished_runs(self.consumer.leases), *gap):
            log.info("sequences %d..%d were finished by workers with leases: they are in no table", *gap)
        elif self._rules.accept_gaps:
            log.warning("accepting the loss of sequences %d..%d", *gap)
        else:
            raise checks.gap(self._members.main, self.committed, first, self._plan.last if self._plan else NOTHING)

    def _table_ids(self) -> dict[str, str | None]:
        return {self._members.key(name): self._known[name].table_id for name in self._targets}

    def _by_key(self, tables: Mapping[str, TableState]) -> dict[tuple[str, ...], TableState]:
        """What plans call the tables: where they are, and, those of older releases, as they are spelled."""
        keys = dict(zip(self._members.names, self._members.keys, strict=True))
        return {(keys.get(name, name), name): state for name, state in tables.items()}

    # One range

    def _run(self, plan: Plan, descriptors: Sequence[BatchDescriptor]) -> Done:
        assert self.consumer is not None
        checks.not_beyond(plan, self._known, self.epoch)
        commits: dict[str, Commit] = {}
        if self._is_missing(plan):  # else only the ack is
            if plan.attempts > self._rules.max_delivery_attempts and self._may_decide(plan):
                plan = self._isolate(plan, descriptors)
            commits = self._commit_all(plan, descriptors)
        plan = self._told_by_main(self._plan or plan)
        # The location: if the manifest was put back meanwhile, that sequence may be another batch, in no table.
        self.consumer.ack_through(plan.last, location=descriptors[-1].location)
        self._reached("acked")
        self.committed = plan.last
        while self._ready and self._ready[0].sequence <= plan.last:
            self._ready.popleft()
        return Done(plan, descriptors, commits)

    def _is_missing(self, plan: Plan) -> bool:
        telling = self._targets if plan.tables is None else (self._members.main,)
        return any(self._known[name].position < plan.last for name in telling)

    def _told_by_main(self, plan: Plan) -> Plan:
        """A plan of the release before, now that all tables hold their part of it: from here on the main one tells."""
        if plan.tables is None:
            self._plan = plan = self._journal.revise(self.epoch, plan, replace(plan, tables=self._members.keys))
            self._reached("named")
        return plan

    def _commit_all(self, plan: Plan, descriptors: Sequence[BatchDescriptor]) -> dict[str, Commit]:
        commits: dict[str, Commit] = {}
        seen: dict[str, TableState] = {}

        def see(name: str) -> TableState:
            if name not in seen:
                seen[name] = self._look(name)
            return seen[name]

        with self._work_of(plan).prepare(_whole(plan, descriptors), see) as filled:
            self._reached("decoded")
            rows = {**filled, **self._accepting(plan, filled, see)}
            names = [name for name in self._members.of(plan) if name in rows]  # the main one is, and it is the last
            for name in self._targets if plan.tables is None else names:  # before anything of the range is in any
                self._check_may_commit(plan, name, see(name))
            txn = self._txn(plan, len(descriptors))
            staged = {
                name: self._targets[name].stage(rows[name], txn, seen[name])
                for name in names
                if seen[name].position != plan.last
            }
            self._reached("staged")
            plan = self._decided(plan, seen | {name: files.seen for name, files in staged.items()})
            for name in names:
                commit = self._commit(self._targets[name], rows[name], plan, txn, staged.get(name))
                if commit is not None:
                    commits[name] = commit
                self._reached(f"committed {name}")
        return commits

    def _accepting(self, plan: Plan, filled: Collection[str], see: Callable[[str], TableState]) -> dict[str, Any]:
        """Nothing, for each table that gets none and from which rows were taken back, where an operator accepts that:
        the empty commit stands after it, so that the next start does not refuse the table once more."""
        names = [name for name in self._members.of(plan) if name not in filled] if self._rules.accept_gaps else []
        return {name: self._targets[name].nothing(see(name)) for name in names if see(name).rewrite is not None}

    def _work_of(self, plan: Plan) -> Work:
        return self._work if len(self._members.of(plan)) == len(self._targets) else self._alone

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
        self._plan = self._journal.revise(self.epoch, plan, plan.split(plan.quarantined or {}, plan.entries, rules))
        self._reached("split")
        return self._plan

    def _txn(self, plan: Plan, entries: int) -> Txn:
        return Txn(self.app_id, plan.first, plan.last, self.epoch, entries)

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
                commit = (staged or target.stage(rows, txn, state)).commit()
            except ConcurrentCommit as error:
                log.info("a concurrent commit on %s: %s; looking again", target.name, error)
                state = self._look(target.name)
            else:
                state = self._known[target.name] = commit.after
                if not self._rules.accept_gaps:
                    checks.not_hidden(target.name, commit)
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
        checks.may_commit(plan, keys, state, self.epoch, is_main=is_main, accept_gaps=self._rules.accept_gaps)

    # What fails every time

    def _may_decide(self, plan: Plan) -> bool:
        """Whether more of the range may be set aside.

        With several tables not once the split is final: one of them may hold a row that would be a dead letter then.
        With one, whichever commit comes first stands.
        """
        if plan.quarantined is None or len(self._members.of(plan)) == 1:
            return True
        # What an operator gave up, or an earlier search, may not be all. Nothing is committed before the rules stand in
        # the plan; where adopting made it, or an older release that wrote none, a table tells.
        return plan.rules is None and max(checks.positions(self._known)) < plan.first

    def _isolate(self, plan: Plan, descriptors: Sequence[BatchDescriptor]) -> Plan:
        """After too many attempts: find what is to blame, and do with it what the rules say."""
        lab = Trials(self._work_of(plan), self._targets, self._txn(plan, 0), self._look)
        search = Search(lab, _whole(plan, descriptors))
        try:
            found, is_complete = search.run(), True
        except Undecided as why:  # what is decided stays decided: a later attempt will tell
            log.warning("nothing is decided on %d..%d: %s", plan.first, plan.last, why)
            return plan
        except TooMany:
            found, is_complete = search.found, False
        self._journal.check(self.epoch)  # a missing batch may mean that a successor is done with it
        if is_complete and not found:
            return plan
        batches = {**(plan.quarantined or {}), **found.batches}
        entries = merged(plan.entries, found.entries)
        if is_complete and self._rules.dlq_strategy == "skip" and self._goes_to_all(plan):
            log.warning("setting aside (see `buffer-delta dead-letters list`): %s", _some(found))
            self._plan = self._journal.revise(self.epoch, plan, plan.split(batches, entries))
            self._reached("split")
            return self._plan
        raise self._blocked(
            plan, found, BlockedState(plan.first, plan.last, _why(plan, found, is_complete), batches, entries)
        )

    def _goes_to_all(self, plan: Plan) -> bool:
        """Also to the table for what is set aside: a plan may be older than that."""
        return len(self._members.of(plan)) == len(self._targets)

    def _blocked(self, plan: Plan, found: Verdict, state: BlockedState) -> Blocked:
        try:
            self._journal.block(self.epoch, state)
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

    # Looking

    def _look(self, name: str) -> TableState:
        state = self._known[name] = self._targets[name].look(self.app_id)
        return state

    def _look_at_all(self, ledger: Ledger) -> dict[str, TableState]:
        """Our tables, and those that a plan of an older release waits for."""
        app_id = ledger.app_id or ""
        self._known = {name: target.look(app_id) for name, target in self._targets.items()}
        others = self._members.others(ledger)
        assert not others or self._open_table is not None, "a loader can open what its ledger names"
        return self._known | {name: self._open_table(name).look(app_id) for name in others if self._open_table}

    def _look_again(self) -> None:
        for name in self._targets:
            self._look(name)

    # End

    def close(self) -> None:
        """Give the consumer back. What was acked is dequeued already; nothing else is pending."""
        if self.consumer is not None:
            self.consumer.abandon()
            self.consumer = None


def _whole(plan: Plan, descriptors: Sequence[BatchDescriptor]) -> Group:
    """The range, without what its plan sets aside."""
    return Group(descriptors, plan.quarantined or {}, plan.entries)


def _in_a_row(descriptors: Iterable[BatchDescriptor]) -> tuple[BatchDescriptor, ...]:
    """Those before the first sequence that workers with leases have finished: a range has no holes."""
    row: list[BatchDescriptor] = []
    for descriptor in descriptors:
        if row and descriptor.sequence != row[-1].sequence + 1:
            break
        row.append(descriptor)
    return tuple(row)


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
