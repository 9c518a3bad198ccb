"""Parking and redrive: exactly once in the other queue, interrupted anywhere, bytes and metadata as they were."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from buffer.codec.batch import encode_batch
from buffer.config import LeaseConfig
from buffer.consume.consumer import Consumer
from buffer.errors import (
    AckHoleCapExceeded,
    InvalidConfig,
    InvalidInput,
    LocationRefused,
    MarksLost,
    QueueBound,
    StoreUnusable,
)
from buffer.leases.queue import LeaseQueue
from buffer.leases.session import Look
from buffer.leases.values import Peeked
from buffer.ledger.leases import Phase, State
from buffer.ledger.plan import Ledger
from buffer.manifest import Manifest
from buffer.marks import without_mark
from buffer.model import Metadata
from buffer.produce.marked import NumberReused
from buffer.queue import QueueProducer
from buffer.testing import Fault, FaultyStore
from tests.leases.lease_support import DEAD, MANIFEST, TIMEOUT_MS, Dying, Work

ITEMS = (Metadata(0, 100, b"first call"), Metadata(2, 200, b"second call"))


def parking(batches: int = 1, **leases: object) -> Work:
    return Work(batches, **{"dlq_strategy": "skip", "dlq": DEAD, **leases})


def fail_twice(queue: LeaseQueue) -> None:
    for _ in range(2):
        queue.nack(queue.consume(), reason="no such customer")


def test_should_park_after_exactly_so_many_deliveries_also_in_different_processes() -> None:
    work = parking(2, max_delivery_attempts=3)
    for count in (1, 2, 3):
        queue = work.open()  # each attempt by another worker, one of them without a word
        (batch,) = queue.consume()
        assert (batch.sequence, batch.delivery_count) == (0, count)
        if count == 2:
            work.expire()
        else:
            queue.nack(batch, reason="bad luck")
    (batch,) = work.open().consume()
    assert batch.sequence == 1
    ((entries, (said,)),) = work.dead_letters()
    assert entries == [b"0"]
    assert {name: said[name] for name in ("queue_id", "sequence", "entries", "count", "reason", "kind")} == {
        "queue_id": work.ledger().queue_id,
        "sequence": 0,
        "entries": [[0, 0]],
        "count": 3,
        "reason": "bad luck",
        "kind": "entries",
    }
    assert work.section().finished_through == 0


def test_should_park_only_what_is_owed_with_the_metadata_of_each_call() -> None:
    work = parking(0)
    work.fill(1, [b"a", b"b", b"c", b"d"], ITEMS)
    queue = work.open()
    (batch,) = queue.consume()
    queue.ack(batch, entries=[0, 3])
    queue.nack(batch)
    queue.nack(queue.consume())
    assert not queue.consume()
    ((entries, said),) = work.dead_letters()
    assert entries == [b"b", b"c"]
    assert [letter["entries"] for letter in said] == [[[1, 1]], [[2, 2]]]
    assert [letter["ingestion_time_ms"] for letter in said] == [100, 200]
    (descriptor,) = work.descriptors(DEAD)
    assert [item.start_index for item in without_mark(descriptor.metadata)] == [0, 1]


def test_should_park_a_damaged_batch_as_the_bytes_it_is_and_a_missing_one_as_a_word() -> None:
    work = parking(3)
    damaged, gone = (work.descriptors()[i].location for i in (0, 1))
    work.store.put(damaged, b"not a batch")
    work.store.delete_many([gone])
    queue = work.open()
    (good,) = queue.consume(3)
    assert good.sequence == 2
    queue.ack(good)
    assert not queue.consume(3)
    (bytes_, (said,)), (words, (lost,)) = work.dead_letters()
    assert bytes_ == [b"not a batch"]
    assert (said["kind"], said["sequence"], said["count"]) == ("bytes", 0, 2)
    assert "CorruptBatch" in said["reason"]
    assert (lost["kind"], lost["sequence"]) == ("missing", 1)
    assert gone.encode() in words[0]
    assert work.section().finished_through == 2


@pytest.mark.parametrize("kind", ["bytes", "missing"])
def test_should_name_what_is_owed_of_a_batch_that_was_damaged_after_a_part_was_acked(kind: str) -> None:
    work = parking()
    work.fill(1, [b"a", b"b", b"c"])
    queue = work.open()
    first, second = queue.consume(2)
    queue.ack(second, entries=[1])
    queue.ack(first)
    queue.nack(second)
    if kind == "bytes":
        work.store.put(second.batch.location, b"not a batch")
    else:
        work.store.delete_many([second.batch.location])
    assert not queue.consume()
    ((_, (said,)),) = work.dead_letters()
    assert (said["kind"], said["sequence"], said["entries"]) == (kind, 1, [[0, 0], [2, 2]])


def test_should_block_and_copy_under_block_and_dlq() -> None:
    work = Work(2, dlq_strategy="block_and_dlq", dlq=DEAD)
    queue = work.open()
    fail_twice(queue)
    assert [b.sequence for b in queue.consume(2)] == [1]
    assert queue.stats().blocked_sequences == (0,)
    assert len(work.dead_letters()) == 1
    queue.unblock(0)
    queue.nack(queue.consume())
    queue.consume()
    assert queue.stats().blocked_sequences == (0,)
    assert queue.park(0)
    assert len(work.dead_letters()) == 1
    assert work.section().finished_through == 0


def test_should_park_by_hand() -> None:
    work = Work(2, dlq=DEAD)
    queue = work.open()
    assert queue.park(1, "not wanted")
    ((entries, (said,)),) = work.dead_letters()
    assert (entries, said["count"], said["reason"]) == ([b"1"], 0, "not wanted")
    assert [p.sequence for p in queue.peek()] == [0]


WRITES_MAX = 40  # more than a parking or a redrive makes


@pytest.mark.parametrize("lands", [False, True])
def test_should_be_in_the_dead_letter_queue_exactly_once_wherever_a_parker_died(lands: bool) -> None:
    for write in range(WRITES_MAX):
        work = parking(3)
        fail_twice(work.open())
        dying = Dying(work.store)
        queue = work.open(store=dying)  # type: ignore[arg-type]
        dying.die_at(write, lands=lands)
        with contextlib.suppress(StoreUnusable):
            queue.consume()
        if not dying.is_dead:
            assert write > 4
            return
        work.expire()
        assert [b.sequence for b in work.open().consume(9)] == [1, 2]
        assert [said["sequence"] for _, (said,) in work.dead_letters()] == [0]
        assert work.section().finished_through == 0
    raise AssertionError("a parking has more writes than this test thought")


def test_should_go_on_with_the_others_while_the_dead_letter_queue_is_away() -> None:
    work = parking(3)
    fail_twice(work.open())
    faulty = FaultyStore(work.store, [])
    queue = work.open(store=faulty)
    faulty.add(Fault.before("put_if_absent", StoreUnusable("away"), location=DEAD, times=1_000_000))
    assert [b.sequence for b in queue.consume(2)] == [1, 2]
    assert [p.phase for p in queue.peek(1)] == [Phase.PARKING]
    faulty.heal()
    assert not queue.consume()
    work.expire()
    queue.consume()
    assert [said["sequence"] for _, (said,) in work.dead_letters()] == [0]


def test_should_append_nothing_when_a_parker_wakes_up_after_another_was_faster() -> None:
    work = parking(2)
    fail_twice(work.open())
    sleepy = work.open()
    asleep = sleepy._dead_letters.park

    def sleep_first(*args: object, **also: object) -> None:
        sleepy._dead_letters.park = asleep  # type: ignore[method-assign]
        work.expire()
        assert [b.sequence for b in work.open().consume()] == [1]
        asleep(*args, **also)  # type: ignore[arg-type]

    sleepy._dead_letters.park = sleep_first  # type: ignore[method-assign]
    assert not sleepy.consume()
    assert len(work.dead_letters()) == 1
    assert work.section().finished_through == 0


# Redrive


def test_should_bring_everything_home_as_it_was() -> None:
    work = parking(0)
    work.fill(1, [b"a", b"b", b"c", b"d"], ITEMS)
    work.fill(1)
    damaged = work.descriptors()[1].location
    original = work.store.get(damaged).data
    queue = work.open()
    work.store.put(damaged, original[:-1])
    batch, *_ = queue.consume(2)
    queue.ack(batch, entries=[0])
    queue.nack(batch)
    queue.nack(queue.consume(2))
    assert not queue.consume(2)
    assert len(work.dead_letters()) == 2
    assert queue.redrive() == 2
    assert queue.redrive() == 0
    assert len(work.manifest(DEAD)) == 0
    one, two = work.descriptors()[-2:]
    assert one.sequence == 2
    assert [(m.start_index, m.ingestion_time_ms, m.payload) for m in without_mark(one.metadata)] == [
        (0, 100, b"first call"),
        (1, 200, b"second call"),
    ]
    (back,) = queue.consume()
    assert (back.entries, back.delivery_count) == ([b"b", b"c", b"d"], 1)
    assert work.store.get(two.location).data == original[:-1]
    assert [(m.ingestion_time_ms, m.payload) for m in without_mark(two.metadata)] == [(7, b"m")]


def test_should_leave_what_is_gone_where_nobody_can_use_it() -> None:
    work = parking(1)
    work.store.delete_many([work.descriptors()[0].location])
    queue = work.open()
    assert not queue.consume()
    assert queue.redrive() == 1
    assert work.manifest().next_sequence == 1


def test_should_tell_the_workers_nothing_of_a_dead_letter_that_is_gone() -> None:
    """To them the word of it would be work like any other."""
    work = parking(2)
    queue = work.open()
    queue.park(0)
    queue.park(1)
    work.store.delete_many([work.descriptors(DEAD)[0].location])
    assert queue.redrive() == 2
    assert [b.entries for b in queue.consume(9)] == [[b"1"]]


@pytest.mark.parametrize("kind", ["entries", "bytes"])
def test_should_hand_no_bytes_of_a_damaged_dead_letter_to_the_workers(kind: str) -> None:
    """It would be work like any other, and done with its ack: the entries it held would be gone without a word."""
    work = parking(2)
    if kind == "bytes":
        work.store.put(work.descriptors()[0].location, b"not a batch")
    queue = work.open()
    queue.park(0)
    queue.park(1)
    first, _ = work.descriptors(DEAD)
    damaged = work.store.get(first.location).data[:-1]
    work.store.put(first.location, damaged)
    assert queue.redrive() == 2
    one, _ = work.descriptors()[-2:]
    assert work.store.get(one.location).data == damaged
    assert [(m.ingestion_time_ms, m.payload) for m in without_mark(one.metadata)] == [(7, b"m")]
    (good,) = queue.consume(9)
    assert good.entries == [b"1"]
    queue.ack(good)
    assert not queue.consume(9)
    ((entries, (said,)),) = work.dead_letters()
    assert (entries, said["kind"]) == ([damaged], "bytes")
    assert "CorruptBatch" in said["reason"]


@pytest.mark.parametrize("lands", [False, True])
def test_should_be_home_exactly_once_wherever_a_redrive_died(lands: bool) -> None:
    for write in range(WRITES_MAX):
        work = parking(2)
        queue = work.open()
        for _ in range(2):
            queue.nack(queue.consume(2))
        assert not queue.consume(2)
        dying = Dying(work.store)
        broken = work.open(store=dying)  # type: ignore[arg-type]
        dying.die_at(write, lands=lands)
        with contextlib.suppress(StoreUnusable):
            broken.redrive(max_batches=2)
        if not dying.is_dead:
            assert write > 8
            return
        work.expire()
        work.open().redrive()
        assert [descriptor.sequence for descriptor in work.descriptors()] == [2, 3]
        assert [b.entries for b in work.open().consume(9)] == [[b"0"], [b"1"]]
        assert len(work.manifest(DEAD)) == 0
    raise AssertionError("a redrive has more writes than this test thought")


@pytest.mark.parametrize(("path", "dead"), [("manifest", "dead/manifest"), ("jobs/manifest", "jobs/dead")])
def test_should_bring_them_home_wherever_the_manifest_lies(path: str, dead: str) -> None:
    """The queue's batches have a folder of their own, so its manifest may be at the top, or among the dead letters."""
    work = parking(0, dlq=dead)
    config = work.config().replace(manifest_path=path, data_path_prefix="data")
    queue = LeaseQueue.open(config, work.leases, clock=work.clock)
    queue.produce([b"a"])
    fail_twice(queue)
    assert not queue.consume()
    assert queue.redrive() == 1
    assert [(b.entries, b.batch.location.split("/")[0]) for b in queue.consume()] == [([b"a"], "data")]


