"""What stands on a dead letter: the JSON in the metadata items of a parked batch, written and read here. Pure.

    {"dead_letter": 1, "queue_id": "01…", "manifest_path": "jobs/manifest", "sequence": 41, "entries": [[3, 3]],
     "count": 5, "reason": "…", "kind": "entries", "location": "…", "ingestion_time_ms": …, "payload": "base64"}

    kind "entries"   the source's entries
    kind "bytes"     the source could not be decoded: one entry, the object as it was
    kind "missing"   the object is gone: one entry that says so
    kind "refused"   its location is not the queue's, or it is too large to be a batch: the same. Only by hand: what
                     one process's settings refuse, another one may read

A letter says what the source's metadata was. Of one item: `ingestion_time_ms` and `payload`, as above. Of several, or
of a whole object: `items`, each `[entry, ingestion_time_ms, "base64"]`, where `entry` is the first that it is about.

**Each item of the source has a letter of its own, unless there are many.** A letter is twenty times as long as an item
without a payload, and all of them stand in the manifest of the dead-letter queue, which has a limit. So above
`OWN_LETTERS_MAX` neighbours share one, up to `SHARED_BYTES_MAX`: a loader gives every row of theirs the whole letter.

**A user's payload may be anything**, also something that looks like a letter. It is one only if all that its kind needs
is there, of the right type and within the limits of the manifest: then whoever walks it home can rely on it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from buffer.ledger.parking import ParkOrder
from buffer.ledger.ranges import Run, Runs, is_canonical, union
from buffer.ledger.reasons import plain
from buffer.model import BatchDescriptor, Metadata

FORMAT = 1

ENTRIES = "entries"
BYTES = "bytes"
MISSING = "missing"
REFUSED = "refused"
KINDS = (ENTRIES, BYTES, MISSING, REFUSED)

OWN_LETTERS_MAX = 16
SHARED_BYTES_MAX = 1024  # of `items` in one letter, about; an item that is longer has a letter alone

_START_MAX = 2**32 - 1
_TIME_MS = range(-(2**63), 2**63)
_ITEM_BYTES = 28  # of an item in JSON, without its payload
_RUN_BYTES = 14

Covered = tuple[int, Runs, Metadata]
"""Where an item of the source begins among the entries that are owed, which entries those are, and itself."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a parked batch comes from, and under whose mark it goes."""

    queue_id: str
    manifest_path: str


@dataclass(frozen=True, slots=True)
class Letter:
    """What a letter says that matters on the way home."""

    queue_id: str
    manifest_path: str | None
    """Where that queue was, if it is said."""
    sequence: int
    kind: str
    location: str | None
    items: tuple[Metadata, ...]
    """The source's. Of kind "entries" they begin where this letter does: the first at 0."""


# Writing


def of_entries(
    order: ParkOrder, descriptor: BatchDescriptor, source: Source, covered: Sequence[Covered], now_ms: int
) -> tuple[Metadata, ...]:
    """The metadata of a batch that holds the source's entries."""
    found = []
    for group in _shared(covered):
        start, entries, item = group[0]
        if len(group) == 1:
            says: dict[str, Any] = {"ingestion_time_ms": item.ingestion_time_ms, "payload": _text(item.payload)}
        else:
            entries = union((), sum((runs for _, runs, _ in group), ()))
            says = {"items": [[runs[0][0], i.ingestion_time_ms, _text(i.payload)] for _, runs, i in group]}
        payload = _payload(order, descriptor, source, ENTRIES, entries, order.reason, says)
        found.append(Metadata(start, now_ms, payload))
    return tuple(found)


def of_whole(
    order: ParkOrder,
    descriptor: BatchDescriptor,
    source: Source,
    kind: str,
    items: Sequence[Metadata],
    error: str,
    now_ms: int,
) -> tuple[Metadata, ...]:
    """The metadata of a batch with one entry, which stands for the whole object."""
    says = {"items": [[i.start_index, i.ingestion_time_ms, _text(i.payload)] for i in items]}
    payload = _payload(order, descriptor, source, kind, order.owed, order.reason or plain(error), says)
    return (Metadata(0, now_ms, payload),)


