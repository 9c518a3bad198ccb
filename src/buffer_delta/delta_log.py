"""Reading a Delta table's log through the JVM: no Spark job, a few milliseconds, always the newest state.

delta-spark's public Python API has no way to ask for an app's last transaction, so this goes to the classes below.
It is the only file that does; everything it touches is listed here:

    DeltaLog.forTable, .update, .store, .logPath, .dataPath, .newDeltaHadoopConf
    Snapshot.version, .metadata, .schema, .transactions
    LogStore.read
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from delta.tables import DeltaTable
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql.types import StructType

from buffer_delta.errors import SparkUnusable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The second is Databricks' own build.
_CLASSES = ("org.apache.spark.sql.delta.DeltaLog", "com.databricks.sql.transaction.tahoe.DeltaLog")
_NO_TABLE = ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "DELTA_TABLE_NOT_FOUND")


class Snapshot:
    """One version of a table. Cheap to make; facts are fetched from the JVM when asked for."""

    def __init__(self, snapshot: Any) -> None:
        self._snapshot = snapshot
        self.version = int(snapshot.version())

    @property
    def table_id(self) -> str:
        return str(self._snapshot.metadata().id())

    @property
    def schema(self) -> StructType:
        return StructType.fromJson(json.loads(self._snapshot.schema().json()))

    @property
    def properties(self) -> dict[str, str]:
        entries = self._snapshot.metadata().configuration().toSeq()
        return {str(entries.apply(i)._1()): str(entries.apply(i)._2()) for i in range(entries.size())}

    def transaction(self, app_id: str) -> int | None:
        """The last version that `app_id` committed, from the log's own checksum where it has one: no Spark job."""
        found = self._snapshot.transactions().get(app_id)
        return int(found.get()) if found.isDefined() else None


class DeltaLog:
    """The log of one table, by catalog name or by path."""

    def __init__(self, spark: SparkSession, name: str | None, path: str | None) -> None:
        assert (name is None) != (path is None), "a table has a name or a path"
        self._spark = spark
        self._name = name
        self._path = path
        self._class: Any = None
        self._log: Any = None

    def newest(self) -> Snapshot | None:
        """The table as it is in storage now, commits of other processes included. None: there is no table."""
        self._log = self._open()
        if self._log is None:
            return None
        none = self._spark._jvm.scala.Option.empty()
        snapshot = Snapshot(self._log.update(False, none, none))
        return snapshot if snapshot.version >= 0 else None

    def location(self) -> str:
        """Where the table's files are, as a URL. Only after `newest` has found it."""
        assert self._log is not None, "newest() comes first"
        return str(self._log.dataPath().toString())

    def commit_info(self, version: int) -> Mapping[str, Any] | None:
        """What one commit says about itself. None if that part of the log was cleaned up or says nothing."""
        assert self._log is not None, "newest() comes first"
        path = self._spark._jvm.org.apache.hadoop.fs.Path(self._log.logPath(), f"{version:020d}.json")
        try:
            lines = self._log.store().read(path, self._log.newDeltaHadoopConf())
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() == "FileNotFoundException":
                return None
            raise
        for index in range(lines.size()):  # in practice the first line
            line = lines.apply(index)
            if line.startswith('{"commitInfo"'):
                info: Mapping[str, Any] = json.loads(line)["commitInfo"]
                return info
        return None

    def _open(self) -> Any:
        """The JVM's log object; None if the catalog has no such table."""
        if self._class is None:
            self._class = self._find_class()
        session = self._spark._jsparkSession
        if self._path is not None:
            return self._class.forTable(session, self._path)
        try:
            try:
                identifier = session.sessionState().sqlParser().parseTableIdentifier(self._name)
            except ParseException:  # three parts: another catalog, which only the general and slower way knows
                return DeltaTable.forName(self._spark, self._name)._jdt.deltaLog()
            return self._class.forTable(session, identifier)
        except AnalysisException as error:
            if (error.getCondition() or "").startswith(_NO_TABLE):
                return None
            raise

    def _find_class(self) -> Any:
        jvm = self._spark._jvm
        loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
        for name in _CLASSES:
            try:
                loader.loadClass(name)
            except Py4JError:
                continue
            found: Any = jvm
            for part in name.split("."):
                found = getattr(found, part)
            return found
        raise SparkUnusable(
            f"this Spark session gives no access to Delta's log (looked for {' and '.join(_CLASSES)}); the loader "
            "needs a classic session with Delta Lake: see buffer_delta.spark_session",
            found="no DeltaLog class",
        )
