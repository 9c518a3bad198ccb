"""Producers with a client id: numbers, replays, twins, stops, and what became of appends nobody answered."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import pickle
import struct
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest

from buffer.cas import Snapshot
from buffer.clients import ClientLedger, MarkKeeper
from buffer.clock import SystemClock
from buffer.config import ConsumerConfig, ProducerConfig
from buffer.consume.consumer import Consumer
from buffer.errors import (
    AppendOutcomeUnknown,
    BatchCollected,
    BufferQueueError,
    IdempotencyConflict,
    InvalidInput,
    MarksLost,
    ProducerStopped,
    StorageError,
    StoreUnusable,
)
from buffer.marks import encode_mark, mark_of
from buffer.model import Metadata
from buffer.produce.adopt import CallId, append_uploads
from buffer.produce.append import Committer
from buffer.produce.client_seqs import RANGES_MAX, ClientSeqs
from buffer.produce.durability import Durable, WriteHandle
from buffer.produce.groups import LateLook
from buffer.produce.intake import PendingBatch, check_call
from buffer.produce.producer import Producer
from buffer.produce.upload import Upload, upload_entries
from buffer.queue import QueueConsumer
from buffer.store import Lost, open_store
from buffer.store.base import Store
from buffer.testing import Fault, FaultyStore, ManualClock
from tests.produce.producer_support import HeldStore, Line, entries_of, make_producer, queue_of

MANIFEST = "ingest/manifest"
LEDGER = "ingest/manifest.ledger"


@pytest.fixture
def store() -> Store:
    return open_store("memory://")


def client(store: Store, client_id: str = "a", *, clock: ManualClock | None = None, **settings: object) -> Producer:
    """With `clock` it lives in the time of those who named the batches. By another one they may look too old, and it
    waits for a while before it believes that they are there."""
    config = ProducerConfig(**{"store": store, "flush_interval_ms": 3_600_000, **settings})
    return Producer(config, client_id=client_id, clock=clock)


def outcome(handle: WriteHandle) -> BufferQueueError | Durable | None:
    return handle.watcher.result()


def drain(store: Store, keep_marks: bool = True) -> None:
    """Dequeue everything, as a reader of ours does or as one that knows no marks."""
    keepers = [MarkKeeper(store, MANIFEST, SystemClock())] if keep_marks else []
    queue = QueueConsumer(store, MANIFEST, SystemClock(), keepers=keepers)
    manifest = queue.claim()
    if len(manifest):
        queue.dequeue(manifest.next_sequence - 1)


# Numbers


def test_should_count_on_from_what_is_in_the_queue(store: Store) -> None:
    with client(store) as producer:
        assert producer.next_client_seq == 0
        handles = [producer.produce([b"x"]), producer.produce([b"y"], client_seq=7), producer.produce([b"z"])]
        assert [handle.client_seq for handle in handles] == [0, 7, 8]
        assert producer.next_client_seq == 9
    with client(store) as producer:
        assert producer.next_client_seq == 9
    drain(store)
    with client(store) as producer:
        assert producer.next_client_seq == 9


def test_should_put_one_mark_at_the_head_of_each_batch(store: Store) -> None:
    with client(store) as producer:
        producer.produce([b"x", b"y"], b"first")
        producer.produce([b"z"], b"BCM1 is a user's own word here")
    (entry,) = queue_of(store)
    first, second = entry.metadata[1:]
    assert entry.metadata[0] == Metadata(0, first.ingestion_time_ms, encode_mark("a", 1))
    assert (first.start_index, first.payload) == (0, b"first")
    assert (second.start_index, second.payload) == (2, b"BCM1 is a user's own word here")


def test_should_hide_marks_from_readers(store: Store) -> None:
    with client(store) as producer:
        producer.produce([b"x"], b"first")
    with Consumer.new(ConsumerConfig(store=store, gc_enabled=False)) as consumer:
        (descriptor,) = consumer.next_descriptors(1)
        batch = consumer.fetch_descriptor(descriptor)
        assert [item.payload for item in batch.metadata] == [b"first"]
        consumer.ack_through(0)
    with client(store) as producer:
        assert producer.next_client_seq == 1


def test_should_write_the_same_bytes_as_before_without_a_client_id() -> None:
    store = open_store("memory://")
    line = Line(store, ManualClock(seed=5))
    batch = line.upload(b"one", b"two")
    location = batch.location or ""
    line.committer.commit()
    name = location.encode()
    entry = struct.pack("<QH", 0, len(name)) + name + struct.pack("<IIqI", 1, 0, line.clock.now_ms(), 0)
    frozen = struct.pack("<I", len(entry)) + entry + struct.pack("<IQQH", 1, 1, 0, 1)
    assert store.get(MANIFEST).data == frozen
    assert store.get(location).data == b"\x03\0\0\0one\x03\0\0\0two" + struct.pack("<BIH", 0, 2, 1)
    with pytest.raises(StorageError):
        store.get(LEDGER)


def test_should_keep_clients_apart(store: Store) -> None:
    with client(store, "a") as first, client(store, "b") as second:
        first.produce([b"1"])
        first.produce([b"2"])
        second.produce([b"3"])
        first.flush()
        second.flush()
    drain(store)
    with client(store, "a") as first, client(store, "b") as second, client(store, "c") as third:
        assert (first.next_client_seq, second.next_client_seq, third.next_client_seq) == (2, 1, 0)


def test_should_number_arrow_input_and_async_calls(store: Store) -> None:
    async def produce(producer: Producer) -> list[int | None]:
        handles = [await producer.produce_async([b"x"]), await producer.produce_async([b"y"], b"", 5)]
        producer.produce(pa.array([b"z"], pa.binary()), client_seq=6)
        await asyncio.to_thread(producer.flush)
        assert [type(await handle) for handle in handles] == [Durable, Durable]
        return [handle.client_seq for handle in handles]

    with client(store) as producer:
        assert asyncio.run(produce(producer)) == [0, 5]
    assert entries_of(store) == [b"x", b"y", b"z"]
    assert mark_of(queue_of(store)[0].metadata) == ("a", 6)


@pytest.mark.parametrize("client_id", ["", "x" * 256, 7])
def test_should_refuse_a_client_id_that_does_not_fit(store: Store, client_id: str) -> None:
    with pytest.raises(InvalidInput, match="client_id"):
        client(store, client_id)


def test_should_refuse_a_number_without_a_client_id(store: Store) -> None:
    with make_producer(store) as producer:
        with pytest.raises(InvalidInput, match="client id"):
            producer.produce([b"x"], client_seq=1)
        with pytest.raises(InvalidInput, match="client id"):
            _ = producer.next_client_seq


@pytest.mark.parametrize("client_seq", [-1, 2**64, True, "1"])
def test_should_refuse_a_number_that_does_not_fit(store: Store, client_seq: int) -> None:
    with client(store) as producer, pytest.raises(InvalidInput, match="client_seq"):
        producer.produce([b"x"], client_seq=client_seq)


def test_should_say_when_the_numbers_are_used_up(store: Store) -> None:
    with client(store) as producer:
        producer.produce([b"x"], client_seq=2**64 - 1)
        with pytest.raises(InvalidInput, match="used up"):
            producer.produce([b"x"])
    assert mark_of(queue_of(store)[0].metadata) == ("a", 2**64 - 1)


# Replays


def test_should_recognise_what_an_earlier_run_produced(store: Store) -> None:
    with client(store) as producer:
        producer.produce([b"0"])
        producer.produce([b"1"])
    with client(store) as producer:
        handles = [producer.produce([b"%d" % n], client_seq=n) for n in range(3)]
        producer.flush()
    first, second, third = map(outcome, handles)
    assert isinstance(first, IdempotencyConflict)
    assert isinstance(second, IdempotencyConflict)
    assert isinstance(third, Durable)
    assert (first.client_id, first.client_seq, first.durable_seq, first.in_queue) == ("a", 0, 1, True)
    assert second.client_seq == 1
    assert entries_of(store) == [b"0", b"1", b"2"]


def test_should_tell_a_replay_of_its_own_only_when_it_is_true(store: Store) -> None:
    held = HeldStore(store)
    with client(held) as producer:
        with held.hold("put"):
            producer.produce([b"x"], client_seq=3)
            again = producer.produce([b"x"], client_seq=3)
            assert outcome(again) is None
        producer.flush()
        conflict = outcome(again)
        assert isinstance(conflict, IdempotencyConflict)
        assert (conflict.client_seq, conflict.durable_seq, conflict.in_queue) == (3, 3, True)
        with pytest.raises(IdempotencyConflict, match="it is a replay"):
            again.watcher.await_durable()
    assert entries_of(store) == [b"x"]


def test_should_not_call_it_a_replay_when_the_call_before_failed(store: Store) -> None:
    faulty = FaultyStore(store, [Fault.before("put", StoreUnusable)])
    producer = client(faulty)
    producer.produce([b"x"], client_seq=3)
    again = producer.produce([b"x"], client_seq=3)
    with pytest.raises(StoreUnusable):
        producer.close()
    assert isinstance(outcome(again), StoreUnusable)


def test_should_say_that_a_number_was_passed_over(store: Store) -> None:
    with client(store) as producer:
        producer.produce([b"x"], client_seq=3)
        producer.produce([b"y"], client_seq=6)
        late = producer.produce([b"z"], client_seq=5)
        producer.flush()
        conflict = outcome(late)
    assert isinstance(conflict, IdempotencyConflict)
    assert conflict.in_queue is False
    assert "not in the queue" in str(conflict)
    assert pickle.loads(pickle.dumps(conflict)).in_queue is False


def test_should_not_remember_every_gap_for_ever() -> None:
    seqs = ClientSeqs("a", -1)
    handle = WriteHandle(Line(open_store("memory://")).enlist(b"x").watcher, 0, 0)
    for n in range(0, 2 * RANGES_MAX + 10, 2):
        assert seqs.number(n) == n
        seqs.accepted(n, handle)
    assert [seqs._was_accepted(n) for n in (0, 2 * RANGES_MAX, 2 * RANGES_MAX + 1)] == [None, True, False]


# Stopping


def test_should_accept_nothing_after_a_call_that_failed(store: Store) -> None:
    """Else the one that failed, repeated, would look like a replay."""
    faulty = FaultyStore(store, [Fault.before("put", StoreUnusable)])
    producer = client(faulty, upload_concurrency=1)
    failed = producer.produce([b"0"])
    with pytest.raises(StoreUnusable):
        producer.flush()
    assert isinstance(outcome(failed), StoreUnusable)
    with pytest.raises(ProducerStopped, match="stopped after StoreUnusable"):
        producer.produce([b"1"])
    with pytest.raises(ProducerStopped):
        asyncio.run(producer.produce_async([b"1"]))
    producer.close()
    with client(store) as producer:
        assert producer.next_client_seq == 0


def test_should_fail_what_was_accepted_behind_a_call_that_failed(store: Store) -> None:
    held = HeldStore(FaultyStore(store, [Fault.before("put", StoreUnusable)]))
    producer = client(held, flush_size_bytes=1, upload_concurrency=1)
    with held.hold("put"):
        first = producer.produce([b"0"])
        held.await_waiting(1)
        later = [producer.produce([b"1"]), producer.produce([b"2"])]
    with pytest.raises(StoreUnusable):
        producer.close()
    assert isinstance(outcome(first), StoreUnusable)
    for handle in later:
        stopped = outcome(handle)
        assert isinstance(stopped, ProducerStopped)
        assert stopped.client_id == "a"
    assert entries_of(store) == []


def test_should_keep_what_was_appended_before_a_call_that_failed(store: Store) -> None:
    line = ClientLine(store)
    first, second, third = line.enlist(b"0"), line.enlist(b"1"), line.enlist(b"2")
    line.committer.upload(third)
    line.committer.upload(first)
    line.store.add(Fault.before("put", StoreUnusable))
    line.committer.upload(second)
    assert [type(batch.watcher.result()) for batch in (first, second, third)] == [
        type(None),
        StoreUnusable,
        ProducerStopped,
    ]
    assert line.committer.commit() == 1
    assert isinstance(first.watcher.result(), Durable)
    fourth = line.upload(b"3")
    assert isinstance(fourth.watcher.result(), ProducerStopped)
    assert [kind for _, kind in line.settled].count(None) == 0
    assert len(line.settled) == 4, "each batch is settled once"
    assert entries_of(store) == [b"0"]


LATE: dict[str, AppendOutcomeUnknown] = {
    "gone": BatchCollected("the batch is gone", sequence=0),
    "not known": AppendOutcomeUnknown("nobody could see whether the batch is gone"),
}


@pytest.mark.parametrize("error", LATE.values(), ids=LATE.keys())
def test_should_stop_after_a_batch_that_landed_too_late(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: AppendOutcomeUnknown
) -> None:
    """It is in the queue with its mark: a repetition is a conflict, and its entries need a new number."""
    real = LateLook.settled

    def settled(self: LateLook, landed: Iterable[Any]) -> list[Any]:
        return [error if sequence == 0 else real(self, [(sequence, put)])[0] for sequence, put in landed]

    monkeypatch.setattr(LateLook, "settled", settled)
    kind = type(error)
    with contextlib.suppress(AppendOutcomeUnknown, ProducerStopped), client(store) as producer:
        lost = producer.produce([b"0"])
        with pytest.raises(kind):
            producer.flush()
        assert type(outcome(lost)) is kind, "and not a stop, which says that a repetition helps"
        with pytest.raises(ProducerStopped):
            producer.produce([b"1"])
    with client(store) as producer:
        replay = producer.produce([b"0"], client_seq=0)
        again = producer.produce([b"0"])
        producer.flush()
        assert isinstance(outcome(replay), IdempotencyConflict)
        assert again.client_seq == 1
        assert isinstance(outcome(again), Durable)


@pytest.mark.parametrize("error", LATE.values(), ids=LATE.keys())
def test_should_stop_those_behind_a_batch_that_landed_too_late(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: AppendOutcomeUnknown
) -> None:
    """Those that went in with it are in the queue, and say so."""
    line = ClientLine(store)
    late, beside, behind = line.enlist(b"0"), line.enlist(b"1"), line.enlist(b"2")
    line.committer.upload(late)
    line.committer.upload(beside)
    monkeypatch.setattr(LateLook, "settled", lambda _, landed: [error, Durable([*landed][1][0], "")])
    assert line.committer.commit() == 1
    kinds = [type(batch.watcher.result()) for batch in (late, beside, behind)]
    assert kinds == [type(error), Durable, ProducerStopped]
    assert len(line.settled) == 3, "each batch is settled once"


# Twins


def test_should_stop_the_one_of_two_that_is_behind(store: Store) -> None:
    ahead, behind = client(store), client(store)
    ahead.produce([b"ahead"])
    ahead.flush()
    conflicting, later = behind.produce([b"behind"]), behind.produce([b"further"])
    with pytest.raises(IdempotencyConflict):
        behind.flush()
    conflict, stopped = outcome(conflicting), outcome(later)
    assert isinstance(conflict, IdempotencyConflict)
    assert (conflict.client_seq, conflict.durable_seq, conflict.in_queue) == (0, 0, None)
    assert "a replay" in str(conflict)
    assert "another producer uses this client id" in str(conflict)
    assert isinstance(stopped, ProducerStopped)
    assert stopped.client_seq == 1
    with pytest.raises(ProducerStopped):
        behind.produce([b"more"])
    ahead.produce([b"goes on"])
    ahead.close()
    behind.close()
    assert entries_of(store) == [b"ahead", b"goes on"]


def test_should_not_take_turns_with_a_twin_where_numbers_have_gaps(store: Store) -> None:
    """Its number is higher than the twin's, but it did not put that one there: it does not know who did."""
    one, other = client(store), client(store)
    one.produce([b"one"], client_seq=10)
    one.flush()
    handle = other.produce([b"other"], client_seq=20)
    with pytest.raises(IdempotencyConflict) as raised:
        other.flush()
    conflict = raised.value
    assert (conflict.client_seq, conflict.durable_seq, conflict.in_queue) == (20, 10, False)
    assert "a replay" in str(conflict)
    assert "another producer uses this client id" in str(conflict)
    stopped = outcome(handle)
    assert isinstance(stopped, ProducerStopped), "nobody may take it for a call that is in the queue"
    assert isinstance(stopped.__cause__, IdempotencyConflict)
    with pytest.raises(ProducerStopped):
        other.produce([b"more"], client_seq=21)
    one.produce([b"goes on"], client_seq=30)
    one.close()
    other.close()
    again = client(store)  # opened again, it knows what is there
    again.produce([b"other"], client_seq=40)
    again.close()
    assert entries_of(store) == [b"one", b"goes on", b"other"]


