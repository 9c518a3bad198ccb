"""Entries that leave the queue: one place, and what must be kept of them is kept before, whatever goes wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from buffer.errors import ContentionError, Fenced, StorageError
from buffer.leaving import Leaving
from buffer.queue import QueueConsumer
from buffer.store import Lost, Store
from buffer.testing import Fault, FaultyStore, ManualClock
from tests.queue.queue_support import PATH, Written, append, consumer, manifest_in, memory, queued

KEPT = "ingest/kept"


class Archive:
    """A keeper that writes what leaves to an object of its own, durably, and notes whether it was in time."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.calls: list[list[int]] = []

    def __call__(self, leaving: Leaving) -> None:
        entries = list(leaving)
        assert len(leaving) == len(entries)
        assert {e.sequence for e in entries} <= {s for s, _ in queued(self.store)} or self.is_stale(leaving)
        self.calls.append([entry.sequence for entry in entries])
        known = dict(line.split("=") for line in self.lines())
        known |= {str(entry.sequence): entry.location for entry in entries}
        self.store.put(KEPT, "\n".join(f"{k}={v}" for k, v in sorted(known.items())).encode())

    def is_stale(self, leaving: Leaving) -> bool:
        return leaving.manifest != manifest_in(self.store)

    def lines(self) -> list[str]:
        try:
            return self.store.get(KEPT).data.decode().split("\n")
        except StorageError:
            return []


@pytest.fixture
def inner() -> Store:
    store = memory()
    append(store, "a", "b", "c", "d")
    return store


def owner(store: Store, *keepers: Callable[[Leaving], None]) -> QueueConsumer:
    queue = QueueConsumer(store, PATH, ManualClock(), keepers=keepers)
    queue.claim()
    return queue


def test_should_keep_what_an_ack_removes_before_it_is_removed(inner: Store) -> None:
    archive = Archive(inner)
    queue = owner(inner, archive)
    queue.dequeue(1)
    assert archive.calls == [[0, 1]]
    queue.dequeue(2)
    assert archive.calls == [[0, 1], [2]]
    assert archive.lines() == ["0=a", "1=b", "2=c"]
    assert queued(inner) == [(3, "d")]


def test_should_keep_what_a_claim_removes(inner: Store) -> None:
    archive = Archive(inner)
    QueueConsumer(inner, PATH, ManualClock(), keepers=[archive]).claim(last_acked=2)
    assert archive.calls == [[0, 1, 2]]
    assert queued(inner) == [(3, "d")]


def test_should_keep_nothing_where_nothing_leaves(inner: Store) -> None:
    archive = Archive(inner)
    queue = owner(inner, archive)
    queue.dequeue(1)
    queue.dequeue(0)  # gone already
    QueueConsumer(inner, PATH, ManualClock(), keepers=[archive]).claim(last_acked=1)
    QueueConsumer(inner, PATH, ManualClock(), keepers=[archive]).claim()
    assert archive.calls == [[0, 1]]


def test_should_ask_every_keeper_in_order(inner: Store) -> None:
    asked: list[str] = []
    owner(inner, lambda _: asked.append("first"), lambda _: asked.append("second")).dequeue(0)
    assert asked == ["first", "second"]


@pytest.mark.parametrize("act", [lambda q: q.dequeue(1), lambda q: q.claim(last_acked=1)], ids=["dequeue", "claim"])
def test_should_let_nothing_leave_when_a_keeper_fails(inner: Store, act: Callable[[QueueConsumer], object]) -> None:
    archive = Archive(inner)

    def broken(_leaving: Leaving) -> None:
        raise StorageError("no room", location=KEPT, retryable=False)

    queue = owner(inner, archive, broken)
    before = inner.get(PATH)
    with pytest.raises(StorageError, match="no room"):
        act(queue)
    assert inner.get(PATH) == before
    assert archive.lines() == ["0=a", "1=b"], "kept of entries that are still there: harmless"


class Died(BaseException):
    """The process ends here."""