def test_should_not_go_round_in_circles_with_what_fails_again_at_once() -> None:
    work = parking(2)
    queue = work.open()
    for _ in range(2):
        queue.nack(queue.consume(2))
    assert not queue.consume()

    def fail_again() -> None:
        fail_twice(queue)
        assert not queue.consume()

    assert queue.redrive(max_batches=9, on_moved=fail_again) == 2
    assert [entries for entries, _ in work.dead_letters()] == [[b"0"], [b"1"]]
    assert queue.redrive() == 2


def test_should_not_hurry_more_than_told() -> None:
    work = parking(3)
    queue = work.open()
    for sequence in range(3):
        queue.park(sequence)
    assert queue.redrive(max_per_second=2) == 3
    assert work.clock.sleeps.count(0.5) == 3
    with pytest.raises(InvalidInput):
        queue.redrive(max_per_second=0)


def test_should_refuse_to_redrive_what_feeds_a_loader_or_parks_elsewhere() -> None:
    work = parking(1)
    queue = work.open()
    queue.park(0)
    other = LeaseQueue.open(work.config(path=DEAD), work.leases.replace(dlq="elsewhere/manifest"), clock=work.clock)
    with pytest.raises(InvalidConfig, match="park in 'elsewhere/manifest'"):
        queue.redrive()
    other.configure(work.leases.replace(dlq=MANIFEST))
    assert queue.redrive() == 1
    work = parking(1)
    queue = work.open()
    queue.park(0)
    bound = Ledger(work.ledger(DEAD).queue_id, app_id="app", tables=("t",))
    work.store.put(f"{DEAD}.ledger", bound.to_bytes())
    with pytest.raises(QueueBound):
        queue.redrive()


