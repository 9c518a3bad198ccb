"""Deliberate breaks of the protocol, each a small patch over the production code. The simulator must find them all.

A mutant takes one rule away and says what the simulator should see then. Patching production code from outside is
the point here: it has no switches for this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from buffer import commit, gc, position, queue
from buffer.cas import Snapshot
from buffer.errors import StorageError
from buffer.ledger import Ledger, Plan
from buffer.manifest import Manifest
from buffer.queue import QueueConsumer, QueueProducer, Verdict
from buffer.store.base import Lost, Outcome, Unknown, Won
from buffer_delta import checks
from buffer_delta.errors import ConcurrentCommit
from buffer_delta.journal import Journal
from buffer_delta.protocol import LoadProtocol
from buffer_delta.testing.delta_log import JobFailed, SimulatedTarget

TWICE = r"already"
"""A row, a record or a batch is there twice."""
LOST = r"in no table|no such object|is in the queue as|nobody has processed it"
STUCK = r"stuck"
FALSE_ALARM = r"ended with[\s\S]*(SequenceGap|LedgerLost|ManifestLost|QueueBehindConsumer)"
"""Nothing is lost, but an operator is called, and without one nothing goes on."""
FALSE_WORD = r"said to be durable|was told that it would not|but its producer got"
"""A producer was told something that is not so."""
NOT_THE_OWNER = r"belongs to"


@dataclass(frozen=True)
class Mutant:
    worlds: frozenset[str]
    """Where it matters; elsewhere nothing would change."""
    sees: str
    apply: Callable[[], AbstractContextManager[None]]


MUTANTS: dict[str, Mutant] = {}


def mutant(*worlds: str, sees: str) -> Callable[[Callable[[], Iterator[None]]], Callable[[], Iterator[None]]]:
    def register(make: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
        MUTANTS[make.__name__] = Mutant(frozenset(worlds), sees, contextmanager(make))
        return make

    return register


# The plan


def _commit_by_txn_alone(self: LoadProtocol, target: Any, rows: Any, plan: Plan, entries: int) -> None:
    """Append until the table is at the range's end or beyond: what a loader without plans would do."""
    while True:
        with suppress(ConcurrentCommit):
            target.append(rows, app_id=self.app_id, first=plan.first, last=plan.last, epoch=self.epoch, entries=entries)
        if self._position(target) >= plan.last:
            return


def _trusting_txn() -> Any:
    return patch.object(LoadProtocol, "_commit", _commit_by_txn_alone)


def _accept(*_: Any, **__: Any) -> None:
    """For checks that a mutant does without."""


@mutant("loader", sees=TWICE)
def plan_is_not_written() -> Iterator[None]:
    """The loader decides on a range and commits it, without a word in the ledger: the naive way."""

    def plan(self: Journal, epoch: int, _earlier: Plan | None, plan: Plan, **_: Any) -> Plan:
        self.check(epoch)
        return plan

    with (
        patch.object(Journal, "plan", plan),
        patch.object(Journal, "revise", plan),
        patch.object(checks, "ledger_knows", _accept),
        _trusting_txn(),
    ):
        yield


@mutant("loader", sees=TWICE)
def found_plan_is_ignored() -> Iterator[None]:
    """A loader that takes over plans anew instead of replaying what its predecessor planned."""
    real = Journal.enter

    def enter(self: Journal, *args: Any) -> Ledger:
        entered = real(self, *args)
        self._unsettled.append(entered.plan)  # so that it may be overwritten
        return replace(entered, plan=None)

    with patch.object(Journal, "enter", enter), _trusting_txn():
        yield


@mutant("loader", sees=f"{TWICE}|{LOST}")
def plan_is_shrunk_on_replay() -> Iterator[None]:
    """The successor replays the planned range without its last batch."""
    real = LoadProtocol._plan_again

    def again(self: LoadProtocol, plan: Plan) -> Any:
        descriptors = self._take_through(plan)
        if plan.attempts > 1 or len(descriptors) < 2:
            return real(self, plan)
        assert self.consumer is not None
        self._plan = self._journal.plan(
            self.epoch,
            plan,
            replace(plan.tried_again(), last=plan.last - 1, digest=self._work.digest),
            next_sequence=self.consumer.manifest().next_sequence,
            last_location=descriptors[-2].location,
        )
        return self._plan, descriptors[:-1]

    with patch.object(LoadProtocol, "_plan_again", again), _trusting_txn():
        yield


