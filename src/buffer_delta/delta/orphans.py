"""Data files in a table's folder that no version of it refers to: left by attempts that never committed.

    for orphan in orphans(spark, table_log): orphan.path, orphan.size_bytes, orphan.modified_ms

A file counts as referred to while the log still tells of it, also after it was removed from the table: those are the
history's, and VACUUM's business like the orphans. Files of a loader that is at work look like orphans until it commits;
only their age tells. The listing comes before the log, so that a commit in between makes none.

What this touches besides what `log.py` lists: Snapshot.allFiles and .tombstones, Hadoop's FileSystem.listFiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from buffer_delta.delta.log import DeltaLog

_SUFFIX = ".parquet"


@dataclass(frozen=True, slots=True)
class Orphan:
    path: str
    """Relative to the table's folder."""
    size_bytes: int
    modified_ms: int

    def written_at(self) -> str:
        return datetime.fromtimestamp(self.modified_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def orphans(spark: SparkSession, table_log: DeltaLog) -> list[Orphan]:
    """By path. Empty if there is no table. Computes the table's state, and lists its whole folder."""
    java = table_log.opened()
    if java is None:
        return []
    found = {orphan.path: orphan for orphan in _listed(java)}
    snapshot = table_log.newest()
    if snapshot is None:
        return []
    root = str(java.dataPath().toString()).rstrip("/")
    for files in (snapshot.java.allFiles(), snapshot.java.tombstones()):
        for (path,) in DataFrame(files.toDF(), spark).select("path").toLocalIterator():
            found.pop(unquote(path).removeprefix(root).lstrip("/"), None)
    return [found[path] for path in sorted(found)]


def _listed(java_log: Any) -> Iterator[Orphan]:
    """Every data file below the folder, but for those in folders that Delta keeps for itself."""
    root = java_log.dataPath()
    files = root.getFileSystem(java_log.newDeltaHadoopConf())
    prefix = str(files.makeQualified(root).toString()).rstrip("/") + "/"
    if not files.exists(root):
        return
    each = files.listFiles(root, True)
    while each.hasNext():
        status = each.next()
        path = str(status.getPath().toString()).removeprefix(prefix)
        if path.endswith(_SUFFIX) and not any(_is_hidden(part) for part in path.split("/")):
            yield Orphan(path, int(status.getLen()), int(status.getModificationTime()))


def _is_hidden(name: str) -> bool:
    """As Delta sees it: `_delta_log` is, the folder of a partition column with such a name is not."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)
