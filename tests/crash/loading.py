"""A loader in place of a consumer: whatever a client's lives put into the queue is loaded into a Delta table.

Each `drain` is a new loader in this process, with a collector beside it: it claims the queue, loads what is there,
acks, and is gone. What counts is what stands in the table at the end.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from pyspark.sql import SparkSession

from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader


class TableReader:
    """Stands in for `KeepingConsumer`."""

    def __init__(self, spark: SparkSession, store: str, table: Path) -> None:
        self._spark = spark
        self._table = table
        self._config = LoaderConfig(
            store=store,
            table=str(table),
            format={"type": "json", "schema": "by STRING, id BIGINT"},
            gc_interval_s=0.05,
            retry_max_s=0.1,
        )
        self.found: defaultdict[str, list[int]] = defaultdict(list)
        self.loaders = 0

    def drain(self) -> bool:
        """Load what is in the queue; True if it was empty."""
        self.loaders += 1
        return Loader(self._spark, self._config).run(available_now=True) is None

    def close(self) -> None:
        rows = self._spark.read.format("delta").load(str(self._table)).orderBy("_sequence", "_index")
        for row in rows.select("by", "id").collect():
            self.found[row["by"]].append(row["id"])
