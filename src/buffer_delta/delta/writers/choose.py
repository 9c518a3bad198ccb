"""Who writes a table's files: Spark, Arrow, or Arrow where the table allows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from buffer.errors import InvalidConfig
from buffer_delta.delta.writers.arrow import ArrowWriter, Auto
from buffer_delta.delta.writers.base import StagingWriter, Writer
from buffer_delta.delta.writers.spark import spark_writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WriterKind: TypeAlias = Literal["auto", "arrow", "spark"]


def choose_writer(
    spark: SparkSession,
    kind: WriterKind,
    name: str | None,
    path: str | None,
    table_options: Mapping[str, Any] | None,
    *,
    target_file_bytes: int | None,
) -> Writer:
    """The writer of one table, given by its name or by its path. Raises InvalidConfig if there is no such writer."""
    plain = spark_writer(spark, name, path)
    if kind == "spark":
        return plain
    if not isinstance(plain, StagingWriter):
        if kind == "arrow":
            raise InvalidConfig(
                "writer='arrow' needs Delta's own transaction, which is not known in this build of Delta: "
                "take writer='auto', or another release of delta-spark",
                key="writer",
                value=kind,
            )
        return plain
    arrow = ArrowWriter(spark, table_options, target_file_bytes)
    return Auto(arrow, plain, name or path or "", only_arrow=kind == "arrow")
