"""A consumer over a store that fails, its end, and what it shows of itself."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest

from buffer.consume.consumer import Consumer
from buffer.errors import (
    Closed,
    ContentionError,
    StorageError,
    StoreUnusable,
)
from buffer.model import Metadata
from buffer.store.base import Outcome, Store, Unknown
from buffer.testing.clock import ManualClock
from buffer.testing.faulty import FaultyStore
from tests.consume.consumer_support import (
    CALLS,
    MANIFEST,
    Tapped,
    assert_no_collectors,
    busy_consumer,
    collectors,
    config,
    fill,
    manifest_of,
    marks,
)
from tests.metrics_reader import value

# Stores that fail


@pytest.mark.parametrize("call", ["next_batch", "next_descriptors", "ack", "ack_through", "flush"])
def test_should_keep_state_when_the_store_fails(memory: Store, call: str) -> None:
    tapped = Tapped(memory)
    consumer = busy_consumer(tapped)
    before = marks(consumer)

    def fail(operation: str, location: str) -> None:
        raise StoreUnusable(f"no permission to {operation} {location}", location=location, retryable=False)

    tapped.tap = fail
    with pytest.raises(StoreUnusable):
        CALLS[call](consumer)
    assert marks(consumer) == before
    tapped.tap = None
    CALLS[call](consumer)
    assert consumer.next_descriptors(1)


def test_should_finish_an_ack_through_whose_reply_was_lost(memory: Store) -> None:
    class LosesReply(Tapped):
        """The next conditional write lands, says nothing, and takes the network down."""

        armed = False

        def put_if_match(self, location: str, data: bytes, version: str) -> Outcome:
            outcome = super().put_if_match(location, data, version)
            if not self.armed:
                return outcome
            self.tap = self._down
            return Unknown(StorageError("connection reset", retryable=True))

        def _down(self, operation: str, location: str) -> None:
            raise StorageError("no route", location=location, retryable=False)

    store = LosesReply(memory)
    consumer = busy_consumer(store)
    store.armed = True
    with pytest.raises(StorageError, match="no route"):
        consumer.ack_through(2)
    assert consumer.last_acked == 1
    assert manifest_of(memory).first_sequence == 3, "it landed"
    store.armed, store.tap = False, None
    consumer.ack_through(2)
    assert consumer.last_acked == 2
    assert len(consumer) == 3


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("way", ["one by one", "in groups", "ahead"])
def test_should_deliver_every_batch_in_order_through_a_store_that_fails_at_random(
    memory: Store, seed: int, way: str
) -> None:
    """Every fifth call fails before or after it acted, lands late, or lies about a lost race."""
    count = 130
    fill(memory, count)
    clock = ManualClock(seed=seed)
    faulty = FaultyStore(memory, seed=seed, rate=0.2, clock=clock)
    settings = config(faulty, fetch_attempts=2)
    consumer: Consumer = stubbornly(lambda: Consumer.new(settings, clock=clock))
    seen: list[int] = []
    batches = consumer.batches(prefetch=3, auto_ack=True)
    while len(seen) < count:
        if way == "ahead":
            seen.append(stubbornly(next, batches).sequence)
            continue
        taken = stubbornly(consumer.next_descriptors, 1 if way == "one by one" else 7)
        seen += [stubbornly(consumer.fetch_descriptor, descriptor).sequence for descriptor in taken]
        stubbornly(consumer.ack if way == "one by one" else consumer.ack_through, seen[-1])
        assert consumer.last_acked == seen[-1]
    stubbornly(batches.close)
    stubbornly(consumer.close)
    faulty.heal()
    assert seen == list(range(count))
    held = manifest_of(memory)
    assert (held.next_sequence, held.epoch) == (count, consumer.epoch)
    assert held.first_sequence == (consumer.last_acked or 0) + 1


def stubbornly(call: Callable[..., Any], *arguments: Any) -> Any:
    """Repeat a call that failed for the store's reasons, as a caller would: that must always be right."""
    for _ in range(200):
        try:
            return call(*arguments)
        except (StorageError, ContentionError):
            continue
    raise AssertionError("200 failures in a row")


# Ending


