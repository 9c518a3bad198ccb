"""What becomes of entries and batches that cannot be understood: one policy after the other."""

from __future__ import annotations

import datetime as dt

import pytest

from buffer.codec.keyvalue import encode_pair
from buffer.errors import CorruptBatch
from buffer.model import BatchDescriptor, Metadata
from buffer_delta.decode import dead_letters
from buffer_delta.decode.dead_letters import WHOLE_BATCH, keep_whole
from buffer_delta.decode.layout import RowLayout
from buffer_delta.decode.policy import DeadLetter, Fail, Rescue, policy_for
from buffer_delta.formats import Format, JsonFormat, KeyValueFormat, RawFormat, TextFormat
from tests.decode.decode_support import Batches, run

UTC = dt.UTC


def test_should_choose_by_where_there_is_a_place() -> None:
    layout = RowLayout()
    assert policy_for(JsonFormat("a INT", rescued_data="rest"), layout, dead_letters=False) == Rescue("rest")
    assert policy_for(TextFormat(), layout, dead_letters=False) == Fail(TextFormat())
    assert policy_for(JsonFormat("a INT"), layout, dead_letters=True) == DeadLetter("_dead")
    assert policy_for(RawFormat(), RowLayout(metadata="_DEAD"), dead_letters=True) == DeadLetter("_dead_")


def test_should_set_bad_records_aside_with_all_there_is_to_know(batches: Batches) -> None:
    items = (Metadata(0, 1000, b"m"),)
    group = [batches.put(4, [b'{"a": 1}', b"{broken", b'{"a": 2}'], items)]
    found = run(batches, group, JsonFormat("a INT"), RowLayout(sequence=None, index=None), dead_letters=True)
    assert [row["a"] for row in found] == [1, 2, None]
    assert found[2]["_dead"] == {
        "_sequence": 4,
        "_index": 1,
        "_ingested_at": dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        "location": "ingest/4.batch",
        "error": "not JSON: Expecting property name enclosed in double quotes at character 1",
        "bytes": b"{broken",
        "_entry_metadata": b"m",
    }
    assert run(batches, group, JsonFormat("a INT"), RowLayout(sequence=None, index=None), dead_letters=True) == found


@pytest.mark.parametrize("form", [JsonFormat("a INT"), KeyValueFormat(value="json", on_mismatch="dead_letter")])
def test_should_set_a_record_aside_whose_reason_quotes_half_of_a_surrogate_pair(batches: Batches, form: Format) -> None:
    bad = b'{"\\ud800": 1, "\\ud800": 2}'
    entry = encode_pair(b"key", bad) if isinstance(form, KeyValueFormat) else bad
    (found,) = run(batches, [batches.put(4, [entry])], form, dead_letters=True)
    assert found["_dead"]["error"].endswith('the name "\ufffd" is there twice in one object')
    assert found["_dead"]["bytes"] == entry


def test_should_rescue_bad_records_whole_where_they_are_not_set_aside(batches: Batches) -> None:
    group = [batches.put(4, [b'{"a": 1}', b"{broken", b"\xff", b"\\xff"], (Metadata(0, 0, b"m"),))]
    found = run(batches, group, JsonFormat("a INT"))
    assert [(row["a"], row["_rescued_data"], row["_index"], row["_entry_metadata"]) for row in found] == [
        (1, None, 0, b"m"),
        (None, "{broken", 1, b"m"),
        (None, '{"entry": "/w=="}', 2, b"m"),  # which no other entry is taken for
        (None, "\\xff", 3, b"m"),
    ]


def test_should_fail_where_a_bad_record_has_no_place(batches: Batches) -> None:
    group = [batches.put(4, [b"fine", b"\xff"])]
    with pytest.raises(CorruptBatch, match=r"entry 1 of batch 4 .* configure dead_letters"):
        run(batches, group, TextFormat())


def test_should_turn_a_quarantined_batch_into_one_dead_letter(batches: Batches) -> None:
    items = (Metadata(0, 1000, b"m"),)
    broken = batches.put(1, [b"a"], items)
    batches.store.put(broken.location, b"damaged")
    gone = BatchDescriptor(2, "ingest/2.batch")
    found = run(
        batches,
        [batches.put(0, [b"a"]), broken, gone],
        RawFormat(),
        dead_letters=True,
        quarantined={1: "no batch", 2: "no object"},
    )
    dead = [row["_dead"] for row in found if row["_dead"] is not None]
    assert [(d["_sequence"], d["_index"], d["error"], d["bytes"]) for d in dead] == [
        (1, WHOLE_BATCH, "no batch", b"damaged"),
        (2, WHOLE_BATCH, "no object", None),
    ]
    assert dead[0]["_ingested_at"] == dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert len(found) == 3


def test_should_bound_what_it_keeps_of_a_quarantined_batch(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "BYTES_MAX", 10)
    descriptor = batches.put(1, [b"a" * 100])
    (found,) = run(batches, [descriptor], RawFormat(), dead_letters=True, quarantined={1: "x"})
    assert len(found["_dead"]["bytes"]) == 10
    size = batches.store.head(descriptor.location).size
    assert found["_dead"]["error"] == f"x; here are the first 10 of its {size} bytes"


def test_should_keep_a_copy_of_a_quarantined_batch_that_is_too_large(
    batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "BYTES_MAX", 1000)
    large, small, gone = batches.put(1, [b"a" * 2000]), batches.put(2, [b"a"]), BatchDescriptor(3, "ingest/3.batch")
    group = [batches.put(0, [b"a" * 2000]), large, small, gone]
    quarantined = {1: "x", 2: "y", 3: "z"}
    kept = "ingest/dead_letters/1.batch.dead"
    expected = quarantined | {1: f"x; the whole object is kept as {kept!r}"}
    assert keep_whole(batches.store, group, quarantined) == expected
    whole = batches.store.get(large.location)
    assert batches.store.get(kept) == whole
    copied = (batches.folder / kept).stat().st_mtime_ns
    assert keep_whole(batches.store, group, quarantined) == expected
    assert (batches.folder / kept).stat().st_mtime_ns == copied, "once is enough"
    batches.store.delete_many([large.location])
    assert keep_whole(batches.store, group, quarantined) == expected, "as it was before"
    assert [info.location for info in batches.store.list("ingest/dead_letters")] == [kept]


def test_should_tell_its_own_mark_from_a_column_of_the_data(batches: Batches) -> None:
    group = [batches.put(1, [b'{"_DEAD": 1}', b"bad"])]
    good, bad = run(batches, group, JsonFormat("_DEAD INT"), dead_letters=True)
    assert (good["_DEAD"], good["_dead_"]) == (1, None)
    assert (bad["_DEAD"], bad["_dead_"]["bytes"]) == (None, b"bad")


def test_should_leave_nothing_of_a_batch_that_was_given_up_where_there_are_no_dead_letters(batches: Batches) -> None:
    """And not read it: an operator has said so, and there is no table to keep its bytes in."""
    gone = BatchDescriptor(2, "ingest/2.batch")
    for form in (TextFormat(), JsonFormat("a INT")):
        found = run(batches, [batches.put(1, [b"{}"]), gone], form, quarantined={2: "no object"})
        assert [row["_sequence"] for row in found] == [1]
