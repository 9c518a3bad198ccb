"""The checksum of a version (`00…42.crc`), put by the table's own store instead of in Delta's step after the commit.

It holds what Delta has counted while it committed, so that whoever lists the log next need not read the whole table.
Delta's own step puts it through Hadoop as a temporary file that is then renamed: many requests on a remote store, and
on a local disk ten processes that Hadoop starts for `chmod` and `readlink`. Here it is the same bytes in one put.

Nothing depends on it. If the process dies before, or the put fails, the version has none, as if Delta had died there.
Only the newest version gets one, as with Delta. Where the session has its own wishes about checksums, and in a build
of Delta that is not known, Delta's step stays.

What it touches besides what `transaction.py` lists: ChecksumHook, JsonUtils.mapper, Snapshot.computeChecksum,
OptimisticTransaction.txnId.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from buffer.errors import StorageError
from buffer_delta.delta.java_names import kept
from buffer_delta.delta.table_store import TableStore
from buffer_delta.delta.writers.transaction import Begun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_SETTINGS = (
    "spark.databricks.delta.writeChecksumFile.enabled",
    "spark.databricks.delta.writeChecksumFile.histogramFollowsProtocol",
)
"""As long as both are as Delta has them, true."""


class _Names:
    def __init__(self, spark: SparkSession) -> None:
        delta: Any = spark._jvm.org.apache.spark.sql.delta
        try:
            self.hook = getattr(getattr(delta.hooks, "ChecksumHook$"), "MODULE$")
            self.to_json: Any = getattr(getattr(delta.util, "JsonUtils$"), "MODULE$").mapper().writeValueAsString
        except (Py4JError, TypeError):  # no such class
            self.hook = None


class Checksums:
    """Puts checksums, where that is known to be right."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._java = kept(spark, _Names)

    def take_over(self, begun: Begun) -> bool:
        """Take Delta's own step out of a transaction; False: it stays in."""
        conf = self._spark.conf
        if self._java.hook is None or not all(str(conf.get(name, "true")).lower() == "true" for name in _SETTINGS):
            return False
        begun.hooks.subtractOne(self._java.hook)
        return True

    def put(self, begun: Begun, version: int, table: TableStore) -> None:
        """Put the checksum of the version that this transaction has made. What fails is a warning."""
        try:
            snapshot = begun.log.unsafeVolatileSnapshot()
            if int(snapshot.version()) != version:
                return
            told = {
                "txnId": str(begun.transaction.txnId()),
                **json.loads(self._java.to_json(snapshot.computeChecksum())),
            }
            # One that is there is of a log that was put back: as with Delta, it stays.
            table.open().put_if_absent(f"_delta_log/{version:020d}.crc", f"{json.dumps(told)}\n".encode())
        except (Py4JError, StorageError) as error:
            log.warning("%s: no checksum of version %d, readers do without: %s", begun.location, version, error)
