"""What keeps a table cheap to read and is no part of a commit: checkpoints of its log, compaction of small files.

**Checkpoints.** Delta makes one inside every commit whose version is a multiple of `delta.checkpointInterval`, and the
commit returns only after it: with many files that takes seconds. Our writer leaves that step out (`writers/spark.py`)
and `checkpoint` makes it up, on a thread of its own, after the range is acked. Nothing depends on one: a reader without
it reads the single commits. If the process dies before or in the middle of it, the checkpoint is missing, or a file is
there that `_last_checkpoint` does not name; the next one replaces it. Two at once write the same.

**Compaction** is Delta's own OPTIMIZE: a transaction that replaces files by larger ones with the same rows
(`dataChange = false`), and touches no app's position. So it neither counts as progress nor hides any. Only files below
the given size take part, so what is large enough is not written again. It runs between two commits of ours; others'
appends do not conflict with it, and if a delete or an update does, it has done nothing and comes again later.

What it touches besides what `log.py` lists: DeltaLog.checkpointInterval, .checkpoint(Snapshot, Option),
.initialCatalogTable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from delta.tables import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from buffer_delta.delta.log import DeltaLog, Snapshot

_MIN_SIZE = "spark.databricks.delta.optimize.minFileSize"
_MAX_SIZE = "spark.databricks.delta.optimize.maxFileSize"


def checkpoint_interval(snapshot: Snapshot) -> int:
    """Of the table: every how many versions it wants one."""
    return max(1, int(snapshot.log.checkpointInterval(snapshot.java.metadata())))


def checkpoint(snapshot: Snapshot) -> None:
    """Write the checkpoint of this version, and clean up the log behind it as Delta does. From any thread."""
    catalog_table: Any = snapshot.log.initialCatalogTable()
    snapshot.log.checkpoint(snapshot.java, catalog_table)


def compacting_session(spark: SparkSession, target_bytes: int) -> SparkSession:
    """A session of its own, on the same Spark: settings of the loader's session belong to whoever started it."""
    session = spark.newSession()
    session.conf.set(_MIN_SIZE, str(target_bytes))
    session.conf.set(_MAX_SIZE, str(target_bytes))
    return session


def compact(session: SparkSession, log: DeltaLog) -> tuple[int, int]:
    """OPTIMIZE the small files. Returns how many were replaced, and by how many."""
    location = log.location()
    assert location is not None, "a table that was committed to is somewhere"
    (row,) = DeltaTable.forPath(session, location).optimize().executeCompaction().collect()
    return int(row.metrics.numFilesRemoved), int(row.metrics.numFilesAdded)


def is_due(every: int, version: int, before: int) -> bool:
    """Whether a multiple of `every` lies in (before, version]. By the version, not by a count that a process keeps:
    so it comes round for processes that make one commit each, too."""
    return every > 0 and version // every > before // every
