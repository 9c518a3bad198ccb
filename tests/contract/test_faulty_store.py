"""Faults strike where, when and how the script says, and the same way for the same seed."""

from __future__ import annotations

import pytest

from buffer.errors import ObjectNotFound, StorageError, StoreUnusable, Throttled
from buffer.store import Lost, Store, Unknown, Won, open_store
from buffer.testing import Fault, FaultyStore, ManualClock


@pytest.fixture
def inner() -> Store:
    store = open_store("memory://")
    store.put("a", b"old")
    return store


def test_should_not_write_when_the_request_is_lost(inner: Store) -> None:
    store = FaultyStore(inner, [Fault.before("put_if_match"), Fault.before("put_if_absent"), Fault.before("put")])
    assert isinstance(store.put_if_match("a", b"new", inner.get("a").version), Unknown)
    assert isinstance(store.put_if_absent("b", b"new"), Unknown)
    with pytest.raises(StorageError) as raised:
        store.put("a", b"new")
    assert raised.value.retryable
    assert raised.value.location == "a"
    assert inner.get("a").data == b"old"
    assert [o.location for o in inner.list("")] == ["a"]
    assert store.unused == []


def test_should_write_when_only_the_reply_is_lost(inner: Store) -> None:
    store = FaultyStore(inner, [Fault.after("put_if_match", Unknown), Fault.after("put_if_absent", Lost)])
    assert isinstance(store.put_if_match("a", b"new", inner.get("a").version), Unknown)
    assert inner.get("a").data == b"new"
    assert store.put_if_absent("b", b"new") == Lost()
    assert inner.get("b").data == b"new"
    store.add(Fault.after("put"), Fault.after("delete_many"))
    with pytest.raises(StorageError):
        store.put("c", b"new")
    assert inner.get("c").data == b"new"
    assert [failure.location for failure in store.delete_many(["a", "c"])] == ["a", "c"]
    assert [o.location for o in inner.list("")] == ["b"]


def test_should_land_late_under_its_own_condition(inner: Store) -> None:
    store = FaultyStore(inner, [Fault.late("put_if_match", times=2), Fault.late("put")])
    version = inner.get("a").version
    assert isinstance(store.put_if_match("a", b"first", version), Unknown)
    assert isinstance(store.put_if_match("a", b"second", version), Unknown)
    with pytest.raises(StorageError):
        store.put("b", b"late")
    assert store.get("a").data == b"old"
    assert store.pending == 3
    store.land()
    assert store.pending == 0
    assert store.get("a").data == b"first", "the second one's condition no longer held"
    assert store.get("b").data == b"late"


def test_should_land_before_the_nth_call_when_told_so(inner: Store) -> None:
    store = FaultyStore(inner, [Fault.late("put_if_match", after_calls=2)])
    assert isinstance(store.put_if_match("a", b"new", inner.get("a").version), Unknown)
    assert store.get("a").data == b"old"
    assert store.get("a").data == b"new"


def test_should_throttle_without_effect(inner: Store) -> None:
    store = FaultyStore(inner, [Fault.throttle("put_if_match"), Fault.throttle("get")])
    outcome = store.put_if_match("a", b"new", inner.get("a").version)
    assert isinstance(outcome, Unknown)
    assert isinstance(outcome.cause, Throttled)
    with pytest.raises(Throttled):
        store.get("a")
    assert inner.get("a").data == b"old"


def test_should_raise_what_real_stores_raise(inner: Store) -> None:
    store = FaultyStore(inner, [Fault.before("put_if_match", StoreUnusable), Fault.before("list", ObjectNotFound)])
    with pytest.raises(StoreUnusable) as raised:
        store.put_if_match("a", b"new", "1")
    assert not raised.value.retryable
    with pytest.raises(ObjectNotFound):
        list(store.list(""))
    mine = StorageError("mine", location="a", retryable=False)
    store.add(Fault.before("get", mine))
    with pytest.raises(StorageError, match="mine"):
        store.get("a")


def test_should_take_time_when_delayed(inner: Store) -> None:
    clock = ManualClock()
    store = FaultyStore(inner, [Fault.delay("get", 3.5)], clock=clock)
    assert store.get("a").data == b"old"
    assert clock.monotonic_s() == 3.5


def test_should_strike_only_the_calls_that_fit(inner: Store) -> None:
    inner.put("b", b"old")
    store = FaultyStore(inner, [Fault.before("get", location="b", skip=1, times=2), Fault.before("*", location="c")])
    worked = []
    for location in ("a", "b", "b", "a", "b", "b"):
        try:
            store.get(location)
            worked.append(True)
        except StorageError:
            worked.append(False)
    assert worked == [True, True, False, True, False, True]
    assert [(call.op, call.location, call.fault is not None) for call in store.history][:3] == [
        ("get", "a", False),
        ("get", "b", False),
        ("get", "b", True),
    ]
    assert len(store.unused) == 1
    with pytest.raises(StorageError):
        store.put("c", b"x")
    assert store.unused == []


def test_should_strike_the_same_calls_for_the_same_seed() -> None:
    def run(seed: int) -> list[str]:
        store = FaultyStore(open_store("memory://"), seed=seed, rate=0.5)
        told = []
        for n in range(60):
            try:
                told.append(type(store.put_if_absent(f"x/{n}", b"")).__name__)
                store.get(f"x/{n}")
            except StorageError as error:
                told.append(type(error).__name__)
        store.heal()
        return [*told, *sorted(o.location for o in store.list(""))]

    assert run(7) == run(7)
    assert run(7) != run(8)
    assert {"Won", "Lost", "Unknown", "ObjectNotFound", "Throttled", "StorageError"} <= set(run(7))


def test_should_work_for_good_when_healed(inner: Store) -> None:
    store = FaultyStore(inner, [Fault.before("get", times=9), Fault.late("put")], seed=3, rate=1.0)
    with pytest.raises(StorageError):
        store.put("b", b"late")
    store.heal()
    assert store.get("b").data == b"late"
    for n in range(50):
        assert isinstance(store.put_if_absent(f"x/{n}", b""), Won)


def test_should_refuse_faults_that_make_no_sense() -> None:
    for make in (
        lambda: Fault.before("gte"),
        lambda: Fault.before("get", Lost),
        lambda: Fault.late("get"),
        lambda: FaultyStore(open_store("memory://"), rate=0.5),
    ):
        with pytest.raises(AssertionError):
            make()
