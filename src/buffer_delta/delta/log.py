"""Reading a Delta table's log through the JVM: a few milliseconds, mostly without a Spark job, always the newest state.

delta-spark's public Python API has no way to ask for an app's last transaction, so this goes to the classes below.
Everything it touches is listed here:

    DeltaLog.forTable, .invalidateCache, .update, .unsafeVolatileSnapshot, .logPath, .dataPath
    Snapshot.version, .metadata and .protocol (and their .json), .schema, .transactions
    SparkSession.setActiveSession

`log_files.py`, `writers/spark.py` and `create.py` go the same way, and list their own.

**One look** is the newest snapshot and the few commits since the look before, each read once: position, table id,
columns and what took rows back all come from it. Nothing is taken from an earlier look without asking whether the log
is still the one that was read then.

**Which snapshot is the newest** `DeltaLog.update` finds out by listing the log, which takes the longer the more commits
are in it. A log has no gaps, so the one that the JVM holds is the newest if the commit after it is not there (`_held`).
That is believed only if the commits that we know are still the same, and not where commits may first stand elsewhere,
in a catalog. Every `HELD_MAX` versions it is listed all the same: a snapshot names each commit since the checkpoint
that it was listed with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql.types import StructType

from buffer_delta.delta.history import find_rewrite
from buffer_delta.delta.java_names import kept
from buffer_delta.delta.log_files import STORE_SETTINGS, LogFiles, OnDisk, ThroughSpark, local_folder
from buffer_delta.delta.rules import TableRules
from buffer_delta.delta.state import NO_TABLE, NOTHING, Rewrite, TableState
from buffer_delta.delta.txn import Txn
from buffer_delta.errors import SparkUnusable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMITS_READ_MAX = 30  # beyond that, computing the table's state is faster
HELD_MAX = 10  # versions: as often as Delta makes checkpoints
_ELSEWHERE = ("catalogManaged", "catalogOwned", "coordinatedCommits")
"""What a table has in its protocol or properties whose newest commits may not be in its log yet."""
_INFO = '{"commitInfo"'
_METADATA = '{"metaData"'
_HEAD = 8  # actions of a commit that was read: enough to find what it says about itself

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


def session_class(spark: SparkSession) -> Any:
    """The JVM's class of this session."""
    return type(spark)._get_j_spark_session_class(spark._jvm)


def share_hadoop_settings(session: SparkSession, given: SparkSession) -> None:
    """Give a session of our own what was set for Hadoop in the one we were given: keys of a table's store, say.

    Nothing else: other settings belong to whoever started it.
    """
    for key, value in given.conf.getAll.items():
        if not key.startswith("spark."):
            session.conf.set(key, value)


