"""Appending to the producer manifest: each location once, whatever happens to the answers."""

from __future__ import annotations

from uuid import UUID

import pytest

from buffer.errors import AppendOutcomeUnknown, ContentionError, StorageError, StoreUnusable
from buffer.legacy.format import encode_batch
from buffer.produce.durability import Durable, Settled
from buffer.store.base import Lost
from buffer.testing.faulty import Fault, FaultyStore
from tests.legacy.legacy_support import PATH, LegacyQueue, drain, pair


@pytest.fixture
def queue() -> LegacyQueue:
    return LegacyQueue()


def flush(queue: LegacyQueue, *faults: Fault, texts: str = "a", **settings: float) -> tuple[list[Settled], FaultyStore]:
    store = FaultyStore(queue.store, faults, clock=queue.clock)
    return queue.flusher(store, **settings).flush([encode_batch([pair(text)]) for text in texts]), store


def test_should_append_a_group_in_one_write_under_uuid_names(queue: LegacyQueue) -> None:
    settled, store = flush(queue, texts="abc")
    locations = [each.location for each in settled if isinstance(each, Durable)]
    assert queue.pending == locations
    assert len([call for call in store.history if call.location == PATH and call.op.startswith("put")]) == 1
    for location in locations:
        folder, _, name = location.partition("/")
        assert folder == "q"
        assert UUID(name.removesuffix(".json")).version == 4
        assert str(UUID(name.removesuffix(".json"))) == name.removesuffix(".json")
    assert [batch.entries for batch in drain(queue.claims())] == [[pair(text)] for text in "abc"]


@pytest.mark.parametrize("answer", [None, Lost])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("op", ["put_if_absent", "put_if_match"])
def test_should_append_once_when_an_answer_is_lost(
    queue: LegacyQueue, op: str, when: str, answer: type[Lost] | None
) -> None:
    earlier = queue.ingest("earlier") if op == "put_if_match" else []
    (settled,), _ = flush(queue, Fault(op, when, answer, location=PATH))  # type: ignore[arg-type]
    assert isinstance(settled, Durable)
    assert queue.pending == [*earlier, settled.location]


def test_should_know_an_append_that_was_collected_and_cleaned_up_before_it_looked(queue: LegacyQueue) -> None:
    """The answer is lost; before the next look others append, collect all and clean up."""
    queue.ingest("earlier")

    class Busy(FaultyStore):
        others_were_here = False

        def put_if_match(self, location, data, version):
            outcome = super().put_if_match(location, data, version)
            if location == PATH and not self.others_were_here:
                self.others_were_here = True
                queue.ingest("later")
                drain(queue.claims(done_cleanup_threshold=1))
            return outcome

    store = Busy(queue.store, [Fault.after("put_if_match", location=PATH)])
    (settled,) = queue.flusher(store).flush([encode_batch([pair("a")])])
    assert isinstance(settled, Durable)
    assert settled.location not in queue.pending
    assert queue.claims().next_batch() is None, "it is not delivered again"


def test_should_not_land_twice_when_an_append_arrives_after_the_clean_up(queue: LegacyQueue) -> None:
    """What was pending before it has been cleaned up, but the manifest does not come back to what it was."""
    queue.plant([])
    (settled,), store = flush(queue, Fault.late("put_if_match", location=PATH))
    assert isinstance(settled, Durable), "sent again under the same condition"
    (batch,) = drain(queue.claims(done_cleanup_threshold=1))
    assert batch.location == settled.location
    store.land()
    assert queue.pending == [settled.location]
    assert queue.claims().next_batch() is None


def test_should_say_unknown_while_an_append_may_still_land(queue: LegacyQueue) -> None:
    queue.ingest("earlier")
    faults = [Fault.late("put_if_match", location=PATH), Fault.before("put_if_match", location=PATH, times=99)]
    (settled,), store = flush(queue, *faults, append_timeout_s=0.1)
    assert isinstance(settled, AppendOutcomeUnknown)
    assert settled.locations is not None
    store.land()
    assert queue.pending[-1:] == list(settled.locations), "and so it does"


def test_should_say_contention_once_nothing_can_land_any_more(queue: LegacyQueue) -> None:
    queue.ingest("earlier")

    class Contended(FaultyStore):
        def put_if_match(self, location, data, version):
            if location == PATH:
                queue.ingest("another")  # always faster
            return super().put_if_match(location, data, version)

    (settled,) = queue.flusher(Contended(queue.store), append_timeout_s=0.05).flush([encode_batch([pair("a")])])
    assert isinstance(settled, ContentionError)
    assert b"YQ==" not in b"".join(queue.store.get(location).data for location in queue.pending)


def test_should_upload_again_under_a_new_name(queue: LegacyQueue) -> None:
    """A late upload could bring back an object that was deleted."""
    (settled,), store = flush(queue, Fault.late("put"))
    assert isinstance(settled, Durable)
    names = [call.location for call in store.history if call.op == "put"]
    assert len(set(names)) == len(names) == 2
    assert settled.location == names[1]


def test_should_fail_only_the_batch_that_could_not_be_uploaded(queue: LegacyQueue) -> None:
    refused = StoreUnusable("no room", retryable=False)
    settled, _ = flush(queue, Fault.before("put", refused), texts="ab")
    assert settled[0] is refused
    assert isinstance(settled[1], Durable)
    assert queue.pending == [settled[1].location]


def test_should_fail_when_the_store_is_down(queue: LegacyQueue) -> None:
    (settled,), _ = flush(queue, Fault.before("*", times=10_000), append_timeout_s=0.1)
    assert isinstance(settled, StorageError)
    assert queue.objects() == set()


def test_should_fail_when_the_manifest_cannot_be_written(queue: LegacyQueue) -> None:
    refused = StoreUnusable("read-only", retryable=False)
    (settled,), store = flush(queue, Fault.before("put_if_absent", refused, location=PATH, times=99))
    assert settled is refused
    assert len([call for call in store.history if call.op == "put_if_absent"]) == 1, "asking again cannot help"
