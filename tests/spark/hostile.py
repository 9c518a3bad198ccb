"""A format that entries can break in every way, and transforms that they can."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as f

from buffer_delta.formats import TextFormat
from buffer_delta.formats.base import Parsed


class Hostile(TextFormat):
    """Text. `raise` in an entry is an error of the parser's, `exit` the end of its process."""

    def parse(self, entries: pa.Array) -> Parsed:
        for entry in entries:
            if b"raise" in entry.as_py():
                raise AttributeError("'str' object has no attribute 'items'")
            if b"exit" in entry.as_py():
                os._exit(77)
        return super().parse(entries)


def with_number(frame: Any) -> Any:
    """Spark raises for what is no number, while it writes."""
    return frame.withColumn("n", f.col("value").cast("int"))


def with_length(frame: Any) -> Any:
    return frame.withColumn("n", f.length("value"))


def with_sequence(frame: Any) -> Any:
    """As many numbers as the entry says, all in memory."""
    return frame.withColumn("n", f.expr("size(sequence(1, CAST(value AS INT)))"))


_NAMES = {str(n): f"number {n}" for n in range(7)}


def named(frame: Any) -> Any:
    """The user's own code raises, on an executor."""
    look_up = f.udf(lambda text: _NAMES[text], "string")
    return frame.withColumn("name", look_up("value"))
