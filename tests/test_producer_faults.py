"""The producer on stores that misbehave: nothing doubles, nothing is lost without a word, nothing wedges."""

from __future__ import annotations

import gc
import itertools
import pickle
import threading
import tracemalloc
from collections.abc import Callable, Sequence

import pytest

from buffer.batching import Intake, PendingBatch, check_call
from buffer.commit import GROUP_BATCHES_MAX, UPLOAD_ATTEMPTS_MAX, Committer
from buffer.config import ProducerConfig
from buffer.durability import Durable, Settled
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
from buffer.queue import QueueConsumer
from buffer.store import Lost, Store, open_store
from buffer.testing import Fault, FaultyStore, ManualClock
from tests.producer_support import HeldStore, batches_of, entries_of, make_producer, objects_of, queue_of

MANIFEST = "ingest/manifest"


_seeds = itertools.count(1)  # each line makes names of its own


class Line:
    """The sync half of a producer, driven step by step as the simulator does."""

    def __init__(self, store: Store, clock: ManualClock | None = None, **settings: object) -> None:
        self.clock = clock or ManualClock(seed=next(_seeds))
        config = ProducerConfig(store=store, **settings)
        self.intake = Intake(config, self.clock)
        self.settled: list[tuple[PendingBatch, Settled]] = []
        self.committer = Committer(store, self.clock, config, lambda *one: self.settled.append(one))

    def enlist(self, *entries: bytes) -> PendingBatch:
        """One sealed batch of these entries, in its place in the queue."""
        handle = self.intake.offer(check_call(list(entries), b"", 1 << 20))
        assert handle is not None
        self.intake.seal()
        batch = self.intake.take()
        self.committer.enlist(batch)
        return batch

    def upload(self, *entries: bytes) -> PendingBatch:
        batch = self.enlist(*entries)
        self.committer.upload(batch)
        return batch

    def start_queue(self) -> None:
        """Make a manifest with one entry, so that later writes replace it."""
        self.upload(b"there before")
        assert self.committer.commit() == 1


def outcomes(*batches: PendingBatch) -> list[type]:
    return [type(batch.watcher.result()) for batch in batches]


# Lost replies


@pytest.mark.parametrize("kind", ["memory", "local"])
@pytest.mark.parametrize(
    "faults",
    [
        [Fault.after("put_if_absent")],
        [Fault.after("put_if_absent", Lost)],
        [Fault.after("put_if_match"), Fault.after("put_if_match", Lost)],
        [Fault.before("put_if_match", times=3)],
        [Fault.late("put_if_match", after_calls=2), Fault.late("put_if_absent", after_calls=3)],
        [Fault.throttle("put_if_absent", times=2), Fault.before("get_if_changed", times=2)],
        [Fault.after("put", times=2), Fault.before("put", skip=1, times=2)],
        [Fault.before("get", times=2)],
    ],
)
def test_should_neither_double_nor_lose_when_replies_are_lost(
    store_factory: Callable[[str], object], kind: str, faults: Sequence[Fault]
) -> None:
    inner = store_factory(kind).open()
    store = FaultyStore(inner, faults)
    with make_producer(store, flush_size_bytes=1) as producer:
        for index in range(5):
            producer.produce([b"%d" % index]).watcher.await_durable(30)
    assert store.unused == []
    assert entries_of(inner) == [b"%d" % index for index in range(5)]


@pytest.mark.parametrize("seed", range(8))
def test_should_keep_every_promise_under_random_faults(seed: int) -> None:
    inner = open_store("memory://")
    store = FaultyStore(inner, seed=seed, rate=0.2)
    clock = ManualClock(seed=seed)
    with make_producer(store, clock=clock, flush_size_bytes=1) as producer:
        handles = [producer.produce([b"%d" % index]) for index in range(100)]
        for handle in handles:
            handle.watcher.wait(60)
        store.heal()
        results = [handle.watcher.result() for handle in handles]
        if any(isinstance(result, BufferQueueError) for result in results):
            with pytest.raises(BufferQueueError):
                producer.flush()
    found = entries_of(inner)
    assert sorted(set(found)) == sorted(found), "nothing doubles"
    for index, result in enumerate(results):
        if isinstance(result, Durable):
            assert b"%d" % index in found
        elif not isinstance(result, AppendOutcomeUnknown):
            assert b"%d" % index not in found
    assert found == [b"%d" % index for index in sorted(map(int, found))], "produce order"
    assert sum(isinstance(result, Durable) for result in results) > 50


# Uploads that fail


def test_should_fail_only_the_handles_of_a_batch_that_cannot_be_uploaded() -> None:
    inner = open_store("memory://")

    class Refusing(HeldStore):
        def put(self, location: str, data: bytes) -> None:
            if b"bad" in data:
                raise StoreUnusable("no space", location=location, retryable=False)
            self.store.put(location, data)

    with make_producer(Refusing(inner), flush_size_bytes=1) as producer:
        handles = [producer.produce([entry]) for entry in (b"good 1", b"bad", b"good 2")]
        assert handles[2].watcher.await_durable(10).sequence == 1
        with pytest.raises(StoreUnusable, match="no space"):
            handles[1].watcher.await_durable(10)
        assert isinstance(handles[1].watcher.result(), StoreUnusable)
        with pytest.raises(StoreUnusable, match=r"1 batches \(1 entries\) could not be made durable.*no space"):
            producer.flush()
        producer.flush()  # it was reported
    assert entries_of(inner) == [b"good 1", b"good 2"]


