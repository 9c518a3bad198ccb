"""The writer that lets the executors write Parquet by Arrow, and Delta's own transaction commit the files.

The rows never enter the JVM: a task decodes its batches and writes the files, and what comes back to the driver is a
line for each file (`delta/sink.py`). The driver commits these with the app's position in one transaction, which is
Delta's own: the one that Spark's writer uses, on the same snapshot, with new columns in it, conflicts, row ids,
in-commit timestamps and checkpoints as ever. It does not compute the table's state, so it does not grow with the table.
On S3 the driver puts the same commit itself, on a condition, where Spark's log store would put it without one.

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

What this touches besides what `transaction.py` lists: Action.fromJson, SQLMetrics.createMetric,
the hook AutoCompact.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from buffer.clock import SystemClock
from buffer.errors import InvalidConfig, InvalidInput, StorageError
from buffer_delta.delta.arrow_fit import why_not, why_not_made
from buffer_delta.delta.columns import fitted
from buffer_delta.delta.commit_file import append_actions, has_version, location_of, put_commit, why_not_trusted
from buffer_delta.delta.commit_file import why_not as why_not_put
from buffer_delta.delta.file_rules import FileRules
from buffer_delta.delta.java_names import kept
from buffer_delta.delta.log import Snapshot
from buffer_delta.delta.preflight import is_s3, puts_blindly
from buffer_delta.delta.sink import FileSink, WrittenFiles
from buffer_delta.delta.table_store import NoStore, TableStore, table_store
from buffer_delta.delta.txn import Txn
from buffer_delta.delta.writers.base import Prepared, Staged, StagingWriter, Unfit, Written
from buffer_delta.delta.writers.checksum import Checksums
from buffer_delta.delta.writers.transaction import Begun, Transactions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

_METRICS = ("numFiles", "numOutputRows", "numOutputBytes")
_SIZE_PROPERTY = "delta.targetFileSize"
_STORE_SETTINGS = r"^(fs\.(s3a|azure|gs|defaultFS)|google\.cloud|hadoop\.security\.credential).*"


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
        self._found: list[TableStore] = []
        """Stores that have shown the table's log."""
        self._tried: list[tuple[TableStore, str | None]] = []
        """Stores that were asked whether they keep their word, and why not."""
        self._nothing = spark.range(0)
        self._java = _Java(spark)
        self._checksums = Checksums(spark)
        self._last: tuple[StructType, FileSink, int] | None = None

    def why_not(self, snapshot: Snapshot) -> str | None:
        """What a table has against it."""
        found = self._fitting_store(*_seen(snapshot), snapshot.log, snapshot.version)
        return found.reason if isinstance(found, Unfit) else None

    def why_not_made(self, properties: Mapping[str, str], java_log: Any) -> str | None:
        """The same of a table that is not there yet, as far as it is known; None for its log: only its name is."""
        return why_not_made(properties) or (self._no_store(java_log) if java_log is not None else None)

    def begin(self, prepared: Prepared, txn: Txn) -> tuple[Begun, FileSink, OwnCommit | None] | Unfit:
        """The transaction with the columns that the rows bring, and the sink for the rows. Writes nothing.

        Raises what Delta raises of rows that do not fit.
        """
        begun = self._transactions.begin(prepared.seen, txn, self._nothing, merge_schema=prepared.merge_schema)
        begun.update_columns(fitted(prepared.rows.schema, prepared.seen.schema))
        protocol, metadata = _said(begun.transaction)
        table = self._fitting_store(protocol, metadata, begun.log, prepared.seen.snapshot.version, begun.location)
        if isinstance(table, Unfit):
            return table
        rules = self._rules(protocol, metadata)
        if isinstance(rules, Unfit):
            return rules
        own = self._own_commit(begun, prepared, txn, table, protocol, metadata)
        return begun, FileSink(rules, table), own

    def stage(self, prepared: Prepared, txn: Txn) -> Staged | Unfit:
        found = self.begin(prepared, txn)
        self._last = None
        if isinstance(found, Unfit):
            return found
        begun, sink, own = found
        self._last = prepared.rows.schema, sink, prepared.seen.snapshot.version
        files = WrittenFiles.of(prepared.rows.drained(sink), prepared.rows.count)
        if own is not None:
            return _ArrowStaged(begun, files, self._java, own)
        checksums = self._checksums if self._checksums.take_over(begun) else None
        return _ArrowStaged(begun, files, self._java, None, checksums, sink.table)

    def _own_commit(
        self, begun: Begun, prepared: Prepared, txn: Txn, table: TableStore, protocol: str, metadata: str
    ) -> OwnCommit | None:
        """Where Spark would put the commit without a condition, and nothing in it is Delta's alone to do."""
        if (
            not is_s3(begun.location)
            or not puts_blindly(begun.location, self._spark_settings)
            or why_not_put(protocol, metadata) is not None
        ):
            return None
        if str(self._spark.conf.get("spark.databricks.delta.autoCompact.enabled", "false")).lower() != "false":
            return None
        if self._why_not_trusted(table) is not None:
            return None
        seen = prepared.seen.snapshot
        changes = tuple(now for now, then in zip((protocol, metadata), _seen(seen), strict=True) if now != then)
        return OwnCommit(begun, table, txn, seen.version, seen.table_id, prepared.seen.mark, changes)

    def _why_not_trusted(self, table: TableStore) -> str | None:
        """Why commits are not put there by us; asked once for each store.

        Only an answer is kept: a failure that may pass, of credentials say, is raised, and the next attempt asks again.
        """
        for tried, reason in self._tried:
            if tried == table:
                return reason
        reason = why_not_trusted(table.open(), SystemClock())
        self._tried.append((table, reason))
        if reason is not None:
            log.warning(
                "%s: commits go through Spark's log store, which is safe with one driver only: %s", table.url, reason
            )
        return reason

    @cached_property
    def _spark_settings(self) -> dict[str, str]:
        return dict(self._spark.sparkContext.getConf().getAll())

    def last_sink(self, rows: StructType | None = None) -> FileSink | None:
        """What the last rows that were staged went into, if their columns were these, or any.

        Only while the version that it was begun on is there: files in the folder of a table that was dropped would be
        all that is in it, and Delta creates none where there are files."""
        if self._last is None or (rows is not None and rows != self._last[0]):
            return None
        _, sink, version = self._last
        return sink if has_version(sink.table.open(), version) else None

    def sink_of(self, snapshot: Snapshot, rows: StructType | None) -> FileSink | None:
        """What rows that bring nothing new would go into, as the table was there. None: Spark writes them, or they do,
        or the table is gone, as above."""
        names = {field.name.lower() for field in rows.fields} if rows is not None else set()
        protocol, metadata = _seen(snapshot)
        table = self._fitting_store(protocol, metadata, snapshot.log, snapshot.version)
        if isinstance(table, Unfit) or not names <= {name.lower() for name in snapshot.columns}:
            return None
        rules = self._rules(protocol, metadata)
        if isinstance(rules, Unfit):
            return None
        sink = FileSink(rules, table)
        return sink if has_version(table.open(), snapshot.version) else None

    def _fitting_store(
        self, protocol: str, metadata: str, java_log: Any, version: int, location: str | None = None
    ) -> TableStore | Unfit:
        """The store for the files of a table that says this of itself, and which Spark has read at that version."""
        reason = why_not(protocol, metadata) or self._of_session()
        if reason is not None:
            return Unfit(reason)
        table = self._store(java_log, location)
        if isinstance(table, NoStore):
            return Unfit(table.reason)
        unseen = self._unseen(table, version)
        return table if unseen is None else Unfit(unseen)

    def _store(self, java_log: Any, location: str | None = None) -> TableStore | NoStore:
        """The table's own store, by the settings that its log is read with."""
        location = location or str(java_log.dataPath().toString())
        # Each setting is a call to the JVM: only those that count, and none for local files.
        is_local = location.startswith("file:") or self._table_options is not None
        settings = {} if is_local else dict(java_log.newDeltaHadoopConf().getValByRegex(_STORE_SETTINGS))
        return table_store(location, settings, self._table_options)

    def _unseen(self, table: TableStore, version: int) -> str | None:
        """Why this store is not the table's: it must find the version that Spark has just read, once.

        Settings are translated, and options may name another place: files that are written there would be in no table.
        Raises StorageError where asking again may help.
        """
        if not table.is_remote or table in self._found:
            return None
        try:
            table.open().head(location_of(version))
        except StorageError as error:
            if error.retryable:
                raise
            return f"its own store does not find version {version} of its log: {error}"
        self._found.append(table)
        return None

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

    def _of_session(self) -> str | None:
        """What Spark's writer would do because of the session's settings."""
        if _is_true(self._spark.conf.get("spark.databricks.delta.optimizeWrite.enabled", "false")):
            return "optimized writes are switched on for this session"
        if not _is_true(self._spark.conf.get("spark.databricks.delta.stats.collect", "true")):
            return "statistics are switched off for this session"
        return None


