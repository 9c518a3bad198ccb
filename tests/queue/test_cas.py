"""Compare-and-swap on one object: bounded by attempts and by time, and no transfer where nothing changed."""

from __future__ import annotations

import pytest

from buffer.cas import CAS_ATTEMPTS_MAX, CAS_BACKOFF, CasObject, Snapshot
from buffer.errors import ContentionError, StorageError, StoreUnusable, Throttled
from buffer.store import Lost, Outcome, Store, Unknown, Won
from buffer.testing import Fault, FaultyStore, ManualClock
from tests.queue.queue_support import memory

PLACE = "folder/object"
FOREVER = 10**6


def counted(seen: Snapshot) -> bytes:
    return b"%d" % (int(seen.data or b"0") + 1)


@pytest.fixture
def inner() -> Store:
    return memory()


def test_should_create_then_replace(inner: Store) -> None:
    cas = CasObject(inner, PLACE, ManualClock())
    assert cas.read() == Snapshot(None, None)
    assert [cas.update(counted).data for _ in range(3)] == [b"1", b"2", b"3"]
    assert inner.get(PLACE).data == b"3"


def test_should_return_what_stands_when_there_is_nothing_to_change(inner: Store) -> None:
    inner.put(PLACE, b"5")
    cas = CasObject(inner, PLACE, ManualClock())
    assert cas.update(lambda _seen: None).data == b"5"
    assert inner.get(PLACE).data == b"5"


def test_should_not_transfer_what_did_not_change(inner: Store) -> None:
    store = FaultyStore(inner)
    cas = CasObject(store, PLACE, ManualClock())
    cas.update(counted)
    first = cas.read()
    assert cas.read() is first
    assert [call.op for call in store.history] == ["get", "put_if_absent", "get_if_changed", "get_if_changed"]


def test_should_forget_an_object_that_is_gone(inner: Store) -> None:
    cas = CasObject(inner, PLACE, ManualClock())
    cas.update(counted)
    inner.delete_many([PLACE])
    assert cas.read() == Snapshot(None, None)
    assert cas.update(counted).data == b"1"


def test_should_tell_the_observer_of_every_write(inner: Store) -> None:
    seen: list[Outcome] = []
    store = FaultyStore(inner, [Fault.before("put_if_absent"), Fault.before("put_if_absent", Lost)])
    CasObject(store, PLACE, ManualClock(), observe=seen.append).update(counted)
    assert [type(outcome) for outcome in seen] == [Unknown, Lost, Won]


def test_should_compute_the_change_again_after_a_lost_race(inner: Store) -> None:
    one, other = (CasObject(inner, PLACE, ManualClock()) for _ in range(2))
    raced = False

    def change(seen: Snapshot) -> bytes:
        nonlocal raced
        if not raced:
            raced = True
            other.update(counted)
        return counted(seen)

    assert one.update(change).data == b"2"


def test_should_end_with_the_error_of_the_change(inner: Store) -> None:
    def change(seen: Snapshot) -> bytes:
        raise LookupError

    with pytest.raises(LookupError):
        CasObject(inner, PLACE, ManualClock()).update(change)


@pytest.mark.parametrize("answer", [None, Lost, Throttled])
def test_should_give_up_after_so_many_attempts(inner: Store, answer) -> None:
    store = FaultyStore(inner, [Fault.before("put_if_absent", answer, times=FOREVER)])
    with pytest.raises(ContentionError, match=f"'folder/object' after {CAS_ATTEMPTS_MAX} attempts") as caught:
        CasObject(store, PLACE, ManualClock()).update(counted)
    assert (caught.value.location, caught.value.attempts) == (PLACE, CAS_ATTEMPTS_MAX)
    assert isinstance(caught.value.__cause__, type(None) if answer is Lost else StorageError)


def test_should_give_up_when_time_is_up(inner: Store) -> None:
    clock = ManualClock()
    faults = [Fault.delay("get", 4.0, times=FOREVER), Fault.before("put_if_absent", times=FOREVER)]
    store = FaultyStore(inner, faults, clock=clock)
    with pytest.raises(ContentionError, match="after 3 attempts within 10 s"):
        CasObject(store, PLACE, clock, timeout_s=10.0).update(counted)


def test_should_try_once_however_little_time_there_is(inner: Store) -> None:
    assert CasObject(inner, PLACE, ManualClock(), timeout_s=0.0).update(counted).data == b"1"


def test_should_blame_the_store_when_it_could_never_be_read(inner: Store) -> None:
    store = FaultyStore(inner, [Fault.before("get", times=FOREVER)])
    with pytest.raises(StorageError, match="injected fault: get"):
        CasObject(store, PLACE, ManualClock()).update(counted)


def test_should_not_repeat_what_cannot_help(inner: Store) -> None:
    for op in ("get", "put_if_absent"):
        store = FaultyStore(inner, [Fault.before(op, StoreUnusable)])
        with pytest.raises(StoreUnusable):
            CasObject(store, PLACE, ManualClock()).update(counted)
        assert [call.op for call in store.history].count(op) == 1


