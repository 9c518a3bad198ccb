"""Client marks on the wire: which client's call an entry of the manifest carries, and how far that client got. Pure.

A mark is a metadata item with an **empty range**, so other readers see one more item that covers no entries:

    metadata item   start_index and ingestion_time_ms of the item after it | payload_len u32 | payload
    payload         "BCM1" | client_id_len u8 | client_id utf-8 | client_seq u64 little-endian

Rules:
- An entry has one mark at most, its first metadata item: a batch holds calls of one client, and the mark has the
  largest client_seq among them. A batch is in the queue or it is not, so the others follow.
- An item is a mark only if it is the first, the item after it has the same `start_index`, and its payload has exactly
  that form. A user's own payload that looks like one is never taken for one: a call has at least one entry, so the
  item after it starts further on, and the only item of an entry is never a mark.
- A client's marks grow along the queue. Nothing here depends on it: the largest counts.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from buffer.errors import InvalidInput
from buffer.manifest import Manifest, PackedMetadata
from buffer.model import BatchDescriptor, Metadata

MAGIC = b"BCM1"
CLIENT_ID_BYTES_MAX = 255
CLIENT_SEQ_MAX = 2**64 - 1
BATCH_NAME_CHARS_MAX = 64  # ours have 32; what a mark keeps must not grow with a foreign writer's names

_PAYLOAD_HEAD = len(MAGIC) + 1
_SEQ = struct.Struct("<Q")
_ITEM = struct.Struct("<IqI")
_ITEM_PLACE = struct.Struct("<I8s")
assert (_ITEM.size, _ITEM_PLACE.size) == (16, 12)

# For the scan. An entry's head; metadata_count and the first item up to the length of the client id; what follows it.
_HEAD = struct.Struct("<IQH")
_LEAD = struct.Struct("<II8xI4sB")
_TAIL = struct.Struct("<QI")
assert (_HEAD.size, _LEAD.size, _TAIL.size) == (14, 25, 12)
_MARKED_BYTES_MIN = _LEAD.size + _SEQ.size + _ITEM.size
"""Of an entry behind its location: the mark of an empty client id, and the item that must come after it."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The newest durable call of one client, and where it stands or stood in the queue."""

    client_seq: int
    sequence: int
    batch: str
    """The name of the batch, without its folder: tells two writers apart that used one client_seq."""


def client_id_bytes(client_id: str) -> bytes:
    """The id as it stands in a mark. Raises InvalidInput."""
    if not isinstance(client_id, str):
        raise InvalidInput(f"client_id must be text, not {type(client_id).__name__}")
    try:
        encoded = client_id.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInput(f"the client_id {client_id!r} is not valid UTF-8") from error
    if not 0 < len(encoded) <= CLIENT_ID_BYTES_MAX:
        raise InvalidInput(
            f"the client_id {client_id[:40]!r} has {len(encoded)} bytes; it needs 1 to {CLIENT_ID_BYTES_MAX}"
        )
    return encoded


def check_client_seq(client_seq: int) -> int:
    """The number, if a mark can hold it. Raises InvalidInput."""
    if type(client_seq) is not int:
        raise InvalidInput(f"client_seq must be a whole number, not {client_seq!r}")
    if not 0 <= client_seq <= CLIENT_SEQ_MAX:
        raise InvalidInput(f"client_seq {client_seq} is not between 0 and 2^64-1")
    return client_seq


def encode_mark(client_id: str, client_seq: int) -> bytes:
    """A mark's payload. Raises InvalidInput."""
    encoded = client_id_bytes(client_id)
    return b"".join((MAGIC, bytes((len(encoded),)), encoded, _SEQ.pack(check_client_seq(client_seq))))


def decode_mark(payload: bytes) -> tuple[str, int] | None:
    """The client_id and client_seq of a payload; None if it has not exactly the form of a mark's."""
    if not payload.startswith(MAGIC) or len(payload) <= _PAYLOAD_HEAD:
        return None
    end = _PAYLOAD_HEAD + payload[len(MAGIC)]
    client_id = _text(payload[_PAYLOAD_HEAD:end])
    if client_id is None or len(payload) != end + _SEQ.size:
        return None
    return client_id, _SEQ.unpack_from(payload, end)[0]