@mutant("loader", sees=f"{TWICE}|{LOST}")
def plan_is_written_by_anyone() -> Iterator[None]:
    """A loader that was superseded may still write its plan: no look at the ledger's epoch."""

    def mine(self: Journal, seen: Snapshot, _epoch: int) -> Ledger:
        ledger = self._require(seen)
        self._unsettled.append(ledger.plan)  # type: ignore[arg-type]  # None is as good as any plan here
        return ledger

    with patch.object(Journal, "_mine", mine), _trusting_txn():
        yield


@mutant("loader", sees=f"{STUCK}|{TWICE}|{FALSE_ALARM}")
def ledger_is_taken_back() -> Iterator[None]:
    """A loader enters with an epoch below the one that the ledger has."""

    def enter(self: Journal, epoch: int, _app_id: str, _tables: Sequence[str]) -> Ledger:
        def change(seen: Snapshot) -> bytes | None:
            ledger = self._require(seen)
            return None if ledger.epoch == epoch else ledger.changed(epoch=epoch).to_bytes()

        return self._require(self._cas.update(change))

    with patch.object(Journal, "enter", enter):
        yield


@mutant("loader", sees=f"{FALSE_ALARM}|{TWICE}|{LOST}")
def blocked_is_looked_at_before_claiming_alone() -> Iterator[None]:
    """A loader that blocks between another's first look and its claim is not noticed, and `unblock` rewrites the
    plan of a loader that runs."""
    real = Journal.enter

    def enter(self: Journal, *args: Any) -> Ledger:
        return replace(real(self, *args), blocked=None)

    with patch.object(Journal, "enter", enter):
        yield


@mutant("loader", sees=f"{TWICE}|{LOST}|dead letters")
def split_is_not_written() -> Iterator[None]:
    """Which batches are set aside is decided again by every attempt, also when one table has its part already."""
    real = Journal._replace

    def write(self: Journal, epoch: int, earlier: Plan | None, plan: Plan, **also: Any) -> Plan:
        if earlier is not None:
            earlier = replace(earlier, quarantined=None)
        real(self, epoch, earlier, replace(plan, quarantined=None), **also)
        return plan

    with patch.object(Journal, "_replace", write):
        yield


# Committing and acking


@mutant("loader", sees=LOST)
def ack_before_commit() -> Iterator[None]:
    real = LoadProtocol._commit_all

    def commit_all(self: LoadProtocol, plan: Plan, descriptors: Sequence[Any]) -> Any:
        assert self.consumer is not None
        self.consumer._position._dequeue(plan.last)
        return real(self, plan, descriptors)

    with patch.object(LoadProtocol, "_commit_all", commit_all):
        yield


@mutant("loader", sees=f"{FALSE_ALARM}|{STUCK}|{LOST}|{TWICE}")
def committed_is_cached() -> Iterator[None]:
    """The position of a table is read once per process and kept, moved on by its own appends alone."""
    real_committed, real_append = SimulatedTarget.committed, SimulatedTarget.append

    def committed(self: Any, app_id: str) -> int | None:
        if not hasattr(self, "cached"):
            self.cached = real_committed(self, app_id)
        return self.cached

    def append(self: Any, rows: Any, *, last: int, **facts: Any) -> Any:
        result = real_append(self, rows, last=last, **facts)
        self.cached = last
        return result

    with patch.object(SimulatedTarget, "committed", committed), patch.object(SimulatedTarget, "append", append):
        yield


@mutant("loader", sees=LOST)
def one_table_speaks_for_all() -> Iterator[None]:
    """The position is the largest of the tables', not the least."""

    def most(self: LoadProtocol, app_id: str) -> int:
        positions = [target.committed(app_id) for target in self._targets]
        return max(-1 if position is None else position for position in positions)

    with patch.object(LoadProtocol, "_least_committed", most):
        yield


