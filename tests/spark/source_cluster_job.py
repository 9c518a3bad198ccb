"""A job for a cluster, driven by signs in a folder: reads one queue with the data source and writes another one.

Each task says that it runs by a file `{partition}-{attempt}` with the pid of its executor. The first partition waits
until two attempts of it run: its own, and its speculative twin or its repetition. The second waits for a file `go`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
from pyspark import TaskContext

from buffer_delta.spark.session import spark_session

POLL_S = 0.05
SCHEMA = "id BIGINT"


def main(master: str, source: str, target: str, signs: str) -> None:
    spark = spark_session(
        "cluster job",
        master=master,
        config={
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.speculation": "true",
            "spark.speculation.quantile": "0.1",
            "spark.speculation.multiplier": "1.1",
            "spark.task.maxFailures": "10",
        },
    )

    def with_signs(batches: Iterable[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        partition, folder = context.partitionId(), Path(signs)
        executor = psutil.Process(os.getppid()).ppid()
        for number, batch in enumerate(batches):
            yield batch
            if number == 0:
                sign = folder / f"{partition}-{context.taskAttemptId()}"
                sign.with_suffix(".part").write_text(str(executor))
                sign.with_suffix(".part").rename(sign)
                if partition == 0:
                    while len([path for path in folder.glob("0-*") if not path.suffix]) < 2:
                        time.sleep(POLL_S)
                if partition == 1:
                    while not (folder / "go").exists():
                        time.sleep(POLL_S)

    frame = (
        spark.read.format("buffer")
        .options(format="json", columns="none", partition_bytes=str(4 * 33_000))
        .schema(SCHEMA)
        .load(source)
    )
    frame = frame.mapInArrow(with_signs, SCHEMA)
    frame.write.format("buffer").mode("append").options(format="json", flush_size_bytes="100").save(target)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
