"""Reading ahead: acks in any order, and no thread left behind."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from buffer.consumer import Consumer
from buffer.errors import (
    Fenced,
    OutOfOrderAck,
    StoreUnusable,
)
from buffer.store.base import Store
from tests.consumer_support import (
    KINDS,
    Gated,
    Tapped,
    config,
    fetchers,
    fill,
    make_store,
    manifest_of,
    wait_until,
)


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return make_store(request.param, tmp_path)


@pytest.fixture
def memory(tmp_path: Path) -> Store:
    return make_store("memory", tmp_path)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()
    wait_until(lambda: fetchers() == 0)


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
    threading.Timer(0.03, gated.gate.set).start()
    batches.close()
    assert (gated.inside, fetchers()) == (0, 0)
    assert list(batches) == []
    batches.close()


def test_should_end_a_waiting_reader_when_closed_from_another_thread(memory: Store) -> None:
    consumer = Consumer.new(config(memory))
    batches = consumer.batches(poll_interval_s=3600)
    results: list[list[Any]] = []
    reading = threading.Thread(target=lambda: results.append(list(batches)))
    reading.start()
    time.sleep(0.02)
    batches.close()
    reading.join(10)
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
