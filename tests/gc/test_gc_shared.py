"""Two queues in one folder: the collector of one must not take the batches of the other for garbage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from buffer.clock import SystemClock
from buffer.codec.batch import encode_batch
from buffer.config import GcConfig
from buffer.errors import ObjectNotFound, StorageError
from buffer.gc import neighbours
from buffer.gc.collector import Collector, Refusal
from buffer.ledger.plan import Ledger
from buffer.manifest import Manifest
from buffer.names import ledger_path
from buffer.queue import QueueConsumer, QueueProducer
from buffer.store.base import Store
from buffer.store.open import open_store
from buffer.testing.clock import ManualClock
from tests.cli.cli_support import InProcess, Program
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

EMPTY = Manifest.empty().to_bytes()
WITH_ENTRY = Manifest.empty().append(f"ingest/{'0' * 26}.batch").to_bytes()


# Another queue


@pytest.mark.parametrize(
    ("waiting", "collected"),
    [("ingest/orders", "ingest/clicks"), ("ingest/manifest2", "ingest/manifest"), ("ingest/manifest", "ingest/a")],
)
def test_should_keep_the_batches_of_another_queue_in_the_same_folder(
    store: Store, caplog: pytest.LogCaptureFixture, waiting: str, collected: str
) -> None:
    """One queue has a batch that waits; the consumer of the other acks all it has."""
    wanted, done = put_batch(store, 3 * DAY_MS), put_batch(store, 2 * DAY_MS)
    QueueProducer(store, waiting, SystemClock()).append_locations([(wanted, ())])
    QueueProducer(store, collected, SystemClock()).append_locations([(done, ())])
    consumer = QueueConsumer(store, collected, SystemClock())
    consumer.claim(0)
    subject = Collector(GcConfig(store=store, manifest_path=collected), clock=ManualClock(NOW_MS))
    for _ in range(3):
        report = subject.collect_once()
        assert (report.refusal, report.deleted, report.waiting) == (Refusal.SHARED, (), ())
        assert report.shared is not None
        assert report.shared in caplog.text
        assert f"{waiting!r} is a manifest too" in report.shared
        assert "data_path_prefix" in report.shared
        consumer.claim()
    assert {wanted, done} <= locations(store)


@pytest.mark.parametrize("data", [EMPTY, WITH_ENTRY, Manifest.empty().claim().to_bytes()])
def test_should_refuse_beside_any_manifest_even_an_empty_one(store: Store, data: bytes) -> None:
    """An append to it may be under way."""
    orphan = put_batch(store, 2 * DAY_MS)
    empty_manifest(store)
    store.put("ingest/other", data)
    assert collect_twice(store).refusal is Refusal.SHARED
    assert orphan in locations(store)


def test_should_refuse_when_a_prefix_of_ones_own_is_the_folder_of_another_queue(store: Store) -> None:
    put_batch(store, 2 * DAY_MS, prefix="orders")
    empty_manifest(store)
    store.put("orders/manifest", EMPTY)
    report = collect_twice(store, data_path_prefix="orders")
    assert report.refusal is Refusal.SHARED
    assert "'orders/manifest' is a manifest too" in str(report.shared)


def test_should_refuse_in_a_dry_run_too(store: Store) -> None:
    put_batch(store, 2 * DAY_MS)
    empty_manifest(store)
    store.put("ingest/other", EMPTY)
    report = collector(store).collect_once(dry_run=True)
    assert (report.refusal, report.waiting, report.listed) == (Refusal.SHARED, (), 1)


def test_should_notice_a_queue_that_comes_between_two_looks_and_start_over_when_it_left(store: Store) -> None:
    orphan = put_batch(store, HOUR_MS)
    empty_manifest(store)
    subject = collector(store)
    assert subject.collect_once().waiting == (orphan,)
    store.put("ingest/other", EMPTY)
    touch_manifest(store)
    assert subject.collect_once().refusal is Refusal.SHARED
    store.delete_many(["ingest/other"])
    touch_manifest(store)
    assert subject.collect_once().waiting == (orphan,), "the look before the refusal does not count"
    touch_manifest(store)
    assert subject.collect_once().deleted == (orphan,)


def test_should_still_notice_that_the_manifest_went_back_meanwhile(store: Store) -> None:
    enqueue(store, put_batch(store, HOUR_MS))
    backup = store.get(MANIFEST).data
    enqueue(store, put_batch(store, HOUR_MS, 1))
    store.put("ingest/other", EMPTY)
    subject = collector(store)
    assert subject.collect_once().refusal is Refusal.SHARED
    store.put(MANIFEST, backup)
    store.delete_many(["ingest/other"])
    assert subject.collect_once().refusal is Refusal.WENT_BACK


def test_should_leave_the_work_to_another_consumer_rather_than_complain(memory: Store) -> None:
    epoch = QueueConsumer(memory, MANIFEST, SystemClock()).claim().epoch
    touch_manifest(memory)
    memory.put("ingest/other", EMPTY)
    subject = Collector(GcConfig(store=memory), clock=ManualClock(NOW_MS), epoch=epoch)
    assert subject.collect_once().refusal is Refusal.FENCED


# What is no other queue


@pytest.mark.parametrize(
    ("location", "data"),
    [
        ("ingest/empty", b""),
        ("ingest/zeros", bytes(22)),
        ("ingest/ones", b"\x01\x00" * 11),
        ("ingest/notes.txt", b"what a queue is good for\n"),
        ("ingest/imported.batch", encode_batch([b"a record", b"and another one"])),
        ("ingest/cut-off", WITH_ENTRY[:-1]),
        ("ingest/short", EMPTY[1:]),
        ("ingest/with more", b"x" + EMPTY),
        (ledger_path(MANIFEST), Ledger(queue_id="Q").to_bytes()),
        ("ingest/below/manifest", EMPTY),
        ("ingest2/manifest", EMPTY),
        ("manifest", EMPTY),
    ],
)
def test_should_collect_beside_anything_else(store: Store, location: str, data: bytes) -> None:
    orphan = put_batch(store, HOUR_MS)
    empty_manifest(store)
    store.put(location, data)
    assert collect_twice(store).deleted == (orphan,)
    assert store.get(location).data == data


def test_should_read_a_stranger_once_and_again_when_it_changed(store: Store) -> None:
    empty_manifest(store)
    store.put("ingest/notes", b"x" * 100)
    tapped = Tapped(store)
    subject = collector(tapped)
    for _ in range(3):
        assert subject.collect_once().refusal is None
    assert tapped.calls.count(("get", "ingest/notes")) == 1
    store.put("ingest/notes", EMPTY)
    assert subject.collect_once().refusal is Refusal.SHARED
    store.put("ingest/notes", b"y" * 100)
    assert subject.collect_once().refusal is None


def test_should_ask_for_nothing_where_the_listing_tells_that_a_stranger_is_the_same(memory: Store) -> None:
    empty_manifest(memory)
    memory.put("ingest/notes", b"x" * 100)
    tapped = Tapped(memory)
    subject = collector(tapped)
    subject.collect_once()
    subject.collect_once()
    assert [call for call in tapped.calls if call[1] == "ingest/notes"] == [("get", "ingest/notes")]


def test_should_not_mind_a_stranger_that_is_gone_when_it_is_read(store: Store) -> None:
    orphan = put_batch(store, HOUR_MS)
    empty_manifest(store)
    store.put("ingest/notes", EMPTY)

    def gone(operation: str, location: str) -> None:
        if (operation, location) == ("get", "ingest/notes"):
            raise ObjectNotFound("gone", location=location)

    assert collector(Tapped(store, gone)).collect_once().waiting == (orphan,)


def test_should_delete_nothing_when_a_stranger_cannot_be_read(store: Store) -> None:
    orphan = put_batch(store, 2 * DAY_MS)
    empty_manifest(store)
    tapped = Tapped(store)
    subject = collector(tapped)
    subject.collect_once()
    store.put("ingest/other", EMPTY)

    def fail(operation: str, location: str) -> None:
        if location == "ingest/other":
            raise StorageError("503", retryable=True)

    tapped.tap = fail
    with pytest.raises(StorageError):
        subject.collect_once()
    assert orphan in locations(store)


# Bounds: what cannot be looked at may be a manifest


def test_should_refuse_when_there_are_too_many_strangers(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "STRANGERS_MAX", 3)
    empty_manifest(memory)
    for index in range(3):
        memory.put(f"ingest/{index}.txt", b"x" * 100)
        memory.put(f"ingest/{index}.done", b"")
    subject = collector(memory)
    assert subject.collect_once().refusal is None
    memory.put("ingest/3.txt", b"x" * 100)
    report = subject.collect_once()
    assert report.refusal is Refusal.SHARED
    assert "more than 3 objects" in str(report.shared)


def test_should_refuse_beside_an_object_that_is_too_large_to_read(
    memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "STRANGER_BYTES_MAX", 100)
    empty_manifest(memory)
    memory.put("ingest/notes", b"x" * 100)
    tapped = Tapped(memory)
    subject = collector(tapped)
    assert subject.collect_once().refusal is None
    memory.put("ingest/notes", b"x" * 101)
    report = subject.collect_once()
    assert report.refusal is Refusal.SHARED
    assert "'ingest/notes' has 101 bytes" in str(report.shared)
    assert tapped.calls.count(("get", "ingest/notes")) == 1


# The command


@pytest.fixture
def buffer(capfd: pytest.CaptureFixture[str]) -> InProcess:
    return InProcess(capfd)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    store = open_store(str(tmp_path))
    put_batch(store, 2 * DAY_MS)
    empty_manifest(store)
    store.put("ingest/other", EMPTY)
    return tmp_path


@pytest.mark.parametrize("mode", [["--dry-run"], ["--dry-run", "--json"], ["--wait-s", "0"]])
def test_should_end_gc_with_bad_usage_and_name_the_other_manifest(
    buffer: InProcess, shared: Path, mode: list[str]
) -> None:
    ran = buffer("gc", "--store", shared, *mode)
    assert (ran.code, ran.out) == (2, "")
    assert "error: nothing was deleted: 'ingest/other' is a manifest too" in ran.err
    assert "data_path_prefix" in ran.err
    assert len(list(shared.glob("ingest/*.batch"))) == 1


def test_should_tell_of_it_with_every_look_of_gc(shared: Path) -> None:
    with Program("gc", "--store", shared, "--every", 0.05, "--json") as gc:
        looks = [json.loads(gc.stdout.readline()) for _ in range(2)]
    assert [(look["refusal"], look["deleted"], look["listed"]) for look in looks] == [("shared", [], 1)] * 2
    assert "'ingest/other' is a manifest too" in looks[0]["shared"]


@pytest.mark.parametrize("command", ["gc", "produce", "status"])
def test_should_tell_the_true_default_of_the_prefix(buffer: InProcess, command: str) -> None:
    said = " ".join(buffer(command, "--help").out.split())
    assert "[default: the manifest's folder]" in said
    assert "[default: ingest]" not in said


@pytest.mark.parametrize("command", ["gc", "produce", "status"])
def test_should_refuse_a_manifest_without_a_folder(buffer: InProcess, tmp_path: Path, command: str) -> None:
    ran = buffer(command, "--store", tmp_path, "--manifest", "orders")
    assert ran.code == 2
    assert "manifest_path='orders' is not allowed" in ran.err
    assert list(tmp_path.iterdir()) == []
