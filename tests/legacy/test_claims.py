"""One or several Collectors on one queue: claims, acks, heartbeats, clean-up, parking, and what faults do to them."""

from __future__ import annotations

import json

import pytest

from buffer.errors import (
    AckOutcomeUnknown,
    ClaimLost,
    ContentionError,
    CorruptManifest,
    ManifestLost,
    StorageError,
)
from buffer.legacy.format import ConsumerManifest
from buffer.legacy.manifests import PARKED_MS
from buffer.store.base import Lost
from buffer.testing.faulty import Fault, FaultyStore
from tests.legacy.golden import T0_MS
from tests.legacy.legacy_support import CONSUMER_PATH, PARKED_PATH, PATH, TIMEOUT_MS, LegacyQueue, drain, next_of, pair


@pytest.fixture
def queue() -> LegacyQueue:
    return LegacyQueue()


def past_timeout(queue: LegacyQueue) -> None:
    queue.clock.advance(TIMEOUT_MS / 1000 + 0.001)


def test_should_deliver_in_order_once(queue: LegacyQueue) -> None:
    locations = queue.ingest("a", "b", "c")
    batches = drain(queue.claims())
    assert [batch.location for batch in batches] == locations
    assert [batch.entries for batch in batches] == [[pair("a")], [pair("b")], [pair("c")]]
    assert queue.claims().next_batch() is None


def test_should_share_batches_among_collectors(queue: LegacyQueue) -> None:
    locations = queue.ingest("a", "b")
    one, two = queue.claims(), queue.claims()
    first, second = one.next_batch(), two.next_batch()
    assert first is not None
    assert second is not None
    assert [first.location, second.location] == locations
    two.ack(second)
    one.ack(first)
    assert queue.consumer == ConsumerManifest({}, (second.location, first.location))


def test_should_take_over_a_stale_claim_and_refuse_the_ack_of_its_former_owner(queue: LegacyQueue) -> None:
    queue.ingest("a")
    former, latter = queue.claims(), queue.claims()
    batch = next_of(former)
    past_timeout(queue)
    again = next_of(latter)
    assert again.location == batch.location
    before = queue.store.get(CONSUMER_PATH)
    with pytest.raises(ClaimLost, match="drop what was made of it") as caught:
        former.ack(batch)
    assert caught.value.location == batch.location
    assert former.beat() == []
    assert queue.store.get(CONSUMER_PATH) == before, "nothing moved"
    latter.ack(again)


def test_should_not_refresh_what_another_took_over(queue: LegacyQueue) -> None:
    queue.ingest("a")
    former, latter = queue.claims(), queue.claims()
    batch = next_of(former)
    past_timeout(queue)
    again = next_of(latter)
    before = queue.store.get(CONSUMER_PATH)
    assert former.beat() == [batch.location]
    assert queue.store.get(CONSUMER_PATH) == before
    assert former.held == []
    latter.ack(again)


def test_should_keep_claims_with_heartbeats(queue: LegacyQueue) -> None:
    queue.ingest("a")
    owner, other = queue.claims(), queue.claims()
    batch = next_of(owner)
    for _ in range(10):
        queue.clock.advance(TIMEOUT_MS / 3000)
        assert owner.beat() == []
        assert other.next_batch() is None
    owner.ack(batch)


def test_should_ack_a_stale_claim_that_nobody_took_over(queue: LegacyQueue) -> None:
    queue.ingest("a")
    owner = queue.claims()
    batch = next_of(owner)
    past_timeout(queue)
    owner.ack(batch)
    assert queue.consumer.done == (batch.location,)


def test_should_deliver_again_what_was_released(queue: LegacyQueue) -> None:
    queue.ingest("a")
    owner = queue.claims()
    batch = next_of(owner)
    owner.release(batch)
    assert owner.beat() == []
    past_timeout(queue)
    again = next_of(owner)
    with pytest.raises(ClaimLost):
        owner.ack(batch)  # of the earlier claim
    owner.ack(again)
    with pytest.raises(ClaimLost, match="acked before"):
        owner.ack(again)


# Lost answers


@pytest.mark.parametrize("answer", [None, Lost])
def test_should_not_trust_a_claim_without_an_answer(queue: LegacyQueue, answer: type[Lost] | None) -> None:
    """Whoever wrote it at the same millisecond wrote the same bytes: it goes stale instead."""
    first, second = queue.ingest("a", "b")
    store = FaultyStore(queue.store, [Fault.after("put_if_absent", answer, location=CONSUMER_PATH)])
    owner = queue.claims(store)
    batch = next_of(owner)
    assert batch.location == second
    assert set(queue.consumer.claimed) == {first, second}
    owner.ack(batch)
    queue.clock.advance(1.0)
    past_timeout(queue)
    batch = next_of(owner)
    assert batch.location == first


