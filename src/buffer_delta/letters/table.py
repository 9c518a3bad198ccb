"""The dead-letter table on Spark: looked at by people, claimed and marked by a redrive.

    redrive   STRUCT<number BIGINT, queue STRING, place STRING, count INT, sequence BIGINT, at TIMESTAMP>

is the column that a redrive adds to the table, once. Null: never sent back. Without `at`: claimed, on its way.
`sequence` is the batch that it became, `count` how often these bytes went back, as far as the table tells: the letter
of a batch that came from a redrive counts on from the letter with the same bytes that became this batch.

**Beside a running loader.** It only appends, and Delta lets an append and an UPDATE or MERGE pass each other. Only
adding the column is in its way: its commit of that moment is tried again. Redrives and OPTIMIZE conflict with each
other; what loses changes nothing, and is tried again here or by the walk. All of this needs a log store that decides
who was first. Spark's own on S3 does not: a redrive is a driver of its own, and its commit could replace one that the
loader has put and acked, with the letters in it. There it is refused, unless nobody else writes (`loaders_stopped`).

A claim is a MERGE with the number as `txnVersion`, in a session of its own: these are settings of the session, and
must not reach anybody else's writes. Whole batches (`_index` -1) are not entries, and stay. So does an entry of which
the letter has only the beginning (`decode.large`): what is left of it would be another record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from delta.tables import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from buffer.errors import ContentionError, InvalidConfig, InvalidInput
from buffer_delta.decode.dead_letters import WHOLE_BATCH
from buffer_delta.decode.large import SIZE_IN_REASON
from buffer_delta.delta.conflicts import conflict_name
from buffer_delta.delta.log import share_hadoop_settings
from buffer_delta.delta.places import path_of
from buffer_delta.delta.preflight import is_s3, puts_blindly
from buffer_delta.delta.table import DeltaTarget
from buffer_delta.errors import ConcurrentCommit
from buffer_delta.letters.values import Claim, Key, Letter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LETTERS_PER_BATCH_MAX = 10_000
BYTES_PER_BATCH_MAX = 16 << 20  # they pass through the driver
CHANGE_ATTEMPTS_MAX = 20  # each one lost means that another command changed the table meanwhile
APP = "redrive"
REDRIVE = "redrive"
_COLUMN = "STRUCT<number: BIGINT, queue: STRING, place: STRING, count: INT, sequence: BIGINT, at: TIMESTAMP>"
_KEYS = "_sequence BIGINT, _index INT, location STRING"
_NEEDED = ("_sequence", "_index", "location", "error", "bytes")
_APP_ID, _VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"


class LetterTable:
    """One dead-letter table, to be looked at. Raises InvalidInput if it is none."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self.name = name
        self._given = spark
        self.spark = spark.newSession()
        share_hadoop_settings(self.spark, spark)
        self.spark.catalog.setCurrentCatalog(spark.catalog.currentCatalog())  # a name means there what it means here
        self.spark.catalog.setCurrentDatabase(spark.catalog.currentDatabase())
        self.target = DeltaTarget(self.spark, name)
        seen = self.target.look(APP)
        missing = [column for column in _NEEDED if seen.version is None or column not in seen.schema.names]
        if missing:
            what = (
                "there is no table (the first letter makes it)"
                if seen.version is None
                else f"it has no column {missing[0]!r}"
            )
            raise InvalidInput(f"{name!r} is not a dead-letter table: {what}")
        self.table_id = str(seen.table_id)
        path = path_of(name)
        self.identifier = name if path is None else f"delta.`{path.replace('`', '``')}`"

    def _local(self, rows: list[Any], columns: str) -> DataFrame:
        """`createDataFrame` makes its session the active one: ours would be everybody's from then on."""
        made = self.spark.createDataFrame(rows, columns)
        kind = type(self._given)
        kind._activeSession = self._given
        kind._get_j_spark_session_class(self._given._jvm).setActiveSession(self._given._jsparkSession)
        return made

    def frame(self, version: int | None = None) -> DataFrame:
        """All letters, with every column that dead letters have today."""
        # Not by DataFrameReader: a table of that name and path at that version is one sentence in SQL only.
        at = "" if version is None else f" VERSION AS OF {version}"
        found = self.spark.sql(f"SELECT * FROM {self.identifier}{at}")
        if "_entry_metadata" not in found.columns:
            found = found.withColumn("_entry_metadata", f.lit(None).cast("binary"))
        if REDRIVE not in found.columns:
            found = found.withColumn(REDRIVE, f.lit(None).cast(_COLUMN))
        return found

    def counted(self) -> DataFrame:
        """All letters, with `redrives`: how often these very bytes went back before they became this letter."""
        letters = self.frame()
        earlier = (
            letters.where("redrive.sequence IS NOT NULL")
            .groupBy(f.expr("redrive.sequence").alias("_came_as"), f.sha2("bytes", 256).alias("_digest"))
            .agg(f.max("redrive.count").alias("redrives"))
        )
        return (
            letters.withColumn("_came_as", f.col("_sequence"))
            .withColumn("_digest", f.sha2("bytes", 256))
            .join(earlier, ["_came_as", "_digest"], "left")
            .drop("_came_as", "_digest")
            .withColumn("redrives", f.coalesce("redrives", f.lit(0)))
        )