@mutant("loader", sees=LOST)
def lost_commit_is_trusted() -> Iterator[None]:
    """An append without an answer counts as done; the table is not asked."""
    real = LoadProtocol._commit

    def commit_one(self: LoadProtocol, *args: Any) -> Any:
        try:
            return real(self, *args)
        except JobFailed:
            return None

    with patch.object(LoadProtocol, "_commit", commit_one):
        yield


@mutant("loader", sees=FALSE_ALARM)
def no_second_look_at_the_tables() -> Iterator[None]:
    """After entering, the loader does not ask the tables again whether its predecessor got further."""
    real = LoadProtocol._least_committed

    def look_once(self: Any, app_id: str) -> int:
        if self.consumer is not None:
            return real(self, app_id)
        if not hasattr(self, "looked"):
            self.looked = real(self, app_id)
        return self.looked

    with patch.object(LoadProtocol, "_least_committed", look_once):
        yield


# Claiming and fencing


@mutant("loader", "queue", sees=NOT_THE_OWNER)
def lost_claim_is_trusted() -> Iterator[None]:
    """The epoch read back is the one we wrote, so it must be ours."""

    def claim(self: QueueConsumer, last_acked: int | None = None) -> Manifest:
        wanted: int | None = None

        def change(seen: Snapshot) -> bytes | None:
            nonlocal wanted
            manifest = self._parse(seen)
            if wanted is not None and manifest.epoch == wanted:
                return None
            if last_acked is not None:
                manifest = manifest.dequeue(last_acked)
            claimed = manifest.claim()
            wanted = claimed.epoch
            return claimed.to_bytes()

        claimed = self._parse(self._cas.update(change))
        self.epoch = claimed.epoch
        return claimed

    with patch.object(QueueConsumer, "claim", claim):
        yield


@mutant("loader", "queue", sees=NOT_THE_OWNER)
def dequeue_without_epoch() -> Iterator[None]:
    """A fenced consumer's ack goes through."""

    def owned(self: QueueConsumer, seen: Snapshot) -> Manifest:
        return self._parse(seen)

    with patch.object(QueueConsumer, "_owned", owned):
        yield


@mutant("queue", "collection", sees=f"{LOST}|{FALSE_ALARM}|never given")
def acks_are_unchecked() -> Iterator[None]:
    """The first ack may name any sequence."""

    def unchecked(self: position.Position, sequence: int) -> None:
        """Handed out or not."""

    real = position.Position.ack

    def ack(self: position.Position, sequence: int) -> None:
        if self._last_acked is None:
            self._next_ack = sequence
        real(self, sequence)

    with (
        patch.object(position.Position, "_check_handed_out", unchecked),
        patch.object(position.Position, "ack", ack),
    ):
        yield


# Appending


@mutant("queue", sees=TWICE)
def slot_is_not_looked_at() -> Iterator[None]:
    """An append without an answer is simply tried again behind whatever is there."""
    with patch.object(queue, "decide", lambda *_: Verdict.DEAD):
        yield


@mutant("queue", sees=f"{TWICE}|{FALSE_WORD}")
def group_grows_while_pending() -> Iterator[None]:
    """Batches join a group whose attempt may still land."""
    real = queue.decide

    def decide(attempt: queue.Attempt, version: str | None, manifest: Manifest) -> Verdict:
        verdict = real(attempt, version, manifest)
        return Verdict.DEAD if verdict is Verdict.PENDING else verdict

    with patch.object(queue, "decide", decide):
        yield


@mutant("collection", sees=f"{TWICE}|{FALSE_WORD}")
def renamed_while_pending() -> Iterator[None]:
    """A batch gets a new name while an attempt under the old one may still land."""
    real = QueueProducer._decide

    def decide(self: QueueProducer, attempt: queue.Attempt, seen: Snapshot, manifest: Manifest) -> Verdict:
        verdict = real(self, attempt, seen, manifest)
        return Verdict.DEAD if verdict is Verdict.PENDING and self._is_stale(attempt) else verdict

    with patch.object(QueueProducer, "_decide", decide):
        yield


