"""Binding a queue to an app and its tables: once, whoever comes at the same time and whatever replies get lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from buffer.cas import CAS_ATTEMPTS_MAX
from buffer.errors import (
    ContentionError,
    CorruptLedger,
    CorruptManifest,
    LedgerLost,
    ObjectNotFound,
    QueueBound,
    StorageError,
    StoreUnusable,
)
from buffer.ledger.binding import Binding
from buffer.ledger.plan import Blocked, Ledger, Plan
from buffer.names import ledger_path
from buffer.store import Lost, Store
from buffer.testing import Fault, FaultyStore, ManualClock
from buffer_delta.load.plans import Plans
from tests.consume.consumer_support import Tapped
from tests.queue.queue_support import PATH, append, consumer, manifest_in, memory

LEDGER = ledger_path(PATH)
TABLES = ("events", "dead_letters")
FOREVER = 10**6


@pytest.fixture
def inner() -> Store:
    return memory()


def journal(store: Store, seed: int = 0) -> Plans:
    return Plans(store, PATH, ManualClock(seed=seed))


def ledger_in(store: Store) -> Ledger:
    return Ledger.from_bytes(store.get(LEDGER).data)


def put(store: Store, ledger: Ledger) -> None:
    store.put(LEDGER, ledger.to_bytes())


class TestBind:
    def test_should_make_a_ledger_for_a_fresh_queue(self, inner: Store) -> None:
        ledger = journal(inner).bind(Binding(None, TABLES))
        assert ledger == ledger_in(inner)
        assert ledger.born
        assert len(ledger.queue_id) == 26
        assert (ledger.app_id, ledger.tables) == (f"buffer/{ledger.queue_id}", TABLES)
        assert (ledger.epoch, ledger.plan, ledger.was_claimed) == (0, None, False)

    def test_should_claim_and_dequeue_nothing(self, inner: Store) -> None:
        append(inner, "a")
        before = inner.get(PATH)
        journal(inner).bind(Binding(None, TABLES))
        assert inner.get(PATH) == before

    def test_should_not_make_a_manifest(self, inner: Store) -> None:
        journal(inner).bind(Binding(None, TABLES))
        with pytest.raises(ObjectNotFound):
            inner.get(PATH)

    @pytest.mark.parametrize("app_id", ["mine", None])
    def test_should_find_its_ledger_again(self, inner: Store, app_id: str | None) -> None:
        first = journal(inner).bind(Binding("mine", TABLES))
        assert journal(inner, seed=1).bind(Binding(app_id, TABLES)) == first
        assert ledger_in(inner) == first

    @pytest.mark.parametrize(
        ("app_id", "tables"),
        [("other", TABLES), ("mine", ("dead_letters", "events")), (None, ("elsewhere", "dead_letters"))],
    )
    @pytest.mark.parametrize("born", [True, False])
    def test_should_refuse_a_queue_that_feeds_another(
        self, inner: Store, app_id: str | None, tables: tuple[str, ...], born: bool
    ) -> None:
        put(inner, Ledger(queue_id="Q", app_id="mine", tables=TABLES, born=born))
        before = inner.get(LEDGER)
        with pytest.raises(QueueBound, match="this queue feeds the app 'mine'") as caught:
            journal(inner).bind(Binding(app_id, tuple(tables)))
        error = caught.value
        assert (error.app_id, error.tables) == (app_id, tables)
        assert (error.bound_app_id, error.bound_tables) == ("mine", TABLES)
        assert inner.get(LEDGER) == before

    @pytest.mark.parametrize("tables", [("events",), ("events", "routed"), ("events", "routed", "dead_letters")])
    def test_should_let_tables_join_and_leave(self, inner: Store, tables: tuple[str, ...]) -> None:
        """… with the next plan: until then the ledger names those of the one before."""
        first = journal(inner).bind(Binding("mine", TABLES))
        assert journal(inner).bind(Binding("mine", tables)) == first

    def test_should_know_the_main_table_by_its_place(self, inner: Store) -> None:
        journal(inner).bind(Binding("mine", ("./events",), ("file:/data/events",)))
        assert journal(inner).bind(Binding("mine", ("/data/events/",), ("file:/data/events",))).tables == ("./events",)
        with pytest.raises(QueueBound, match="file:/data/events"):  # the same words, said in another folder
            journal(inner).bind(Binding("mine", ("./events",), ("file:/elsewhere/events",)))

    def test_should_know_a_table_that_was_moved_by_its_id(self, inner: Store) -> None:
        plan = Plan(-1, 0, 3, table_ids={"file:/old": "the id", "file:/dead": None}, tables=("file:/old", "file:/dead"))
        bound = Ledger("Q", app_id="mine", tables=("old", "dead"), places=plan.tables or (), born=True, plan=plan)
        put(inner, bound)
        moved = Binding("mine", ("new",), ("file:/new",), main_id="the id")
        assert journal(inner).bind(moved) == bound
        for main_id in (None, "another"):
            with pytest.raises(QueueBound, match="moved or renamed"):
                journal(inner).bind(replace(moved, main_id=main_id))

    def test_should_know_a_table_that_was_moved_after_its_first_range_by_what_it_holds(self, inner: Store) -> None:
        """The first plan was written before there was a table, so it knows no id."""
        plan = Plan(-1, 0, 3, table_ids={"file:/old": None}, tables=("file:/old",))
        bound = Ledger("Q", app_id="mine", tables=("old",), places=("file:/old",), born=True, plan=plan)
        put(inner, bound)
        moved = Binding("mine", ("new",), ("file:/new",), main_id="any", main_position=3)
        assert journal(inner).bind(moved) == bound
        for position in (-1, 2, 4):  # it has loaded nothing, or something else
            with pytest.raises(QueueBound, match="moved or renamed"):
                journal(inner).bind(replace(moved, main_position=position))

    def test_should_go_on_with_the_binding_of_an_older_release(self, inner: Store) -> None:
        """It knew no places: the table is the one that is spelled the same."""
        put(inner, Ledger("Q", app_id="mine", tables=("./events", "./dead"), born=True))
        assert journal(inner).bind(Binding(None, ("./events",), ("file:/data/events",))).born
        with pytest.raises(QueueBound):
            journal(inner).bind(Binding(None, ("./dead",), ("file:/data/dead",)))

    def test_should_go_on_with_a_ledger_that_was_left_unborn(self, inner: Store) -> None:
        put(inner, Ledger(queue_id="Q", app_id="mine", tables=TABLES))
        append(inner, "a")
        ledger = journal(inner).bind(Binding("mine", TABLES))
        assert (ledger.queue_id, ledger.born, ledger.generation) == ("Q", True, 1)

    @pytest.mark.parametrize("unborn", [True, False])
    def test_should_refuse_a_used_queue_without_its_ledger(self, inner: Store, unborn: bool) -> None:
        append(inner, "a")
        consumer(inner).claim()
        if unborn:
            put(inner, Ledger(queue_id="Q", app_id="mine", tables=TABLES))
        for _ in range(2):  # again and again
            with pytest.raises(LedgerLost, match="adopt=True") as caught:
                journal(inner).bind(Binding("mine", TABLES))
            assert caught.value.location == LEDGER
        if unborn:
            assert not ledger_in(inner).born
        else:
            with pytest.raises(ObjectNotFound):  # nothing is left behind that would name tables
                inner.get(LEDGER)
        assert manifest_in(inner).epoch == 1

    def test_should_bind_a_born_ledger_whatever_the_epoch(self, inner: Store) -> None:
        first = journal(inner).bind(Binding("mine", TABLES))
        consumer(inner).claim()
        assert journal(inner).bind(Binding("mine", TABLES)) == first

    def test_should_name_what_cannot_be_read(self, inner: Store) -> None:
        inner.put(PATH, bytes(20) + b"\x09\x00")
        with pytest.raises(CorruptManifest, match="'ingest/manifest': unsupported") as caught:
            journal(inner).bind(Binding("mine", TABLES))
        assert (caught.value.location, caught.value.version) == (PATH, 9)
        inner.put(LEDGER, b'{"version": 3}')
        with pytest.raises(CorruptLedger, match="has version 3") as corrupt:
            journal(inner).bind(Binding("mine", TABLES))
        assert (corrupt.value.location, corrupt.value.version) == (LEDGER, 3)

    def test_should_read_nothing_where_there_is_no_ledger(self, inner: Store) -> None:
        assert journal(inner).read() is None


class TestBindTogether:
    """Two loaders start on one queue; the other acts in full before the n-th request of ours."""

    @staticmethod
    def at_call(store: Store, n: int, act: Callable[[], object]) -> Tapped:
        def tap(_operation: str, _location: str) -> None:
            if len(tapped.calls) == n + 1:
                act()

        tapped = Tapped(store, tap)
        return tapped

    @pytest.mark.parametrize("n", range(8))
    @pytest.mark.parametrize("goes_on", [False, True], ids=["binds", "binds, claims and enters"])
    @pytest.mark.parametrize("existing", [False, True], ids=["fresh", "bound before"])
    def test_should_share_one_binding(self, inner: Store, n: int, goes_on: bool, existing: bool) -> None:
        append(inner, "a")
        if existing:
            journal(inner, seed=9).bind(Binding("mine", TABLES))
        other: list[Ledger] = []

        def act() -> None:
            theirs = journal(inner, seed=2)
            other.append(theirs.bind(Binding("mine", TABLES)))
            if goes_on:
                epoch = consumer(inner).claim().epoch
                other.append(theirs.enter(epoch, Binding("mine", TABLES)))

        ours = journal(self.at_call(inner, n, act), seed=1).bind(Binding("mine", TABLES))
        if not other:  # we had finished before
            act()
        assert {ours.queue_id} == {ledger.queue_id for ledger in other} == {ledger_in(inner).queue_id}
        assert ours.born
        assert ledger_in(inner) == other[-1]

    @pytest.mark.parametrize("n", range(8))
    def test_should_let_only_one_of_two_apps_in(self, inner: Store, n: int) -> None:
        bound: list[str] = []

        def bind(store: Store, app_id: str) -> None:
            try:
                journal(store, seed=len(app_id)).bind(Binding(app_id, TABLES))
                bound.append(app_id)
            except QueueBound as error:
                bound.append(f"{app_id} refused by {error.bound_app_id}")

        tapped = self.at_call(inner, n, lambda: bind(inner, "other"))
        bind(tapped, "mine")
        if len(bound) == 1:
            bind(inner, "other")
        assert sorted(bound) in (["mine", "other refused by mine"], ["mine refused by other", "other"])
        assert ledger_in(inner).app_id in bound


class TestBindWithFaults:
    @pytest.mark.parametrize("op", ["put_if_absent", "put_if_match"])
    @pytest.mark.parametrize("answer", [None, Lost])
    @pytest.mark.parametrize("when", [Fault.before, Fault.after, Fault.late])
    def test_should_bind_once(self, inner: Store, op: str, when: Callable[..., Fault], answer) -> None:
        store = FaultyStore(inner, [when(op, answer)])
        ledger = journal(store).bind(Binding(None, TABLES))
        store.land()
        assert store.unused == []
        assert ledger_in(inner) == ledger
        assert ledger.born
        assert ledger.app_id == f"buffer/{ledger.queue_id}"

    def test_should_read_through_errors(self, inner: Store) -> None:
        store = FaultyStore(inner, [Fault.before("get", times=3), Fault.before("get_if_changed", times=2)])
        assert journal(store).bind(Binding(None, TABLES)).born

    def test_should_report_the_store_when_it_stays_away(self, inner: Store) -> None:
        store = FaultyStore(inner, [Fault.before("get", times=FOREVER)])
        with pytest.raises(StorageError, match="injected fault"):
            journal(store).bind(Binding(None, TABLES))
        store = FaultyStore(inner, [Fault.before("get", StoreUnusable)])
        with pytest.raises(StoreUnusable):
            journal(store).bind(Binding(None, TABLES))

    def test_should_give_up_and_say_after_how_many_attempts(self, inner: Store) -> None:
        store = FaultyStore(inner, [Fault.before("put_if_absent", times=FOREVER)])
        with pytest.raises(ContentionError, match=f"after {CAS_ATTEMPTS_MAX} attempts"):
            journal(store).bind(Binding(None, TABLES))

    @pytest.mark.parametrize("seed", range(40))
    def test_should_agree_whatever_goes_wrong(self, inner: Store, seed: int) -> None:
        """Two loaders, one after the other's every call, both on stores where every third call fails."""
        faulty = [FaultyStore(inner, seed=seed * 2 + i, rate=0.35) for i in range(2)]
        second: list[Ledger] = []
        tapped = Tapped(faulty[0])

        def tap(_operation: str, _location: str) -> None:
            if len(tapped.calls) == 1 + seed % 5:
                second.append(journal(faulty[1], seed=2).bind(Binding(None, TABLES)))

        tapped.tap = tap
        first = journal(tapped, seed=1).bind(Binding(None, TABLES))
        second = second or [journal(faulty[1], seed=2).bind(Binding(None, TABLES))]
        for store in faulty:
            store.heal()
        assert first == second[0] == ledger_in(inner)


