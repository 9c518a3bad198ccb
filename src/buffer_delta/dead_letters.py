"""What could not become rows: the columns of the dead-letter table, and how its rows are told from the good ones.

`rows.decode(..., split=True)` gives one DataFrame with both; a row whose `_dead` is set is a dead letter. Nothing
in a dead letter depends on when or how often it was tried, so a replayed range writes the same ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEAD = "_dead"
"""The column that marks a dead letter while good and bad rows travel together."""

WHOLE_BATCH = -1
"""The `_index` of a dead letter that stands for a whole batch."""

BYTES_MAX = 16 << 20
"""Of an unreadable batch that are kept: enough to look at it, not enough to hurt the table."""

DEAD_TYPE = pa.struct(
    [
        ("_sequence", pa.int64()),
        ("_index", pa.int32()),
        ("_ingested_at", pa.timestamp("us", tz="UTC")),
        ("location", pa.string()),
        ("error", pa.string()),
        ("bytes", pa.binary()),
    ]
)


def good_rows(frame: DataFrame) -> DataFrame:
    return frame.where(frame[DEAD].isNull()).drop(DEAD)


def dead_rows(frame: DataFrame) -> DataFrame:
    """`_sequence, _index, _ingested_at, location, error, bytes`: one row for each record or batch set aside."""
    return frame.where(frame[DEAD].isNotNull()).select(f"{DEAD}.*")
