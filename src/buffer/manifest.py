"""The manifest: which batches are in the queue, in which order, and which consumer may read them. Pure.

    manifest = entry* footer
    entry    = entry_len u32 | sequence u64 | location_len u16 | location | metadata_count u32 | metadata*
    metadata = start_index u32 | ingestion_time_ms i64 | payload_len u32 | payload
    footer   = entry_count u32 | next_sequence u64 | epoch u64 | version u16 = 1        (little-endian, 22 bytes)

Rules:
- A `Manifest` is a value; `append`, `dequeue` and `claim` return a new one. Its content never comes back once
  it changed (`next_sequence` grows, entries leave, the epoch grows), so a version read can never match again.
- Appending copies the bytes that are there without parsing them, and `from_bytes` checks only what costs no
  walk. Entries are checked as they are read: padding, gaps or a wrong count end in `CorruptManifest`.
- Sequences are contiguous and end at `next_sequence - 1`, so the first one is known without a look.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat

from buffer.errors import CorruptManifest, InvalidInput
from buffer.model import BatchDescriptor, Metadata

VERSION = 1
EPOCH_RESERVED = 2**64 - 1
"""The reference implementation's mark for "never claimed": no consumer may own it."""
LOCATION_BYTES_MAX = 2**16 - 1

_FOOTER = struct.Struct("<IQQH")
_HEAD = struct.Struct("<IQH")
_HOP = struct.Struct("<IQ")
_U32 = struct.Struct("<I")
_ITEM = struct.Struct("<IqI")
assert (_FOOTER.size, _HEAD.size, _ITEM.size) == (22, 14, 16)

_ENTRY_LEN_MIN = 8 + 2 + 4  # sequence, location_len, metadata_count


@dataclass(frozen=True, slots=True)
class PackedMetadata:
    """Metadata items in the bytes they have inside an entry.

    A batch of many small calls has as many items: packing them without an object each is ten times faster.
    """

    count: int
    data: bytes = field(repr=False)

    @classmethod
    def pack(
        cls,
        start_indexes: Sequence[int],
        ingestion_times_ms: Sequence[int],
        payloads: Sequence[bytes] | None = None,
    ) -> PackedMetadata:
        """One item per position of the columns; no `payloads` means that all are empty. Raises InvalidInput."""
        columns = [start_indexes, ingestion_times_ms] + ([] if payloads is None else [payloads])
        if len({len(column) for column in columns}) > 1:
            raise InvalidInput(f"metadata columns differ in length: {[len(column) for column in columns]}")
        lengths: Iterable[int] = repeat(0) if payloads is None else map(len, payloads)
        heads = map(_ITEM.pack, start_indexes, ingestion_times_ms, lengths)
        try:
            data = b"".join(heads if payloads is None else chain.from_iterable(zip(heads, payloads, strict=True)))
        except struct.error as error:
            raise InvalidInput(
                f"metadata does not fit the format ({error}): start_index is u32, ingestion_time_ms i64, and a "
                "payload has at most 2^32-1 bytes"
            ) from error
        return cls(len(start_indexes), data)


