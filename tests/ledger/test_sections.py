"""Sections of the ledger: a new one is a new class, strangers' are kept by passers-by and refused by who must obey."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buffer.config import GcConfig
from buffer.errors import CorruptLedger, Fenced, LedgerLost
from buffer.gc.collector import Collector
from buffer.inspect.status import queue_status
from buffer.journal import Journal
from buffer.ledger.binding import Binding
from buffer.ledger.envelope import Envelope, Fields
from buffer.ledger.plan import Blocked, Ledger, Plan
from buffer.names import ledger_path
from buffer.store import Store
from buffer.testing import Fault, FaultyStore, ManualClock
from buffer_delta.load.plans import Plans
from tests.queue.queue_support import PATH, append, consumer, memory

LEDGER = ledger_path(PATH)
TABLES = ("events",)
PLAN = Plan(after=-1, first=0, last=3, quarantined={1: "bad"})
OURS = Ledger(queue_id="Q", epoch=3, app_id="mine", tables=TABLES, born=True, next_sequence=4, plan=PLAN)
STRANGE = {"until": {"7": [10**19, True, None, "ü", "\udcff", {}]}, "next": -5}


@dataclass(frozen=True, slots=True)
class Visits(Envelope):
    """A section as a later module would declare it."""

    SECTION: ClassVar[str | None] = "visits"
    USER: ClassVar[str] = "visitor"
    count: int = 0

    def section(self) -> dict[str, Any] | None:
        return {"count": self.count} if self.count else None

    @classmethod
    def opened(cls, header: dict[str, Any], document: dict[str, Any] | None) -> Self:
        return cls(**header, count=Fields("visits.", document, ["count"]).count("count") if document else 0)


@pytest.fixture
def store() -> Store:
    return memory()


def put(store: Store, ledger: Envelope) -> None:
    store.put(LEDGER, ledger.to_bytes())


def document_in(store: Store) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(store.get(LEDGER).data)
    return document


def with_stranger() -> Ledger:
    return OURS.changed(sections={"quotas": STRANGE})


class TestANewSection:
    def test_should_be_absent_until_somebody_needs_it(self) -> None:
        assert json.loads(Visits(queue_id="Q").to_bytes()) == {
            "version": 2,
            "generation": 0,
            "queue_id": "Q",
            "epoch": 0,
        }
        assert Visits.from_bytes(Visits(queue_id="Q").to_bytes()) == Visits(queue_id="Q")
        assert "plan" not in json.loads(Ledger(queue_id="Q").to_bytes())

    def test_should_live_beside_the_others_in_one_file(self, store: Store) -> None:
        put(store, OURS)
        visits = Journal(store, PATH, ManualClock(), Visits)
        for _ in range(2):
            visits.update(lambda seen, _sent: seen and seen.changed(count=seen.count + 1))
        assert document_in(store)["visits"] == {"count": 2}
        ledger = Ledger.from_bytes(store.get(LEDGER).data)
        assert ledger == OURS.changed(sections={"visits": {"count": 2}}).changed()

    def test_should_be_written_under_an_epoch_alone(self, store: Store) -> None:
        put(store, OURS)
        visits = Journal(store, PATH, ManualClock(), Visits)
        assert visits.update_owned(3, lambda seen: seen.changed(count=1)).count == 1
        with pytest.raises(Fenced, match="this visitor holds epoch 2, the ledger is at 3: another visitor"):
            visits.update_owned(2, lambda seen: seen.changed(count=2))
        with pytest.raises(LedgerLost):
            visits.read_owned(4)
        store.delete_many([LEDGER])
        with pytest.raises(LedgerLost, match="it is gone"):
            visits.read_owned(3)
        with pytest.raises(LedgerLost, match="it is gone"):
            visits.update_owned(3, lambda seen: seen.changed(count=2))

    def test_should_be_named_when_it_is_damaged(self) -> None:
        data = json.dumps({**json.loads(OURS.to_bytes()), "visits": {"count": -1}}).encode()
        with pytest.raises(CorruptLedger, match=r"visits\.count is -1"):
            Visits.from_bytes(data)
        assert Ledger.from_bytes(data).sections == {"visits": {"count": -1}}, "not the loader's to judge"

    def test_should_let_a_loader_bind_a_file_that_another_section_began(self, store: Store) -> None:
        put(store, Envelope(queue_id="Q"))
        ledger = Plans(store, PATH, ManualClock()).bind(Binding(None, TABLES))
        assert (ledger.queue_id, ledger.app_id, ledger.born) == ("Q", "buffer/Q", True)

    def test_should_not_let_a_loader_bind_it_once_the_queue_was_claimed(self, store: Store) -> None:
        append(store, "a")
        put(store, Envelope(queue_id="Q"))
        consumer(store).claim()
        with pytest.raises(LedgerLost, match="consumed before"):
            Plans(store, PATH, ManualClock()).bind(Binding(None, TABLES))

    def test_should_write_again_without_a_read_while_nobody_else_does(self, store: Store) -> None:
        put(store, OURS)
        counted = FaultyStore(store)
        visits = Journal(counted, PATH, ManualClock(), Visits)
        visits.read_owned(3)
        before = len(counted.history)
        for n in range(1, 4):
            visits.update_owned(3, lambda seen, n=n: seen.changed(count=n))  # type: ignore[misc]
        assert [call.op for call in counted.history[before:]] == ["put_if_match"] * 3


class TestAStrangersSection:
    @pytest.mark.parametrize(
        "call",
        [
            lambda plans: plans.bind(Binding("mine", TABLES)),
            lambda plans: plans.bind(Binding("other", TABLES)),
            lambda plans: plans.adopt(Binding("mine", TABLES), committed=3),
            lambda plans: plans.adopt(Binding("other", TABLES), committed=9),
            lambda plans: plans.enter(4, Binding("mine", TABLES)),
            lambda plans: plans.plan(3, PLAN, PLAN.tried_again(), next_sequence=9, last_location="x"),
            lambda plans: plans.revise(3, PLAN, PLAN.tried_again()),
            lambda plans: plans.block(3, Blocked(0, 3, "bad")),
        ],
        ids=["bind", "bind another", "adopt", "adopt another", "enter", "plan", "revise", "block"],
    )
    def test_should_stop_a_loader(self, store: Store, call) -> None:
        put(store, with_stranger())
        before = store.get(LEDGER)
        with pytest.raises(
            CorruptLedger, match=r"'ingest/manifest.ledger' has the section 'quotas', .*Upgrade"
        ) as caught:
            call(Plans(store, PATH, ManualClock()))
        assert (caught.value.sections, caught.value.version, caught.value.location) == (("quotas",), 2, LEDGER)
        assert store.get(LEDGER) == before

    def test_should_stop_a_loader_that_runs_already(self, store: Store) -> None:
        put(store, OURS)
        plans = Plans(store, PATH, ManualClock())
        plans.enter(4, Binding("mine", TABLES))
        put(store, Ledger.from_bytes(store.get(LEDGER).data).changed(sections={"quotas": STRANGE}))
        with pytest.raises(CorruptLedger, match="Upgrade"):
            plans.revise(4, PLAN, PLAN.tried_again())

    def test_should_be_kept_by_operators(self, store: Store) -> None:
        put(store, with_stranger().changed(blocked=Blocked(0, 3, "bad", {2: "gone"})))
        plans = Plans(store, PATH, ManualClock())
        assert plans.unblock(skip=False) is not None
        assert plans.replan() is not None
        assert document_in(store)["quotas"] == STRANGE

    def test_should_not_disturb_those_who_pass_by(self, store: Store) -> None:
        append(store, "a", "b", "c", "d")
        put(store, with_stranger())
        before = store.get(LEDGER)
        status = queue_status(store, PATH)
        assert status.ledger is not None
        assert status.ledger.sections == {"quotas": STRANGE}
        assert Collector(GcConfig(store=store)).collect_once().refusal is None
        append(store, "e")
        assert store.get(LEDGER) == before

    def test_should_not_be_lost_with_a_damaged_plan_that_is_adopted(self, store: Store) -> None:
        document = {**json.loads(with_stranger().to_bytes()), "plan": {"born": 1}}
        store.put(LEDGER, json.dumps(document).encode())
        with pytest.raises(CorruptLedger, match="Upgrade"):
            Plans(store, PATH, ManualClock()).adopt(Binding("mine", TABLES), committed=3)
        assert document_in(store) == document

    def test_should_leave_the_envelope_of_a_damaged_plan_that_is_adopted(self, store: Store) -> None:
        document = {**json.loads(OURS.to_bytes()), "plan": {"born": 1}}
        store.put(LEDGER, json.dumps(document).encode())
        ledger = Plans(store, PATH, ManualClock()).adopt(Binding("mine", TABLES), committed=3)
        assert (ledger.queue_id, ledger.epoch, ledger.generation) == ("Q", 3, 1)
        assert ledger.plan == Plan(after=2, first=3, last=3, attempts=0, tables=TABLES)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
names = st.text(min_size=1, max_size=6).filter(
    lambda name: name not in ("version", "generation", "queue_id", "epoch", "plan")
)


@settings(deadline=None)  # a busy machine is no bug
@given(st.dictionaries(names, st.dictionaries(st.text(max_size=4), values, max_size=3), max_size=3))
def test_should_keep_any_section_value_for_value(sections: dict[str, Any]) -> None:
    ledger = OURS.changed(sections=sections)
    read = Ledger.from_bytes(ledger.to_bytes())
    assert read == ledger
    again = Ledger.from_bytes(read.changed(plan=PLAN.tried_again()).to_bytes())
    assert again.sections == sections
    assert list(again.sections) == list(sections)


@pytest.mark.parametrize("when", [Fault.before, Fault.after, Fault.late])
def test_should_say_what_a_write_was_made_from_even_if_its_reply_was_lost(store: Store, when) -> None:
    put(store, OURS)
    faulty = FaultyStore(store, [when("put_if_match")])
    applied = Journal(faulty, PATH, ManualClock(), Visits).update(
        lambda seen, _sent: seen.changed(count=1) if seen and not seen.count else seen
    )
    assert applied.before is not None
    assert applied.after is not None
    assert (applied.before.count, applied.after.count) == (0, 1)
    nothing = Journal(store, PATH, ManualClock(), Visits).update(lambda seen, _sent: seen)
    assert nothing.before is None
