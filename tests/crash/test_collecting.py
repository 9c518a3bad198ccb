"""The judge of the collectors must find what they should have left, and what they should not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from buffer.config import ProducerConfig
from buffer.produce.producer import Producer
from tests.consume.consumer_support import ulid_at
from tests.crash.collecting import (
    GRACE_MS,
    NOTHING_LEFT,
    OLD_ORPHANS,
    QUIET_ORPHANS,
    YOUNG_ORPHANS,
    BatchObjects,
    LateClock,
    judge_objects,
)

NOW_MS = 1_700_000_000_000
YOUNG = f"ingest/{ulid_at(NOW_MS - GRACE_MS)}.batch"
OLD = f"ingest/{ulid_at(NOW_MS - GRACE_MS - 1)}.batch"


@pytest.fixture
def objects(tmp_path: Path) -> BatchObjects:
    """One old batch in the queue, and orphans."""
    with Producer(ProducerConfig(store=str(tmp_path)), clock=LateClock()) as producer:
        producer.produce([b"one"])
    objects = BatchObjects(tmp_path, random.Random(7))
    objects.note_batches()
    objects.seed_orphans()
    return objects


def test_should_tell_what_may_be_gone_from_what_must() -> None:
    made = [YOUNG, OLD]
    assert judge_objects([YOUNG], [], made, now_ms=NOW_MS, due=[OLD]) == []
    assert judge_objects(made, [OLD], made, now_ms=NOW_MS, due=[YOUNG]) == []
    (lost,) = judge_objects([YOUNG], [OLD], made, now_ms=NOW_MS)
    assert lost == f"1 objects are needed, but deleted: ['{OLD}']"
    (early,) = judge_objects([OLD], [], made, now_ms=NOW_MS)
    assert "younger than the grace period, but deleted" in early
    (left,) = judge_objects(made, [], made, now_ms=NOW_MS, due=[OLD])
    assert "of no use and old, but still there" in left


def test_should_find_nothing_wrong_with_the_collector(objects: BatchObjects, tmp_path: Path) -> None:
    assert not objects.is_being_collected()
    due = objects.due() - set(objects.batches.values())
    assert len(due) == OLD_ORPHANS + QUIET_ORPHANS
    objects.collect_rest()
    assert objects.is_being_collected()
    assert objects.check(-1, due) == []
    assert objects.check_quiet() == []
    objects.note_collected()
    assert (objects.collected, objects.interrupted) == (QUIET_ORPHANS, 0)
    assert len(list((tmp_path / "ingest").glob("*.batch"))) == YOUNG_ORPHANS + 1


def test_should_notice_a_collector_that_deletes_too_much_or_too_little(objects: BatchObjects, tmp_path: Path) -> None:
    assert "60 orphans of two days" in objects.check_quiet()[0]
    assert "still there" in objects.check(-1, objects.orphans)[0]
    (batch,) = objects.batches.values()
    (tmp_path / batch).unlink()
    assert "needed, but deleted" in objects.check(NOTHING_LEFT)[0], "the manifest names it"
    victim = next(iter(objects.orphans - objects.due()))
    (tmp_path / victim).unlink()
    assert "younger than the grace period" in objects.check(NOTHING_LEFT)[1]


def test_should_count_collectors_that_did_not_come_to_an_end(objects: BatchObjects, tmp_path: Path) -> None:
    oldest = min(objects.orphans)
    (tmp_path / oldest).unlink()
    assert objects.is_being_collected()
    objects.note_collected()
    assert (objects.collected, objects.interrupted) == (1, 1)
