"""What runs on Spark's executors: decode, discover, probe. The driver gets none of the data.

There is a task for each group, in a query (`run`) where rows come of it, else in a plain job (`jobs.py`). What all of
them share (store, format, layout) travels once, as the function; each task's own group travels as the one row of its
partition. So a task's size does not grow with the range.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame

from buffer.consume.fetch import FetchHandle
from buffer.model import BatchDescriptor
from buffer_delta.decode import failures, look
from buffer_delta.decode.failures import Failure
from buffer_delta.decode.fetching import Group, in_groups
from buffer_delta.decode.look import Check
from buffer_delta.decode.rows import RowDecoder
from buffer_delta.formats.base import Format
from buffer_delta.spark.jobs import gather, payloads
from buffer_delta.spark.schemas import spark_schema
from buffer_delta.spark.workers import acknowledge, freeze_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Groups = Sequence[Sequence[BatchDescriptor]]


def decode(
    spark: SparkSession,
    handle: FetchHandle,
    groups: Groups,
    decoder: RowDecoder,
    quarantined: Mapping[int, str] | Group | None = None,
) -> DataFrame:
    """The rows of the batches, lazily, one partition for each group. What is set aside comes as a map or as a Group."""
    return run(spark, DecodeTask(handle, decoder), in_groups(groups, quarantined or {}), decoder.schema)


def discover(
    spark: SparkSession, handle: FetchHandle, groups: Groups, form: Format, quarantined: Mapping[int, str] | Group
) -> list[pa.Schema]:
    """The columns that the batches need, one schema for each task."""
    found = gather(spark, DiscoverTask(handle, form), in_groups(groups, quarantined))
    return [pa.ipc.read_schema(pa.py_buffer(told)) for told in found]


def probe(
    spark: SparkSession, handle: FetchHandle, groups: Sequence[Group], check: Check | None = None
) -> list[Failure]:
    """The batches and entries that cannot be read, and whose fault it is; see `look.probe`."""
    return failures.read(gather(spark, ProbeTask(handle, check), groups))


def count(spark: SparkSession, handle: FetchHandle, descriptor: BatchDescriptor) -> int:
    """How many entries a batch has, told by whoever can read it."""
    (told,) = gather(spark, CountTask(handle), [Group([descriptor])])
    return int(told)


class Task(Protocol):
    """What a Python worker does with a group. It pickles."""

    def __call__(self, group: Group) -> Iterator[pa.RecordBatch]: ...


@dataclass(frozen=True)
class DecodeTask:
    handle: FetchHandle
    decoder: RowDecoder

    def __call__(self, group: Group) -> Iterator[pa.RecordBatch]:
        return self.decoder.rows(self.handle, group)


@dataclass(frozen=True)
class DiscoverTask:
    handle: FetchHandle
    format: Format

    def __call__(self, group: Group) -> Iterator[bytes]:
        yield look.discover(self.handle, group, self.format).serialize().to_pybytes()


@dataclass(frozen=True)
class ProbeTask:
    handle: FetchHandle
    check: Check | None

    def __call__(self, group: Group) -> Iterator[bytes]:
        yield from failures.told(look.probe(self.handle, group, self.check))


@dataclass(frozen=True)
class CountTask:
    handle: FetchHandle

    def __call__(self, group: Group) -> Iterator[bytes]:
        yield str(look.count(self.handle, group)).encode()


@dataclass(frozen=True)
class OnWorker:
    """The function that mapInArrow gets: the task, called with the groups in the worker's rows."""

    task: Task

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        acknowledge()
        for batch in batches:
            for payload in batch.column(0):
                yield from self.task(pickle.loads(payload.as_buffer()))
        freeze_once()


def run(spark: SparkSession, task: Task, groups: Sequence[Group], schema: pa.Schema) -> DataFrame:
    """What the task makes of each group, lazily, one partition for each."""
    return _one_each(spark, payloads(groups)).mapInArrow(OnWorker(task), spark_schema(schema))


def _one_each(spark: SparkSession, values: list[bytes]) -> DataFrame:
    """A frame with one binary column, and a partition of its own for each value.

    Through the JVM: `createDataFrame` makes as many partitions as there are cores, where the data is small, and a
    Python RDD would need a second Python worker in each task.
    """
    jvm: Any = spark._jvm
    rows = spark.sparkContext._jsc.parallelize(values, max(len(values), 1))
    dataset = spark._jsparkSession.createDataset(rows.rdd(), jvm.org.apache.spark.sql.Encoders.BINARY())
    return DataFrame(dataset.toDF(), spark)
