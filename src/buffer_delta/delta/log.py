"""Reading a Delta table's log through the JVM: a few milliseconds, mostly without a Spark job, always the newest state.

delta-spark's public Python API has no way to ask for an app's last transaction, so this goes to the classes below.
Everything it touches is listed here:

    DeltaLog.forTable, .update, .store, .logPath, .dataPath, .newDeltaHadoopConf
    Snapshot.version, .metadata (and its .json), .schema, .transactions
    LogStore.read, .readAsIterator

`writers/spark.py` and `create.py` go the same way, and list their own.

**One look** is `DeltaLog.update` and the few commits since the look before, each read once: position, table id,
columns and what took rows back all come from it. Nothing is taken from an earlier look without asking whether the log
is still the one that was read then.
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

from buffer_delta.delta.history import find_rewrite
from buffer_delta.delta.rules import TableRules
from buffer_delta.delta.state import NO_TABLE, NOTHING, Rewrite, TableState
from buffer_delta.delta.txn import Txn
from buffer_delta.errors import SparkUnusable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMITS_READ_MAX = 30  # beyond that, computing the table's state is faster
ACTIONS_READ_MAX = 5_000  # of one commit: an OPTIMIZE of a large table has many more, and the state is cheaper
_INFO = '{"commitInfo"'
_INFO_AMONG_FIRST = 8  # it is the first action, but for other writers' habits

# The second is Databricks' own build.
_CLASSES = ("org.apache.spark.sql.delta.DeltaLog", "com.databricks.sql.transaction.tahoe.DeltaLog")
_NO_TABLE = ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "DELTA_TABLE_NOT_FOUND")


@dataclass(frozen=True, slots=True)
class _Known:
    """What an earlier look found out about one app."""

    app_id: str
    table_id: str
    version: int
    mark: str | None
    """The first line of that version's commit: another one means that the log was put back and went on elsewhere."""
    position: int
    rewrite: Rewrite | None


class Snapshot:
    """One version of a table, and the log it is from, in the JVM. Cheap to make; facts are fetched when asked for."""

    def __init__(self, log: Any, snapshot: Any) -> None:
        self.log = log
        self.java = snapshot
        self.version = int(snapshot.version())

    @property
    def table_id(self) -> str:
        return str(self.java.metadata().id())

    @property
    def properties(self) -> dict[str, str]:
        entries = self.java.metadata().configuration().toSeq()
        return {str(entries.apply(i)._1()): str(entries.apply(i)._2()) for i in range(entries.size())}

    def computed_position(self, app_id: str) -> int:
        """What the state of the whole table says: exact, and three Spark jobs if nobody has asked before."""
        found = self.java.transactions().get(app_id)
        return int(found.get()) if found.isDefined() else NOTHING


class DeltaLog:
    """The log of one table, by catalog name or by path.

    It remembers what it knows of one app at one version; what came since is in the few commits since then.
    """

    def __init__(self, spark: SparkSession, name: str | None, path: str | None) -> None:
        assert (name is None) != (path is None), "a table has a name or a path"
        self._spark = spark
        self._name = name
        self._path = path
        self._class: Any = None
        self._log: Any = None
        self._known: _Known | None = None
        self._schema: tuple[str, StructType] | None = None
        self._rules: tuple[str, TableRules] | None = None
        self._heads: dict[int, list[str]] = {}
        """The beginnings of commits that were read during this look."""

    def newest(self) -> Snapshot | None:
        """The table as it is in storage now, commits of other processes included. None: there is no table."""
        self._heads.clear()
        self._log = self._open()
        if self._log is None:
            return None
        none = self._spark._jvm.scala.Option.empty()
        snapshot = Snapshot(self._log, self._log.update(False, none, none))
        return snapshot if snapshot.version >= 0 else None

    def look(self, app_id: str) -> TableState:
        """One look at the newest log, as `app_id` needs it."""
        snapshot = self.newest()
        if snapshot is None:
            return NO_TABLE
        known = self._known_at(app_id, snapshot)
        return TableState(
            version=snapshot.version,
            table_id=known.table_id,
            position=known.position,
            rewrite=known.rewrite,
            schema=self.schema(snapshot),
            rules=self._rules_of(snapshot),
            snapshot=snapshot,
        )

    def schema(self, snapshot: Snapshot) -> StructType:
        """The columns at this snapshot. Parsed again only if they are others than at the last call."""
        text = str(snapshot.java.schema().json())
        if self._schema is None or self._schema[0] != text:
            self._schema = (text, StructType.fromJson(json.loads(text)))
        return self._schema[1]

    def _rules_of(self, snapshot: Snapshot) -> TableRules:
        text = str(snapshot.java.metadata().json())
        if self._rules is None or self._rules[0] != text:
            self._rules = (text, TableRules.of_metadata(text))
        return self._rules[1]

    def find(self, txn: Txn, since: int, until: int) -> tuple[int, Mapping[str, Any]] | None:
        """The version of this very transaction after `since`, and its metrics; None if Delta skipped it."""
        note = txn.to_note()
        for version in range(until, since, -1):
            info = self.commit_info(version)
            if info is not None and info.get("userMetadata") == note:
                return version, info.get("operationMetrics") or {}
        return None

    def find_rewrite(self, newest: int, app_id: str, position: int) -> Rewrite | None:
        """What took back rows up to `position`, between the commit that brought them and `newest`."""
        return None if position == NOTHING else find_rewrite(self.commit_info, newest, app_id, position)

    def _known_at(self, app_id: str, snapshot: Snapshot) -> _Known:
        table_id = snapshot.table_id
        known = self._known
        if known is None or (known.app_id, known.table_id) != (app_id, table_id):
            known = _Known(app_id, table_id, -1, None, NOTHING, None)  # before the first commit
        read = self._read_on(known, snapshot.version)
        if read is not None and snapshot.version == known.version:
            return known
        position = snapshot.computed_position(app_id) if read is None else read
        rewrite = self.find_rewrite(snapshot.version, app_id, position)
        self._known = _Known(app_id, table_id, snapshot.version, self._mark(snapshot.version), position, rewrite)
        return self._known

    def _read_on(self, known: _Known, version: int) -> int | None:
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
            self._heads[number] = actions[:_INFO_AMONG_FIRST]
            for action in actions:  # the newest counts, and an app is in a commit once
                if action.startswith('{"txn"') and (txn := json.loads(action)["txn"])["appId"] == known.app_id:
                    position = int(txn["version"])
        return position

    def _mark(self, version: int) -> str | None:
        if version not in self._heads:
            self._heads[version] = self._head(version) or []
        return next(iter(self._heads[version]), None)

    @property
    def java(self) -> Any:
        """The JVM's object. Only after `newest` has found the table."""
        assert self._log is not None, "newest() comes first"
        return self._log

    def opened(self) -> Any:
        """The JVM's object, also where there is no table yet. None: a name that the catalog does not know."""
        return self._open()

    def location(self) -> str | None:
        """Where the table's files are, or would be, as a URL. None: a name that the catalog does not know."""
        found = self._open()
        return str(found.dataPath().toString()) if found is not None else None

    def commit_info(self, version: int) -> Mapping[str, Any] | None:
        """What one commit says about itself. None if that part of the log was cleaned up or says nothing."""
        for action in self._heads.get(version) or self._head(version) or ():
            if action.startswith(_INFO):
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

    def _head(self, version: int) -> list[str] | None:
        """The first actions of one commit, up to its commitInfo, without reading the rest. None if it is gone."""
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
