"""Collecting in short processes: the first look before the claim, the second at the end, nothing remembered between."""

from __future__ import annotations

import pytest

from buffer.clock import SystemClock
from buffer.config import GcConfig
from buffer.gc.short_run import ShortRun
from buffer.queue import QueueConsumer
from buffer.store.base import Store
from buffer.testing.clock import ManualClock
from buffer.testing.faulty import Fault, FaultyStore
from tests.consume.consumer_support import MANIFEST
from tests.gc.gc_support import (
    DAY_MS,
    HOUR_MS,
    NOW_MS,
    SECOND_MS,
    empty_manifest,
    enqueue,
    locations,
    put_batch,
    touch_manifest,
)


def short_run(store: Store) -> ShortRun:
    return ShortRun(GcConfig(store=store), store=store, clock=ManualClock(NOW_MS))


def claim(store: Store) -> int:
    return QueueConsumer(store, MANIFEST, SystemClock()).claim().epoch


def test_should_delete_what_both_looks_of_one_run_have_found(store: Store) -> None:
    empty_manifest(store)
    old, young = put_batch(store, HOUR_MS), put_batch(store, 60 * SECOND_MS)
    run = short_run(store)
    run.begin()
    assert locations(store) == {old, young}, "a first look deletes nothing"
    appeared = put_batch(store, HOUR_MS, tail=7)
    assert run.end(claim(store)) == 1
    assert locations(store) == {young, appeared}, "only one look has seen the last one"


def test_should_keep_a_batch_whose_append_lands_between_the_looks(store: Store) -> None:
    empty_manifest(store)
    slow = put_batch(store, HOUR_MS)
    run = short_run(store)
    run.begin()
    enqueue(store, slow)
    assert run.end(claim(store)) == 0
    assert locations(store) == {slow}


def test_should_wait_a_day_on_a_queue_that_does_not_change(store: Store) -> None:
    """An idle run claims nothing, so an append from before its looks may still land."""
    empty_manifest(store)
    recent, ancient = put_batch(store, HOUR_MS), put_batch(store, 2 * DAY_MS)
    for _ in range(3):
        run = short_run(store)
        run.begin()
        run.end()
    assert locations(store) == {recent}, f"{ancient} is more than a day old"


def test_should_not_count_the_look_of_another_process(store: Store) -> None:
    empty_manifest(store)
    old = put_batch(store, HOUR_MS)
    short_run(store).begin()  # and it dies
    touch_manifest(store)
    run = short_run(store)
    assert run.end(claim(store)) == 0, "no first look of its own"
    assert locations(store) == {old}


def test_should_leave_the_work_to_a_consumer_that_took_over(store: Store) -> None:
    empty_manifest(store)
    old = put_batch(store, HOUR_MS)
    run = short_run(store)
    run.begin()
    epoch = claim(store)
    claim(store)
    assert run.end(epoch) == 0
    assert locations(store) == {old}


def test_should_say_nothing_of_a_queue_that_does_not_exist_yet(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    orphan = put_batch(store, 2 * DAY_MS)
    run = short_run(store)
    run.begin()
    assert run.end(claim(store)) == 0
    assert locations(store) == {orphan}
    assert not caplog.records


@pytest.mark.parametrize("operation", ["get", "list"])
@pytest.mark.parametrize("skip", [0, 1])
def test_should_warn_and_delete_nothing_when_a_look_fails(
    memory: Store, skip: int, operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    empty_manifest(memory)
    old = put_batch(memory, HOUR_MS)
    run = short_run(FaultyStore(memory, [Fault.before(operation, skip=skip)]))
    run.begin()
    assert run.end(claim(memory)) == 0
    assert locations(memory) == {old}
    assert "leaving that to the next run" in caplog.text
