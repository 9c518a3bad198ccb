"""A call whose append landed a day too late: nobody takes its mark for its batch, whoever asks, and whenever."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from buffer.config import ConsumerConfig, ProducerConfig
from buffer.consume.consumer import Consumer
from buffer.errors import (
    AppendOutcomeUnknown,
    BatchCollected,
    BufferQueueError,
    ContentionError,
    Doubt,
    IdempotencyConflict,
    MarksLost,
    ProducerStopped,
    StorageError,
    StoreUnusable,
)
from buffer.manifest import Manifest
from buffer.produce.adopt import CallId, append_uploads
from buffer.produce.client_seqs import is_overtaken
from buffer.produce.durability import Durable
from buffer.produce.groups import LATE_LOOKS
from buffer.produce.producer import Producer
from buffer.produce.upload import Upload, upload_entries
from buffer.store import open_store
from buffer.store.base import Outcome, Store, Unknown
from buffer.testing import Fault, FaultyStore, ManualClock
from buffer_delta.spark.source import produce as source
from buffer_delta.spark.source.produce import append_once
from tests.produce.producer_support import HeldStore, queue_of

MANIFEST = "ingest/manifest"
DAY_S = 24 * 3600.0
CALL = CallId("job", 7)


class Sleepy(HeldStore):
    """The machine sleeps with a write of the manifest in hand, when told so; what it finds then is decided here."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        super().__init__(store)
        self.clock = clock
        self.sleeps: Callable[[], None] | None = None
        self.asleep_s = 2 * DAY_S
        self.heads_fail = 0

    def put_if_match(self, location: str, data: bytes, version: str) -> Outcome:
        if location == MANIFEST and self.sleeps:
            sleeps, self.sleeps = self.sleeps, None
            self.clock.advance(self.asleep_s)
            sleeps()
        return self.store.put_if_match(location, data, version)

    def head(self, location: str) -> object:  # type: ignore[override]
        if self.heads_fail:
            self.heads_fail -= 1
            raise StorageError("the network is not back", retryable=True)
        return self.store.head(location)


class World:
    def __init__(self) -> None:
        self.memory = open_store("memory://")
        self.clock = ManualClock(seed=5)
        self.store = Sleepy(self.memory, self.clock)
        self.config = ProducerConfig(store=self.store, flush_interval_ms=3_600_000)  # type: ignore[arg-type]
        append_uploads([self.upload(b"first")], store=self.memory, clock=self.clock, config=self.config)

    def upload(self, entry: bytes = b"rows") -> Upload:
        return upload_entries([entry], store=self.memory, clock=self.clock, config=self.config)

    def append(self, *uploads: Upload, call: CallId | None = CALL) -> list[Durable]:
        return append_uploads(uploads, store=self.store, clock=self.clock, config=self.config, call=call)  # type: ignore[arg-type]

    def sleep_and_lose(self, *uploads: Upload, heads_fail: int = 0) -> None:
        """The next append lands two days later, and the collector had these by then."""

        def sleeps() -> None:
            self.memory.delete_many([upload.location for upload in uploads])
            self.store.heads_fail = heads_fail

        self.store.sleeps = sleeps

    def producer(self, client_id: str = "a") -> Producer:
        return Producer(self.config, client_id=client_id, clock=self.clock)


@pytest.fixture
def world() -> World:
    return World()


UNSEEN = LATE_LOOKS.attempts_max


# One call of others' uploads


def test_should_not_turn_a_look_that_failed_into_a_call_to_be_repeated(world: World) -> None:
    upload = world.upload()
    world.sleep_and_lose(upload, heads_fail=UNSEEN)
    with pytest.raises(AppendOutcomeUnknown) as raised:
        world.append(upload)
    assert type(raised.value) is AppendOutcomeUnknown


@pytest.mark.parametrize("lost", [(0,), (1,), (2,), (0, 1, 2)])
def test_should_name_the_hole_each_time_the_call_is_repeated(world: World, lost: tuple[int, ...]) -> None:
    uploads = [world.upload(b"%d" % number) for number in range(3)]
    world.sleep_and_lose(*(uploads[index] for index in lost), heads_fail=3 * UNSEEN)
    with pytest.raises(AppendOutcomeUnknown):
        world.append(*uploads)
    for _ in range(2):
        world.store.heads_fail = 0
        with pytest.raises(BatchCollected) as gone:
            world.append(*(world.upload(b"%d" % number) for number in range(3)))
        assert gone.value.sequence == 1 + lost[0]
        world.store.heads_fail = 4 * UNSEEN
        with pytest.raises(AppendOutcomeUnknown) as unseen:
            world.append(world.upload())
        assert type(unseen.value) is AppendOutcomeUnknown
    assert len(queue_of(world.memory)) == 4