def test_should_raise_closed_after_close(store: Store) -> None:
    fill(store, 2)
    consumer = Consumer.new(config(store))
    (descriptor,) = consumer.next_descriptors(1)
    handle = consumer.fetch_handle()
    consumer.close()
    consumer.close()
    assert consumer.closed
    others = {
        "zero": lambda c: c.next_descriptors(0),
        "fetch_descriptor": lambda c: c.fetch_descriptor(descriptor),
    }
    for call in {**CALLS, **others}.values():
        with pytest.raises(Closed):
            call(consumer)
    assert handle.fetch(descriptor).sequence == 0, "handles outlive the consumer"


def test_should_try_the_flush_again_when_close_failed(memory: Store) -> None:
    fill(memory, 2)
    tapped = Tapped(memory)
    consumer = Consumer.new(config(tapped))
    consumer.next_descriptors(2)
    consumer.ack(0)

    def fail(operation: str, location: str) -> None:
        raise StoreUnusable("disk full", location=location, retryable=False)

    tapped.tap = fail
    with pytest.raises(StoreUnusable):
        consumer.close()
    assert consumer.closed
    tapped.tap = None
    consumer.close()
    assert len(manifest_of(memory)) == 1


def test_should_abandon_without_touching_the_queue(memory: Store) -> None:
    fill(memory, 2)
    tapped = Tapped(memory)
    consumer = Consumer.new(config(tapped, gc_enabled=True))
    consumer.next_descriptors(2)
    consumer.ack(0)
    tapped.calls.clear()
    consumer.abandon()
    consumer.close()
    assert tapped.calls == []
    assert len(manifest_of(memory)) == 2
    with pytest.raises(Closed):
        consumer.ack(1)


def test_should_flush_at_the_end_of_a_with_block(store: Store) -> None:
    fill(store, 2)
    with Consumer.new(config(store)) as consumer:
        consumer.next_descriptors(2)
        consumer.ack(0)
    assert len(manifest_of(store)) == 1


