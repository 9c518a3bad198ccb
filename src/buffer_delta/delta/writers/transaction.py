"""Delta's own transaction, begun on the very version that was seen, for every writer that goes through the JVM.

What it touches besides what `log.py` lists: WriteIntoDelta (its constructor, .updateMetadata, .createSetTransaction),
DataType.fromJson, DeltaOptions, DeltaOperations.Write, OptimisticTransaction.readTxn, .metadata, .protocol,
.commitIfNeeded, .getOperationMetrics and .postCommitHooks (to take CheckpointHook out: no checkpoint is made inside a
commit, see `delta/upkeep.py`), DeltaLog.startTransaction and .initialCatalogTable.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError

from buffer_delta.delta.java_names import kept
from buffer_delta.delta.state import TableState
from buffer_delta.delta.txn import Txn
from buffer_delta.delta.writers.base import Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

_COMMAND = "org.apache.spark.sql.delta.commands.WriteIntoDelta"
_OPERATION = "org.apache.spark.sql.delta.DeltaOperations$Write"
_TRANSACTION = "org.apache.spark.sql.delta.OptimisticTransaction"
_LOG = "org.apache.spark.sql.delta.DeltaLog"
_HOOK = "org.apache.spark.sql.delta.hooks.CheckpointHook"
_WANTED = {
    ("writeAndReturnCommitData", 4),
    ("updateMetadata", 7),
    ("createSetTransaction", 3),
    ("readTxn", 0),
    ("postCommitHooks", 0),
    ("registerSQLMetrics", 2),
    ("registerPostCommitHook", 1),
    ("commitIfNeeded", 3),
    ("getOperationMetrics", 1),
    ("startTransaction", 2),
    ("initialCatalogTable", 0),
}
_FITS: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
"""What was found out of a JVM, by the way to it."""


class _Names:
    """What transactions need of the JVM."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        delta = jvm.org.apache.spark.sql.delta
        python = jvm.org.apache.spark.api.python.PythonUtils
        self.append = jvm.org.apache.spark.sql.SaveMode.Append
        self.none = jvm.scala.Option.empty()
        self.some = jvm.scala.Some
        self.checkpoint_hook = getattr(getattr(delta.hooks, "CheckpointHook$"), "MODULE$")
        self.options = delta.DeltaOptions
        self.command = delta.commands.WriteIntoDelta
        self.operation = getattr(delta, "DeltaOperations$Write")
        self.to_map: Any = python.toScalaMap
        self.nothing = python.toSeq([])
        self.no_map = self.to_map({})
        self.some_of_nothing = self.some(self.nothing)
        self.conf = spark._jsparkSession.sessionState().conf()
        self.type_of: Any = jvm.org.apache.spark.sql.types.DataType.fromJson