def test_should_look_where_the_process_died_before_it_could(world: World) -> None:
    upload = world.upload()
    world.sleep_and_lose(upload)

    class Killed(BaseException):
        pass

    def die(_location: str) -> object:
        raise Killed

    world.store.head, kept = die, world.store.head  # type: ignore[method-assign,assignment]
    with pytest.raises(Killed):
        world.append(upload)
    world.store.head = kept  # type: ignore[method-assign]
    with pytest.raises(BatchCollected):
        world.append(world.upload())


def test_should_look_where_an_older_process_was_faster(world: World) -> None:
    """Its append lands after ours has opened: ours finds the mark when it appends."""
    old = world.upload()
    ours = world.upload()

    def older() -> None:
        append_uploads([old], store=world.memory, clock=world.clock, config=world.config, call=CALL)
        world.memory.delete_many([old.location])

    world.store.asleep_s, world.store.sleeps = 1.0, older
    with pytest.raises(BatchCollected) as raised:
        world.append(ours)
    assert raised.value.location == old.location


def test_should_say_conflict_where_the_batches_are_there_or_were_read(world: World) -> None:
    world.append(world.upload(b"a"), world.upload(b"b"))
    with pytest.raises(IdempotencyConflict):
        world.append(world.upload())
    consumer = Consumer.new(ConsumerConfig(store=world.memory, gc_enabled=False), clock=world.clock)
    consumer.next_descriptors(3)
    consumer.ack_through(2)
    consumer.close()
    world.memory.delete_many([info.location for info in world.memory.list("ingest") if ".batch" in info.location])
    with pytest.raises(IdempotencyConflict):
        world.append(world.upload())


# A write of Spark


def once(world: World, *uploads: Upload) -> None:
    append_once(uploads, store=world.store, clock=world.clock, config=world.config)  # type: ignore[arg-type]


def test_should_not_report_rows_as_written_whose_batch_is_gone(world: World) -> None:
    once(world, world.upload())
    upload = world.upload()
    world.sleep_and_lose(upload, heads_fail=UNSEEN)
    with pytest.raises(BatchCollected) as raised:
        once(world, upload)
    assert raised.value.location == upload.location


def test_should_report_rows_as_written_once_their_batch_was_seen(world: World) -> None:
    once(world, world.upload())
    world.sleep_and_lose(heads_fail=UNSEEN)
    once(world, world.upload())
    assert len(queue_of(world.memory)) == 3


def test_should_end_as_unknown_where_nobody_ever_sees_the_batch(world: World) -> None:
    once(world, world.upload())
    world.sleep_and_lose(heads_fail=10_000)
    with pytest.raises(AppendOutcomeUnknown):
        once(world, world.upload())


class Outage(HeldStore):
    """The reply to the next append is lost, and for a while nobody answers at all."""

    def __init__(self, store: Store, clock: ManualClock, seconds: float) -> None:
        super().__init__(store)
        self.clock, self.seconds = clock, seconds
        self.until_s: float | None = None

    def _check(self) -> None:
        if self.until_s is not None and self.clock.monotonic_s() < self.until_s:
            raise StorageError("connection refused", retryable=True)

    def get(self, location: str) -> object:  # type: ignore[override]
        self._check()
        return self.store.get(location)

    def get_if_changed(self, location: str, version: str) -> object:  # type: ignore[override]
        self._check()
        return self.store.get_if_changed(location, version)

    def put_if_match(self, location: str, data: bytes, version: str) -> Outcome:
        self._check()
        outcome = self.store.put_if_match(location, data, version)
        if location == MANIFEST and self.until_s is None:
            self.until_s = self.clock.monotonic_s() + self.seconds
            return Unknown(StorageError("connection reset", retryable=True))
        return outcome


