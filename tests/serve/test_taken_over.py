"""What is told of a queue that was its workers' and is another reader's now; and what telling costs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from buffer.config import ConsumerConfig, LeaseConfig
from buffer.consume.consumer import Consumer
from buffer.inspect import status as inspect_status
from buffer.inspect.status import queue_status
from buffer.leases import LeaseQueue
from buffer.ledger.binding import Binding
from buffer.manifest import Manifest
from buffer.model import Metadata
from buffer.queue import QueueConsumer
from buffer.store import Store
from buffer.testing import ManualClock
from buffer_delta.load.plans import Plans
from buffer_delta.serve.status import Limits
from buffer_delta.serve.watch import Watch
from tests.consume.consumer_support import fill
from tests.serve.serve_support import LIMITS, TABLE, FakeLoader

MANIFEST = "ingest/manifest"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def config(store: Store) -> ConsumerConfig:
    return ConsumerConfig(store=store, gc_enabled=False)


def more(store: Store, clock: ManualClock, batches: int) -> None:
    fill(store, batches, metadata=[Metadata(0, clock.now_ms(), b"")])


def watch(store: Store, clock: ManualClock, loader: FakeLoader | None = None) -> Watch:
    return Watch(store, config(store), loader=loader, limits=LIMITS, with_objects=False, clock=clock)


def left_by_workers(store: Store, clock: ManualClock) -> None:
    """Ten batches, of which the first four are finished."""
    more(store, clock, 10)
    queue = LeaseQueue.open(config(store), LeaseConfig(), clock=clock)
    queue.ack(queue.consume(4))
    queue.close()


def test_should_count_what_workers_have_left_and_say_when_none_of_them_comes(memory: Store, clock: ManualClock) -> None:
    left_by_workers(memory, clock)
    watching = watch(memory, clock)
    watching.look()
    clock.advance(LIMITS.stuck_s)
    watching.look()
    status = watching.status()
    assert status.leases is not None
    assert (status.lag_batches, status.state) == (6, "waiting")
    clock.advance(1)
    watching.look()
    status = watching.status()
    assert (status.state, status.needs_restart) == ("stuck", False)
    assert status.reason == "6 batches waiting, none taken by a worker for 10 min 1 s"


def test_should_tell_of_what_workers_have_finished_no_more_though_it_is_in_the_manifest(
    memory: Store, clock: ManualClock
) -> None:
    """It stays there while they are at work: an alert on its age would never end."""
    more(memory, clock, 6)
    queue = LeaseQueue.open(config(memory), LeaseConfig(), clock=clock)
    clock.advance(3600)
    more(memory, clock, 4)
    clock.advance(1)
    queue.ack(queue.consume(6))
    held = list(queue.consume(4))
    queue.ack(held[1])
    watching = Watch(memory, config(memory), limits=Limits(max_lag_s=60), clock=clock)
    watching.look()
    status, found = watching.status(), queue_status(memory, clock=clock)
    assert (status.state, status.lag_seconds, status.lag_batches) == ("waiting", 1.0, 3)
    one_size = next(iter(memory.list("ingest"))).size
    assert status.backlog_bytes == 3 * one_size
    assert found.objects is not None
    assert (found.objects.waiting_bytes, found.objects.unreferenced) == (3 * one_size, 0)
    assert (found.length, found.first_sequence, found.lag_seconds) == (3, 6, 1.0)
    assert found.facts()["acked"] == "through 5"
    queue.ack([held[0], *held[2:]])
    watching.look()
    status, found = watching.status(), queue_status(memory, clock=clock)
    assert (status.state, status.lag_seconds, status.backlog_bytes) == ("idle", 0.0, 0)
    assert (found.length, found.lag_seconds, found.facts()["waiting"]) == (0, 0.0, "nothing")
    queue.close()


def test_should_count_all_that_a_consumer_has_to_read_that_took_the_queue_from_workers(
    memory: Store, clock: ManualClock
) -> None:
    left_by_workers(memory, clock)
    assert queue_status(memory, clock=clock).length == 6
    _foreign(memory, clock)
    manifest = Manifest.from_bytes(memory.get(MANIFEST).data)
    assert queue_status(memory, clock=clock).length == len(manifest)


def test_should_not_call_workers_stuck_while_one_holds_a_batch_or_none_is_to_be_taken(
    memory: Store, clock: ManualClock
) -> None:
    more(memory, clock, 2)
    queue = LeaseQueue.open(config(memory), LeaseConfig(visibility_timeout_ms=8 * 3600 * 1000), clock=clock)
    watching = watch(memory, clock)
    held = queue.consume(1)
    for _ in range(3):
        watching.look()
        assert watching.status().state == "waiting", "a long task is not late"
        clock.advance(3600)
    queue.ack(held)
    queue.ack(queue.consume(1))
    queue.close()
    for _ in range(3):
        watching.look()
        assert watching.status().state == "idle"
        clock.advance(3600)
    more(memory, clock, 1)
    watching.look()
    assert watching.status().state == "waiting", "it has just come"


def test_should_not_call_workers_stuck_whose_line_waits_for_its_delayed_head(memory: Store, clock: ManualClock) -> None:
    more(memory, clock, 3)
    queue = LeaseQueue.open(config(memory), LeaseConfig(ordering_required=True), clock=clock)
    watching = watch(memory, clock)
    watching.look()
    queue.nack(queue.consume(3), delay_ms=8 * 3600 * 1000)
    for _ in range(3):
        watching.look()
        status = watching.status()
        assert status.leases is not None
        assert (status.state, status.leases.ready, status.leases.delayed) == ("waiting", 0, 1)
        clock.advance(3600)
    queue.close()


def test_should_call_a_loader_stuck_that_took_the_queue_from_workers(memory: Store, clock: ManualClock) -> None:
    left_by_workers(memory, clock)
    Plans(memory, MANIFEST, clock).bind(Binding(None, (TABLE,)))
    consumer = Consumer.new(config(memory), clock=clock)
    loader = FakeLoader(clock)
    loader.open(consumer.epoch)
    watching = watch(memory, clock, loader)
    for _ in range(2):
        consumer.ack_through(consumer.next_descriptors(20)[-1].sequence)
        loader.known = consumer.known()
        watching.look()
        status = watching.status()
        assert (status.lag_batches, status.state, status.leases) == (0, "idle", None)
        more(memory, clock, 20)
        consumer.manifest()
    loader.known = consumer.known()
    watching.look()
    clock.advance(3 * 3600)
    watching.look()
    status = watching.status()
    assert (status.lag_batches, status.state, status.needs_restart) == (20, "stuck", True)


def _plain(store: Store, clock: ManualClock) -> None:
    Consumer.new(config(store), clock=clock)


def _foreign(store: Store, clock: ManualClock) -> None:
    """One that knows no ledger."""
    QueueConsumer(store, MANIFEST, clock).claim()


@pytest.mark.parametrize("taken", [_plain, _foreign])
def test_should_notice_that_a_plain_consumer_stands_still(
    memory: Store, clock: ManualClock, taken: Callable[[Store, ManualClock], None]
) -> None:
    left_by_workers(memory, clock)
    watching = watch(memory, clock)
    watching.look()
    taken(memory, clock)
    watching.look()
    clock.advance(3 * 3600)
    watching.look()
    status = watching.status()
    assert status.leases is None
    assert status.state == "stuck"


def test_should_believe_the_workers_again_when_they_have_the_queue_back(memory: Store, clock: ManualClock) -> None:
    left_by_workers(memory, clock)
    watching = watch(memory, clock)
    _plain(memory, clock)
    watching.look()
    assert watching.status().leases is None
    queue = LeaseQueue.open(config(memory), LeaseConfig(), clock=clock)
    queue.consume(1)
    watching.look()
    status = watching.status()
    assert status.leases is not None
    assert (status.leases.in_flight, status.lag_batches) == (1, 6)
    queue.close()


# What telling costs


def count_walked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps over entries, walk by walk, and entries that were parsed."""
    walked: list[int] = []
    real = Manifest._walk

    def walk(self: Manifest, target: int, known: tuple[int, int]) -> tuple[int, int]:
        walked.append(target - known[0] if known[0] <= target else target)
        return real(self, target, known)

    monkeypatch.setattr(Manifest, "_walk", walk)
    return walked


