"""Reading a Delta table's log through the JVM: a few milliseconds, mostly without a Spark job, always the newest state.

delta-spark's public Python API has no way to ask for an app's last transaction, so this goes to the classes below.
Everything it touches is listed here:

    DeltaLog.forTable, .update, .store, .logPath, .dataPath, .newDeltaHadoopConf
    Snapshot.version, .metadata, .schema, .transactions
    LogStore.read, .readAsIterator

`delta_commit` writes the same way, and lists its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from delta.tables import DeltaTable
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql.types import StructType

from buffer_delta.errors import SparkUnusable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMITS_READ_MAX = 30  # beyond that, computing the table's state is faster
ACTIONS_READ_MAX = 5_000  # of one commit: an OPTIMIZE of a large table has many more, and the state is cheaper
_INFO_AMONG_FIRST = 8  # it is the first action, but for other writers' habits

# The second is Databricks' own build.
_CLASSES = ("org.apache.spark.sql.delta.DeltaLog", "com.databricks.sql.transaction.tahoe.DeltaLog")
_NO_TABLE = ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "DELTA_TABLE_NOT_FOUND")


@dataclass(frozen=True, slots=True)
class _Position:
    app_id: str
    table_id: str
    version: int
    mark: str | None
    """The first line of that version's commit: another one means that the log was put back and went on elsewhere."""
    position: int | None


class Snapshot:
    """One version of a table. Cheap to make; facts are fetched from the JVM when asked for."""

    def __init__(self, snapshot: Any) -> None:
        self.java = snapshot
        self.version = int(snapshot.version())

    @property
    def table_id(self) -> str:
        return str(self.java.metadata().id())

    @property
    def schema(self) -> StructType:
        return StructType.fromJson(json.loads(self.java.schema().json()))

    @property
    def properties(self) -> dict[str, str]:
        entries = self.java.metadata().configuration().toSeq()
        return {str(entries.apply(i)._1()): str(entries.apply(i)._2()) for i in range(entries.size())}

    def computed_position(self, app_id: str) -> int | None:
        """What the state of the whole table says: exact, and three Spark jobs if nobody has asked before."""
        found = self.java.transactions().get(app_id)
        return int(found.get()) if found.isDefined() else None


class DeltaLog:
    """The log of one table, by catalog name or by path.

    It remembers the position of one app at one version; what came since is in the few commits since then.
    """

    def __init__(self, spark: SparkSession, name: str | None, path: str | None) -> None:
        assert (name is None) != (path is None), "a table has a name or a path"
        self._spark = spark
        self._name = name
        self._path = path
        self._class: Any = None
        self._log: Any = None
        self._known: _Position | None = None

    def newest(self) -> Snapshot | None:
        """The table as it is in storage now, commits of other processes included. None: there is no table."""
        self._log = self._open()
        if self._log is None:
            return None
        none = self._spark._jvm.scala.Option.empty()
        snapshot = Snapshot(self._log.update(False, none, none))
        return snapshot if snapshot.version >= 0 else None

    def position(self, app_id: str, snapshot: Snapshot) -> int | None:
        """The last sequence that `app_id` had committed at this snapshot; None if none."""
        table_id = snapshot.table_id
        known = self._known
        if known is None or (known.app_id, known.table_id) != (app_id, table_id):
            known = _Position(app_id, table_id, version=-1, mark=None, position=None)  # before the first commit
        read = self._read_on(known, snapshot.version)
        if read is not None and snapshot.version == known.version:
            return known.position
        found = snapshot.computed_position(app_id) if read is None else read[0]
        self._known = _Position(app_id, table_id, snapshot.version, self._mark(snapshot.version), found)
        return found

    def _read_on(self, known: _Position, version: int) -> tuple[int | None] | None:
        """The position at a version, from the commits since the known one. None: they do not tell."""
        if not known.version <= version <= known.version + COMMITS_READ_MAX:
            return None
        if known.version >= 0 and (known.mark is None or self._mark(known.version) != known.mark):
            return None
        position = known.position
        for number in range(known.version + 1, version + 1):
            actions = self._actions(number)
            if actions is None:
                return None
            for action in actions:  # the newest counts, and an app is in a commit once
                if action.startswith('{"txn"') and (txn := json.loads(action)["txn"])["appId"] == known.app_id:
                    position = int(txn["version"])
        return (position,)

    def _mark(self, version: int) -> str | None:
        return next(iter(self._first_actions(version, 1) or ()), None)

    @property
    def java(self) -> Any:
        """The JVM's object. Only after `newest` has found the table."""
        assert self._log is not None, "newest() comes first"
        return self._log

    def location(self) -> str | None:
        """Where the table's files are, or would be, as a URL. None: a name that the catalog does not know."""
        found = self._open()
        return str(found.dataPath().toString()) if found is not None else None

    def commit_info(self, version: int) -> Mapping[str, Any] | None:
        """What one commit says about itself. None if that part of the log was cleaned up or says nothing."""
        for action in self._first_actions(version, _INFO_AMONG_FIRST) or ():
            if action.startswith('{"commitInfo"'):
                info: Mapping[str, Any] = json.loads(action)["commitInfo"]
                return info
        return None

    def _actions(self, version: int) -> list[str] | None:
        """All actions of one commit, as JSON. None if it was cleaned up, or is too large to be looked through."""
        lines = self._read(version, "read")
        if lines is None or lines.size() > ACTIONS_READ_MAX:
            return None
        text: str = lines.mkString("\n")  # one call: asking for each line would be one each
        return text.split("\n")

    def _first_actions(self, version: int, count: int) -> list[str] | None:
        """The first actions of one commit, without reading the rest. None if it was cleaned up."""
        lines = self._read(version, "readAsIterator")
        if lines is None:
            return None
        try:
            return [str(lines.next()) for _ in range(count) if lines.hasNext()]
        finally:
            lines.close()

    def _read(self, version: int, how: str) -> Any:
        path = self._spark._jvm.org.apache.hadoop.fs.Path(self.java.logPath(), f"{version:020d}.json")
        try:
            return getattr(self.java.store(), how)(path, self.java.newDeltaHadoopConf())
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() == "FileNotFoundException":
                return None
            raise

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