def test_should_be_an_ordinary_queue_for_a_consumer() -> None:
    work = parking(1)
    work.open().park(0)
    batch = Consumer.new(work.config(path=DEAD), clock=work.clock).next_batch()
    assert batch is not None
    assert batch.entries == [b"0"]


def test_should_park_what_is_not_the_queues_without_its_bytes() -> None:
    work = parking(1)
    work.store.put("secret/file", b"not for everybody")
    QueueProducer(work.store, MANIFEST, work.clock).append_locations([("secret/file", ())])
    queue = work.open()
    (good,) = queue.consume(2)
    queue.ack(good)
    assert not queue.consume(2)
    work.expire()
    assert not queue.consume(2)
    assert queue.stats().blocked_sequences == (1,)  # never by itself: it is refused by this worker's settings
    assert work.dead_letters() == []
    assert queue.park(1)
    ((words, (said,)),) = work.dead_letters()
    assert (said["kind"], said["sequence"]) == ("refused", 1)
    assert b"everybody" not in words[0]
    assert queue.redrive() == 1
    assert work.manifest().next_sequence == 2


@pytest.mark.parametrize("path", ["dead", "jobs/dead"])
def test_should_refuse_a_dead_letter_queue_without_a_folder_of_its_own(path: str) -> None:
    work = Work(1, dlq_strategy="skip", dlq=path)
    with pytest.raises(InvalidConfig, match="a folder of its own"):
        work.open()
    work = parking(1)
    with pytest.raises(InvalidConfig, match="a folder of its own"):
        work.open().configure(work.leases.replace(dlq=path))


