"""One append to a Delta table with an app's position in it, in a single transaction.

The public way, `df.write.option("txnAppId", …)`, makes Delta compute the table's whole state before every write, with
three Spark jobs, only to look up one number: a small commit takes four times as long as one without. `Fast` runs the
very command behind it, on a snapshot whose position was read from the log already (`delta_log`). Where this Delta
build does not look as expected, `Public` does the same the slow way.

The rules of both: the snapshot's position is below `last`, else nothing is written; and the transaction conflicts with
any other that moves the same app's position. What the rows are computed from is not part of the transaction: a
transform that reads the table itself sees whatever version is there.

What `Fast` touches besides `delta_log`: WriteIntoDelta, DeltaOperations.Write, OptimisticTransaction.readTxn and
.commitIfNeeded, DeltaLog.startTransaction and .initialCatalogTable.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_COMMAND = "org.apache.spark.sql.delta.commands.WriteIntoDelta"
_OPERATION = "org.apache.spark.sql.delta.DeltaOperations$Write"
_TRANSACTION = "org.apache.spark.sql.delta.OptimisticTransaction"
_LOG = "org.apache.spark.sql.delta.DeltaLog"
_WANTED = {
    ("writeAndReturnCommitData", 4),
    ("readTxn", 0),
    ("commitIfNeeded", 3),
    ("startTransaction", 2),
    ("initialCatalogTable", 0),
}


class Writer(Protocol):
    def append(self, rows: DataFrame, log: Any, snapshot: Any, app_id: str, options: Mapping[str, str]) -> None:
        """Append on top of the snapshot. Raises what Spark and Delta raise; then nothing is known to be written."""
        ...


class Public:
    """Through the DataFrame's own writer: works with every build of Delta."""

    def __init__(self, name: str | None, path: str | None) -> None:
        self._name = name
        self._path = path

    def append(self, rows: DataFrame, log: Any, snapshot: Any, app_id: str, options: Mapping[str, str]) -> None:
        del log, snapshot, app_id  # Delta looks them up itself
        writer = rows.write.format("delta").mode("append").options(**options)
        if self._path is not None:
            writer.save(self._path)
        else:
            writer.saveAsTable(self._name)


class Fast:
    """Through Delta's own write command. `fits` tells whether this build has it in the shape we know."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        jvm = spark._jvm
        self._delta = jvm.org.apache.spark.sql.delta
        self._python = jvm.org.apache.spark.api.python.PythonUtils
        self._append = jvm.org.apache.spark.sql.SaveMode.Append
        self._none = jvm.scala.Option.empty()
        self._some = jvm.scala.Some

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
                for name in (_COMMAND, _TRANSACTION, _LOG)
                for m in loader.loadClass(name).getMethods()
            }
        except Py4JError:  # no such class
            counts, methods = [], set()
        known = counts == [[9], [9]] and methods >= _WANTED
        if not known:
            log.info("this build of Delta is not known: commits go through its public API, which is slower")
        return known

    def append(self, rows: DataFrame, log: Any, snapshot: Any, app_id: str, options: Mapping[str, str]) -> None:
        session = self._spark._jsparkSession
        none, catalog = self._none, log.initialCatalogTable()
        nothing = self._python.toSeq([])
        made = self._delta.DeltaOptions(self._python.toScalaMap(dict(options)), session.sessionState().conf())
        command = self._delta.commands.WriteIntoDelta(
            log, self._append, made, nothing, self._python.toScalaMap({}), rows._jdf, catalog, none, False
        )
        transaction = log.startTransaction(catalog, self._some(snapshot))
        transaction.readTxn().addOne(app_id)  # whoever else moves this app's position now conflicts with us
        data = command.writeAndReturnCommitData(transaction, session, none, False)
        merged = self._some(True) if options.get("mergeSchema") == "true" else none
        operation = getattr(self._delta, "DeltaOperations$Write")(
            self._append, self._some(nothing), none, made.userMetadata(), none, none, merged, none, none
        )
        transaction.commitIfNeeded(data.actions(), operation, data.stringTags())
        self._spark.catalog.refreshByPath(str(log.dataPath().toString()))  # whoever has cached the table sees the rows
