"""`max_depth`: producers are refused while readers are too far behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from buffer.clock import SystemClock
from buffer.config import ConsumerConfig, LeaseConfig, ProducerConfig
from buffer.errors import (
    Closed,
    IdempotencyConflict,
    InvalidConfig,
    ManifestLost,
    ProducerStopped,
    QueueFull,
    StoreUnusable,
)
from buffer.leases import LeaseQueue
from buffer.manifest import Manifest
from buffer.produce.depth import LOOK_INTERVAL_S
from buffer.produce.producer import Producer
from buffer.queue import QueueConsumer
from buffer.store import open_store
from buffer.store.base import Store
from buffer.testing import Fault, FaultyStore, ManualClock
from tests.produce.producer_support import NEVER_MS, entries_of, make_producer

MANIFEST = "ingest/manifest"


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(open_store("memory://"))


def fill(store: Store, batches: int) -> None:
    with make_producer(store) as producer:
        for n in range(batches):
            producer.produce([b"%d" % n])
            producer.flush()


def drain(store: Store, through: int) -> None:
    queue = QueueConsumer(store, MANIFEST, SystemClock())
    queue.claim()
    queue.dequeue(through)


def test_should_refuse_while_the_queue_is_too_long(store: FaultyStore) -> None:
    clock = ManualClock()
    with make_producer(store, clock=clock, max_depth=2) as producer:
        for n in range(2):
            producer.produce([b"%d" % n])
            producer.flush()
        with pytest.raises(QueueFull, match="holds 2 batches, and max_depth is 2") as caught:
            producer.produce([b"2"])
        assert (caught.value.depth, caught.value.max_depth, caught.value.location) == (2, 2, MANIFEST)
        drain(store, 0)
        with pytest.raises(QueueFull):
            producer.produce([b"2"])  # it looks once a second
        clock.advance(LOOK_INTERVAL_S)
        producer.produce([b"2"])
    assert entries_of(store) == [b"1", b"2"]


def test_should_not_tell_a_closed_producer_to_wait_for_readers(store: FaultyStore) -> None:
    producer = make_producer(store, max_depth=1)
    producer.produce([b"0"])
    producer.close()
    with pytest.raises(Closed):
        producer.produce([b"1"])
    with pytest.raises(Closed):
        asyncio.run(producer.produce_async([b"1"]))


def test_should_not_tell_a_stopped_client_to_wait_for_readers(store: FaultyStore) -> None:
    config = ProducerConfig(store=store, flush_interval_ms=NEVER_MS, max_depth=1)
    behind = Producer(config, client_id="a")
    behind.produce([b"0"])
    with Producer(config, client_id="a") as other:
        other.produce([b"0"])
    with pytest.raises(IdempotencyConflict):
        behind.flush()
    with pytest.raises(ProducerStopped):
        behind.produce([b"1"])
    behind.close()


@pytest.mark.parametrize("put_back", [True, False])
def test_should_let_the_append_tell_of_a_manifest_that_went_back(store: FaultyStore, put_back: bool) -> None:
    """A queue that was too long when it was seen last would else be so for ever: nobody appends, so nobody looks."""
    fill(store, 1)
    backup = store.get(MANIFEST).data
    clock = ManualClock()
    producer = make_producer(store, clock=clock, max_depth=3)
    for n in range(2):
        producer.produce([b"%d" % n])
        producer.flush()
    with pytest.raises(QueueFull):
        producer.produce([b"2"])
    newest = store.get(MANIFEST).data
    if put_back:
        store.put(MANIFEST, backup)
    else:
        store.delete_many([MANIFEST])
    clock.advance(LOOK_INTERVAL_S)
    producer.produce([b"2"])
    with pytest.raises(ManifestLost):
        producer.flush()
    store.put(MANIFEST, Manifest.from_bytes(newest).dequeue(0).to_bytes())  # as it should be, and one was read
    producer.produce([b"3"])
    producer.flush()
    with pytest.raises(QueueFull):
        producer.produce([b"4"])
    producer.close()


def test_should_look_before_its_first_call(store: FaultyStore) -> None:
    fill(store, 3)
    with make_producer(store, max_depth=3) as producer, pytest.raises(QueueFull):
        producer.produce([b"x"])
    with make_producer(store, max_depth=4) as producer:
        producer.produce([b"x"])
    assert len(entries_of(store)) == 4


def test_should_not_look_again_while_its_own_appends_tell(store: FaultyStore) -> None:
    with make_producer(store, clock=ManualClock(), max_depth=10) as producer:
        producer.produce([b"0"])
        producer.flush()
        before = len(store.history)
        for n in range(100):
            producer.produce([b"%d" % n])
        assert len(store.history) == before


def test_should_refuse_async_calls_without_blocking_the_loop(store: FaultyStore) -> None:
    fill(store, 1)

    async def refused() -> None:
        with make_producer(store, max_depth=1) as producer, pytest.raises(QueueFull):
            await producer.produce_async([b"x"])

    asyncio.run(refused())


def test_should_accept_when_nobody_can_tell(store: FaultyStore) -> None:
    """A store that is away is the append's trouble; the buffer is bounded anyway."""
    fill(store, 1)
    with make_producer(store, max_depth=1) as producer:
        store.add(Fault.throttle("get", times=2))  # the ledger and the manifest
        producer.produce([b"x"])
    assert len(entries_of(store)) == 2


