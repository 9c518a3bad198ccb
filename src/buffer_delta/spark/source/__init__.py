"""The Spark data source `buffer`: look at a queue, load it with queries of one's own, produce into it.

    spark.read.format("buffer").load("s3://bucket/queue")                              # a look: disturbs nobody
    spark.readStream.format("buffer").option("format", "json").option("schema", …)     # claims and acks
    frame.write.format("buffer").mode("append").save("s3://bucket/queue")              # produces

`register(spark)` makes it known to a session; `spark_session()` has done so already, and where the top-level module
`pyspark_buffer` is installed Spark finds it by itself.

options      what may be said, and how a wrong word is answered; where secrets go
columns      the columns of a read: what Spark asks for and what the formats give
offsets      a stream's place, and whether the queue still holds what it asks for                          (pure)
stream       a queue under a streaming query: claims, acks, limits                                         (no Spark)
snapshot     a queue as a batch read sees it                                                               (no Spark)
encode       rows to entries                                                                               (pure)
produce      entries to uploads                                                                            (no Spark)
readers      the shells that Spark calls, for reads
writers      … and for writes
datasource   the data source itself, and `register`
"""

from __future__ import annotations

from buffer_delta.spark.source.datasource import BufferDataSource, register

__all__ = ["BufferDataSource", "register"]
