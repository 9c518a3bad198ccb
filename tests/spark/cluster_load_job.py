"""A job for a cluster, driven by signs in a folder: loads a queue with each of the writers into a table of its own.

Each task says that it parses by a file `{writer}-{partition}-{attempt}` with the pid of its executor. The second one
of a range then waits for a file `go-{writer}`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyspark import TaskContext

from buffer_delta.config import LoaderConfig
from buffer_delta.formats.base import Parsed
from buffer_delta.formats.json.format import JsonFormat
from buffer_delta.load.loader import Loader
from buffer_delta.spark.session import spark_session
from tests.spark.cluster import JOB_SETTINGS

POLL_S = 0.05


class WithSigns(JsonFormat):
    """Parses as ever, and waits where it is told to. Executors get it by value: they cannot import this file."""

    signs: str
    writer: str

    def parse(self, entries: pa.Array) -> Parsed:
        context = TaskContext.get()
        assert context is not None
        partition, folder = context.partitionId(), Path(self.signs)
        sign = folder / f"{self.writer}-{partition}-{context.taskAttemptId()}"
        if not sign.exists():
            sign.with_suffix(".part").write_text(str(psutil.Process(os.getppid()).ppid()))
            sign.with_suffix(".part").rename(sign)
        while partition == 1 and not (folder / f"go-{self.writer}").exists():
            time.sleep(POLL_S)
        return super().parse(entries)


def main(master: str, folder: str, signs: str) -> None:
    spark = spark_session(
        "cluster load",
        master=master,
        config=JOB_SETTINGS,
    )
    for writer in ("arrow", "spark"):
        form = WithSigns(schema="id BIGINT")
        form.signs, form.writer = signs, writer
        settings: dict[str, Any] = {
            "store": f"{folder}/queue-{writer}",
            "table": f"{folder}/table-{writer}",
            "format": form,
            "writer": writer,
            "target_file_bytes": 1000,  # some tasks, and some files
            "gc_enabled": False,
        }
        progress = Loader(spark, LoaderConfig(**settings)).run(available_now=True)
        assert progress is not None
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