class Transactions:
    """Begins transactions. `fit` tells whether this build of Delta has them in the shape we know."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._java = java = kept(spark, _Names)
        self.none, self.nothing, self.no_map = java.none, java.nothing, java.no_map
        self._types: tuple[str, Any] | None = None

    @staticmethod
    def fit(spark: SparkSession) -> bool:
        gateway = spark.sparkContext._gateway
        if gateway not in _FITS:  # thousands of calls: once for a JVM, not for every table of every loader
            _FITS[gateway] = _fits(spark._jvm)
            if not _FITS[gateway]:
                log.info("this build of Delta is not known: commits go through its public API, which is slower")
        return _FITS[gateway]

    def begin(self, seen: TableState, txn: Txn, rows: DataFrame, *, merge_schema: bool) -> Begun:
        """On top of what was seen. `rows` are those that Delta's command would write, if it is asked to."""
        java, delta_log, snapshot = self._java, seen.snapshot.log, seen.snapshot.java
        catalog = delta_log.initialCatalogTable()
        made = java.options(java.to_map(write_options(txn, merge_schema=merge_schema)), java.conf)
        command = java.command(
            delta_log,
            java.append,
            made,
            self.nothing,
            self.no_map,
            rows._jdf,
            catalog,
            self.none,
            False,
        )
        transaction = delta_log.startTransaction(catalog, java.some(snapshot))
        # It would make the commit wait, every tenth time, for seconds; see `delta/upkeep.py`. Delta's checksum of the
        # new version stays in, unless the writer puts it: one that is listed without it makes Delta read all of it.
        hooks = transaction.postCommitHooks()
        hooks.subtractOne(java.checkpoint_hook)
        transaction.readTxn().addOne(txn.app_id)  # whoever else moves this app's position now conflicts with us
        merged = java.some(True) if merge_schema else self.none
        operation = java.operation(
            java.append, java.some_of_nothing, self.none, made.userMetadata(), self.none, self.none, merged,
            self.none, self.none,
        )  # fmt: skip
        return Begun(self._spark, self, delta_log, transaction, hooks, command, java.some(made), operation)

    def java_type(self, columns: StructType) -> Any:
        """The JVM's own object for these columns, made again only if they are others than at the last call."""
        text = columns.json()
        if self._types is None or self._types[0] != text:
            self._types = (text, self._java.type_of(text))
        return self._types[1]


@dataclass(frozen=True)
class Begun:
    """A transaction that holds nothing yet, and the command that could fill it."""

    spark: SparkSession
    names: Transactions
    log: Any
    transaction: Any
    hooks: Any
    """What it does after the commit."""
    command: Any
    options: Any
    operation: Any

    def update_columns(self, columns: StructType) -> None:
        """Give the table the columns that such rows bring, in this transaction. Raises what Delta has against it."""
        session, names = self.spark._jsparkSession, self.names
        java_type = names.java_type(columns)
        self.command.updateMetadata(session, self.transaction, java_type, names.nothing, names.no_map, False, False)

    def commit(self, actions: Any, tags: Any) -> int | None:
        """The version that it made; None if Delta saw nothing to commit."""
        version = self.transaction.commitIfNeeded(actions, self.operation, tags)
        self.refresh()
        return None if version.isEmpty() else int(version.get())

    @cached_property
    def location(self) -> str:
        """Where the table's files are, as Spark says it."""
        return str(self.log.dataPath().toString())

    def refresh(self) -> None:
        """Whoever has cached the table sees the rows."""
        self.spark.catalog.refreshByPath(self.location)

    def counted(self, version: int | None) -> Written | None:
        """What Delta itself counted while it wrote."""
        rows = self.metric("numOutputRows")
        if version is None or rows is None:
            return None
        return Written(version, rows, self.metric("numFiles") or 0, self.metric("numOutputBytes") or 0)

    def metric(self, name: str) -> int | None:
        """One of Delta's counts of what was written for this transaction; None if the session keeps none."""
        metrics = self.transaction.getOperationMetrics(self.operation)
        if metrics.isEmpty():
            return None
        found = metrics.get().get(name)
        return int(found.get()) if found.isDefined() else 0


def _fits(jvm: Any) -> bool:
    loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    names = {name for name, _ in _WANTED}
    try:
        counts = [
            [c.getParameterCount() for c in loader.loadClass(name).getConstructors()] for name in (_COMMAND, _OPERATION)
        ]
        methods = {
            (called, m.getParameterCount())
            for name in (_COMMAND, _TRANSACTION, _LOG, _HOOK)
            for m in loader.loadClass(name).getMethods()
            if (called := m.getName()) in names
        }
    except Py4JError:  # no such class
        return False
    return counts == [[9], [9]] and methods >= _WANTED


def write_options(txn: Txn, *, merge_schema: bool) -> dict[str, str]:
    """Everything a commit needs travels with it, never as settings of the session."""
    options = {"txnAppId": txn.app_id, "txnVersion": str(txn.last), "userMetadata": txn.to_note()}
    if merge_schema:
        options["mergeSchema"] = "true"
    return options
