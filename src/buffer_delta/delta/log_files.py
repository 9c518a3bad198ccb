"""The single commits of a Delta log: whether one is there, its first actions, all of them. Used by `log.py`.

They are read through Spark's log store, whatever that is. A log on the local disk, where the log store is Delta's own,
is plain files, each of which is there as a whole or not at all: those are read directly, for each step through the JVM
is a call of its own, and a look takes a dozen.

What it touches of the JVM: DeltaLog.store, .newDeltaHadoopConf; LogStore.read, .readAsIterator; Hadoop's Path and
FileSystem.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ACTIONS_READ_MAX = 5_000  # of one commit: an OPTIMIZE of a large table has many more, and the state is cheaper
_INFO = '{"commitInfo"'
_INFO_AMONG_FIRST = 8  # it is the first action, but for other writers' habits
STORE_SETTINGS = ("spark.delta.logStore.file.impl", "spark.delta.logStore.class", "spark.hadoop.fs.file.impl")
"""Of Spark, by which a log on the local disk is read in some other way than Delta's own."""


class LogFiles(Protocol):
    """The commits of one log. What was cleaned up, or is not there yet, is None."""

    def exists(self, version: int) -> bool: ...

    def head(self, version: int) -> list[str] | None:
        """The first actions of one commit, up to its commitInfo, without reading the rest."""
        ...

    def actions(self, version: int) -> list[str] | None:
        """All actions of one commit, as JSON. None also if it is too large to be looked through."""
        ...


def local_folder(log_path: Any) -> Path | None:
    """Where a log's files are on the local disk; None: they are elsewhere."""
    uri = log_path.toUri()
    return Path(str(uri.getPath())) if uri.getScheme() == "file" else None


class OnDisk:
    """A log in a local folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def exists(self, version: int) -> bool:
        return (self._folder / _name(version)).exists()

    def head(self, version: int) -> list[str] | None:
        found = self._lines(version, _INFO_AMONG_FIRST)
        if found is None:
            return None
        at = next((at for at, line in enumerate(found) if line.startswith(_INFO)), len(found))
        return found[: at + 1]

    def actions(self, version: int) -> list[str] | None:
        found = self._lines(version, ACTIONS_READ_MAX + 1)
        return found if found is not None and len(found) <= ACTIONS_READ_MAX else None

    def _lines(self, version: int, count: int) -> list[str] | None:
        try:
            # Only there a line ends: text in JSON may hold what else ends one.
            with (self._folder / _name(version)).open(encoding="utf-8", newline="\n") as lines:
                return [line.rstrip("\r\n") for line in islice(lines, count)]
        except FileNotFoundError:
            return None


class ThroughSpark:
    """A log that Spark's log store reads. For one look: each asking for Hadoop's settings copies all of them."""

    def __init__(self, spark: SparkSession, log: Any, log_path: Any) -> None:
        self._path_class: Any = spark._jvm.org.apache.hadoop.fs.Path
        self._log_path = log_path
        self._store = log.store()
        self._conf = log.newDeltaHadoopConf()

    def exists(self, version: int) -> bool:
        path = self._path_class(self._log_path, _name(version))
        return bool(path.getFileSystem(self._conf).exists(path))

    def head(self, version: int) -> list[str] | None:
        lines = self._read(version, "readAsIterator")
        if lines is None:
            return None
        found: list[str] = []
        try:
            while len(found) < _INFO_AMONG_FIRST and lines.hasNext():
                found.append(str(lines.next()))
                if found[-1].startswith(_INFO):
                    break
        finally:
            lines.close()
        return found

    def actions(self, version: int) -> list[str] | None:
        lines = self._read(version, "read")
        if lines is None or lines.size() > ACTIONS_READ_MAX:
            return None
        text: str = lines.mkString("\n")  # one call: asking for each line would be one each
        return text.split("\n")

    def _read(self, version: int, how: str) -> Any:
        path = self._path_class(self._log_path, _name(version))
        try:
            return getattr(self._store, how)(path, self._conf)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() == "FileNotFoundException":
                return None
            raise


def _name(version: int) -> str:
    return f"{version:020d}.json"