class Snapshot:
    """One version of a table, and the log it is from, in the JVM. Cheap to make; facts are fetched when asked for."""

    def __init__(self, log: Any, snapshot: Any) -> None:
        self.log = log
        self.java = snapshot
        self.version = int(snapshot.version())

    @cached_property
    def metadata(self) -> str:
        """The action, as JSON."""
        return str(self.java.metadata().json())

    @cached_property
    def _said(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads(self.metadata)["metaData"]
        return found

    @property
    def table_id(self) -> str:
        return str(self._said["id"])

    @property
    def columns(self) -> list[str]:
        return [field["name"] for field in json.loads(self._said["schemaString"])["fields"]]

    @property
    def properties(self) -> dict[str, str]:
        return dict(self._said.get("configuration") or {})

    def facts(self) -> str:
        """Its protocol and its metadata, as JSON."""
        return f"{self.java.protocol().json()}{self.metadata}"

    def computed_position(self, app_id: str) -> int:
        """What the state of the whole table says: exact, and three Spark jobs if nobody has asked before."""
        found = self.java.transactions().get(app_id)
        return int(found.get()) if found.isDefined() else NOTHING


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a table's metadata says."""

    metadata: str
    table_id: str
    schema: StructType
    rules: TableRules

    @classmethod
    def of(cls, snapshot: Snapshot) -> _Facts:
        schema = StructType.fromJson(json.loads(str(snapshot.java.schema().json())))
        return cls(snapshot.metadata, snapshot.table_id, schema, TableRules.of_metadata(snapshot.metadata))


class DeltaLog:
    """The log of one table, by catalog name or by path.

    It remembers what it knows of one app at one version; what came since is in the few commits since then.
    """

    def __init__(self, spark: SparkSession, name: str | None, path: str | None) -> None:
        assert (name is None) != (path is None), "a table has a name or a path"
        self._spark = spark
        self._name = name
        self._path = path
        self._log: Any = None
        self._java = kept(spark, _Names)
        self._files: LogFiles | None = None
        """As of this look; a folder on the disk stays."""
        self._known: _Known | None = None
        self._listed: int | None = None
        """The version at which the log was listed last; None: it must be."""
        self._facts: _Facts | None = None
        self._heads: dict[int, list[str]] = {}
        """The beginnings of commits that were read during this look."""

    def _begin_look(self) -> bool:
        """Whether there is a log. Delta asks the thread for its session: queries set it, plain jobs do not."""
        self._java.activate(self._spark._jsparkSession)
        self._heads.clear()
        self._log = self._open()
        if self._path is None or not isinstance(self._files, OnDisk):  # a name may be that of another place by now
            self._files = None
        return self._log is not None

    def newest(self) -> Snapshot | None:
        """The table as it is in storage now, commits of other processes included. None: there is no table."""
        if not self._begin_look():
            return None
        snapshot = Snapshot(self._log, self._log.update(False, self._java.none, self._java.none))
        if snapshot.version < 0:
            self._listed = None
            return None
        facts = snapshot.facts()
        self._listed = None if any(word in facts for word in _ELSEWHERE) else snapshot.version
        return snapshot

    def look(self, app_id: str) -> TableState:
        """One look at the newest log, as `app_id` needs it."""
        snapshot = self._held(app_id) or self.newest()
        if snapshot is None:
            return NO_TABLE
        known = self._known_at(app_id, snapshot)
        return TableState(
            version=snapshot.version,
            table_id=known.table_id,
            position=known.position,
            rewrite=known.rewrite,
            schema=self._facts_of(snapshot).schema,
            rules=self._facts_of(snapshot).rules,
            mark=known.mark,
            snapshot=snapshot,
        )

    def _held(self, app_id: str) -> Snapshot | None:
        """The snapshot that the JVM holds, if it is the newest one of the log that we know. None: list it."""
        known = self._known
        if known is None or known.mark is None or known.app_id != app_id or self._listed is None:
            return None
        if not self._begin_look():
            return None
        snapshot = Snapshot(self._log, self._log.unsafeVolatileSnapshot())
        if not known.version <= snapshot.version < self._listed + HELD_MAX:
            return None
        # A log that was put back, or that of another table by that name, has other commits or lacks them.
        if self.files.exists(snapshot.version + 1) or self._mark(known.version) != known.mark:
            return None
        is_whole = snapshot.version == known.version or self.files.exists(snapshot.version)
        return snapshot if is_whole and self._facts_of(snapshot).table_id == known.table_id else None

    @property
    def files(self) -> LogFiles:
        """The single commits. Only after `newest` or `look` has found the table."""
        if self._files is None:
            path = self.java.logPath()
            folder = None if self._has_own_store else local_folder(path)
            self._files = OnDisk(folder) if folder else ThroughSpark(self._spark, self.java, path)
        return self._files

    @cached_property
    def _has_own_store(self) -> bool:
        conf = self._spark.sparkContext._jsc.sc().conf()  # `getConf` would bring all of it here
        return any(conf.get(name, "") for name in STORE_SETTINGS)

    def schema(self, snapshot: Snapshot) -> StructType:
        """The columns at this snapshot. Parsed again only if they are others than at the last call."""
        return self._facts_of(snapshot).schema

    def _facts_of(self, snapshot: Snapshot) -> _Facts:
        if self._facts is None or self._facts.metadata != snapshot.metadata:
            self._facts = _Facts.of(snapshot)
        return self._facts

    def is_replaced(self, snapshot: Snapshot) -> bool:
        """Whether the first version of the log is another table's than this snapshot of it, which the JVM holds: where
        two create a table on S3 at the same moment, the second replaces what the first has put."""
        actions = self.files.actions(0) if snapshot.version == 0 else None
        found = (json.loads(action)["metaData"]["id"] for action in actions or () if action.startswith(_METADATA))
        return next(found, snapshot.table_id) != snapshot.table_id

    def forget(self) -> None:
        """The next look reads the log anew. The JVM goes by names: it would not notice a version that was replaced."""
        self._known = self._listed = None
        if self._log is not None:
            self._delta_log.invalidate(self._spark._jsparkSession, self._log.dataPath())

    def find(self, txn: Txn, since: int, until: int) -> tuple[int, Mapping[str, Any]] | None:
        """The version of this very transaction after `since`, and its metrics; None if Delta skipped it."""
        note = txn.to_note()
        for version in range(until, since, -1):
            info = self.commit_info(version)
            if info is not None and info.get("userMetadata") == note:
                return version, info.get("operationMetrics") or {}
        return None

    def find_rewrite(self, newest: int, app_id: str, position: int) -> Rewrite | None:
        """What took back rows up to `position`, between the commit that brought them and `newest`. After a look."""
        if position == NOTHING:
            return None
        is_partitioned = self._facts is not None and bool(self._facts.rules.partition_by)
        return find_rewrite(self.commit_info, newest, app_id, position, is_partitioned=is_partitioned)

    def _known_at(self, app_id: str, snapshot: Snapshot) -> _Known:
        table_id = self._facts_of(snapshot).table_id
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
            actions = self.files.actions(number)
            if actions is None:
                return None
            self._heads[number] = actions[:_HEAD]
            for action in actions:  # the newest counts, and an app is in a commit once
                if action.startswith('{"txn"') and (txn := json.loads(action)["txn"])["appId"] == known.app_id:
                    position = int(txn["version"])
        return position

    def _mark(self, version: int) -> str | None:
        if version not in self._heads:
            self._heads[version] = self.files.head(version) or []
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
        for action in self._heads.get(version) or self.files.head(version) or ():
            if action.startswith(_INFO):
                info: Mapping[str, Any] = json.loads(action)["commitInfo"]
                return info
        return None

    def _open(self) -> Any:
        """The JVM's log object; None if the catalog has no such table."""
        session = self._spark._jsparkSession
        if self._path is not None:
            return self._delta_log.for_table(session, self._path)
        try:
            try:
                identifier = session.sessionState().sqlParser().parseTableIdentifier(self._name)
            except ParseException:  # three parts: another catalog, which only the general and slower way knows
                return DeltaTable.forName(self._spark, self._name)._jdt.deltaLog()
            return self._delta_log.for_table(session, identifier)
        except AnalysisException as error:
            if (error.getCondition() or "").startswith(_NO_TABLE):
                return None
            raise

    @property
    def _delta_log(self) -> _LogClass:
        """Delta's class of logs. Raises SparkUnusable if this session has none."""
        return kept(self._spark, _LogClass)


class _Names:
    """What looks need of the JVM."""

    def __init__(self, spark: SparkSession) -> None:
        self.none: Any = spark._jvm.scala.Option.empty()
        self.activate: Any = session_class(spark).setActiveSession


class _LogClass:
    def __init__(self, spark: SparkSession) -> None:
        found = self._find(spark._jvm)
        self.for_table, self.invalidate = found.forTable, found.invalidateCache

    @staticmethod
    def _find(jvm: Any) -> Any:
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
