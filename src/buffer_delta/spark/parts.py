"""The rows of several tables from one plain job: counted, and written on the way where it is known into what.

`parted` decodes the range once, on entry. Of a table whose sink was guessed right, the files are there then; of the
others only how many rows they get, and a second pass over those groups alone brings them. So a guess costs nothing if
it is right, and one that is wrong leaves files that no commit names, as any attempt that does not commit does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from buffer_delta.decode.parting import Feeding, Found, OnePart, Parting, PartTask
from buffer_delta.spark.jobs import gather
from buffer_delta.spark.rows import Sink, TaskRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)


def parted(
    rows: TaskRows, parting: Parting, guesses: Mapping[str, Feeding], watched: str | None = None
) -> dict[str, PartRows] | None:
    """The rows of each table that gets some, and of the main one. `guesses`: into what those of a table will go.

    None: some row has a value in the column that is `watched`.
    """
    found, used = _found(rows, PartTask(rows.task, parting, guesses, watched))
    if any(each.has_rescued for each in found):
        return None
    tables = {table for each in found for table in each.counts} | {parting.main}
    made = {}
    for table in tables:
        groups = [group for group, each in zip(rows.groups, found, strict=True) if table in each.counts]
        told = [line for each in found for line in each.told.get(table, ())]
        ready = (used[table], told) if table in used else None
        only = TaskRows(rows.spark, OnePart(rows.task, parting, table), groups, parting.columns(table, rows.columns))
        made[table] = PartRows(only, sum(each.counts.get(table, 0) for each in found), ready)
    return made


def _found(rows: TaskRows, task: PartTask) -> tuple[list[Found], Mapping[str, Feeding]]:
    """What each group's task found, and the sinks that it was given: of no other table a file is there."""
    try:
        told = gather(rows.spark, task, rows.groups)
    except (PySparkException, Py4JJavaError) as error:
        if not task.sinks:
            raise
        # A table that has changed since may refuse what it will take: only counting tells whose fault it is.
        log.info("trying again without writing: %s", str(error).split("\n", 1)[0])
        return _found(rows, replace(task, sinks={}))
    return [Found.of(text) for text in told], task.sinks


class PartRows:
    """Rows of one table, of which files may be there already."""

    def __init__(self, rows: TaskRows, count: int, ready: tuple[object, list[bytes]] | None) -> None:
        """`ready`: a sink, and what it said of all these rows."""
        self._rows = rows
        self._count = count
        self._ready = ready

    @property
    def schema(self) -> StructType:
        return self._rows.schema

    @property
    def count(self) -> int:
        return self._count

    def frame(self) -> DataFrame:
        return self._rows.frame()

    def drained(self, sink: Sink) -> list[bytes]:
        ready, self._ready = self._ready, None  # files are committed once: a second time makes its own
        if ready is not None and ready[0] == sink:
            return ready[1]
        return self._rows.drained(sink)

    def with_nulls(self, columns: StructType) -> PartRows:
        return PartRows(self._rows.with_nulls(columns), self._count, self._ready)
