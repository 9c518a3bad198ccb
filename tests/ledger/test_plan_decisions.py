"""The loader's decisions about the ledger, as functions: values in, values out. No store in sight."""

from __future__ import annotations

from dataclasses import replace

import pytest

from buffer.errors import CorruptLedger, Fenced, LedgerLost, QueueBound
from buffer.ledger import binding as bindings
from buffer.ledger import plan as decide
from buffer.ledger.binding import Binding
from buffer.ledger.plan import Blocked, Ledger, Plan, QueueSeen

PLACE = "q.ledger"
OURS = Binding("mine", ("events",))
ANY = Binding(None, ("events",))
UNBORN = Ledger(queue_id="Q", app_id="mine", tables=("events",))
BORN = replace(UNBORN, born=True, generation=1)
DONE = Plan(after=4, first=5, last=9)
NEXT = Plan(after=9, first=10, last=20)
STANDING = replace(BORN, generation=7, epoch=3, next_sequence=10, last_location="i", plan=DONE)
BLOCKED = Blocked(10, 20, "bad", {12: "not zstd"})
SEEN = QueueSeen(next_sequence=30, last_location="x")


class TestBind:
    @pytest.mark.parametrize("binding", [OURS, ANY])
    def test_should_be_bound_once_it_is_born(self, binding: Binding) -> None:
        assert not bindings.is_bound(None, binding, location=PLACE)
        assert not bindings.is_bound(Ledger(queue_id="Q"), binding, location=PLACE)
        assert not bindings.is_bound(UNBORN, binding, location=PLACE)
        assert bindings.is_bound(BORN, binding, location=PLACE)

    @pytest.mark.parametrize("ledger", [UNBORN, BORN])
    @pytest.mark.parametrize("binding", [Binding("other", ("events",)), Binding(None, ("others",))])
    def test_should_refuse_another_binding(self, ledger: Ledger, binding: Binding) -> None:
        with pytest.raises(QueueBound) as caught:
            bindings.is_bound(ledger, binding, location=PLACE)
        assert (caught.value.bound_app_id, caught.value.tables) == ("mine", binding.tables)

    def test_should_go_from_nothing_to_made_to_born(self) -> None:
        made = bindings.bind(None, ANY, queue_epoch=0, new_queue_id="NEW")
        assert made == Ledger(queue_id="NEW", app_id="buffer/NEW", tables=("events",))
        assert bindings.bind(made, ANY, queue_epoch=0, new_queue_id="no") == made.changed(born=True)

    def test_should_take_up_a_file_that_another_section_began(self) -> None:
        begun = Ledger(queue_id="Q", generation=4, sections={"other": {}})
        assert bindings.bind(begun, ANY, queue_epoch=0, new_queue_id="no") == replace(
            begun, generation=5, app_id="buffer/Q", tables=("events",)
        )

    @pytest.mark.parametrize("ledger", [None, UNBORN, Ledger(queue_id="Q")])
    def test_should_not_bind_a_queue_that_was_consumed(self, ledger: Ledger | None) -> None:
        assert bindings.bind(ledger, OURS, queue_epoch=1, new_queue_id="NEW") is None


class TestAdopt:
    @staticmethod
    def adopt(ledger: Ledger | None, committed: int, furthest: int | None = None, **also: bool) -> Ledger:
        ahead = [] if furthest is None else [furthest]
        return bindings.adopt(
            ledger, OURS, committed=committed, ahead=ahead, digest="d", new_queue_id="NEW", location=PLACE, **also
        )

    @pytest.mark.parametrize("committed", [-1, 4, 9])
    def test_should_leave_what_fits(self, committed: int) -> None:
        assert self.adopt(STANDING, committed) is STANDING

    @pytest.mark.parametrize("committed", [5, 7, 10])
    def test_should_follow_a_table_inside_or_ahead_of_the_plan(self, committed: int) -> None:
        assert self.adopt(STANDING, committed).plan == Plan(
            committed - 1, committed, committed, attempts=0, tables=("events",)
        )

    def test_should_complete_what_some_tables_have(self) -> None:
        plan = self.adopt(None, 9, 20).plan
        assert plan == Plan(after=9, first=10, last=20, attempts=0, digest="d", quarantined={}, tables=("events",))

    def test_should_not_complete_what_may_have_been_split(self) -> None:
        with pytest.raises(LedgerLost, match=r"10\.\.20 are in some tables and not in all") as caught:
            self.adopt(None, 9, 20, may_complete=False)
        assert (caught.value.first, caught.value.last, caught.value.location) == (10, 20, PLACE)
        assert self.adopt(STANDING, 4, 9, may_complete=False) is STANDING, "it knows"
        assert self.adopt(None, 20, may_complete=False).plan == Plan(19, 20, 20, attempts=0, tables=("events",))

    def test_should_make_what_is_missing(self) -> None:
        made = self.adopt(None, -1)
        assert made == Ledger(queue_id="NEW", generation=1, app_id="mine", tables=("events",), born=True)
        assert self.adopt(made, -1) is made, "adopting twice is adopting once"

    @pytest.mark.parametrize("change", [{"app_id": "other"}, {"tables": ("x",)}, {"born": False}])
    def test_should_take_over_what_is_not_ours(self, change) -> None:
        taken = self.adopt(replace(STANDING, blocked=BLOCKED, **change), 9)
        assert (taken.app_id, taken.tables, taken.born) == ("mine", ("events",), True)
        assert (taken.blocked, taken.last_location, taken.generation) == (None, None, 8)
        assert (taken.epoch, taken.next_sequence, taken.queue_id) == (3, 10, "Q")

    def test_should_salvage_the_envelope(self) -> None:
        data = STANDING.changed(sections={"other": {"a": 1}}).to_bytes().replace(b'"born": true', b'"born": 1')
        with pytest.raises(CorruptLedger) as caught:
            Ledger.from_bytes(data)
        assert bindings.salvaged(data, caught.value) == Ledger("Q", 8, 3, {"other": {"a": 1}})
        assert bindings.salvaged(b"{", caught.value) is None

    def test_should_salvage_nothing_from_a_newer_release(self) -> None:
        error = CorruptLedger("newer", version=3)
        with pytest.raises(CorruptLedger, match="newer"):
            bindings.salvaged(STANDING.to_bytes(), error)


