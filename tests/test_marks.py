"""Client marks on the wire: what counts as one, what users see, and how the newest ones are found."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer.errors import CorruptManifest, InvalidInput
from buffer.manifest import Manifest, PackedMetadata
from buffer.marks import Mark, decode_mark, encode_mark, mark_of, marked, newest_marks, without_mark
from buffer.model import BatchDescriptor, Metadata

NAME = "01JCQZZZZZZZZZZZZZZZZZZZZZ.batch"


def calls(*starts: int, payload: bytes = b"p") -> PackedMetadata:
    return PackedMetadata.pack(list(starts), [1000 + start for start in starts], [payload] * len(starts))


def queue(*batches: tuple[str, int] | None) -> Manifest:
    """One entry each, with this client's mark or none."""
    entries = [
        (f"ingest/batch-{index}", calls(0) if mark is None else marked(calls(0), encode_mark(*mark)))
        for index, mark in enumerate(batches)
    ]
    return Manifest.empty().append_all(entries)


# The payload


def test_should_write_the_documented_bytes() -> None:
    assert encode_mark("é7", 258) == b"BCM1\x03\xc3\xa97\x02\x01\x00\x00\x00\x00\x00\x00"


@given(st.text(min_size=1, max_size=63), st.integers(0, 2**64 - 1))
def test_should_read_back_what_it_writes(client_id: str, client_seq: int) -> None:
    try:
        client_id.encode()
    except UnicodeEncodeError:
        with pytest.raises(InvalidInput, match="UTF-8"):
            encode_mark(client_id, client_seq)
        return
    assert decode_mark(encode_mark(client_id, client_seq)) == (client_id, client_seq)


@pytest.mark.parametrize("client_id", ["", "x" * 256, "é" * 128, b"bytes", None])
def test_should_refuse_ids_that_do_not_fit(client_id: str) -> None:
    with pytest.raises(InvalidInput, match="client_id"):
        encode_mark(client_id, 1)


@pytest.mark.parametrize("client_seq", [-1, 2**64, True, 1.0, "1"])
def test_should_refuse_numbers_that_do_not_fit(client_seq: int) -> None:
    with pytest.raises(InvalidInput, match="client_seq"):
        encode_mark("a", client_seq)


@given(st.binary(max_size=40))
def test_should_take_nothing_else_for_a_mark(payload: bytes) -> None:
    whole = b"BCM1" + payload
    decoded = decode_mark(whole)
    assert decoded is None or encode_mark(*decoded) == whole
    assert decode_mark(payload) is None or payload.startswith(b"BCM1")


@pytest.mark.parametrize(
    "payload",
    [
        b"BCM1",
        b"BCM1\x01a" + bytes(7),
        b"BCM1\x01a" + bytes(9),
        b"BCM1\x00" + bytes(8),
        b"BCM1\x01\xff" + bytes(8),
        b"BCM2\x01a" + bytes(8),
    ],
)
def test_should_not_decode_damaged_marks(payload: bytes) -> None:
    assert decode_mark(payload) is None


# In an entry


def test_should_add_one_item_over_no_entries_and_leave_the_others_as_they_are() -> None:
    packed = calls(0, 3, 7)
    with_mark = marked(packed, encode_mark("a", 5))
    entry = next(iter(Manifest.empty().append_all([(NAME, with_mark)])))
    plain = next(iter(Manifest.empty().append_all([(NAME, packed)])))
    assert entry.metadata == (Metadata(0, 1000, encode_mark("a", 5)), *plain.metadata)
    assert mark_of(entry.metadata) == ("a", 5)
    assert without_mark(entry.metadata) == plain.metadata


def test_should_refuse_to_mark_a_batch_of_no_calls() -> None:
    with pytest.raises(InvalidInput, match="no calls"):
        marked(PackedMetadata.pack([], []), encode_mark("a", 5))


def lookalikes() -> list[tuple[Metadata, ...]]:
    mark = encode_mark("a", 9)
    return [
        (Metadata(0, 1, mark),),  # covers all entries
        (Metadata(0, 1, mark), Metadata(1, 1, b"")),  # covers one
        (Metadata(0, 1, b"p"), Metadata(3, 1, mark), Metadata(3, 1, b"")),  # not at the head
        (Metadata(0, 1, mark + b"\0"), Metadata(0, 1, b"")),  # too long
        (Metadata(0, 1, mark[:-1]), Metadata(0, 1, b"")),  # too short
        (Metadata(0, 1, b"p" + mark), Metadata(0, 1, b"")),
        (),
    ]


@pytest.mark.parametrize("metadata", lookalikes())
def test_should_leave_a_users_own_payload_alone(metadata: tuple[Metadata, ...]) -> None:
    assert mark_of(metadata) is None
    assert without_mark(metadata) == metadata
    assert newest_marks(Manifest.empty().append(NAME, metadata)) == {}


def test_should_not_find_marks_in_locations() -> None:
    assert newest_marks(Manifest.empty().append(f"ingest/BCM1\x01a{'x' * 40}")) == {}


# In a manifest


def test_should_find_the_largest_mark_of_each_client_with_its_place() -> None:
    manifest = queue(("a", 1), None, ("b", 7), ("a", 2), None)
    assert newest_marks(manifest) == {"a": Mark(2, 3, "batch-3"), "b": Mark(7, 2, "batch-2")}
    assert newest_marks(manifest, client_id="a") == {"a": Mark(2, 3, "batch-3")}
    assert newest_marks(manifest, client_id="c") == {}