def test_should_bring_them_home_into_the_folder_of_the_queue() -> None:
    work = parking(1)
    config = work.config().replace(data_path_prefix="elsewhere", former_prefixes=["jobs"])
    queue = LeaseQueue.open(config, work.leases, clock=work.clock)
    queue.park(0)
    assert queue.redrive() == 1
    assert work.descriptors()[-1].location.startswith("elsewhere/")
    assert [b.entries for b in queue.consume()] == [[b"0"]]


def test_should_lose_nothing_to_a_worker_that_knows_another_folder() -> None:
    work = parking(20)
    good = work.open()
    wrong = LeaseQueue.open(work.config().replace(data_path_prefix="elsewhere"), clock=work.clock)
    with pytest.raises(LocationRefused):
        wrong.consume(4)
    assert work.dead_letters() == []
    assert good.stats().blocked == 0
    assert [b.sequence for b in good.consume(20)] == list(range(12, 20))  # it stopped after three looks
    work.expire()
    assert [b.sequence for b in good.consume(20)] == list(range(20))


def test_should_block_what_a_worker_with_a_small_limit_refuses() -> None:
    work = parking(0)
    work.fill(1, [bytes(range(256)) * 1000])
    work.fill(1)
    small = LeaseQueue.open(work.config().replace(max_batch_bytes=100_000), work.leases, clock=work.clock)
    assert [b.sequence for b in small.consume(2)] == [1]
    work.expire()
    assert [b.sequence for b in small.consume(2)] == [1]
    queue = work.open()
    assert queue.stats().blocked_sequences == (0,)
    assert work.dead_letters() == []
    queue.unblock(0)
    assert [b.sequence for b in queue.consume()] == [0]