@pytest.mark.parametrize("answer", [None, Lost])
def test_should_count_an_ack_whose_answer_was_lost(queue: LegacyQueue, answer: type[Lost] | None) -> None:
    queue.ingest("a")
    store = FaultyStore(queue.store, [Fault.after("put_if_match", answer, location=CONSUMER_PATH)])
    owner = queue.claims(store)
    batch = next_of(owner)
    owner.ack(batch)
    assert queue.consumer == ConsumerManifest({}, (batch.location,))


def test_should_say_when_nobody_can_tell_whose_ack_counted(queue: LegacyQueue) -> None:
    queue.ingest("a")
    owner = queue.claims(
        FaultyStore(
            queue.store,
            [
                Fault.before("put_if_match", location=CONSUMER_PATH),
                Fault.before("get_if_changed", location=CONSUMER_PATH, skip=1, times=99),
            ],
        ),
        cas_timeout_s=0.5,
    )
    batch = next_of(owner)
    with pytest.raises((ContentionError, StorageError)):
        owner.ack(batch)
    past_timeout(queue)
    drain(queue.claims())  # another one takes it over and acks it
    owner._consumer._store.heal()
    with pytest.raises(AckOutcomeUnknown, match="see whose results are there"):
        owner.ack(batch)


def test_should_own_a_heartbeat_whose_answer_was_lost(queue: LegacyQueue) -> None:
    queue.ingest("a")
    store = FaultyStore(queue.store, [Fault.after("put_if_match", location=CONSUMER_PATH)])
    owner = queue.claims(store)
    batch = next_of(owner)
    queue.clock.advance(1.0)
    assert owner.beat() == []
    owner.ack(batch)
    assert queue.consumer.done == (batch.location,)


def test_should_not_call_a_claim_lost_whose_ack_landed_without_an_answer(queue: LegacyQueue) -> None:
    """The heartbeat finds the claim gone before anybody was told of the ack."""
    queue.ingest("a")
    faults = [
        Fault.after("put_if_match", location=CONSUMER_PATH),
        Fault.before("get_if_changed", location=CONSUMER_PATH, skip=1, times=99),
    ]
    store = FaultyStore(queue.store, faults)
    owner = queue.claims(store, cas_timeout_s=0.5)
    batch = next_of(owner)
    with pytest.raises((ContentionError, StorageError)):
        owner.ack(batch)
    assert queue.consumer.done == (batch.location,)
    store.heal()
    assert owner.beat() == []
    owner.ack(batch)
    assert owner.held == []


# Clean-up


def test_should_clean_up_manifests_and_objects_at_the_threshold(queue: LegacyQueue) -> None:
    locations = queue.ingest("a", "b", "c", "d")
    collector = queue.claims(done_cleanup_threshold=3)
    for _ in range(2):
        batch = next_of(collector)
        collector.ack(batch)
    assert queue.objects() >= set(locations)
    batch = next_of(collector)
    collector.ack(batch)
    assert queue.pending == locations[3:]
    assert queue.consumer == ConsumerManifest()
    assert queue.objects() == {PATH, CONSUMER_PATH, locations[3]}


STEPS = [
    Fault.before("delete_many", StorageError, times=9),
    Fault.after("delete_many", StorageError, times=9),
    Fault.before("put_if_match", location=PATH, times=99),
    Fault.after("put_if_match", location=PATH, times=99),
    Fault.before("put_if_match", location=CONSUMER_PATH, skip=2, times=99),
]


@pytest.mark.parametrize("fault", STEPS, ids=lambda fault: f"{fault.when} {fault.op} {fault.location}")
def test_should_neither_deliver_again_nor_lose_when_a_clean_up_ends_early(queue: LegacyQueue, fault: Fault) -> None:
    """The process ends within the clean-up, after each of its steps; others go on."""
    locations = queue.ingest("a", "b")
    dying = queue.claims(FaultyStore(queue.store, [fault]), done_cleanup_threshold=1, cas_timeout_s=0.1)
    batch = next_of(dying)
    dying.ack(batch)  # the clean-up fails, the ack does not
    rest = drain(queue.claims(done_cleanup_threshold=1))
    assert [each.location for each in rest] == locations[1:]
    assert queue.pending == locations[1:]
    assert queue.consumer == ConsumerManifest({}, (locations[1],))
    assert locations[0] not in queue.objects()


def test_should_keep_what_could_not_be_deleted_until_the_next_clean_up(queue: LegacyQueue) -> None:
    locations = queue.ingest("a", "b", "c")
    store = FaultyStore(queue.store, [Fault.before("delete_many")])
    collector = queue.claims(store, done_cleanup_threshold=1)
    for count in (3, 1):
        batch = next_of(collector)
        collector.ack(batch)
        assert len(queue.pending) == count
    assert not queue.objects() & set(locations[:2])


def test_should_not_delete_the_object_of_another_spelling(queue: LegacyQueue) -> None:
    queue.plant(["q/a.json", "/q//a.json", "q/b.json"])
    queue.plant_batch("q/a.json", "a")
    queue.plant_batch("q/b.json", "b")
    collector = queue.claims(done_cleanup_threshold=1)
    assert [batch.location for batch in drain(collector)] == ["q/a.json", "/q//a.json", "q/b.json"]
    assert queue.objects() == {PATH, CONSUMER_PATH, "q/b.json"}