NewEntry = tuple[str, Sequence[Metadata] | PackedMetadata]
"""A location and its metadata, not yet in a queue."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One state of the queue. Iterate it for its entries; `entries_from(sequence)` starts further on."""

    entry_count: int
    next_sequence: int
    epoch: int
    _data: bytes = field(repr=False)
    _place: tuple[int, int] = field(default=(0, 0), repr=False, compare=False)
    """Entries and bytes before the last place read, so that reading on does not start over."""
    _far: tuple[int, int] = field(default=(0, 0), repr=False, compare=False)
    """The same for `newest`, which is asked beside a reader that goes through the entries: neither moves the other."""
    _location: str | None = field(default=None, repr=False, compare=False)
    """Where it was read, for the errors that its bytes may still hold."""

    # Making one

    @classmethod
    def empty(cls) -> Manifest:
        return cls(0, 0, 0, _FOOTER.pack(0, 0, 0, VERSION))

    @classmethod
    def from_bytes(cls, data: bytes, *, location: str | None = None) -> Manifest:
        """Read the footer and check it against the first entry.

        Raises CorruptManifest, here and while entries are read, each time with the `location` if it was given.
        """
        if len(data) < _FOOTER.size:
            what = "is empty" if not data else f"has {len(data)} bytes, too few for its footer"
            raise _corrupt(f"the manifest {what}; it must have at least {_FOOTER.size}", location)
        count, next_sequence, epoch, version = _FOOTER.unpack_from(data, len(data) - _FOOTER.size)
        if version != VERSION:
            raise _corrupt(
                f"unsupported manifest version {version}: this release reads version {VERSION}; "
                "upgrade it, or point at another queue",
                location,
                version=version,
            )
        if count > next_sequence:
            raise _corrupt(f"{count} entries do not fit below next_sequence {next_sequence}", location)
        manifest = cls(count, next_sequence, epoch, data, _location=location)
        if count:
            _parse_entry(manifest._body, 0, manifest.first_sequence, location)
        else:
            manifest._check_end(0)
        if count * (4 + _ENTRY_LEN_MIN) > len(manifest._body):
            # Before anyone sizes a list by the count: `list(manifest)` asks for the length first.
            raise _corrupt(
                f"truncated before an entry's length: {count} entries do not fit into {len(data)} bytes", location
            )
        return manifest

    def _changed(self, parts: list[bytes | memoryview], entry_count: int, next_sequence: int, epoch: int) -> Manifest:
        """Body and footer in one copy: with 100,000 entries the copy is what an append costs."""
        parts.append(_FOOTER.pack(entry_count, next_sequence, epoch, VERSION))
        return Manifest(entry_count, next_sequence, epoch, b"".join(parts), _location=self._location)

    def to_bytes(self) -> bytes:
        return self._data

    @property
    def _body(self) -> memoryview:
        return memoryview(self._data)[: -_FOOTER.size]

    # Looking

    @property
    def first_sequence(self) -> int:
        """The sequence of the oldest entry; `next_sequence` if there is none."""
        return self.next_sequence - self.entry_count

    def __len__(self) -> int:
        return self.entry_count

    def __iter__(self) -> Iterator[BatchDescriptor]:
        return self.entries_from(0)

    def entries_from(self, sequence: int) -> Iterator[BatchDescriptor]:
        """The entries with at least this sequence. Earlier ones are stepped over, not parsed."""
        index, offset = self._seek(sequence)
        body = self._body
        for expected in range(self.first_sequence + index, self.next_sequence):
            entry, offset = _parse_entry(body, offset, expected, self._location)
            yield entry
        self._check_end(offset)

    def following(self, earlier: Manifest) -> Manifest:
        """This manifest, read after `earlier`: entries known to stand at the same place are not walked again."""
        for memo in ("_place", "_far"):
            steps, offset = getattr(earlier, memo)
            if (
                self.first_sequence == earlier.first_sequence
                and self.entry_count >= steps
                # A manifest that was replaced may have other entries there: only the same bytes end at the same place.
                and self._data.startswith(earlier._body[:offset])
            ):
                object.__setattr__(self, memo, (steps, offset))
        return self

    def oldest(self) -> BatchDescriptor | None:
        """The first entry, if there is one."""
        return _parse_entry(self._body, 0, self.first_sequence, self._location)[0] if self.entry_count else None

    def newest(self) -> BatchDescriptor | None:
        """The last entry, if there is one. The walk to it is made once."""
        if not self.entry_count:
            return None
        target = self.entry_count - 1
        place = self._walk(target, max(known for known in ((0, 0), self._place, self._far) if known[0] <= target))
        object.__setattr__(self, "_far", place)  # a memo, not part of the value
        return _parse_entry(self._body, place[1], self.next_sequence - 1, self._location)[0]

    def read(self, sequence: int) -> BatchDescriptor | None:
        """The entry with exactly this sequence, if it is here."""
        if not self.first_sequence <= sequence < self.next_sequence:
            return None
        return next(self.entries_from(sequence))

    def offset_of(self, sequence: int) -> int:
        """Where in `to_bytes()` the entry of this sequence starts, or, behind the last one, where the entries end.

        For readers of the bytes themselves. The entries before it are checked as far as one steps over them.
        """
        return self._seek(sequence)[1]

    def reached(self, sequence: int, offset: int) -> None:
        """A reader of the bytes itself found this entry there: what is read next need not walk so far again."""
        object.__setattr__(self, "_place", (sequence - self.first_sequence, offset))  # a memo, not part of the value

    # Changing: each returns a new manifest

    def append(self, location: str, metadata: Sequence[Metadata] = ()) -> Manifest:
        """Add one entry under `next_sequence`. Raises InvalidInput, naming what does not fit."""
        return self.append_all([(location, metadata)])

    def append_all(self, entries: Iterable[NewEntry]) -> Manifest:
        """Add a group of entries in one copy of what is there."""
        new = list(entries)
        count, next_sequence = self.entry_count + len(new), self.next_sequence + len(new)
        if count > 2**32 - 1 or next_sequence > 2**64 - 1:
            raise InvalidInput(
                f"the manifest cannot hold {count} entries up to sequence {next_sequence}; let a consumer dequeue"
            )
        parts: list[bytes | memoryview] = [self._body]
        for sequence, (location, metadata) in enumerate(new, self.next_sequence):
            parts.append(_encode_entry(sequence, location, metadata))
        return self._changed(parts, count, next_sequence, self.epoch)

    def dequeue(self, through: int) -> Manifest:
        """Remove the entries up to and including `through`; `next_sequence` stays."""
        index, offset = self._seek(through + 1)
        return self._changed([self._body[offset:]], self.entry_count - index, self.next_sequence, self.epoch)

    def claim(self) -> Manifest:
        """Take the next epoch, which fences whoever holds this one."""
        epoch = self.epoch + 1 if self.epoch + 1 < EPOCH_RESERVED else 0
        return self._changed([self._body], self.entry_count, self.next_sequence, epoch)

    # Walking the bytes

    def _seek(self, sequence: int) -> tuple[int, int]:
        """How many entries, and bytes, lie before `sequence`."""
        target = min(max(sequence - self.first_sequence, 0), self.entry_count)
        place = self._walk(target, self._place)
        object.__setattr__(self, "_place", place)  # a memo, not part of the value
        return place

    def _walk(self, target: int, known: tuple[int, int]) -> tuple[int, int]:
        """The place behind the first `target` entries. `known` is such a place; the walk begins there if it can."""
        first, body = self.first_sequence, self._body
        steps, offset = known if known[0] <= target else (0, 0)
        end = len(body)
        unpack = _HOP.unpack_from
        for expected in range(first + steps, first + target):
            if offset + _HOP.size > end:
                raise _damaged("truncated before an entry's length", offset, self._location)
            length, found = unpack(body, offset)
            if found != expected:
                raise _damaged(f"sequence {found} stands where {expected} belongs", offset, self._location)
            if length < _ENTRY_LEN_MIN or offset + 4 + length > end:
                raise _damaged(f"entry length {length} does not fit", offset, self._location)
            offset += 4 + length
        if target == self.entry_count:
            self._check_end(offset)
        return target, offset

    def _check_end(self, offset: int) -> None:
        if offset != len(self._body):
            raise _damaged(
                f"{self.entry_count} entries did not consume all bytes: {len(self._body) - offset} are left",
                offset,
                self._location,
            )


