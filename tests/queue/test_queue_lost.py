"""A queue whose state is missing, went back or cannot be read: refused with the facts, and left as it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from buffer.errors import CorruptLedger, CorruptManifest, InvalidInput, ManifestLost, ObjectNotFound
from buffer.ledger.plan import Ledger
from buffer.manifest import Manifest
from buffer.names import ledger_path
from buffer.queue import QueueConsumer
from buffer.store import Store
from tests.consume.consumer_support import Tapped
from tests.queue.queue_support import PATH, append, claimed, consumer, manifest_in, named, producer, queued, replace


@pytest.fixture
def store(any_store: Store) -> Store:
    return any_store


def producer_that_read(store: Store) -> Callable[[], object]:
    append(store, "a")
    queue = producer(store)
    with pytest.raises(InvalidInput):
        queue.append_locations([])
    return lambda: queue.append_locations(named("b"))


def producer_that_wrote(store: Store) -> Callable[[], object]:
    queue = producer(store)
    queue.append_locations(named("a"))
    return lambda: queue.append_locations(named("b"))


def consumer_that_claimed(store: Store) -> Callable[[], object]:
    append(store, "a")
    return claimed(store).read


class TestManifestLost:
    @pytest.mark.parametrize("call", [QueueConsumer.read, QueueConsumer.peek, lambda queue: queue.dequeue(0)])
    def test_should_not_call_it_a_successor_when_the_manifest_went_back(
        self, store: Store, call: Callable[[QueueConsumer], object]
    ) -> None:
        """To before its claim, with the same entries: only the epoch tells."""
        append(store, "a")
        claimed(store)
        backup = store.get(PATH).data
        queue = claimed(store)
        store.put(PATH, backup)
        with pytest.raises(ManifestLost, match="claimed it with epoch 2, now it is at 1") as caught:
            call(queue)
        assert (caught.value.location, caught.value.next_sequence) == (PATH, 1)
        assert store.get(PATH).data == backup

    @pytest.mark.parametrize("role", [producer_that_read, producer_that_wrote, consumer_that_claimed])
    def test_should_never_start_over_when_the_manifest_is_gone(
        self, store: Store, role: Callable[[Store], Callable[[], object]]
    ) -> None:
        again = role(store)
        store.delete_many([PATH])
        for _ in range(2):
            with pytest.raises(ManifestLost, match=r"was there \(next sequence 1\) and is gone") as caught:
                again()
        assert (caught.value.location, caught.value.seen_next_sequence) == (PATH, 1)
        with pytest.raises(ObjectNotFound):
            store.get(PATH)

    def test_should_refuse_every_consumer_call_when_the_manifest_is_gone(self, store: Store) -> None:
        append(store, "a")
        queue = claimed(store)
        store.delete_many([PATH])
        for call in (queue.read, queue.peek, lambda: queue.dequeue(0), queue.claim):
            with pytest.raises(ManifestLost):
                call()

    def test_should_go_on_when_the_manifest_was_put_back(self, store: Store) -> None:
        queue = producer(store)
        queue.append_locations(named("a"))
        saved = manifest_in(store)
        store.delete_many([PATH])
        with pytest.raises(ManifestLost):
            queue.append_locations(named("b"))
        replace(store, saved)
        assert queue.append_locations(named("b")) == range(1, 2)

    @pytest.mark.parametrize(
        ("seen", "found"),
        [
            (["a", "b", "c"], Manifest.empty().append("a")),  # an older backup
            (["a", "b", "c"], Manifest.empty()),  # made anew
            (["a"], Manifest.empty()),
        ],
    )
    def test_should_notice_a_manifest_that_went_back(self, store: Store, seen: list[str], found: Manifest) -> None:
        writer = producer(store)
        writer.append_locations(named(*seen))
        reader = claimed(store)
        replace(store, found)
        for call in (reader.read, lambda: writer.append_locations(named("d"))):
            with pytest.raises(ManifestLost, match="went back") as caught:
                call()
        assert caught.value.next_sequence == found.next_sequence
        assert caught.value.seen_next_sequence == len(seen)
        assert manifest_in(store) == found

    def test_should_notice_a_drained_manifest_that_went_back(self, store: Store) -> None:
        """An empty manifest is a manifest: what it knew of sequences counts."""
        append(store, "a", "b", "c")
        reader = claimed(store)
        reader.dequeue(2)
        writer = producer(store)
        with pytest.raises(InvalidInput):
            writer.append_locations([])  # it looked
        replace(store, Manifest.empty().append("a"))
        for call in (reader.read, lambda: writer.append_locations(named("d"))):
            with pytest.raises(ManifestLost):
                call()

    def test_should_notice_dequeued_entries_that_came_back(self, store: Store) -> None:
        append(store, "a", "b")
        reader = claimed(store)
        backup = manifest_in(store)
        reader.dequeue(0)
        replace(store, backup)  # same next_sequence, same epoch
        with pytest.raises(ManifestLost, match="went back"):
            reader.read()


class TestMissingBesideLedger:
    LEDGER = Ledger(queue_id="Q", born=True)

    def put(self, store: Store, ledger: Ledger) -> None:
        store.put(ledger_path(PATH), ledger.to_bytes())

    @pytest.mark.parametrize("known", [{"epoch": 1}, {"next_sequence": 7}])
    def test_should_refuse_to_start_over_beside_a_ledger_in_use(self, store: Store, known: dict[str, int]) -> None:
        self.put(store, self.LEDGER.changed(**known))
        for call in (lambda: append(store, "a"), consumer(store).claim, lambda: consumer(store).claim(3)):
            with pytest.raises(ManifestLost, match="is missing, but its ledger knows") as caught:
                call()
        assert caught.value.seen_next_sequence == known.get("next_sequence", 0)
        with pytest.raises(ObjectNotFound):
            store.get(PATH)

    def test_should_start_beside_a_ledger_that_was_never_entered(self, store: Store) -> None:
        self.put(store, self.LEDGER)
        assert append(store, "a") == range(1)

    def test_should_name_a_ledger_that_cannot_be_read(self, store: Store) -> None:
        store.put(ledger_path(PATH), b"{}")
        with pytest.raises(CorruptLedger, match=r"ingest/manifest\.ledger") as caught:
            append(store, "a")
        assert caught.value.location == ledger_path(PATH)

    def met_by_a_loader(self, store: Store) -> Store:
        """The store to one who looks for the first time: before his look at the ledger a loader claims and enters."""

        def loader_enters(_operation: str, location: str) -> None:
            if location == ledger_path(PATH):
                tapped.tap = None
                consumer(store).claim()
                self.put(store, self.LEDGER.changed(epoch=1))

        tapped = Tapped(store, loader_enters)
        return tapped

    def test_should_not_call_a_manifest_lost_that_was_made_between_two_looks(self, store: Store) -> None:
        assert append(self.met_by_a_loader(store), "a") == range(1)
        assert queued(store) == [(0, "a")]
        assert manifest_in(store).epoch == 1

    def test_should_not_call_a_manifest_lost_that_another_consumer_made(self, store: Store) -> None:
        assert consumer(self.met_by_a_loader(store)).claim().epoch == 2


class TestCorruptManifest:
    @pytest.mark.parametrize(
        ("data", "why"),
        [
            (b"", "is empty"),
            (bytes(22), "unsupported manifest version 0"),
            (bytes(20) + b"\x02\x00", "unsupported manifest version 2"),
        ],
    )
    def test_should_name_a_manifest_that_cannot_be_read_and_leave_it(self, store: Store, data: bytes, why: str) -> None:
        store.put(PATH, data)
        for call in (lambda: append(store, "a"), consumer(store).claim, consumer(store).read):
            with pytest.raises(CorruptManifest, match=f"'ingest/manifest': .*{why}") as caught:
                call()
            assert caught.value.location == PATH
        assert store.get(PATH).data == data

    def test_should_keep_the_version_as_a_fact(self, store: Store) -> None:
        store.put(PATH, bytes(20) + b"\x07\x00")
        with pytest.raises(CorruptManifest) as caught:
            append(store, "a")
        assert caught.value.version == 7

    def test_should_say_where_damage_lies_that_only_a_walk_finds(self, store: Store) -> None:
        good = Manifest.empty().append("a").append("b").append("c").to_bytes()
        second = (len(good) - 22) // 3
        store.put(PATH, good[: second + 4] + b"\x09" + good[second + 5 :])
        queue = claimed(store)
        with pytest.raises(CorruptManifest, match=rf"'ingest/manifest': .*byte {second}") as caught:
            queue.dequeue(1)
        assert (caught.value.location, caught.value.offset) == (PATH, second)
        with pytest.raises(CorruptManifest):
            consumer(store).claim(1)