@pytest.mark.parametrize("seconds", [1, 20, 45, 70, 90, 600, 1e6])
def test_should_never_call_a_write_a_failure_that_is_in_the_queue(world: World, seconds: float) -> None:
    store = Outage(world.memory, world.clock, seconds)
    upload = world.upload()
    with contextlib.suppress(ProducerStopped):
        append_once([upload], store=store, clock=world.clock, config=world.config)  # type: ignore[arg-type]
    assert [entry.location for entry in queue_of(world.memory)][1:] == [upload.location]


LATER: list[BufferQueueError | Exception] = [
    ContentionError("others were faster"),
    StorageError("no answer", retryable=True),
    StorageError("refused", retryable=False),
    StoreUnusable("no permission", retryable=False),
    MarksLost("a reader that knows no marks"),
    RuntimeError("whatever"),
]


@pytest.mark.parametrize("later", LATER, ids=lambda error: f"{type(error).__name__}: {error}")
@pytest.mark.parametrize(
    "first", [ProducerStopped("?"), AppendOutcomeUnknown("?")], ids=lambda error: type(error).__name__
)
def test_should_stay_unknown_whatever_the_repetition_fails_with(
    world: World, monkeypatch: pytest.MonkeyPatch, first: BufferQueueError, later: Exception
) -> None:
    errors = [first]

    def append(*_: object, **__: object) -> None:
        raise errors.pop() if errors else later

    monkeypatch.setattr(source, "append_uploads", append)
    with pytest.raises(type(first)) as raised:
        once(world, world.upload())
    assert raised.value is first


def test_should_raise_the_first_attempts_own_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def append(*_: object, **__: object) -> None:
        raise ContentionError("others were faster")

    monkeypatch.setattr(source, "append_uploads", append)
    with pytest.raises(ContentionError):
        once(world, world.upload())


# A producer with a client id


def test_should_go_on_by_itself_behind_what_was_overtaken_unless_its_batch_is_gone() -> None:
    conflict = IdempotencyConflict.of("a", 1, durable_seq=1, in_queue=None)
    unseen, gone = Doubt(1, 1, AppendOutcomeUnknown("?")), Doubt(0, 0, BatchCollected("gone", sequence=3))
    assert is_overtaken(conflict)
    assert is_overtaken(conflict.doubted((unseen,))), "the next run looks before it goes on"
    assert not is_overtaken(conflict.doubted((unseen, gone)))
    assert not is_overtaken(ProducerStopped.after(conflict.doubted((gone,)), "a"))


def lose_call(world: World, *, heads_fail: int) -> None:
    """Calls 0 and 1 of client a are in the queue; the batch of the second is gone, and its producer may know it."""
    with contextlib.suppress(AppendOutcomeUnknown), world.producer() as producer:
        producer.produce([b"0"], client_seq=0)
        producer.flush()

        def sleeps() -> None:
            mine = {info.location for info in world.memory.list("ingest") if info.location.endswith(".batch")}
            named = {entry.location for entry in queue_of(world.memory)}
            world.memory.delete_many(sorted(mine - named))
            world.store.heads_fail = heads_fail

        world.store.sleeps = sleeps
        handle = producer.produce([b"1"], client_seq=1)
        with pytest.raises(AppendOutcomeUnknown) as raised:
            producer.flush()
        assert type(raised.value) is (AppendOutcomeUnknown if heads_fail else BatchCollected)
        assert type(handle.watcher.result()) is type(raised.value)
    world.store.heads_fail = 0


@pytest.mark.parametrize("heads_fail", [0, UNSEEN], ids=["seen to be gone", "not seen"])
def test_should_not_say_of_a_replay_that_it_is_in_the_queue_before_looking(world: World, heads_fail: int) -> None:
    lose_call(world, heads_fail=heads_fail)
    with world.producer() as producer:
        world.store.heads_fail = 10_000
        assert type(producer.produce([b"1"], client_seq=1).watcher.result()) is AppendOutcomeUnknown
        world.store.heads_fail = 0
        gone = producer.produce([b"1"], client_seq=1).watcher.result()
        assert isinstance(gone, BatchCollected)
        assert gone.sequence == 2
        assert isinstance(producer.produce([b"01"], client_seq=range(2)).watcher.result(), BatchCollected)
        assert isinstance(producer.produce([b"0"], client_seq=0).watcher.result(), IdempotencyConflict)
        again = producer.produce([b"1"])
        producer.flush()
        assert isinstance(again.watcher.result(), Durable)
        assert again.client_seq == 2
    with world.producer() as producer:
        assert isinstance(producer.produce([b"1"], client_seq=1).watcher.result(), BatchCollected), "still there"
        assert producer.next_client_seq == 3, "what was appended last is young"


