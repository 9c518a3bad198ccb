"""Spark → buffer → Delta: a DataFrame into a queue, and a loader that brings it into a table exactly once.

python examples/spark_to_delta.py ./folder
"""

import sys

from buffer_delta import Loader, LoaderConfig, spark_session

queue, table = f"{sys.argv[1]}/queue", f"{sys.argv[1]}/events"
spark = spark_session("spark-to-delta")

events = spark.range(1000).selectExpr("id", "concat('sensor-', id % 7) AS sensor", "rand(1) AS value")
events.write.format("buffer").mode("append").option("format", "json").save(queue)  # one append: all of it, or nothing

spark.read.format("buffer").option("view", "batches").load(queue).select("sequence", "bytes").show()

config = LoaderConfig(
    store=queue, table=table, format={"type": "json", "schema": "id BIGINT, sensor STRING, value DOUBLE"}
)
with Loader(spark, config) as loader:
    print(loader.run(available_now=True))
print(f"{spark.read.format('delta').load(table).count()} rows in {table}")
