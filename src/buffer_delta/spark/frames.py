"""Frames that hold good rows and dead letters together, taken apart. See `decode.policy.DeadLetter`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def good_rows(frame: DataFrame) -> DataFrame:
    mark = frame.columns[-1]
    return frame.where(frame[mark].isNull()).drop(mark)


def dead_rows(frame: DataFrame) -> DataFrame:
    """`_sequence, _index, _ingested_at, location, error, bytes`: one row for each entry or batch set aside."""
    mark = frame.columns[-1]
    return frame.where(frame[mark].isNotNull()).select(f"{mark}.*")