def _payload(
    order: ParkOrder,
    descriptor: BatchDescriptor,
    source: Source,
    kind: str,
    entries: Runs | None,
    reason: str,
    says: dict[str, Any],
) -> bytes:
    letter: dict[str, Any] = {
        "dead_letter": FORMAT,
        "queue_id": source.queue_id,
        "manifest_path": source.manifest_path,
        "sequence": order.sequence,
        "entries": None if entries is None else [list(run) for run in entries],
        "count": order.count,
        "reason": reason,
        "kind": kind,
        "location": descriptor.location,
        **says,
    }
    return json.dumps(letter, ensure_ascii=True).encode()


def _shared(covered: Sequence[Covered]) -> Iterator[list[Covered]]:
    """The items as they share letters."""
    own = len(covered) <= OWN_LETTERS_MAX
    group: list[Covered] = []
    taken = 0
    for one in covered:
        _, runs, item = one
        length = _ITEM_BYTES + _RUN_BYTES * (len(runs) - 1) + len(item.payload) * 4 // 3
        if group and (own or taken + length > SHARED_BYTES_MAX):
            yield group
            group, taken = [], 0
        group.append(one)
        taken += length
    if group:
        yield group


def _text(payload: bytes) -> str:
    return base64.b64encode(payload).decode("ascii")


# Reading


def read_letter(payload: bytes) -> Letter | None:
    """What a metadata item says of a dead letter, if it is one's; a user's payload is not."""
    try:
        letter = json.loads(payload)
        return _letter(letter) if isinstance(letter, dict) else None
    except (ValueError, RecursionError):  # a user's payload may be anything, also a hundred thousand brackets
        return None


def at_their_places(items: Sequence[Metadata], letters: Sequence[Letter], count: int) -> tuple[Metadata, ...] | None:
    """The source's items, each where its entries are in a batch of `count` entries under these letters.

    None if they are not there: no parker wrote these letters, or not for this batch.
    """
    if any(letter.kind != ENTRIES for letter in letters):
        return letters[0].items if len(letters) == 1 and count == 1 else None
    found = tuple(
        Metadata(item.start_index + own.start_index, own.ingestion_time_ms, own.payload)
        for item, letter in zip(items, letters, strict=True)
        for own in letter.items
    )
    starts = [item.start_index for item in found]
    ascend = all(one < following for one, following in pairwise(starts))
    return found if ascend and starts[0] == 0 and starts[-1] < max(count, 1) else None


def _letter(letter: dict[str, Any]) -> Letter | None:
    """Raises ValueError, like what decodes the payloads."""
    if _whole(letter.get("dead_letter")) != FORMAT or letter.get("kind") not in KINDS:
        return None
    kind, location, path = letter["kind"], letter.get("location"), letter.get("manifest_path")
    if kind == ENTRIES:
        items = _shared_items(letter) if "items" in letter else (_item([0, *_one(letter)]),)
    else:
        items = tuple(_item(item) for item in _list(letter.get("items") if kind == BYTES else letter.get("items", [])))
    return Letter(
        queue_id=_str(letter.get("queue_id")),
        manifest_path=path if isinstance(path, str) else None,
        sequence=_whole(letter.get("sequence")),
        kind=kind,
        location=None if location is None else _str(location),
        items=items,
    )


def _one(letter: dict[str, Any]) -> tuple[Any, Any]:
    return letter.get("ingestion_time_ms"), letter.get("payload")


def _shared_items(letter: dict[str, Any]) -> tuple[Metadata, ...]:
    """The items of a shared letter, with the places of their entries among the letter's."""
    entries = tuple(_run(run) for run in _list(letter.get("entries")))
    items = [_item(item) for item in _list(letter["items"])]
    if not entries or not is_canonical(entries, low=0) or not items or items[0].start_index != entries[0][0]:
        raise ValueError("not the entries of these items")
    places = []
    before, runs = 0, iter(entries)
    first, last = next(runs)
    for item in items:
        while item.start_index > last:
            before += last + 1 - first
            first, last = next(runs, (_START_MAX + 1, _START_MAX + 1))
        if item.start_index < first:
            raise ValueError("an entry that the letter is not about, or out of order")
        place = before + item.start_index - first
        places.append(Metadata(place, item.ingestion_time_ms, item.payload))
    return tuple(places)


def _item(value: Any) -> Metadata:
    start, time_ms, text = _list(value)
    if _whole(start) > _START_MAX or type(time_ms) is not int or time_ms not in _TIME_MS:
        raise ValueError("an item that no manifest can hold")
    return Metadata(start, time_ms, base64.b64decode(_str(text), validate=True))


def _run(value: Any) -> Run:
    first, last = _list(value)
    return _whole(first), _whole(last)


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("not a list")
    return value
