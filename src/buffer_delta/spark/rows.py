"""Rows that tasks make on the executors, not computed yet: as a DataFrame, or eaten by a sink where they are made.

What a writer asks of rows is `delta.writers.base.Rows`; this is one kind of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from pyspark.sql.functions import col, lit, parse_json
from pyspark.sql.types import StructType

from buffer_delta.decode.group import Group
from buffer_delta.spark.jobs import gather
from buffer_delta.spark.schemas import spark_schema
from buffer_delta.spark.tasks import Task, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Sink: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterator[bytes]]


@dataclass(frozen=True)
class TaskRows:
    """What a task makes of each group."""

    spark: SparkSession
    task: Task
    groups: Sequence[Group]
    columns: pa.Schema
    nulls: StructType = field(default_factory=StructType)
    """Columns besides, null in every row."""
    variants: tuple[str, ...] = ()
    """Columns that are JSON text in the task, and VARIANT here."""

    @property
    def schema(self) -> StructType:
        return StructType([*spark_schema(self.columns, self.variants).fields, *self.nulls.fields])

    @property
    def count(self) -> None:
        return None

    def frame(self) -> DataFrame:
        frame = run(self.spark, self.task, self.groups, self.columns)
        if self.variants:
            texts = {name: col("`" + name.replace("`", "``") + "`") for name in self.variants}
            frame = frame.withColumns({name: parse_json(text) for name, text in texts.items()})
        missing = {field.name: lit(None).cast(field.dataType) for field in self.nulls.fields}
        return frame.withColumns(missing) if missing else frame

    def drained(self, sink: Sink) -> list[bytes]:
        """What a sink in each task told; the rows never leave the task."""
        assert not self.variants, "only Spark makes a VARIANT of a text, and only Spark's writer writes one"
        return gather(self.spark, Drain(self.task, sink), self.groups)

    def with_nulls(self, columns: StructType) -> TaskRows:
        return replace(self, nulls=StructType([*self.nulls.fields, *columns.fields]))


@dataclass(frozen=True)
class Drain:
    """A task whose rows go into a sink."""

    task: Task
    sink: Sink

    def __call__(self, group: Group) -> Iterator[bytes]:
        return self.sink(self.task(group))
