"""Frames taken apart and numbered: good rows and dead letters, rows of a transform that may be more than there were.

See `decode.policy.DeadLetter` for the former. The latter must keep `(_sequence, _index)` unique, which the rows of one
exploded entry would share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import Window, functions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PLAN_NODES_MAX = 1000  # of a transform: beyond, its rows are numbered without looking further

_ONE_ROW_EACH = {
    *("Project", "Filter", "Window", "Sort", "GlobalLimit", "LocalLimit", "Deduplicate", "Distinct", "ResolvedHint"),
    *("Repartition", "RepartitionByExpression", "RebalancePartitions", "SubqueryAlias", "View"),
}
"""Spark's operators that give at most one row for each row that they get. Explode, joins and Python may give more."""


def good_rows(frame: DataFrame) -> DataFrame:
    mark = frame.columns[-1]
    return frame.where(frame[mark].isNull()).drop(mark)


def dead_rows(frame: DataFrame) -> DataFrame:
    """One row for each entry or batch set aside: `decode.dead_letters.DEAD_TYPE` tells its columns."""
    mark = frame.columns[-1]
    return frame.where(frame[mark].isNotNull()).select(f"{mark}.*")


def may_multiply(before: DataFrame, after: DataFrame) -> bool:
    """Whether `after`, made of `before`, may have several rows for one: by its plan alone, no row is looked at."""
    start = before._jdf.queryExecution().analyzed()
    nodes: list[Any] = [after._jdf.queryExecution().analyzed()]
    for seen in range(PLAN_NODES_MAX):
        if not nodes:
            return seen == 0
        node = nodes.pop()
        if node.fastEquals(start):
            continue
        if str(node.getClass().getSimpleName()) not in _ONE_ROW_EACH:
            return True
        children = node.children()
        nodes += [children.apply(i) for i in range(children.size())]
    return True


def numbered(rows: DataFrame, sequence: str, index: str) -> DataFrame:
    """The rows with `index` counting the rows of each batch, in the order that it had."""
    of_batch = Window.partitionBy(rows[_quoted(sequence)]).orderBy(rows[_quoted(index)])
    return rows.withColumn(index, (functions.row_number().over(of_batch) - 1).cast("int"))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
