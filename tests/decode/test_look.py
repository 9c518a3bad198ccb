"""A look at a group: the columns it needs, the batches that cannot be read."""

from __future__ import annotations

import pyarrow as pa
import pytest

from buffer.consume.fetch import FetchHandle
from buffer.errors import StorageError
from buffer.model import BatchDescriptor
from buffer.store.base import Object
from buffer_delta.decode.fetching import Group, in_groups
from buffer_delta.decode.look import CanDiscover, CanParse, discover, probe
from buffer_delta.formats import JsonFormat, TextFormat
from tests.decode.decode_support import Batches


def test_should_tell_whose_fault_it_is(batches: Batches) -> None:
    broken, gone = batches.put(1, [b"a"]), BatchDescriptor(2, "ingest/2.batch")
    batches.store.put(broken.location, b"damaged")
    found = list(probe(batches.handle, Group([batches.put(0, [b"\xff"]), broken, gone])))
    assert [(f.sequence, f.location, f.kind) for f in found] == [
        (1, broken.location, "data"),
        (2, gone.location, "missing"),
    ]
    assert all(f.error for f in found)


class Unreachable:
    def get(self, location: str) -> Object:
        raise StorageError(f"no answer for {location!r}", retryable=True)


def test_should_not_blame_a_batch_for_its_store() -> None:
    (found,) = probe(FetchHandle(Unreachable(), attempts=1), Group([BatchDescriptor(3, "ingest/3.batch")]))
    assert (found.sequence, found.kind) == (3, "infra")
    assert "no answer" in found.error


def test_should_blame_an_entry_that_has_no_place(batches: Batches) -> None:
    group = Group([batches.put(0, [b"fine", b"\xff"]), batches.put(1, [b"fine"])])
    (found,) = probe(batches.handle, group, CanParse(TextFormat(), has_place=False))
    assert (found.sequence, found.index, found.kind) == (0, 1, "data")
    assert found.error.startswith("not UTF-8")
    assert not list(probe(batches.handle, group, CanParse(TextFormat(), has_place=True)))


class Raising:
    """A check that raises for some entries, always or only the first time."""

    def __init__(self, bad: set[bytes], once: set[bytes] = frozenset()) -> None:  # type: ignore[assignment]
        self._bad = bad
        self._once = set(once)

    def __call__(self, entries: pa.BinaryArray) -> list[tuple[int, str]]:
        found = {entry.as_py() for entry in entries}
        if len(found) == 1 and found & self._once:
            self._once -= found
            raise OSError("passes")
        if found & (self._bad | self._once):
            raise AttributeError("no such thing")
        return []


@pytest.mark.parametrize("bad", [[0], [6], [2, 3, 5], list(range(7))])
def test_should_find_the_entries_that_a_check_raises_for(batches: Batches, bad: list[int]) -> None:
    entries = [b"%d" % n for n in range(7)]
    check = Raising({entries[n] for n in bad})
    found = list(probe(batches.handle, Group([batches.put(4, entries)]), check))
    assert [(f.sequence, f.index, f.error) for f in found] == [(4, n, "AttributeError: no such thing") for n in bad]


def test_should_not_blame_entries_for_a_check_that_passes_nothing(batches: Batches) -> None:
    """Columns that follow one entry, too deep for Arrow to send: every other entry would fail with it."""

    def broken(_entries: pa.BinaryArray) -> list[tuple[int, str]]:
        raise OSError("whatever it is given")

    with pytest.raises(OSError, match="whatever"):
        list(probe(batches.handle, Group([batches.put(4, [b"a", b"b"])]), broken))


class Deep(JsonFormat):
    """Finds columns that Arrow cannot tell another process of, in entries that ask for it."""

    def discover(self, entries: pa.Array) -> pa.Schema:
        kind = pa.int64()
        for _ in range(80 if b"deep" in entries.to_pylist() else 0):
            kind = pa.struct([("d", kind)])
        return pa.schema([("d", kind)])


def test_should_find_the_entry_whose_columns_cannot_be_sent(batches: Batches) -> None:
    group = Group([batches.put(4, [b"{}", b"deep", b"{}"])])
    (found,) = probe(batches.handle, group, CanDiscover(Deep()))
    assert (found.index, found.kind) == (1, "data")
    assert "recursion" in found.error


def test_should_not_blame_an_entry_for_what_happens_once(batches: Batches) -> None:
    group = Group([batches.put(4, [b"a", b"b"])])
    assert list(probe(batches.handle, group, Raising(set(), {b"a"}))) == []


def test_should_pass_over_what_is_set_aside_and_outside_of_the_window(batches: Batches) -> None:
    group = Group([batches.put(4, [b"%d" % n for n in range(9)])], {}, {4: {"x": "2,4-5"}}, {4: (1, 8)})
    assert not list(probe(batches.handle, group, Raising({b"0", b"2", b"4", b"5", b"8"})))
    assert [f.index for f in probe(batches.handle, group, Raising({b"1", b"2", b"7"}))] == [1, 7]
    assert [f.index for f in probe(batches.handle, Group(group.descriptors, {4: "x"}), Raising({b"1"}))] == []


def test_should_discover_the_columns_of_batches_that_are_not_quarantined(batches: Batches) -> None:
    group = [batches.put(0, [b'{"a": 1}', b"bad"]), batches.put(1, [b'{"a": 1.5, "b": "x"}'])]
    assert str(discover(batches.handle, Group(group), JsonFormat())) == "a: double\nb: string"
    assert str(discover(batches.handle, Group(group, {1: "given up"}), JsonFormat())) == "a: int64"
    assert str(discover(batches.handle, Group(group, {}, {1: {"given up": "0"}}), JsonFormat())) == "a: int64"
    assert str(discover(batches.handle, Group(group, windows={0: (1, 2)}), JsonFormat())) == "a: double\nb: string"


def test_should_give_each_group_its_own_share_of_what_is_quarantined() -> None:
    one, two = [BatchDescriptor(0, "a"), BatchDescriptor(1, "b")], [BatchDescriptor(2, "c")]
    found = in_groups([one, two], {1: "x", 2: "y", 3: "of another range"})
    assert found == [Group(one, {1: "x"}), Group(two, {2: "y"})]