def test_should_not_walk_the_manifest_for_each_status(
    memory: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    more(memory, clock, 1000)
    watching = watch(memory, clock)
    watching.look()
    walked = count_walked(monkeypatch)
    parsed: list[Manifest] = []
    real = inspect_status.ingestion_times
    monkeypatch.setattr("buffer_delta.serve.watch.ingestion_times", lambda m, first: parsed.append(m) or real(m, first))
    told = {watching.status().lag_seconds for _ in range(10)}
    assert told == {0.0}
    assert (sum(walked), parsed) == (0, [])
    watching.look()
    assert (sum(walked), parsed) == (0, []), "nothing changed"
    more(memory, clock, 3)
    walked.clear()  # the append's own
    watching.look()
    watching.status()
    assert (sum(walked), len(parsed)) == (3, 1), "only what came is walked over, once"


def test_should_leave_the_loaders_place_in_its_manifest_alone(
    memory: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader reads on while pages are served: it goes on where it was, and so does whoever asks for the newest."""
    more(memory, clock, 1000)
    consumer = Consumer.new(config(memory), clock=clock)
    loader = FakeLoader(clock)
    loader.open(consumer.epoch)
    watching = watch(memory, clock, loader)
    watching.look()

    def load(through: int) -> Manifest:
        consumer.next_descriptors(100)
        consumer.ack_through(through)
        loader.known = consumer.known()
        return loader.known

    known = load(99)
    assert next(known.entries_from(500)).sequence == 500
    watching.status()
    walked = count_walked(monkeypatch)
    for sequence in range(501, 521):
        assert next(known.entries_from(sequence)).sequence == sequence
        watching.status()
    assert sum(walked) == 20
    assert load(199) is not known
    walked.clear()  # the dequeue's own
    lengths = [status.queue.length for _ in range(10) if (status := watching.status()).queue is not None]
    assert (lengths, sum(walked)) == ([800] * 10, 799), "once for what the loader has now"


def test_should_read_the_oldest_and_the_newest_entry_whatever_was_read_before() -> None:
    empty = Manifest.empty()
    assert (empty.oldest(), empty.newest()) == (None, None)
    manifest = empty.append_all([(f"{number}", ()) for number in range(10)])
    for made in (
        manifest,
        Manifest.from_bytes(manifest.to_bytes()),
        manifest.claim(),
        manifest.dequeue(3),
        manifest.dequeue(8),
        manifest.append("more"),
        Manifest.from_bytes(manifest.append("more").to_bytes()).following(manifest),
    ):
        entries = list(made)
        for place in (0, made.first_sequence, made.next_sequence - 1, made.next_sequence):
            made.offset_of(place)
            assert (made.oldest(), made.newest()) == (entries[0], entries[-1])
        assert made.dequeue(made.next_sequence - 1).newest() is None
        assert list(made.dequeue(made.first_sequence)) == entries[1:]
