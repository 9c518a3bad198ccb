"""Arrow's schemas as Spark's. The other way needs no Spark: `formats.schemas` reads a StructType's JSON."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType, VariantType

from buffer_delta.formats.schemas import nullable


def spark_schema(schema: pa.Schema, variants: Collection[str] = ()) -> StructType:
    """The same columns for Spark, all of them nullable; VARIANT those which hold the text of such."""
    made = from_arrow_schema(nullable(schema))
    if not variants:
        return made
    return StructType([StructField(f.name, VariantType()) if f.name in variants else f for f in made.fields])
