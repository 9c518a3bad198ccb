"""Exactly once: the order of steps that brings a queue into tables, whatever dies in between.

Knows no Spark: tables are `Target`s, turning batches into rows is `Work`. The loader drives it on Delta, the
simulator on a model of Delta's log, with the same code.

The danger: loader A plans 10..20 and stalls; B takes over, plans 10..25; A wakes and commits 10..20 as version 20;
B commits 10..25 as 25. Delta skips only versions it has passed, so 10..20 are there twice. Hence the plan is
written ahead (`Journal.plan`): B finds A's plan and replays exactly 10..20 under the same version, and whichever
commit comes second is skipped or conflicts.

What happens if the process dies right after …
    binding, claiming   nothing was promised; the next start does it again under a new epoch
    planning            the next loader replays that range
    deciding the split  the same, and it obeys the split
    one table's commit  the next loader skips that table and completes the others
    the last commit     the next start reads the tables, dequeues through the committed sequence, goes on
    the ack             nothing is left to do

An older process that wakes up can commit only the range it planned, which its successor replayed or will find
committed; every other write of its own is refused, by the ledger's epoch or by the manifest's.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from buffer.clock import Clock
from buffer.config import ConsumerConfig
from buffer.consumer import Consumer
from buffer.errors import ContentionError, Fenced, LedgerLost, StorageError
from buffer.ledger import Blocked as BlockedState
from buffer.ledger import Plan
from buffer.model import BatchDescriptor
from buffer.store.base import Store
from buffer_delta import checks
from buffer_delta.contracts import NOTHING, Done, Rules, Target, Work
from buffer_delta.errors import Blocked, CommitSkipped, ConcurrentCommit
from buffer_delta.journal import Journal

log = logging.getLogger(__name__)

STARTS_MAX = 20  # each restart of the start means that another loader made progress meanwhile
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
    ) -> None:
        assert targets, "a loader needs a table"
        self._config = config
        self._store = store
        self._targets = targets
        self._names = [target.name for target in targets]
        self._work = work
        self._clock = clock
        self._rules = rules
        self._reached = reached
        self._journal = Journal(store, config.manifest_path, clock, timeout_s=config.cas_timeout_s)
        self._ready: deque[BatchDescriptor] = deque()
        self._plan: Plan | None = None
        self.consumer: Consumer | None = None
        self.app_id = ""
        self.committed = NOTHING

    @property
    def epoch(self) -> int:
        assert self.consumer is not None, "open() comes first"
        return self.consumer.epoch

    # Start

    def open(self) -> None:
        """Bind, check, claim and enter. Refusals that concern state come before anything is claimed."""
        for _ in range(STARTS_MAX):
            committed, app_id = self._look_before_claiming()
            consumer = Consumer.new(self._config, committed if committed > NOTHING else None, clock=self._clock)
            try:
                self._reached("claimed")
                ledger = self._journal.enter(consumer.epoch, app_id, self._names)
                self._reached("entered")
                positions = self._positions(app_id)
            except BaseException:
                consumer.abandon()
                raise
            if min(positions) != committed:  # an older loader committed between our look and our claim: look again
                consumer.abandon()
                continue
            self.consumer, self.app_id, self.committed, self._plan = consumer, app_id, committed, ledger.plan
            try:
                # Again: a loader may have blocked after our look, and an operator may rewrite a blocked plan.
                checks.not_blocked(ledger)
                checks.pending_plan(ledger.plan, positions, self._work.digest, accept_gaps=self._rules.accept_gaps)
            except BaseException:
                self.close()
                raise
            return
        raise Fenced(f"{STARTS_MAX} starts in a row found another loader at work; stop one of them")

    def _look_before_claiming(self) -> tuple[int, str]:
        if self._rules.adopt:
            assert self._rules.app_id, "LoaderConfig wants an app_id with adopt"
            app_id = self._rules.app_id
            positions = self._positions(app_id)
            ledger = self._journal.adopt(
                app_id, self._names, min(positions), furthest=max(positions), digest=self._work.digest
            )
        else:
            ledger = self._journal.bind(self._rules.app_id, self._names)
        assert ledger.app_id is not None, "a bound ledger names its app"
        self._reached("bound")
        # The tables first, the ledger after: plans are written ahead, so the ledger is never behind them.
        positions = self._positions(ledger.app_id)
        ledger = self._journal.read() or ledger
        checks.not_blocked(ledger)
        checks.ledger_knows(ledger, max(positions))
        checks.not_inside(ledger.plan, self._names, positions)
        checks.same_configuration(ledger.plan, positions, self._work.digest)
        checks.same_queue(ledger, self._store, self._config.manifest_path)
        if not self._rules.accept_gaps:
            checks.same_tables(ledger.app_id or "", ledger.plan, self._targets)
        return min(positions), ledger.app_id or ""

    # Loop

    def step(self, choose: Callable[[Sequence[BatchDescriptor]], int], max_batches: int) -> Done | None:
        """Load one range; None if the queue has nothing new.

        `choose` says how many of the descriptors at hand (at most `max_batches`) make a good range.
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
        again = replace(plan.tried_again(), digest=self._work.digest)
        self._plan = self._journal.revise(self.epoch, plan, again)
        self._reached("planned")
        return self._plan, descriptors

    def _take_through(self, plan: Plan) -> Sequence[BatchDescriptor]:
        assert self.consumer is not None
        missing = plan.last - (self._ready[-1].sequence if self._ready else plan.first - 1)
        self._ready.extend(self.consumer.next_descriptors(max(missing, 0)))
        taken = [d for d in self._ready if plan.first <= d.sequence <= plan.last]
        if len(taken) == plan.last - plan.first + 1:
            return taken
        earliest = self._ready[0].sequence if self._ready else self.consumer.manifest().next_sequence
        if self._rules.accept_gaps:  # under the same version: whoever else commits this range, it is there once
            log.warning("accepting the loss of sequences %d..%d", plan.first, min(plan.last, earliest - 1))
            return taken
        raise checks.gap(self.committed, earliest)

    def _plan_next(
        self, choose: Callable[[Sequence[BatchDescriptor]], int], max_batches: int
    ) -> tuple[Plan | None, Sequence[BatchDescriptor]]:
        assert self.consumer is not None
        if len(self._ready) < max_batches:
            self._ready.extend(self.consumer.next_descriptors(max_batches - len(self._ready)))
        if not self._ready:
            return None, ()
        first = self._ready[0].sequence
        if first != self.committed + 1:
            if not self._rules.accept_gaps:
                raise checks.gap(self.committed, first)
            log.warning("accepting the loss of sequences %d..%d", self.committed + 1, first - 1)
        if not self._rules.accept_gaps:
            # Whatever was done to the tables since our last commit is hidden by the next one: look before it.
            checks.same_tables(self.app_id, self._plan, self._targets)
        count = max(1, min(choose(tuple(self._ready)), len(self._ready)))
        descriptors = [self._ready[index] for index in range(count)]
        plan = Plan(
            after=self.committed,
            first=first,
            last=descriptors[-1].sequence,
            digest=self._work.digest,
            table_ids={target.name: target.table_id() for target in self._targets},
        )
        self._plan = self._journal.plan(
            self.epoch,
            self._plan,
            plan,
            next_sequence=self.consumer.manifest().next_sequence,
            last_location=descriptors[-1].location,
        )
        self._reached("planned")
        return self._plan, descriptors

    # One range

    def _run(self, plan: Plan, descriptors: Sequence[BatchDescriptor]) -> Done:
        assert self.consumer is not None
        positions = self._positions(self.app_id)
        checks.not_beyond(plan, self._names, positions, self.epoch)
        commits: dict[str, Any] = {}
        if min(positions) < plan.last:  # else only the ack is missing
            if plan.quarantined is None and plan.attempts > self._rules.max_delivery_attempts:
                plan = self._quarantine(plan, descriptors)
            commits = self._commit_all(plan, descriptors)
        # The location: if the manifest was put back meanwhile, that sequence may be another batch, in no table.
        self.consumer.ack_through(plan.last, location=descriptors[-1].location)
        self._reached("acked")
        self.committed = plan.last
        while self._ready and self._ready[0].sequence <= plan.last:
            self._ready.popleft()
        return Done(plan, descriptors, commits)

    def _commit_all(self, plan: Plan, descriptors: Sequence[BatchDescriptor]) -> dict[str, Any]:
        commits: dict[str, Any] = {}
        with self._work.prepare(descriptors, plan.quarantined or {}) as rows:
            self._reached("decoded")
            if len(self._targets) > 1 and plan.quarantined is None:
                # Refused if a newer loader entered: where a record goes is decided once, before any commit.
                plan = self._plan = self._journal.revise(self.epoch, plan, plan.split({}))
                self._reached("split")
            for target in self._targets:
                commit = self._commit(target, rows[target.name], plan, len(descriptors))
                if commit is not None:
                    commits[target.name] = commit
                self._reached(f"committed {target.name}")
        return commits

    def _commit(self, target: Target, rows: Any, plan: Plan, entries: int) -> Any:
        """Append until the table itself says that it holds the range. Returns the append's result, if any."""
        commit = None
        for _ in range(COMMIT_TRIES_MAX):
            position = self._position(target)
            if position == plan.last:
                return commit
            checks.not_beyond(plan, [target.name], [position], self.epoch)
            if position >= plan.first:
                raise checks.inside(target.name, position, plan)
            if position != plan.after and not self._rules.accept_gaps:  # below it: the table was put back, or dropped
                raise checks.gap(position, plan.first)
            try:
                commit = target.append(
                    rows,
                    app_id=self.app_id,
                    first=plan.first,
                    last=plan.last,
                    epoch=self.epoch,
                    entries=entries,
                    accept_rewrites=self._rules.accept_gaps,
                )
            except ConcurrentCommit as error:
                log.info("a concurrent commit on %s: %s; looking again", target.name, error)
            self._reached(f"appended {target.name}")
        raise CommitSkipped(
            f"{COMMIT_TRIES_MAX} commits to {target.name!r} as {plan.last} left it at {self._position(target)}: "
            "something else writes under this app_id or undoes the commits",
            table=target.name,
            committed=self._position(target),
            last=plan.last,
        )

    def _quarantine(self, plan: Plan, descriptors: Sequence[BatchDescriptor]) -> Plan:
        """After too many attempts: find the batches that are to blame, and do with them what the rules say.

        Not once the split is written: a table may hold rows of such a batch, and it must not be a dead letter then.
        """
        failures = self._work.probe(descriptors)
        self._journal.check(self.epoch)  # a missing batch may mean that a successor is done with it
        unknown = {f.sequence: f.error for f in failures if f.kind == "infra"}
        if unknown:  # one of them may be bad, too, and what is decided stays decided: a later attempt will tell
            log.warning("nothing is decided on %d..%d, some could not be looked at: %s", plan.first, plan.last, unknown)
            return plan
        bad = {f.sequence: f.error for f in failures}
        if not bad:
            return plan
        if self._rules.dlq_strategy == "skip":
            log.warning("sending %d unreadable batches to the dead letters: %s", len(bad), sorted(bad))
            self._plan = self._journal.revise(self.epoch, plan, plan.split(bad))
            self._reached("split")
            return self._plan
        reason = f"{len(bad)} of its batches cannot be read after {plan.attempts - 1} attempts"
        try:
            self._journal.block(self.epoch, BlockedState(plan.first, plan.last, reason, bad))
        except (ContentionError, StorageError) as error:
            # It may stand there or land later, for an operator to act on: only a new start may go on from here.
            log.warning(
                "could not tell whether the ledger says that %d..%d is blocked: %s", plan.first, plan.last, error
            )
        raise Blocked(
            f"batches {plan.first}..{plan.last}: {reason}: "
            + "; ".join(f"{sequence}: {error}" for sequence, error in sorted(bad.items()))
            + ". Mend them and run `buffer-delta unblock`, or give them up with `buffer-delta unblock --skip`",
            first=plan.first,
            last=plan.last,
            attempts=plan.attempts,
        )

    def _position(self, target: Target) -> int:
        committed = target.committed(self.app_id)
        return NOTHING if committed is None else committed

    def _positions(self, app_id: str) -> list[int]:
        found = [target.committed(app_id) for target in self._targets]
        return [NOTHING if position is None else position for position in found]

    # End

    def close(self) -> None:
        """Give the consumer back. What was acked is dequeued already; nothing else is pending."""
        if self.consumer is not None:
            self.consumer.abandon()
            self.consumer = None