def test_should_keep_the_error_of_a_with_block_when_closing_fails_too(
    memory: Store, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> None:
        with busy_consumer(memory):
            Consumer.new(config(memory))
            raise ZeroDivisionError

    with caplog.at_level(logging.WARNING), pytest.raises(ZeroDivisionError):
        work()
    assert "acks were not dequeued" in caplog.text


def test_should_stop_the_collector_with_close(memory: Store) -> None:
    consumer = Consumer.new(config(memory, gc_enabled=True))
    assert collectors() == 1
    consumer.close()
    assert collectors() == 0


def test_should_stop_the_collector_when_the_consumer_is_dropped(memory: Store) -> None:
    consumer: Consumer | None = Consumer.new(config(memory, gc_enabled=True))
    assert collectors() == 1
    assert consumer is not None
    del consumer
    gc.collect()
    assert_no_collectors()


def test_should_start_no_collector_when_told_not_to(memory: Store) -> None:
    with Consumer.new(config(memory, gc_enabled=False)):
        assert collectors() == 0


# Looking


def test_should_count_what_is_not_acked(store: Store) -> None:
    consumer = Consumer.new(config(store))
    assert len(consumer) == 0
    assert consumer, "a consumer of an empty queue is still a consumer"
    fill(store, 3)
    assert len(consumer) == 3
    consumer.next_descriptors(3)
    assert len(consumer) == 3
    consumer.ack(0)
    assert len(consumer) == 2
    consumer.ack_through(2)
    assert len(consumer) == 0


def test_should_measure_lag_from_the_oldest_entry_not_acked(memory: Store) -> None:
    clock = ManualClock()
    start = clock.now_ms()
    consumer = Consumer.new(config(memory), clock=clock)
    assert consumer.lag_seconds() == 0
    fill(memory, metadata=[Metadata(0, start + 500), Metadata(1, start)])
    fill(memory, metadata=[Metadata(0, start + 2000)])
    clock.advance(5)
    assert consumer.lag_seconds() == 5
    consumer.next_descriptors(2)
    assert consumer.lag_seconds() == 5, "handed out is not done"
    consumer.ack(0)
    assert consumer.lag_seconds() == 3
    consumer.ack(1)
    assert consumer.lag_seconds() == 0
    fill(memory, metadata=[Metadata(0, clock.now_ms() + 60_000)])
    assert consumer.lag_seconds() == 0, "a producer's clock may be ahead"


def test_should_measure_lag_from_the_ulid_where_there_is_no_metadata(memory: Store) -> None:
    fill(memory)
    lag = Consumer.new(config(memory)).lag_seconds()
    assert 0 <= lag < 60


def test_should_not_read_from_the_store_to_print_a_consumer(memory: Store) -> None:
    fill(memory, 3)
    tapped = Tapped(memory)
    consumer = Consumer.new(config(tapped), 0)
    tapped.calls.clear()
    text, page = repr(consumer), consumer._repr_html_()
    assert tapped.calls == []
    assert text == (
        f"<Consumer of {MANIFEST} in {memory.url}: epoch 1, last acked 0, cursor 1, length 2, "
        f"lag {text.rpartition('lag ')[2]}"
    )
    for fact in ("epoch", "last acked", "cursor", "length", "lag", MANIFEST):
        assert fact in page


def test_should_escape_what_a_notebook_shows(memory: Store) -> None:
    consumer = Consumer.new(config(memory, manifest_path="<b>/manifest"))
    assert "<b>" not in consumer._repr_html_()
    assert "&lt;b&gt;/manifest" in consumer._repr_html_()


def test_should_poll_an_unchanged_manifest_without_transfer(store: Store) -> None:
    fill(store)
    tapped = Tapped(store)
    consumer = Consumer.new(config(tapped), 0)
    tapped.calls.clear()
    for _ in range(5):
        assert consumer.next_batch() is None
    assert tapped.calls == [("get_if_changed", MANIFEST)] * 5


def test_should_count_what_it_does(memory: Store) -> None:
    names = ["acks", "descriptors_handed_out", "batches_collected", "entries_collected"]
    before = {name: value(f"buffer.{name}") for name in names}
    writes = value("buffer.manifest_writes", {"role": "consumer"})
    fill(memory, 4, entries=lambda i: [b"x"] * 5)
    consumer = Consumer.new(config(memory))
    consumer.next_batch()
    consumer.next_descriptors(2)
    consumer.ack(0)
    consumer.ack_through(2)
    after = {name: value(f"buffer.{name}") - before[name] for name in names}
    assert after == {"acks": 3, "descriptors_handed_out": 3, "batches_collected": 1, "entries_collected": 5}
    assert value("buffer.manifest_writes", {"role": "consumer"}) == writes + 2
    assert value("buffer.queue_length") == 1


# What is known without a look


def test_should_hand_out_what_is_known_without_reading(memory: Store) -> None:
    fill(memory, 3)
    tapped = Tapped(memory)
    consumer = Consumer.new(config(tapped))
    tapped.calls.clear()
    assert [d.sequence for d in consumer.next_descriptors(2, known=True)] == [0, 1]
    fill(memory, 1)
    assert [d.sequence for d in consumer.next_descriptors(9, known=True)] == [2], "the fourth is not known yet"
    assert consumer.next_descriptors(9, known=True) == []
    assert tapped.calls == []
    assert [d.sequence for d in consumer.next_descriptors(9)] == [3]


def test_should_know_the_queue_as_the_last_ack_left_it(memory: Store) -> None:
    clock = ManualClock()
    fill(memory, 2, metadata=(Metadata(0, clock.now_ms(), b""),))
    tapped = Tapped(memory)
    consumer = Consumer.new(config(tapped), clock=clock)
    consumer.next_descriptors(2)
    consumer.ack_through(0)
    tapped.calls.clear()
    clock.advance(5.0)
    assert consumer.known_lag() == (1, 5.0)
    assert (consumer.known().first_sequence, consumer.known().next_sequence) == (1, 2)
    assert tapped.calls == []
    consumer.ack_through(1)
    assert consumer.known_lag() == (0, 0.0)


def test_should_hand_out_nothing_known_once_it_is_closed(memory: Store) -> None:
    fill(memory, 1)
    consumer = Consumer.new(config(memory))
    consumer.close()
    with pytest.raises(Closed):
        consumer.next_descriptors(1, known=True)
