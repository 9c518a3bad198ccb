"""A loader in place of a consumer: whatever a client's lives put into the queue is loaded into a Delta table.

Each `drain` is a new loader in this process, with a collector beside it: it claims the queue, loads what is there,
acks, and is gone. What counts is what stands in the table at the end.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from buffer.errors import ContentionError, ObjectNotFound, StorageError
from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader


class TableReader:
    """Stands in for `KeepingConsumer`."""

    def __init__(self, spark: SparkSession, store: str, table: Path, **settings: Any) -> None:
        """`settings` are the loader's beside those of a test: `store_options`, say."""
        self._spark = spark
        self._table = table
        self._config = LoaderConfig(
            store=store,
            table=str(table),
            format={"type": "json", "schema": "by STRING, id BIGINT"},
            **{"gc_interval_s": 0.05, "retry_max_s": 0.1, **settings},
        )
        self.found: defaultdict[str, list[int]] = defaultdict(list)
        self.loaders = 0
        self.troubles = 0
        """Loaders that ended for the store's reasons: the next one goes on."""

    def drain(self) -> bool:
        """Load what is in the queue, or some of it; True if it was empty."""
        self.loaders += 1
        try:
            return Loader(self._spark, self._config).run(available_now=True) is None
        except ObjectNotFound:
            raise  # the queue names a batch that is gone: that never passes
        except (StorageError, ContentionError):
            self.troubles += 1
            return False

    def close(self) -> None:
        rows = self._spark.read.format("delta").load(str(self._table)).orderBy("_sequence", "_index")
        for row in rows.select("by", "id").collect():
            self.found[row["by"]].append(row["id"])
