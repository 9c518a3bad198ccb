"""From batches to rows: their number, their order, their sizes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from buffer.consume.fetch import FetchHandle
from buffer.errors import InvalidConfig, ObjectNotFound
from buffer.model import BatchDescriptor, Metadata
from buffer_delta.decode import rows
from buffer_delta.decode.fetching import Group
from buffer_delta.formats import ArrowFormat, JsonFormat, RawFormat
from buffer_delta.formats.cells import CELLS_PER_PIECE
from tests.decode.decode_support import Batches, decoder, run
from tests.formats.format_support import stream


def test_should_yield_nothing_for_nothing(batches: Batches) -> None:
    assert run(batches, [batches.put(0, []), batches.put(1, [])], RawFormat()) == []
    assert run(batches, [], RawFormat()) == []
    assert run(batches, [batches.put(2, [b"", b""])], RawFormat())[1]["value"] == b""


def test_should_keep_arrow_batches_bounded(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "CHUNK_BYTES", 64)
    monkeypatch.setattr(rows, "ROWS_PER_ARROW_BATCH", 10)
    entries = [b'{"a": %d}' % n if n % 9 else b"bad" for n in range(100)]
    group = [batches.put(5, entries, (Metadata(0, 0, b"x"), Metadata(50, 0, b"y")))]
    made = list(decoder(JsonFormat("a INT"), dead_letters=True).rows(batches.handle, Group(group)))
    assert max(batch.num_rows for batch in made) <= 10
    assert len(made) >= 10
    found = [row for batch in made for row in batch.to_pylist()]
    good = {row["_index"]: row for row in found if row["_dead"] is None}
    dead = {row["_dead"]["_index"]: row["_dead"] for row in found if row["_dead"] is not None}
    assert sorted([*good, *dead]) == list(range(100))
    assert all(row["a"] == index for index, row in good.items())
    assert all(row["_entry_metadata"] == (b"x" if index < 50 else b"y") for index, row in good.items())
    assert sorted(dead) == [n for n in range(100) if n % 9 == 0]


def test_should_number_the_rows_of_streams_through_the_batch(batches: Batches) -> None:
    one, two = stream(pa.table({"a": [1, 2, 3]})), stream(pa.table({"a": [4]}))
    items = (Metadata(0, 0, b"x"), Metadata(2, 0, b"y"))
    group = [batches.put(3, [one, b"bad", two, stream(pa.table({"a": pa.array([], pa.int64())})), two], items)]
    found = run(batches, group, ArrowFormat("a INT"), dead_letters=True)
    assert [(row["a"], row["_index"], row["_entry_metadata"]) for row in found if row["_dead"] is None] == [
        (1, 0, b"x"),
        (2, 1, b"x"),
        (3, 2, b"x"),
        (4, 4, b"y"),
        (4, 5, b"y"),
    ]
    (dead,) = [row["_dead"] for row in found if row["_dead"] is not None]
    assert (dead["_index"], dead["bytes"]) == (3, b"bad"), "its own number: no row has it"


def test_should_raise_what_the_store_says(batches: Batches) -> None:
    with pytest.raises(ObjectNotFound):
        run(batches, [batches.put(0, [b"a"]), BatchDescriptor(1, "ingest/1.batch")], RawFormat())


def test_should_not_let_a_stream_expand_beyond_a_batch(batches: Batches) -> None:
    small, large = stream(pa.table({"a": [1]})), stream(pa.table({"a": [0] * 50_000}), "zstd")
    handle = FetchHandle(batches.store, max_batch_bytes=100_000, attempts=1)
    group = Group([batches.put(0, [small, large, small])])
    made = decoder(ArrowFormat("a BIGINT"), dead_letters=True)
    found = [row for batch in made.rows(handle, group) for row in batch.to_pylist()]
    assert [(row["a"], row["_index"]) for row in found if row["_dead"] is None] == [(1, 0), (1, 2)]
    (dead,) = [row["_dead"] for row in found if row["_dead"] is not None]
    assert (dead["_index"], dead["bytes"]) == (1, large)
    assert "may take 100,000" in dead["error"]


def test_should_make_few_rows_at_once_of_many_columns(batches: Batches) -> None:
    """A row takes its columns' room even if its entry is `{}`."""
    form = JsonFormat(", ".join(f"k{i} BIGINT" for i in range(1000)))
    group = Group([batches.put(0, [b"{}"] * 3000 + [b"bad"] * 3000)])
    sizes = [batch.num_rows for batch in decoder(form).rows(batches.handle, group)]
    assert sum(sizes) == 6000
    assert max(sizes) <= CELLS_PER_PIECE // 1000


def test_should_refuse_a_column_that_spark_takes_for_one_of_the_loaders() -> None:
    with pytest.raises(InvalidConfig, match="_ſequence"):
        decoder(JsonFormat("`_ſequence` BIGINT"))
