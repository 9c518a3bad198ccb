"""The manifest as a value: what it accepts, what it refuses, and that changing it never parses or loses entries.

The first group mirrors, name by name, what the reference implementation tests of its manifest.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import pytest

from buffer.errors import CorruptManifest, InvalidInput
from buffer.manifest import LOCATION_BYTES_MAX, Manifest, PackedMetadata
from buffer.model import BatchDescriptor, Metadata

FOOTER_SIZE = 22


def footer(count: int, next_sequence: int, epoch: int = 0, version: int = 1) -> bytes:
    return struct.pack("<IQQH", count, next_sequence, epoch, version)


def entry(sequence: int, location: bytes = b"a", metadata: bytes = struct.pack("<I", 0)) -> bytes:
    body = struct.pack("<QH", sequence, len(location)) + location + metadata
    return struct.pack("<I", len(body)) + body


def manifest_of(*locations: str) -> Manifest:
    return Manifest.empty().append_all([(location, ()) for location in locations])


def locations(manifest: Manifest) -> list[str]:
    return [e.location for e in manifest]


def sequences(manifest: Manifest) -> list[int]:
    return [e.sequence for e in manifest]


def decode(data: bytes) -> list[BatchDescriptor]:
    return list(Manifest.from_bytes(data))


class TestReferenceBehaviour:
    def test_should_create_empty_manifest(self) -> None:
        manifest = Manifest.empty()
        assert (len(manifest), manifest.next_sequence, manifest.epoch) == (0, 0, 0)
        assert manifest.to_bytes() == bytes(20) + b"\x01\x00"

    def test_should_parse_valid_manifest_bytes(self) -> None:
        data = entry(0, b"first") + entry(1, b"second") + footer(2, 2)
        assert [(e.sequence, e.location) for e in decode(data)] == [(0, "first"), (1, "second")]

    def test_should_parse_footer_only_bytes(self) -> None:
        manifest = Manifest.from_bytes(footer(0, 42))
        assert (len(manifest), list(manifest)) == (0, [])
        assert sequences(manifest.append("a")) == [42]

    def test_should_reject_empty_bytes(self) -> None:
        with pytest.raises(CorruptManifest, match="is empty"):
            Manifest.from_bytes(b"")

    def test_should_reject_bytes_too_short_for_footer(self) -> None:
        with pytest.raises(CorruptManifest, match="21 bytes, too few for its footer"):
            Manifest.from_bytes(bytes(FOOTER_SIZE - 1))

    def test_should_reject_wrong_version(self) -> None:
        with pytest.raises(CorruptManifest, match="unsupported manifest version 99") as caught:
            Manifest.from_bytes(footer(0, 0, version=99))
        assert caught.value.version == 99

    def test_should_reject_version_zero(self) -> None:
        with pytest.raises(CorruptManifest, match="unsupported manifest version 0"):
            Manifest.from_bytes(footer(0, 0, version=0))

    def test_should_make_appended_entry_accessible_via_iter(self) -> None:
        items = (Metadata(0, 1000, b"payload"),)
        assert list(Manifest.empty().append("a", items)) == [BatchDescriptor(0, "a", items)]

    def test_should_append_to_existing_base_entries(self) -> None:
        manifest = Manifest.from_bytes(manifest_of("base").to_bytes()).append("new")
        assert [(e.sequence, e.location) for e in manifest] == [(0, "base"), (1, "new")]

    def test_should_preserve_append_order(self) -> None:
        manifest = Manifest.empty().append("c").append("a").append("b")
        assert (locations(manifest), sequences(manifest)) == (["c", "a", "b"], [0, 1, 2])

    def test_should_handle_entry_with_empty_location(self) -> None:
        manifest = Manifest.empty().append("")
        assert decode(manifest.to_bytes()) == [BatchDescriptor(0, "", ())]

    def test_should_handle_entry_with_large_metadata(self) -> None:
        items = (Metadata(0, 5, bytes(range(256)) * 4),)
        assert decode(Manifest.empty().append("a", items).to_bytes())[0].metadata == items

    def test_should_handle_negative_ingestion_time(self) -> None:
        items = (Metadata(0, -1), Metadata(1, -(2**63)))
        assert decode(Manifest.empty().append("a", items).to_bytes())[0].metadata == items

    def test_should_return_footer_for_empty_manifest(self) -> None:
        assert Manifest.empty().to_bytes() == footer(0, 0)

    def test_should_merge_base_and_appended(self) -> None:
        base = Manifest.from_bytes(manifest_of("base").to_bytes())
        assert locations(Manifest.from_bytes(base.append("new").to_bytes())) == ["base", "new"]

    def test_should_write_correct_footer_count(self) -> None:
        base = Manifest.from_bytes(manifest_of("a", "b").to_bytes())
        data = base.append("c").append("d").append("e").to_bytes()
        assert data[-FOOTER_SIZE:] == footer(count=5, next_sequence=5, epoch=0, version=1)

    def test_should_round_trip_from_entries_to_bytes_from_bytes(self) -> None:
        first = [Metadata(0, 100, b"x"), Metadata(7, 200, b"")]
        second = [Metadata(0, 300, b"\xff\x00")]
        manifest = Manifest.empty().append("a", first).append("b", second)
        assert decode(manifest.to_bytes()) == [
            BatchDescriptor(0, "a", tuple(first)),
            BatchDescriptor(1, "b", tuple(second)),
        ]

    def test_should_round_trip_append_serialize_reparse(self) -> None:
        assert len(decode(Manifest.empty().append("a").append("b").to_bytes())) == 2

    def test_should_chain_serialize_reparse_append(self) -> None:
        manifest = Manifest.empty()
        for location in "abc":
            manifest = Manifest.from_bytes(manifest.append(location).to_bytes())
        assert (sequences(manifest), locations(manifest)) == ([0, 1, 2], ["a", "b", "c"])

    def test_should_dequeue_entries_through_sequence(self) -> None:
        left = manifest_of(*"abcde").dequeue(2)
        assert (sequences(left), left.next_sequence, len(left)) == ([3, 4], 5, 2)
        assert left.to_bytes()[-FOOTER_SIZE:] == footer(2, 5)

    def test_should_dequeue_all_entries(self) -> None:
        assert manifest_of(*"abc").dequeue(2).to_bytes() == footer(0, 3)

    def test_should_dequeue_nothing_when_sequence_below_first(self) -> None:
        manifest = Manifest.from_bytes(footer(0, 5)).append("a").append("b").append("c")
        assert sequences(manifest) == [5, 6, 7]
        assert manifest.dequeue(3) == manifest

    def test_should_append_after_dequeue(self) -> None:
        manifest = manifest_of(*"abc").dequeue(0).append("d")
        assert [(e.sequence, e.location) for e in manifest] == [(1, "b"), (2, "c"), (3, "d")]

    def test_should_wrap_epoch_to_zero_at_max(self) -> None:
        assert Manifest.from_bytes(footer(0, 0, epoch=2**64 - 3)).claim().epoch == 2**64 - 2
        assert Manifest.from_bytes(footer(0, 0, epoch=2**64 - 2)).claim().epoch == 0
        assert Manifest.from_bytes(footer(0, 0, epoch=2**64 - 1)).claim().epoch == 0

    def test_should_reject_trailing_bytes_before_footer(self) -> None:
        with pytest.raises(CorruptManifest, match="did not consume all bytes: 3 are left"):
            decode(entry(0) + b"xxx" + footer(1, 1))

    def test_should_reject_entry_with_entry_len_below_minimum(self) -> None:
        data = struct.pack("<I", 13) + bytes(13) + footer(1, 1)
        with pytest.raises(CorruptManifest, match="entry length 13 is below the minimum of 14"):
            decode(data)

    def test_should_reject_entry_with_entry_len_below_minimum_for_location(self) -> None:
        data = struct.pack("<IQH", 15, 0, 5) + b"hello" + footer(1, 1)
        with pytest.raises(CorruptManifest, match="location length 5 does not fit entry length 15"):
            decode(data)

    def test_should_reject_entry_truncated_before_entry_len(self) -> None:
        with pytest.raises(CorruptManifest, match="truncated before an entry's length"):
            decode(b"\x01\x02" + footer(1, 1))

    def test_should_reject_entry_truncated_before_metadata_start_index(self) -> None:
        with pytest.raises(CorruptManifest, match="item 0 of 1 is truncated before its start index"):
            decode(entry(0, metadata=struct.pack("<I", 1)) + footer(1, 1))

    def test_should_reject_entry_truncated_before_metadata_ingestion_time(self) -> None:
        with pytest.raises(CorruptManifest, match="truncated before its ingestion time"):
            decode(entry(0, metadata=struct.pack("<II", 1, 0)) + footer(1, 1))

    def test_should_reject_entry_truncated_before_metadata_length(self) -> None:
        with pytest.raises(CorruptManifest, match="truncated before its length"):
            decode(entry(0, metadata=struct.pack("<IIq", 1, 0, 7)) + footer(1, 1))

    def test_should_reject_entry_truncated_before_metadata_payload(self) -> None:
        metadata = struct.pack("<IIqI", 1, 0, 7, 10) + b"ab"
        with pytest.raises(CorruptManifest, match="payload of 10 bytes runs past its entry"):
            decode(entry(0, metadata=metadata) + footer(1, 1))

    def test_should_reject_location_exceeding_u16_max(self) -> None:
        with pytest.raises(InvalidInput, match="has 65,536 bytes"):
            Manifest.empty().append("x" * (LOCATION_BYTES_MAX + 1))

    def test_should_read_entry_by_sequence(self) -> None:
        assert manifest_of(*"abc").read(1) == BatchDescriptor(1, "b")

    def test_should_read_none_for_missing_sequence(self) -> None:
        manifest = manifest_of(*"abc").dequeue(0)
        assert [manifest.read(s) for s in (99, 3, 0, -1)] == [None] * 4


class TestStrictness:
    @pytest.mark.parametrize(
        ("data", "why"),
        [
            (entry(0) + entry(2) + footer(2, 3), "sequence 0 stands where 1 belongs"),
            (entry(1) + entry(3) + footer(2, 3), "sequence 3 stands where 2 belongs"),
            (entry(1) + entry(0) + footer(2, 3), "sequence 0 stands where 2 belongs"),
            (entry(9) + footer(1, 2), "sequence 9 stands where 1 belongs"),
            (entry(0) + entry(0) + footer(2, 2), "sequence 0 stands where 1 belongs"),
            (entry(0) + entry(1) + footer(1, 2), "sequence 0 stands where 1 belongs"),
            (entry(0) + entry(1) + footer(1, 1), "did not consume all bytes"),
            (entry(0) + entry(1) + footer(3, 3), "truncated before an entry's length"),
            (entry(0) + footer(0, 1), "did not consume all bytes"),
            (footer(1, 0), "1 entries do not fit below next_sequence 0"),
            (entry(0, metadata=struct.pack("<I", 0) + b"pad") + footer(1, 1), "3 unknown bytes inside the entry"),
            (entry(0, location=b"\xff\xfe") + footer(1, 1), "not UTF-8"),
            (struct.pack("<I", 1000) + entry(0)[4:] + footer(1, 1), "entry length 1000 runs past the end"),
            (entry(0, metadata=struct.pack("<I", 2**32 - 1)) + footer(1, 1), "item 0 of 4294967295"),
            (footer(2**32 - 1, 2**32), "truncated before an entry's length"),
        ],
    )
    def test_should_reject_damaged_manifest(self, data: bytes, why: str) -> None:
        with pytest.raises(CorruptManifest, match=why):
            decode(data)

    @pytest.mark.parametrize("change", [lambda m: m.dequeue(1), lambda m: list(m.entries_from(2))])
    @pytest.mark.parametrize(
        "middle",
        [
            entry(7),  # a gap
            struct.pack("<I", 13) + bytes(13),  # too short
            struct.pack("<IQ", 2**32 - 1, 1) + bytes(6),  # longer than all there is
        ],
    )
    def test_should_reject_damage_that_is_only_stepped_over(self, change, middle: bytes) -> None:
        manifest = Manifest.from_bytes(entry(0) + middle + entry(2) + footer(3, 3))
        with pytest.raises(CorruptManifest):
            change(manifest)

    def test_should_say_where_the_damage_is(self) -> None:
        good = entry(0)
        with pytest.raises(CorruptManifest, match=f"damaged at byte {len(good)}:") as caught:
            decode(good + entry(5) + footer(2, 2))
        assert caught.value.offset == len(good)

    def test_should_reject_when_dequeueing_all_of_a_manifest_with_trailing_bytes(self) -> None:
        manifest = Manifest.from_bytes(entry(0) + b"xxx" + footer(1, 1))
        with pytest.raises(CorruptManifest, match="did not consume all bytes"):
            manifest.dequeue(0)

    @pytest.mark.parametrize(
        "item", [Metadata(-1, 0), Metadata(2**32, 0), Metadata(0, 2**63), Metadata(0, -(2**63) - 1)]
    )
    def test_should_name_metadata_that_does_not_fit(self, item: Metadata) -> None:
        with pytest.raises(InvalidInput, match=r"metadata of 'loc'.*start_index"):
            Manifest.empty().append("loc", [item])
        with pytest.raises(InvalidInput, match="metadata does not fit"):
            PackedMetadata.pack([item.start_index], [item.ingestion_time_ms])

    def test_should_reject_location_that_is_not_unicode(self) -> None:
        with pytest.raises(InvalidInput, match="not valid UTF-8"):
            Manifest.empty().append("\udc80")

    def test_should_count_location_in_bytes(self) -> None:
        longest = "é" * (LOCATION_BYTES_MAX // 2) + "x"
        assert decode(Manifest.empty().append(longest).to_bytes())[0].location == longest
        with pytest.raises(InvalidInput, match="65,536 bytes"):
            Manifest.empty().append(longest + "x")

    @pytest.mark.parametrize("group", [1, 2, 3])
    def test_should_refuse_sequences_beyond_64_bits(self, group: int) -> None:
        almost = Manifest.from_bytes(footer(0, 2**64 - 1))
        with pytest.raises(InvalidInput, match=f"up to sequence {2**64 - 1 + group}"):
            almost.append_all([("a", ())] * group)

    def test_should_hold_the_last_possible_sequence(self) -> None:
        manifest = Manifest.from_bytes(footer(0, 2**64 - 2)).append("a")
        assert sequences(Manifest.from_bytes(manifest.to_bytes())) == [2**64 - 2]

    def test_should_refuse_more_entries_than_the_footer_can_count(self) -> None:
        full = Manifest(2**32 - 1, 2**32, 0, footer(2**32 - 1, 2**32))  # as if so many stood there
        with pytest.raises(InvalidInput, match="cannot hold 4294967296 entries"):
            full.append("a")


class TestPackedMetadata:
    def test_should_encode_like_metadata_objects(self) -> None:
        items = [Metadata(0, 1, b"a"), Metadata(3, -2, b""), Metadata(2**32 - 1, 2**63 - 1, b"ccc")]
        packed = PackedMetadata.pack([0, 3, 2**32 - 1], [1, -2, 2**63 - 1], [b"a", b"", b"ccc"])
        assert Manifest.empty().append_all([("x", packed)]) == Manifest.empty().append("x", items)

    def test_should_leave_payloads_empty_when_there_are_none(self) -> None:
        manifest = Manifest.empty().append_all([("x", PackedMetadata.pack([0, 1], [5, 6]))])
        assert next(iter(manifest)).metadata == (Metadata(0, 5), Metadata(1, 6))

    @pytest.mark.parametrize("columns", [([0, 1], [5]), ([0], [5, 6]), ([0], [5], [b"", b""]), ([0, 1], [5, 6], [b""])])
    def test_should_refuse_columns_of_different_lengths(self, columns) -> None:
        with pytest.raises(InvalidInput, match="differ in length"):
            PackedMetadata.pack(*columns)


class TestAppendWithoutParsing:
    def test_should_copy_existing_bytes_untouched(self) -> None:
        base = manifest_of(*"abc").to_bytes()
        assert Manifest.from_bytes(base).append("d").to_bytes().startswith(base[:-FOOTER_SIZE])

    def test_should_append_behind_entries_it_could_not_parse(self) -> None:
        # Only a walk would notice the damage: an append that does not walk leaves it for the reader to find.
        damaged = entry(0) + entry(9) + footer(2, 2)
        appended = Manifest.from_bytes(damaged).append("c").to_bytes()
        assert appended == damaged[:-FOOTER_SIZE] + entry(2, b"c") + footer(3, 3)

    def test_should_write_a_group_like_single_appends(self) -> None:
        group = [("a", [Metadata(0, 1, b"x")]), ("b", ()), ("c", [Metadata(0, 2)])]
        singly = Manifest.empty()
        for location, metadata in group:
            singly = singly.append(location, metadata)
        assert Manifest.empty().append_all(group) == singly

    def test_should_take_a_group_from_any_iterable(self) -> None:
        def group() -> Iterator[tuple[str, Sequence[Metadata]]]:
            yield "a", ()
            yield "b", ()

        assert locations(Manifest.empty().append_all(group())) == ["a", "b"]

    def test_should_keep_epoch_and_entries_when_claiming(self) -> None:
        base = manifest_of(*"ab")
        assert base.claim().to_bytes() == base.to_bytes()[:-FOOTER_SIZE] + footer(2, 2, epoch=1)
        assert base.claim().append("c").dequeue(0).epoch == 1


class TestLocation:
    """Whoever reads a manifest says where it lay, and every error of it says so too, however late it comes."""

    PLACE = "some/where/manifest"

    def test_should_name_its_place_when_the_footer_is_damaged(self) -> None:
        for data in (b"", bytes(FOOTER_SIZE), footer(2, 1), footer(9, 9), b"x" + footer(0, 0)):
            with pytest.raises(CorruptManifest, match=f"^'{self.PLACE}': ") as caught:
                Manifest.from_bytes(data, location=self.PLACE)
            assert caught.value.location == self.PLACE

    def test_should_name_its_place_when_a_later_entry_is_damaged(self) -> None:
        good = entry(0)
        manifest = Manifest.from_bytes(good + entry(5) + footer(2, 2), location=self.PLACE)
        for walk in (list, lambda m: m.read(1), lambda m: m.dequeue(1), lambda m: list(m.claim())):
            with pytest.raises(CorruptManifest, match=f"^'{self.PLACE}': manifest damaged at byte") as caught:
                walk(manifest)
            assert (caught.value.location, caught.value.offset) == (self.PLACE, len(good))

    def test_should_keep_its_place_through_changes(self) -> None:
        manifest = Manifest.from_bytes(entry(0) + b"xxx" + footer(1, 1), location=self.PLACE)
        with pytest.raises(CorruptManifest) as caught:
            list(manifest.append("b").claim())
        assert caught.value.location == self.PLACE

    def test_should_be_equal_wherever_it_lay(self) -> None:
        data = entry(0) + footer(1, 1)
        assert Manifest.from_bytes(data, location=self.PLACE) == Manifest.from_bytes(data)
