"""The queue through its two doors, on every kind of store: what is promised, and who is refused.

The first group mirrors, name by name, what the reference implementation tests of its queue.
"""

from __future__ import annotations

import pytest

from buffer.attempts import AppendGroup
from buffer.errors import (
    Fenced,
    InvalidInput,
    ObjectNotFound,
    QueueBehindConsumer,
    StorageError,
    StoreUnusable,
)
from buffer.manifest import Manifest
from buffer.model import BatchDescriptor, Metadata
from buffer.queue import QueueConsumer
from buffer.store import Outcome, Store, Won
from buffer.testing import Fault, FaultyStore, ManualClock
from tests.consume.consumer_support import Tapped
from tests.queue.queue_support import PATH, append, claimed, consumer, manifest_in, named, producer, queued, replace


@pytest.fixture
def store(any_store: Store) -> Store:
    return any_store


class TestReferenceBehaviour:
    def test_should_initialize_consumer_and_increment_epoch(self, store: Store) -> None:
        queue = consumer(store)
        assert queue.claim().epoch == 1
        assert (queue.epoch, manifest_in(store).epoch) == (1, 1)

    def test_should_peek_none_when_queue_is_empty(self, store: Store) -> None:
        assert claimed(store).peek() is None

    def test_should_read_entry_by_sequence(self, store: Store) -> None:
        append(store, "a", "b", "c")
        assert claimed(store).read().read(1) == BatchDescriptor(1, "b")

    def test_should_read_none_for_missing_sequence(self, store: Store) -> None:
        append(store, "a")
        assert claimed(store).read().read(99) is None

    def test_should_fence_old_consumer_on_peek(self, store: Store) -> None:
        old = claimed(store)
        claimed(store)
        with pytest.raises(Fenced, match="holds epoch 1, the queue is at 2") as caught:
            old.peek()
        assert (caught.value.epoch, caught.value.current_epoch) == (1, 2)

    def test_should_fence_old_consumer_on_dequeue(self, store: Store) -> None:
        append(store, "a")
        old = claimed(store)
        claimed(store)
        with pytest.raises(Fenced):
            old.dequeue(0)
        assert queued(store) == [(0, "a")]

    def test_should_fence_uninitialized_consumer(self, store: Store) -> None:
        append(store, "a")
        for call in (consumer(store).peek, consumer(store).read, lambda: consumer(store).dequeue(0)):
            with pytest.raises(Fenced):
                call()
        assert queued(store) == [(0, "a")]

    def test_should_wrap_epoch_to_zero_at_max(self, store: Store) -> None:
        replace(store, Manifest.from_bytes(bytes(12) + (2**64 - 2).to_bytes(8, "little") + b"\x01\x00"))
        queue = consumer(store)
        assert queue.claim().epoch == 0
        assert (queue.epoch, queue.peek()) == (0, None)

    def test_should_peek_first_entry_with_valid_epoch(self, store: Store) -> None:
        append(store, "a", "b")
        assert claimed(store).peek() == BatchDescriptor(0, "a")

    def test_should_dequeue_entries_with_valid_epoch(self, store: Store) -> None:
        append(store, "a", "b", "c")
        queue = claimed(store)
        assert len(queue.dequeue(1)) == 1
        assert queue.peek() == BatchDescriptor(2, "c")

    def test_should_enqueue_after_consumer_dequeue(self, store: Store) -> None:
        append(store, "a", "b")
        claimed(store).dequeue(1)
        assert append(store, "c") == range(2, 3)
        assert queued(store) == [(2, "c")]

    def test_should_enqueue_locations_to_manifest(self, store: Store) -> None:
        queue = producer(store)
        assert queue.append_locations(named("a")) == range(1)
        assert queue.append_locations(named("b")) == range(1, 2)
        assert queued(store) == [(0, "a"), (1, "b")]

    def test_should_merge_with_existing_manifest(self, store: Store) -> None:
        items = (Metadata(0, 5, b"m"),)
        replace(store, Manifest.empty().append("old", items))
        producer(store).append_locations([("new", items)])
        assert list(manifest_in(store)) == [BatchDescriptor(0, "old", items), BatchDescriptor(1, "new", items)]

    def test_should_reject_location_exceeding_u16_max(self, store: Store) -> None:
        with pytest.raises(InvalidInput, match="65,536 bytes"):
            append(store, "fits", "x" * 65_536)
        assert queued(store) == []
        with pytest.raises(ObjectNotFound):
            store.get(PATH)


