"""What keeps a table cheap to read and is no part of a commit: checkpoints of its log, compaction of small files.

**Checkpoints.** Delta makes one inside every commit whose version is a multiple of `delta.checkpointInterval`, and the
commit returns only after it: with many files that takes seconds. Our writer leaves that step out (`writers/spark.py`)
and `checkpoint` makes it up, once a multiple was passed since the last one, on a thread of its own, after the range is
acked. Nothing depends on one: a reader without it reads the single commits. If the process dies before or in the middle
of it, the checkpoint is missing, or a file is there that `_last_checkpoint` does not name; the next one replaces it.
Two at once write the same.

**Compaction** is Delta's own OPTIMIZE: a transaction that replaces files by larger ones with the same rows
(`dataChange = false`), and touches no app's position. So it neither counts as progress nor hides any. Only files below
the given size take part, so what is large enough is not written again. It runs between two commits of ours; others'
appends do not conflict with it, and if a delete or an update does, it has done nothing and comes again later. On S3
with Spark's usual log store it is refused: its commit would be put without a condition, over somebody else's perhaps.

What it touches besides what `log.py` lists: DeltaLog.checkpointInterval, .checkpoint(Snapshot, Option),
.initialCatalogTable; Snapshot.logSegment, LogSegment.checkpointProvider, its .version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta.tables import DeltaTable

from buffer.errors import InvalidConfig
from buffer_delta.delta.log import DeltaLog, share_hadoop_settings
from buffer_delta.delta.preflight import puts_blindly
from buffer_delta.delta.state import Commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MIN_SIZE = "spark.databricks.delta.optimize.minFileSize"
_MAX_SIZE = "spark.databricks.delta.optimize.maxFileSize"


class TableUpkeep:
    """Looks after one table, by name or by path. `checkpoint` may run on a thread of its own; the rest on one."""

    def __init__(self, spark: SparkSession, name: str | None, path: str | None, *, leaves_checkpoints: bool) -> None:
        """`leaves_checkpoints`: the commits that come here were made without them."""
        self._spark = spark
        self._name = name
        self._path = path
        self._leaves_checkpoints = leaves_checkpoints
        self._begun_at = 0
        """The version after which the last checkpoint was begun."""
        self._looked_at: int | None = None
        """The last version that was asked about for compaction."""
        self._compacting: SparkSession | None = None
        """A session of its own, on the same Spark: settings of the loader's belong to whoever started it."""

    def checkpoint_due(self, commit: Commit) -> bool:
        """Whether it is time for a checkpoint: a multiple of the table's interval was passed since the last one.

        Not only where this commit is the multiple: that may be a bystander's, who leaves it out, too."""
        snapshot = commit.after.snapshot
        if commit.version is None or snapshot is None or not self._leaves_checkpoints:
            return False
        interval = max(1, int(snapshot.log.checkpointInterval(snapshot.java.metadata())))
        if not is_due(interval, commit.version, self._begun_at):
            return False  # without asking the JVM
        # A snapshot may not know yet of one that was made since its log was listed, or of one that is being made.
        last = max(self._begun_at, int(snapshot.java.logSegment().checkpointProvider().version()))
        self._begun_at = max(last, commit.version)
        return is_due(interval, commit.version, last)

    def checkpoint(self) -> None:
        """Write the checkpoint of the newest version, and clean up the log behind it as Delta does."""
        newest = DeltaLog(self._spark, self._name, self._path).newest()
        if newest is not None:
            newest.log.checkpoint(newest.java, newest.log.initialCatalogTable())

    def check_compaction(self, location: str) -> None:
        """Raises InvalidConfig where compacting could replace a commit of somebody else."""
        if puts_blindly(location, dict(self._spark.sparkContext.getConf().getAll())):
            raise InvalidConfig(
                f"compact_every_commits would put OPTIMIZE's commits into {location} without a condition, and one of "
                "them may replace a commit of another driver. Set a multi-cluster log store "
                "(spark.delta.logStore.s3a.impl = io.delta.storage.S3DynamoDBLogStore) for all who write there, or "
                "leave it at 0 and run OPTIMIZE while no loader runs",
                key="compact_every_commits",
                value=location,
            )

    def compact_due(self, commit: Commit, every: int) -> bool:
        """Whether the table is to be compacted after this commit."""
        if commit.version is None:
            return False
        before = commit.version - 1 if self._looked_at is None else self._looked_at
        self._looked_at = commit.version
        return is_due(every, commit.version, before)

    def compact(self, target_bytes: int) -> tuple[int, int]:
        """OPTIMIZE the small files. Returns how many were replaced, and by how many."""
        if self._compacting is None:
            self._compacting = self._spark.newSession()
        share_hadoop_settings(self._compacting, self._spark)
        for key in (_MIN_SIZE, _MAX_SIZE):
            self._compacting.conf.set(key, str(target_bytes))
        location = DeltaLog(self._spark, self._name, self._path).location()
        assert location is not None, "a table that was committed to is somewhere"
        self.check_compaction(location)  # of a name, only now is it known for certain
        (row,) = DeltaTable.forPath(self._compacting, location).optimize().executeCompaction().collect()
        return int(row.metrics.numFilesRemoved), int(row.metrics.numFilesAdded)


def is_due(every: int, version: int, before: int) -> bool:
    """Whether a multiple of `every` lies in (before, version]. By the version, not by a count that a process keeps:
    so it comes round for processes that make one commit each, too."""
    return every > 0 and version // every > before // every
