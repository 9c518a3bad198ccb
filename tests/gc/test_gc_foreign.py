"""Batches of OpenData's Go producer: read like others, deleted only when asked for, and never in the way of ours."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from buffer.clock import SystemClock
from buffer.codec.batch import encode_batch
from buffer.config import ConsumerConfig, GcConfig
from buffer.consume.consumer import Consumer
from buffer.errors import StorageError
from buffer.gc.collector import Collector
from buffer.names import ForeignBatch, foreign_location
from buffer.queue import QueueConsumer
from buffer.store.base import ObjectInfo, Store
from buffer.store.open import open_store
from buffer.testing.clock import ManualClock
from tests.consume.consumer_support import MANIFEST, Tapped, ulid_at
from tests.gc.gc_support import DAY_MS, HOUR_MS, NOW_MS, collect_twice, enqueue, put_batch, touch_manifest

RUN = ulid_at(NOW_MS - 9 * DAY_MS, 7)


@pytest.fixture
def store(tmp_path: Path) -> Tapped:
    return Tapped(open_store(str(tmp_path)))


def put(store: Tapped, ordinal: int, age_ms: int, run: str = RUN) -> str:
    """An object as the Go producer leaves it, written that long ago."""
    location = foreign_location("ingest", ForeignBatch(run, ordinal))
    store.store.put(location, encode_batch([b"%d" % ordinal]))
    written_s = (NOW_MS - age_ms) / 1000
    os.utime(Path(store.url.removeprefix("file://")) / location, (written_s, written_s))
    return location


def dequeue_through(store: Tapped, sequence: int) -> None:
    Consumer.new(ConsumerConfig(store=store.store, gc_enabled=False), sequence).close()


def collector(store: Store, *, gc_foreign: bool = True) -> Collector:
    return Collector(GcConfig(store=store, gc_foreign=gc_foreign), clock=ManualClock(NOW_MS))


def there(store: Tapped, *locations: str) -> list[bool]:
    found = {info.location for info in store.store.list("ingest")}
    return [location in found for location in locations]


def test_should_be_read_like_any_other(store: Tapped) -> None:
    enqueue(store.store, put(store, 0, 0), put(store, 255, 0))
    with Consumer.new(ConsumerConfig(store=store.store, gc_enabled=False)) as consumer:
        batches = [consumer.next_batch(), consumer.next_batch()]
    assert [batch.entries for batch in batches if batch] == [[b"0"], [b"255"]]
    assert batches[1] is not None
    assert batches[1].location == f"ingest/{RUN}/00000000000000ff"


@pytest.mark.parametrize("gc_foreign", [False, True])
def test_should_not_hold_back_the_collection_of_ours(store: Tapped, gc_foreign: bool) -> None:
    waiting = put(store, 0, 2 * DAY_MS)
    orphan = put_batch(store.store, HOUR_MS)
    enqueue(store.store, waiting)
    assert collect_twice(store, gc_foreign=gc_foreign).deleted == (orphan,)
    assert there(store, waiting, orphan) == [True, False]


def test_should_go_after_two_looks_once_they_are_dequeued_and_a_day_old(store: Tapped) -> None:
    old, queued = put(store, 0, 2 * DAY_MS), put(store, 1, 2 * DAY_MS)
    young = put(store, 2, DAY_MS - HOUR_MS)
    enqueue(store.store, old, queued, young)
    dequeue_through(store, 0)
    subject = collector(store)
    assert subject.collect_once().waiting == (old,)
    assert subject.collect_once().deleted == (old,)
    assert there(store, old, queued, young) == [False, True, True]
    dequeue_through(store, 2)
    subject.collect_once()
    subject.collect_once()
    assert there(store, queued, young) == [False, True]


def test_should_stay_unless_asked_for(store: Tapped) -> None:
    old = put(store, 0, 2 * DAY_MS)
    enqueue(store.store, old)
    dequeue_through(store, 0)
    subject = collector(store, gc_foreign=False)
    for _ in range(3):
        assert subject.collect_once().deleted == ()
        touch_manifest(store.store)
    report = [collector(store).collect_once(dry_run=True) for _ in range(2)]
    assert [each.deleted for each in report] == [(), ()]  # a dry look counts as none
    assert there(store, old) == [True]


def test_should_leave_alone_what_only_looks_like_one(store: Tapped) -> None:
    enqueue(store.store, put(store, 0, 2 * DAY_MS))
    names = [f"ingest/{RUN}/000000000000000A", f"ingest/{RUN}/x/0000000000000001", f"ingest/x/{RUN}/0000000000000001"]
    names += [f"ingest/{RUN.lower()}/0000000000000001", f"ingest/{RUN}/1", f"other/{RUN}/0000000000000001"]
    for name in names:
        store.store.put(name, b"mine")
        os.utime(Path(store.url.removeprefix("file://")) / name, (0, 0))
    subject = collector(store)
    for _ in range(3):
        assert subject.collect_once().deleted == ()
    assert [store.store.get(name).data for name in names] == [b"mine"] * len(names)


def test_should_keep_one_whose_append_landed_between_the_looks(store: Tapped) -> None:
    late = put(store, 0, 2 * DAY_MS)
    touch_manifest_first(store)
    subject = collector(store)
    assert subject.collect_once().waiting == (late,)
    enqueue(store.store, f"/{late}")  # however its folder is spelled
    assert subject.collect_once().deleted == ()
    assert there(store, late) == [True]


def test_should_keep_one_whose_append_lands_right_before_the_delete(store: Tapped) -> None:
    late = put(store, 0, 2 * DAY_MS)
    touch_manifest_first(store)
    subject = collector(store)
    subject.collect_once()

    def land(call: str, location: str) -> None:
        if call == "get_if_changed" and location == MANIFEST:
            store.tap = None
            enqueue(store.store, late)

    store.tap = land
    assert subject.collect_once().deleted == ()
    assert store.tap is None
    assert there(store, late) == [True]


def test_should_begin_anew_when_the_manifest_went_back(store: Tapped) -> None:
    old = put(store, 0, 2 * DAY_MS)
    enqueue(store.store, old, put(store, 1, 0))
    backup = store.store.get(MANIFEST).data
    enqueue(store.store, put(store, 2, 0))
    dequeue_through(store, 1)
    subject = collector(store)
    subject.collect_once()
    store.store.put(MANIFEST, backup)
    assert subject.collect_once().deleted == ()
    assert there(store, old) == [True]


class Asked(Tapped):
    """Counts what it is asked about, and may not know when objects were written."""

    silent = False

    def head(self, location: str) -> ObjectInfo:
        info: Any = super().head(location)
        return ObjectInfo(info.location, info.size, info.version) if self.silent else info


def test_should_ask_no_further_than_the_first_that_is_too_young(tmp_path: Path) -> None:
    store = Asked(open_store(str(tmp_path)))
    old = [put(store, ordinal, 3 * DAY_MS) for ordinal in range(3)]
    for ordinal in range(3, 40):
        put(store, ordinal, HOUR_MS)
    put(store, 0, 3 * DAY_MS, run=ulid_at(NOW_MS - HOUR_MS))  # a run that began an hour ago has nothing older
    touch_manifest_first(store)
    subject = collector(store)
    store.calls.clear()
    subject.collect_once()
    assert [call for call, _ in store.calls].count("head") == 4
    store.calls.clear()
    assert subject.collect_once().deleted == tuple(old)
    assert [call for call, _ in store.calls].count("head") == 1  # what was found is not asked for again


def test_should_stay_where_the_store_does_not_tell_when_they_were_written(tmp_path: Path) -> None:
    store = Asked(open_store(str(tmp_path)))
    old = put(store, 0, 3 * DAY_MS)
    touch_manifest_first(store)
    store.silent = True
    subject = collector(store)
    subject.collect_once()
    assert subject.collect_once().deleted == ()
    assert there(store, old) == [True]


def test_should_report_what_was_deleted_when_nobody_tells_the_age_of_foreign_ones(store: Tapped) -> None:
    foreign, orphan = put(store, 0, 3 * DAY_MS), put_batch(store.store, 2 * DAY_MS)
    touch_manifest_first(store)

    def fail(call: str, _location: str) -> None:
        if call == "head":
            raise StorageError("no answer", retryable=True)

    store.tap = fail
    assert collect_twice(store, gc_foreign=True).deleted == (orphan,)
    assert there(store, foreign, orphan) == [True, False]


def touch_manifest_first(store: Tapped) -> None:
    """A queue with nothing in it, so that there is a manifest."""
    enqueue(store.store, put_batch(store.store, 0))
    QueueConsumer(store.store, MANIFEST, SystemClock()).claim()
    dequeue_through(store, 0)
