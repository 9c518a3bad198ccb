"""Each golden state is taken over and drained, and what we write on the way has the shape that was written then."""

from __future__ import annotations

import json
from typing import Any

import pytest

from buffer.errors import CorruptManifest
from buffer.legacy.format import decode_batch, encode_batch, object_location
from buffer.legacy.manifests import PARKED_MS
from buffer.produce.durability import Durable
from buffer.store import open_store
from tests.legacy.golden import FILES, GOLDEN, STATES, T0_MS, manifest_path_of, name_of, pairs_of, read, store_of
from tests.legacy.legacy_support import CONSUMER_PATH, PATH, TIMEOUT_MS, LegacyQueue, drain, next_of, pair

CONSUMERS = [file for file in FILES if name_of(file).startswith("damaged/consumer-manifest/")]
PREFIXES = [file for file in FILES if name_of(file).startswith("prefix/")]
PRODUCERS = [file for file in FILES if name_of(file).startswith("damaged/producer-manifest/")]

DELIVERED_THEN_BUT_NOT_BY_US = {
    "damaged/consumer-manifest/claim-not-pending-old.json": (
        "q/a.json",
        "a claim of what is not pending any more was done before: delivering it would be the second time",
    ),
}


def queue_of(state: str) -> LegacyQueue:
    store = open_store("memory://")
    for location, data in store_of(state).items():
        store.put(location, data)
    return LegacyQueue(store, manifest_path_of(state))


@pytest.mark.parametrize("state", STATES)
def test_should_take_over_and_drain_each_state(state: str) -> None:
    queue = queue_of(state)
    before = store_of(state)
    done = set() if state in ("state1",) or state.startswith("path") else set(_done_of(state))
    owed = {location for location in queue.pending if location not in done}
    queue.clock.advance(TIMEOUT_MS / 1000 + 2)  # all claims of that time are stale

    collected = drain(queue.claims(done_cleanup_threshold=1))

    assert {batch.location for batch in collected} == owed
    assert len(collected) == len(owed)
    for batch in collected:
        assert batch.entries == decode_batch(before[batch.location])
    assert queue.claims().next_batch() is None
    assert set(queue.pending) <= set(queue.consumer.done), "only the last one stays, and it is done"


def _done_of(state: str) -> list[str]:
    for file in FILES:
        if name_of(file).startswith(f"{state}/") and file["expect"]["object"] == "consumer manifest":
            done: list[str] = file["expect"]["json"]["done"]
            return done
    return []


def test_should_wait_for_claims_of_that_time_until_they_are_stale() -> None:
    """State 2 has claims at T0 and T0 + 1500 ms and one batch that nobody has."""
    queue = queue_of("state2")
    first, second, free = queue.pending
    collector = queue.claims()
    queue.clock.advance(1.5)
    batch = next_of(collector)
    assert batch.location == free
    assert collector.next_batch() is None
    queue.clock.advance(TIMEOUT_MS / 1000 - 1.5)
    assert collector.next_batch() is None, "T0 is not older than the timeout, it is as old"
    queue.clock.advance(0.001)
    batch = next_of(collector)
    assert batch.location == first
    assert collector.next_batch() is None
    queue.clock.advance(1.5)
    batch = next_of(collector)
    assert batch.location == second


@pytest.mark.parametrize("file", CONSUMERS, ids=name_of)
def test_should_meet_a_consumer_manifest_as_it_was_met(file: dict[str, Any]) -> None:
    queue = LegacyQueue()
    expect = file["expect"]
    assert expect["now"] == T0_MS
    for name in "abx":
        queue.plant_batch(f"q/{name}.json", name)
    queue.plant(["q/a.json", "q/b.json"])
    queue.store.put(CONSUMER_PATH, read(file))
    collector = queue.claims()

    if file["want"] == "reject":
        with pytest.raises(CorruptManifest, match=r"the consumer manifest at 'q/manifest.consumer.json' is damaged"):
            collector.next_batch()
        assert queue.store.get(CONSUMER_PATH).data == read(file), "nothing is written over what nobody understands"
        return
    batch = collector.next_batch()
    assert batch is not None
    if name_of(file) in DELIVERED_THEN_BUT_NOT_BY_US:
        assert batch.location == DELIVERED_THEN_BUT_NOT_BY_US[name_of(file)][0]
        return
    delivered = expect["next_batch"]["ok"]
    assert batch.location == delivered["location"]
    assert batch.entries == pairs_of(delivered["entries"])
    assert json.loads(queue.store.get(CONSUMER_PATH).data) == json.loads(expect["consumer_manifest_after"])
    collector.ack(batch)
    assert json.loads(queue.store.get(CONSUMER_PATH).data) == json.loads(expect["consumer_manifest_after_ack"])


