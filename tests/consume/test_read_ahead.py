"""Reading ahead: order, bounds, and errors in their place."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from buffer.clock import SystemClock
from buffer.codec.batch import encode_batch
from buffer.consume.budget import Budget
from buffer.consume.consumer import Consumer
from buffer.consume.read_ahead import LOOKAHEAD
from buffer.errors import (
    Closed,
    CorruptBatch,
    Fenced,
    InvalidInput,
    ObjectNotFound,
    StorageError,
)
from buffer.queue import QueueProducer
from buffer.store.base import Store
from buffer.testing.faulty import Fault, FaultyStore
from tests.consume.consumer_support import (
    MANIFEST,
    Gated,
    Tapped,
    config,
    fill,
    manifest_of,
)
from tests.nets import HANGS_S, wait_until


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every fetch that is asked for, in the thread that iterates: when `next` returns, no more are under way."""
    asked: list[str] = []
    real = ThreadPoolExecutor.submit

    def submit(pool: ThreadPoolExecutor, *task: Any) -> Any:
        asked.append("fetch")
        return real(pool, *task)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit)
    return asked


# Order and end


@pytest.mark.parametrize("prefetch", [1, 3, 8, 64])
def test_should_yield_every_batch_in_order_and_end_when_drained(store: Store, prefetch: int) -> None:
    fill(store, 50, entries=lambda i: [b"%d" % i] * (i % 3))
    consumer = Consumer.new(config(store))
    batches = consumer.batches(prefetch=prefetch)
    assert [(b.sequence, b.entries) for b in batches] == [(i, [b"%d" % i] * (i % 3)) for i in range(50)]
    assert list(batches) == [], "an iterator that ended stays ended"
    assert consumer.cursor == 50
    assert len(manifest_of(store)) == 50, "nobody acked"


def test_should_end_at_once_on_an_empty_queue(store: Store) -> None:
    assert list(Consumer.new(config(store)).batches()) == []


def test_should_keep_order_when_later_fetches_end_first(memory: Store) -> None:
    descriptors = fill(memory, 20)
    begun = {d.location: threading.Event() for d in descriptors}
    behind = {d.location: later.location for d, later in zip(descriptors[1::4], descriptors[3::4], strict=True)}

    def overtake(operation: str, location: str) -> None:
        if location in begun:
            begun[location].set()
        if location in behind:
            assert begun[behind[location]].wait(HANGS_S), "it is fetched at the same time"

    consumer = Consumer.new(config(Tapped(memory, overtake)))
    assert [b.sequence for b in consumer.batches(prefetch=8)] == list(range(20))


def test_should_go_on_where_a_loop_was_left(store: Store) -> None:
    fill(store, 20)
    consumer = Consumer.new(config(store))
    for batch in consumer.batches(prefetch=8):
        if batch.sequence == 4:
            break
    assert consumer.cursor == 5, "what was only fetched was not handed out"
    batch = consumer.next_batch()
    assert batch is not None
    assert batch.sequence == 5
    assert [b.sequence for b in consumer.batches()] == list(range(6, 20))


def test_should_poll_for_more_when_told_to(memory: Store) -> None:
    fill(memory, 2)
    tapped = Tapped(memory)
    consumer = Consumer.new(config(tapped))
    looks = 0

    def fill_before_the_third_look(_operation: str, location: str) -> None:
        nonlocal looks
        looks += location == MANIFEST
        if looks == 3:
            tapped.tap = None
            fill(memory, 3)

    with consumer.batches(poll_interval_s=0.005) as batches:
        assert [next(batches).sequence for _ in range(2)] == [0, 1]
        tapped.tap = fill_before_the_third_look
        assert [next(batches).sequence for _ in range(3)] == [2, 3, 4]
    assert looks == 3


def test_should_follow_until_stopped_and_ack_the_batch_in_hand(store: Store) -> None:
    fill(store, 3)
    consumer = Consumer.new(config(store))
    seen = []
    batches = consumer.batches(follow=True, auto_ack=True)
    for batch in batches:
        seen.append(batch.sequence)
        if batch.sequence == 2:
            batches.stop()  # as a signal handler would, in the middle of the work on it
    assert seen == [0, 1, 2]
    assert len(manifest_of(store)) == 0, "what was worked on is acked and dequeued"
    assert list(batches) == []
    fill(store, 1)
    assert [b.sequence for b in consumer.batches()] == [3], "the consumer itself goes on"


@pytest.mark.parametrize("end", ["stop", "close", "consumer"])
def test_should_end_following_from_another_thread_without_waiting_for_the_next_look(memory: Store, end: str) -> None:
    waiting = threading.Event()
    consumer = Consumer.new(config(Tapped(memory, lambda operation, _: waiting.set() if "get" in operation else None)))
    waiting.clear()
    batches = consumer.batches(follow=True, poll_interval_s=3600)
    results: list[list[Any]] = []
    reading = threading.Thread(target=lambda: results.append(list(batches)), daemon=True)
    reading.start()
    assert waiting.wait(HANGS_S), "it has looked at the queue"
    {"stop": batches.stop, "close": batches.close, "consumer": consumer.close}[end]()
    reading.join(HANGS_S)
    assert results == [[]]


