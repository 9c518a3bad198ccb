"""Dead letters: batches on their way out of a queue, and back home. Each arrives exactly once, interrupted anywhere.

A dead-letter queue is an ordinary queue: a consumer reads it, a loader loads it into a table, workers may lease it. A
parked batch becomes one batch there, under a fresh ULID. Its entries are the owed entries of the source, byte for byte;
each metadata item is one of the source's, and its payload a JSON object that names where those entries come from:

    {"dead_letter": 1, "queue_id": "01…", "manifest_path": "jobs/manifest", "sequence": 41, "entries": [[3, 3]],
     "count": 5, "reason": "…", "kind": "entries", "location": "…", "ingestion_time_ms": …, "payload": "base64"}

    kind "entries"   the source's entries
    kind "bytes"     the source could not be decoded: one entry, the object as it was
    kind "missing"   the object is gone: one entry that says so
    kind "refused"   its location is not the queue's, or it is too large to be a batch: the same. Only by hand: what
                     one process's settings refuse, another one may read

**Redrive is the same walk back.** The dead-letter queue gets leases of its own, with its source as *its* dead-letter
queue, and every batch is parked there. Going home is noticed by the `queue_id`: entries and metadata become what they
were, a batch of bytes becomes that object again (a reader that knows more may read it), what was not there stays away.

Order and numbers are the section's (`ledger/parking.py`): the ordinal is the number of the mark.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from buffer.clock import Clock
from buffer.codec.batch import encode_batch
from buffer.config import ConsumerConfig, LeaseConfig, ProducerConfig, QueueConfig, reject
from buffer.consume.fetch import REFUSALS, FetchHandle
from buffer.errors import CorruptBatch, ObjectNotFound
from buffer.journal import Journal
from buffer.ledger.envelope import Envelope
from buffer.ledger.parking import ParkOrder
from buffer.ledger.ranges import Runs, numbers, runs_of
from buffer.ledger.reasons import plain
from buffer.marks import without_mark
from buffer.model import BatchDescriptor, Metadata
from buffer.names import folder_of
from buffer.produce.marked import MarkedQueue
from buffer.store.base import Store

log = logging.getLogger(__name__)

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Source:
    """Where a parked batch comes from, and under whose mark it goes."""

    queue_id: str
    manifest_path: str


@dataclass(frozen=True, slots=True)
class Parcel:
    """What goes into the other queue: an encoded batch and its metadata. Nothing at all: it stays away."""

    data: bytes
    metadata: tuple[Metadata, ...]
    folder: str | None = None
    """Of one that goes home: where its batch lay. Whoever goes on with a redrive may know no better."""
    goes_home: bool = False


def check_dlq(config: QueueConfig, leases: LeaseConfig) -> None:
    """A dead-letter queue needs a folder of its own: in a shared one a collector would delete the other's batches.

    Raises InvalidConfig.
    """
    if leases.dlq is not None and folder_of(leases.dlq) in ("", config.data_path_prefix):
        raise reject("dlq", leases.dlq, "a manifest in a folder of its own, like 'dead/manifest'")
    if leases.dlq == config.manifest_path:
        raise reject(
            "dlq", leases.dlq, "another manifest than the queue's own: a parked batch would come back for ever"
        )


class DeadLetters:
    """Carries batches of one queue into another one. Not thread-safe."""

    def __init__(self, config: ConsumerConfig, store: Store, handle: FetchHandle, clock: Clock) -> None:
        self._config = config
        self._store = store
        self._handle = handle
        self._clock = clock
        self.prefixes: dict[str, str] = {}
        """Folders of batches, by manifest path, where they are known."""
        self._targets: dict[tuple[str, str], MarkedQueue] = {}

    def park(
        self, order: ParkOrder, descriptor: BatchDescriptor, source: Source, target_path: str, *, unread: bool = False
    ) -> None:
        """Put the batch into the queue at `target_path`, once. Raises the store's errors: call again.

        What the settings of this process refuse is not parked (LocationRefused, BatchTooLarge): another one may be
        able to read it. With `unread` it goes as it is, or as a word where it must not be read.
        """
        parcel = self._parcel(order, descriptor, source, self._queue_id(target_path), unread)
        if parcel is None:
            log.warning("batch %d of %r cannot go back: its object is gone", order.sequence, source.manifest_path)
            return
        folder = self.prefixes.get(target_path) or parcel.folder or folder_of(target_path)

        def is_same(entry: BatchDescriptor) -> bool:
            items = without_mark(entry.metadata)
            if parcel.goes_home:  # as it was, to the last byte
                return items == parcel.metadata
            letters = [_letter(item.payload) or {} for item in items]
            return all((x.get("queue_id"), x.get("sequence")) == (source.queue_id, order.sequence) for x in letters)

        self._target(source, target_path).append(parcel.data, parcel.metadata, order.ordinal, folder, is_same)

    def _target(self, source: Source, path: str) -> MarkedQueue:
        key = (source.queue_id, path)
        if key not in self._targets:
            config = ProducerConfig(
                store=self._store,
                manifest_path=path,
                append_timeout_s=self._config.cas_timeout_s,
            )
            client_id = f"parked/{source.queue_id}"
            self._targets[key] = MarkedQueue(client_id, self._store, config, self._clock)
        return self._targets[key]

    def _queue_id(self, path: str) -> str | None:
        """The other queue's id, if it has one yet."""
        ledger = Journal(self._store, path, self._clock, Envelope).read()
        return None if ledger is None else ledger.queue_id

    def _parcel(
        self, order: ParkOrder, descriptor: BatchDescriptor, source: Source, target_id: str | None, unread: bool
    ) -> Parcel | None:
        items = without_mark(descriptor.metadata) or (Metadata(0, self._clock.now_ms()),)
        try:
            array = self._handle.fetch_arrow(descriptor)
        except CorruptBatch as error:
            if isinstance(error, REFUSALS) and not unread:
                raise
            return self._undecodable(order, descriptor, source, str(error))
        except ObjectNotFound as error:
            words = f"the batch {descriptor.location!r} (sequence {order.sequence}) was gone when it was parked"
            return self._whole(order, descriptor, source, "missing", words.encode(), str(error))
        owed = tuple(numbers(order.owed, below=len(array))) if order.owed is not None else tuple(range(len(array)))
        letters = [_letter(item.payload) for item in items]
        if target_id is not None and letters and all(letter and letter["queue_id"] == target_id for letter in letters):
            return _homeward(array, owed, items, [letter for letter in letters if letter])
        wrapped = [
            Metadata(start, self._clock.now_ms(), self._payload(order, descriptor, source, "entries", covered, item))
            for start, covered, item in _covered(items, owed, len(array))
        ]
        return Parcel(encode_batch(array.take(pa.array(owed, pa.int64()))), tuple(wrapped))

    def _undecodable(self, order: ParkOrder, descriptor: BatchDescriptor, source: Source, error: str) -> Parcel:
        try:
            raw = self._handle.fetch_raw(descriptor).data
        except REFUSALS as refused:  # not the queue's, or far too large: its bytes are nobody's to carry around
            words = f"the batch {descriptor.location!r} (sequence {order.sequence}) was not read: {refused}"
            return self._whole(order, descriptor, source, "refused", words.encode(), str(refused))
        return self._whole(order, descriptor, source, "bytes", raw, error)

    def _whole(
        self, order: ParkOrder, descriptor: BatchDescriptor, source: Source, kind: str, entry: bytes, error: str
    ) -> Parcel:
        payload = self._payload(order, descriptor, source, kind, order.owed, None, error)
        return Parcel(encode_batch([entry]), (Metadata(0, self._clock.now_ms(), payload),))

    def _payload(
        self,
        order: ParkOrder,
        descriptor: BatchDescriptor,
        source: Source,
        kind: str,
        entries: Runs | None,
        item: Metadata | None,
        error: str | None = None,
    ) -> bytes:
        letter: dict[str, Any] = {
            "dead_letter": FORMAT,
            "queue_id": source.queue_id,
            "manifest_path": source.manifest_path,
            "sequence": order.sequence,
            "entries": None if entries is None else [list(run) for run in entries],
            "count": order.count,
            "reason": order.reason or plain(error or ""),
            "kind": kind,
            "location": descriptor.location,
        }
        if item is not None:
            letter |= {"ingestion_time_ms": item.ingestion_time_ms, "payload": _text(item.payload)}
        else:
            letter["items"] = [
                [i.start_index, i.ingestion_time_ms, _text(i.payload)] for i in without_mark(descriptor.metadata)
            ]
        return json.dumps(letter, ensure_ascii=True).encode()


