"""Ledgers as the release before wrote them, frozen: read, used and upgraded by the first write, refused by nobody."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from buffer.config import GcConfig
from buffer.errors import CorruptLedger, ManifestLost
from buffer.gc.collector import Collector
from buffer.inspect.status import queue_status, read_ledger
from buffer.ledger.binding import Binding
from buffer.ledger.envelope import Envelope
from buffer.ledger.plan import Blocked, Ledger, Plan
from buffer.manifest import Manifest
from buffer.names import ledger_path
from buffer.queue import QueueProducer
from buffer.store import Store
from buffer.testing import ManualClock
from buffer_delta.load.plans import Plans
from tests.queue.queue_support import PATH, memory, named

FOLDER = Path(__file__).parent.parent / "golden" / "ledger"
LEDGER = ledger_path(PATH)
QUEUE = "01HF7YAT0072TECMQ49PKZ57H6"
APP = f"buffer/{QUEUE}"
TABLES = ("events", "dead_letters")
BOUND = Ledger(queue_id=QUEUE, app_id=APP, tables=TABLES)
DIGEST = "86469ef35a36a567"
FIRST = Plan(after=-1, first=0, last=4, digest=DIGEST, table_ids={"events": None, "dead_letters": None})
SPLIT = {2: "not zstd", 4: "\udcff wurde gelöscht: 'ingest/ü#%.batch'"}
IDS = {"events": "b2c1a3f0-0d6a-4f51-9f43-5a1d2b9c7e11", "dead_letters": "0f4d0c3e-4d4e-4e9e-8a53-2f9e6f0c1a77"}
SECOND = Plan(after=4, first=5, last=20, attempts=4, digest=DIGEST, table_ids=IDS)
SEEN = {"born": True, "epoch": 1, "next_sequence": 5, "last_location": "ingest/01M7JW6V2BKF04N3ANEAY9KR1J.batch"}
LATER = {"born": True, "epoch": 1, "next_sequence": 21, "last_location": "ingest/01M7JW6V2BKF04N3ANEAY9KR2K.batch"}
BLOCKED = Blocked(5, 20, "1 of its batches cannot be read after 3 attempts", {9: "count too high"})

WANT = {
    "v1_unborn": BOUND,
    "v1_fresh": Ledger(queue_id=QUEUE, generation=1, app_id=APP, tables=TABLES, born=True),
    "v1_entered": Ledger(queue_id=QUEUE, generation=2, epoch=1, app_id=APP, tables=TABLES, born=True),
    "v1_planned": Ledger(queue_id=QUEUE, generation=3, app_id=APP, tables=TABLES, plan=FIRST, **SEEN),  # type: ignore[arg-type]
    "v1_split": Ledger(
        queue_id=QUEUE,
        generation=5,
        app_id=APP,
        tables=TABLES,
        plan=replace(FIRST.tried_again(), quarantined=SPLIT),  # as it was written: new ones hold no halves
        **SEEN,  # type: ignore[arg-type]
    ),
    "v1_blocked": Ledger(
        queue_id=QUEUE,
        generation=10,
        app_id=APP,
        tables=TABLES,
        plan=SECOND,
        blocked=BLOCKED,
        **LATER,  # type: ignore[arg-type]
    ),
}
ADOPTED = Plan(after=9, first=10, last=20, attempts=0, digest="d", quarantined={})
ALL = sorted([*WANT, "v1_adopted"])


def golden(name: str) -> bytes:
    return (FOLDER / f"{name}.json").read_bytes()


def plans(store: Store) -> Plans:
    return Plans(store, PATH, ManualClock())


@pytest.fixture
def store() -> Store:
    return memory()


def test_should_have_an_expectation_of_every_file() -> None:
    assert [path.stem for path in sorted(FOLDER.iterdir())] == ALL


@pytest.mark.parametrize("name", WANT)
def test_should_read_what_the_release_before_wrote(name: str) -> None:
    assert Ledger.from_bytes(golden(name)) == WANT[name]


def test_should_read_an_adopted_one() -> None:
    ledger = Ledger.from_bytes(golden("v1_adopted"))
    assert (ledger.app_id, ledger.tables, ledger.born, ledger.plan) == ("mine", ("events",), True, ADOPTED)
    assert ledger.was_claimed, "its plan tells, though nobody has entered yet"


@pytest.mark.parametrize("name", ALL)
def test_should_lose_nothing_in_the_upgrade(name: str) -> None:
    before = Ledger.from_bytes(golden(name))
    written = before.to_bytes()
    assert json.loads(written)["version"] == 2
    assert Ledger.from_bytes(written) == before
    old, new = json.loads(golden(name)), json.loads(written)
    section = new.pop("plan")
    assert {"plan": section.pop("range"), **section} == {
        name: value for name, value in old.items() if name not in ("version", "generation", "queue_id", "epoch")
    }
    assert all(new[name] == old[name] for name in ("generation", "queue_id", "epoch"))


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("v1_unborn", "v1_adopted")])
def test_should_go_on_with_it_and_upgrade_it_by_the_first_write(store: Store, name: str) -> None:
    store.put(LEDGER, golden(name))
    ours = plans(store)
    assert ours.bind(Binding(None, TABLES)) == WANT[name]
    assert store.get(LEDGER).data == golden(name), "reading changes nothing"
    entered = ours.enter(2, Binding(APP, TABLES))
    assert entered == WANT[name].changed(epoch=2)
    assert json.loads(store.get(LEDGER).data)["version"] == 2
    after = ours.plan(2, entered.plan, Plan(after=20, first=21, last=22), next_sequence=23, last_location="x")
    assert ours.check(2).plan == after


def test_should_give_birth_to_one_that_was_left_unborn(store: Store) -> None:
    store.put(LEDGER, golden("v1_unborn"))
    assert plans(store).bind(Binding(None, TABLES)) == BOUND.changed(born=True)
    assert json.loads(store.get(LEDGER).data)["version"] == 2


@pytest.mark.parametrize("skip", [True, False])
def test_should_unblock_it(store: Store, skip: bool) -> None:
    store.put(LEDGER, golden("v1_blocked"))
    assert plans(store).unblock(skip=skip) == BLOCKED
    ledger = Ledger.from_bytes(store.get(LEDGER).data)
    assert ledger.plan is not None
    assert (ledger.blocked, ledger.plan.quarantined) == (None, {9: "count too high"} if skip else None)


def test_should_replan_it(store: Store) -> None:
    store.put(LEDGER, golden("v1_split"))
    assert plans(store).replan() == replace(FIRST.tried_again(), quarantined=SPLIT)
    ledger = Ledger.from_bytes(store.get(LEDGER).data)
    assert ledger.plan is not None
    assert ledger.plan.quarantined is None


@pytest.mark.parametrize("name", ALL)
def test_should_be_read_by_those_who_only_pass_by(store: Store, name: str) -> None:
    """Producers beside a missing manifest, the collector, `status`."""
    store.put(LEDGER, golden(name))
    was_claimed = Ledger.from_bytes(golden(name)).was_claimed
    producer = QueueProducer(store, PATH, ManualClock())
    if was_claimed:
        with pytest.raises(ManifestLost):
            producer.append_locations(named("a"))
        store.put(PATH, Manifest.empty().append_all(named(*"abcdefghijklmnopqrstuvwxyz")).to_bytes())
    else:
        producer.append_locations(named("a"))
    assert queue_status(store, PATH).ledger == read_ledger(store, PATH) == Ledger.from_bytes(golden(name))
    assert Collector(GcConfig(store=store)).collect_once().refusal is None
    assert store.get(LEDGER).data == golden(name)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d.pop("plan"),
        lambda d: d.pop("born"),
        lambda d: d.update(future=1),
        lambda d: d.update(range=None),
        lambda d: d.update(epoch="1"),
    ],
    ids=["no plan", "no born", "more", "range", "epoch"],
)
def test_should_stay_strict_with_the_older_version(name: str, damage) -> None:
    document = json.loads(golden(name))
    damage(document)
    with pytest.raises(CorruptLedger, match="damaged"):
        Ledger.from_bytes(json.dumps(document).encode())


def test_should_see_the_loaders_part_as_one_section() -> None:
    assert list(Envelope.from_bytes(golden("v1_fresh")).sections) == ["plan"]