class TestEnter:
    @staticmethod
    def enter(ledger: Ledger | None, epoch: int, *, sent: bool = False, binding: Binding = OURS) -> Ledger:
        return bindings.enter(ledger, binding, epoch=epoch, sent=sent, location=PLACE)

    def test_should_write_the_epoch_and_nothing_else(self) -> None:
        assert self.enter(STANDING, 4) == replace(STANDING, epoch=4, generation=8)

    def test_should_trust_its_own_epoch_only_if_it_sent_it(self) -> None:
        entered = replace(STANDING, epoch=4)
        assert self.enter(entered, 4, sent=True) is entered
        with pytest.raises(Fenced):
            self.enter(entered, 4)

    @pytest.mark.parametrize("sent", [True, False])
    def test_should_be_fenced_by_a_newer_one_whatever_it_sent(self, sent: bool) -> None:
        with pytest.raises(Fenced, match="holds epoch 2, the ledger is at 3") as caught:
            self.enter(STANDING, 2, sent=sent)
        assert (caught.value.epoch, caught.value.current_epoch) == (2, 3)

    def test_should_refuse_what_is_gone_new_or_anothers(self) -> None:
        with pytest.raises(LedgerLost, match=r"'q\.ledger' is lost: it is gone"):
            self.enter(None, 4)
        with pytest.raises(LedgerLost, match="it was made anew"):
            self.enter(UNBORN, 4)
        with pytest.raises(QueueBound):
            self.enter(STANDING, 4, binding=Binding("other", ("events",)))


class TestPlans:
    def test_should_plan_over_the_finished_one(self) -> None:
        planned = decide.planned(replace(STANDING, blocked=BLOCKED), NEXT, seen=SEEN, over=[None, DONE], location=PLACE)
        assert planned == replace(STANDING, generation=8, plan=NEXT, next_sequence=30, last_location="x")

    def test_should_revise_the_plan_alone(self) -> None:
        revised = decide.revised(STANDING, DONE.tried_again(), over=[DONE], location=PLACE)
        assert revised == replace(STANDING, generation=8, plan=DONE.tried_again())

    def test_should_be_done_where_the_plan_stands_already(self) -> None:
        assert decide.planned(STANDING, DONE, seen=SEEN, over=[NEXT], location=PLACE) is STANDING
        assert decide.revised(STANDING, DONE, over=[], location=PLACE) is STANDING

    def test_should_write_over_what_it_sent_and_did_not_act_on(self) -> None:
        unsettled = replace(STANDING, plan=NEXT)
        longer = replace(NEXT, last=25)
        assert decide.planned(unsettled, longer, seen=SEEN, over=[DONE, NEXT], location=PLACE).plan == longer

    @pytest.mark.parametrize("over", [[], [None], [NEXT], [DONE.tried_again(), DONE.split({})]])
    def test_should_refuse_a_strangers_plan(self, over: list[Plan | None]) -> None:
        with pytest.raises(LedgerLost, match="not a loader"):
            decide.planned(STANDING, replace(NEXT, last=25), seen=SEEN, over=over, location=PLACE)
        with pytest.raises(LedgerLost, match="not a loader"):
            decide.revised(STANDING, replace(NEXT, last=25), over=over, location=PLACE)


