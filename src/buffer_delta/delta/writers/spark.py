"""Writers that let Spark write the files and Delta's own command commit them.

The public way, `df.write.option("txnAppId", …)`, makes Delta compute the table's whole state before every write, with
three Spark jobs, only to look up one number: a small commit takes four times as long as one without. `Fast` runs the
very command behind it, on a snapshot whose position was read from the log already (`delta/log.py`). Where this Delta
build does not look as expected, `Public` does the same the slow way.

What `Fast` touches besides what `transaction.py` lists: WriteIntoDelta.writeAndReturnCommitData.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from buffer_delta.delta.columns import widened
from buffer_delta.delta.guard import guarded
from buffer_delta.delta.sink import check_count
from buffer_delta.delta.state import TableState
from buffer_delta.delta.txn import Txn
from buffer_delta.delta.writers.base import Prepared, Staged, Writer, Written
from buffer_delta.delta.writers.transaction import Begun, Transactions, write_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

NO_TXN = Txn("", 0, 0, 0, 0)  # of a transaction that is never committed


def spark_writer(spark: SparkSession, name: str | None, path: str | None) -> Writer:
    """The best one for this build of Delta. The table is given by its name or by its path."""
    return Fast(spark) if Transactions.fit(spark) else Public(name, path)


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
        options = write_options(txn, merge_schema=prepared.merge_schema)
        writer = _frame(prepared).write.format("delta").mode("append").options(**options)
        if self._path is not None:
            writer.save(self._path)
        else:
            writer.saveAsTable(self._name)
        return None


class Fast:
    """Through Delta's own write command."""

    casts = False
    leaves_checkpoints = True

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._transactions = Transactions(spark)

    def write(self, prepared: Prepared, txn: Txn) -> Written | None:
        return self.stage(prepared, txn).commit()

    def stage(self, prepared: Prepared, txn: Txn) -> Staged:
        begun = self._transactions.begin(prepared.seen, txn, _frame(prepared), merge_schema=prepared.merge_schema)
        session, none = self._spark._jsparkSession, self._transactions.none
        data = begun.command.writeAndReturnCommitData(begun.transaction, session, none, False)
        counted = prepared.rows.count
        written = begun.metric("numOutputRows") if counted is not None else None
        if written is not None:  # None: this session keeps no metrics
            check_count(written, counted)
        return _FastStaged(begun, data)

    def check_columns(self, columns: StructType, seen: TableState) -> None:
        """Raise what Delta has against rows of these columns, new ones and wider ones allowed. Writes nothing."""
        nothing = self._spark.createDataFrame([], columns)
        self._transactions.begin(seen, NO_TXN, nothing, merge_schema=True).update_columns(columns)


@dataclass(frozen=True)
class _FastStaged:
    """What Delta's command has written, with the transaction that would commit it."""

    begun: Begun
    data: Any

    def commit(self) -> Written | None:
        return self.begun.counted(self.begun.commit(self.data.actions(), self.data.stringTags()))


def _frame(prepared: Prepared) -> DataFrame:
    """The rows with their numbers widened to the table's types, which Delta would refuse otherwise; guarded."""
    seen = prepared.seen
    return guarded(widened(prepared.rows.frame(), seen.schema), seen.rules.partition_by)