@mutant("collection", sees=LOST)
def never_renamed() -> Iterator[None]:
    """A batch is appended under the name it was uploaded with, however long that takes."""

    def fresh(self: commit.Committer, group: Any) -> None:
        """Everything is fresh."""

    with (
        patch.object(commit.Committer, "_upload_stale_again", fresh),
        patch.object(QueueProducer, "_is_stale", lambda *_: False),
    ):
        yield


@mutant("queue", sees=FALSE_WORD)
def unknown_append_counts_as_done() -> Iterator[None]:
    real = QueueProducer._send

    def send(self: QueueProducer, *args: Any) -> Outcome:
        outcome = real(self, *args)
        return Won("whatever") if isinstance(outcome, Unknown) else outcome

    with patch.object(QueueProducer, "_send", send):
        yield


@mutant("queue", sees=FALSE_WORD)
def gives_up_as_if_nothing_happened() -> Iterator[None]:
    """When time is up while an attempt may still land, the caller is told that it is safe to call again."""

    def give_up(self: QueueProducer, _attempt: Any, tried: int, _trouble: Any) -> range:
        raise self._cas.contention(tried)

    with patch.object(QueueProducer, "_give_up", give_up):
        yield


@mutant("queue", sees=TWICE)
def lost_race_is_believed() -> Iterator[None]:
    """`Lost` is taken as a sure sign that the write did not land."""
    real = QueueProducer._decide

    def send(self: QueueProducer, attempt: Any, is_repeat: bool) -> Outcome:
        outcome = real_send(self, attempt, is_repeat)
        self.__dict__["lost"] = isinstance(outcome, Lost)
        return outcome

    def decide(self: QueueProducer, *args: Any) -> Verdict:
        return Verdict.DEAD if self.__dict__.get("lost") else real(self, *args)

    real_send = QueueProducer._send
    with patch.object(QueueProducer, "_send", send), patch.object(QueueProducer, "_decide", decide):
        yield


@mutant("queue", sees=LOST)
def append_before_upload() -> Iterator[None]:
    """A batch whose upload got no answer is appended all the same."""
    real = commit.Committer._put_under_new_name

    class Careless:
        def __init__(self, store: Any) -> None:
            self._store = store

        def put(self, location: str, data: bytes) -> None:
            with suppress(StorageError):
                self._store.put(location, data)

    def put(self: commit.Committer, batch: Any) -> None:
        store, self._store = self._store, Careless(self._store)
        try:
            real(self, batch)
        finally:
            self._store = store

    with patch.object(commit.Committer, "_put_under_new_name", put):
        yield


# Collecting


def _collector_rule(change: Callable[[dict[str, Any]], None]) -> Any:
    real = gc.deletable

    def deletable(ulids: Any, manifest: Any, version: Any, **rest: Any) -> gc.Decision:
        ulids = list(ulids)
        rest["ulids"] = ulids
        change(rest)
        rest.pop("ulids")
        return real(ulids, manifest, version, **rest)

    return patch.object(gc, "deletable", deletable)


@mutant("collection", sees=LOST)
def collector_looks_once() -> Iterator[None]:
    def change(rule: dict[str, Any]) -> None:
        rule["previous"] = gc.Look("another version", frozenset(rule["ulids"]))

    with _collector_rule(change):
        yield


@mutant("collection", sees=LOST)
def collector_needs_no_change() -> Iterator[None]:
    """Two looks, but they count although the manifest did not change in between."""

    def change(rule: dict[str, Any]) -> None:
        if rule["previous"] is not None:
            rule["previous"] = replace(rule["previous"], version="another version")

    with _collector_rule(change):
        yield


@mutant("collection", sees=LOST)
def collector_has_no_grace() -> Iterator[None]:
    real = gc.Collector._list

    def listed(self: gc.Collector, now_ms: int) -> Any:
        self._grace_ms = -(10**9)
        return real(self, now_ms)

    with patch.object(gc.Collector, "_list", listed):
        yield
