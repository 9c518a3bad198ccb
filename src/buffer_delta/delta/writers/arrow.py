"""The writer that lets the executors write Parquet by Arrow, and Delta's own transaction commit the files.

The rows never enter the JVM: a task decodes its batches and writes the files, and what comes back to the driver is a
line for each file (`delta/sink.py`). The driver commits these with the app's position in one transaction, which is
Delta's own: the one that Spark's writer uses, on the same snapshot, with new columns in it, conflicts, row ids,
in-commit timestamps and checkpoints as ever. It does not compute the table's state, so it does not grow with the table.

What happens if …
    a task fails or runs twice       its files have names of their own; those that nobody reports are orphans
    the process dies before commit   all files of the attempt are orphans, which VACUUM takes; the next attempt writes
                                     its own
    the reply to the commit is lost  as with every writer: the caller looks, and finds the position moved or not
    an older process wakes up        its transaction has read the app's position: it conflicts
    the table changes meanwhile      another schema, constraint or protocol is a conflict for every append; the caller
                                     looks again and stages again, under the new rules

Files of one staging are committed once: a second try stages anew. What decides whether Arrow may write a table is
`arrow_fit`, asked about the metadata that this very transaction would commit.

What this touches besides what `transaction.py` lists: DataType.fromJson, Action.fromJson, SQLMetrics.createMetric,
the hook AutoCompact.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from buffer.errors import InvalidConfig, InvalidInput
from buffer_delta.delta.arrow_fit import why_not, why_not_made
from buffer_delta.delta.columns import fitted
from buffer_delta.delta.file_rules import FileRules
from buffer_delta.delta.log import Snapshot
from buffer_delta.delta.sink import FileSink, WrittenFiles
from buffer_delta.delta.table_store import NoStore, TableStore, table_store
from buffer_delta.delta.txn import Txn
from buffer_delta.delta.writers.base import Prepared, Staged, StagingWriter, Written
from buffer_delta.delta.writers.transaction import Begun, Transactions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

_SIZE_PROPERTY = "delta.targetFileSize"
_STORE_SETTINGS = r"^(fs\.(s3a|azure|gs|defaultFS)|google\.cloud|hadoop\.security\.credential).*"


@dataclass(frozen=True)
class Unfit:
    """Why Arrow does not write this table, or these rows."""

    reason: str


class ArrowWriter:
    """Files by Arrow, where the table allows it."""

    casts = False
    leaves_checkpoints = True

    def __init__(
        self, spark: SparkSession, table_options: Mapping[str, Any] | None, target_file_bytes: int | None
    ) -> None:
        self._spark = spark
        self._table_options = table_options
        self._target_file_bytes = target_file_bytes
        self._transactions = Transactions(spark)
        self._nothing = spark.createDataFrame([], "nothing INT")

    def why_not(self, snapshot: Snapshot) -> str | None:
        """What a table has against it."""
        java = snapshot.java
        reason = why_not(str(java.protocol().json()), str(java.metadata().json()))
        return reason or self._of_session() or self._no_store(snapshot.log)

    def why_not_made(self, properties: Mapping[str, str], java_log: Any) -> str | None:
        """The same of a table that is not there yet, as far as it is known; None for its log: only its name is."""
        return why_not_made(properties) or (self._no_store(java_log) if java_log is not None else None)

    def begin(self, prepared: Prepared, txn: Txn) -> tuple[Begun, FileSink] | Unfit:
        """The transaction with the columns that the rows bring, and the sink for the rows. Writes nothing.

        Raises what Delta raises of rows that do not fit.
        """
        begun = self._transactions.begin(prepared.seen, txn, self._nothing, merge_schema=prepared.merge_schema)
        python, session = self._transactions.python, self._spark._jsparkSession
        begun.command.updateMetadata(
            session,
            begun.transaction,
            self._java_type(fitted(prepared.rows.schema, prepared.seen.schema)),
            python.toSeq([]),
            python.toScalaMap({}),
            False,
            False,
        )
        protocol = str(begun.transaction.protocol().json())
        metadata = str(begun.transaction.metadata().json())
        reason = why_not(protocol, metadata) or self._of_session()
        if reason is not None:
            return Unfit(reason)
        table = self._store(begun.log)
        if isinstance(table, NoStore):
            return Unfit(table.reason)
        rules = self._rules(protocol, metadata)
        return rules if isinstance(rules, Unfit) else (begun, FileSink(rules, table))

    def stage(self, prepared: Prepared, txn: Txn) -> Staged | Unfit:
        found = self.begin(prepared, txn)
        if isinstance(found, Unfit):
            return found
        begun, sink = found
        return _ArrowStaged(begun, WrittenFiles.of(prepared.rows.drained(sink)))

    def _store(self, java_log: Any) -> TableStore | NoStore:
        """The table's own store, by the settings that its log is read with."""
        location = str(java_log.dataPath().toString())
        # Each setting is a call to the JVM: only those that count, and none for local files.
        is_local = location.startswith("file:") or self._table_options is not None
        settings = {} if is_local else dict(java_log.newDeltaHadoopConf().getValByRegex(_STORE_SETTINGS))
        return table_store(location, settings, self._table_options)

    def _no_store(self, java_log: Any) -> str | None:
        found = self._store(java_log)
        return found.reason if isinstance(found, NoStore) else None

    def _rules(self, protocol: str, metadata: str) -> FileRules | Unfit:
        has_vectors = "deletionVectors" in (json.loads(protocol)["protocol"].get("writerFeatures") or ())
        codec = self._spark.conf.get("spark.sql.parquet.compression.codec", "snappy")
        try:
            rules = FileRules.of_metadata(metadata, codec=str(codec), deletion_vectors=has_vectors)
        except InvalidInput as error:  # a type, a codec or a size that Arrow has no like of
            return Unfit(str(error))
        properties = json.loads(metadata)["metaData"].get("configuration") or {}
        if self._target_file_bytes is None or _SIZE_PROPERTY in properties:
            return rules
        return replace(rules, target_file_bytes=self._target_file_bytes)

    def _java_type(self, schema: StructType) -> Any:
        return self._spark._jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())

    def _of_session(self) -> str | None:
        """What Spark's writer would do because of the session's settings."""
        if _is_true(self._spark.conf.get("spark.databricks.delta.optimizeWrite.enabled", "false")):
            return "optimized writes are switched on for this session"
        if not _is_true(self._spark.conf.get("spark.databricks.delta.stats.collect", "true")):
            return "statistics are switched off for this session"
        return None


