"""Reading ahead: acks in any order, and no thread left behind."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

from buffer.consume.consumer import Consumer
from buffer.consume.read_ahead import ReadAhead
from buffer.errors import (
    Fenced,
    OutOfOrderAck,
    StoreUnusable,
)
from buffer.store import open_store
from buffer.store.base import Store
from tests.consume.consumer_support import (
    Gated,
    Tapped,
    config,
    fetchers,
    fill,
    manifest_of,
)
from tests.few_threads import allow_threads
from tests.interrupted import raising_at
from tests.nets import HANGS_S, wait_until

OURS = "/src/buffer/"

# Acks


def test_should_ack_the_batch_before_when_the_next_is_asked_for(store: Store) -> None:
    fill(store, 3)
    consumer = Consumer.new(config(store))
    seen = [(batch.sequence, consumer.last_acked) for batch in consumer.batches(auto_ack=True)]
    assert seen == [(0, None), (1, 0), (2, 1)]
    assert consumer.last_acked == 2
    assert len(manifest_of(store)) == 0, "the end dequeues what is acked"


def test_should_not_ack_the_batch_that_the_caller_failed_on(store: Store) -> None:
    fill(store, 4)
    consumer = Consumer.new(config(store))

    def work() -> None:
        with consumer.batches(auto_ack=True) as batches:
            for batch in batches:
                if batch.sequence == 2:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert consumer.last_acked == 1
    assert manifest_of(store).first_sequence == 2


def test_should_ack_by_the_contiguous_watermark(memory: Store) -> None:
    fill(memory, 6)
    consumer = Consumer.new(config(memory))
    with consumer.batches() as batches:
        done = [next(batches) for _ in range(5)]
        batches.ack(done[2])
        batches.ack(done[1])
        assert consumer.last_acked is None
        batches.ack(0)
        assert consumer.last_acked == 2
        batches.ack(4)
        assert consumer.last_acked == 2
    assert manifest_of(memory).first_sequence == 3, "close dequeues up to the watermark"


def test_should_dequeue_every_100_acks(memory: Store) -> None:
    fill(memory, 250)
    consumer = Consumer.new(config(memory))
    batches = consumer.batches(auto_ack=True)
    for batch in batches:
        if batch.sequence == 230:
            assert manifest_of(memory).first_sequence == 200
            break
    assert (consumer.last_acked, manifest_of(memory).first_sequence) == (229, 200)
    consumer.close()
    assert manifest_of(memory).first_sequence == 230, "acks belong to the consumer, not to the iterator"


def test_should_reject_acks_twice_or_of_what_did_not_come_out(memory: Store) -> None:
    fill(memory, 6)
    with Consumer.new(config(memory)).batches() as batches:
        for _ in range(3):
            next(batches)
        batches.ack(0)
        batches.ack(2)
        for wrong in (0, 2, 3, 5, 99, -1):
            with pytest.raises(OutOfOrderAck) as caught:
                batches.ack(wrong)
            assert caught.value.expected == 1
        batches.ack(1)


def test_should_ack_from_many_threads(memory: Store) -> None:
    fill(memory, 300)
    consumer = Consumer.new(config(memory))
    with consumer.batches(prefetch=16) as batches:
        done = list(batches)
        threads = [threading.Thread(target=lambda k=k: [batches.ack(batch) for batch in done[k::4]]) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert consumer.last_acked == 299
    assert len(manifest_of(memory)) == 0


def test_should_keep_the_watermark_when_a_dequeue_fails(memory: Store) -> None:
    fill(memory, 120)
    tapped = Tapped(memory)
    consumer = Consumer.new(config(tapped))
    with consumer.batches() as batches:
        done = list(batches)
        for batch in done[:99]:
            batches.ack(batch)

        def fail(operation: str, location: str) -> None:
            raise StoreUnusable("read-only", location=location, retryable=False)

        tapped.tap = fail
        for _ in range(2):
            with pytest.raises(StoreUnusable):
                batches.ack(99)
            assert consumer.last_acked == 98
        tapped.tap = None
        batches.ack(99)
        assert (consumer.last_acked, manifest_of(memory).first_sequence) == (99, 100)


def test_should_raise_fenced_when_acks_are_dequeued(memory: Store) -> None:
    fill(memory, 5)
    consumer = Consumer.new(config(memory))
    batches = consumer.batches(auto_ack=True)
    next(batches)
    next(batches)
    Consumer.new(config(memory))
    with pytest.raises(Fenced):
        batches.close()
    assert manifest_of(memory).first_sequence == 0


# Ending


def test_should_wait_for_fetches_under_way_when_closed(memory: Store) -> None:
    fill(memory, 10)
    gated = Gated(memory, open=True)
    batches = Consumer.new(config(gated)).batches(prefetch=4)
    next(batches)
    gated.settle(5)
    gated.gate.clear()
    next(batches)
    wait_until(lambda: gated.inside == 1)
    inside_then: list[int] = []
    closing = threading.Thread(target=lambda: (batches.close(), inside_then.append(gated.inside)))
    closing.start()
    wait_until(batches._closed.is_set)  # now, or in a moment, it waits for the fetch
    gated.gate.set()
    closing.join(HANGS_S)
    assert (inside_then, fetchers()) == ([0], 0)
    assert list(batches) == []
    batches.close()


def test_should_end_a_waiting_reader_when_closed_from_another_thread(memory: Store) -> None:
    tapped = Tapped(memory)
    consumer = Consumer.new(config(tapped))
    batches = consumer.batches(poll_interval_s=3600)
    results: list[list[Any]] = []
    looks = len(tapped.calls)
    reading = threading.Thread(target=lambda: results.append(list(batches)))
    reading.start()
    wait_until(lambda: len(tapped.calls) > looks)  # it has seen that there is nothing; now, or in a moment, it waits
    batches.close()
    reading.join(HANGS_S)
    assert results == [[]]


def test_should_leave_no_thread_behind_when_dropped(memory: Store) -> None:
    fill(memory, 20)
    consumer = Consumer.new(config(memory))
    for _ in range(5):
        for _ in consumer.batches(prefetch=3):
            break
    gc.collect()
    wait_until(lambda: fetchers() == 0)
    assert consumer.cursor == 5


# Leaving a loop


@pytest.mark.parametrize("read_on", ["another loop", "next_batch", "next_descriptors", "a loop with acks by hand"])
def test_should_go_on_acking_after_a_break(store: Store, read_on: str) -> None:
    fill(store, 40)
    consumer = Consumer.new(config(store))
    for _ in range(3):
        for count, _batch in enumerate(consumer.batches(auto_ack=True), 1):
            if count == 10:
                break
    assert consumer.last_acked == 28, "the batch in hand is not acked before the next one is asked for"
    if read_on == "another loop":
        for _batch in consumer.batches(auto_ack=True):
            pass
    elif read_on == "a loop with acks by hand":
        batches = consumer.batches()
        for batch in batches:
            batches.ack(batch)
    elif read_on == "next_batch":
        while (batch := consumer.next_batch()) is not None:
            consumer.ack(batch.sequence)
    else:
        consumer.ack_through(consumer.next_descriptors(100)[-1].sequence)
    consumer.close()
    assert len(manifest_of(store)) == 0


@pytest.mark.parametrize("skip", ["of the loop", "of the consumer"])
def test_should_ack_the_batch_in_hand_when_the_next_one_is_skipped(memory: Store, skip: str) -> None:
    fill(memory, 4)
    with Consumer.new(config(memory)) as consumer:
        batches = consumer.batches(auto_ack=True)
        assert next(batches).sequence == 0
        if skip == "of the loop":
            batches.skip(1)
            assert [batch.sequence for batch in batches] == [2, 3]
        else:
            batches.close()
            consumer.skip(1)
            assert consumer.last_acked == 0
            consumer.ack(1)
            consumer.ack_through(consumer.next_descriptors(2)[-1].sequence)
    assert len(manifest_of(memory)) == 0


def test_should_leave_only_the_batch_in_hand_when_400_were_processed_in_tens(memory: Store) -> None:
    fill(memory, 400)
    with Consumer.new(config(memory)) as consumer:
        for _ in range(40):
            for count, _batch in enumerate(consumer.batches(auto_ack=True), 1):
                if count == 10:
                    break
    assert manifest_of(memory).first_sequence == 399


def test_should_not_ack_the_batch_in_hand_twice(memory: Store) -> None:
    fill(memory, 3)
    consumer = Consumer.new(config(memory))
    consumer.ack(next(iter(consumer.batches(auto_ack=True))).sequence)
    assert next(iter(consumer.batches(auto_ack=True))).sequence == 1
    assert consumer.last_acked == 0


def test_should_not_ack_a_batch_that_the_caller_failed_on_by_another_loop(memory: Store) -> None:
    fill(memory, 4)
    consumer = Consumer.new(config(memory))

    def work() -> None:
        with consumer.batches(auto_ack=True) as batches:
            for batch in batches:
                if batch.sequence == 1:
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert [batch.sequence for batch in consumer.batches(auto_ack=True)] == [2, 3]
    consumer.close()
    assert manifest_of(memory).first_sequence == 1, "it comes again, and with it what came after"


def test_should_keep_acks_that_came_ahead_of_an_older_one_for_the_next_loop(memory: Store) -> None:
    fill(memory, 4)
    consumer = Consumer.new(config(memory))
    batches = consumer.batches()
    done = [next(batches) for _ in range(3)]
    batches.ack(done[1])
    batches.ack(done[2])
    batches.close()
    again = consumer.batches()
    again.ack(done[0])
    assert consumer.last_acked == 2
    again.ack(next(again))
    consumer.close()
    assert len(manifest_of(memory)) == 0


def test_should_go_past_acks_that_came_ahead_when_acked_in_order(memory: Store) -> None:
    fill(memory, 4)
    consumer = Consumer.new(config(memory))
    batches = consumer.batches()
    done = [next(batches) for _ in range(4)]
    batches.ack(done[2])
    batches.close()
    consumer.ack_through(1)
    assert consumer.last_acked == 2
    consumer.ack(3)
    consumer.close()
    assert len(manifest_of(memory)) == 0


# Threads that cannot be started


@pytest.mark.parametrize("started", [0, 1, 2])
def test_should_hand_out_and_ack_every_batch_when_threads_cannot_be_started(
    memory: Store, monkeypatch: pytest.MonkeyPatch, started: int
) -> None:
    fill(memory, 30)
    consumer = Consumer.new(config(memory))
    allow_threads(monkeypatch, started)
    seen = []
    for batch in consumer.batches(prefetch=8, auto_ack=True):
        assert consumer.last_acked == (batch.sequence - 1 if batch.sequence else None)
        seen.append(batch.entries)
    assert seen == [[b"%d" % i] for i in range(30)]
    assert len(manifest_of(memory)) == 0


def test_should_ack_nothing_that_nobody_got(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails while the next fetches are started, the batch that was about to come out still does."""
    fill(memory, 5)
    consumer = Consumer.new(config(memory))
    batches = consumer.batches(prefetch=1, auto_ack=True)
    with monkeypatch.context() as patch:
        patch.setattr(ReadAhead, "_has_room", _interrupted_the_second_time())
        with pytest.raises(KeyboardInterrupt):
            next(batches)
    assert consumer.cursor == 0
    assert next(batches).sequence == 0
    assert next(batches).sequence == 1
    assert consumer.last_acked == 0
    batches.close()