class TestAppend:
    def test_should_append_a_group_in_one_write(self, store: Store) -> None:
        seen: list[Outcome] = []
        queue = producer(store)
        queue._cas._observe = seen.append
        assert queue.append_locations(named("a", "b", "c")) == range(3)
        assert queued(store) == [(0, "a"), (1, "b"), (2, "c")]
        assert [type(outcome) for outcome in seen] == [Won]

    def test_should_refuse_an_empty_group(self, store: Store) -> None:
        with pytest.raises(InvalidInput, match="at least one location"):
            producer(store).append_locations([])
        assert queued(store) == []

    def test_should_write_nothing_when_draw_fails(self, store: Store) -> None:
        def draw() -> AppendGroup:
            raise LookupError("no batch")

        with pytest.raises(LookupError):
            producer(store).append(draw)
        with pytest.raises(ObjectNotFound):
            store.get(PATH)

    def test_should_interleave_producers(self, store: Store) -> None:
        one, other = producer(store), producer(store)
        for turn in range(5):
            one.append_locations(named(f"one-{turn}"))
            other.append_locations(named(f"other-{turn}"))
        expected = [f"{who}-{turn}" for turn in range(5) for who in ("one", "other")]
        assert queued(store) == list(enumerate(expected))

    def test_should_keep_epoch_and_consumer_when_appending(self, store: Store) -> None:
        queue = claimed(store)
        append(store, "a")
        assert queue.peek() == BatchDescriptor(0, "a")

    def test_should_retry_read_errors_and_then_append_once(self, store: Store) -> None:
        faulty = FaultyStore(store, [Fault.before("get", times=3, location=PATH)])
        assert producer(faulty).append_locations(named("a")) == range(1)
        assert (queued(store), faulty.unused) == ([(0, "a")], [])

    def test_should_report_the_stores_error_when_nothing_could_be_read(self, store: Store) -> None:
        faulty = FaultyStore(store, [Fault.before("get", times=10**6)])
        with pytest.raises(StorageError, match="injected fault: get") as caught:
            append(faulty, "a")
        assert caught.value.retryable is True
        assert queued(store) == []

    def test_should_report_an_unusable_store_at_once(self, store: Store) -> None:
        faulty = FaultyStore(store, [Fault.before("get", StoreUnusable)])
        with pytest.raises(StoreUnusable):
            append(faulty, "a")
        assert len(faulty.history) == 1


class TestPolling:
    def test_should_not_transfer_or_parse_an_unchanged_manifest(self, store: Store) -> None:
        append(store, "a")
        tapped = Tapped(store)
        queue = consumer(tapped)
        queue.claim()
        tapped.calls.clear()
        first = queue.read()
        assert all(queue.read() is first for _ in range(5))
        assert {operation for operation, _ in tapped.calls} == {"get_if_changed"}

    def test_should_see_what_others_appended(self, store: Store) -> None:
        queue = claimed(store)
        for turn in range(4):
            append(store, f"{turn}")
            assert [e.location for e in queue.read().entries_from(turn)] == [f"{turn}"]

    def test_should_read_on_without_walking_again(self, store: Store) -> None:
        append(store, *(f"{i}" for i in range(50)))
        queue = claimed(store)
        assert list(queue.read().entries_from(50)) == []
        walked_to = queue.read()._place
        append(store, "new")
        assert queue.read()._place == walked_to != (0, 0)


class TestClaim:
    def test_should_claim_and_dequeue_in_one_write(self, store: Store) -> None:
        append(store, "a", "b", "c")
        seen: list[Outcome] = []
        queue = QueueConsumer(store, PATH, ManualClock(), observe=seen.append)
        manifest = queue.claim(last_acked=1)
        assert ([e.sequence for e in manifest], manifest.epoch) == ([2], 1)
        assert queued(store) == [(2, "c")]
        assert len(seen) == 1

    def test_should_fence_at_every_door_and_change_nothing(self, store: Store) -> None:
        append(store, "a", "b")
        old, new = claimed(store), claimed(store)
        before = store.get(PATH)
        for call in (old.read, old.peek, lambda: old.dequeue(0), lambda: old.dequeue(-1)):
            with pytest.raises(Fenced):
                call()
        assert store.get(PATH) == before
        assert new.peek() == BatchDescriptor(0, "a")

    def test_should_own_the_queue_again_after_claiming_again(self, store: Store) -> None:
        old, new = claimed(store), claimed(store)
        assert old.claim().epoch == 3
        with pytest.raises(Fenced):
            new.read()

    def test_should_own_nothing_after_a_claim_that_failed(self, store: Store) -> None:
        faulty = FaultyStore(store)
        queue = consumer(faulty)
        queue.claim()
        faulty.add(Fault.before("get_if_changed", StoreUnusable))
        with pytest.raises(StoreUnusable):
            queue.claim()
        with pytest.raises(Fenced):
            queue.read()

    @pytest.mark.parametrize("last_acked", [2, 99])
    def test_should_refuse_a_consumer_ahead_of_the_queue(self, store: Store, last_acked: int) -> None:
        append(store, "a", "b")
        before = store.get(PATH)
        with pytest.raises(QueueBehindConsumer, match=f"sequence {last_acked} was acked") as caught:
            consumer(store).claim(last_acked)
        assert (caught.value.last_acked, caught.value.next_sequence) == (last_acked, 2)
        assert caught.value.location == PATH
        assert store.get(PATH) == before

    def test_should_refuse_a_consumer_ahead_of_a_missing_queue(self, store: Store) -> None:
        with pytest.raises(QueueBehindConsumer):
            consumer(store).claim(0)
        with pytest.raises(ObjectNotFound):
            store.get(PATH)

    def test_should_accept_a_consumer_that_acked_everything(self, store: Store) -> None:
        append(store, "a", "b")
        assert len(consumer(store).claim(1)) == 0
        assert len(consumer(store).claim(1)) == 0
        assert len(consumer(store).claim(0)) == 0


class TestDequeue:
    def test_should_write_nothing_when_there_is_nothing_to_remove(self, store: Store) -> None:
        append(store, "a", "b")
        queue = claimed(store)
        queue.dequeue(0)
        before = store.get(PATH)
        assert [e.sequence for e in queue.dequeue(0)] == [1]
        assert store.get(PATH) == before

    def test_should_refuse_to_dequeue_what_never_was(self, store: Store) -> None:
        append(store, "a")
        queue = claimed(store)
        with pytest.raises(QueueBehindConsumer):
            queue.dequeue(1)
        assert queued(store) == [(0, "a")]