def test_should_clean_up_done_marks_that_no_store_could_hold(queue: LegacyQueue) -> None:
    queue.plant(["", "q/../x", "q/a.json", "q/b.json"], ConsumerManifest({}, ("", "q/../x")))
    queue.plant_batch("q/a.json", "a")
    queue.plant_batch("q/b.json", "b")
    drain(queue.claims(done_cleanup_threshold=1))
    assert queue.pending == ["q/b.json"]
    assert queue.consumer == ConsumerManifest({}, ("q/b.json",))


def test_should_not_call_a_claim_without_a_producer_manifest_finished(queue: LegacyQueue) -> None:
    queue.ingest("a")
    collector = queue.claims()
    collector.next_batch()
    queue.store.delete_many([PATH])
    with pytest.raises(ManifestLost, match="restore"):
        collector.next_batch()
    with pytest.raises(ManifestLost):
        collector.clean_up()
    assert len(queue.consumer.claimed) == 1


# Parking


def test_should_count_a_try_once_although_its_answer_was_lost(queue: LegacyQueue) -> None:
    queue.plant(["q/none.json"])
    store = FaultyStore(
        queue.store,
        [
            Fault.after("put_if_absent", location=PARKED_PATH),
            Fault.after("put_if_match", location=PARKED_PATH, times=2),
        ],
    )
    for tries in (1, 2, 3):
        assert queue.claims(store).next_batch() is None
        record = json.loads(queue.store.get(PARKED_PATH).data)["unreadable"]["q/none.json"]
        assert (len(record["tries"]), record["parked"]) == (tries, tries == 3)
        past_timeout(queue)
    assert queue.consumer.claimed == {"q/none.json": PARKED_MS}


def test_should_finish_parking_that_another_began(queue: LegacyQueue) -> None:
    """It died between the file and the claim: whoever takes it over does not read it once more."""
    queue.plant(["q/bad.json"])
    queue.store.put("q/bad.json", b"{")
    dying = queue.claims(
        FaultyStore(queue.store, [Fault.before("put_if_match", location=CONSUMER_PATH, times=99)]),
        read_tries=1,
        cas_timeout_s=0.1,
    )
    with pytest.raises(ContentionError):
        dying.next_batch()
    assert dying.held == []
    assert queue.consumer.claimed["q/bad.json"] < PARKED_MS
    past_timeout(queue)
    store = FaultyStore(queue.store)
    other = queue.claims(store, read_tries=1)
    assert other.next_batch() is None
    assert queue.consumer.claimed == {"q/bad.json": PARKED_MS}
    assert not [call for call in store.history if call.location == "q/bad.json"]


def test_should_not_hold_a_batch_for_unreadable_that_another_has_finished(queue: LegacyQueue) -> None:
    queue.ingest("a", "b")

    class Slow(FaultyStore):
        def get(self, location):  # while it waits for the answer, another one does all the work
            if location.endswith(("manifest.json", "consumer.json", "parked.json")):
                return super().get(location)
            past_timeout(queue)
            drain(queue.claims(done_cleanup_threshold=1))
            return super().get(location)

    slow = queue.claims(Slow(queue.store), read_tries=1)
    assert slow.next_batch() is None
    assert slow.parked() == {}
    assert slow.held == []


def test_should_try_a_parked_batch_again_once_it_is_unparked(queue: LegacyQueue) -> None:
    queue.plant(["q/late.json"])
    collector = queue.claims(read_tries=1)
    assert collector.next_batch() is None
    assert list(collector.parked()) == ["q/late.json"]
    queue.plant_batch("q/late.json", "repaired")
    collector.unpark("q/late.json")
    assert collector.parked() == {}
    (batch,) = drain(collector)
    assert batch.entries == [pair("repaired")]


def test_should_leave_the_claim_when_the_store_fails_and_deliver_it_later(queue: LegacyQueue) -> None:
    (location,) = queue.ingest("a")
    store = FaultyStore(queue.store, [Fault.before("get", location=location, times=5)])
    collector = queue.claims(store)
    with pytest.raises(StorageError):
        collector.next_batch()
    assert collector.held == []
    assert collector.parked() == {}, "that is the store's fault, not the batch's"
    past_timeout(queue)
    (batch,) = drain(collector)
    assert batch.location == location


def test_should_refuse_a_damaged_list_of_parked_batches(queue: LegacyQueue) -> None:
    queue.plant(["q/none.json"])
    queue.store.put(PARKED_PATH, b'{"version":2,"unreadable":{}}')
    with pytest.raises(CorruptManifest, match="version 2 is not known here"):
        queue.claims().next_batch()


def test_should_start_claims_with_the_clocks_time(queue: LegacyQueue) -> None:
    (location,) = queue.ingest("a")
    queue.claims().next_batch()
    assert queue.store.get(CONSUMER_PATH).data == b'{"claimed":{"%b":%d},"done":[]}' % (location.encode(), T0_MS)