def test_should_look_only_where_it_is_asked_to() -> None:
    manifest = queue(("a", 1), ("a", 2), ("a", 3), ("b", 1)).dequeue(0)
    assert newest_marks(manifest, through=1) == {"a": Mark(2, 1, "batch-1")}
    assert newest_marks(manifest, first=2, through=2) == {"a": Mark(3, 2, "batch-2")}
    assert newest_marks(manifest, first=4) == {}
    assert newest_marks(manifest, through=0) == {}


def test_should_keep_only_the_end_of_a_foreign_writers_long_name() -> None:
    manifest = Manifest.empty().append_all([("x" * 300 + "end", marked(calls(0), encode_mark("a", 1)))])
    assert newest_marks(manifest)["a"].batch == "x" * 61 + "end"


def slowly(manifest: Manifest, first: int, through: int, client_id: str | None) -> dict[str, Mark]:
    """The same by the rules as they are written, entry by entry."""
    newest: dict[str, Mark] = {}
    for entry in manifest:
        found = mark_of(entry.metadata)
        if found is None or not first <= entry.sequence <= through or client_id not in (None, found[0]):
            continue
        known = newest.get(found[0])
        if known is None or found[1] >= known.client_seq:
            newest[found[0]] = Mark(found[1], entry.sequence, entry.location.rpartition("/")[2][-64:])
    return newest


ITEMS = st.lists(
    st.builds(
        Metadata,
        st.integers(0, 2),
        st.just(5),
        st.one_of(
            st.sampled_from([b"", b"BCM1", encode_mark("a", 3) + b"x", b"BCM1\x01\xff" + bytes(8)]),
            st.builds(encode_mark, st.sampled_from(["a", "b", "BCM1", "é" * 100]), st.integers(0, 3)),
            st.binary(max_size=30),
        ),
    ),
    max_size=3,
)


@given(
    st.lists(st.tuples(st.sampled_from(["ingest/x", "BCM1\x01aBCM1", ""]), ITEMS), max_size=6),
    st.integers(0, 6),
    st.integers(0, 7),
    st.integers(-1, 7),
    st.sampled_from([None, "a", "BCM1", "é" * 100]),
)
def test_should_find_the_same_as_an_entry_by_entry_walk(
    entries: list[tuple[str, list[Metadata]]], dequeued: int, first: int, through: int, client_id: str | None
) -> None:
    manifest = Manifest.empty().append_all(entries).dequeue(dequeued - 1)
    expected = slowly(manifest, first, through, client_id)
    assert newest_marks(manifest, first=first, through=through, client_id=client_id) == expected
    assert list(manifest) == list(Manifest.from_bytes(manifest.to_bytes())), "the place it remembers is right"


@given(st.data())
def test_should_find_or_refuse_but_never_crash_on_damaged_manifests(data: st.DataObject) -> None:
    raw = bytearray(queue(("a", 1), ("b", 2), ("a", 3)).to_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 23))] = data.draw(st.integers(0, 255))
    try:
        manifest = Manifest.from_bytes(bytes(raw))
        newest_marks(manifest)
    except CorruptManifest:
        return
    for steps in range(4):
        manifest.dequeue(steps - 1)  # what it remembers does not lead astray


def test_should_refuse_a_manifest_that_ends_early() -> None:
    whole = queue(("a", 1), ("a", 2))
    cut = whole.to_bytes()[: len(whole.to_bytes()) - 22 - 30] + struct.pack("<IQQH", 2, 2, 0, 1)
    with pytest.raises(CorruptManifest):
        newest_marks(Manifest.from_bytes(cut))


# The rules of the reference implementation


FROZEN = bytes.fromhex(
    "46000000" "0000000000000000" "0600" "612f6221c3a9" "02000000"
    "00000000" "0100000000000000" "10000000" "42434d31" "03" "732d37" "2900000000000000"
    "00000000" "0100000000000000" "02000000" "6869"
    "01000000" "0100000000000000" "0000000000000000" "0100"
)  # fmt: skip
"""A queue of one batch `a/b!é` with the call 41 of client `s-7`, at time 1 with the metadata `hi`. Never to change."""


def test_should_read_and_write_the_frozen_bytes_of_a_marked_queue() -> None:
    metadata = marked(PackedMetadata.pack([0], [1], [b"hi"]), encode_mark("s-7", 41))
    manifest = Manifest.empty().append_all([("a/b!é", metadata)])
    assert manifest.to_bytes() == FROZEN
    assert newest_marks(Manifest.from_bytes(FROZEN)) == {"s-7": Mark(41, 0, "b!é")}


def test_should_decode_by_the_rules_of_the_reference_implementation() -> None:
    """A file with marks, read by a decoder that knows the published format and nothing else."""
    manifest = queue(None, ("sensor-7", 41))
    data = manifest.to_bytes()
    count, next_sequence, epoch, version = struct.unpack("<IQQH", data[-22:])
    assert (count, next_sequence, epoch, version) == (2, 2, 0, 1)
    offset = 0
    decoded = []
    for _ in range(count):
        entry_len, sequence, location_len = struct.unpack_from("<IQH", data, offset)
        at = offset + 14
        location = data[at : at + location_len].decode()
        at += location_len
        (items,) = struct.unpack_from("<I", data, at)
        at += 4
        metadata = []
        for _ in range(items):
            start_index, time_ms, payload_len = struct.unpack_from("<IqI", data, at)
            metadata.append(Metadata(start_index, time_ms, data[at + 16 : at + 16 + payload_len]))
            at += 16 + payload_len
        offset += 4 + entry_len
        assert at == offset
        decoded.append(BatchDescriptor(sequence, location, tuple(metadata)))
    assert offset == len(data) - 22
    assert decoded == list(manifest)
    assert [item.start_index for item in decoded[1].metadata] == [0, 0]
    assert decoded[1].metadata[1:] == decoded[0].metadata
