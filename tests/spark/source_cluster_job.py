"""A job for a cluster: reads one queue with the data source, and writes what it found into another one.

Takes one JSON object: {"master", "source", "target", "options"}. Prints {"read": [ids]} after the read, then writes.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from buffer_delta.spark.session import spark_session
from tests.spark.cluster import JOB_SETTINGS

BATCHES_PER_TASK = 4
COST_BYTES = 32 * 1024  # what a tiny batch counts for, and a little more


def main(master: str, source: str, target: str, options: dict[str, str]) -> None:
    spark = spark_session("cluster job", master=master, config=JOB_SETTINGS)
    reader = spark.read.format("buffer").options(format="json", columns="none", **options)
    reader = reader.option("partition_bytes", str(BATCHES_PER_TASK * (COST_BYTES + 300)))
    frame = reader.schema("id BIGINT").load(source)
    found = [row.id for row in frame.collect()]
    sys.__stdout__.write(json.dumps({"read": found}) + "\n")
    sys.__stdout__.flush()
    numbers = spark.range(0, len(found), 1, 6)
    numbers.write.format("buffer").mode("append").options(format="json", flush_size_bytes="300", **options).save(target)
    spark.stop()


if __name__ == "__main__":
    command: dict[str, Any] = json.loads(sys.argv[1])
    main(**command)
