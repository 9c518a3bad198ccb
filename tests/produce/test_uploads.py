"""Uploading in one place and appending in another: what a Spark task does, and its driver."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from buffer.clock import make_ulid
from buffer.codec.batch import decode_batch
from buffer.config import GC_GRACE_MIN_S, GcConfig, ProducerConfig
from buffer.errors import AppendOutcomeUnknown, ContentionError, InvalidInput, ObjectNotFound, StoreUnusable
from buffer.gc.collector import Collector
from buffer.manifest import Manifest, PackedMetadata
from buffer.model import Metadata
from buffer.names import batch_location
from buffer.produce.adopt import append_uploads
from buffer.produce.durability import Durable
from buffer.produce.upload import Upload, upload_entries, valid_until_s
from buffer.store import open_store
from buffer.store.base import Store
from buffer.testing import Fault, FaultyStore, ManualClock
from tests.produce.producer_support import batches_of, objects_of, queue_of

VALID_S = GC_GRACE_MIN_S / 2


class Place:
    """A machine: its own clock, wall and monotonic alike, and the settings that all machines share."""

    def __init__(self, store: Store, now_ms: int = 1_700_000_000_000, seed: int = 0, **settings: object) -> None:
        self.store = store
        self.clock = ManualClock(now_ms, seed=seed)
        self.config = ProducerConfig(store=store, **settings)  # type: ignore[arg-type]

    def upload(self, *entries: bytes, metadata: bytes = b"") -> Upload:
        return upload_entries(list(entries), metadata, store=self.store, clock=self.clock, config=self.config)

    def append(self, *uploads: Upload) -> list[Durable]:
        return append_uploads(uploads, store=self.store, clock=self.clock, config=self.config)


def test_should_append_what_others_uploaded_in_the_order_given(store: Store) -> None:
    first, second, driver = (Place(store, seed=seed) for seed in range(3))
    one, two = first.upload(b"a", b"", metadata=b"m"), second.upload(b"bc")
    assert queue_of(store) == [], "an upload is in no queue"
    travelled = pickle.loads(pickle.dumps([two, one]))
    assert driver.append(*travelled) == [Durable(0, two.location), Durable(1, one.location)]
    assert batches_of(store) == [[b"bc"], [b"a", b""]]
    assert [entry.metadata for entry in queue_of(store)] == [
        (Metadata(0, 1_700_000_000_000, b""),),
        (Metadata(0, 1_700_000_000_000, b"m"),),
    ]
    assert (one.entry_count, one.payload_bytes) == (2, 1)
    assert one.stored_bytes == len(store.get(one.location).data)


def test_should_travel_light() -> None:
    upload = Place(open_store("memory://")).upload(bytes(1 << 20))
    assert len(pickle.dumps(upload)) < 1000


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_should_upload_an_arrow_array(store: Store, compression: str) -> None:
    place = Place(store, compression=compression)
    entries = [b"%d" % n for n in range(1000)]
    array = pa.chunked_array([pa.array(entries[:400]), pa.array(entries[400:])])
    upload = upload_entries(array, store=store, clock=place.clock, config=place.config)
    assert decode_batch(store.get(upload.location).data) == entries
    assert (upload.entry_count, upload.payload_bytes) == (1000, sum(map(len, entries)))


def test_should_refuse_entries_as_produce_does(memory: Store) -> None:
    place = Place(memory, max_batch_bytes=10)
    for entries in ([], ["text"], b"one", [b"too long for it"], pa.array([b"a", None])):
        with pytest.raises(InvalidInput):
            upload_entries(entries, store=memory, clock=place.clock, config=place.config)  # type: ignore[arg-type]
    assert objects_of(memory) == set()


def test_should_upload_again_under_the_same_name_when_the_store_hiccups() -> None:
    store = FaultyStore(open_store("memory://"), [Fault.after("put"), Fault.before("put")])
    place = Place(store)
    upload = place.upload(b"a")
    assert objects_of(store) == {upload.location}


@pytest.mark.parametrize("uploads", [0, 2])
def test_should_refuse_no_uploads_and_one_given_twice(memory: Store, uploads: int) -> None:
    place = Place(memory)
    upload = place.upload(b"a")
    with pytest.raises(InvalidInput, match="each once"):
        place.append(*[upload] * uploads)
    assert queue_of(memory) == []


# All or nothing


def test_should_append_all_or_none_when_the_manifest_cannot_be_written() -> None:
    store = FaultyStore(open_store("memory://"), [Fault.before("put_if_absent", StoreUnusable)])
    place = Place(store)
    uploads = [place.upload(b"a"), place.upload(b"b")]
    with pytest.raises(StoreUnusable):
        place.append(*uploads)
    assert queue_of(store) == []
    assert [durable.sequence for durable in place.append(*uploads)] == [0, 1], "calling again is safe"
    assert batches_of(store) == [[b"a"], [b"b"]]


def test_should_find_its_append_when_the_reply_was_lost() -> None:
    store = FaultyStore(open_store("memory://"), [Fault.after("put_if_absent")])
    place = Place(store)
    assert [durable.sequence for durable in place.append(place.upload(b"a"), place.upload(b"b"))] == [0, 1]
    assert batches_of(store) == [[b"a"], [b"b"]]


def test_should_say_that_nobody_can_tell_when_no_reply_came_in_time() -> None:
    inner = open_store("memory://")
    store = FaultyStore(inner, [Fault.before("put_if_absent", times=10_000)])
    place = Place(store)
    with pytest.raises((AppendOutcomeUnknown, ContentionError)) as caught:
        place.append(place.upload(b"a"))
    assert isinstance(caught.value, AppendOutcomeUnknown), "the last attempt may still land"


# Age, between machines


def upload_made_at(ms: int) -> Upload:
    return Upload(batch_location("ingest", make_ulid(ms, bytes(10))), PackedMetadata(0, b""), 1, 1, 12)


def test_should_count_the_age_of_an_upload_by_its_ulid_and_our_wall_clock() -> None:
    clock = ManualClock(1_000_000)
    now_s = clock.monotonic_s()
    assert valid_until_s(upload_made_at(1_000_000), clock, VALID_S) == now_s + VALID_S
    assert valid_until_s(upload_made_at(1_000_000 - 100_000), clock, VALID_S) == now_s + VALID_S - 100
    assert valid_until_s(upload_made_at(1_000_000 - 400_000), clock, VALID_S) < now_s, "too old at once"
    assert valid_until_s(upload_made_at(1_000_000 + 400_000), clock, VALID_S) == now_s + VALID_S, "never for longer"


def test_should_not_rename_what_is_young_enough(store: Store) -> None:
    place = Place(store)
    upload = place.upload(b"a")
    place.clock.advance(VALID_S)
    assert place.append(upload) == [Durable(0, upload.location)]
    assert objects_of(store) == {upload.location}


def test_should_append_a_copy_of_what_became_too_old(store: Store) -> None:
    task, driver = Place(store, seed=1), Place(store, seed=2)
    old = task.upload(b"old", metadata=b"m")
    for place in (task, driver):
        place.clock.advance(VALID_S + 1)
    young = task.upload(b"young")
    (renamed, kept) = driver.append(old, young)
    assert renamed.location != old.location
    assert kept.location == young.location
    assert batches_of(store) == [[b"old"], [b"young"]]
    assert queue_of(store)[0].metadata[0].payload == b"m"


@pytest.mark.parametrize("ahead_s", [-VALID_S, 0, VALID_S])
def test_should_never_append_what_the_collector_may_take(ahead_s: float) -> None:
    """At every age: what the driver still appends under its name, no collector has collected, however far its clock
    is ahead within what is allowed."""
    collected = 0
    for age_s in range(0, 1300, 50):
        store = open_store("memory://")
        store.put("ingest/manifest", Manifest.empty().to_bytes())
        task, driver = Place(store, seed=1), Place(store, seed=2)
        upload = task.upload(b"a")
        driver.clock.advance(age_s)
        collector = Collector(
            GcConfig(store=store), store=store, clock=ManualClock(driver.clock.now_ms() + int(ahead_s * 1000))
        )
        collector.collect_once()
        Place(store, seed=7).append(Place(store, now_ms=driver.clock.now_ms(), seed=6).upload(b"between"))
        gone = upload.location in collector.collect_once().deleted
        try:
            (durable,) = driver.append(upload)
        except ObjectNotFound:
            assert gone
            collected += 1
            continue
        assert decode_batch(store.get(durable.location).data) == [b"a"]
        assert not gone
        assert (durable.location == upload.location) == (age_s <= VALID_S)
    assert collected > 0, "the collector never came first"


def test_should_append_nothing_when_an_upload_is_gone(store: Store) -> None:
    place = Place(store)
    gone, there = place.upload(b"gone"), place.upload(b"there")
    store.delete_many([gone.location])
    place.clock.advance(VALID_S + 1)
    with pytest.raises(ObjectNotFound, match="upload its entries again") as caught:
        place.append(there, gone)
    assert caught.value.location == gone.location
    assert queue_of(store) == []
