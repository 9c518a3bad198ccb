"""One Delta table as the loader sees it: where it stands, and one transaction that moves it on.

    position = target.committed(app_id)                             # None: it has never loaded anything
    commit = target.append(rows, app_id=…, first=10, last=20, epoch=3)
    commit.committed                                                # read again after the write, for the caller

Rules: the position is always read from the newest log, never from a snapshot that some earlier query left behind;
everything a commit needs travels as options of that one write, never as settings of the session; a commit that
Delta skipped without a word (`txnVersion` not beyond the table's) is reported as skipped.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NumericType,
    ShortType,
    StructType,
)

from buffer.errors import InvalidInput
from buffer_delta import checks
from buffer_delta.contracts import Rewrite
from buffer_delta.delta_commit import Fast, Public, Writer
from buffer_delta.delta_log import DeltaLog, Snapshot
from buffer_delta.errors import ConcurrentCommit, SchemaMismatch
from buffer_delta.history import find_rewrite

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

CREATE_ATTEMPTS_MAX = 5  # each one lost means that somebody else created or changed the table meanwhile

# Delta's ways to say that a commit of somebody else came between and ours did not happen.
_CONFLICTS = frozenset(
    {
        "ConcurrentAppendException",
        "ConcurrentDeleteDeleteException",
        "ConcurrentDeleteReadException",
        "ConcurrentTransactionException",
        "ConcurrentWriteException",
        "DeltaConcurrentModificationException",
        "MetadataChangedException",
        "ProtocolChangedException",
    }
)
_MISMATCHES = (
    "DELTA_METADATA_MISMATCH",
    "DELTA_FAILED_TO_MERGE_FIELDS",
    "DELTA_MERGE_INCOMPATIBLE_DATATYPE",
    "INCOMPATIBLE_DATA_FOR_TABLE",
)
_WIDENINGS = ((ByteType, ShortType, IntegerType, LongType), (FloatType, DoubleType))


@dataclass(frozen=True, slots=True)
class Commit:
    """What one append did. `rows`, `files` and `bytes` are 0 where it was skipped."""

    version: int | None
    """The table's version it made; None if Delta skipped it."""
    rows: int
    files: int
    bytes: int
    seconds: float
    committed: int | None
    """The app's position in the newest log, read after the write."""

    @property
    def skipped(self) -> bool:
        """Delta held the range for done already and wrote nothing."""
        return self.version is None