class DeltaLetters(LetterTable):
    """`values.Letters` on a Delta table: one redrive's view of it."""

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        where: str | None,
        now_ms: Callable[[], int],
        *,
        loaders_stopped: bool = False,
    ) -> None:
        """Adds the column `redrive`, if it is not there. Raises what Spark has against the filter, and InvalidConfig
        where it must be alone and nobody has said that it is."""
        super().__init__(spark, name)
        location = self.target.location()
        settings = dict(spark.sparkContext.getConf().getAll()) if is_s3(location) else {}
        check_alone(name, location, settings, loaders_stopped=loaders_stopped)
        self._where = where
        self._now_ms = now_ms
        self._digests: dict[Key, str] = {}
        """Of the bytes of the letters that were chosen last."""
        self._is_last = False
        """The letters that were chosen last are the last ones."""
        self.frame().where(where or "true").schema  # noqa: B018 - a filter that is wrong is found before anything moves
        self._add_column()
        self._version = self.target.look(APP).version

    @property
    def client_id(self) -> str:
        """Of the marks: two tables never share their numbers."""
        return f"redrive/{self.table_id}"

    def last_number(self) -> int:
        return self.target.look(APP).position

    def chosen(self, after: Key | None) -> Sequence[Key]:
        if self._is_last:
            return []
        rows = self._free_at_the_start()
        if after is not None:
            sequence, index, location = f.col("_sequence"), f.col("_index"), f.col("location")
            later = (index > after.entry) | ((index == after.entry) & (location > after.location))
            rows = rows.where((sequence > after.sequence) | ((sequence == after.sequence) & later))
        size, digest = f.octet_length("bytes").alias("size"), f.sha2("bytes", 256).alias("digest")
        rows = rows.select("_sequence", "_index", "location", size, digest)
        self._digests.clear()  # of those before, which are back
        found: list[Key] = []
        total = 0
        ordered = rows.orderBy("_sequence", "_index", "location").limit(LETTERS_PER_BATCH_MAX).collect()
        for row in ordered:
            total += row["size"]
            if found and total > BYTES_PER_BATCH_MAX:
                break
            key = Key(row._sequence, row._index, row.location)
            found.append(key)
            self._digests[key] = row.digest
        self._is_last = len(found) == len(ordered) < LETTERS_PER_BATCH_MAX
        return found

    def count(self) -> int:
        """How many letters go, for a progress bar: those of an interrupted redrive, and those that are chosen."""
        pending: int = self.frame().where("redrive.number IS NOT NULL AND redrive.at IS NULL").count()
        free: int = self._free_at_the_start().count()
        return pending + free

    def _free_at_the_start(self) -> DataFrame:
        assert self._version is not None, "the table was there"
        rows = self.frame(self._version).where(f.col(REDRIVE).isNull() & (f.col("_index") > WHOLE_BATCH))
        had = f.regexp_replace(f.regexp_extract("error", SIZE_IN_REASON, 1), ",", "").try_cast("BIGINT")
        is_whole = f.coalesce(had <= f.octet_length("bytes"), f.lit(True))
        return rows.where(f.col("bytes").isNotNull() & is_whole).where(self._where or "true")

    def claim(self, number: int, queue_id: str, place: str, keys: Sequence[Key]) -> None:
        first, last = min(key.sequence for key in keys), max(key.sequence for key in keys)
        counts = self._counts(first, last)
        source = self._local(
            [(*key, counts.get((key.sequence, self._digests[key]), 0)) for key in keys], f"{_KEYS}, redrives INT"
        )
        claimed = (
            f"named_struct('number', {number}L, 'queue', {_text(queue_id)}, 'place', {_text(place)}, "
            "'count', s.redrives + 1, 'sequence', CAST(NULL AS BIGINT), 'at', CAST(NULL AS TIMESTAMP))"
        )
        same = "t._sequence = s._sequence AND t._index = s._index AND t.location = s.location"
        merge = (
            self._delta()
            .alias("t")
            .merge(source.alias("s"), f"t._sequence BETWEEN {first}L AND {last}L AND {same}")
            .whenMatchedUpdate("t.redrive IS NULL", {REDRIVE: claimed})
        )
        with self._transaction(number):
            try:
                merge.execute()
            except (PySparkException, Py4JJavaError) as error:
                if conflict_name(error) is None:
                    raise  # else: it did not happen; the walk looks again

    def _counts(self, first: int, last: int) -> dict[tuple[int, str], int]:
        """How often letters went back that became the batches `first..last`, by those and their bytes."""
        earlier = self.frame().where(f.expr(f"redrive.sequence BETWEEN {first}L AND {last}L"))
        rows = earlier.select("redrive.sequence", f.sha2("bytes", 256).alias("digest"), "redrive.count").collect()
        found: dict[tuple[int, str], int] = {}
        for row in rows:
            key = (row["sequence"], row["digest"])
            found[key] = max(row["count"], found.get(key, 0))
        return found

    def free(self, keys: Sequence[Key]) -> Sequence[Key]:
        wanted = self._local([tuple(key) for key in keys], _KEYS)
        rows = (
            self.frame().where(f.col(REDRIVE).isNull()).join(wanted, ["_sequence", "_index", "location"], "left_semi")
        )
        found = rows.select("_sequence", "_index", "location").orderBy("_sequence", "_index", "location")
        return [Key(*row) for row in found.collect()]

    def pending(self) -> Claim | None:
        claimed = (
            self.frame()
            .where("redrive.number IS NOT NULL AND redrive.at IS NULL")
            .select("_sequence", "_index", "location", "bytes", "_entry_metadata", "redrive.*")
        )
        rows = claimed.collect()  # there is one claim at a time, hardly ever two: a batch's worth
        if not rows:
            return None
        first = min(row.number for row in rows)
        found = sorted((row for row in rows if row.number == first), key=lambda row: row[:3])
        letters = [
            Letter(Key(row._sequence, row._index, row.location), bytes(row.bytes), bytes(row["_entry_metadata"] or b""))
            for row in found
        ]
        return Claim(int(first), str(found[0].queue), str(found[0].place), letters)

    def mark(self, number: int, sequence: int | None) -> None:
        known = "CAST(NULL AS BIGINT)" if sequence is None else f"{sequence}L"
        done = (
            "named_struct('number', redrive.number, 'queue', redrive.queue, 'place', redrive.place, 'count', "
            f"redrive.count, 'sequence', {known}, 'at', timestamp_millis({self._now_ms()}L))"
        )
        self._changed(
            lambda: self._delta().update(f"redrive.number = {number}L AND redrive.at IS NULL", {REDRIVE: done})
        )

    def _add_column(self) -> None:
        def added() -> None:
            if REDRIVE not in self.target.look(APP).schema.names:
                self.spark.sql(f"ALTER TABLE {self.identifier} ADD COLUMNS ({REDRIVE} {_COLUMN})")

        self._changed(added)

    def _changed(self, change: Callable[[], Any]) -> None:
        """Do it, again if another command came between."""
        for attempt in range(1, CHANGE_ATTEMPTS_MAX + 1):
            try:
                change()
            except (PySparkException, Py4JJavaError, ConcurrentCommit) as error:
                conflict = conflict_name(error)
                if conflict is None:
                    raise
                if attempt == CHANGE_ATTEMPTS_MAX:
                    raise ContentionError(
                        f"{self.name!r} changes all the time ({conflict}): run it again later"
                    ) from error
            else:
                return

    def _delta(self) -> DeltaTable:
        path = path_of(self.name)
        return DeltaTable.forName(self.spark, self.name) if path is None else DeltaTable.forPath(self.spark, path)

    @contextmanager
    def _transaction(self, number: int) -> Iterator[None]:
        self.spark.conf.set(_APP_ID, APP)
        self.spark.conf.set(_VERSION, str(number))
        try:
            yield
        finally:
            self.spark.conf.unset(_APP_ID)
            self.spark.conf.unset(_VERSION)


def check_alone(name: str, location: str, conf: Mapping[str, str], *, loaders_stopped: bool) -> None:
    """Raises InvalidConfig where what a redrive commits could replace a commit of another driver. `conf`: Spark's."""
    if loaders_stopped or not puts_blindly(location, conf):
        return
    raise InvalidConfig(
        f"a redrive would put its commits into the table {name!r} ({location}) without a condition, and one of them "
        "may replace a commit of a loader that runs, with the dead letters in it. Stop every loader of this table, and "
        "whatever else writes to it, and say so with --loaders-stopped; or set a multi-cluster log store "
        "(spark.delta.logStore.s3a.impl = io.delta.storage.S3DynamoDBLogStore) for all who write there",
        key="loaders_stopped",
        value=location,
    )


def _text(value: str) -> str:
    """A literal of SQL. Spark knows JSON's escapes, but takes a single quote for the end."""
    return "'" + json.dumps(value)[1:-1].replace("'", "\\'") + "'"