def test_should_keep_again_after_a_crash_between_keeping_and_leaving(inner: Store) -> None:
    archive = Archive(inner)

    def die(_leaving: Leaving) -> None:
        raise Died

    with pytest.raises(Died):
        owner(inner, archive, die).dequeue(1)
    assert (len(queued(inner)), archive.lines()) == (4, ["0=a", "1=b"])
    successor = owner(inner, archive)
    successor.dequeue(2)
    assert archive.lines() == ["0=a", "1=b", "2=c"]
    assert queued(inner) == [(3, "d")]


def test_should_keep_anew_from_the_manifest_that_is_really_replaced(inner: Store) -> None:
    """The first write loses to another consumer's claim that dequeued, and to a producer; the next look decides."""
    archive = Archive(inner)
    store = Written(inner)
    queue = QueueConsumer(store, PATH, ManualClock(), keepers=[archive])
    store.interfere = lambda: len(store.writes) == 1 and (consumer(inner).claim(0), append(inner, "e"))
    queue.claim(last_acked=2)
    assert archive.calls == [[0, 1, 2], [1, 2]]
    assert queued(inner) == [(3, "d"), (4, "e")]


def test_should_keep_once_more_when_a_producer_wins_the_race(inner: Store) -> None:
    archive = Archive(inner)
    store = Written(inner)
    queue = owner(store, archive)
    store.interfere = lambda: len(store.writes) == 2 and append(inner, "e")
    queue.dequeue(1)
    assert archive.calls == [[0, 1], [0, 1]]
    assert archive.lines() == ["0=a", "1=b"]
    assert queued(inner) == [(2, "c"), (3, "d"), (4, "e")]


@pytest.mark.parametrize("answer", [None, Lost])
@pytest.mark.parametrize("when", [Fault.before, Fault.after, Fault.late])
def test_should_keep_all_that_left_through_lost_replies(inner: Store, when: Callable[..., Fault], answer) -> None:
    archive = Archive(inner)
    store = FaultyStore(inner)
    queue = owner(store, archive)
    store.add(when("put_if_match", answer))
    queue.dequeue(2)
    store.land()
    assert archive.lines() == ["0=a", "1=b", "2=c"]
    assert queued(inner) == [(3, "d")]


def test_should_not_remove_anything_for_a_fenced_owner(inner: Store) -> None:
    archive = Archive(inner)
    zombie = owner(inner, archive)
    consumer(inner).claim()
    with pytest.raises(Fenced):
        zombie.dequeue(1)
    assert len(queued(inner)) == 4


def test_should_read_the_entries_without_moving_the_place_of_the_reader(inner: Store) -> None:
    places: list[tuple[int, int]] = []
    queue = owner(inner, lambda leaving: places.append((len(list(leaving)), leaving.manifest._place[0])))
    queue.dequeue(2)
    assert places == [(3, 0)], "where the reader looked last, not where a keeper did"


def test_should_give_up_with_everything_kept_and_everything_there(inner: Store) -> None:
    archive = Archive(inner)
    store = FaultyStore(inner)
    queue = owner(store, archive)
    store.add(Fault.before("put_if_match", times=10**6))
    with pytest.raises(ContentionError):
        queue.dequeue(1)
    assert (archive.lines(), len(queued(inner))) == (["0=a", "1=b"], 4)


def test_should_dequeue_without_a_read_while_nobody_else_writes(inner: Store) -> None:
    store = FaultyStore(inner)
    queue = owner(store)
    before = len(store.history)
    for sequence in range(3):
        queue.dequeue(sequence)
    assert [call.op for call in store.history[before:]] == ["put_if_match"] * 3
    assert queued(inner) == [(3, "d")]


def test_should_claim_on_a_fresh_look_alone(inner: Store) -> None:
    store = FaultyStore(inner)
    queue = owner(store)
    before = len(store.history)
    queue.claim(last_acked=0)
    assert [call.op for call in store.history[before:]] == ["get_if_changed", "put_if_match"]


def test_should_not_be_fenced_by_what_it_remembers(inner: Store) -> None:
    """It saw another's epoch, and has claimed again since: memory must not say otherwise."""
    queue, other = owner(inner), consumer(inner)
    other.claim()
    with pytest.raises(Fenced):
        queue.read()
    queue.claim()
    assert [entry.sequence for entry in queue.dequeue(0)] == [1, 2, 3]