def test_should_see_a_twin_with_gaps_also_where_its_calls_came_and_went(store: Store) -> None:
    one, other = client(store), client(store)
    one.produce([b"one"], client_seq=5)
    one.flush()
    with client(store) as twin:
        twin.produce([b"twin"], client_seq=8)
    drain(store)
    handle = one.produce([b"behind"], client_seq=9)
    with pytest.raises(IdempotencyConflict, match="its own newest there is 5"):
        one.close()
    assert isinstance(outcome(handle), ProducerStopped)
    handle = other.produce([b"never seen any"], client_seq=12)
    with pytest.raises(IdempotencyConflict, match="it found none there when it opened"):
        other.close()
    assert isinstance(outcome(handle), ProducerStopped)
    assert entries_of(store) == []


def test_should_notice_a_twin_whose_calls_came_and_went_between_two_looks(store: Store) -> None:
    ahead, behind = client(store), client(store)
    ahead.produce([b"ahead"])
    ahead.close()
    drain(store)
    handle = behind.produce([b"behind"])
    with pytest.raises(IdempotencyConflict):
        behind.close()
    assert isinstance(outcome(handle), IdempotencyConflict)
    assert entries_of(store) == []


# Outcomes: never unknown


class ClientLine(Line):
    """The sync half of a producer with a client id on a store that can fail, its calls numbered from 0."""

    def __init__(self, inner: Store, **settings: object) -> None:
        self.store = FaultyStore(inner)
        super().__init__(self.store, **settings)
        config = ProducerConfig(store=self.store, **settings)
        self.committer = Committer(self.store, self.clock, config, lambda *one: self.settled.append(one), "a")
        self.next = self.committer.open() + 1

    def enlist(self, *entries: bytes) -> PendingBatch:
        assert self.intake.offer(check_call(list(entries), b"", 1 << 20), b"", self.next) is not None
        self.next += 1
        self.intake.seal()
        batch = self.intake.take()
        self.committer.enlist(batch)
        return batch

    def before_look(self, number: int, act: Callable[[], object]) -> None:
        """Do something right before the manifest is read for the nth time from now on."""
        looks = itertools.count(1)
        real = self.committer._queue._cas.read

        def read() -> Snapshot:
            if next(looks) == number:
                act()
            return real()

        self.committer._queue._cas.read = read  # type: ignore[method-assign]


