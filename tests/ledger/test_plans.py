"""Entering with an epoch, planning ahead, blocking: one author at a time, and a lost reply changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from buffer.errors import ContentionError, Fenced, InvalidInput, LedgerLost, QueueBound, StoreUnusable
from buffer.ledger.binding import Binding
from buffer.ledger.plan import Blocked, Ledger, Plan
from buffer.names import ledger_path
from buffer.store import Lost, Store
from buffer.testing import Fault, FaultyStore, ManualClock
from buffer_delta.load.plans import Plans
from tests.queue.queue_support import PATH, Written, memory

LEDGER = ledger_path(PATH)
TABLES = ("events",)
FOREVER = 10**6
DONE = Plan(after=4, first=5, last=9, digest="d", table_ids={"events": "id"})
NEXT = Plan(after=9, first=10, last=20, digest="d", table_ids={"events": "id"})
LONGER = replace(NEXT, last=25)
BLOCKED = Blocked(10, 20, "2 of its batches cannot be read", {12: "not zstd", 17: "gone"})
BOUND = Ledger(queue_id="Q", app_id="mine", tables=TABLES, born=True, epoch=3, next_sequence=10, plan=DONE)

any_fault = pytest.mark.parametrize(
    "fault",
    [
        pytest.param(when("put_if_match", answer), id=f"{when.__name__} {'lost' if answer else 'error'}")
        for when in (Fault.before, Fault.after, Fault.late)
        for answer in (None, Lost)
    ],
)


@pytest.fixture
def inner() -> Store:
    store = memory()
    put(store, BOUND)
    return store


def put(store: Store, ledger: Ledger) -> None:
    store.put(LEDGER, ledger.to_bytes())


def ledger_in(store: Store) -> Ledger:
    return Ledger.from_bytes(store.get(LEDGER).data)


def journal(store: Store) -> Plans:
    return Plans(store, PATH, ManualClock(), timeout_s=1.0)


def entered(store: Store, epoch: int = 4) -> Plans:
    ours = journal(store)
    ours.enter(epoch, Binding("mine", TABLES))
    return ours


def plan_next(ours: Plans, plan: Plan = NEXT, epoch: int = 4) -> Plan:
    return ours.plan(epoch, DONE, plan, next_sequence=30, last_location="ingest/x")


class TestEnter:
    def test_should_write_its_epoch_and_keep_everything_else(self, inner: Store) -> None:
        assert journal(inner).enter(4, Binding("mine", TABLES)) == BOUND.changed(epoch=4) == ledger_in(inner)

    @pytest.mark.parametrize("epoch", [3, 2])
    def test_should_be_fenced_by_an_equal_or_newer_epoch(self, inner: Store, epoch: int) -> None:
        with pytest.raises(Fenced, match=f"holds epoch {epoch}, the ledger is at 3") as caught:
            journal(inner).enter(epoch, Binding("mine", TABLES))
        assert (caught.value.epoch, caught.value.current_epoch) == (epoch, 3)
        assert ledger_in(inner) == BOUND

    @pytest.mark.parametrize(("app_id", "tables"), [("other", TABLES), ("mine", ("elsewhere",))])
    def test_should_refuse_a_queue_that_was_bound_anew(
        self, inner: Store, app_id: str, tables: tuple[str, ...]
    ) -> None:
        with pytest.raises(QueueBound):
            journal(inner).enter(4, Binding(app_id, tables))
        assert ledger_in(inner) == BOUND

    def test_should_refuse_a_ledger_that_is_gone_or_made_anew(self, inner: Store) -> None:
        put(inner, replace(BOUND, born=False))
        with pytest.raises(LedgerLost, match="it was made anew"):
            journal(inner).enter(4, Binding("mine", TABLES))
        inner.delete_many([LEDGER])
        with pytest.raises(LedgerLost, match="it is gone"):
            journal(inner).enter(4, Binding("mine", TABLES))

    @any_fault
    def test_should_enter_once(self, inner: Store, fault: Fault) -> None:
        store = FaultyStore(inner, [fault])
        assert journal(store).enter(4, Binding("mine", TABLES)) == BOUND.changed(epoch=4)
        store.land()
        assert (ledger_in(inner), store.unused) == (BOUND.changed(epoch=4), [])

    @any_fault
    def test_should_be_fenced_when_a_newer_one_enters_meanwhile(self, inner: Store, fault: Fault) -> None:
        store = FaultyStore(inner, [fault])
        successor = Written(store, then=lambda: ledger_in(inner).epoch < 5 and entered(inner, 5))
        with pytest.raises(Fenced):
            journal(successor).enter(4, Binding("mine", TABLES))
        store.land()
        assert ledger_in(inner).epoch == 5

    def test_should_keep_a_plan_that_was_written_meanwhile(self, inner: Store) -> None:
        """The one before us plans until the moment that we are in: its plan is ours to replay."""
        before = journal(inner)
        store = Written(inner)
        store.interfere = lambda: len(store.writes) == 1 and plan_next(before, epoch=3)
        assert journal(store).enter(4, Binding("mine", TABLES)).plan == NEXT

    def test_should_not_take_an_epoch_for_its_own_that_it_never_sent(self, inner: Store) -> None:
        store = Written(inner)
        store.interfere = lambda: len(store.writes) == 1 and put(inner, BOUND.changed(next_sequence=11))
        entered(store)
        with pytest.raises(Fenced):
            journal(inner).enter(4, Binding("mine", TABLES))


class TestPlan:
    def test_should_write_the_plan_and_what_it_knows_of_the_queue(self, inner: Store) -> None:
        ours = entered(inner)
        assert plan_next(ours) == NEXT
        ledger = ledger_in(inner)
        assert (ledger.plan, ledger.next_sequence, ledger.last_location) == (NEXT, 30, "ingest/x")
        assert (ledger.epoch, ledger.blocked) == (4, None)
        assert ours.check(4) == ledger

    def test_should_write_a_first_plan(self, inner: Store) -> None:
        put(inner, replace(BOUND, plan=None))
        ours = entered(inner)
        ours.plan(4, None, DONE, next_sequence=10, last_location="x")
        assert ledger_in(inner).plan == DONE

    def test_should_revise_attempts_and_split_and_nothing_else(self, inner: Store) -> None:
        ours = entered(inner)
        plan_next(ours)
        again = ours.revise(4, NEXT, NEXT.tried_again())
        split = ours.revise(4, again, again.split({12: "bad"}))
        assert ledger_in(inner).plan == split == replace(NEXT, attempts=2, quarantined={12: "bad"})
        assert (ledger_in(inner).next_sequence, ledger_in(inner).last_location) == (30, "ingest/x")

    @any_fault
    def test_should_plan_once(self, inner: Store, fault: Fault) -> None:
        store = FaultyStore(inner)
        ours = entered(store)
        generation = ledger_in(inner).generation
        store.add(fault)
        plan_next(ours)
        store.land()
        assert (ledger_in(inner).plan, ledger_in(inner).generation) == (NEXT, generation + 1)
        assert store.unused == []

    @any_fault
    def test_should_be_fenced_when_a_newer_loader_enters(self, inner: Store, fault: Fault) -> None:
        store = FaultyStore(inner)
        zombie = entered(store)
        successor = entered(inner, 5)
        store.add(fault)
        for call in (
            lambda: plan_next(zombie),
            lambda: zombie.revise(4, DONE, DONE.tried_again()),
            lambda: zombie.block(4, BLOCKED),
            lambda: zombie.check(4),
        ):
            with pytest.raises(Fenced):
                call()
        store.land()
        assert ledger_in(inner).plan == DONE
        assert plan_next(successor, epoch=5) == NEXT

    def test_should_not_let_a_zombies_plan_land_after_its_successor_entered(self, inner: Store) -> None:
        store = FaultyStore(inner)
        zombie = entered(store)
        store.add(Fault.late("put_if_match", times=FOREVER))
        with pytest.raises(ContentionError):
            plan_next(zombie)
        successor = entered(inner, 5)
        store.land()
        assert ledger_in(inner) == successor.check(5)
        assert ledger_in(inner).plan == DONE

    def test_should_hand_a_plan_that_landed_late_to_the_successor(self, inner: Store) -> None:
        store = FaultyStore(inner)
        zombie = entered(store)
        store.add(Fault.late("put_if_match", times=FOREVER))
        with pytest.raises(ContentionError):
            plan_next(zombie)
        store.land()
        assert journal(inner).enter(5, Binding("mine", TABLES)).plan == NEXT

    @pytest.mark.parametrize("landing", ["at once", "before the next call", "during the next call", "never"])
    def test_should_plan_another_range_over_one_that_nobody_acted_on(self, inner: Store, landing: str) -> None:
        """The write of 10..20 got no answer, so it was never run; meanwhile the queue grew to 25."""
        store = FaultyStore(inner)
        ours = entered(store)
        fault = Fault.after if landing == "at once" else Fault.late if landing != "never" else Fault.before
        store.add(fault("put_if_match", times=FOREVER), Fault.before("get_if_changed", times=FOREVER))
        with pytest.raises(ContentionError):
            plan_next(ours)
        store._script.clear()
        if landing == "before the next call":
            store.land()
        if landing == "during the next call":
            hook = Written(store, store.land)
            ours._journal._cas._store = hook
        assert plan_next(ours, LONGER) == LONGER
        store.land()
        assert ledger_in(inner).plan == LONGER

    def test_should_write_a_plan_once_more_that_stands_while_another_is_on_its_way(self, inner: Store) -> None:
        """10..25 landed without a reply, 10..20 was sent over it without one, and then 10..25 is wanted again: the
        write of 10..20 must not land on it while 10..25 is run. (Seed 36000.)"""
        store = FaultyStore(inner)
        ours = entered(store)
        store.add(Fault.after("put_if_match", times=FOREVER), Fault.before("get_if_changed", times=FOREVER))
        with pytest.raises(ContentionError):
            plan_next(ours, LONGER)
        store._script.clear()
        store.add(Fault.late("put_if_match", times=FOREVER))
        with pytest.raises(ContentionError):
            plan_next(ours)
        store._script.clear()
        assert ledger_in(inner).plan == LONGER
        assert plan_next(ours, LONGER) == LONGER
        store.land()
        assert ledger_in(inner).plan == LONGER

    def test_should_count_the_attempt_over_a_split_that_nobody_acted_on(self, inner: Store) -> None:
        store = FaultyStore(inner)
        ours = entered(store)
        plan_next(ours)
        store.add(Fault.after("put_if_match"), Fault.before("get_if_changed", times=FOREVER))
        with pytest.raises(ContentionError):
            ours.revise(4, NEXT, NEXT.split({}))
        store.heal()
        assert ledger_in(inner).plan == NEXT.split({})
        assert ours.revise(4, NEXT, NEXT.tried_again()) == NEXT.tried_again() == ledger_in(inner).plan

    def test_should_refuse_a_plan_that_it_did_not_write(self, inner: Store) -> None:
        ours = entered(inner)
        put(inner, ledger_in(inner).changed(plan=LONGER))
        before = ledger_in(inner)
        for call in (lambda: plan_next(ours), lambda: ours.revise(4, DONE, DONE.tried_again())):
            with pytest.raises(LedgerLost, match="written by something that is not a loader"):
                call()
        assert ledger_in(inner) == before

    def test_should_forget_what_it_sent_under_an_older_epoch(self, inner: Store) -> None:
        store = FaultyStore(inner)
        ours = entered(store)
        store.add(Fault.before("put_if_match", times=FOREVER))
        with pytest.raises(ContentionError):
            plan_next(ours)
        store.heal()
        ours.enter(5, Binding("mine", TABLES))
        put(inner, ledger_in(inner).changed(plan=NEXT))  # not by us: we have entered anew since
        with pytest.raises(LedgerLost):
            plan_next(ours, LONGER, epoch=5)

    def test_should_stop_when_the_ledger_is_gone(self, inner: Store) -> None:
        ours = entered(inner)
        inner.delete_many([LEDGER])
        for call in (lambda: plan_next(ours), lambda: ours.check(4), lambda: ours.block(4, BLOCKED)):
            with pytest.raises(LedgerLost, match="it is gone"):
                call()

    def test_should_stop_when_the_queue_was_adopted_by_another(self, inner: Store) -> None:
        ours = entered(inner)
        journal(inner).adopt(Binding("other", TABLES), committed=7)
        with pytest.raises(LedgerLost):
            plan_next(ours)
        assert ledger_in(inner).app_id == "other"

    def test_should_raise_a_refusal_of_the_store_as_it_is(self, inner: Store) -> None:
        store = FaultyStore(inner)
        ours = entered(store)
        store.add(Fault.before("put_if_match", StoreUnusable))
        with pytest.raises(StoreUnusable):
            plan_next(ours)
        assert ledger_in(inner).plan == DONE


class TestFromMemory:
    """Within an epoch plans are written without a read; entering, operators and adopting look first."""

    @staticmethod
    def ops(store: FaultyStore, since: int) -> list[str]:
        return [call.op for call in store.history[since:]]

    def test_should_plan_and_revise_without_a_read(self, inner: Store) -> None:
        store = FaultyStore(inner)
        ours = entered(store)
        before = len(store.history)
        plan_next(ours)
        again = ours.revise(4, NEXT, NEXT.tried_again())
        ours.revise(4, again, again.split({}))
        assert self.ops(store, before) == ["put_if_match"] * 3
        assert ledger_in(inner).plan == again.split({})

    def test_should_look_before_it_enters_or_lets_go(self, inner: Store) -> None:
        store = FaultyStore(inner)
        ours = entered(store)
        plan_next(ours)
        ours.block(4, BLOCKED)
        before = len(store.history)
        ours.enter(5, Binding("mine", TABLES))
        assert self.ops(store, before) == ["get_if_changed", "put_if_match"]
        before = len(store.history)
        ours.unblock(skip=True)
        ours.replan()
        ours.adopt(Binding("other", TABLES), committed=7)
        assert self.ops(store, before) == ["get_if_changed", "put_if_match"] * 3

    def test_should_not_be_fenced_by_an_epoch_that_it_remembers(self, inner: Store) -> None:
        """It saw the successor's epoch; the ledger was put back since. What is there counts, not what it saw."""
        ours = entered(inner)
        backup = inner.get(LEDGER).data
        entered(inner, 5)
        with pytest.raises(Fenced):
            ours.check(4)
        inner.put(LEDGER, backup)
        assert plan_next(ours) == NEXT == ledger_in(inner).plan

    def test_should_not_call_it_a_successor_when_the_ledger_went_back(self, inner: Store) -> None:
        backup = inner.get(LEDGER).data
        ours = entered(inner)
        inner.put(LEDGER, backup)
        for call in (lambda: ours.check(4), lambda: plan_next(ours), lambda: ours.block(4, BLOCKED)):
            with pytest.raises(LedgerLost, match="went back to epoch 3, and this loader had entered it with 4"):
                call()
        assert inner.get(LEDGER).data == backup

    def test_should_not_take_a_plan_for_written_that_it_only_remembers(self, inner: Store) -> None:
        ours = entered(inner)
        plan_next(ours)
        put(inner, ledger_in(inner).changed(plan=DONE))
        assert ours.plan(4, DONE, NEXT, next_sequence=30, last_location="x") == NEXT == ledger_in(inner).plan

    def test_should_see_a_successor_that_entered_since_it_looked(self, inner: Store) -> None:
        ours = entered(inner)
        entered(inner, 5)
        with pytest.raises(Fenced) as caught:
            plan_next(ours)
        assert (caught.value.epoch, caught.value.current_epoch) == (4, 5)
        assert ledger_in(inner).plan == DONE