def _covered(items: Sequence[Metadata], owed: Sequence[int], count: int) -> list[tuple[int, Runs, Metadata]]:
    """The items that cover owed entries: where each starts among those, which entries it covers, and itself.

    One item at least: a batch may hold no entries, and its story has to stand somewhere.
    """
    found = []
    position = 0
    for item, following in zip(items, [*items[1:], None], strict=True):
        end = count if following is None else following.start_index
        covered = []
        while position < len(owed) and owed[position] < end:
            covered.append(owed[position])
            position += 1
        if covered:
            found.append((position - len(covered), runs_of(covered), item))
    return found or [(0, (), items[0])]


def _homeward(
    array: pa.Array, owed: Sequence[int], items: Sequence[Metadata], letters: Sequence[dict[str, Any]]
) -> Parcel | None:
    """A dead letter's batch as it was before it was parked."""
    kind = letters[0]["kind"]
    if kind in ("missing", "refused"):
        return None
    folder = folder_of(letters[0].get("location") or "") or None
    if kind == "bytes":
        metadata = tuple(Metadata(start, time_ms, _bytes(text)) for start, time_ms, text in letters[0]["items"])
        return Parcel(
            array[0].as_py(), metadata or (Metadata(0, letters[0].get("ingestion_time_ms", 0)),), folder, goes_home=True
        )
    by_item = dict(zip(items, letters, strict=True))
    metadata = tuple(
        Metadata(start, by_item[item]["ingestion_time_ms"], _bytes(by_item[item]["payload"]))
        for start, _, item in _covered(items, owed, len(array))
    )
    return Parcel(encode_batch(array.take(pa.array(owed, pa.int64()))), metadata, folder, goes_home=True)


def _letter(payload: bytes) -> dict[str, Any] | None:
    """What a metadata item says of a dead letter, if it is one's; a user's payload is not."""
    try:
        letter = json.loads(payload)
    except (ValueError, RecursionError):  # a user's payload may be anything, also a hundred thousand brackets
        return None
    wanted = {"dead_letter", "queue_id", "sequence", "kind"}
    is_letter = isinstance(letter, dict) and wanted <= letter.keys() and letter["dead_letter"] == FORMAT
    return letter if is_letter else None


def _text(payload: bytes) -> str:
    return base64.b64encode(payload).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