def test_should_say_that_it_is_fenced_while_following(memory: Store) -> None:
    fill(memory, 1)
    consumer = Consumer.new(config(memory))
    batches = consumer.batches(follow=True, poll_interval_s=0.001)
    assert next(batches).sequence == 0
    Consumer.new(config(memory))
    with pytest.raises(Fenced):
        next(batches)


def test_should_see_batches_that_came_while_it_read(memory: Store) -> None:
    fill(memory, 3)
    consumer = Consumer.new(config(memory))
    seen = []
    for batch in consumer.batches(prefetch=2):
        seen.append(batch.sequence)
        if batch.sequence == 1:
            fill(memory, 2)
    assert seen == [0, 1, 2, 3, 4]


# Bounds


def test_should_fetch_ahead_up_to_prefetch_and_no_further(memory: Store, asked: list[str]) -> None:
    fill(memory, 30)
    gated = Gated(memory, open=True)
    batches = Consumer.new(config(gated)).batches(prefetch=4)
    next(batches)
    gated.settle(5)
    assert len(asked) == 5, "one handed out, four fetched ahead, and the caller has not come back"
    gated.gate.clear()
    next(batches)
    wait_until(lambda: gated.inside == 1)
    next(batches)
    wait_until(lambda: gated.inside == 2)
    gated.gate.set()
    assert len(list(batches)) == 27
    assert gated.most <= 4


def test_should_fetch_at_the_same_time(memory: Store) -> None:
    fill(memory, 10)
    gated = Gated(memory, open=True)
    batches = Consumer.new(config(gated)).batches(prefetch=4)
    gated.gate.clear()
    opener = threading.Thread(target=lambda: (wait_until(lambda: gated.inside == 1), gated.gate.set()))
    opener.start()
    next(batches)
    opener.join()
    gated.settle(5)
    gated.gate.clear()
    next(batches)
    next(batches)
    next(batches)
    wait_until(lambda: gated.inside == 3)
    gated.gate.set()
    assert len(list(batches)) == 6


def test_should_bound_the_bytes_held(memory: Store, asked: list[str]) -> None:
    """Batches of 100 KB under a limit of 250 KB: two are held or fetched at a time, of eight that could be."""
    fill(memory, 12, entries=lambda _: [bytes(100_000)])
    gated = Gated(memory, open=True)
    batches = Consumer.new(config(gated)).batches(prefetch=8, max_bytes=250_000)
    for count in range(1, 11):
        next(batches)
        gated.settle(len(asked))
        assert len(asked) <= count + 2
    assert gated.started == 12
    assert len(list(batches)) == 2


def test_should_move_on_when_one_batch_is_larger_than_the_bound(memory: Store) -> None:
    fill(memory, 5, entries=lambda _: [bytes(1000)])
    gated = Gated(memory, open=True)
    batches = Consumer.new(config(gated)).batches(prefetch=8, max_bytes=10)
    assert [b.sequence for b in batches] == [0, 1, 2, 3, 4]
    assert gated.most == 1


def test_should_learn_a_size_before_it_fetches_many(memory: Store, asked: list[str]) -> None:
    fill(memory, 10)
    gated = Gated(memory)
    gated.tap = lambda operation, location: asked.append("read") if location.endswith(".batch") else None
    batches = Consumer.new(config(gated)).batches(prefetch=8)
    reading = threading.Thread(target=lambda: next(batches))
    reading.start()
    wait_until(lambda: gated.inside == 1)
    gated.gate.set()
    reading.join()
    wait_until(lambda: gated.started == 9)
    assert asked[:3] == ["fetch", "read", "fetch"], "the first one alone"
    batches.close()


def test_should_recover_from_one_huge_batch(memory: Store) -> None:
    """The estimate decays: small batches are fetched together again."""
    fill(memory, 60, entries=lambda i: [bytes(200_000 if i == 0 else 1000)])
    gated = Gated(memory, open=True)
    batches = Consumer.new(config(gated)).batches(prefetch=4, max_bytes=250_000)
    for _ in range(30):
        next(batches)
    gated.settle(34)
    gated.gate.clear()
    for _ in range(4):
        next(batches)
    wait_until(lambda: gated.inside == 4)
    gated.gate.set()
    batches.close()


def test_should_read_the_manifest_once_for_many_batches(memory: Store) -> None:
    count = 4 * LOOKAHEAD * 3
    fill(memory, count)
    tapped = Tapped(memory)
    consumer = Consumer.new(config(tapped))
    tapped.calls.clear()
    assert len(list(consumer.batches(prefetch=4))) == count
    looks = sum(location == MANIFEST for _, location in tapped.calls)
    assert looks <= 3 + 2, "one for each run of descriptors, and two at the end of the queue"


