"""The rule: what keeps an object, each on its own, and the races that two looks are for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer.config import GcConfig
from buffer.errors import StorageError
from buffer.gc.collector import Collector, Look, deletable
from buffer.manifest import Manifest
from buffer.names import batch_ulid, ledger_path, ulid_time_ms
from buffer.store.base import Store
from buffer.testing.clock import ManualClock
from buffer.testing.faulty import Fault, FaultyStore
from tests.consume.consumer_support import MANIFEST, Tapped, manifest_of, ulid_at
from tests.gc.gc_support import (
    DAY_MS,
    GRACE_MS,
    HOUR_MS,
    NOW_MS,
    collect_twice,
    collector,
    empty_manifest,
    enqueue,
    locations,
    put_batch,
    touch_manifest,
)

# What the reference tests. It deletes at the first look; ours at the second.


def test_should_delete_orphaned_batch_files(store: Store) -> None:
    orphan = put_batch(store, HOUR_MS)
    empty_manifest(store)
    assert collect_twice(store).deleted == (orphan,)
    assert locations(store) == set()


def test_should_not_delete_referenced_batch_files(store: Store) -> None:
    referenced = put_batch(store, HOUR_MS)
    enqueue(store, referenced)
    assert collect_twice(store).deleted == ()
    assert locations(store) == {referenced}


@pytest.mark.parametrize(
    ("age_ms", "goes"), [(1000, False), (GRACE_MS, False), (GRACE_MS + 1, True), (-HOUR_MS, False)]
)
def test_should_not_delete_files_within_grace_period(store: Store, age_ms: int, goes: bool) -> None:
    put_batch(store, age_ms)
    empty_manifest(store)
    assert len(collect_twice(store).deleted) == goes


def test_should_not_delete_files_newer_than_oldest_manifest_entry(store: Store) -> None:
    oldest, newer = put_batch(store, 3 * HOUR_MS), put_batch(store, HOUR_MS)
    orphan = put_batch(store, 2 * HOUR_MS)
    same_moment = put_batch(store, 3 * HOUR_MS, tail=1)
    enqueue(store, newer, oldest)
    assert collect_twice(store).deleted == ()
    assert locations(store) == {oldest, newer, orphan, same_moment}


def test_should_skip_non_batch_files(store: Store) -> None:
    ulid = ulid_at(NOW_MS - HOUR_MS)
    others = {
        f"ingest/{ulid}",
        f"ingest/{ulid}.batch.tmp",
        f"ingest/{ulid}.json",
        f"ingest/{ulid.lower()}.batch",
        f"ingest/x{ulid}.batch",
        f"ingest/8{ulid[1:]}.batch",  # more than 48 bits of time
        f"ingest/{ulid[:-1]}U.batch",  # not a letter of the alphabet
        f"ingest/{ulid[:-1]}.batch",
        "ingest/notes.batch",
        f"ingest/deeper/{ulid}.batch",
        f"ingest/ingest/{ulid}.batch",
    }
    for location in others:
        store.put(location, b"")
    store.put(f"ingest2/{ulid}.batch", b"")
    empty_manifest(store)
    assert collect_twice(store).listed == 0
    assert locations(store) == others
    assert len(list(store.list("ingest2"))) == 1


def test_should_delete_older_orphans_but_keep_referenced(store: Store) -> None:
    orphans = [put_batch(store, 3 * HOUR_MS + tail, tail) for tail in range(3)]
    referenced = put_batch(store, HOUR_MS)
    enqueue(store, referenced)
    report = collect_twice(store)
    assert set(report.deleted) == set(orphans)
    assert report.listed == 4
    assert locations(store) == {referenced}


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**80 - 1))
def test_should_extract_ulid_timestamp(time_ms: int, tail: int) -> None:
    ulid = batch_ulid(f"some/where/{ulid_at(time_ms, tail)}.batch")
    assert ulid is not None
    assert ulid_time_ms(ulid) == time_ms


@pytest.mark.parametrize(
    "location", ["", "ingest/", "ingest/not-a-ulid.batch", f"ingest/{ulid_at(5)}", "ingest/.batch"]
)
def test_should_return_none_for_invalid_ulid_path(location: str) -> None:
    assert batch_ulid(location) is None


def test_should_shutdown_collect_loop_on_cancel(memory: Store) -> None:
    empty_manifest(memory)
    subject = collector(memory, gc_interval_s=3600)
    subject.start()
    assert subject.running
    subject.close()  # were it to wait for the hour, the suite's net would end it
    assert not subject.running


# Two looks


def test_should_delete_nothing_at_the_first_look(store: Store) -> None:
    orphan = put_batch(store, 30 * DAY_MS)
    empty_manifest(store)
    report = collector(store).collect_once()
    assert (report.deleted, report.waiting) == ((), (orphan,))
    assert locations(store) == {orphan}


def test_should_wait_for_the_manifest_to_change(store: Store) -> None:
    orphan = put_batch(store, HOUR_MS)
    empty_manifest(store)
    subject = collector(store)
    for _ in range(3):
        assert subject.collect_once().waiting == (orphan,)
    touch_manifest(store)
    assert subject.collect_once().deleted == (orphan,)


def test_should_use_a_grace_of_one_day_on_a_manifest_that_does_not_change(store: Store) -> None:
    old, young = put_batch(store, DAY_MS + 1), put_batch(store, DAY_MS)
    empty_manifest(store)
    subject = collector(store)
    subject.collect_once()
    report = subject.collect_once()
    assert (report.deleted, report.waiting) == ((old,), (young,))


def test_should_not_shorten_a_grace_longer_than_a_day_on_a_quiet_manifest(store: Store) -> None:
    put_batch(store, 2 * DAY_MS)
    empty_manifest(store)
    subject = collector(store, gc_grace_s=3 * 24 * 3600.0)
    subject.collect_once()
    assert subject.collect_once().waiting == ()


def test_should_look_again_right_before_a_quiet_delete_that_failed_the_last_time(memory: Store) -> None:
    """Only time speaks for it, however often it was tried: an append that slept may land while the collector looks."""
    late = put_batch(memory, 2 * DAY_MS)
    empty_manifest(memory)

    def fail(call: str, _location: str) -> None:
        if call == "delete_many":
            raise StorageError("no answer", retryable=True)

    def land(call: str, location: str) -> None:
        if call == "get_if_changed" and location == MANIFEST:
            store.tap = None
            enqueue(memory, late)

    store = Tapped(memory, fail)
    subject = collector(store)
    subject.collect_once()
    assert [failure.location for failure in subject.collect_once().failed] == [late]
    store.tap = land
    assert subject.collect_once().deleted == ()
    assert late in locations(memory)


def test_should_want_the_previous_look_to_have_found_it_deletable(store: Store) -> None:
    """Old enough only at the second look: an append may have been under way since before it."""
    orphan = put_batch(store, GRACE_MS)
    empty_manifest(store)
    subject = collector(store)
    assert subject.collect_once(NOW_MS).waiting == ()
    touch_manifest(store)
    assert subject.collect_once(NOW_MS + 1).waiting == (orphan,)
    touch_manifest(store)
    assert subject.collect_once(NOW_MS + 2).deleted == (orphan,)


def test_should_keep_a_batch_whose_append_lands_between_two_looks(store: Store) -> None:
    late = put_batch(store, HOUR_MS)
    empty_manifest(store)
    subject = collector(store)
    assert subject.collect_once().waiting == (late,)
    enqueue(store, late)
    for _ in range(2):
        assert subject.collect_once().deleted == ()
        touch_manifest(store)
    assert locations(store) == {late}


def test_should_keep_a_batch_that_is_appended_while_the_collector_looks(store: Store) -> None:
    """After the listing and before the manifest: the manifest is read last, so the append is seen."""
    late = put_batch(store, HOUR_MS)
    empty_manifest(store)
    tapped = Tapped(store)
    subject = collector(tapped)
    subject.collect_once()
    touch_manifest(store)

    def append(operation: str, location: str) -> None:
        if (operation, location) == ("get", MANIFEST):
            tapped.tap = None
            enqueue(store, late)

    tapped.tap = append
    assert subject.collect_once().deleted == ()
    assert locations(store) == {late}


@pytest.mark.parametrize("another_append_comes_between", [True, False])
def test_should_never_leave_a_referenced_batch_without_its_object(
    store: Store, another_append_comes_between: bool
) -> None:
    """An append hangs in the network while the collector looks twice. If the manifest changed, it can no longer
    land, and its batch goes; if not, it may land yet, and its batch stays."""
    empty_manifest(store)
    hanging = put_batch(store, HOUR_MS)
    network = FaultyStore(store, [Fault.late("put_if_match")])
    seen = network.get(MANIFEST)
    network.put_if_match(MANIFEST, Manifest.from_bytes(seen.data).append(hanging).to_bytes(), seen.version)
    subject = collector(store)
    subject.collect_once()
    if another_append_comes_between:
        enqueue(store, put_batch(store, 0))
    subject.collect_once()
    network.land()
    referenced = {entry.location for entry in manifest_of(store)}
    assert referenced <= locations(store)
    assert (hanging in locations(store)) == (hanging in referenced) == (not another_append_comes_between)


def test_should_read_the_listing_then_the_ledger_then_the_manifest(memory: Store) -> None:
    empty_manifest(memory)
    tapped = Tapped(memory)
    collector(tapped).collect_once()
    assert tapped.calls == [("list", "ingest"), ("get", ledger_path(MANIFEST)), ("get", MANIFEST)]


def test_should_read_the_clock_before_the_listing(memory: Store) -> None:
    """A listing that takes long must not make an object older."""
    put_batch(memory, GRACE_MS - 1)
    empty_manifest(memory)
    clock = ManualClock(NOW_MS)
    slow = Tapped(memory, lambda operation, _: clock.advance(60) if operation == "list" else None)
    assert Collector(GcConfig(store=slow), clock=clock).collect_once().waiting == ()


# The rule, against all histories of a small world

TIMES = st.integers(0, 2 * DAY_MS)


@given(
    referenced=st.lists(TIMES, max_size=4),
    listed=st.lists(TIMES, max_size=6, unique=True),
    seen=st.sets(st.integers(0, 9)),
    changed=st.booleans(),
    looked=st.booleans(),
)
def test_should_delete_only_what_every_rule_allows(
    referenced: list[int], listed: list[int], seen: set[int], changed: bool, looked: bool
) -> None:
    now_ms = 2 * DAY_MS
    manifest = Manifest.empty().append_all([(f"ingest/{ulid_at(t)}.batch", ()) for t in referenced])
    ulids = [ulid_at(t, index % 2) for index, t in enumerate(listed)]
    previous = Look("v1", frozenset(u for i, u in enumerate(ulids) if i in seen)) if looked else None
    decision = deletable(
        ulids, manifest, "v2" if changed else "v1", now_ms=now_ms, grace_ms=GRACE_MS, previous=previous
    )
    names = {entry.location for entry in manifest}
    for ulid in decision.delete + decision.wait:
        age_ms = now_ms - ulid_time_ms(ulid)
        assert f"ingest/{ulid}.batch" not in names
        assert age_ms > GRACE_MS
        assert all(ulid_time_ms(ulid) < t for t in referenced)
        if ulid in decision.delete:
            assert previous is not None
            assert ulid in previous.deletable
            assert changed or age_ms > DAY_MS
    eligible = {
        u for u in ulids if now_ms - ulid_time_ms(u) > GRACE_MS and all(ulid_time_ms(u) < t for t in referenced)
    }
    assert set(decision.delete + decision.wait) == eligible, "nothing is kept without a rule either"
    assert sum(decision.kept.values()) == len(ulids) - len(eligible), "and each that is kept is told with its rule"


def test_should_leave_the_manifest_alone(store: Store) -> None:
    put_batch(store, HOUR_MS)
    enqueue(store, put_batch(store, 0))
    before = manifest_of(store)
    collector(store).collect_once()
    assert manifest_of(store) == before