@pytest.mark.parametrize("lands", [True, False])
def test_should_find_out_what_became_of_an_append_whose_slot_is_gone(store: Store, lands: bool) -> None:
    """The reply is lost, and by the next look a reader has emptied the queue."""
    line = ClientLine(store)
    line.start_queue()
    batch = line.upload(b"mine")
    other = make_producer(store)

    def meanwhile() -> None:
        if not lands:
            other.produce([b"theirs"])
            other.flush()
        drain(store)

    line.store.add(Fault.after("put_if_match") if lands else Fault.before("put_if_match"))
    line.before_look(2, meanwhile)
    assert line.committer.commit() == 1
    settled = batch.watcher.result()
    assert isinstance(settled, Durable)
    assert settled.sequence == (1 if lands else 2)
    other.close()
    drained = [] if lands else [b"mine"]
    assert entries_of(store) == drained
    after = line.upload(b"after")  # what landed without a word is its own, not a twin's
    assert line.committer.commit() == 1
    assert isinstance(after.watcher.result(), Durable)
    with client(store, clock=line.clock) as producer:
        assert producer.next_client_seq == 3


def test_should_call_for_a_repetition_when_time_is_up_and_the_append_may_still_land(store: Store) -> None:
    line = ClientLine(store, append_timeout_s=5.0)
    line.start_queue()
    batch = line.upload(b"mine")
    line.store.add(Fault.late("put_if_match"))
    line.before_look(2, lambda: line.store.add(Fault.throttle("get_if_changed", times=10_000)))
    while batch.watcher.result() is None:
        line.committer.commit()
    stopped = batch.watcher.result()
    assert isinstance(stopped, ProducerStopped)
    assert isinstance(stopped.__cause__, AppendOutcomeUnknown)
    line.store.heal()
    line.store.land()
    with client(store, clock=line.clock) as producer:
        assert producer.next_client_seq == 2, "it did land"
        again = producer.produce([b"mine"], client_seq=1)
        assert isinstance(outcome(again), IdempotencyConflict)
    assert entries_of(store) == [b"there before", b"mine"]


