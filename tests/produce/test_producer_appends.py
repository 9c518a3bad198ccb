"""Appends that fail, names that grow too old, groups: the sync half of the producer, step by step."""

from __future__ import annotations

import pytest

from buffer.config import ProducerConfig
from buffer.errors import (
    AppendOutcomeUnknown,
    BufferQueueError,
    ContentionError,
    CorruptManifest,
    ManifestLost,
    StorageError,
    StoreUnusable,
)
from buffer.manifest import Manifest
from buffer.produce.append import GROUP_BATCHES_MAX, Committer
from buffer.produce.durability import Durable
from buffer.produce.intake import check_call
from buffer.queue import QueueConsumer
from buffer.store import Lost, open_store
from buffer.testing import Fault, FaultyStore, ManualClock
from tests.nets import HANGS_S
from tests.produce.producer_support import (
    SEEDS,
    HeldStore,
    Line,
    batches_of,
    entries_of,
    make_producer,
    objects_of,
    outcomes,
    queue_of,
)

MANIFEST = "ingest/manifest"


# Appends that fail


def test_should_recover_by_itself_after_the_store_was_unusable() -> None:
    store = FaultyStore(open_store("memory://"), [Fault.before("put_if_absent", StoreUnusable)])
    with make_producer(store) as producer:
        lost = producer.produce([b"one"])
        with pytest.raises(StoreUnusable):
            producer.flush()
        assert isinstance(lost.watcher.result(), StoreUnusable)
        producer.produce([b"two"])
        producer.flush()
    assert entries_of(store) == [b"two"]


def test_should_keep_trying_a_contended_append_until_its_time_is_up() -> None:
    # 64 attempts of one append end long before an hour has passed: it is called again with the same batches.
    store = FaultyStore(open_store("memory://"))
    line = Line(store, append_timeout_s=3600.0)
    first = line.upload(b"one")
    line.committer.commit()
    store.add(Fault.throttle("get_if_changed", times=1000))
    waiting = line.upload(b"two")
    assert line.committer.commit() == 0
    assert outcomes(first, waiting) == [Durable, type(None)]
    assert line.committer.is_ready
    store.heal()
    assert line.committer.commit() == 1
    assert batches_of(store) == [[b"one"], [b"two"]]


def test_should_fail_only_the_batches_whose_time_is_up() -> None:
    store = FaultyStore(open_store("memory://"), [Fault.throttle("get", times=10_000)])
    line = Line(store, append_timeout_s=100.0)
    old = line.upload(b"old")
    spent = line.clock.monotonic_s()
    while line.clock.monotonic_s() - spent < 50:
        line.committer.commit()
    young = line.upload(b"young")
    while old.watcher.result() is None:
        line.committer.commit()
    assert line.clock.monotonic_s() - spent >= 100
    assert young.watcher.result() is None
    assert isinstance(old.watcher.result(), StorageError)
    store.heal()
    line.committer.commit()
    assert batches_of(store) == [[b"young"]]


def test_should_give_up_with_contention_when_others_always_win() -> None:
    inner = open_store("memory://")
    rival = Line(inner)
    rival.upload(b"rival")
    rival.committer.commit()

    class Contended(HeldStore):
        def put_if_match(self, location: str, data: bytes, version: str) -> object:
            rival.upload(b"rival")
            rival.committer.commit()
            return self.store.put_if_match(location, data, version)

    line = Line(Contended(inner), append_timeout_s=40.0)
    batch = line.upload(b"mine")
    assert line.committer.commit() == 0
    assert line.clock.monotonic_s() < 40, "the attempts of one append were used up first"
    assert batch.watcher.result() is None, "there is time left"
    while batch.watcher.result() is None:
        line.committer.commit()
    assert line.clock.monotonic_s() >= 40
    assert outcomes(batch) == [ContentionError]
    assert b"mine" not in entries_of(inner)


class Swallowed(HeldStore):
    """Every append lands, its reply is lost, and a consumer dequeues `count` entries before anyone looks."""

    count = 1

    def put_if_match(self, location: str, data: bytes, version: str) -> object:
        self.store.put_if_match(location, data, version)
        consumer = QueueConsumer(self.store, location, ManualClock())
        consumer.dequeue(consumer.claim().first_sequence + self.count - 1)
        return Lost()


def test_should_find_a_group_by_the_part_that_was_not_dequeued() -> None:
    inner = open_store("memory://")
    Line(inner).start_queue()
    store = Swallowed(inner)
    store.count = 2  # the entry that was there, and the first of the group
    line = Line(store)
    first, second = line.upload(b"first"), line.upload(b"second")
    assert line.committer.commit() == 2
    assert first.watcher.result() == Durable(1, first.location or "")
    assert second.watcher.result() == Durable(2, second.location or "")