class TestAdopt:
    """The operator vouches that no other loader runs."""

    PLAN = Plan(after=9, first=10, last=20)
    OTHERS = Ledger(
        queue_id="Q",
        app_id="other",
        tables=("elsewhere",),
        born=True,
        generation=5,
        epoch=3,
        next_sequence=30,
        last_location="ingest/x",
        plan=PLAN,
        blocked=Blocked(10, 20, "bad"),
    )
    DONE = Plan(after=14, first=15, last=15, attempts=0, tables=TABLES)

    def test_should_take_over_a_queue_of_another_app(self, inner: Store) -> None:
        put(inner, self.OTHERS)
        ledger = journal(inner).adopt(Binding("mine", TABLES), committed=15)
        assert ledger == ledger_in(inner)
        assert (ledger.queue_id, ledger.app_id, ledger.tables) == ("Q", "mine", TABLES)
        assert (ledger.plan, ledger.blocked, ledger.last_location) == (self.DONE, None, None)
        assert (ledger.epoch, ledger.next_sequence, ledger.generation) == (3, 30, 6)
        assert journal(inner).bind(Binding("mine", TABLES)) == ledger

    @pytest.mark.parametrize("unborn", [True, False])
    def test_should_take_over_a_used_queue_without_its_ledger(self, inner: Store, unborn: bool) -> None:
        append(inner, "a")
        epoch = consumer(inner).claim().epoch
        if unborn:
            put(inner, Ledger(queue_id="Q", app_id="mine", tables=TABLES))
        ledger = journal(inner).adopt(Binding("mine", TABLES), committed=15)
        assert (ledger.born, ledger.app_id, ledger.plan) == (True, "mine", self.DONE)
        assert journal(inner).enter(epoch + 1, Binding("mine", TABLES)).plan == self.DONE

    def test_should_take_over_a_queue_whose_ledger_is_damaged(self, inner: Store) -> None:
        inner.put(LEDGER, b'{"version": 1, "queue')
        with pytest.raises(CorruptLedger, match="adopt=True"):
            journal(inner).bind(Binding("mine", TABLES))
        ledger = journal(inner).adopt(Binding("mine", TABLES), committed=15)
        assert (ledger.born, ledger.app_id, ledger.plan) == (True, "mine", self.DONE)
        assert ledger_in(inner) == ledger

    def test_should_leave_the_ledger_of_a_newer_release_alone(self, inner: Store) -> None:
        inner.put(LEDGER, b'{"version": 3}')
        with pytest.raises(CorruptLedger, match="upgrade"):
            journal(inner).adopt(Binding("mine", TABLES), committed=15)
        assert inner.get(LEDGER).data == b'{"version": 3}'

    def test_should_know_no_plan_where_nothing_was_committed(self, inner: Store) -> None:
        put(inner, self.OTHERS)
        assert journal(inner).adopt(Binding("mine", TABLES), committed=-1).plan is None

    def test_should_accept_the_very_first_sequence(self, inner: Store) -> None:
        ledger = journal(inner).adopt(Binding("mine", TABLES), committed=0)
        assert ledger.plan == Plan(after=-1, first=0, last=0, attempts=0, tables=TABLES)
        assert ledger_in(inner) == ledger

    @pytest.mark.parametrize("committed", [-1, 9, 20])
    def test_should_leave_its_own_ledger_alone(self, inner: Store, committed: int) -> None:
        """Or a flag that is left switched on would drop the plan of a loader that died."""
        ours = Ledger(queue_id="Q", app_id="mine", tables=TABLES, born=True, epoch=3, plan=self.PLAN)
        put(inner, ours)
        assert journal(inner).adopt(Binding("mine", TABLES), committed) == ours
        assert ledger_in(inner) == ours

    def test_should_bring_its_own_ledger_up_to_the_tables(self, inner: Store) -> None:
        """A ledger put back from a backup: the tables have committed more than it planned."""
        ours = Ledger(queue_id="Q", app_id="mine", tables=TABLES, born=True, epoch=3, plan=self.PLAN)
        put(inner, ours)
        ledger = journal(inner).adopt(Binding("mine", TABLES), committed=25)
        assert ledger.plan == Plan(after=24, first=25, last=25, attempts=0, tables=TABLES)
        assert ledger.queue_id == "Q"
        assert journal(inner).adopt(Binding("mine", TABLES), committed=25) == ledger

    def test_should_plan_what_only_some_tables_have(self, inner: Store) -> None:
        """The first table was committed, then the ledger was lost: the others must get exactly that range."""
        ledger = journal(inner).adopt(Binding("mine", TABLES), committed=9, ahead=[20], digest="d")
        assert ledger.plan == Plan(after=9, first=10, last=20, attempts=0, digest="d", quarantined={}, tables=TABLES)

    def test_should_plan_nothing_for_tables_behind_the_main_one(self, inner: Store) -> None:
        """They got nothing, or joined later."""
        assert journal(inner).adopt(Binding("mine", TABLES), committed=15, ahead=[]).plan == self.DONE

    def test_should_refuse_tables_that_one_range_cannot_have_brought_there(self, inner: Store) -> None:
        with pytest.raises(LedgerLost, match=r"at sequence 9, others at \[20, 30\]"):
            journal(inner).adopt(Binding("mine", TABLES), committed=9, ahead=[20, 30, 20])
        assert journal(inner).read() is None

    @pytest.mark.parametrize("answer", [None, Lost])
    @pytest.mark.parametrize("when", [Fault.before, Fault.after, Fault.late])
    @pytest.mark.parametrize("existing", [True, False])
    def test_should_adopt_once(self, inner: Store, when: Callable[..., Fault], answer, existing: bool) -> None:
        if existing:
            put(inner, self.OTHERS)
        store = FaultyStore(inner, [when("put_if_match" if existing else "put_if_absent", answer)])
        ledger = journal(store).adopt(Binding("mine", TABLES), committed=15)
        store.land()
        assert (ledger_in(inner), store.unused) == (ledger, [])
        assert ledger.generation == (6 if existing else 1)