def _text(encoded: bytes) -> str | None:
    try:
        return encoded.decode("utf-8") or None
    except UnicodeDecodeError:
        return None


def marked(metadata: PackedMetadata, mark: bytes) -> PackedMetadata:
    """The items of a batch's calls with a mark's payload at their head, over no entries."""
    if not metadata.count:
        raise InvalidInput("a mark needs an item after it: a batch of no calls carries none")
    start_index, time = _ITEM_PLACE.unpack_from(metadata.data)
    head = _ITEM_PLACE.pack(start_index, time) + len(mark).to_bytes(4, "little")
    return PackedMetadata(metadata.count + 1, b"".join((head, mark, metadata.data)))


def mark_of(metadata: Sequence[Metadata]) -> tuple[str, int] | None:
    """The client_id and client_seq of an entry's mark, if it has one."""
    if len(metadata) < 2 or metadata[0].start_index != metadata[1].start_index:
        return None
    return decode_mark(metadata[0].payload)


def without_mark(metadata: tuple[Metadata, ...]) -> tuple[Metadata, ...]:
    """What users see of an entry's metadata: the items of calls."""
    return metadata if mark_of(metadata) is None else metadata[1:]


def as_handed_out(entry: BatchDescriptor) -> BatchDescriptor:
    """An entry as users get it: what was produced, and nothing about who produced it."""
    metadata = without_mark(entry.metadata)
    return entry if metadata is entry.metadata else BatchDescriptor(entry.sequence, entry.location, metadata)


def batch_name(location: str) -> str:
    return location.rpartition("/")[2][-BATCH_NAME_CHARS_MAX:]


def newest_marks(
    manifest: Manifest, *, first: int = 0, through: int | None = None, client_id: str | None = None
) -> dict[str, Mark]:
    """The largest mark of each client, or of one, among the entries `first..through` (default: all there are).

    Raises CorruptManifest. Made for many entries: where no mark can be it does not walk, and it makes objects only
    of the marks that count.
    """
    first = max(first, manifest.first_sequence)
    stop = manifest.next_sequence if through is None else min(through + 1, manifest.next_sequence)
    if first >= stop:
        return {}
    data, offset = manifest.to_bytes(), manifest.offset_of(first)
    wanted = None if client_id is None else client_id_bytes(client_id)
    sign = MAGIC if wanted is None else MAGIC + bytes((len(wanted),)) + wanted
    if data.find(sign, offset) < 0:
        return {}
    end = len(data)
    best: dict[bytes, int] = {}
    places: dict[bytes, int] = {}
    head, lead, tail, known = _HEAD.unpack_from, _LEAD.unpack_from, _TAIL.unpack_from, best.get
    for sequence in range(first, stop):
        entry = offset
        if entry + 14 > end:
            break
        length, found, location_len = head(data, entry)
        offset = entry + 4 + length
        at = entry + 14 + location_len
        if found != sequence or offset > end:
            break
        if offset - at < _MARKED_BYTES_MIN:
            continue
        count, start_index, payload_len, magic, id_len = lead(data, at)
        if magic != MAGIC or payload_len != 13 + id_len or count < 2 or offset - at < _MARKED_BYTES_MIN + id_len:
            continue
        id_end = at + 25 + id_len
        client_seq, next_start_index = tail(data, id_end)
        client = data[at + 25 : id_end]
        if next_start_index == start_index and client_seq >= known(client, 0):
            best[client] = client_seq
            places[client] = entry
    else:
        manifest.reached(stop, offset)
    manifest.offset_of(stop)  # raises, if the walk above did not get there
    return {
        name: Mark(best[client], *_place(data, entry))
        for client, entry in places.items()
        if (wanted is None or client == wanted) and (name := _text(client)) is not None
    }


def _place(data: bytes, entry: int) -> tuple[int, str]:
    """The sequence and the batch's name of the entry at this offset."""
    (location_len,) = struct.unpack_from("<H", data, entry + 12)
    sequence = _SEQ.unpack_from(data, entry + 4)[0]
    return sequence, batch_name(data[entry + 14 : entry + 14 + location_len].decode("utf-8", "replace"))