def test_should_say_so_when_nobody_can_tell_what_became_of_an_append() -> None:
    inner = open_store("memory://")
    Line(inner).start_queue()
    store = Swallowed(inner)
    store.count = 2
    line = Line(store)
    unknown = line.upload(b"only one")
    assert line.committer.commit() == 0
    error = unknown.watcher.result()
    assert isinstance(error, AppendOutcomeUnknown)
    assert error.locations == (unknown.location,)
    assert line.committer.is_idle, "it is not tried again by itself: that might double it"


def test_should_fail_with_manifest_lost_and_never_start_over() -> None:
    store = open_store("memory://")
    with make_producer(store) as producer:
        producer.produce([b"one"])
        producer.flush()
        store.delete_many([MANIFEST])
        producer.produce([b"two"])
        with pytest.raises(ManifestLost):
            producer.flush()
        producer.produce([b"three"])
        with pytest.raises(ManifestLost):
            producer.flush()
    assert queue_of(store) == []


def test_should_fail_with_corrupt_manifest_and_go_on_when_it_is_fixed() -> None:
    store = open_store("memory://")
    with make_producer(store) as producer:
        producer.produce([b"one"])
        producer.flush()
        good = store.get(MANIFEST).data
        store.put(MANIFEST, b"garbage")
        producer.produce([b"two"])
        with pytest.raises(CorruptManifest, match=MANIFEST):
            producer.flush()
        store.put(MANIFEST, good)
        producer.produce([b"three"])
        producer.flush()
    assert entries_of(store) == [b"one", b"three"]


def test_should_fail_handles_when_something_unforeseen_breaks() -> None:
    inner = open_store("memory://")

    class Broken(HeldStore):
        def put(self, location: str, data: bytes | memoryview) -> None:
            if b"put" in bytes(data):
                raise ZeroDivisionError("in put")
            self.store.put(location, data)

        def put_if_absent(self, location: str, data: bytes) -> object:
            raise ZeroDivisionError("in swap")

    with make_producer(Broken(inner), flush_size_bytes=1) as producer:
        in_put = producer.produce([b"put"])
        in_swap = producer.produce([b"swap"])
        with pytest.raises(BufferQueueError, match="could not be uploaded: ZeroDivisionError: in put"):
            in_put.watcher.await_durable(HANGS_S)
        with pytest.raises(AppendOutcomeUnknown, match="ZeroDivisionError: in swap"):
            in_swap.watcher.await_durable(HANGS_S)
        with pytest.raises(BufferQueueError):
            producer.flush()


def test_should_raise_a_fresh_error_each_time() -> None:
    store = FaultyStore(open_store("memory://"), [Fault.before("put", StoreUnusable)])
    line = Line(store)
    watcher = line.upload(b"one").watcher
    raised = []
    for _ in range(2):
        with pytest.raises(StoreUnusable) as caught:
            watcher.await_durable()
        raised.append(caught.value)
    assert raised[0] is not raised[1]
    assert raised[0].location == raised[1].location


# Names that are too old


def test_should_upload_a_stale_batch_again_under_a_new_name() -> None:
    store = FaultyStore(open_store("memory://"))
    line = Line(store, gc_grace_s=600.0)
    stale = line.upload(b"stale")
    old_name = stale.location
    line.clock.advance(200)
    young = line.upload(b"young")
    young_name = young.location
    line.clock.advance(101)
    line.committer.commit()
    assert batches_of(store) == [[b"stale"], [b"young"]]
    locations = [entry.location for entry in queue_of(store)]
    assert locations[0] not in (None, old_name)
    assert locations[1] == young_name
    assert stale.watcher.result() == Durable(0, locations[0])


def test_should_keep_the_name_up_to_half_the_grace_period() -> None:
    store = FaultyStore(open_store("memory://"))
    line = Line(store, gc_grace_s=600.0)
    name = line.upload(b"one").location
    line.clock.advance(300)
    line.committer.commit()
    assert [entry.location for entry in queue_of(store)] == [name]


