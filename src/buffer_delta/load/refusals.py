"""What tables refuse of a range, brought to the driver: entry by entry, but not where they are very many.

The work asks each table for its rows that break a rule, in Spark; here their number decides how much of them is
collected (see `decode.failures`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from buffer.ledger import entries
from buffer.ledger.entries import Entries
from buffer_delta.decode.failures import ENTRIES_PER_BATCH_MAX, too_many, whole_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refused:
    """Batches and entries with rows that their table would refuse, and why."""

    batches: Mapping[int, str] = field(default_factory=dict)
    entries: Entries = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.batches or self.entries)


def collected(frames: Sequence[DataFrame]) -> Refused:
    """Of rows `sequence, index, reason`, which are read twice where there are any, and three times where very many."""
    counts = [frame.count() for frame in frames]
    if not any(counts):
        return Refused()
    log.warning("%d rows break the rules of their tables", sum(counts))
    whole: dict[int, str] = {}
    if sum(counts) > ENTRIES_PER_BATCH_MAX:
        whole = _whole(frames)
    found: list[tuple[int, int, str]] = []
    for frame, count in zip(frames, counts, strict=True):
        if count:
            kept = frame.where(~f.col("sequence").isin(list(whole))) if whole else frame
            columns = kept.toArrow().to_pydict()
            found += zip(columns["sequence"], columns["index"], columns["reason"], strict=True)
    return Refused(whole, entries.of(found))


def _whole(frames: Sequence[DataFrame]) -> dict[int, str]:
    """The batches of which too many are refused. The reason is of the first entry, so that it is always the same."""
    counts: Counter[int] = Counter()
    firsts: dict[int, tuple[int, str]] = {}
    for frame in frames:
        first = f.min(f.struct("index", "reason"))
        for row in frame.groupBy("sequence").agg(f.count(f.lit(1)).alias("rows"), first.alias("first")).collect():
            counts[row.sequence] += row.rows
            told = (row.first["index"], row.first["reason"])
            firsts[row.sequence] = min(told, firsts.get(row.sequence, told))
    return {sequence: too_many(counts[sequence], firsts[sequence][1]) for sequence in sorted(whole_batches(counts))}