def _corrupt(what: str, location: str | None, **facts: int) -> CorruptManifest:
    return CorruptManifest(what if location is None else f"{location!r}: {what}", location=location, **facts)


def _damaged(what: str, offset: int, location: str | None) -> CorruptManifest:
    return _corrupt(f"manifest damaged at byte {offset}: {what}", location, offset=offset)


def _parse_entry(
    body: bytes | memoryview, offset: int, expected: int, where: str | None
) -> tuple[BatchDescriptor, int]:
    """One entry and the offset behind it. Everything in it must lie inside its own length, exactly."""
    if offset + 4 > len(body):
        raise _damaged("truncated before an entry's length", offset, where)
    (length,) = _U32.unpack_from(body, offset)
    end = offset + 4 + length
    if length < _ENTRY_LEN_MIN:
        raise _damaged(f"entry length {length} is below the minimum of {_ENTRY_LEN_MIN}", offset, where)
    if end > len(body):
        raise _damaged(f"entry length {length} runs past the end", offset, where)
    _, sequence, location_len = _HEAD.unpack_from(body, offset)
    if sequence != expected:
        raise _damaged(f"sequence {sequence} stands where {expected} belongs", offset, where)
    at = offset + _HEAD.size + location_len
    if at + 4 > end:
        raise _damaged(f"location length {location_len} does not fit entry length {length}", offset, where)
    try:
        location = str(body[offset + _HEAD.size : at], "utf-8")
    except UnicodeDecodeError as error:
        raise _damaged(f"the location of sequence {sequence} is not UTF-8 ({error.reason})", offset, where) from error
    metadata, at = _parse_metadata(body, at, end, where)
    if at != end:
        raise _damaged(f"{end - at} unknown bytes inside the entry of sequence {sequence}", at, where)
    return BatchDescriptor(sequence, location, metadata), end