def _said(transaction: Any) -> tuple[str, str]:
    """What a transaction says of its table, as Delta writes it: the protocol and the metadata."""
    return str(transaction.protocol().json()), str(transaction.metadata().json())


def _seen(snapshot: Snapshot) -> tuple[str, str]:
    """The same of a snapshot, which has its metadata at hand."""
    return str(snapshot.java.protocol().json()), snapshot.metadata


class _Names:
    """What commits need of the JVM."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        python = jvm.org.apache.spark.api.python.PythonUtils
        self.to_seq = python.toSeq
        self.to_map = python.toScalaMap
        self.action_of = getattr(getattr(jvm.org.apache.spark.sql.delta.actions, "Action$"), "MODULE$").fromJson
        self.auto_compact = getattr(getattr(jvm.org.apache.spark.sql.delta.hooks, "AutoCompact$"), "MODULE$")
        self.metric = jvm.org.apache.spark.sql.execution.metric.SQLMetrics.createMetric
        self.context = spark.sparkContext._jsc.sc()


class _Java:
    """The same for one table, with metrics of its own."""

    def __init__(self, spark: SparkSession) -> None:
        names = kept(spark, _Names)
        self.to_seq, self.action_of, self.auto_compact = names.to_seq, names.action_of, names.auto_compact
        self._metrics = {name: names.metric(names.context, name) for name in _METRICS}
        self._metrics_map = names.to_map(self._metrics)

    def metrics(self, counts: Mapping[str, int]) -> Any:
        """For DESCRIBE HISTORY, as a commit takes them. They are the same objects for every commit, and each reads them
        before it returns."""
        for name, count in counts.items():
            self._metrics[name].set(count)
        return self._metrics_map


@dataclass(frozen=True)
class OwnCommit:
    """A commit that is put by us and not by Spark's log store: see `delta/commit_file.py`."""

    begun: Begun
    table: TableStore
    txn: Txn
    version: int
    """That the transaction was begun on."""
    table_id: str
    mark: str | None
    """The first line of that version."""
    changes: tuple[str, ...]
    """The table's new protocol or metadata, if it gets one."""

    def commit(self, files: WrittenFiles) -> Written:
        clock = SystemClock()
        actions = append_actions(
            self.txn,
            files.actions,
            read_version=self.version,
            metrics=_counts(files),
            changes=self.changes,
            now_ms=clock.now_ms(),
        )
        store = self.table.open()
        version = put_commit(
            store,
            after=self.version,
            actions=actions,
            app_id=self.txn.app_id,
            clock=clock,
            table_id=self.table_id,
            mark=self.mark,
        )
        self.begun.refresh()
        return Written(version, files.rows, len(files.actions), files.size_bytes)