def _interrupted_the_second_time() -> Any:
    calls = iter([True])

    def has_room(_: ReadAhead) -> bool:
        if next(calls, False):
            return True
        raise KeyboardInterrupt

    return has_room


@pytest.mark.parametrize("by_another", [False, True])
def test_should_ack_nothing_that_nobody_got_because_a_handler_raised(by_another: bool) -> None:
    """A signal's, wherever it meets the iterator. Asking on, it or another one, acks the batch before, if there is."""
    moment, ended = 0, False
    while not ended:
        moment += 1
        store = open_store("memory://")
        fill(store, 5)
        consumer = Consumer.new(config(store))
        batches = consumer.batches(prefetch=2, auto_ack=True)
        got = [next(batches).sequence]
        ended = not raising_at(moment, lambda batches=batches, got=got: got.append(next(batches).sequence), within=OURS)
        for batch in consumer.batches(prefetch=2, auto_ack=True) if by_another else batches:
            assert consumer.last_acked == batch.sequence - 1, moment
            got.append(batch.sequence)
        assert got == [0, 1, 2, 3, 4], moment
        batches.close()
        consumer.close()


def test_should_hand_out_the_next_batch_again_when_nobody_got_it_because_a_handler_raised() -> None:
    """A loop that went on with `ack_through` would ack it."""
    moment, ended = 0, False
    while not ended:
        moment += 1
        store = open_store("memory://")
        fill(store, 3)
        consumer = Consumer.new(config(store))
        got: list[int] = []
        ended = not raising_at(
            moment, lambda consumer=consumer, got=got: got.append(consumer.next_batch().sequence), within=OURS
        )
        while (batch := consumer.next_batch()) is not None:
            got.append(batch.sequence)
        assert got == [0, 1, 2], moment
        consumer.close()
