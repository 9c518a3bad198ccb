"""One Delta table as the loader sees it: a look at its newest log, and one transaction that moves it on.

    seen = target.look(app_id)                       # position, table id, columns, what took rows back: one read
    staged = target.stage(rows, Txn(app_id, first=10, last=20, epoch=3, entries=11), seen)   # files, nothing visible
    commit = staged.commit()
    commit.after.position                            # from the look after the write

Rules: a look is always at the newest log, never at a snapshot that some earlier query left behind; the transaction
runs on the very version that was seen, so whoever decided by `seen` decided right; a commit that Delta skipped without
a word (`txnVersion` not beyond the table's) is reported as skipped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException

from buffer.errors import InvalidInput
from buffer_delta.delta.columns import mismatch, unfit
from buffer_delta.delta.commit_file import Overtaken
from buffer_delta.delta.conflicts import conflict_name
from buffer_delta.delta.create import TablePlan, create, occupant, scratch_folder
from buffer_delta.delta.log import DeltaLog, Snapshot
from buffer_delta.delta.orphans import Orphan, orphans
from buffer_delta.delta.places import one_spelling, path_of
from buffer_delta.delta.preflight import is_s3, log_store_warnings, retention_warnings
from buffer_delta.delta.rules import TableRules
from buffer_delta.delta.screen import broken_rule, missing_columns
from buffer_delta.delta.sink import FileSink
from buffer_delta.delta.state import NOTHING, Commit, TableState
from buffer_delta.delta.txn import Txn
from buffer_delta.delta.upkeep import TableUpkeep
from buffer_delta.delta.writers.arrow import Auto
from buffer_delta.delta.writers.base import Prepared, Rows, Staged, StagingWriter, Written, as_rows, stage
from buffer_delta.delta.writers.choose import WriterKind, choose_writer
from buffer_delta.delta.writers.spark import Fast
from buffer_delta.errors import ConcurrentCommit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

_WIDENING = "delta.enableTypeWidening"
_DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
"""Delta's layer over Spark's own catalog: that one lasts, or not."""

_MISMATCHES = (
    "DELTA_METADATA_MISMATCH",
    "DELTA_FAILED_TO_MERGE_FIELDS",
    "DELTA_MERGE_INCOMPATIBLE_DATATYPE",
    "INCOMPATIBLE_DATA_FOR_TABLE",
)


class DeltaTarget:
    """A table by path (`/data/t`, `./t`, `s3a://b/t`, ``delta.`/data/t` ``) or by catalog name (`db.t`).

    It need not exist: the first write creates it, with the partitioning, clustering and properties given here.
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
        writer: WriterKind = "spark",
        table_options: Mapping[str, Any] | None = None,
        target_file_bytes: int | None = None,
    ) -> None:
        """`writer` says who writes the files, see `writers.choose`; the other two are for Arrow's: how it opens the
        table's own store, and the size of its files where the table does not say."""
        if partition_by and cluster_by:
            raise InvalidInput(
                f"partition_by={list(partition_by)} and cluster_by={list(cluster_by)} exclude each other: "
                "Delta partitions a table or clusters it"
            )
        self._spark = spark
        self._name = name_or_path
        self._path = path_of(name_or_path)
        self._merge_schema = merge_schema
        self._place: str | None = None
        name = name_or_path if self._path is None else None
        self._plan = TablePlan(name, self._path, tuple(partition_by), tuple(cluster_by), dict(properties or {}))
        self._log = DeltaLog(spark, name, self._path)
        self._kind = writer
        self._table_options = table_options
        self._target_file_bytes = target_file_bytes
        self._writer = choose_writer(
            spark, writer, name, self._path, self._table_options, target_file_bytes=target_file_bytes
        )
        self._has_staged = False
        self._was_asked = False
        self._first_asked: Snapshot | None = None
        """The table when `last_sink` was first called."""
        self.upkeep = TableUpkeep(spark, name, self._path, leaves_checkpoints=self._writer.leaves_checkpoints)

    @property
    def name(self) -> str:
        """The table as it was given."""
        return self._name

    def __repr__(self) -> str:
        return f"DeltaTarget({self._name!r})"

    # Where it stands

    def look(self, app_id: str) -> TableState:
        """The table as it is in storage now. `version` is None if there is none.

        `rewrite` tells whether it was restored, replaced or overwritten after `app_id`'s last commit: Delta keeps the
        transaction in all three cases while the rows go. DELETE, UPDATE, MERGE and overwrites of a part are the
        user's own business. Where the older log was cleaned up, nothing can be told and nothing is reported.
        """
        return self._log.look(app_id)

    @property
    def place(self) -> str:
        """What plans call the table: where its files are, in one spelling; of a catalog's table, its full name.

        It does not change when the table is created. A link is followed, whatever it leads to by then.
        """
        if self._place is None:
            path = self._log.location() if self._path is not None else None
            self._place = one_spelling(path) if path is not None else self._full_name()
        return self._place

    def location(self) -> str:
        """Where its files are, as Spark says it; of a name that the catalog does not know, that name."""
        return self._log.location() or self._full_name()

    def identity(self) -> str | None:
        """Delta's id of the table, which it keeps when it is moved or renamed; None if there is no table."""
        snapshot = self._log.newest()
        return snapshot.table_id if snapshot is not None else None

    def ends_with_the_session(self) -> bool:
        """Whether no other session would find the table: it is one of a catalog that is kept in memory alone.

        One with a place of its own is the business of whoever registers it there, again in every session.
        """
        if self._path is not None or self._full_name().split(".")[0] != "spark_catalog":
            return False
        conf = self._spark.conf
        lasts = conf.get("spark.sql.catalogImplementation", "in-memory") != "in-memory"
        if lasts or conf.get("spark.sql.catalog.spark_catalog", _DELTA_CATALOG) != _DELTA_CATALOG:
            return False
        return self._log.location() is None or self._spark.catalog.getTable(self._name).tableType != "EXTERNAL"

    def _full_name(self) -> str:
        parts = self._name.replace("`", "").lower().split(".")
        default = [self._spark.catalog.currentCatalog(), self._spark.catalog.currentDatabase()]
        return ".".join([*default[: max(0, 3 - len(parts))], *parts])

    def schema(self) -> StructType | None:
        """The table's columns. None: there is no table."""
        snapshot = self._log.newest()
        return self._log.schema(snapshot) if snapshot else None

    def read(self) -> DataFrame:
        """The table's rows, as of the query that reads them."""
        return self._spark.read.format("delta").load(self._path) if self._path else self._spark.table(self._name)

    def preflight(self) -> list[str]:
        """What an operator should know before loading: settings under which exactly-once would not hold."""
        snapshot = self._log.newest()
        properties = {**self._plan.properties, **(snapshot.properties if snapshot else {})}
        location = (self._log.location() if snapshot else self._path) or ""
        conf = dict(self._spark.sparkContext.getConf().getAll()) if is_s3(location) else {}
        return [*retention_warnings(self._name, properties), *log_store_warnings(self._name, location, conf)]

    def occupant(self) -> str | None:
        """What else lies in the folder of a table that is not there: it cannot be created. None: nothing does."""
        return occupant(self._spark, self._log, self._path) if self._path is not None else None

    def orphans(self) -> list[Orphan]:
        """Data files in its folder that no version refers to. Lists all of it."""
        return orphans(self._spark, self._log)

    def check_writer(self) -> None:
        """Raises InvalidConfig where the writer that was asked for cannot write this table."""
        if not isinstance(self._writer, Auto):
            return
        snapshot, arrow = self._log.newest(), self._writer.arrow
        if snapshot is not None:
            reason = arrow.why_not(snapshot)
        else:
            reason = arrow.why_not_made(self._plan.properties, self._log.opened())
        if reason is not None:
            self._writer.refuse(reason)

    def may_widen(self, columns: StructType, seen: TableState) -> bool:
        """Whether rows of these columns may be written, some of them of wider types than the table's: where its type
        widening is on and Delta has nothing against it, as it has for the columns of a CHECK."""
        if seen.snapshot is None or seen.snapshot.properties.get(_WIDENING, "").lower() != "true":
            return False
        writer = self._writer.plain if isinstance(self._writer, Auto) else self._writer
        if not isinstance(writer, Fast):
            return False
        try:
            writer.check_columns(columns, seen)
        except (PySparkException, Py4JJavaError) as error:
            log.info("%s keeps its types, what does not fit is rescued: %s", self._name, str(error).partition("\n")[0])
            return False
        return True

    # Moving on

    def stage(self, rows: Rows | DataFrame, txn: Txn, seen: TableState) -> StagedRows:
        """Write the rows' files on top of what was `seen`, for one transaction with `txn.last`. Creates the table.

        Nothing is in the table before `StagedRows.commit`. On an error, SchemaMismatch say, there never will be.
        """
        started = time.perf_counter()
        rows = as_rows(rows)
        if seen.version is None:
            try:
                seen = self._created(rows, txn)
            except Overtaken as error:
                raise self._came_between(txn, str(error)) from error
        if seen.position >= txn.last:
            return StagedRows(self, txn, seen, rows, None, time.perf_counter() - started)
        self._check_fit(rows, seen)
        self._has_staged = True
        try:
            staged = stage(self._writer, Prepared(rows, seen, self._merge_schema), txn)
        except (PySparkException, Py4JJavaError) as error:
            raise self._explained(error, rows, txn) from error
        return StagedRows(self, txn, seen, rows, staged, time.perf_counter() - started)

    def nothing(self, seen: TableState) -> Rows:
        """No rows, of the columns that the table has."""
        return as_rows(self._spark.createDataFrame([], seen.schema))

    def write(self, rows: Rows | DataFrame, txn: Txn, seen: TableState) -> Commit:
        """Stage and commit."""
        return self.stage(rows, txn, seen).commit()

    def rehearse(self, rows: Rows | DataFrame, txn: Txn, seen: TableState) -> None:
        """Write the rows where nobody sees them; raise what writing them to the table would raise.

        If the table is there, into its folder, without a commit. Else, and with a writer that cannot do that, into a
        table of the same kind beside it, which is removed again; after a crash its folder is left, `….trial-<id>`. A
        table without a place beside it is created, and nothing is in it.
        """
        if seen.version is not None and isinstance(self._writer, StagingWriter):
            self.stage(rows, txn, seen)
            return
        with scratch_folder(self._spark, self._log, self._plan) as folder:
            if folder is None:  # there is no place beside it: the table itself, and nothing in it
                self.stage(rows, txn, seen)
                return
            kind = seen.rules.partition_by if seen.version is not None else self._plan.partition_by
            scratch = DeltaTarget(
                self._spark,
                folder,
                partition_by=kind,
                cluster_by=() if kind else self._plan.cluster_by,
                # Those it would be made with: names with a blank, say, need column mapping.
                properties=self._plan.properties
                if seen.version is None
                else {f"delta.constraints.{name}": text for name, text in seen.rules.checks},
                merge_schema=self._merge_schema,
                writer=self._kind,
                table_options=self._table_options,
                target_file_bytes=self._target_file_bytes,
            )
            if seen.version is not None:
                create(self._spark, scratch._log, scratch._plan, seen.schema)
            scratch.write(rows, txn, scratch.look(txn.app_id))

    # Looking after it, and what is known of the next rows

    def check_compaction(self) -> None:
        """Raises InvalidConfig where the loader must not compact the table, see `upkeep.py`."""
        self.upkeep.check_compaction(self._log.location() or self._path or "")

    def last_sink(self, rows: StructType | None = None) -> FileSink | None:
        """A guess into what rows will go next: where Arrow wrote the last ones, if their columns were these, or any.

        Before the first ones it is what the table looked like when somebody first asked: a table that gets rows now and
        then must not cost a look at its log with every range.
        """
        if not isinstance(self._writer, Auto):
            return None
        if self._has_staged:
            return self._writer.arrow.last_sink(rows)
        if not self._was_asked:
            self._was_asked, self._first_asked = True, self._log.newest()
        return self._writer.arrow.sink_of(self._first_asked, rows) if self._first_asked is not None else None

    def refused(self, rows: DataFrame, keys: tuple[str, str], seen: TableState) -> DataFrame | None:
        """Which rows the table would refuse by its rules, see `broken_rule`; None if it has none."""
        location = (self._log.location() if seen.version is not None else self._path) or ""
        return broken_rule(rows, keys, self.rules(seen), seen.schema, location)

    def rules(self, seen: TableState) -> TableRules:
        """What the table demands, or will when it is created."""
        return seen.rules if seen.version is not None else TableRules(partition_by=tuple(self._plan.partition_by))

    def complete(self, rows: Rows, seen: TableState) -> Rows:
        """The rows with every column that the table cannot be without, null where they lack it."""
        rules = self.rules(seen)
        names = [path[0] for path in rules.not_null if len(path) == 1] + list(rules.partition_by)
        if seen.version is None:
            names += [name for name in self._plan.cluster_by if "." not in name]  # else a field in a struct
        missing = missing_columns(rows.schema, names, seen.schema)
        return rows.with_nulls(missing) if missing.fields else rows

    def committed(self, staged: StagedRows) -> Commit:
        """Commit what was staged, and look. Use `StagedRows.commit`."""
        started, txn, seen = time.perf_counter() - staged.seconds, staged.txn, staged.seen
        if staged.files is None:
            return Commit(None, 0, 0, 0, staged.seconds, seen)
        assert seen.version is not None, "a table that was created is there"
        try:
            written = staged.files.commit()
        except Overtaken as error:
            self._log.forget()  # what the JVM holds may be a version that was replaced
            raise self._came_between(txn, str(error)) from error
        except (PySparkException, Py4JJavaError) as error:
            raise self._explained(error, staged.rows, txn) from error
        after = self._log.look(txn.app_id)
        written = written or self._find(txn, seen.version, after)
        seconds = time.perf_counter() - started
        if written is None:
            return Commit(None, 0, 0, 0, seconds, after)
        hidden = None
        if written.version > seen.version + 1:
            hidden = self._log.find_rewrite(written.version - 1, txn.app_id, seen.position)
        return Commit(written.version, written.rows, written.files, written.bytes, seconds, after, hidden)

    def _created(self, rows: Rows, txn: Txn) -> TableState:
        create(self._spark, self._log, self._plan, rows.schema)
        created = self._log.look(txn.app_id)
        if created.position != NOTHING:
            raise self._came_between(txn, "somebody else created the table and loaded into it")
        return created

    def _find(self, txn: Txn, since: int, after: TableState) -> Written | None:
        """Our own commit, from the log, where the writer was not told; others may have come after it."""
        found = self._log.find(txn, since, after.version) if after.version is not None else None
        if found is None:
            return None
        version, metrics = found
        counts = (int(metrics.get(name, 0)) for name in ("numOutputRows", "numFiles", "numOutputBytes"))
        return Written(version, *counts)

    def _check_fit(self, rows: Rows, seen: TableState) -> None:
        if self._writer.casts and unfit(seen.schema, rows.schema):
            error = mismatch(self._name, rows.schema, seen.schema, merge_schema=self._merge_schema)
            assert error is not None, "types that do not fit are not equal"
            raise error

    def _explained(self, error: Exception, rows: Rows, txn: Txn) -> Exception:
        conflict = conflict_name(error)
        if conflict:
            return self._came_between(txn, conflict)
        if isinstance(error, AnalysisException) and (error.getCondition() or "").startswith(_MISMATCHES):
            return mismatch(self._name, rows.schema, self.schema(), merge_schema=self._merge_schema) or error
        return error

    def _came_between(self, txn: Txn, reason: str) -> ConcurrentCommit:
        return ConcurrentCommit(
            f"another commit to {self._name!r} came between ({reason}): read the table's position, then decide",
            table=self._name,
            app_id=txn.app_id,
            last=txn.last,
            reason=reason,
        )


@dataclass(frozen=True)
class StagedRows:
    """Rows that are written for a table, and not in it."""

    target: DeltaTarget
    txn: Txn
    seen: TableState
    """The table as it was then; as it was created, if it was not there."""
    rows: Rows
    files: Staged | None
    """None: the table holds the range already."""
    seconds: float

    def commit(self) -> Commit:
        """Put them and `txn.last` into the table in one transaction, on top of what was seen; look again.

        The caller compares `Commit.after.position` with `txn.last`, and decides about `Commit.hidden`. After any error
        the commit may have landed, also on ConcurrentCommit: Delta reports a conflict with a commit of ours whose
        reply was lost. So look before staging again.
        """
        return self.target.committed(self)