def test_should_not_rename_while_an_earlier_append_may_still_land() -> None:
    # The write is on its way and nobody answered; meanwhile the name grows too old to be written again.
    inner = open_store("memory://")
    line = Line(inner)
    line.upload(b"first")
    line.committer.commit()
    clock = ManualClock(seed=next(SEEDS))
    store = FaultyStore(inner, [Fault.late("put_if_match")])

    class Slow(HeldStore):
        def put_if_match(self, location: str, data: bytes, version: str) -> object:
            outcome = self.store.put_if_match(location, data, version)
            clock.advance(301)
            return outcome

    line = Line(Slow(store), clock=clock, gc_grace_s=600.0, append_timeout_s=3600.0)
    batch = line.upload(b"second")
    line.committer.commit()
    assert outcomes(batch) == [AppendOutcomeUnknown]
    assert [call.op for call in store.history].count("put_if_match") == 1, "the old name is not written again"
    store.land()
    assert batches_of(inner) == [[b"first"], [b"second"]]
    assert len(objects_of(inner)) == 2, "no second copy under another name"


def test_should_rename_between_attempts_once_the_earlier_one_is_dead() -> None:
    inner = open_store("memory://")
    clock = ManualClock()
    rival = Line(inner)
    rival.upload(b"rival")
    rival.committer.commit()

    class Overtaken(HeldStore):
        times = 0

        def put_if_match(self, location: str, data: bytes, version: str) -> object:
            self.times += 1
            if self.times == 1:
                rival.upload(b"rival again")
                rival.committer.commit()
                clock.advance(301)
            return self.store.put_if_match(location, data, version)

    line = Line(Overtaken(inner), clock=clock, gc_grace_s=600.0, append_timeout_s=3600.0)
    batch = line.upload(b"mine")
    first_name = batch.location
    assert line.committer.commit() == 1
    assert batches_of(inner) == [[b"rival"], [b"rival again"], [b"mine"]]
    assert queue_of(inner)[-1].location != first_name


def test_should_fail_only_the_stale_batch_that_cannot_be_uploaded_again() -> None:
    store = FaultyStore(open_store("memory://"))
    line = Line(store)
    stale = line.upload(b"stale")
    line.clock.advance(301)
    young = line.upload(b"young")
    store.add(Fault.before("put", StoreUnusable))
    assert line.committer.commit() == 0
    assert outcomes(stale, young) == [StoreUnusable, type(None)]
    assert line.committer.commit() == 1
    assert batches_of(store) == [[b"young"]]


def test_should_report_a_store_that_is_too_slow_for_the_grace_period() -> None:
    clock = ManualClock()
    inner = open_store("memory://")

    class Slow(HeldStore):
        def put(self, location: str, data: bytes | memoryview) -> None:
            clock.advance(400)
            self.store.put(location, data)

    line = Line(Slow(inner), clock=clock)
    batch = line.upload(b"one")
    while batch.watcher.result() is None:
        line.committer.commit()
    with pytest.raises(StorageError, match="longer than half of gc_grace_s"):
        batch.watcher.await_durable()


# Groups


def test_should_append_only_up_to_the_first_batch_that_is_not_uploaded() -> None:
    store = open_store("memory://")
    line = Line(store)
    line.upload(b"first")
    second = line.enlist(b"second")
    line.upload(b"third")
    assert line.committer.commit() == 1
    assert not line.committer.is_ready
    line.committer.upload(second)
    assert line.committer.commit() == 2
    assert entries_of(store) == [b"first", b"second", b"third"]


def test_should_bound_a_group_and_append_the_rest_next() -> None:
    store = open_store("memory://")
    line = Line(store)
    batches = [line.upload(b"%d" % index) for index in range(GROUP_BATCHES_MAX + 5)]
    assert line.committer.commit() == GROUP_BATCHES_MAX
    assert line.committer.commit() == 5
    assert entries_of(store) == [b"%d" % index for index in range(len(batches))]


def test_should_bound_the_metadata_of_a_group() -> None:
    store = open_store("memory://")
    line = Line(store)
    for index in range(3):
        line.intake.offer(check_call([b"%d" % index], b"x" * 5_000_000, 1 << 20), b"x" * 5_000_000)
        line.intake.seal()
        batch = line.intake.take()
        line.committer.enlist(batch)
        line.committer.upload(batch)
    assert [line.committer.commit() for _ in range(3)] == [1, 1, 1]
    assert len(Manifest.from_bytes(store.get(MANIFEST).data)) == 3


def test_should_tell_of_each_batch_once_and_before_its_watcher() -> None:
    store = FaultyStore(open_store("memory://"))
    line = Line(store)
    told: list[bool] = []
    line.committer = Committer(
        store,
        line.clock,
        ProducerConfig(store=store),
        lambda batch, _: told.append(batch.watcher.result() is None),
    )
    line.upload(b"one")
    line.upload(b"two")
    store.add(Fault.before("put", StoreUnusable))
    line.upload(b"three")
    line.committer.commit()
    assert told == [True, True, True]
    assert line.committer.pending() == []