def test_should_look_for_asyncio_too(world: World) -> None:
    lose_call(world, heads_fail=UNSEEN)

    async def replay() -> None:
        async with world.producer() as producer:
            with pytest.raises(BatchCollected):
                await (await producer.produce_async([b"1"], client_seq=1))
            with pytest.raises(IdempotencyConflict):
                await (await producer.produce_async([b"0"], client_seq=0))

    asyncio.run(replay())


def test_should_not_send_anybody_on_behind_a_hole(world: World) -> None:
    lose_call(world, heads_fail=UNSEEN)
    with world.producer() as producer:
        world.store.heads_fail = 10_000
        with pytest.raises(AppendOutcomeUnknown):
            _ = producer.next_client_seq
        world.store.heads_fail = 0
        for _ in range(2):
            with pytest.raises(BatchCollected):
                _ = producer.next_client_seq
    consumer = Consumer.new(ConsumerConfig(store=world.memory, gc_enabled=False), clock=world.clock)
    consumer.next_descriptors(3)
    consumer.ack_through(2)
    consumer.close()
    with world.producer() as producer:
        assert producer.next_client_seq == 2, "its readers are done with it, and have reported it"
        assert isinstance(producer.produce([b"1"], client_seq=1).watcher.result(), IdempotencyConflict)


def test_should_not_blame_what_was_read_before_the_hole(world: World) -> None:
    """Call 0 has left the queue, and its batch was collected in good order."""
    lose_call(world, heads_fail=0)
    consumer = Consumer.new(ConsumerConfig(store=world.memory, gc_enabled=False), clock=world.clock)
    consumer.next_descriptors(2)
    consumer.ack_through(1)
    consumer.close()
    with world.producer() as producer:
        assert isinstance(producer.produce([b"0"], client_seq=0).watcher.result(), IdempotencyConflict)
        assert isinstance(producer.produce([b"1"], client_seq=1).watcher.result(), BatchCollected)


def test_should_look_where_an_older_run_was_faster(world: World) -> None:
    """Both opened before either appended. The older one's batches are gone; of ours, each call hears its own."""
    with contextlib.suppress(IdempotencyConflict), world.producer() as ours:
        for number in range(2):
            upload = world.upload()
            world.append(upload, call=CallId("a", number))
            if number == 1:
                world.memory.delete_many([upload.location])
        handles = [ours.produce([b"%d" % number], client_seq=number) for number in range(3)]
        with pytest.raises(IdempotencyConflict) as raised:
            ours.flush()
        assert "its object is gone" in str(raised.value)
        kinds = [type(handle.watcher.result()) for handle in handles]
        assert kinds == [IdempotencyConflict, BatchCollected, ProducerStopped]


def test_should_ask_for_nothing_more_where_nothing_is_replayed(world: World) -> None:
    store = FaultyStore(world.memory)
    config = ProducerConfig(store=store, flush_interval_ms=3_600_000)
    with Producer(config, client_id="a", clock=world.clock) as producer:
        producer.produce([b"0"])
        producer.flush()
    with Producer(config, client_id="a", clock=world.clock) as producer:
        for operation in ("get", "head"):
            store.add(Fault.before(operation, times=100))
        assert producer.next_client_seq == 1
        assert isinstance(producer.produce([b"0"], client_seq=0).watcher.result(), AppendOutcomeUnknown), "this asks"


def test_should_know_which_calls_an_entry_carries() -> None:
    from buffer.manifest import PackedMetadata
    from buffer.marks import encode_mark, marked
    from buffer.produce.replays import carried

    def entry(client: str, seq: int) -> tuple[str, PackedMetadata]:
        return f"{client}{seq}", marked(PackedMetadata.pack([0], [0]), encode_mark(client, seq))

    manifest = Manifest.empty().append_all([entry("a", 4), entry("b", 9), entry("a", 7), entry("a", 7), ("plain", ())])
    numbers = [(found.first, found.last, found.sequence) for found in carried(manifest, "a", 2)]
    assert numbers == [(3, 4, 0), (5, 7, 2), (5, 7, 3)]
    assert carried(manifest, "c") == []
