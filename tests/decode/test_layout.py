"""Where rows came from: the provenance columns."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

from buffer.errors import InvalidConfig
from buffer.model import Metadata
from buffer_delta.config import PROVENANCE_COLUMNS
from buffer_delta.decode.layout import RowLayout, ranges_of
from buffer_delta.formats import JsonFormat, RawFormat, TextFormat
from tests.decode.decode_support import Batches, run

UTC = dt.UTC


def test_should_say_where_each_row_came_from(batches: Batches) -> None:
    items = (Metadata(0, 1_700_000_000_123, b"first call"), Metadata(2, 1_700_000_001_000, b""))
    group = [batches.put(7, [b"a", b"b", b"c"], items, "zstd"), batches.put(8, [b"d"])]
    at = dt.datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)
    found = run(batches, group, RawFormat())
    assert [list(row.values()) for row in found] == [
        [b"a", 7, 0, at, b"first call"],
        [b"b", 7, 1, at, b"first call"],
        [b"c", 7, 2, at.replace(second=21, microsecond=0), b""],
        [b"d", 8, 0, None, None],
    ]
    assert list(found[0]) == ["value", "_sequence", "_index", "_ingested_at", "_entry_metadata"]


def test_should_agree_with_what_the_settings_allow() -> None:
    """The settings are checked where Arrow need not be loaded, so they keep a list of their own."""
    assert tuple(field.name for field in RowLayout().arrow_fields()) == PROVENANCE_COLUMNS


def test_should_rename_and_leave_out_provenance(batches: Batches) -> None:
    layout = RowLayout.renamed({"_sequence": "seq", "_entry_metadata": None, "_ingested_at": None})
    found = run(batches, [batches.put(1, [b"a"])], TextFormat(), layout)
    assert found == [{"value": "a", "seq": 1, "_index": 0}]


def test_should_refuse_columns_that_clash(batches: Batches) -> None:
    with pytest.raises(InvalidConfig, match=r"'_(INDEX|index)'"):
        run(batches, [], JsonFormat("_INDEX INT"))
    with pytest.raises(InvalidConfig, match="value"):
        run(batches, [], RawFormat(), RowLayout(sequence="value"))


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        ([0], [0, 0, 0, 0]),
        ([0, 2], [0, 0, 1, 1]),
        ([0, 2, 2], [0, 0, 2, 2]),  # an empty range covers nothing
        ([2], [None, None, 0, 0]),
        ([0, 4], [0, 0, 0, 0]),
        ([0, 4_000_000_000], [0, 0, 0, 0]),
        ([2, 0], [None, None, 1, 1]),  # descending: from a foreign writer
        ([0, 3, 1], [0, 0, 0, 2]),
        ([4_000_000_000, 0], [None, None, None, None]),
        ([], [None, None, None, None]),
    ],
)
def test_should_map_metadata_ranges_to_rows(starts: list[int], expected: list[int | None]) -> None:
    items = [Metadata(start, 1000 * number, bytes([number])) for number, start in enumerate(starts)]
    times, payloads = ranges_of(items, np.arange(4))
    assert payloads.to_pylist() == [None if n is None else bytes([n]) for n in expected]
    assert times.to_pylist() == [None if n is None else dt.datetime.fromtimestamp(n, UTC) for n in expected]


def test_should_survive_times_that_are_none() -> None:
    times, _ = ranges_of([Metadata(0, 2**63 - 1), Metadata(1, -(2**63))], np.arange(2))
    assert times.null_count == 0
    assert len(times.cast(pa.int64()).to_pylist()) == 2


def test_should_map_metadata_of_many_items_quickly() -> None:
    items = [Metadata(number, number, b"x") for number in range(200_000)]
    times, _ = ranges_of(items, np.arange(200_000))
    assert times.cast(pa.int64())[-1].as_py() == 199_999_000