@dataclass(frozen=True)
class _ArrowStaged:
    """Files that are written, with the transaction that would commit them."""

    begun: Begun
    files: WrittenFiles

    def commit(self) -> Written | None:
        begun, files = self.begun, self.files
        spark, jvm = begun.spark, begun.spark._jvm
        python = jvm.org.apache.spark.api.python.PythonUtils
        session = spark._jsparkSession
        position = begun.command.createSetTransaction(session, begun.log, begun.options).get()
        parse = getattr(getattr(jvm.org.apache.spark.sql.delta.actions, "Action$"), "MODULE$").fromJson
        actions = python.toSeq([position, *map(parse, files.actions)])
        counts = {"numFiles": len(files.actions), "numOutputRows": files.rows, "numOutputBytes": files.size_bytes}
        begun.transaction.registerSQLMetrics(session, python.toScalaMap(self._metrics(counts)))
        if files.actions:  # as Delta's own writer does: the hook looks itself whether the table wants it
            hook = getattr(getattr(jvm.org.apache.spark.sql.delta.hooks, "AutoCompact$"), "MODULE$")
            begun.transaction.registerPostCommitHook(hook)
        version = begun.commit(actions, python.toScalaMap({}))
        return None if version is None else Written(version, files.rows, len(files.actions), files.size_bytes)

    def _metrics(self, counts: Mapping[str, int]) -> dict[str, Any]:
        """For DESCRIBE HISTORY."""
        spark = self.begun.spark
        context, made = spark._jsparkSession.sparkContext(), {}
        for name, count in counts.items():
            made[name] = spark._jvm.org.apache.spark.sql.execution.metric.SQLMetrics.createMetric(context, name)
            made[name].set(count)
        return made


class Auto:
    """Arrow where the table allows it, Spark's writer where not; the log says once why."""

    casts = False
    leaves_checkpoints = True

    def __init__(self, arrow: ArrowWriter, spark: StagingWriter, table: str, *, only_arrow: bool) -> None:
        self.arrow = arrow
        self._spark = spark
        self._table = table
        self._only_arrow = only_arrow
        self._said: str | None = None

    def write(self, prepared: Prepared, txn: Txn) -> Written | None:
        return self.stage(prepared, txn).commit()

    def stage(self, prepared: Prepared, txn: Txn) -> Staged:
        staged = self.arrow.stage(prepared, txn)
        if not isinstance(staged, Unfit):
            return staged
        self.refuse(staged.reason)
        return self._spark.stage(prepared, txn)

    def refuse(self, reason: str) -> None:
        """Say that Arrow does not write this table; raise that, if nothing else may."""
        if self._only_arrow:
            raise InvalidConfig(
                f"writer='arrow' cannot write {self._table!r}: {reason}. writer='auto' takes Spark's writer there",
                key="writer",
                value="arrow",
            )
        if self._said != reason:
            self._said = reason
            log.info("%s is written by Spark's own writer, not by Arrow: %s", self._table, reason)


def _is_true(text: str | None) -> bool:
    return str(text).lower() == "true"
