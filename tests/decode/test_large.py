"""An entry that is too large for a row: never parsed, cut in its dead letter, and kept whole."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from buffer.codec.batch import decode_batch
from buffer.errors import CorruptBatch
from buffer_delta.decode import large
from buffer_delta.decode.fetching import Group
from buffer_delta.decode.look import CanParse
from buffer_delta.formats import JsonFormat, RawFormat
from buffer_delta.formats.base import Format
from tests.decode.decode_support import Batches, decoder
from tests.formats.format_support import binary

ENTRIES = [b'{"a": 1}', b'{"a": 22222}', b'{"a": 2}', b"{no"]
LARGE = "it has 12 bytes, and max_entry_bytes is 10"


@pytest.fixture(autouse=True)
def _little_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "BYTES_MAX", 4)


def test_should_be_a_dead_letter_with_its_beginning_and_its_batch_kept(batches: Batches) -> None:
    group = Group([batches.put(3, ENTRIES, compression="zstd")])
    made = replace(decoder(JsonFormat("a INT"), dead_letters=True), max_entry_bytes=10)
    for _ in range(2):  # as often as it is tried
        rows = [row for batch in made.rows(batches.handle, group) for row in batch.to_pylist()]
        assert [(row["a"], row["_index"]) for row in rows if row["_dead"] is None] == [(1, 0), (2, 2)]
        first, second = [row["_dead"] for row in rows if row["_dead"] is not None]
        kept = "ingest/dead_letters/3.batch.dead"
        assert first["error"] == f"{LARGE}; here are its first 4, and the whole batch is kept as {kept!r}"
        assert (first["_index"], first["bytes"]) == (1, b'{"a"')
        assert (second["_index"], second["bytes"]) == (3, b"{no"), "another bad one is there whole"
        assert decode_batch(batches.store.get(kept).data) == ENTRIES


def test_should_be_a_dead_letter_as_a_whole_where_a_row_may_hold_it(
    batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of entries may be below that of letters."""
    monkeypatch.setattr(large, "BYTES_MAX", 100)
    made = replace(decoder(JsonFormat("a INT"), dead_letters=True), max_entry_bytes=10)
    rows = [r for batch in made.rows(batches.handle, Group([batches.put(3, ENTRIES)])) for r in batch.to_pylist()]
    first, _ = [row["_dead"] for row in rows if row["_dead"] is not None]
    assert first["bytes"] == ENTRIES[1]
    assert first["error"].startswith(f"{LARGE}; here are its first 12, and")


def test_should_say_in_a_way_that_is_found_again_how_large_it_was() -> None:
    found = re.match(large.SIZE_IN_REASON, large.reason(17_825_794, 1 << 20, "kept"))
    assert found is not None
    assert found[1] == "17,825,794"


def test_should_copy_nothing_where_no_entry_is_too_large(batches: Batches) -> None:
    group = Group([batches.put(3, ENTRIES)])
    made = replace(decoder(JsonFormat("a INT"), dead_letters=True), max_entry_bytes=12)
    assert sum(batch.num_rows for batch in made.rows(batches.handle, group)) == 4
    assert [info.location for info in batches.store.list("ingest")] == ["ingest/3.batch"]


@pytest.mark.parametrize("form", [JsonFormat("a INT"), RawFormat()])
def test_should_fail_where_there_are_no_dead_letters(batches: Batches, form: Format) -> None:
    """The rescued column is a row's, too."""
    made = replace(decoder(form), max_entry_bytes=10)
    with pytest.raises(CorruptBatch, match=f"entry 1 of batch 3 is .*{LARGE}.*configure dead_letters"):
        list(made.rows(batches.handle, Group([batches.put(3, ENTRIES)])))


def test_should_be_named_by_a_look_where_it_has_no_place() -> None:
    form = JsonFormat("a INT")
    assert CanParse(form, has_place=True, max_entry_bytes=10)(binary(*ENTRIES)) == [(1, LARGE)]
    found = CanParse(form, has_place=False, max_entry_bytes=10)(binary(*ENTRIES))
    assert [place for place, _ in found] == [1, 3]
    assert CanParse(form, has_place=True)(binary(*ENTRIES)) == []
