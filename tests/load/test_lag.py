"""The lag of a loader is measured when it is read: while nothing commits it grows."""

from __future__ import annotations

from buffer.config import ConsumerConfig
from buffer.consume.consumer import Consumer
from buffer.model import Metadata
from buffer.store.open import open_store
from buffer.testing import ManualClock
from buffer_delta import metrics
from tests.consume.consumer_support import fill
from tests.metrics_reader import points, value


class Stuck:
    """A loader that has read the queue and gets nowhere."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer: Consumer | None = consumer

    def lag(self) -> tuple[int, float] | None:
        return self.consumer.known_lag() if self.consumer else None


def test_should_grow_while_a_loader_is_stuck_and_end_with_it() -> None:
    value("buffer_delta.lag_seconds")
    clock = ManualClock()
    store = open_store("memory://")
    fill(store, 3, metadata=[Metadata(0, clock.now_ms(), b"")])
    loader = Stuck(Consumer.new(ConsumerConfig(store=store, gc_enabled=False), clock=clock))
    metrics.watch(loader)
    clock.advance(10.0)
    assert (value("buffer_delta.lag_seconds"), value("buffer_delta.lag_batches")) == (10.0, 3)
    clock.advance(3600.0)
    assert value("buffer_delta.lag_seconds") == 3610.0
    other = Stuck(Consumer.new(ConsumerConfig(store=open_store("memory://"), gc_enabled=False), clock=clock))
    metrics.watch(other)
    assert value("buffer_delta.lag_seconds") == 3610.0, "of several the one that is behind most"
    loader.consumer = other.consumer = None
    assert points("buffer_delta.lag_seconds") == []
