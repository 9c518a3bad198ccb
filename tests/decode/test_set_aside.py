"""Entries that are set aside: never parsed, dead letters where there are any, and no row's number changes for them."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from buffer_delta.decode import rows as rows_module
from buffer_delta.decode.group import Group
from buffer_delta.decode.layout import RowLayout
from buffer_delta.formats import ArrowFormat, JsonFormat, TextFormat
from buffer_delta.formats.base import Format, Parsed
from tests.decode.decode_support import Batches, decoder


class Careful(TextFormat):
    """Must never see what is set aside."""

    def parse(self, entries: pa.Array) -> Parsed:
        assert not any(entry.as_py().startswith(b"!") for entry in entries)
        return super().parse(entries)


def read(
    batches: Batches, group: Group, form: Format, *, dead_letters: bool = True, layout: RowLayout | None = None
) -> list[dict[str, Any]]:
    made = decoder(form, layout, dead_letters=dead_letters)
    return [row for batch in made.rows(batches.handle, group) for row in batch.to_pylist()]


@pytest.mark.parametrize("chunk", [1, 2, 1 << 20])
def test_should_make_dead_letters_of_what_is_set_aside(
    batches: Batches, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(rows_module, "CHUNK_BYTES", chunk)
    entries = [b"a", b"!b", b"c", b"\xff", b"!d", b"!e", b"f"]
    group = Group([batches.put(4, entries), batches.put(5, [b"g"])], {}, {4: {"odd": "1,4", "even": "5"}})
    found = read(batches, pickle.loads(pickle.dumps(group)), Careful())
    good = [(row["_sequence"], row["_index"], row["value"]) for row in found if row["_dead"] is None]
    assert good == [(4, 0, "a"), (4, 2, "c"), (4, 6, "f"), (5, 0, "g")]
    dead = {row["_dead"]["_index"]: row["_dead"] for row in found if row["_dead"] is not None}
    assert {index: (row["error"], row["bytes"]) for index, row in dead.items() if index != 3} == {
        1: ("odd", b"!b"),
        4: ("odd", b"!d"),
        5: ("even", b"!e"),
    }
    assert dead[3]["error"].startswith("not UTF-8")


def test_should_leave_nothing_of_it_where_there_are_no_dead_letters(batches: Batches) -> None:
    group = Group([batches.put(4, [b"a", b"!b", b"c"])], {}, {4: {"odd": "1"}})
    assert [row["value"] for row in read(batches, group, Careful(), dead_letters=False)] == ["a", "c"]
    group = Group([batches.put(4, [b'{"a": 1}', b"bad", b"bad"])], {}, {4: {"odd": "1"}})
    found = read(batches, group, JsonFormat("a INT"), dead_letters=False)
    assert [(row["a"], row["_rescued_data"], row["_index"]) for row in found] == [(1, None, 0), (None, "bad", 2)]


def test_should_ignore_indices_that_a_batch_does_not_have(batches: Batches) -> None:
    group = Group([batches.put(4, [b"a"])], {}, {4: {"odd": "1-5"}, 9: {"of another": "0"}})
    assert [row["value"] for row in read(batches, group, Careful())] == ["a"]


@pytest.mark.parametrize("window", [(0, 0), (1, 3), (2, 2), (0, 9), (8, 9)])
def test_should_look_only_into_the_window(batches: Batches, window: tuple[int, int]) -> None:
    entries = [b"0", b"1", b"!2", b"3", b"4"]
    group = Group([batches.put(4, entries)], {}, {4: {"odd": "2"}}, {4: window})
    found = read(batches, group, Careful())
    expected = [n for n in range(*window) if n < 5]
    assert sorted(row["_index"] if row["_dead"] is None else row["_dead"]["_index"] for row in found) == expected


def stream(*values: int) -> bytes:
    table = pa.table({"a": pa.array(values, pa.int64())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    return sink.getvalue().to_pybytes()


def test_should_number_rows_through_and_tell_their_entries(batches: Batches) -> None:
    """Where an entry gives several rows, one that is set aside takes one number, like one that is bad."""
    entries = [stream(1, 2), stream(3), b"bad", stream(4, 5, 6), stream(7)]
    group = Group([batches.put(4, entries)], {}, {4: {"odd": "1,3"}})
    found = read(batches, group, ArrowFormat("a BIGINT"), layout=RowLayout(entry="entry"))
    assert [(row["a"], row["_index"], row["entry"]) for row in found if row["_dead"] is None] == [
        (1, 0, 0),
        (2, 1, 0),
        (7, 5, 4),
    ]
    dead = [row["_dead"] for row in found if row["_dead"] is not None]
    assert sorted((row["_index"], row["bytes"]) for row in dead) == [(2, entries[1]), (3, b"bad"), (4, entries[3])]


def test_should_share_what_concerns_each_group() -> None:
    from buffer.model import BatchDescriptor

    one, two = BatchDescriptor(1, "a"), BatchDescriptor(2, "b")
    whole = Group([one, two], {1: "x"}, {2: {"y": "3"}}, {2: (0, 9)})
    assert whole.share([one]) == Group([one], {1: "x"})
    assert whole.share([two]) == Group([two], {}, {2: {"y": "3"}}, {2: (0, 9)})
    assert whole.without({2: "z"}, {2: {"y": "4"}}) == Group(
        [one, two], {1: "x", 2: "z"}, {2: {"y": "3-4"}}, {2: (0, 9)}
    )
