"""Values for partition columns of which Spark makes others without a word, kept out of what it writes.

Delta's log has them as text, and Spark reads that text back from the name of the folder that it has just written. So
the name that stands for null becomes null. Bytes that are no UTF-8, which a cast from BINARY leaves in a string, become
others. A time is spelled by the year of its era: before Christ, it becomes another.
Writing such a row fails here, and the loader searches for it. Where there are dead letters, `screen` finds it before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql.types import StringType, TimestampNTZType, TimestampType

from buffer_delta.delta.columns import quoted
from buffer_delta.delta.partitions import NULL_FOLDER
from buffer_delta.formats.names import same_name_key

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_FIRST_TIME = "0001-01-03"
"""The text is in the session's time zone, hence two days more than the year 1 has."""


def guarded(rows: DataFrame, partition_by: Sequence[str]) -> DataFrame:
    """The rows; writing them fails where one of them has such a value."""
    spelled = {same_name_key(name): name for name in rows.columns}
    checked = {}
    for name in (spelled[key] for key in map(same_name_key, partition_by) if key in spelled):
        reason = other_value(rows, name)
        if reason is not None:
            checked[name] = f.when(reason.isNotNull(), f.raise_error(reason)).otherwise(f.col(quoted(name)))
    return rows.withColumns(checked) if checked else rows


def other_value(rows: DataFrame, name: str) -> Column | None:
    """What is wrong with a row's value for a partition column, null where nothing is. None: nothing can be."""
    column = f.col(quoted(name))
    kind = rows.select(column).schema[0].dataType
    what = f"the value for the partition column {name} is"
    if isinstance(kind, TimestampType | TimestampNTZType):
        before = f"{what} before the year 1, and Spark would write another year"
        return f.when(column < f.lit(_FIRST_TIME).cast(kind), f.lit(before))
    if kind == StringType():
        is_null = f.when(column == NULL_FOLDER, f.lit(f"{what} {NULL_FOLDER}, which stands for null"))
        return is_null.when(~f.is_valid_utf8(column), f.lit(f"{what} not UTF-8"))
    return None
