"""Arrow's schemas as Spark's. The other way needs no Spark: `formats.schemas` reads a StructType's JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from buffer_delta.formats.schemas import nullable

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def spark_schema(schema: pa.Schema) -> StructType:
    """The same columns for Spark, all of them nullable."""
    return from_arrow_schema(nullable(schema))