def test_should_have_no_limit_by_default(store: FaultyStore) -> None:
    assert ProducerConfig(store=store).max_depth == 0
    with pytest.raises(InvalidConfig, match="max_depth"):
        ProducerConfig(store=store, max_depth=-1)
    assert LeaseConfig().max_depth == 0, "the same word for both"
    with pytest.raises(InvalidConfig, match="max_depth"):
        LeaseConfig(max_depth=-1)


# The cap of a queue with leases


def with_leases(store: Store, clock: ManualClock, **settings: Any) -> LeaseQueue:
    return LeaseQueue.open(ConsumerConfig(store=store, gc_enabled=False), LeaseConfig(**settings), clock=clock)


def test_should_obey_the_cap_of_the_queues_leases(store: FaultyStore) -> None:
    clock = ManualClock()
    fill(store, 3)
    queue = with_leases(store, clock, max_depth=3)
    with make_producer(store, clock=clock) as producer:
        with pytest.raises(QueueFull, match="holds 3 batches, and max_depth is 3"):
            producer.produce([b"3"])
        queue.ack(queue.consume(1))  # it stays in the manifest for a while
        assert len(Manifest.from_bytes(store.get(MANIFEST).data)) == 3
        with pytest.raises(QueueFull):
            producer.produce([b"3"])  # it looks once a second
        clock.advance(LOOK_INTERVAL_S)
        producer.produce([b"3"])
        producer.flush()
        with pytest.raises(QueueFull):
            producer.produce([b"4"])


def test_should_find_out_that_the_cap_has_changed(store: FaultyStore) -> None:
    clock = ManualClock()
    queue = with_leases(store, clock)
    with make_producer(store, clock=clock) as producer:
        producer.produce([b"0"])
        producer.flush()
        queue.configure(LeaseConfig(max_depth=2))
        clock.advance(LOOK_INTERVAL_S)
        producer.produce([b"1"])
        producer.flush()
        with pytest.raises(QueueFull):
            producer.produce([b"2"])


def test_should_not_hold_workers_caps_against_a_reader_that_took_over(store: FaultyStore) -> None:
    """It says nothing in the section of what it has done: the manifest tells."""
    clock = ManualClock()
    fill(store, 3)
    with_leases(store, clock, max_depth=3)
    drain(store, 1)
    with make_producer(store, clock=clock) as producer:
        producer.produce([b"3"])


def test_should_cost_one_look_a_second_where_there_is_no_ledger(store: FaultyStore) -> None:
    clock = ManualClock()
    fill(store, 1)
    before = len(store.history)
    with make_producer(store, clock=clock) as producer:
        for n in range(10):
            producer.produce([b"%d" % n])
            producer.flush()
        clock.advance(LOOK_INTERVAL_S)
        producer.produce([b"more"])
    assert len([call for call in store.history[before:] if call.location == f"{MANIFEST}.ledger"]) == 2


def test_should_accept_while_the_ledger_cannot_be_read(store: FaultyStore) -> None:
    """It is damaged, or the producer has no right to read it: others have to obey it."""
    fill(store, 1)
    store.put(f"{MANIFEST}.ledger", b"{")
    with make_producer(store, max_depth=5) as producer:
        producer.produce([b"x"])
    store.add(Fault.before("get", StoreUnusable, location=f"{MANIFEST}.ledger", times=9))
    with make_producer(store, max_depth=5) as producer:
        producer.produce([b"y"])
    assert entries_of(store) == [b"0", b"x", b"y"]