@pytest.mark.parametrize("answer", [None, Lost])
@pytest.mark.parametrize("when", [Fault.before, Fault.after, Fault.late])
def test_should_land_once_through_lost_replies(store: Store, when, answer) -> None:
    faulty = FaultyStore(store)
    with client(faulty) as producer:
        for n in range(6):
            if n % 2:
                faulty.add(when("put_if_match", answer))
            producer.produce([b"%d" % n])
            producer.flush()
    faulty.land()
    assert entries_of(store) == [b"%d" % n for n in range(6)]


# Losing marks


def test_should_stop_when_a_reader_that_knows_no_marks_was_here(store: Store) -> None:
    with client(store) as producer:
        producer.produce([b"x"])
    drain(store, keep_marks=False)
    with pytest.raises(MarksLost, match="buffer clients forget --lost"):
        client(store)
    drain(store)  # a reader of ours does not make it better
    with pytest.raises(MarksLost):
        client(store)
    with make_producer(store) as other:
        other.produce([b"without a client id"])
    ledger = ClientLedger(store, MANIFEST, SystemClock())
    ledger.accept_loss(QueueConsumer(store, MANIFEST, SystemClock()).claim)
    with client(store) as producer:
        assert producer.next_client_seq == 0


def test_should_go_on_while_it_sees_all_that_a_foreign_reader_removes(store: Store) -> None:
    """Its own looks have counted every mark: nothing is guessed, and nothing needs the ledger."""
    with client(store) as producer:
        for n in range(3):
            producer.produce([b"%d" % n])
            producer.flush()
            drain(store, keep_marks=False)
        producer.produce([b"3"])
    assert entries_of(store) == [b"3"]