def test_should_retry_an_upload_under_the_same_name_a_bounded_number_of_times() -> None:
    store = FaultyStore(open_store("memory://"), [Fault.before("put", times=UPLOAD_ATTEMPTS_MAX - 1)])
    line = Line(store)
    line.upload(b"one")
    line.committer.commit()
    puts = [call.location for call in store.history if call.op == "put"]
    assert len(puts) == UPLOAD_ATTEMPTS_MAX
    assert len(set(puts)) == 1
    store.add(Fault.before("put", times=UPLOAD_ATTEMPTS_MAX))
    failed = line.upload(b"two")
    assert outcomes(failed) == [StorageError]
    assert store.unused == []
    assert line.committer.is_idle
    assert batches_of(store) == [[b"one"]]
    assert 0 < sum(line.clock.sleeps) < 2 * UPLOAD_ATTEMPTS_MAX * 5


def test_should_not_retry_an_upload_that_cannot_work() -> None:
    store = FaultyStore(open_store("memory://"), [Fault.before("put", StoreUnusable)])
    line = Line(store)
    failed = line.upload(b"one")
    assert outcomes(failed) == [StoreUnusable]
    assert len(store.history) == 1


def test_should_report_failures_of_earlier_batches_on_close() -> None:
    store = FaultyStore(open_store("memory://"), [Fault.before("put", StoreUnusable, times=2)])
    producer = make_producer(store, flush_size_bytes=1)
    handles = [producer.produce([b"one", b"two"]) for _ in range(3)]
    for handle in handles:
        handle.watcher.wait(10)
    with pytest.raises(StoreUnusable, match=r"2 batches \(4 entries\) could not be made durable; the first: inj") as e:
        producer.close()
    assert isinstance(e.value.__cause__, StoreUnusable)
    assert pickle.loads(pickle.dumps(e.value)).args == e.value.args
    producer.close()


def test_should_tell_every_flush_that_waited_for_a_failed_batch() -> None:
    faulty = FaultyStore(open_store("memory://"), [Fault.before("put", StoreUnusable)])
    store = HeldStore(faulty)
    producer = make_producer(store)
    raised: list[str] = []

    def flush() -> None:
        try:
            producer.flush()
        except StoreUnusable as error:
            raised.append(str(error))

    with store.hold("put"):
        producer.produce([b"one"])
        flushing = [threading.Thread(target=flush) for _ in range(3)]
        for thread in flushing:
            thread.start()
        store.await_waiting(1)
        while len([t for t in flushing if t.is_alive()]) < 3:
            pass
        threading.Event().wait(0.05)  # all three wait for the batch by now
    for thread in flushing:
        thread.join(10)
    assert len(raised) == 3
    producer.close()


def test_should_note_a_failed_close_on_the_error_that_ended_the_block() -> None:
    store = FaultyStore(open_store("memory://"), [Fault.before("put", StoreUnusable)])
    with pytest.raises(KeyError) as caught, make_producer(store) as producer:
        _fail_after(producer.produce, [b"one"])
    assert any("closing the producer failed as well: StoreUnusable" in note for note in caught.value.__notes__)


def _fail_after(call: Callable[..., object], *args: object) -> None:
    call(*args)
    raise KeyError("the application's own")


def test_should_let_go_of_the_bytes_of_a_failed_batch() -> None:
    store = FaultyStore(open_store("memory://"), [Fault.before("put", times=UPLOAD_ATTEMPTS_MAX)])
    line = Line(store)
    tracemalloc.start()
    try:
        failed = line.enlist(b"x" * 1_000_000)
        line.committer.upload(failed)
        gc.collect()  # errors of the attempts before are cycles
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(failed.watcher.result(), StorageError)
    assert size < 200_000, "the error keeps the bytes alive through its traceback"


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


def test_should_fail_with_corrupt_manifest_and_go_on_when_it_is_mended() -> None:
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
        def put(self, location: str, data: bytes) -> None:
            if b"put" in data:
                raise ZeroDivisionError("in put")
            self.store.put(location, data)

        def put_if_absent(self, location: str, data: bytes) -> object:
            raise ZeroDivisionError("in swap")

    with make_producer(Broken(inner), flush_size_bytes=1) as producer:
        in_put = producer.produce([b"put"])
        in_swap = producer.produce([b"swap"])
        with pytest.raises(BufferQueueError, match="could not be uploaded: ZeroDivisionError: in put"):
            in_put.watcher.await_durable(10)
        with pytest.raises(AppendOutcomeUnknown, match="ZeroDivisionError: in swap"):
            in_swap.watcher.await_durable(10)
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
    clock = ManualClock(seed=next(_seeds))
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
        def put(self, location: str, data: bytes) -> None:
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
