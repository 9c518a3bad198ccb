"""An append that wins after its batch's name has become too old: nobody says durable of a batch that is gone."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import nullcontext

import pytest

from buffer.config import GcConfig, ProducerConfig
from buffer.errors import AppendOutcomeUnknown, BatchCollected
from buffer.gc.collector import Collector
from buffer.manifest import Manifest
from buffer.produce.adopt import append_uploads
from buffer.produce.durability import Durable
from buffer.produce.groups import LATE_LOOK_PAUSE_S
from buffer.produce.upload import upload_entries
from buffer.store.base import Outcome, Store
from buffer.testing import Fault, FaultyStore, ManualClock
from tests.produce.producer_support import HeldStore, Line, batches_of, queue_of

DAY_S = 24 * 3600.0


class Sleepy(HeldStore):
    """The machine sleeps with the first write of the manifest in hand, and something happens meanwhile."""

    def __init__(self, store: Store, sleep: Callable[[], None]) -> None:
        super().__init__(store)
        self._sleep: Callable[[], None] | None = sleep

    def put_if_match(self, location: str, data: bytes, version: str) -> Outcome:
        sleep, self._sleep = self._sleep, None
        if sleep:
            sleep()
        return self.store.put_if_match(location, data, version)


def collect(store: Store, clock: ManualClock) -> list[str]:
    """What the collector deletes in two looks at a queue where nothing else happens."""
    collector = Collector(GcConfig(store=store), store=store, clock=clock)
    return [location for _ in range(2) for location in collector.collect_once().deleted]


def without_entries(store: Store) -> None:
    """Everything was consumed: nothing but its age protects a batch."""
    found = store.get("ingest/manifest")
    store.put("ingest/manifest", Manifest.from_bytes(found.data).dequeue(0).to_bytes())


def line_on_a_quiet_queue(store: Store, seconds: float, meanwhile: Callable[[Line], None]) -> Line:
    line: Line
    clock = ManualClock(seed=3)
    Line(store, clock=clock).start_queue()
    without_entries(store)

    def sleep() -> None:
        clock.advance(seconds)
        meanwhile(line)

    line = Line(Sleepy(store, sleep), clock=clock)  # type: ignore[arg-type]
    return line


def test_should_name_the_hole_when_the_batch_was_collected_before_the_append_landed(store: Store) -> None:
    line = line_on_a_quiet_queue(store, 2 * DAY_S, lambda line: collected.extend(collect(store, line.clock)))
    collected: list[str] = []
    batch = line.upload(b"asleep")
    assert line.committer.commit() == 0
    assert batch.location in collected, "the collector had every right to"
    error = batch.watcher.result()
    assert isinstance(error, BatchCollected)
    assert isinstance(error, AppendOutcomeUnknown), "whoever looks before repeating does so here, too"
    assert (error.sequence, error.location) == (1, batch.location)
    assert "sequence 1" in str(error)
    assert str(batch.location) in str(error)
    assert [entry.location for entry in queue_of(store)] == [batch.location], "it did land"
    assert pickle.loads(pickle.dumps(error)).sequence == 1
    later = line.upload(b"awake")
    assert line.committer.commit() == 1, "the producer goes on"
    assert isinstance(later.watcher.result(), Durable)


def test_should_say_durable_when_the_batch_is_still_there(store: Store) -> None:
    line = line_on_a_quiet_queue(store, 2 * DAY_S, lambda _: None)
    batch = line.upload(b"asleep")
    assert line.committer.commit() == 1
    assert batch.watcher.result() == Durable(1, batch.location or "")
    assert batches_of(store) == [[b"asleep"]]
    assert LATE_LOOK_PAUSE_S in line.clock.sleeps, "a delete under way would have arrived by then"


def test_should_notice_a_delete_that_was_under_way_when_the_append_landed(memory: Store) -> None:
    """The collector looked before, and its request arrives while the producer pauses between its two looks."""
    clock = ManualClock(seed=3)
    Line(memory, clock=clock).start_queue()
    without_entries(memory)
    line = Line(Sleepy(memory, lambda: clock.advance(2 * DAY_S)), clock=clock)  # type: ignore[arg-type]
    batch = line.upload(b"asleep")
    real = clock.sleep

    def sleep(seconds: float) -> None:
        if seconds == LATE_LOOK_PAUSE_S:
            memory.delete_many([batch.location or ""])
        real(seconds)

    clock.sleep = sleep  # type: ignore[method-assign]
    assert line.committer.commit() == 0
    assert isinstance(batch.watcher.result(), BatchCollected)


class Panic(BaseException):
    """As a panic in a native library arrives."""


@pytest.mark.parametrize("trouble", [RuntimeError, Panic])
def test_should_not_append_again_when_the_look_ends_as_nobody_expects(
    memory: Store, trouble: type[BaseException]
) -> None:
    clock = ManualClock(seed=3)
    Line(memory, clock=clock).start_queue()
    without_entries(memory)

    class Broken(Sleepy):
        def head(self, location: str) -> object:  # type: ignore[override]
            raise trouble(location)

    line = Line(Broken(memory, lambda: clock.advance(2 * DAY_S)), clock=clock)  # type: ignore[arg-type]
    batch = line.upload(b"asleep")
    with pytest.raises(Panic) if trouble is Panic else nullcontext():
        line.committer.commit()
    assert type(batch.watcher.result()) is AppendOutcomeUnknown
    assert line.committer.is_idle
    line.committer.commit()
    assert [entry.location for entry in queue_of(memory)] == [batch.location], "once"


def test_should_not_look_when_no_collector_can_have_deleted_it(memory: Store) -> None:
    """An hour late: the manifest did not change, and then the collector waits for a day."""
    looked: list[str] = []

    class Counted(Sleepy):
        def head(self, location: str) -> object:  # type: ignore[override]
            looked.append(location)
            return super().head(location)

    clock = ManualClock(seed=3)
    Line(memory, clock=clock).start_queue()
    without_entries(memory)
    collected: list[str] = []

    def sleep() -> None:
        clock.advance(DAY_S - 600)
        collected.extend(collect(memory, ManualClock(clock.now_ms() + 300_000)))

    line = Line(Counted(memory, sleep), clock=clock)  # type: ignore[arg-type]
    batch = line.upload(b"asleep")
    assert line.committer.commit() == 1
    assert isinstance(batch.watcher.result(), Durable)
    assert looked == []
    assert batch.location not in collected


def test_should_say_that_nobody_can_tell_when_the_look_fails(memory: Store) -> None:
    faulty = FaultyStore(memory)
    line = line_on_a_quiet_queue(faulty, 2 * DAY_S, lambda _: faulty.add(Fault.before("head", times=100)))
    batch = line.upload(b"asleep")
    assert line.committer.commit() == 0
    error = batch.watcher.result()
    assert isinstance(error, AppendOutcomeUnknown)
    assert not isinstance(error, BatchCollected)
    assert error.expected_sequence == 1


def test_should_look_again_when_the_store_hiccups(memory: Store) -> None:
    faulty = FaultyStore(memory)
    line = line_on_a_quiet_queue(faulty, 2 * DAY_S, lambda _: faulty.add(Fault.before("head", times=3)))
    line.upload(b"asleep")
    assert line.committer.commit() == 1


def test_should_raise_the_hole_from_an_append_of_uploads(memory: Store) -> None:
    clock = ManualClock(seed=3)
    config = ProducerConfig(store=memory)
    Line(memory, clock=clock).start_queue()
    without_entries(memory)
    upload = upload_entries([b"asleep"], store=memory, clock=clock, config=config)

    def sleep() -> None:
        clock.advance(2 * DAY_S)
        assert upload.location in collect(memory, clock)

    with pytest.raises(BatchCollected) as caught:
        append_uploads([upload], store=Sleepy(memory, sleep), clock=clock, config=config)
    assert (caught.value.sequence, caught.value.location) == (1, upload.location)


def test_should_not_delete_on_a_manifest_that_changed_since_the_look(memory: Store) -> None:
    """What is only old enough for a quiet queue stays, if an append lands between the look and the delete."""
    clock = ManualClock(seed=3)
    Line(memory, clock=clock).start_queue()
    without_entries(memory)
    line = Line(memory, clock=clock)
    orphan = line.upload(b"orphan")
    clock.advance(2 * DAY_S)

    class Landing(HeldStore):
        def get_if_changed(self, location: str, version: str) -> object:  # type: ignore[override]
            Line(memory, clock=clock).start_queue()
            return super().get_if_changed(location, version)

    collector = Collector(GcConfig(store=memory), store=Landing(memory), clock=clock)
    collector.collect_once()
    assert collector.collect_once().deleted == ()
    memory.head(orphan.location or "")
    assert orphan.location in collector.collect_once().deleted, "now the manifest has changed between two looks"
