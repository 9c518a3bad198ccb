"""The collector: manifests it does not trust, deletes that fail, dry runs, its thread."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from buffer.clients import ClientLedger
from buffer.clock import SystemClock
from buffer.config import ConsumerConfig, GcConfig, LeaseConfig
from buffer.errors import Closed, CorruptManifest, StorageError
from buffer.gc import collector as gc_module
from buffer.gc.collector import Collector, Refusal
from buffer.leases import LeaseQueue
from buffer.ledger.plan import Ledger
from buffer.manifest import Manifest
from buffer.names import ledger_path
from buffer.queue import QueueConsumer
from buffer.store import open_store
from buffer.store.base import DeleteFailure, Store
from buffer.testing.clock import ManualClock
from tests.consume.consumer_support import MANIFEST, Tapped
from tests.gc.gc_support import (
    DAY_MS,
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
from tests.metrics_reader import value
from tests.nets import wait_until

# Manifests that cannot be trusted


def test_should_delete_nothing_and_warn_when_the_manifest_is_missing(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """The reference takes a missing manifest for an empty one, and deletes every batch."""
    orphan = put_batch(store, 30 * DAY_MS)
    subject = collector(store)
    for _ in range(3):
        report = subject.collect_once()
        assert (report.refusal, report.deleted, report.waiting) == (Refusal.MISSING, (), ())
    assert locations(store) == {orphan}
    assert "there is no manifest 'ingest/manifest'" in caplog.text


def test_should_start_over_with_two_looks_after_the_manifest_was_missing(store: Store) -> None:
    orphan = put_batch(store, HOUR_MS)
    empty_manifest(store)
    subject = collector(store)
    subject.collect_once()
    backup = store.get(MANIFEST).data
    store.delete_many([MANIFEST])
    subject.collect_once()
    store.put(MANIFEST, backup)
    touch_manifest(store)
    assert subject.collect_once().waiting == (orphan,)


def test_should_delete_nothing_and_warn_when_next_sequence_went_back(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    subject = collector(store)
    first, forgotten = put_batch(store, 3 * HOUR_MS), put_batch(store, 2 * HOUR_MS)
    enqueue(store, first)
    backup = store.get(MANIFEST).data
    enqueue(store, forgotten)
    subject.collect_once()
    store.put(MANIFEST, backup)
    consumer = QueueConsumer(store, MANIFEST, SystemClock())
    consumer.claim(0)
    for _ in range(2):
        assert subject.collect_once().refusal is Refusal.WENT_BACK
        touch_manifest(store)
    assert "went back from next sequence 2 to 1" in caplog.text
    enqueue(store, put_batch(store, 0), put_batch(store, 0, 1))
    for _ in range(2):
        assert subject.collect_once().refusal is Refusal.WENT_BACK, "catching up does not bring the batch back"
        touch_manifest(store)
    assert {first, forgotten} <= locations(store)


@pytest.mark.parametrize("section", ["clients", "leases"])
def test_should_believe_clients_and_workers_that_a_manifest_went_back(store: Store, section: str) -> None:
    """A collector that has just started remembers nothing; whoever used the queue has left its word in the ledger."""
    forgotten = put_batch(store, DAY_MS)
    enqueue(store, forgotten)
    backup = Manifest.empty().claim().to_bytes()
    if section == "clients":
        ledger = ClientLedger(store, MANIFEST, SystemClock())
        ledger.open(lambda: Manifest.from_bytes(store.get(MANIFEST).data))
    else:
        config = ConsumerConfig(store=store, gc_enabled=False)
        with LeaseQueue.open(config, LeaseConfig(visibility_timeout_ms=60_000)) as queue:
            queue.purge()
    store.put(MANIFEST, backup)
    assert collect_twice(store).refusal is Refusal.WENT_BACK
    assert forgotten in locations(store)


def test_should_notice_that_a_drained_manifest_went_back(store: Store) -> None:
    enqueue(store, put_batch(store, HOUR_MS))
    backup = store.get(MANIFEST).data
    forgotten = put_batch(store, 2 * HOUR_MS)
    enqueue(store, forgotten)
    QueueConsumer(store, MANIFEST, SystemClock()).claim(1)
    subject = collector(store)
    subject.collect_once()
    store.put(MANIFEST, backup)
    assert subject.collect_once().refusal is Refusal.WENT_BACK
    assert forgotten in locations(store)


def test_should_delete_nothing_when_the_manifest_is_behind_the_ledger(store: Store) -> None:
    """A collector that is started after the backup was restored has not seen the newer manifest itself."""
    orphan = put_batch(store, HOUR_MS)
    empty_manifest(store)
    store.put(ledger_path(MANIFEST), Ledger(queue_id="Q", born=True, epoch=1, next_sequence=1).to_bytes())
    subject = collector(store)
    for _ in range(2):
        assert subject.collect_once().refusal is Refusal.WENT_BACK
        touch_manifest(store)
    assert orphan in locations(store)


@pytest.mark.parametrize("where", ["footer", "entry"])
def test_should_delete_nothing_when_the_manifest_is_corrupt(store: Store, where: str) -> None:
    orphan = put_batch(store, HOUR_MS)
    enqueue(store, *(put_batch(store, tail, tail) for tail in range(3)))
    subject = collector(store)
    subject.collect_once()
    data = store.get(MANIFEST).data
    second = (len(data) - 22) // 3
    damaged = data[:-1] if where == "footer" else data[: second + 4] + bytes(8) + data[second + 12 :]
    store.put(MANIFEST, damaged)
    with pytest.raises(CorruptManifest):
        subject.collect_once()
    assert orphan in locations(store)


def test_should_delete_nothing_while_an_entry_does_not_tell_its_age(store: Store) -> None:
    put_batch(store, HOUR_MS)
    enqueue(store, "elsewhere/imported.batch")
    assert collect_twice(store).deleted == ()


def test_should_keep_a_batch_that_the_manifest_spells_differently(store: Store) -> None:
    referenced = put_batch(store, HOUR_MS)
    newer = put_batch(store, 0)
    enqueue(store, f"/{referenced}", newer)
    assert collect_twice(store).deleted == ()


# Failing, dry runs, bounds


class FailsDeletes(Tapped):
    """A store that deletes nothing it is told to keep, or fails altogether."""

    keep: frozenset[str] = frozenset()
    broken = False

    def delete_many(self, locations: Sequence[str]) -> Any:
        if self.broken:
            raise StorageError("503", retryable=True)
        failed = [DeleteFailure(x, StorageError("denied", location=x)) for x in locations if x in self.keep]
        return failed + super().delete_many([x for x in locations if x not in self.keep])


def test_should_count_a_failed_delete_and_retry_it_next_cycle(store: Store) -> None:
    names = ["buffer.gc_files_deleted", "buffer.gc_files_failed", "buffer.gc_duration_seconds"]
    before = [value(name) for name in names]
    stuck, other = put_batch(store, HOUR_MS), put_batch(store, HOUR_MS, 1)
    empty_manifest(store)
    failing = FailsDeletes(store)
    subject = collector(failing)
    subject.collect_once()
    touch_manifest(store)
    failing.keep = frozenset({stuck})
    report = subject.collect_once()
    assert report.deleted == (other,)
    assert [failure.location for failure in report.failed] == [stuck]
    failing.broken = True
    assert [failure.location for failure in subject.collect_once().failed] == [stuck]
    failing.keep, failing.broken = frozenset(), False
    assert subject.collect_once().deleted == (stuck,), "though the manifest has not changed since"
    assert [value(name) - was for name, was in zip(names, before, strict=True)] == [2, 2, 4]


def test_should_not_retry_a_failed_delete_of_a_batch_that_is_referenced_now(store: Store) -> None:
    stuck = put_batch(store, HOUR_MS)
    empty_manifest(store)
    failing = FailsDeletes(store)
    subject = collector(failing)
    subject.collect_once()
    touch_manifest(store)
    failing.broken = True
    assert len(subject.collect_once().failed) == 1
    failing.broken = False
    enqueue(store, stuck)  # by hand: an operator repairs a queue
    assert subject.collect_once().deleted == ()


def test_should_delete_nothing_in_a_dry_run_and_list_what_would_go(store: Store) -> None:
    first = put_batch(store, 2 * HOUR_MS)
    empty_manifest(store)
    subject = collector(store)
    report = subject.collect_once(dry_run=True)
    assert (report.dry_run, report.deleted, report.waiting) == (True, (), (first,))
    touch_manifest(store)
    assert subject.collect_once(dry_run=True).waiting == (first,), "a dry look does not count as a look"
    subject.collect_once()
    touch_manifest(store)
    second = put_batch(store, HOUR_MS)
    for _ in range(2):
        report = subject.collect_once(dry_run=True)
        assert (report.deleted, report.waiting) == ((first,), (second,))
    assert locations(store) == {first, second}
    assert subject.collect_once().deleted == (first,)


def test_should_bound_a_cycle_and_take_the_oldest_first(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc_module, "CANDIDATES_MAX", 2)
    orphans = [put_batch(memory, HOUR_MS + age) for age in (1, 3, 2)]
    referenced = [put_batch(memory, HOUR_MS - age, age) for age in range(4)]
    enqueue(memory, *referenced)
    subject = collector(memory)
    assert subject.collect_once(dry_run=True).kept == {gc_module.Kept.LATER: 5}
    gone = []
    for _ in range(4):
        gone += subject.collect_once().deleted
        touch_manifest(memory)
    assert gone == [orphans[1], orphans[2], orphans[0]]
    assert locations(memory) == set(referenced)


# The thread


@pytest.mark.parametrize(
    ("error", "said"),
    [(StorageError("503", retryable=True), "could not look"), (ValueError("of somebody's own store"), "unforeseen")],
)
def test_should_collect_on_its_thread_and_survive_a_failing_store(
    memory: Store, caplog: pytest.LogCaptureFixture, error: Exception, said: str
) -> None:
    orphan = put_batch(memory, 2 * DAY_MS)
    empty_manifest(memory)
    failures = iter([True, True])

    def fail_twice(operation: str, location: str) -> None:
        if operation == "list" and next(failures, False):
            raise error

    with caplog.at_level(logging.WARNING), collector(Tapped(memory, fail_twice), gc_interval_s=0.005) as subject:
        subject.start()
        wait_until(lambda: orphan not in locations(memory))
    assert said in caplog.text
    assert not subject.running


def test_should_end_its_thread_when_its_epoch_is_fenced(memory: Store) -> None:
    put_batch(memory, 2 * DAY_MS)
    consumer = QueueConsumer(memory, MANIFEST, SystemClock())
    epoch = consumer.claim().epoch
    touch_manifest(memory)
    config = GcConfig(store=memory, gc_interval_s=0.005)
    subject = Collector(config, clock=ManualClock(NOW_MS), epoch=epoch)
    assert subject.collect_once().refusal is Refusal.FENCED
    subject.start()
    wait_until(lambda: not subject.running)
    assert len(locations(memory)) == 1


def test_should_stop_between_deletes_when_closed(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc_module, "DELETE_CHUNK", 1)
    for tail in range(4):
        put_batch(memory, HOUR_MS, tail)
    empty_manifest(memory)
    tapped = Tapped(memory)
    subject = collector(tapped)
    subject.collect_once()
    touch_manifest(memory)
    tapped.tap = lambda operation, _: subject.stop() if operation == "delete_many" else None
    report = subject.collect_once()
    assert (len(report.deleted), report.failed) == (1, ())
    assert len(locations(memory)) == 3


def test_should_refuse_to_work_after_close(memory: Store) -> None:
    subject = collector(memory)
    subject.close()
    for call in (subject.collect_once, subject.start):
        with pytest.raises(Closed):
            call()


def test_should_open_the_store_of_its_settings(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    orphan = put_batch(store, 2 * DAY_MS)
    empty_manifest(store)
    subject = Collector(GcConfig(store=str(tmp_path / "store")), clock=ManualClock(NOW_MS))
    subject.collect_once()
    assert subject.collect_once().deleted == (orphan,)
