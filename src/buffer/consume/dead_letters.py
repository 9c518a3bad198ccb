"""Dead letters: batches on their way out of a queue, and back home. Each arrives exactly once, interrupted anywhere.

A dead-letter queue is an ordinary queue: a consumer reads it, a loader loads it into a table, workers may lease it. A
parked batch becomes one batch there, under a fresh ULID. Its entries are the owed entries of the source, byte for byte;
its metadata items are JSON objects that name where those entries come from (`letters.py`).

**Redrive is the same walk back.** The dead-letter queue gets leases of its own, with its source as *its* dead-letter
queue, and every batch is parked there. Going home is noticed by the `queue_id`: entries and metadata become what they
were, a batch of bytes becomes that object again (a reader that knows more may read it), what was not there stays away.
A dead letter that was damaged meanwhile goes home as the bytes it is: there it is a failed delivery, and no work.
Nothing stays away on the word of a payload alone, which any producer may write: the entry must carry a parker's mark.
Queues may share a dead-letter queue: what another one parked is not this one's to bring home (`is_of_another_queue`).

Order and numbers are the section's (`ledger/parking.py`): the ordinal is the number of the mark.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from buffer.clock import Clock
from buffer.codec.batch import encode_batch
from buffer.config import ConsumerConfig, LeaseConfig, ProducerConfig, QueueConfig, reject
from buffer.consume.fetch import REFUSALS, FetchHandle
from buffer.consume.letters import (
    BYTES,
    MISSING,
    REFUSED,
    Covered,
    Letter,
    Source,
    at_their_places,
    of_entries,
    of_whole,
    read_letter,
)
from buffer.errors import CorruptBatch, ObjectNotFound
from buffer.journal import Journal
from buffer.ledger.entries import INDEX_MAX
from buffer.ledger.envelope import Envelope
from buffer.ledger.parking import ParkOrder
from buffer.ledger.ranges import numbers, runs_of
from buffer.marks import mark_of, without_mark
from buffer.model import BatchDescriptor, Metadata
from buffer.names import folder_of, location_problem
from buffer.produce.marked import MarkedQueue
from buffer.store.base import Store

log = logging.getLogger(__name__)


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
            log.warning("batch %d of %r cannot go back: what it was is gone", order.sequence, source.manifest_path)
            return
        folder = self.prefixes.get(target_path) or parcel.folder or folder_of(target_path)

        def is_same(entry: BatchDescriptor) -> bool:
            items = without_mark(entry.metadata)
            if parcel.goes_home:  # as it was, to the last byte
                return items == parcel.metadata
            said = [read_letter(item.payload) for item in items]
            return all(x is not None and (x.queue_id, x.sequence) == (source.queue_id, order.sequence) for x in said)

        self._target(source, target_path, folder).append(parcel.data, parcel.metadata, order.ordinal, folder, is_same)

    def _target(self, source: Source, path: str, folder: str) -> MarkedQueue:
        key = (source.queue_id, path)
        if key not in self._targets:
            config = ProducerConfig(
                store=self._store,
                manifest_path=path,
                data_path_prefix=folder,  # where there is one: a manifest at the top has none of its own
                append_timeout_s=self._config.cas_timeout_s,
            )
            self._targets[key] = MarkedQueue(_client_id(source.queue_id), self._store, config, self._clock)
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
            home = None if isinstance(error, REFUSALS) else _homebound_damaged(descriptor, items, target_id)
            if home is not None:  # wrapped once more it would be work like any other, done as soon as it is acked
                return _as_it_is(self._handle.fetch_raw(descriptor).data, *home)
            return self._undecodable(order, descriptor, source, str(error))
        except ObjectNotFound as error:
            if _letters(items, target_id) and _is_parked(descriptor, target_id):
                return None  # to its workers the word of it would be work like any other
            words = f"the batch {descriptor.location!r} (sequence {order.sequence}) was gone when it was parked"
            return self._whole(order, descriptor, source, MISSING, words.encode(), str(error))
        owed = tuple(numbers(order.owed, below=len(array))) if order.owed is not None else tuple(range(len(array)))
        home = _homebound(descriptor, items, target_id, len(array))
        if home is not None:
            return _homeward(array, owed, *home)
        covered = _covered(items, owed, len(array))
        wrapped = of_entries(order, descriptor, source, covered, self._clock.now_ms())
        return Parcel(encode_batch(array.take(pa.array(owed, pa.int64()))), wrapped)

    def _undecodable(self, order: ParkOrder, descriptor: BatchDescriptor, source: Source, error: str) -> Parcel:
        try:
            raw = self._handle.fetch_raw(descriptor).data
        except REFUSALS as refused:  # not the queue's, or far too large: its bytes are nobody's to carry around
            words = f"the batch {descriptor.location!r} (sequence {order.sequence}) was not read: {refused}"
            return self._whole(order, descriptor, source, REFUSED, words.encode(), str(refused))
        return self._whole(order, descriptor, source, BYTES, raw, error)

    def _whole(
        self, order: ParkOrder, descriptor: BatchDescriptor, source: Source, kind: str, entry: bytes, error: str
    ) -> Parcel:
        items = without_mark(descriptor.metadata)
        said = of_whole(order, descriptor, source, kind, items, error, self._clock.now_ms())
        return Parcel(encode_batch([entry]), said)


def is_of_another_queue(descriptor: BatchDescriptor, queue_id: str, path: str) -> bool:
    """Whether this dead letter is of another queue than the one with this id, or at this path, which may be made anew.

    As any batch it would be delivered there, to workers who do not know such work.
    """
    mark, items = mark_of(descriptor.metadata), without_mark(descriptor.metadata)
    if mark is None or not items or mark[0] == _client_id(queue_id):
        return False
    letter = read_letter(items[0].payload)
    return letter is not None and mark[0] == _client_id(letter.queue_id) and letter.manifest_path not in (None, path)


def _client_id(queue_id: str) -> str:
    """Under which a queue's batches are parked."""
    return f"parked/{queue_id}"


