"""One Spark job for tasks whose answers are a few bytes each: no query, no plan, no shuffle.

A DataFrame of the same tasks would be analysed, optimised and compiled anew for every range, which takes longer than
the job itself where a range is small. Rows that a query needs go through `tasks.run` instead.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pyspark import RDD
from pyspark.serializers import CPickleSerializer

from buffer_delta.decode.group import Group
from buffer_delta.spark.workers import acknowledge, freeze_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Told: TypeAlias = Callable[[Group], Iterator[bytes]]
"""What a Python worker does with a group; it pickles."""


@dataclass(frozen=True)
class _OnPartition:
    told: Told

    def __call__(self, groups: Iterable[Group]) -> Iterator[bytes]:
        acknowledge()
        for group in groups:
            yield from self.told(group)
        freeze_once()


def gather(spark: SparkSession, told: Told, groups: Sequence[Group]) -> list[bytes]:
    """What is told of each group, in their order: a task for each, whose own group is all that it gets besides `told`.

    Of a task that ran more than once, one attempt's words are here.
    """
    if not groups:
        return []
    context = spark.sparkContext
    # Through the JVM: Python's own `parallelize` goes through a file.
    rows = context._jsc.parallelize(payloads(groups), len(groups))
    found: RDD[Group] = RDD(rows, context, CPickleSerializer())
    said: list[bytes] = found.mapPartitions(_OnPartition(told)).collect()
    return said


def payloads(groups: Sequence[Group]) -> list[bytes]:
    """What travels to each task besides the function."""
    return [pickle.dumps(group, pickle.HIGHEST_PROTOCOL) for group in groups]
