"""Compare-and-swap on one object: bounded by attempts and by time, and no transfer where nothing changed."""

from __future__ import annotations

import pytest

from buffer.cas import BACKOFF_FIRST_S, BACKOFF_MAX_S, CAS_ATTEMPTS_MAX, CasObject, Snapshot
from buffer.errors import ContentionError, StorageError, StoreUnusable, Throttled
from buffer.store import Lost, Outcome, Store, Unknown, Won
from buffer.testing import Fault, FaultyStore, ManualClock
from tests.queue_support import memory

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
    ceilings = [min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2**n) for n in range(1, CAS_ATTEMPTS_MAX)]
    assert len(clock.sleeps) == len(ceilings)
    assert all(0 <= pause <= ceiling for pause, ceiling in zip(clock.sleeps, ceilings, strict=True))
    assert len(set(clock.sleeps)) == len(ceilings)
    assert max(clock.sleeps) > 10 * max(clock.sleeps[:3])
