"""A streaming job of one's own: the queue as a stream in Spark, and two tables written from each range, exactly once.

    python examples/stream_job.py --store ./queue --tables ./tables --checkpoint ./checkpoint

Spark replays a range that a crash has interrupted, with the same number and the same rows. Delta skips what it has got
already under the same `txnAppId` and `txnVersion`. The query's id is part of the former: a new checkpoint numbers its
ranges from 0 again. One queue feeds one query or one loader; a second one would fence the first.
"""

import argparse

from pyspark.sql import DataFrame, SparkSession

from buffer_delta import spark_session


def start(spark: SparkSession, store: str, tables: str, checkpoint: str) -> None:
    events = (
        spark.readStream.format("buffer")
        .option("format", "json")
        .option("schema", "id BIGINT, sensor STRING, value DOUBLE")
        .option("max_batches_per_trigger", 1000)
        .load(store)
    )

    def load(rows: DataFrame, batch: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        rows.persist()
        for table, part in {"events": rows, "alarms": rows.where("value > 0.9")}.items():
            once = {"txnAppId": f"{query}/{table}", "txnVersion": batch}
            part.write.format("delta").mode("append").options(**once).save(f"{tables}/{table}")
        print(f"range {batch}: {rows.count()} events")
        rows.unpersist()

    query = events.writeStream.foreachBatch(load).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--store", "--tables", "--checkpoint"):
        parser.add_argument(name, required=True)
    start(spark_session("stream-job"), **vars(parser.parse_args()))
