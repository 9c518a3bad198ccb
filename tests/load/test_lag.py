"""The lag of a loader is measured when it is read: while nothing commits it grows."""

from __future__ import annotations

from buffer.config import ConsumerConfig
from buffer.consume.consumer import Consumer
from buffer.model import Metadata
from buffer.store.open import open_store
from buffer.testing import ManualClock
from buffer_delta import metrics
from buffer_delta.metrics import Readings
from tests.consume.consumer_support import fill
from tests.metrics_reader import points, value


class Stuck:
    """A loader that has read the queue and gets nowhere."""

    def __init__(self, consumer: Consumer, queue: str) -> None:
        self.consumer: Consumer | None = consumer
        self.queue = queue

    def readings(self) -> Readings | None:
        if self.consumer is None:
            return None
        batches, seconds = self.consumer.known_lag()
        return Readings(self.queue, "stuck", ("stuck", "idle"), False, lag_batches=batches, lag_seconds=seconds)


def test_should_grow_while_a_loader_is_stuck_and_end_with_it() -> None:
    value("buffer_delta.lag_seconds")
    clock = ManualClock()
    store = open_store("memory://")
    fill(store, 3, metadata=[Metadata(0, clock.now_ms(), b"")])
    loader = Stuck(Consumer.new(ConsumerConfig(store=store, gc_enabled=False), clock=clock), "a")
    metrics.watch(loader)
    clock.advance(10.0)
    a, b = {"queue": "a"}, {"queue": "b"}
    assert (value("buffer_delta.lag_seconds", a), value("buffer_delta.lag_batches", a)) == (10.0, 3)
    clock.advance(3600.0)
    assert value("buffer_delta.lag_seconds", a) == 3610.0
    other = Stuck(Consumer.new(ConsumerConfig(store=open_store("memory://"), gc_enabled=False), clock=clock), "b")
    metrics.watch(other)
    assert value("buffer_delta.lag_seconds", a) == 3610.0
    assert [p.value for p in points("buffer_delta.lag_seconds", b)] == [0.0], "each queue is a series of its own"
    assert value("buffer_delta.state", {"queue": "a", "state": "stuck"}) == 1
    assert [p.value for p in points("buffer_delta.state", {"queue": "a", "state": "idle"})] == [0]
    loader.consumer = other.consumer = None
    assert points("buffer_delta.lag_seconds", a) == points("buffer_delta.lag_seconds", b) == []
