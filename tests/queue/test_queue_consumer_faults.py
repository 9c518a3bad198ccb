"""Lost replies and late landings of claims and dequeues: one owner at a time, nothing removed unasked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from buffer.errors import ContentionError, Fenced
from buffer.store import Lost, Store, open_store
from buffer.testing import Fault, FaultyStore
from tests.queue.queue_support import Written, append, consumer, manifest_in, memory, queued

FOREVER = 10**6


@pytest.fixture(params=["memory", "local"])
def inner(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return memory() if request.param == "memory" else open_store(str(tmp_path / "store"))


class TestClaim:
    @pytest.mark.parametrize("answer", [None, Lost])
    def test_should_never_trust_a_claim_whose_reply_was_lost(self, inner: Store, answer) -> None:
        append(inner, "earlier")
        store = FaultyStore(inner, [Fault.after("put_if_match", answer)])
        queue = consumer(store)
        assert queue.claim().epoch == 2  # the first one landed as 1, but it could have been another's
        assert (queue.epoch, manifest_in(inner).epoch) == (2, 2)

    def test_should_not_share_an_epoch_with_a_consumer_that_wrote_the_same_number(self, inner: Store) -> None:
        append(inner, "earlier")
        one, other = FaultyStore(inner, [Fault.before("put_if_match")]), consumer(inner)
        first = consumer(Written(one, then=lambda: other.epoch or other.claim()))
        first.claim()
        assert (other.epoch, first.epoch) == (1, 2)
        with pytest.raises(Fenced):
            other.read()
        assert first.peek() is not None

    @pytest.mark.parametrize("after_calls", [1, 2, 3, 4])
    def test_should_hold_an_epoch_of_its_own_when_a_claim_lands_late(self, inner: Store, after_calls: int) -> None:
        append(inner, "earlier")
        store = FaultyStore(inner, [Fault.late("put_if_match", after_calls=after_calls)])
        queue = consumer(store)
        queue.claim()
        store.land()
        assert manifest_in(inner).epoch == queue.epoch
        assert queue.peek() is not None

    def test_should_own_nothing_when_it_gives_up(self, inner: Store) -> None:
        append(inner, "earlier")
        store = FaultyStore(inner, [Fault.before("put_if_match", times=FOREVER)])
        queue = consumer(store)
        with pytest.raises(ContentionError):
            queue.claim()
        assert queue.epoch is None
        store.heal()
        assert queue.claim().epoch == 1


class TestDequeue:
    @pytest.mark.parametrize("answer", [None, Lost])
    @pytest.mark.parametrize("when", [Fault.before, Fault.after, Fault.late])
    def test_should_remove_exactly_what_was_asked(self, inner: Store, when: Callable[..., Fault], answer) -> None:
        append(inner, "a", "b", "c")
        store = FaultyStore(inner)
        queue = consumer(store)
        queue.claim()
        store.add(when("put_if_match", answer))
        assert [e.sequence for e in queue.dequeue(0)] == [1, 2]
        append(inner, "d")
        store.land()
        assert queued(inner) == [(1, "b"), (2, "c"), (3, "d")]
        assert store.unused == []

    def test_should_keep_what_was_appended_meanwhile(self, inner: Store) -> None:
        append(inner, "a", "b")
        store = Written(inner)
        queue = consumer(store)
        queue.claim()
        store.interfere = lambda: len(store.writes) == 2 and append(inner, "c")
        queue.dequeue(1)
        assert queued(inner) == [(2, "c")]

    def test_should_be_fenced_when_another_claims_meanwhile(self, inner: Store) -> None:
        append(inner, "a", "b")
        store = Written(inner)
        queue, successor = consumer(store), consumer(inner)
        queue.claim()
        store.interfere = lambda: successor.claim()
        with pytest.raises(Fenced):
            queue.dequeue(0)
        assert queued(inner) == [(0, "a"), (1, "b")]
