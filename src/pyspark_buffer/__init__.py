"""Lets Spark find the data source `buffer` by itself: it imports every top-level module named `pyspark_…`.

spark.read.format("buffer").load("s3://bucket/queue")        # nothing to register
"""

from buffer_delta.spark.source import BufferDataSource as DefaultSource

__all__ = ["DefaultSource"]