def _parse_metadata(body: bytes | memoryview, at: int, end: int, where: str | None) -> tuple[tuple[Metadata, ...], int]:
    (count,) = _U32.unpack_from(body, at)
    at += 4
    items = []
    for index in range(count):  # ends where the bytes do: a count of 2^32-1 costs no more than they
        left = end - at
        if left < _ITEM.size:
            field_name = "start index" if left < 4 else "ingestion time" if left < 12 else "length"
            raise _damaged(f"metadata item {index} of {count} is truncated before its {field_name}", at, where)
        start_index, ingestion_time_ms, payload_len = _ITEM.unpack_from(body, at)
        at += _ITEM.size
        if at + payload_len > end:
            raise _damaged(f"a metadata payload of {payload_len} bytes runs past its entry", at, where)
        items.append(Metadata(start_index, ingestion_time_ms, bytes(body[at : at + payload_len])))
        at += payload_len
    return tuple(items), at


def _encode_entry(sequence: int, location: str, metadata: Sequence[Metadata] | PackedMetadata) -> bytes:
    try:
        name = location.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInput(f"the location {location!r} is not valid UTF-8") from error
    if len(name) > LOCATION_BYTES_MAX:
        raise InvalidInput(
            f"the location {location[:40]!r}… has {len(name):,} bytes; a manifest holds at most "
            f"{LOCATION_BYTES_MAX:,}: choose a shorter data_path_prefix"
        )
    if isinstance(metadata, PackedMetadata):
        parts = [name, _U32.pack(metadata.count), metadata.data]
    else:
        parts = [name, _U32.pack(len(metadata)), *_encode_metadata(location, metadata)]
    length = 8 + 2 + sum(map(len, parts))
    if length > 2**32 - 1:
        raise InvalidInput(f"the entry of {location!r} has {length:,} bytes, more than 32 bits can count")
    return b"".join((_HEAD.pack(length, sequence, len(name)), *parts))


def _encode_metadata(location: str, metadata: Sequence[Metadata]) -> list[bytes]:
    parts = []
    for item in metadata:
        try:
            parts.append(_ITEM.pack(item.start_index, item.ingestion_time_ms, len(item.payload)))
        except struct.error as error:
            raise InvalidInput(
                f"metadata of {location!r} does not fit the format: start_index {item.start_index} (u32), "
                f"ingestion_time_ms {item.ingestion_time_ms} (i64), {len(item.payload)} bytes of payload (u32)"
            ) from error
        parts.append(item.payload)
    return parts