def test_should_stop_when_its_own_marks_go_back(store: Store) -> None:
    producer = client(store)
    producer.produce([b"x"])
    producer.flush()
    drain(store)
    ClientLedger(store, MANIFEST, SystemClock()).forget(["a"])
    with make_producer(store) as other:
        other.produce([b"y"])
    drain(store)
    producer.produce([b"z"])
    with pytest.raises(MarksLost, match="was at client_seq 0"):
        producer.close()


def test_should_start_anew_when_forgotten(store: Store) -> None:
    with client(store) as producer:
        producer.produce([b"x"], client_seq=41)
    drain(store)
    ledger = ClientLedger(store, MANIFEST, SystemClock())
    with pytest.raises(InvalidInput, match="no mark of a client 'b'"):
        ledger.forget(["a", "b"])
    ledger.forget(["a"])
    with client(store) as producer:
        assert producer.next_client_seq == 0


def test_should_leave_the_other_sections_of_a_ledger_alone(store: Store) -> None:
    store.put_if_absent(
        LEDGER,
        json.dumps({"version": 2, "generation": 3, "queue_id": "Q", "epoch": 0, "other": {"x": 1}}).encode(),
    )
    with client(store) as producer:
        producer.produce([b"x"])
    drain(store)
    document = json.loads(store.get(LEDGER).data)
    assert document["other"] == {"x": 1}
    assert document["queue_id"] == "Q"
    assert document["clients"]["marks"]["a"][:2] == [0, 0]