class DeltaTarget:
    """A table by path (`/data/t`, `./t`, `s3a://b/t`, ``delta.`/data/t` ``) or by catalog name (`db.t`).

    It need not exist: the first append creates it, with the partitioning, clustering and properties given here.
    They do not touch a table that is there already. Use it from one thread at a time.
    """

    def __init__(
        self,
        spark: SparkSession,
        name_or_path: str,
        *,
        partition_by: Sequence[str] = (),
        cluster_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        merge_schema: bool = False,
    ) -> None:
        if partition_by and cluster_by:
            raise InvalidInput(
                f"partition_by={list(partition_by)} and cluster_by={list(cluster_by)} exclude each other: "
                "Delta partitions a table or clusters it"
            )
        self._spark = spark
        self._name = name_or_path
        self._path = path_of(name_or_path)
        self._partition_by = tuple(partition_by)
        self._cluster_by = tuple(cluster_by)
        self._properties = dict(properties or {})
        self._merge_schema = merge_schema
        name = name_or_path if self._path is None else None
        self._log = DeltaLog(spark, name, self._path)
        self._writer: Writer = Fast(spark) if Fast.fits(spark) else Public(name, self._path)

    @property
    def name(self) -> str:
        """The table as it was given."""
        return self._name

    def __repr__(self) -> str:
        return f"DeltaTarget({self._name!r})"

    # Where it stands

    def place(self) -> str:
        """Where the table is, in one spelling: the URL of its files, or, of a name the catalog does not know, that."""
        location = self._log.location()
        if location is not None:
            return location
        parts = self._name.replace("`", "").lower().split(".")
        default = [self._spark.catalog.currentCatalog(), self._spark.catalog.currentDatabase()]
        return ".".join([*default[: max(0, 3 - len(parts))], *parts])

    def table_id(self) -> str | None:
        """Delta's id of the table; one dropped and made again has another. None: there is no table."""
        snapshot = self._log.newest()
        return snapshot.table_id if snapshot else None

    def committed(self, app_id: str) -> int | None:
        """The last sequence that `app_id` committed. None if it never did, or if there is no table."""
        snapshot = self._log.newest()
        return self._log.position(app_id, snapshot) if snapshot else None

    def schema(self) -> StructType | None:
        """The table's columns. None: there is no table."""
        snapshot = self._log.newest()
        return snapshot.schema if snapshot else None

    # Moving on

    def append(
        self,
        rows: DataFrame,
        *,
        app_id: str,
        first: int,
        last: int,
        epoch: int,
        entries: int | None = None,
        accept_rewrites: bool = False,
    ) -> Commit:
        """Write the rows and `last` in one transaction; read the position again.

        The caller compares `Commit.committed` with `last`. On SchemaMismatch nothing was written. After any other
        error the commit may have landed, also on ConcurrentCommit: Delta reports a conflict with a commit of ours
        whose reply was lost. So read the position before trying again.

        Our commit on top hides what was done to the table before it. Hence TableRewritten if rows were taken back
        since our last one, also while this one was written; then it has landed.
        """
        started = time.perf_counter()
        before = self._log.newest() or self._create(rows)
        position = self._log.position(app_id, before)
        if position is not None and position >= last:
            return Commit(None, 0, 0, 0, time.perf_counter() - started, position)
        if not accept_rewrites:
            self._check_rewrites(before.version, app_id, position)
        rows = self._fitted(rows, before)
        note = json.dumps({"app_id": app_id, "first": first, "last": last, "epoch": epoch, "entries": entries})
        options = {"txnAppId": app_id, "txnVersion": str(last), "userMetadata": note}
        if self._merge_schema:
            options["mergeSchema"] = "true"
        try:
            self._writer.append(rows, self._log.java, before.java, app_id, options)
        except (PySparkException, Py4JJavaError) as error:
            raise self._explained(error, rows, app_id, last) from error
        after = self._log.newest()
        version, metrics = self._find_commit(note, before.version, after)
        if version is not None and version > before.version + 1 and not accept_rewrites:
            self._check_rewrites(version - 1, app_id, position, hidden_by=version)
        return Commit(
            version=version,
            rows=int(metrics.get("numOutputRows", 0)),
            files=int(metrics.get("numFiles", 0)),
            bytes=int(metrics.get("numOutputBytes", 0)),
            seconds=time.perf_counter() - started,
            committed=self._log.position(app_id, after) if after else None,
        )

    def _check_rewrites(self, newest: int, app_id: str, position: int | None, hidden_by: int | None = None) -> None:
        rewrite = self._rewrite(newest, app_id, position)
        if rewrite is not None:
            raise checks.rewritten(self._name, rewrite, hidden_by=hidden_by)

    def _find_commit(self, note: str, before: int, after: Snapshot | None) -> tuple[int | None, Mapping[str, str]]:
        """Our own commit among those since `before`; others may have come after it."""
        for version in range(after.version if after else before, before, -1):
            info = self._log.commit_info(version)
            if info is not None and info.get("userMetadata") == note:
                return version, info.get("operationMetrics") or {}
        return None, {}

    def _create(self, df: DataFrame) -> Snapshot:
        for attempt in range(1, CREATE_ATTEMPTS_MAX + 1):
            builder = DeltaTable.createIfNotExists(self._spark).addColumns(df.schema)
            builder = builder.tableName(self._name) if self._path is None else builder.location(self._path)
            if self._partition_by:
                builder = builder.partitionedBy(*self._partition_by)
            if self._cluster_by:
                builder = builder.clusterBy(*self._cluster_by)
            for key, value in self._properties.items():
                builder = builder.property(key, value)
            try:
                builder.execute()
            except (PySparkException, Py4JJavaError) as error:
                # Another loader created the same table at this moment; what it made is as good as ours.
                if self._log.newest() is None and (conflict_name(error) is None or attempt == CREATE_ATTEMPTS_MAX):
                    raise
            snapshot = self._log.newest()
            if snapshot is not None:
                return snapshot
        raise AssertionError("the last attempt returns or raises")

    def _explained(self, error: Exception, df: DataFrame, app_id: str, last: int) -> Exception:
        conflict = conflict_name(error)
        if conflict:
            return ConcurrentCommit(
                f"another commit to {self._name!r} came between ({conflict}): read the table's position, then decide",
                table=self._name,
                app_id=app_id,
                last=last,
                reason=conflict,
            )
        if isinstance(error, AnalysisException) and (error.getCondition() or "").startswith(_MISMATCHES):
            return self._mismatch(df.schema, self.schema()) or error
        return error

    def _fitted(self, rows: DataFrame, before: Snapshot) -> DataFrame:
        """The rows, with numbers widened to the table's own types. Raises SchemaMismatch.

        Delta would refuse an INT for a BIGINT; and by catalog name the public API casts whatever it can, an array to
        its text for one.
        """
        table = {field.name.lower(): field.dataType for field in before.schema.fields}
        wanted = {field.name: table.get(field.name.lower(), field.dataType) for field in rows.schema.fields}
        unfit = any(not fits(wanted[field.name], field.dataType) for field in rows.schema.fields)
        if unfit and isinstance(self._writer, Public) and self._path is None:
            mismatch = self._mismatch(rows.schema, before.schema)
            assert mismatch is not None, "types that do not fit are not equal"
            raise mismatch
        wider = {
            field.name: rows[_quoted(field.name)].cast(wanted[field.name])
            for field in rows.schema.fields
            if isinstance(field.dataType, NumericType) and wanted[field.name] != field.dataType
            if fits(wanted[field.name], field.dataType)
        }
        return rows.withColumns(wider) if wider else rows

    def _mismatch(self, rows: StructType, table: StructType | None) -> SchemaMismatch | None:
        known = {field.name.lower(): field for field in table.fields} if table else {}
        new = [f.name for f in rows.fields if f.name.lower() not in known]
        changed = [
            f"{f.name} (table: {known[f.name.lower()].dataType.simpleString()}, rows: {f.dataType.simpleString()})"
            for f in rows.fields
            if f.name.lower() in known and not fits(known[f.name.lower()].dataType, f.dataType)
        ]
        if not new and not changed:
            return None
        facts = [f"columns it has not: {', '.join(new)}"] if new else []
        facts += [f"columns of another type: {', '.join(changed)}"] if changed else []
        ways = ["pass merge_schema=True to add the new ones"] if new and not self._merge_schema else []
        ways += ["give the format a schema with the table's types, or load into another table"] if changed else []
        return SchemaMismatch(
            f"the rows do not fit the table {self._name!r}: {'; '.join(facts)}. To go on, {'; '.join(ways)}",
            table=self._name,
            columns=(*new, *(text.split(" ")[0] for text in changed)),
        )

    # What happened to it

    def rewritten_since(self, app_id: str) -> Rewrite | None:
        """Whether the table was restored, replaced or overwritten after `app_id`'s last commit.

        Delta keeps the transaction in all three cases while the rows go. DELETE, UPDATE, MERGE and overwrites of a
        part are the user's own business. Reads the history from its end, only back to our last commit; where the
        older log was cleaned up, nothing can be told and nothing is reported.
        """
        snapshot = self._log.newest()
        return self._rewrite(snapshot.version, app_id, self._log.position(app_id, snapshot)) if snapshot else None

    def _rewrite(self, newest: int, app_id: str, committed: int | None) -> Rewrite | None:
        return None if committed is None else find_rewrite(self._log.commit_info, newest, app_id, committed)

    def preflight(self) -> list[str]:
        """What an operator should know before loading: settings under which exactly-once would not hold."""
        snapshot = self._log.newest()
        properties = {**self._properties, **(snapshot.properties if snapshot else {})}
        conf = dict(self._spark.sparkContext.getConf().getAll())
        location = (self._log.location() if snapshot else self._path) or ""
        return [*retention_warnings(self._name, properties), *log_store_warnings(self._name, location, conf)]


