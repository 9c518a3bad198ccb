"""A manifest that was put back from a backup gives sequences again that workers had: whoever takes over says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from buffer.consume.consumer import Consumer
from buffer.errors import BufferQueueError, Fenced, LedgerLost, QueueBehindConsumer
from buffer.ledger.binding import Binding
from buffer.manifest import Manifest
from buffer_delta.load.plans import Plans
from tests.leases.lease_support import MANIFEST, Work

BINDING = Binding("app", ("t",))


def all_acked(work: Work) -> None:
    queue = work.open()
    queue.ack(queue.consume(10))


def some_in_the_middle(work: Work) -> None:
    queue = work.open()
    held = queue.consume(10).batches
    queue.ack(held[7:])
    queue.nack(held[:7])


def only_given_back(work: Work) -> None:
    queue = work.open()
    queue.nack(queue.consume(10))


def only_one_leased_and_expired(work: Work) -> None:
    queue = work.open()
    queue.consume(10)
    work.expire()


STORIES = [all_acked, some_in_the_middle, only_given_back, only_one_leased_and_expired]


def put_back(story: Callable[[Work], None], *, claimed: bool = True) -> Work:
    """Ten batches of which workers know all, in a manifest that has only five again; `claimed`: of the same epoch."""
    work = Work(5)
    if claimed:
        work.open()
    backup = work.store.get(MANIFEST).data
    work.fill(5)
    story(work)
    work.store.put(MANIFEST, backup)
    return work


@pytest.mark.parametrize("story", STORIES)
def test_should_not_hand_a_consumer_another_batch_for_a_finished_one(story: Callable[[Work], None]) -> None:
    work = put_back(story)
    ledger = work.store.get(f"{MANIFEST}.ledger").data
    with pytest.raises(QueueBehindConsumer, match="Put the newest manifest back") as caught:
        Consumer.new(work.config(), clock=work.clock)
    assert (caught.value.last_acked, caught.value.next_sequence, caught.value.location) == (9, 5, MANIFEST)
    assert work.store.get(f"{MANIFEST}.ledger").data == ledger, "nothing is taken over"
    assert len(work.manifest()) == 5, "nothing has left"
    with pytest.raises(QueueBehindConsumer):
        work.open()


@pytest.mark.parametrize("story", STORIES)
def test_should_say_it_each_time_however_old_the_backup_is(story: Callable[[Work], None]) -> None:
    work = put_back(story, claimed=False)
    for error in (Fenced, QueueBehindConsumer, QueueBehindConsumer):  # the epoch of the first is one that workers had
        with pytest.raises(error):
            Consumer.new(work.config(), clock=work.clock)
    work.store.delete_many([MANIFEST])
    for _ in range(3):
        with pytest.raises(BufferQueueError):
            Consumer.new(work.config(), clock=work.clock)


def test_should_go_on_once_the_newest_manifest_is_back() -> None:
    work = Work(5)
    queue = work.open()
    backup = work.store.get(MANIFEST).data
    work.fill(5)
    newest = work.store.get(MANIFEST).data
    queue.ack(queue.consume(8))
    work.store.put(MANIFEST, backup)
    with pytest.raises(QueueBehindConsumer):
        Consumer.new(work.config(), clock=work.clock)
    work.store.put(MANIFEST, newest)
    consumer = Consumer.new(work.config(), clock=work.clock)
    assert [d.sequence for d in consumer.next_descriptors(9)] == [8, 9]


def test_should_begin_anew_as_the_message_says() -> None:
    work = put_back(all_acked)
    with pytest.raises(QueueBehindConsumer, match="stop all who use the queue and delete its ledger"):
        Consumer.new(work.config(), clock=work.clock)
    work.store.delete_many([f"{MANIFEST}.ledger"])
    consumer = Consumer.new(work.config(), clock=work.clock)
    assert [d.sequence for d in consumer.next_descriptors(9)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("claimed", [True, False])
@pytest.mark.parametrize("adopt", [False, True])
@pytest.mark.parametrize("story", STORIES)
def test_should_bind_no_loader_to_it(story: Callable[[Work], None], adopt: bool, claimed: bool) -> None:
    work = put_back(story, claimed=claimed)
    before = [work.store.get(path).data for path in (MANIFEST, f"{MANIFEST}.ledger")]
    plans = Plans(work.store, MANIFEST, work.clock)
    with pytest.raises(QueueBehindConsumer, match="'jobs/manifest' has only ever held sequences below 5"):
        plans.adopt(BINDING, committed=-1) if adopt else plans.bind(BINDING)
    assert [work.store.get(path).data for path in (MANIFEST, f"{MANIFEST}.ledger")] == before


@pytest.mark.parametrize("adopt", [False, True])
def test_should_bind_no_loader_to_a_manifest_of_an_older_epoch(adopt: bool) -> None:
    """It holds every sequence that workers know, and may lack others: only the epoch tells."""
    work = Work(5)
    backup = work.store.get(MANIFEST).data
    queue = work.open()
    queue.ack(queue.consume(2))
    work.store.put(MANIFEST, backup)
    plans = Plans(work.store, MANIFEST, work.clock)
    with pytest.raises(QueueBehindConsumer, match="workers claimed 'jobs/manifest' with epoch 1, and it is at 0"):
        plans.adopt(BINDING, committed=-1) if adopt else plans.bind(BINDING)


def test_should_notice_a_manifest_that_is_put_back_after_the_binding() -> None:
    work = Work(5)
    queue = work.open()
    backup = work.store.get(MANIFEST).data
    work.fill(5)
    queue.ack(queue.consume(10))
    Plans(work.store, MANIFEST, work.clock).bind(BINDING)
    work.store.put(MANIFEST, backup)
    with pytest.raises(QueueBehindConsumer):
        Consumer.new(work.config(), clock=work.clock)


# A queue that somebody else has claimed since


@pytest.mark.parametrize("acked", [0, 1, 5])
@pytest.mark.parametrize("closed", [False, True])
def test_should_not_bind_a_loader_to_what_a_consumer_has_taken_from_the_workers(acked: int, closed: bool) -> None:
    work = Work(10)
    with work.open() as queue:
        queue.ack(queue.consume(2))
    consumer = Consumer.new(work.config(), clock=work.clock)
    for sequence in range(2, 2 + acked):
        assert consumer.next_batch() is not None
        consumer.ack(sequence)
    if closed:
        consumer.close()
    before = work.store.get(f"{MANIFEST}.ledger").data
    with pytest.raises(LedgerLost, match="consumed before by another reader than its workers"):
        Plans(work.store, MANIFEST, work.clock).bind(BINDING)
    assert work.store.get(f"{MANIFEST}.ledger").data == before
    assert closed or consumer.next_batch() is not None, "it goes on"


def test_should_bind_a_loader_once_a_worker_has_taken_the_queue_back() -> None:
    work = Work(10)
    work.open()
    with Consumer.new(work.config(), clock=work.clock) as consumer:
        consumer.next_descriptors(3)
        consumer.ack_through(2)
    with pytest.raises(LedgerLost, match="let a worker open the queue once more"):
        Plans(work.store, MANIFEST, work.clock).bind(BINDING)
    work.open().close()
    assert Plans(work.store, MANIFEST, work.clock).bind(BINDING).born
    assert [d.sequence for d in Consumer.new(work.config(), clock=work.clock).next_descriptors(1)] == [3]


def claim_unnoticed(work: Work) -> None:
    """What a reader that knows no ledger does, and a worker before it is in the ledger."""
    work.store.put(MANIFEST, Manifest.from_bytes(work.store.get(MANIFEST).data).claim().to_bytes())


def test_should_not_bind_a_loader_beside_a_reader_that_knows_no_ledger() -> None:
    work = Work(3)
    queue = work.open()
    queue.ack(queue.consume(1))
    claim_unnoticed(work)
    with pytest.raises(LedgerLost, match="consumed before by another reader"):
        Plans(work.store, MANIFEST, work.clock).bind(BINDING)


def test_should_wait_for_a_worker_between_its_claim_and_its_write(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(3)
    queue = work.open()
    queue.ack(queue.consume(1))
    claim_unnoticed(work)
    sleep = work.clock.sleep

    def meanwhile(seconds: float) -> None:
        monkeypatch.setattr(work.clock, "sleep", sleep)
        work.open()
        sleep(seconds)

    monkeypatch.setattr(work.clock, "sleep", meanwhile)
    assert Plans(work.store, MANIFEST, work.clock).bind(BINDING).born