@pytest.mark.parametrize("file", PRODUCERS, ids=name_of)
def test_should_meet_a_producer_manifest_as_it_was_met(file: dict[str, Any]) -> None:
    queue = LegacyQueue()
    for name in "ab":
        queue.plant_batch(f"q/{name}.json", name)
    queue.store.put(PATH, read(file))
    flushed = queue.flusher().flush([encode_batch([pair("new")])])

    if file["want"] == "reject":
        assert isinstance(flushed[0], CorruptManifest)
        with pytest.raises(CorruptManifest, match=r"the producer manifest at 'q/manifest.json' is damaged"):
            queue.claims().next_batch()
        assert queue.store.get(PATH).data == read(file)
        return
    assert isinstance(flushed[0], Durable)
    expected = json.loads(file["expect"]["producer_manifest_after_flush"])
    expected["pending"][-1] = flushed[0].location  # its name is its own
    assert json.loads(queue.store.get(PATH).data) == expected, "unknown fields are gone, the order is kept"
    delivered = [
        step["next_batch"]["ok"]["location"]
        for step in file["expect"]["steps"]
        if isinstance(step.get("next_batch", {}).get("ok"), dict)
    ]
    assert [batch.location for batch in drain(queue.claims())] == [*delivered, flushed[0].location]


@pytest.mark.parametrize(
    "name",
    ["damaged/producer-manifest/leading-slash.json", "damaged/producer-manifest/extra-field.json"],
)
def test_should_keep_the_last_location_where_a_clean_up_of_that_time_kept_none(name: str) -> None:
    """On purpose: a producer manifest that comes back to `{"pending":[]}` lets an append of long ago land again."""
    queue = LegacyQueue()
    queue.plant_batch("q/a.json", "a")
    queue.store.put(PATH, (GOLDEN / name).read_bytes())
    (batch,) = drain(queue.claims(done_cleanup_threshold=1))
    assert queue.pending == [batch.location]
    assert queue.consumer.done == (batch.location,)
    (next_one,) = queue.ingest("next")
    drain(queue.claims(done_cleanup_threshold=1))
    assert queue.pending == [next_one]
    assert queue.consumer.done == (next_one,)
    assert not queue.objects() & {object_location(batch.location)}


@pytest.mark.parametrize("file", PREFIXES, ids=lambda file: repr(file["expect"]["data_path_prefix"]))
def test_should_read_what_was_written_under_any_prefix(file: dict[str, Any]) -> None:
    """On purpose also those that the implementation of that time could not read back: see `object_location`."""
    queue = LegacyQueue()
    queue.store.put(PATH, read(file))
    for location in file["expect"]["object_keys"]:
        queue.plant_batch(location, "here")
    (batch,) = drain(queue.claims())
    assert batch.entries == [pair("here")]


def test_should_pass_over_what_came_back_for_ever_and_park_it() -> None:
    """The golden run: bad, good, bad again when stale, good again …; here bad is parked with its third try."""
    steps = next(file for file in FILES if name_of(file).startswith("poison/"))["expect"]["steps"]
    assert "err" in steps[0]["next_batch"]
    assert "err" in steps[2]["next_batch"], "it came back"
    queue = LegacyQueue()
    queue.plant(["q/bad.json", "q/good.json"])
    queue.store.put("q/bad.json", b"[nonsense")
    queue.plant_batch("q/good.json", "g")
    for attempt in range(3):
        batch = queue.claims().next_batch()
        assert batch is not None, "a bad batch holds nobody up"
        assert batch.location == "q/good.json"
        is_parked = queue.consumer.claimed["q/bad.json"] == PARKED_MS
        assert is_parked == (attempt == 2)
        queue.clock.advance(TIMEOUT_MS / 1000 + 0.001)
    collector = queue.claims()
    drain(collector)
    parked = collector.parked()["q/bad.json"]
    assert len(parked.tries) == 3
    assert "CorruptBatch" in parked.why
    queue.clock.advance(10 * 365 * 24 * 3600)
    assert collector.next_batch() is None, "never again"
    assert "q/bad.json" in queue.pending, "and never dropped"
    assert queue.objects() >= {"q/bad.json"}