def fits(table: DataType, rows: DataType) -> bool:
    """Whether a column takes values of a type as they are. New fields in structs are another question."""
    if isinstance(table, StructType) and isinstance(rows, StructType):
        return all(fits(table[f.name].dataType, f.dataType) for f in rows.fields if f.name in table.names)
    if isinstance(table, ArrayType) and isinstance(rows, ArrayType):
        return fits(table.elementType, rows.elementType)
    if isinstance(table, MapType) and isinstance(rows, MapType):
        return fits(table.keyType, rows.keyType) and fits(table.valueType, rows.valueType)
    for widening in _WIDENINGS:
        if isinstance(table, widening) and isinstance(rows, widening):
            return _rank(widening, rows) <= _rank(widening, table)
    return bool(table == rows)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _rank(kinds: tuple[type[DataType], ...], kind: DataType) -> int:
    return kinds.index(type(kind))


def path_of(name_or_path: str) -> str | None:
    """The path, where the name is one; None for a catalog name."""
    quoted = re.fullmatch(r"delta\.`(.+)`", name_or_path.strip(), re.IGNORECASE | re.DOTALL)
    if quoted:
        return quoted[1].replace("``", "`")
    return name_or_path if "/" in name_or_path or name_or_path.startswith(".") else None


def conflict_name(error: BaseException) -> str | None:
    """Delta's name for a commit conflict, from either kind of exception that Python may see."""
    names = [cls.__name__ for cls in type(error).__mro__]
    java = getattr(error, "java_exception", None) if isinstance(error, Py4JJavaError) else None
    while java is not None:
        names.append(java.getClass().getSimpleName())
        java = java.getCause()
    return next((name for name in names if name in _CONFLICTS), None)


def retention_warnings(name: str, properties: Mapping[str, str]) -> list[str]:
    key = "delta.setTransactionRetentionDuration"
    if key not in properties:
        return []
    return [
        f"{name}: {key}={properties[key]!r} makes Delta forget a loader that pauses for longer, and what it has "
        "loaded would be loaded again; remove it: ALTER TABLE … UNSET TBLPROPERTIES"
    ]


def log_store_warnings(name: str, location: str, conf: Mapping[str, str]) -> list[str]:
    scheme = location.split(":", 1)[0].lower() if "://" in location or location.startswith("s3") else ""
    if scheme not in ("s3", "s3a", "s3n"):
        return []
    store = conf.get(f"spark.delta.logStore.{scheme}.impl") or conf.get("spark.delta.logStore.class") or ""
    if store and "SingleDriver" not in store:
        return []
    return [
        f"{name}: Delta's log on {scheme}:// is safe with one Spark driver only; if a second loader or job may "
        f"write to it, set spark.delta.logStore.{scheme}.impl to io.delta.storage.S3DynamoDBLogStore"
    ]