def test_should_leave_parking_to_one_that_may_read_the_batch() -> None:
    work = parking(2)
    queue = work.open()
    fail_twice(queue)
    wrong = LeaseQueue.open(work.config().replace(data_path_prefix="elsewhere"), clock=work.clock)
    assert not wrong.consume()
    assert work.dead_letters() == []
    work.expire()
    queue.consume()
    assert [(entries, said["kind"]) for entries, (said,) in work.dead_letters()] == [([b"0"], "entries")]


def test_should_bring_them_home_into_the_folder_they_lay_in_when_somebody_else_goes_on() -> None:
    work = parking(0)
    home = work.config().replace(data_path_prefix="data")
    queue = LeaseQueue.open(home, work.leases, clock=work.clock)
    queue.produce([b"precious"])
    assert queue.park(0)
    dying = Dying(work.store)
    broken = LeaseQueue.open(home.replace(store=dying), clock=work.clock)
    with LeaseQueue.open(work.config(path=DEAD), work.leases.replace(dlq=MANIFEST), adopt=True, clock=work.clock):
        dying.die_at(1, lands=True)  # the batch is parking, and nothing of it is home
    with contextlib.suppress(StoreUnusable):
        broken.redrive()
    assert work.section(DEAD).ordinals == 1
    work.clock.advance(3_600)
    LeaseQueue.open(work.config(path=DEAD), clock=work.clock).consume()  # knows nothing of the folders of the source
    assert work.descriptors()[-1].location.startswith("data/")
    assert [b.entries for b in queue.consume()] == [[b"precious"]]