@pytest.mark.parametrize(
    "wrong",
    [{"prefetch": 0}, {"prefetch": 1000}, {"max_bytes": 0}, {"poll_interval_s": 0}, {"poll_interval_s": -1}],
)
def test_should_name_a_setting_that_cannot_be(memory: Store, wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(InvalidInput, match=name):
        Consumer.new(config(memory)).batches(**wrong)


# Errors


def test_should_raise_an_error_when_its_batch_is_due(store: Store) -> None:
    descriptors = fill(store, 8)
    data = store.get(descriptors[3].location).data
    store.put(descriptors[3].location, b"damaged")
    consumer = Consumer.new(config(store))
    batches = consumer.batches(prefetch=8)
    assert [next(batches).sequence for _ in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(CorruptBatch) as caught:
            next(batches)
        assert caught.value.location == descriptors[3].location
        assert consumer.cursor == 3
    store.put(descriptors[3].location, data)
    assert [batch.sequence for batch in batches] == [3, 4, 5, 6, 7]


def test_should_hide_failures_that_a_retry_cures(memory: Store) -> None:
    fill(memory, 10)
    faulty = FaultyStore(memory, [Fault.before("get", skip=3, times=2)])
    assert len(list(Consumer.new(config(faulty)).batches())) == 10
    assert faulty.unused == []


def test_should_raise_a_failed_look_and_go_on_when_asked_again(memory: Store) -> None:
    fill(memory, 3)
    faulty = FaultyStore(memory)
    batches = Consumer.new(config(faulty)).batches()
    faulty.add(Fault.before("get_if_changed", StorageError))
    with pytest.raises(StorageError):
        next(batches)
    assert [batch.sequence for batch in batches] == [0, 1, 2]


def test_should_raise_missing_batches_in_their_place(store: Store) -> None:
    descriptors = fill(store, 3)
    store.delete_many([descriptors[1].location])
    batches = Consumer.new(config(store)).batches()
    assert next(batches).sequence == 0
    with pytest.raises(ObjectNotFound):
        next(batches)


def test_should_say_fenced_rather_than_missing(store: Store) -> None:
    descriptors = fill(store, 3)
    consumer = Consumer.new(config(store))
    batches = consumer.batches(prefetch=1)
    assert next(batches).sequence == 0
    store.delete_many([d.location for d in descriptors])
    Consumer.new(config(store), 2)
    with pytest.raises(Fenced):
        list(batches)
    assert consumer.cursor <= 2, "at most the one that was fetched ahead came out"


def test_should_notice_another_reader_of_the_same_consumer(memory: Store) -> None:
    fill(memory, 6)
    consumer = Consumer.new(config(memory))
    batches = consumer.batches()
    next(batches)
    consumer.next_batch()
    with pytest.raises(InvalidInput, match="cursor is at 2"):
        next(batches)
    assert [batch.sequence for batch in consumer.batches()] == [2, 3, 4, 5]


def test_should_raise_closed_when_the_consumer_was_closed(memory: Store) -> None:
    fill(memory, 3)
    consumer = Consumer.new(config(memory))
    batches = consumer.batches()
    next(batches)
    consumer.close()
    with pytest.raises(Closed):
        next(batches)


# Bombs


def test_should_count_what_batches_expand_to(memory: Store) -> None:
    """Each is 100 bytes in the store and a million in memory; the first ones told nothing of it."""
    big = 1_000_000
    for index in range(20):
        location = f"ingest/{index}.batch"
        memory.put(location, encode_batch([b"x"] if index < 4 else [bytes(big)], "zstd"))
        QueueProducer(memory, MANIFEST, SystemClock()).append_locations([(location, ())])
    consumer = Consumer.new(config(memory))
    with consumer.batches(prefetch=8, max_bytes=2 * big + 100) as batches:
        held = watch(batches._budget)
        sizes = [len(batch.entries[0]) for batch in batches]
    assert sizes == [1] * 4 + [big] * 16
    assert big <= max(held) <= 3 * big + 200, "the bound, and one batch more"


def watch(budget: Budget) -> list[int]:
    """What the budget held, each time after more was reserved."""
    held: list[int] = []
    reserve = budget.reserve

    def noted(sequence: int, size: int) -> None:
        reserve(sequence, size)
        held.append(sum(list(budget._held.values())))

    budget.reserve = noted  # type: ignore[method-assign]
    return held


def test_should_wait_for_room_in_order_and_let_the_first_one_pass() -> None:
    budget = Budget(100)
    budget.move_front(5)
    budget.reserve(6, 80)
    budget.reserve(5, 500)  # the first in line
    began, done = threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        budget.reserve(7, 30)
        done.set()

    thread = threading.Thread(target=wait)
    thread.start()
    began.wait()
    budget.release(5)
    assert not done.is_set()
    budget.release(6)
    thread.join()
    assert done.is_set()


def test_should_end_threads_that_wait_for_room_when_dropped(memory: Store) -> None:
    for index in range(8):
        location = f"ingest/{index}.batch"
        memory.put(location, encode_batch([b"x"] if index < 2 else [bytes(1_000_000)], "zstd"))
        QueueProducer(memory, MANIFEST, SystemClock()).append_locations([(location, ())])
    for batch in Consumer.new(config(memory)).batches(prefetch=8, max_bytes=1_000_000):
        if batch.sequence == 1:
            break  # the fixture waits until no thread is left
