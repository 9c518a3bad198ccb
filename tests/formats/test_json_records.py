"""json: what is one record."""

from __future__ import annotations

from typing import Any

import pytest

from buffer_delta.formats import JsonFormat
from buffer_delta.formats.json import parse as json_parse
from buffer_delta.formats.json.reading import load
from tests.formats.format_support import binary, by_entry, parse
from tests.formats.json_records import NOT_RECORDS, RECORDS

FORM = JsonFormat("a INT, s STRING, d DOUBLE")


@pytest.mark.parametrize("entry", NOT_RECORDS, ids=lambda e: repr(e)[:40])
def test_should_set_aside_what_is_not_one_object_and_keep_its_neighbours(entry: bytes) -> None:
    found = by_entry(parse(FORM, '{"a":1}', entry, '{"a":2}'), 3)
    assert [found[0], found[2]] == [row(a=1), row(a=2)]
    assert isinstance(found[1], str)
    assert len(found[1]) < 200


@pytest.mark.parametrize("entry", RECORDS, ids=lambda e: repr(e)[:40])
def test_should_keep_every_way_to_write_an_object(entry: bytes) -> None:
    found = by_entry(parse(FORM, '{"a":1}', entry, '{"a":2}'), 3)
    assert [found[0], found[2]] == [row(a=1), row(a=2)]
    assert isinstance(found[1], dict)


def row(**values: Any) -> dict[str, Any]:
    return {"a": None, "s": None, "d": None, "_rescued_data": None} | values


def test_should_not_be_fooled_by_entries_that_make_up_for_each_other() -> None:
    """Two records in one entry and none in another: the count alone would be right."""
    found = by_entry(parse(FORM, '{"a":1}{"a":2}', '{"a":', "3}", '{"a":4}'), 4)
    assert [isinstance(found[i], str) for i in range(4)] == [True, True, True, False]
    found = by_entry(parse(FORM, "{}{}", b"{}\x00}", "{}"), 3)
    assert [isinstance(found[i], str) for i in range(3)] == [True, True, False]


def test_should_parse_clean_entries_without_looking_at_any_singly(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(entry: bytes) -> dict[str, Any]:
        raise AssertionError(f"looked at {entry!r}")

    monkeypatch.setattr(json_parse, "load", refuse)
    entries = [f'{{"a":{i},"s":"x{i}","d":{i}.5}}\n' for i in range(1000)]
    parsed = parse(FORM, *entries)
    assert parsed.entries is None
    assert parsed.rows["a"].to_pylist() == list(range(1000))
    with pytest.raises(AssertionError, match="looked at"):
        parse(FORM, *entries, '{"a":1')


def test_should_look_only_at_the_few_that_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bytes] = []

    def watch(entry: bytes) -> dict[str, Any]:
        looked.append(entry)
        return load(entry)

    monkeypatch.setattr(json_parse, "load", watch)
    entries = [f'{{"a":{i}}}' for i in range(20_000)]
    entries[77] = '{"a":"x"}'  # another kind: the parser says which record
    entries[5000] = '{"a":1,,}'  # no JSON
    entries[12_345] = '{"a":3000000000}'  # too large: the parser does not say which
    found = by_entry(parse(FORM, *entries), len(entries))
    assert found[77] == row(_rescued_data='{"a":"x"}')
    assert found[12_345] == row(_rescued_data='{"a":3000000000}')
    assert isinstance(found[5000], str)
    assert found[19_999] == row(a=19_999)
    assert len(looked) < 400


def test_should_parse_slices_and_many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_parse, "CHUNK_BYTES", 100)
    entries = binary(*[f'{{"a":{i}}}' if i % 7 else "bad" for i in range(100)]).slice(10, 80)
    found = by_entry(FORM.parse(entries), 80)
    assert [index for index, one in found.items() if isinstance(one, str)] == [i for i in range(80) if not (i + 10) % 7]
    assert found[1] == row(a=11)