def _covered(items: Sequence[Metadata], owed: Sequence[int], count: int) -> list[Covered]:
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


def _homebound(
    descriptor: BatchDescriptor, items: Sequence[Metadata], target_id: str | None, count: int
) -> tuple[Letter, tuple[Metadata, ...]] | None:
    """The first letter of a batch that goes home to this queue, and the items of the source; None: it is going away."""
    letters = _letters(items, target_id)
    places = at_their_places(items, letters, count) if letters else None
    if places is None:
        return None
    if letters[0].kind in (MISSING, REFUSED) and not _is_parked(descriptor, target_id):
        return None
    return letters[0], places


def _homebound_damaged(
    descriptor: BatchDescriptor, items: Sequence[Metadata], target_id: str | None
) -> tuple[Letter, tuple[Metadata, ...]] | None:
    """The same of a dead letter that cannot be decoded: nobody can tell how many entries it had."""
    many, one = INDEX_MAX, 1
    return _homebound(descriptor, items, target_id, many) or _homebound(descriptor, items, target_id, one)


def _letters(items: Sequence[Metadata], target_id: str | None) -> list[Letter]:
    """What the items say, if all of them are letters of batches of this queue; else nothing."""
    letters = [read_letter(item.payload) for item in items]
    found = [letter for letter in letters if letter is not None and letter.queue_id == target_id]
    return found if len(found) == len(items) else []


def _is_parked(descriptor: BatchDescriptor, queue_id: str | None) -> bool:
    """A parker of this queue put it there, and not just anybody."""
    mark = mark_of(descriptor.metadata)
    return mark is not None and queue_id is not None and mark[0] == _client_id(queue_id)


def _homeward(array: pa.Array, owed: Sequence[int], letter: Letter, items: tuple[Metadata, ...]) -> Parcel | None:
    """A dead letter's batch as it was before it was parked."""
    if letter.kind in (MISSING, REFUSED):
        return None
    if letter.kind == BYTES:
        return _as_it_is(array[0].as_py(), letter, items)
    metadata = tuple(
        Metadata(start, item.ingestion_time_ms, item.payload) for start, _, item in _covered(items, owed, len(array))
    )
    return Parcel(encode_batch(array.take(pa.array(owed, pa.int64()))), metadata, _folder(letter), goes_home=True)


def _as_it_is(data: bytes, letter: Letter, items: tuple[Metadata, ...]) -> Parcel | None:
    """An object of bytes that nobody here can read."""
    if letter.kind in (MISSING, REFUSED):
        return None
    return Parcel(data, items or (Metadata(0, 0),), _folder(letter), goes_home=True)


def _folder(letter: Letter) -> str | None:
    if letter.location is None or location_problem(letter.location) is not None:
        return None
    return folder_of(letter.location) or None