def test_should_need_no_ledger_while_nobody_has_a_client_id(store: Store) -> None:
    with make_producer(store) as producer:
        producer.produce([b"x"])
    drain(store)
    with pytest.raises(StorageError):
        store.get(LEDGER)


# Others' uploads as one call


def upload(store: Store, *entries: bytes) -> Upload:
    return upload_entries(list(entries), store=store, clock=SystemClock(), config=ProducerConfig(store=store))


def append(store: Store, *uploads: Upload, client_seq: int) -> list[Durable]:
    call = CallId("job", client_seq)
    return append_uploads(uploads, store=store, clock=SystemClock(), config=ProducerConfig(store=store), call=call)


def test_should_append_the_uploads_of_one_call_once(store: Store) -> None:
    assert len(append(store, upload(store, b"a"), upload(store, b"b"), client_seq=0)) == 2
    again = [upload(store, b"a"), upload(store, b"b")]
    with pytest.raises(IdempotencyConflict) as caught:
        append(store, *again, client_seq=0)
    assert (caught.value.durable_seq, caught.value.in_queue) == (0, True)
    assert [mark_of(entry.metadata) for entry in queue_of(store)] == [("job", 0)] * 2
    drain(store)
    with pytest.raises(IdempotencyConflict):
        append(store, *again, client_seq=0)
    append(store, upload(store, b"c"), client_seq=5)
    assert entries_of(store) == [b"c"]


@pytest.mark.parametrize("when", [Fault.before, Fault.after, Fault.late])
def test_should_append_the_uploads_of_one_call_once_through_lost_replies(store: Store, when) -> None:
    faulty = FaultyStore(store)
    append(faulty, upload(store, b"a"), client_seq=0)
    faulty.add(when("put_if_match"))
    append(faulty, upload(store, b"b"), upload(store, b"c"), client_seq=1)
    faulty.land()
    assert entries_of(store) == [b"a", b"b", b"c"]