class TestBlock:
    @staticmethod
    def blocked(store: Store, plan: Plan = NEXT) -> Plans:
        ours = entered(store)
        plan_next(ours, plan)
        ours.block(4, BLOCKED)
        return ours

    def test_should_keep_the_reason_and_the_plan(self, inner: Store) -> None:
        self.blocked(inner)
        assert (ledger_in(inner).blocked, ledger_in(inner).plan) == (BLOCKED, NEXT)

    def test_should_block_once(self, inner: Store) -> None:
        ours = self.blocked(inner)
        before = ledger_in(inner)
        ours.block(4, BLOCKED)
        assert ledger_in(inner) == before

    @any_fault
    def test_should_block_and_unblock_through_faults(self, inner: Store, fault: Fault) -> None:
        store = FaultyStore(inner)
        ours = entered(store)
        plan_next(ours)
        store.add(fault)
        ours.block(4, BLOCKED)
        store.land()
        assert ledger_in(inner).blocked == BLOCKED
        store.add(fault)
        assert journal(store).unblock(skip=False) == BLOCKED
        store.land()
        assert (ledger_in(inner).blocked, store.unused) == (None, [])

    def test_should_let_the_range_be_tried_again(self, inner: Store) -> None:
        self.blocked(inner, replace(NEXT, attempts=6))
        assert journal(inner).unblock(skip=False) == BLOCKED
        assert ledger_in(inner).plan == replace(NEXT, attempts=0)
        assert ledger_in(inner).blocked is None

    def test_should_send_the_bad_batches_to_the_dead_letters(self, inner: Store) -> None:
        self.blocked(inner, replace(NEXT, attempts=6))
        assert journal(inner).unblock(skip=True) == BLOCKED
        assert ledger_in(inner).plan == replace(NEXT, attempts=0, quarantined={12: "not zstd", 17: "gone"})

    @pytest.mark.parametrize("prepare", [lambda s: None, lambda s: s.delete_many([LEDGER])], ids=["no", "no ledger"])
    def test_should_say_when_nothing_is_blocked(self, inner: Store, prepare: Callable[[Store], object]) -> None:
        prepare(inner)
        assert journal(inner).unblock(skip=True) is None

    def test_should_unblock_once(self, inner: Store) -> None:
        self.blocked(inner)
        assert journal(inner).unblock(skip=False) == BLOCKED
        after = ledger_in(inner)
        assert journal(inner).unblock(skip=True) is None
        assert ledger_in(inner) == after

    def test_should_replay_after_unblocking_under_a_new_epoch(self, inner: Store) -> None:
        self.blocked(inner)
        journal(inner).unblock(skip=True)
        successor = journal(inner)
        plan = successor.enter(5, Binding("mine", TABLES)).plan
        assert plan is not None
        assert successor.revise(5, plan, plan.tried_again()).attempts == 1
        assert ledger_in(inner).plan == replace(plan, attempts=1)

    def test_should_end_with_the_next_plan(self, inner: Store) -> None:
        ours = self.blocked(inner)
        after = Plan(after=20, first=21, last=22)
        ours.plan(4, NEXT, after, next_sequence=30, last_location="y")
        assert (ledger_in(inner).plan, ledger_in(inner).blocked) == (after, None)