def _counts(files: WrittenFiles) -> dict[str, int]:
    return dict(zip(_METRICS, (len(files.actions), files.rows, files.size_bytes), strict=True))


@dataclass(frozen=True)
class _ArrowStaged:
    """Files that are written, with the transaction that would commit them."""

    begun: Begun
    files: WrittenFiles
    java: _Java
    own: OwnCommit | None = None
    checksums: Checksums | None = None
    """None: Delta puts that of the new version."""
    table: TableStore | None = None

    def commit(self) -> Written | None:
        if self.own is not None:
            return self.own.commit(self.files)
        begun, files, java = self.begun, self.files, self.java
        session = begun.spark._jsparkSession
        position = begun.command.createSetTransaction(session, begun.log, begun.options).get()
        actions = java.to_seq([position, *map(java.action_of, files.actions)])
        begun.transaction.registerSQLMetrics(session, java.metrics(_counts(files)))
        if files.actions:  # as Delta's own writer does: the hook looks itself whether the table wants it
            begun.transaction.registerPostCommitHook(java.auto_compact)
        version = begun.commit(actions, begun.names.no_map)
        if version is None:
            return None
        if self.checksums is not None and self.table is not None:
            self.checksums.put(begun, version, self.table)
        return Written(version, files.rows, len(files.actions), files.size_bytes)


class Auto:
    """Arrow where the table allows it, Spark's writer where not; the log says once why."""

    casts = False
    leaves_checkpoints = True

    def __init__(self, arrow: ArrowWriter, spark: StagingWriter, table: str, *, only_arrow: bool) -> None:
        self.arrow = arrow
        self.plain = spark
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
        return self.plain.stage(prepared, txn)

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
            log.warning("%s is written by Spark's own writer, not by Arrow: %s", self._table, reason)


def _is_true(text: str | None) -> bool:
    return str(text).lower() == "true"
