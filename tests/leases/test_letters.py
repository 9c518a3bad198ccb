"""What stands on a dead letter: a user's payload is never taken for one, and many items share one, and go home."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from buffer.codec.batch import encode_batch
from buffer.config import LeaseConfig
from buffer.consume.consumer import Consumer
from buffer.consume.letters import OWN_LETTERS_MAX, SHARED_BYTES_MAX, read_letter
from buffer.leases.queue import LeaseQueue
from buffer.marks import without_mark
from buffer.model import Metadata
from buffer.queue import QueueProducer
from tests.leases.lease_support import DEAD, MANIFEST, Work


def parking(**leases: object) -> Work:
    return Work(0, **{"dlq_strategy": "skip", "dlq": DEAD, "max_delivery_attempts": 1, **leases})


def with_dead_letters() -> tuple[Work, LeaseQueue, str]:
    """A queue that has parked, so that its dead-letter queue has an id to write letters to."""
    work = parking()
    work.fill(1)
    queue = work.open()
    assert queue.park(0)
    with LeaseQueue.open(work.config(path=DEAD), LeaseConfig(), adopt=True, clock=work.clock):
        pass
    return work, queue, work.ledger(DEAD).queue_id


def letter(queue_id: str, **other: Any) -> dict[str, Any]:
    made = {
        "dead_letter": 1,
        "queue_id": queue_id,
        "manifest_path": DEAD,
        "sequence": 0,
        "entries": [[0, 0]],
        "count": 1,
        "reason": "made up",
        "kind": "entries",
        "location": "dead/x.batch",
        "ingestion_time_ms": 7,
        "payload": "",
        **other,
    }
    return {name: value for name, value in made.items() if value is not ...}


WHOLE: dict[str, Any] = {"ingestion_time_ms": ..., "payload": ..., "entries": None}

CRAFTED: dict[str, dict[str, Any]] = {
    "no more than it was once": dict.fromkeys(("ingestion_time_ms", "payload", "location", "entries", "count"), ...),
    "no time": {"ingestion_time_ms": ...},
    "no payload": {"payload": ...},
    "a time that is text": {"ingestion_time_ms": "7"},
    "a time that is a float": {"ingestion_time_ms": 7.0},
    "a time that is no time": {"ingestion_time_ms": None},
    "a time beyond the format": {"ingestion_time_ms": 2**63},
    "a time far beyond it": {"ingestion_time_ms": -(10**400)},
    "a payload that is no base64": {"payload": "*"},
    "a payload of another alphabet": {"payload": "äöü="},
    "a payload that is a number": {"payload": 5},
    "a payload that is a list": {"payload": ["", ""]},
    "a kind that nobody knows": {"kind": "poison"},
    "a kind that is a list": {"kind": []},
    "a kind that is an object": {"kind": {}},
    "a sequence that is text": {"sequence": "0"},
    "a sequence below all": {"sequence": -1},
    "a sequence that is a truth": {"sequence": True},
    "a format that is a truth": {"dead_letter": True},
    "a format that is a list": {"dead_letter": [1]},
    "a location that is a number": {"location": 3},
    "a location that is a list": {"location": ["a/b"]},
    "bytes without items": {"kind": "bytes", **WHOLE},
    "bytes with one item that is none": {"kind": "bytes", "items": [7], **WHOLE},
    "bytes with items that are no list": {"kind": "bytes", "items": {"0": [0, 7, ""]}, **WHOLE},
    "bytes with a short item": {"kind": "bytes", "items": [[0, 7]], **WHOLE},
    "bytes with a long item": {"kind": "bytes", "items": [[0, 7, "", ""]], **WHOLE},
    "bytes with an item below all": {"kind": "bytes", "items": [[-1, 7, ""]], **WHOLE},
    "bytes with an item beyond the format": {"kind": "bytes", "items": [[2**32, 7, ""]], **WHOLE},
    "bytes with an item that is no base64": {"kind": "bytes", "items": [[0, 7, "*"]], **WHOLE},
    "missing, and it is not": {"kind": "missing", "items": [], **WHOLE},
    "missing without items": {"kind": "missing", **WHOLE},
    "refused, and it was not": {"kind": "refused", "items": [[0, 7, ""]], **WHOLE},
    "shared without entries": {"items": [[0, 7, ""]], "entries": ...},
    "shared of no entries": {"items": [[0, 7, ""]], "entries": []},
    "shared of no items": {"items": []},
    "shared of items that are nothing": {"items": None},
    "shared of entries that are no runs": {"items": [[0, 7, ""]], "entries": [0]},
    "shared of entries the wrong way": {"items": [[1, 7, ""]], "entries": [[1, 0]]},
    "shared with an item of another entry": {"items": [[0, 7, ""], [5, 7, ""]], "entries": [[0, 3]]},
    "shared with items the wrong way": {"items": [[0, 7, ""], [0, 7, ""]], "entries": [[0, 3]]},
    "shared with entries that the batch has not": {"items": [[0, 7, ""], [9, 7, ""]], "entries": [[0, 2**80]]},
}


@pytest.mark.parametrize("change", CRAFTED.values(), ids=CRAFTED.keys())
def test_should_park_a_payload_that_only_looks_like_a_letter_as_what_it_is(change: dict[str, Any]) -> None:
    work, queue, dead_id = with_dead_letters()
    payload = json.dumps(letter(dead_id, **change)).encode()
    queue.produce([b"evil"], metadata=payload)
    queue.produce([b"good"])
    queue.nack(queue.consume())
    assert [b.entries for b in queue.consume()] == [[b"good"]], "nothing stops at it"
    _, (entries, (said,)) = work.dead_letters()
    assert entries == [b"evil"]
    assert (said["queue_id"], said["sequence"], said["kind"]) == (work.ledger().queue_id, 1, "entries")
    assert base64.b64decode(said["payload"]) == payload
    assert work.section().finished_through == 1


@pytest.mark.parametrize("change", CRAFTED.values(), ids=CRAFTED.keys())
def test_should_redrive_past_a_payload_that_only_looks_like_a_letter(change: dict[str, Any]) -> None:
    work = parking()
    work.fill(1)
    queue = work.open()
    payload = json.dumps(letter(work.ledger().queue_id, **change)).encode()
    location = "dead/01ARZ3NDEKTSV4RRFFQ69G5FAV.batch"
    work.store.put(location, encode_batch([b"evil"]))
    QueueProducer(work.store, DEAD, work.clock).append_locations([(location, (Metadata(0, 7, payload),))])
    assert queue.park(0)
    assert queue.redrive() == 2
    assert [b.entries for b in queue.consume(9)] == [[b"evil"], [b"0"]]


@pytest.mark.parametrize("where", ["dead//x", "../x", "/x", "a/../x", "\ud800/x", "a\x00b/x", "", "x", None])
def test_should_not_go_where_a_letter_may_not_lead(where: str | None) -> None:
    work, queue, dead_id = with_dead_letters()
    queue.produce([b"evil"], metadata=json.dumps(letter(dead_id, location=where)).encode())
    queue.produce([b"good"])
    queue.nack(queue.consume())
    assert [b.entries for b in queue.consume()] == [[b"good"]]
    assert [d.location.rpartition("/")[0] for d in work.descriptors(DEAD)] == ["dead", "dead"]


@pytest.mark.parametrize(("entries", "kind"), [([], "bytes"), ([b"a", b"b"], "bytes"), ([b"a", b"b"], "missing")])
def test_should_not_take_several_entries_for_one_object(entries: list[bytes], kind: str) -> None:
    work, queue, dead_id = with_dead_letters()
    payload = json.dumps(letter(dead_id, kind=kind, items=[], **WHOLE)).encode()
    location = f"jobs/{work.clock.new_ulid()}.batch"
    work.store.put(location, encode_batch(entries))
    QueueProducer(work.store, MANIFEST, work.clock).append_locations([(location, (Metadata(0, 7, payload),))])
    queue.nack(queue.consume())
    assert not queue.consume()
    assert work.dead_letters()[1][0] == entries


def test_should_not_mix_letters_of_two_kinds() -> None:
    work, queue, dead_id = with_dead_letters()
    items = [
        Metadata(0, 7, json.dumps(letter(dead_id)).encode()),
        Metadata(1, 7, json.dumps(letter(dead_id, kind="bytes", items=[], **WHOLE)).encode()),
    ]
    work.fill(1, [b"a", b"b"], items)
    queue.nack(queue.consume())
    assert not queue.consume()
    assert work.dead_letters()[1][0] == [b"a", b"b"]


# Shared letters


def calls(count: int, payload: bytes = b"") -> list[Metadata]:
    """Each call brought two entries, at a time of its own."""
    return [Metadata(2 * i, 1_700_000_000_000 + i, payload and payload + b"%d" % i) for i in range(count)]


def entries_of(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(2 * count)]


def shown(work: Work, path: str) -> list[Metadata]:
    return list(without_mark(work.descriptors(path)[-1].metadata))


def test_should_not_fill_the_manifest_with_letters_of_small_calls() -> None:
    work = parking()
    work.fill(1, entries_of(2000), calls(2000))
    source = len(work.store.get(MANIFEST).data)
    queue = work.open()
    queue.nack(queue.consume(), reason="ValueError: something")
    queue.consume()
    assert len(work.store.get(DEAD).data) < 3 * source


@pytest.mark.parametrize("payload", [b"", b"of call ", b"x" * 500])
@pytest.mark.parametrize("count", [1, OWN_LETTERS_MAX, OWN_LETTERS_MAX + 1, 200])
def test_should_bring_home_as_they_were_what_shared_letters(count: int, payload: bytes) -> None:
    work = parking()
    work.fill(1, entries_of(count), calls(count, payload))
    queue = work.open()
    assert queue.park(0)
    letters = shown(work, DEAD)
    assert (len(letters) == count) == (count <= OWN_LETTERS_MAX or len(payload) == 500)
    assert all(len(item.payload) < SHARED_BYTES_MAX + 800 for item in letters)
    assert queue.redrive() == 1
    assert shown(work, MANIFEST) == calls(count, payload)
    (batch,) = queue.consume()
    assert batch.entries == entries_of(count)


def test_should_tell_a_reader_which_call_each_entry_came_with() -> None:
    work = parking()
    work.fill(1, entries_of(20), calls(20, b"of call "))
    queue = work.open()
    (batch,) = queue.consume()
    queue.ack(
        batch, entries=[0, 3, 4, 5]
    )  # the second half of the first call, the first of the second, none of the third
    queue.nack(batch, reason="no such customer")
    assert not queue.consume()
    ((entries, said),) = work.dead_letters()
    assert entries == [entry for i, entry in enumerate(entries_of(20)) if i not in (0, 3, 4, 5)]
    first = said[0]
    assert first["entries"][:2] == [[1, 2], [6, first["entries"][-1][1]]]
    assert [(entry, base64.b64decode(text)) for entry, _, text in first["items"]][:3] == [
        (1, b"of call 0"),
        (2, b"of call 1"),
        (6, b"of call 3"),
    ]
    assert {one["reason"] for one in said} == {"no such customer"}
    assert queue.redrive() == 1
    times = [(item.start_index, item.ingestion_time_ms - 1_700_000_000_000) for item in shown(work, MANIFEST)]
    assert times == [(0, 0), (1, 1), *((2 + 2 * i, 3 + i) for i in range(17))]


def test_should_bring_home_a_part_of_what_shared_letters() -> None:
    """Workers at the dead-letter queue have finished some of it."""
    work = parking()
    work.fill(1, entries_of(100), calls(100, b"of call "))
    queue = work.open()
    assert queue.park(0)
    dead = LeaseQueue.open(work.config(path=DEAD), work.leases.replace(dlq=MANIFEST), adopt=True, clock=work.clock)
    (batch,) = dead.consume()
    done = [i for i in range(200) if i % 3 == 0]
    dead.ack(batch, entries=done)
    dead.nack(batch)
    assert not dead.consume()  # it goes home as its own dead letter
    (home,) = queue.consume()
    left = [i for i in range(200) if i % 3]
    assert home.entries == [b"%d" % i for i in left]
    items = shown(work, MANIFEST)
    told = {left[item.start_index] // 2: item.payload for item in items}
    assert told == {i: b"of call %d" % i for i in range(100)}


def test_should_be_parked_once_when_its_number_is_known() -> None:
    work = parking()
    work.fill(1, entries_of(100), calls(100))
    queue = work.open()
    order_seen = []
    park = queue._dead_letters.park

    def twice(*args: Any, **also: Any) -> None:
        order_seen.append(args[0])
        park(*args, **also)
        park(*args, **also)

    queue._dead_letters.park = twice  # type: ignore[method-assign]
    assert queue.park(0)
    assert order_seen
    assert len(work.dead_letters()) == 1


def test_should_bring_home_letters_of_the_shape_before() -> None:
    """One for each call, however many: they are in queues already."""
    count = 40
    work = parking()
    work.fill(1, entries_of(count), calls(count, b"of call "))
    queue = work.open()
    assert queue.park(0)
    (descriptor,) = work.descriptors(DEAD)
    home = work.ledger().queue_id
    old = [
        Metadata(
            item.start_index,
            9,
            json.dumps(
                letter(
                    home,
                    manifest_path=MANIFEST,
                    entries=[[item.start_index, item.start_index + 1]],
                    location="jobs/x.batch",
                    ingestion_time_ms=item.ingestion_time_ms,
                    payload=base64.b64encode(item.payload).decode(),
                )
            ).encode(),
        )
        for item in calls(count, b"of call ")
    ]
    work.store.delete_many([DEAD])
    mark = descriptor.metadata[0]
    QueueProducer(work.store, DEAD, work.clock).append_locations([(descriptor.location, (mark, *old))])
    assert len(work.dead_letters()[0][1]) == count
    assert queue.redrive() == 1
    assert shown(work, MANIFEST) == calls(count, b"of call ")
    assert [b.entries for b in queue.consume()] == [entries_of(count)]


def test_should_be_read_by_a_consumer_like_any_other_batch() -> None:
    work = parking()
    work.fill(1, entries_of(50), calls(50))
    work.open().park(0)
    batch = Consumer.new(work.config(path=DEAD), clock=work.clock).next_batch()
    assert batch is not None
    assert batch.entries == entries_of(50)
    found = [read_letter(item.payload) for item in batch.metadata]
    assert sum(len(one.items) for one in found if one is not None) == 50