class TestBlock:
    def test_should_block_once(self) -> None:
        blocked = decide.blocked_by(STANDING, BLOCKED, location=PLACE)
        assert blocked == replace(STANDING, generation=8, blocked=BLOCKED)
        assert decide.blocked_by(blocked, BLOCKED, location=PLACE) is blocked

    @pytest.mark.parametrize(("skip", "quarantined"), [(True, {12: "not zstd"}), (False, None)])
    def test_should_unblock_with_no_attempts_counted(self, skip: bool, quarantined: dict[int, str] | None) -> None:
        blocked = replace(STANDING, plan=replace(NEXT, attempts=5), blocked=BLOCKED)
        free = decide.unblocked(blocked, skip=skip)
        assert free == replace(
            STANDING, generation=8, plan=replace(NEXT, attempts=0, quarantined=quarantined), blocked=None
        )
        assert decide.unblocked(free, skip=skip) is free

    @pytest.mark.parametrize("ledger", [None, STANDING, replace(STANDING, plan=None, blocked=BLOCKED)])
    def test_should_leave_alone_what_is_not_blocked(self, ledger: Ledger | None) -> None:
        assert decide.unblocked(ledger, skip=True) is ledger

    @pytest.mark.parametrize("earlier", [DONE, None])
    def test_should_take_back_the_very_plan_that_nobody_has_begun_with(self, earlier: Plan | None) -> None:
        planned = replace(STANDING, plan=NEXT)
        before = decide.withdrawn(planned, NEXT, earlier, location=PLACE)
        assert before == replace(STANDING, generation=8, plan=earlier, last_location=None)
        assert decide.withdrawn(before, NEXT, earlier, location=PLACE) is before
        with pytest.raises(LedgerLost, match="not a loader"):
            decide.withdrawn(planned, NEXT.tried_again(), earlier, location=PLACE)

    def test_should_replan_what_was_decided(self) -> None:
        split = replace(STANDING, plan=replace(NEXT, attempts=3, quarantined={}), blocked=BLOCKED)
        free = decide.replanned(split)
        assert free == replace(STANDING, generation=8, plan=replace(NEXT, attempts=0, tables=()), blocked=None)
        assert decide.replanned(free) is free
        assert decide.replanned(None) is None

    @pytest.mark.parametrize("tables", [None, ("events",)])
    def test_should_replan_what_goes_to_the_main_table_alone(self, tables: tuple[str, ...] | None) -> None:
        """So that tables which joined since take part."""
        free = decide.replanned(replace(STANDING, plan=replace(NEXT, tables=tables)))
        assert free is not None
        assert free.plan == replace(NEXT, attempts=0, tables=())

    def test_should_not_replan_what_any_loader_may_take_on(self) -> None:
        ledger = replace(STANDING, plan=replace(NEXT, tables=("events", "dead_letters")))
        assert decide.replanned(ledger) is ledger

    def test_should_replan_what_is_blocked(self) -> None:
        """Also of several tables with nothing decided: the way out that the documentation names must be one."""
        several = replace(NEXT, attempts=5, tables=("events", "clicks"))
        free = decide.replanned(replace(STANDING, plan=several, blocked=BLOCKED))
        assert free == replace(STANDING, generation=8, plan=replace(NEXT, attempts=0, tables=()), blocked=None)


class TestTables:
    OLDER = replace(STANDING, tables=("events", "dead_letters"))

    def test_should_wait_for_all_tables_of_an_older_plan(self) -> None:
        assert decide.waits_for(self.OLDER) == ("events", "dead_letters")
        assert decide.waits_for(replace(self.OLDER, plan=replace(NEXT, tables=("events", "dead_letters")))) == ()
        assert decide.waits_for(STANDING) == ()
        assert decide.waits_for(replace(self.OLDER, plan=None)) == ()

    @pytest.mark.parametrize(
        ("tables", "alone"), [(None, False), ((), False), (("events",), True), (("events", "dead_letters"), False)]
    )
    def test_should_know_what_goes_to_the_main_table_alone(self, tables: tuple[str, ...] | None, alone: bool) -> None:
        assert decide.is_for_main_alone(replace(self.OLDER, plan=replace(NEXT, tables=tables))) is alone
        assert decide.is_for_main_alone(STANDING), "an older plan of one table"

    def test_should_name_the_tables_with_the_plan_that_goes_to_them(self) -> None:
        names = {"tables": ("events", "bad"), "places": ("file:/events", "file:/bad")}
        plan = replace(NEXT, tables=names["places"])
        seen = QueueSeen(20, "ingest/x")
        planned = decide.planned(STANDING, plan, seen=seen, over=[STANDING.plan], location=PLACE, names=names)
        assert (planned.tables, planned.places) == (names["tables"], names["places"])
        assert Ledger.from_bytes(planned.to_bytes()) == planned
        again = decide.revised(planned, plan.tried_again(), over=[plan], location=PLACE)
        assert (again.tables, again.places) == (names["tables"], names["places"])
