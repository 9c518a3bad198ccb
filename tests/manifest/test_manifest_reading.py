"""The manifest as a value that is read again and again: remembering a place never changes what is read."""

from __future__ import annotations

import pickle
import struct

from hypothesis import given
from hypothesis import strategies as st

from buffer.manifest import Manifest
from buffer.model import Metadata


def entry(sequence: int, location: bytes) -> bytes:
    body = struct.pack("<QH", sequence, len(location)) + location + struct.pack("<I", 0)
    return struct.pack("<I", len(body)) + body


def manifest_of(*locations: str) -> Manifest:
    return Manifest.empty().append_all([(location, ()) for location in locations])


def locations(manifest: Manifest) -> list[str]:
    return [e.location for e in manifest]


class TestValue:
    def test_should_not_change_what_it_came_from(self) -> None:
        base = manifest_of(*"abc")
        before = base.to_bytes()
        base.append("d"), base.dequeue(1), base.claim()
        assert (base.to_bytes(), locations(base)) == (before, ["a", "b", "c"])

    def test_should_compare_by_content_whatever_was_read(self) -> None:
        one, other = manifest_of(*"abc"), manifest_of(*"abc")
        one.read(2)
        assert one == other
        assert hash(one) == hash(other)
        assert one != other.claim()

    def test_should_pickle(self) -> None:
        manifest = manifest_of(*"abc")
        manifest.read(2)
        copy = pickle.loads(pickle.dumps(manifest))
        assert copy == manifest
        assert locations(copy) == ["a", "b", "c"]

    def test_should_not_print_its_bytes(self) -> None:
        assert repr(manifest_of("secret")) == "Manifest(entry_count=1, next_sequence=1, epoch=0)"


class TestRememberedPlace:
    """Reading on from the last place must give what reading from the start gives, always."""

    @given(
        count=st.integers(0, 12),
        dequeued=st.integers(-1, 12),
        steps=st.lists(st.integers(-2, 15), max_size=8),
        added=st.integers(0, 3),
    )
    def test_should_read_the_same_in_any_order(self, count: int, dequeued: int, steps: list[int], added: int) -> None:
        manifest = manifest_of(*("x" * (i + 1) for i in range(count))).dequeue(dequeued)
        for step in steps:
            fresh = Manifest.from_bytes(manifest.to_bytes())
            assert list(manifest.entries_from(step)) == [e for e in fresh if e.sequence >= step]
            assert manifest.read(step) == next((e for e in fresh if e.sequence == step), None)
            assert manifest.dequeue(step) == fresh.dequeue(step)
            grown = manifest.append_all([("new", ())] * added)
            followed = Manifest.from_bytes(grown.to_bytes()).following(manifest)
            assert list(followed.entries_from(step)) == [
                e for e in Manifest.from_bytes(grown.to_bytes()) if e.sequence >= step
            ]

    def test_should_not_walk_known_entries_again_when_following(self) -> None:
        earlier = manifest_of(*"abc")
        assert earlier.read(2) is not None
        data = bytearray(earlier.append("d").to_bytes())
        later = Manifest.from_bytes(bytes(data)).following(earlier)
        assert later._place == earlier._place != (0, 0)

    def test_should_ignore_the_place_when_the_manifest_was_replaced(self) -> None:
        earlier = manifest_of("short", "short", "short", "short")
        assert earlier.read(3) is not None
        replaced = manifest_of("a much longer name", "b", "another long name", "d", "e")
        assert [e.location for e in replaced.following(earlier).entries_from(3)] == ["d", "e"]

    def test_should_not_be_fooled_by_payload_that_looks_like_an_entry(self) -> None:
        # Entry 1 of the earlier manifest began at byte X; in the replaced one, byte X lies inside a payload
        # that holds a well-formed entry 1.
        fake = entry(1, b"fake")
        pad = 100
        earlier = Manifest.empty().append("a" * pad).append("b")
        assert earlier.read(1) is not None
        offset = earlier._place[1]
        head = 4 + 8 + 2 + 1 + 4 + 16
        payload = bytes(offset - head) + fake
        replaced = Manifest.empty().append("x", [Metadata(0, 0, payload)]).append("real")
        assert replaced.to_bytes()[offset : offset + len(fake)] == fake
        found = replaced.following(earlier).read(1)
        assert found is not None
        assert found.location == "real"

    def test_should_follow_across_dequeues_and_claims(self) -> None:
        earlier = manifest_of(*"abcdef")
        earlier.read(4)
        later = Manifest.from_bytes(earlier.dequeue(1).claim().append("g").to_bytes()).following(earlier)
        assert [(e.sequence, e.location) for e in later.entries_from(4)] == [(4, "e"), (5, "f"), (6, "g")]

    def test_should_not_mind_another_thread_that_reads_further_on(self) -> None:
        manifest = manifest_of(*"abcdef")
        expected = manifest.dequeue(1)

        class Place(tuple[int, int]):
            """A place that another thread moves on while we look at it."""

            def __getitem__(self, index):  # type: ignore[no-untyped-def, override]  # the test needs no more of it
                object.__setattr__(manifest, "_place", (6, len(manifest.to_bytes()) - 22))
                return super().__getitem__(index)

        object.__setattr__(manifest, "_place", Place((0, 0)))
        assert manifest.dequeue(1) == expected
