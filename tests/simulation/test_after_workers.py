"""A loader takes a queue over from workers with leases: short stories, and one for every step it may die at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from buffer.binder import Binder
from buffer.config import ConsumerConfig, LeaseConfig
from buffer.consume.consumer import Consumer
from buffer.errors import Fenced, LedgerLost, QueueBound
from buffer.leases import Handle, LeasedBatch, LeaseQueue
from buffer.manifest import Manifest
from buffer.testing.simulator import Host, World
from buffer.testing.simulator.world import MANIFEST_PATH
from buffer_delta.errors import SequenceGap
from buffer_delta.load.protocol import LoadProtocol
from tests.simulation.stories import Story, step, tell

LEASES = LeaseConfig(visibility_timeout_ms=5_000, dlq_strategy="skip", dlq="dead/manifest")


def stop_at(step_name: str) -> Callable[[str], None]:
    def reached(at: str) -> None:
        if at == step_name:
            raise KeyboardInterrupt

    return reached


def open_and_step(loader: LoadProtocol) -> None:
    loader.open()
    step(loader)


class Left(Story):
    """Of seven batches workers have finished 0, 2, 4 and 5; 1 and 3 were given back, 6 is untouched."""

    batches = 7
    kinds = "a"

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        world.queue.may_dequeue.clear()  # what workers have finished is in no table

    def workers(self, host: Host) -> LeaseQueue:
        config = ConsumerConfig(store=host.store, gc_enabled=False)
        queue = LeaseQueue.open(config, LEASES, clock=host.clock)
        held = {batch.sequence: batch for batch in queue.consume(6)}
        queue.ack([held[0], held[2], held[4], held[5]])
        queue.nack([held[1], held[3]], reason="not now")
        return queue

    def loaded(self) -> list[int]:
        (log,) = self.tables.logs
        return [row.sequence for commit in log.commits for row in commit.rows]

    def objects(self, host: Host) -> list[bytes]:
        return [host.store.get(path).data for path in (MANIFEST_PATH, f"{MANIFEST_PATH}.ledger")]

    def drain(self, host: Host, **rules: Any) -> list[tuple[int, int]]:
        loader = self.loader(host, **rules)
        loader.open()
        ranges = []
        while (done := step(loader)) is not None:
            ranges.append((done.plan.first, done.plan.last))
        return ranges


def test_should_load_what_workers_have_not_finished_in_ranges_without_holes() -> None:
    class Skips(Left):
        def tell(self, host: Host) -> None:
            queue = self.workers(host)
            assert self.drain(host) == [(1, 1), (3, 3), (6, 6)]
            assert self.loaded() == [1, 3, 6]
            assert len(Manifest.from_bytes(host.store.get(MANIFEST_PATH).data)) == 0
            for call in (queue.consume, queue.stats, queue.purge):
                with pytest.raises(QueueBound, match="feeds the app"):
                    call()  # type: ignore[operator]
            with pytest.raises(QueueBound, match="feeds the app"):
                LeaseQueue.open(queue.config, clock=host.clock)
            assert self.drain(host) == []

    tell(Skips)


STEPS = ("bound", "claimed", "entered", "planned", "decoded", "staged", "appended main", "committed main", "acked")


@pytest.mark.parametrize("at", STEPS)
def test_should_load_each_once_wherever_it_dies(at: str) -> None:
    class Dies(Left):
        def tell(self, host: Host) -> None:
            queue = self.workers(host)
            for _ in range(2):
                dying = self.loader(host, stop_at(at))
                with pytest.raises(KeyboardInterrupt):
                    open_and_step(dying)
                with pytest.raises((QueueBound, Fenced)):
                    queue.consume(9)
            assert self.drain(host)[-1:] == [(6, 6)]
            assert self.loaded() == [1, 3, 6]

    tell(Dies)


def test_should_refuse_an_older_loader_that_wakes_up() -> None:
    class Wakes(Left):
        def tell(self, host: Host) -> None:
            self.workers(host)
            older = self.loader(host)
            older.open()
            assert self.drain(host) == [(1, 1), (3, 3), (6, 6)]
            with pytest.raises(Fenced):
                step(older)
            assert self.loaded() == [1, 3, 6]

    tell(Wakes)


def test_should_take_over_with_adopt_as_well() -> None:
    class Adopts(Left):
        def tell(self, host: Host) -> None:
            self.workers(host).close()  # 0 leaves the manifest
            assert self.drain(host, adopt=True, app_id="app") == [(1, 1), (3, 3), (6, 6)]

    tell(Adopts)


@pytest.mark.parametrize("adopt", [False, True])
def test_should_leave_the_queue_to_workers_that_have_something_in_hand(adopt: bool) -> None:
    class Busy(Left):
        def tell(self, host: Host) -> None:
            queue = self.workers(host)
            (one, three) = queue.consume(2)
            queue.ack(Handle(three.lease_id, 3))
            before = self.objects(host)
            rules: dict[str, Any] = {"adopt": True, "app_id": "app"} if adopt else {}
            with pytest.raises(QueueBound, match="batches 1 are leased: stop the workers"):
                self.loader(host, **rules).open()
            assert self.objects(host) == before, "nothing is bound, nothing claimed"
            queue.ack(one)
            assert self.drain(host, **rules) == [(6, 6)]

    tell(Busy)


def test_should_refuse_what_is_acked_in_part_until_it_is_finished() -> None:
    class InPart(Left):
        kinds = "aaa"

        def tell(self, host: Host) -> None:
            queue = self.workers(host)
            one, three = queue.consume(2)
            queue.ack(three, entries=[0, 2])
            queue.nack([one, three])
            before = self.objects(host)
            with pytest.raises(QueueBound, match=r"batches 3 are acked in part: .*`buffer leases park`"):
                self.loader(host).open()
            assert self.objects(host) == before
            assert queue.park(3)
            assert self.drain(host) == [(1, 1), (6, 6)]
            assert self.loaded() == [1] * 3 + [6] * 3

    tell(InPart)


def test_should_say_that_a_consumer_took_what_workers_left() -> None:
    class Taken(Left):
        def tell(self, host: Host) -> None:
            self.workers(host)
            consumer = Consumer.new(ConsumerConfig(store=host.store, gc_enabled=False), clock=host.clock)
            assert [d.sequence for d in consumer.next_descriptors(1)] == [1]
            consumer.ack_through(1)
            with pytest.raises(LedgerLost, match="consumed before"):
                self.loader(host).open()

    tell(Taken)


def test_should_notice_a_consumer_that_comes_after_the_binding() -> None:
    class Late(Left):
        def tell(self, host: Host) -> None:
            self.workers(host)
            with pytest.raises(KeyboardInterrupt):
                self.loader(host, stop_at("bound")).open()
            consumer = Consumer.new(ConsumerConfig(store=host.store, gc_enabled=False), clock=host.clock)
            assert [d.sequence for d in consumer.next_descriptors(1)] == [1]
            consumer.ack_through(1)
            with pytest.raises(SequenceGap):
                self.drain(host)

    tell(Late)


def test_should_look_again_when_a_worker_writes_between_the_look_and_the_binding() -> None:
    """The binding replaces the very ledger that was judged: a lease granted since is found, an ack is not lost."""

    class Meanwhile(Left):
        def tell(self, host: Host) -> None:
            queue = self.workers(host)
            held: list[LeasedBatch] = []
            acts: list[Callable[[], object]] = [lambda: held.extend(queue.consume(1))]
            real = Binder.manifest

            def after_a_worker(binder: Binder) -> Manifest:
                while acts:
                    acts.pop()()
                return real(binder)

            with patch.object(Binder, "manifest", after_a_worker):
                with pytest.raises(QueueBound, match="batches 1 are leased"):
                    self.loader(host).open()
                queue.nack(held)
                acts.append(lambda: queue.ack(list(queue.consume(1))))
                assert self.drain(host) == [(3, 3), (6, 6)]

    tell(Meanwhile)


def test_should_not_be_kept_out_by_a_worker_that_claimed_and_found_the_queue_bound() -> None:
    """It had read the ledger before the loader wrote it, and does nothing more; no other worker could mend that."""

    class Claimed(Left):
        def tell(self, host: Host) -> None:
            self.workers(host)
            real, looks = Binder.manifest, []

            def after_a_claim(binder: Binder) -> Manifest:
                looks.append(binder)
                if len(looks) == 2:  # the first write of the binding stands
                    host.store.put(MANIFEST_PATH, real(binder).claim().to_bytes())
                return real(binder)

            with patch.object(Binder, "manifest", after_a_claim):
                assert self.drain(host) == [(1, 1), (3, 3), (6, 6)]
            assert len(looks) == 2

    tell(Claimed)


def test_should_leave_no_end_of_the_queue_that_nobody_loads() -> None:
    """So that a loader with nothing to do is not started for it."""

    class Ends(Left):
        def tell(self, host: Host) -> None:
            queue = self.workers(host)
            queue.ack(list(queue.consume(9))[-1])  # 6
            host.clock.sleep(LEASES.visibility_timeout_ms / 1000)
            assert self.drain(host) == [(1, 1), (3, 3)]
            manifest = Manifest.from_bytes(host.store.get(MANIFEST_PATH).data)
            assert (len(manifest), manifest.next_sequence) == (0, 7)
            assert self.drain(host) == []

    tell(Ends)


def test_should_leave_the_queue_to_a_consumer_that_has_dequeued_nothing_yet() -> None:
    class Running(Left):
        def tell(self, host: Host) -> None:
            self.workers(host)
            consumer = Consumer.new(ConsumerConfig(store=host.store, gc_enabled=False), clock=host.clock)
            batch = consumer.next_batch()
            assert batch is not None
            consumer.ack(batch.sequence)
            before = self.objects(host)
            with pytest.raises(LedgerLost, match="consumed before"):
                self.loader(host).open()
            assert self.objects(host) == before
            assert consumer.next_batch() is not None, "it was not fenced"

    tell(Running)
