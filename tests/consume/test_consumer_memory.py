"""Memory stays flat, within 10 %, over 10,000 fetches, whichever way they are made."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import psutil
import pytest

from buffer.clock import SystemClock
from buffer.codec.batch import encode_batch
from buffer.consume.consumer import Consumer
from buffer.model import ConsumedBatch
from buffer.queue import QueueProducer
from buffer.store.base import Store
from tests.consume.consumer_support import MANIFEST, config

FETCHES = 10_000
WARM_UP = 1_000
ENTRIES = [bytes(800)] * 20  # 16 KB: keeping one batch in ten would show


def batches_without_end(
    store: Store, consumer: Consumer, read: Callable[[Consumer], Iterator[ConsumedBatch]]
) -> Iterator[ConsumedBatch]:
    """Batches as they come, from a queue that is filled again whenever it is drained."""
    location = "ingest/01J00000000000000000000000.batch"
    store.put(location, encode_batch(ENTRIES, "zstd"))
    producer = QueueProducer(store, MANIFEST, SystemClock())
    while True:
        producer.append_locations([(location, ())] * 200)
        yield from read(consumer)


def one_by_one(consumer: Consumer) -> Iterator[ConsumedBatch]:
    while (batch := consumer.next_batch()) is not None:
        yield batch
        consumer.ack(batch.sequence)


def read_ahead(consumer: Consumer) -> Iterator[ConsumedBatch]:
    with consumer.batches(prefetch=4, auto_ack=True) as batches:
        yield from batches


@pytest.mark.parametrize("read", [one_by_one, read_ahead])
def test_should_keep_memory_flat_over_10_000_fetches(
    memory: Store, read: Callable[[Consumer], Iterator[ConsumedBatch]]
) -> None:
    with Consumer.new(config(memory)) as consumer:
        batches = batches_without_end(memory, consumer, read)
        for _ in range(WARM_UP):
            assert len(next(batches).entries) == len(ENTRIES)
        before = resident_bytes()
        for _ in range(FETCHES):
            assert len(next(batches).entries) == len(ENTRIES)
        after = resident_bytes()
        batches.close()
    assert after < before * 1.1, f"{before:,} bytes became {after:,}"


def resident_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)