@pytest.mark.parametrize("dies", [False, True])
def test_should_put_a_parked_batch_again_when_its_append_came_too_late(
    dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = parking(1)
    fail_twice(work.open())
    dying = Dying(work.store)
    queue = work.open(store=dying)  # type: ignore[arg-type]
    swap = work.store.put_if_absent

    def asleep(location: str, data: bytes) -> object:
        if location == DEAD:
            (batch,) = [entry.location for entry in Manifest.from_bytes(data)]
            work.clock.advance(2 * 86_400)  # the machine sleeps, and a collector takes the batch for an orphan
            work.store.delete_many([batch])
            dying.is_dead = dies  # after this write
        return swap(location, data)

    monkeypatch.setattr(work.store, "put_if_absent", asleep)
    with contextlib.suppress(StoreUnusable):
        queue.consume()
    assert dying.is_dead == dies
    if dies:
        work.expire()
        work.open().consume()
    assert [(entries, said["sequence"]) for entries, (said,) in work.dead_letters()] == [([b"0"], 0)]
    assert work.section().finished_through == 0


def test_should_park_a_batch_whose_payload_no_parser_can_stand() -> None:
    work = parking(0)
    work.fill(1, [b"x"], [Metadata(0, 7, b"[" * 200_000)])
    queue = work.open()
    fail_twice(queue)
    assert not queue.consume()
    ((entries, (said,)),) = work.dead_letters()
    assert (entries, said["kind"], len(said["payload"])) == ([b"x"], "entries", 266_668)


def test_should_park_and_bring_home_a_batch_without_entries() -> None:
    work = parking(1)
    work.store.put(work.descriptors()[0].location, encode_batch([]))
    queue = work.open()
    fail_twice(queue)
    assert not queue.consume()
    ((entries, (said,)),) = work.dead_letters()
    assert (entries, said["entries"], said["kind"]) == ([], [], "entries")
    assert queue.redrive() == 1
    (descriptor,) = work.descriptors()
    assert [(m.start_index, m.ingestion_time_ms, m.payload) for m in without_mark(descriptor.metadata)] == [
        (0, 7, b"m")
    ]
    assert [b.entries for b in queue.consume()] == [[]]


def test_should_say_why_a_redrive_cannot_go_on() -> None:
    work = parking(1)
    queue = work.open()
    queue.park(0)
    ledger = work.ledger()
    lost = {"opened": True, "through": 3, "marks": {}, "lost": [0, 3]}
    work.store.put(f"{MANIFEST}.ledger", ledger.changed(sections={**ledger.sections, "clients": lost}).to_bytes())
    with pytest.raises(MarksLost):
        queue.redrive()
    assert [entries for entries, _ in work.dead_letters()] == [[b"0"]]


def test_should_refuse_to_be_its_own_dead_letter_queue() -> None:
    work = Work(0, dlq_strategy="skip", dlq=MANIFEST)
    config = work.config().replace(data_path_prefix="data")
    with pytest.raises(InvalidConfig, match="another manifest than the queue's own"):
        LeaseQueue.open(config, work.leases, clock=work.clock)


def test_should_say_whose_cap_of_holes_ends_a_redrive() -> None:
    """`configure` of the queue that they go back to would change nothing."""
    work = parking(4)
    queue = work.open()
    for sequence in range(4):
        queue.park(sequence)
    leases = LeaseConfig(dlq=MANIFEST)
    letters = LeaseQueue.open(work.config(path=DEAD), leases, adopt=True, clock=work.clock)
    _, second, _ = letters.consume(3)
    letters.snooze(second)
    letters.configure(leases.replace(max_ack_holes=1))
    with pytest.raises(AckHoleCapExceeded, match=r"^1 went back, .* queue 'dead/manifest' was at its own cap") as told:
        queue.redrive()
    assert (told.value.cap, told.value.count) == (1, 1)
    letters.configure(leases)
    assert queue.redrive() == 1
    letters.close()


def test_should_go_on_when_another_redrive_was_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    work = parking(3)
    queue, other = work.open(), work.open()
    for sequence in range(3):
        queue.park(sequence)
    peek = LeaseQueue.peek

    def slow(letters: LeaseQueue, max_batches: int = 10, **which: Any) -> list[Peeked]:
        found = peek(letters, max_batches, **which)
        monkeypatch.setattr(LeaseQueue, "peek", peek)
        assert other.redrive(max_batches=1) == 1
        return found

    monkeypatch.setattr(LeaseQueue, "peek", slow)
    assert queue.redrive() == 2
    assert [b.entries for b in queue.consume(9)] == [[b"0"], [b"1"], [b"2"]]


@pytest.mark.parametrize("then", [{"dlq": "other/manifest"}, {"dlq": None, "dlq_strategy": "block"}])
def test_should_leave_orders_that_another_one_has_carried_out(then: dict[str, str | None]) -> None:
    work = parking(2)
    other, sleepy = work.open(), work.open()
    (held,) = other.consume()  # keeps what is parked in the manifest
    fail_twice(other)
    look = sleepy._session.look

    def asleep() -> Look:
        sleepy._session.look = look  # type: ignore[method-assign]
        other.extend(held, 10 * TIMEOUT_MS)
        work.expire()
        assert not other.consume()
        other.configure(work.leases.replace(**then))
        return look()

    sleepy._session.look = asleep  # type: ignore[method-assign]
    assert not sleepy.consume()
    assert [said["sequence"] for _, (said,) in work.dead_letters()] == [1]
    assert len(work.manifest("other/manifest")) == 0


def test_should_lose_nothing_when_the_ledger_was_put_back_and_gives_a_number_twice() -> None:
    """Batch 1 is in the dead-letter queue as number 1. By the older ledger batch 0 gets that number."""
    work = parking(2, max_delivery_attempts=1)
    queue = work.open()
    zero, one = queue.consume(2)
    backup = work.store.get(f"{MANIFEST}.ledger").data
    queue.nack(one)
    queue.consume()
    queue.nack(zero, delay_ms=1)
    assert [entries for entries, _ in work.dead_letters()] == [[b"1"]]
    work.store.put(f"{MANIFEST}.ledger", backup)
    work.expire()
    again = work.open()
    assert not again.consume()
    assert [entries for entries, _ in work.dead_letters()] == [[b"1"]]
    assert work.section().batches[0].state is State.PARKING, "not finished: it is nowhere else"
    work.expire()
    with pytest.raises(NumberReused, match="stands for another batch already"):
        again.park(0)


def test_should_leave_what_other_queues_have_parked_in_the_same_place() -> None:
    """It would be delivered to workers who do not know such work."""
    work = parking(1)
    store, path = work.store, "other/manifest"
    store.put("other/01ARZ3NDEKTSV4RRFFQ69G5FAV.batch", encode_batch([b"of the other"]))
    QueueProducer(store, path, work.clock).append_locations([("other/01ARZ3NDEKTSV4RRFFQ69G5FAV.batch", ())])
    two = LeaseQueue.open(work.config(path=path), work.leases, clock=work.clock)
    assert two.park(0)
    one = work.open()
    assert one.park(0)
    assert one.redrive() == 1
    assert [b.entries for b in one.consume(9)] == [[b"0"]]
    with pytest.raises(InvalidConfig, match="change that with `configure`"):
        two.redrive()
    with LeaseQueue.open(work.config(path=DEAD), clock=work.clock) as dead:
        dead.configure(dead.settings.replace(dlq=path))
    assert two.redrive() == 1
    assert [b.entries for b in two.consume(9)] == [[b"of the other"]]
    assert work.section(DEAD).finished_through == 1


def test_should_bring_back_what_was_parked_before_the_ledger_was_lost() -> None:
    """The queue has another id since; but it is at the same place."""
    work = parking(1)
    with work.open() as queue:
        queue.park(0)
    work.store.delete_many([f"{MANIFEST}.ledger"])
    queue = work.open(adopt=True)
    assert queue.redrive() == 1
    assert [b.entries for b in queue.consume(9)] == [[b"0"]]
