"""Writers that let Spark write the files and Delta's own command commit them.

The public way, `df.write.option("txnAppId", …)`, makes Delta compute the table's whole state before every write, with
three Spark jobs, only to look up one number: a small commit takes four times as long as one without. `Fast` runs the
very command behind it, on a snapshot whose position was read from the log already (`delta/log.py`). Where this Delta
build does not look as expected, `Public` does the same the slow way.

What `Fast` touches besides what `log.py` lists: WriteIntoDelta, DeltaOperations.Write, OptimisticTransaction.readTxn,
.commitIfNeeded, .getOperationMetrics and .postCommitHooks (to take CheckpointHook out: no checkpoint is made inside a
commit, see `delta/upkeep.py`), DeltaLog.startTransaction and .initialCatalogTable.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from buffer_delta.delta.txn import Txn
from buffer_delta.delta.writers.base import Prepared, Staged, Writer, Written

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_COMMAND = "org.apache.spark.sql.delta.commands.WriteIntoDelta"
_OPERATION = "org.apache.spark.sql.delta.DeltaOperations$Write"
_TRANSACTION = "org.apache.spark.sql.delta.OptimisticTransaction"
_LOG = "org.apache.spark.sql.delta.DeltaLog"
_HOOK = "org.apache.spark.sql.delta.hooks.CheckpointHook"
_WANTED = {
    ("writeAndReturnCommitData", 4),
    ("readTxn", 0),
    ("postCommitHooks", 0),
    ("commitIfNeeded", 3),
    ("getOperationMetrics", 1),
    ("startTransaction", 2),
    ("initialCatalogTable", 0),
}


def spark_writer(spark: SparkSession, name: str | None, path: str | None) -> Writer:
    """The best one for this build of Delta. The table is given by its name or by its path."""
    return Fast(spark) if Fast.fits(spark) else Public(name, path)


class Public:
    """Through the DataFrame's own writer: works with every build of Delta, which looks up the position itself."""

    leaves_checkpoints = False

    def __init__(self, name: str | None, path: str | None) -> None:
        self._name = name
        self._path = path

    @property
    def casts(self) -> bool:
        return self._path is None  # by name Spark casts whatever it can, an array to its text for one

    def write(self, prepared: Prepared, txn: Txn) -> Written | None:
        writer = prepared.rows.write.format("delta").mode("append").options(**_options(prepared, txn))
        if self._path is not None:
            writer.save(self._path)
        else:
            writer.saveAsTable(self._name)
        return None


class Fast:
    """Through Delta's own write command. `fits` tells whether this build has it in the shape we know."""

    casts = False
    leaves_checkpoints = True

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        jvm = spark._jvm
        self._delta = jvm.org.apache.spark.sql.delta
        self._python = jvm.org.apache.spark.api.python.PythonUtils
        self._append = jvm.org.apache.spark.sql.SaveMode.Append
        self._none = jvm.scala.Option.empty()
        self._some = jvm.scala.Some
        self._checkpoint_hook = getattr(getattr(self._delta.hooks, "CheckpointHook$"), "MODULE$")

    @staticmethod
    def fits(spark: SparkSession) -> bool:
        jvm = spark._jvm
        loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
        try:
            counts = [
                [c.getParameterCount() for c in loader.loadClass(name).getConstructors()]
                for name in (_COMMAND, _OPERATION)
            ]
            methods = {
                (m.getName(), m.getParameterCount())
                for name in (_COMMAND, _TRANSACTION, _LOG, _HOOK)
                for m in loader.loadClass(name).getMethods()
            }
        except Py4JError:  # no such class
            counts, methods = [], set()
        known = counts == [[9], [9]] and methods >= _WANTED
        if not known:
            log.info("this build of Delta is not known: commits go through its public API, which is slower")
        return known

    def write(self, prepared: Prepared, txn: Txn) -> Written | None:
        return self.stage(prepared, txn).commit()

    def stage(self, prepared: Prepared, txn: Txn) -> Staged:
        session = self._spark._jsparkSession
        delta_log, snapshot = prepared.seen.snapshot.log, prepared.seen.snapshot.java
        none, catalog = self._none, delta_log.initialCatalogTable()
        nothing = self._python.toSeq([])
        options = self._python.toScalaMap(_options(prepared, txn))
        made = self._delta.DeltaOptions(options, session.sessionState().conf())
        command = self._delta.commands.WriteIntoDelta(
            delta_log,
            self._append,
            made,
            nothing,
            self._python.toScalaMap({}),
            prepared.rows._jdf,
            catalog,
            none,
            False,
        )
        transaction = delta_log.startTransaction(catalog, self._some(snapshot))
        # It would make the commit wait, every tenth time, for seconds; see `delta/upkeep.py`.
        transaction.postCommitHooks().subtractOne(self._checkpoint_hook)
        transaction.readTxn().addOne(txn.app_id)  # whoever else moves this app's position now conflicts with us
        data = command.writeAndReturnCommitData(transaction, session, none, False)
        merged = self._some(True) if prepared.merge_schema else none
        operation = getattr(self._delta, "DeltaOperations$Write")(
            self._append, self._some(nothing), none, made.userMetadata(), none, none, merged, none, none
        )
        return _FastStaged(self._spark, delta_log, transaction, data, operation)


@dataclass(frozen=True)
class _FastStaged:
    """What Delta's command has written, with the transaction that would commit it."""

    spark: SparkSession
    log: Any
    transaction: Any
    data: Any
    operation: Any

    def commit(self) -> Written | None:
        version = self.transaction.commitIfNeeded(self.data.actions(), self.operation, self.data.stringTags())
        # Whoever has cached the table sees the rows.
        self.spark.catalog.refreshByPath(str(self.log.dataPath().toString()))
        return self._written(version, self.transaction.getOperationMetrics(self.operation))

    def _written(self, version: Any, metrics: Any) -> Written | None:
        if version.isEmpty() or metrics.isEmpty():
            return None

        def count(name: str) -> int:
            found = metrics.get().get(name)
            return int(found.get()) if found.isDefined() else 0

        return Written(int(version.get()), count("numOutputRows"), count("numFiles"), count("numOutputBytes"))


def _options(prepared: Prepared, txn: Txn) -> dict[str, str]:
    """Everything a commit needs travels with it, never as settings of the session."""
    options = {"txnAppId": txn.app_id, "txnVersion": str(txn.last), "userMetadata": txn.to_note()}
    if prepared.merge_schema:
        options["mergeSchema"] = "true"
    return options