class TestReplan:
    SPLIT = replace(NEXT, attempts=3, quarantined={12: "not zstd"})

    @any_fault
    def test_should_forget_what_was_decided(self, inner: Store, fault: Fault) -> None:
        put(inner, BOUND.changed(plan=self.SPLIT))
        store = FaultyStore(inner)
        store.add(fault)
        assert journal(store).replan(self.SPLIT) == self.SPLIT
        store.land()
        assert ledger_in(inner).plan == replace(NEXT, attempts=0, tables=())

    @pytest.mark.parametrize(
        "meanwhile", [SPLIT.tried_again(), Plan(after=20, first=21, last=22, quarantined={}, tables=TABLES)]
    )
    def test_should_leave_a_range_alone_whose_tables_nobody_has_looked_at(self, inner: Store, meanwhile: Plan) -> None:
        """A look takes as long as Spark's start: a loader that runs all the same has moved on, and holds a part."""
        put(inner, BOUND.changed(plan=meanwhile))
        before = ledger_in(inner)
        with pytest.raises(InvalidInput, match="a loader runs"):
            journal(inner).replan(self.SPLIT)
        assert ledger_in(inner) == before

    def test_should_leave_a_range_alone_about_which_nothing_was_decided(self, inner: Store) -> None:
        put(inner, BOUND.changed(plan=replace(NEXT, tables=("events", "dead_letters"))))
        before = ledger_in(inner)
        assert journal(inner).replan() is None
        assert ledger_in(inner) == before

    def test_should_have_nothing_to_forget_without_a_ledger(self, inner: Store) -> None:
        inner.delete_many([LEDGER])
        assert journal(inner).replan() is None