def test_should_pause_longer_and_longer_with_jitter(inner: Store) -> None:
    clock = ManualClock()
    store = FaultyStore(inner, [Fault.before("put_if_absent", times=FOREVER)])
    with pytest.raises(ContentionError):
        CasObject(store, PLACE, clock, timeout_s=1e9).update(counted)
    ceilings = list(CAS_BACKOFF.pauses(max))
    assert len(ceilings) == CAS_ATTEMPTS_MAX - 1
    assert len(clock.sleeps) == len(ceilings)
    assert all(0 <= pause <= ceiling for pause, ceiling in zip(clock.sleeps, ceilings, strict=True))
    assert len(set(clock.sleeps)) == len(ceilings)
    assert max(clock.sleeps) > 10 * max(clock.sleeps[:3])


class TestFromMemory:
    """The first try is made on what we know; only a write may rest on that."""

    @staticmethod
    def steady(store: Store) -> CasObject:
        cas = CasObject(store, PLACE, ManualClock())
        cas.update(counted)
        return cas

    def test_should_read_nothing_while_nobody_else_writes(self, inner: Store) -> None:
        store = FaultyStore(inner)
        cas = self.steady(store)
        before = len(store.history)
        assert [cas.update(counted, optimistic=True).data for _ in range(5)] == [b"2", b"3", b"4", b"5", b"6"]
        assert [call.op for call in store.history[before:]] == ["put_if_match"] * 5
        assert inner.get(PLACE).data == b"6"

    def test_should_read_first_where_it_remembers_nothing(self, inner: Store) -> None:
        inner.put(PLACE, b"7")
        store = FaultyStore(inner)
        assert CasObject(store, PLACE, ManualClock()).update(counted, optimistic=True).data == b"8"
        assert [call.op for call in store.history] == ["get", "put_if_match"]

    def test_should_read_first_without_being_asked_to_trust_memory(self, inner: Store) -> None:
        store = FaultyStore(inner)
        cas = self.steady(store)
        before = len(store.history)
        cas.update(counted)
        assert [call.op for call in store.history[before:]] == ["get_if_changed", "put_if_match"]

    def test_should_lose_to_whoever_wrote_meanwhile_and_count_on_from_there(self, inner: Store) -> None:
        cas = self.steady(inner)
        inner.put(PLACE, b"40")
        assert cas.update(counted, optimistic=True).data == b"41"

    def test_should_never_believe_memory_that_there_is_nothing_to_do(self, inner: Store) -> None:
        cas = self.steady(inner)
        inner.put(PLACE, b"40")
        assert cas.update(lambda seen: None if seen.data == b"1" else counted(seen), optimistic=True).data == b"41"

    def test_should_never_believe_an_error_found_in_memory(self, inner: Store) -> None:
        def change(seen: Snapshot) -> bytes:
            if seen.data == b"1":
                raise LookupError("out of date")
            return counted(seen)

        cas = self.steady(inner)
        inner.put(PLACE, b"40")
        assert cas.update(change, optimistic=True).data == b"41"

    @pytest.mark.parametrize("answer", [LookupError("now"), None])
    def test_should_say_so_when_it_is_true_of_what_is_there(self, inner: Store, answer: Exception | None) -> None:
        store = FaultyStore(inner)
        cas = self.steady(store)
        before = len(store.history)

        def change(_seen: Snapshot) -> bytes | None:
            if answer:
                raise answer
            return None

        if answer:
            with pytest.raises(LookupError):
                cas.update(change, optimistic=True)
        else:
            assert cas.update(change, optimistic=True).data == b"1"
        assert [call.op for call in store.history[before:]] == ["get_if_changed"], "decided on a fresh look"

    def test_should_notice_that_the_object_is_gone(self, inner: Store) -> None:
        cas = self.steady(inner)
        inner.delete_many([PLACE])
        seen: list[bytes | None] = []

        def change(snapshot: Snapshot) -> bytes:
            seen.append(snapshot.data)
            return counted(snapshot)

        assert cas.update(change, optimistic=True).data == b"1"
        assert seen == [b"1", None]

    @pytest.mark.parametrize("answer", [None, Lost])
    @pytest.mark.parametrize("when", [Fault.before, Fault.after, Fault.late])
    def test_should_count_once_through_a_lost_reply(self, inner: Store, when, answer) -> None:
        store = FaultyStore(inner)
        cas = self.steady(store)
        store.add(when("put_if_match", answer))

        def to_two(seen: Snapshot) -> bytes | None:
            return None if seen.data == b"2" else b"2"

        assert cas.update(to_two, optimistic=True).data == b"2"
        store.land()
        assert (inner.get(PLACE).data, store.unused) == (b"2", [])

    def test_should_raise_a_refusal_of_the_store_as_it_is(self, inner: Store) -> None:
        store = FaultyStore(inner)
        cas = self.steady(store)
        store.add(Fault.before("put_if_match", StoreUnusable))
        with pytest.raises(StoreUnusable):
            cas.update(counted, optimistic=True)
        assert inner.get(PLACE).data == b"1"

    def test_should_stop_trusting_memory_while_others_write_and_start_again_when_they_stop(self, inner: Store) -> None:
        store = FaultyStore(inner)
        cas = self.steady(store)
        other = CasObject(inner, PLACE, ManualClock())

        def calls(*, busy: bool) -> list[str]:
            if busy:
                other.update(counted)
            before = len(store.history)
            cas.update(counted, optimistic=True)
            return [call.op for call in store.history[before:]]

        read_first = ["get_if_changed", "put_if_match"]
        assert calls(busy=True) == ["put_if_match", *read_first]
        assert calls(busy=True) == read_first, "a write that is bound to lose is not sent"
        assert calls(busy=False) == read_first
        assert calls(busy=False) == ["put_if_match"]
