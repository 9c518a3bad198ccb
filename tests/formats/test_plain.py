"""raw and text, and entries as Arrow holds them."""

from __future__ import annotations

from buffer_delta.formats import ArrowFormat, JsonFormat, RawFormat, TextFormat
from buffer_delta.formats.entries import chunks
from tests.formats.format_support import binary, by_entry, parse


def test_should_keep_raw_payloads() -> None:
    parsed = parse(RawFormat(), b"", b"\x00\xff", b"x")
    assert parsed.rows["value"].to_pylist() == [b"", b"\x00\xff", b"x"]
    assert (parsed.entries, parsed.bad) == (None, [])


def test_should_set_aside_text_that_is_none() -> None:
    found = by_entry(parse(TextFormat(), "ä", b"\xff", "", b"a\xc3", b"\xed\xa0\x80"), 5)
    assert found[0] == {"value": "ä"}
    assert found[2] == {"value": ""}
    assert found[1] == "not UTF-8: invalid start byte at byte 0"
    assert "not UTF-8" in str(found[3])
    assert "not UTF-8" in str(found[4])
    assert parse(TextFormat(), "a", "b").entries is None


def test_should_take_no_entries_for_no_rows() -> None:
    for form in (RawFormat(), TextFormat(), JsonFormat("a INT"), ArrowFormat("a INT")):
        parsed = parse(form)
        assert parsed.rows.num_rows == 0
        assert parsed.rows.schema == form.schema


def test_should_cut_chunks_by_bytes_and_by_rows() -> None:
    entries = binary("aaaa", "bb", "c", "", "dddddddd", "e")
    assert [(s, c.to_pylist()) for s, c in chunks(entries, 6, 100)] == [
        (0, [b"aaaa", b"bb"]),
        (2, [b"c", b""]),
        (4, [b"dddddddd"]),
        (5, [b"e"]),
    ]
    assert [len(c) for _, c in chunks(entries, 1000, 4)] == [4, 2]
    assert list(chunks(binary(), 10, 10)) == []
