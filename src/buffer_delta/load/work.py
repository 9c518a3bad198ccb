"""The loader's work on Spark: a planned range of batches into one DataFrame for each table.

Where a record goes is a pure function of its bytes, of the configuration behind `digest` and of the tables' own rules,
which the plan keeps too: a range that is replayed by another process must go where it went before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql.types import BinaryType

from buffer.clock import Clock
from buffer.consume.fetch import FetchHandle
from buffer.errors import ObjectNotFound
from buffer.ledger import entries
from buffer.ledger.entries import listed
from buffer.model import BatchDescriptor
from buffer.store.base import Store
from buffer_delta.config import FORMER_METADATA, LoaderConfig
from buffer_delta.decode.dead_letters import keep_whole, unused_name
from buffer_delta.decode.group import Group, in_groups
from buffer_delta.decode.grouping import group
from buffer_delta.decode.layout import RowLayout
from buffer_delta.decode.look import CanDiscover, CanParse, Check
from buffer_delta.decode.policy import policy_for
from buffer_delta.decode.rows import RowDecoder
from buffer_delta.decode.sizes import BatchSizes
from buffer_delta.delta.rules import TableRules
from buffer_delta.delta.state import TableState
from buffer_delta.delta.table import DeltaTarget
from buffer_delta.delta.writers.base import FrameRows, Rows
from buffer_delta.formats import Format, merge_schemas, resolve_format, settle
from buffer_delta.load.digests import digest, older_digest
from buffer_delta.load.guess import Tries
from buffer_delta.load.ports import Failure, Trouble
from buffer_delta.load.refusals import Refused, collected
from buffer_delta.load.routing import Routing
from buffer_delta.spark import tasks
from buffer_delta.spark.blame import brief, fault_of
from buffer_delta.spark.frames import numbered
from buffer_delta.spark.parts import parted
from buffer_delta.spark.rows import TaskRows
from buffer_delta.spark.schemas import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

ENTRY = "_entry"
"""The column that says which entry a row is from, where `_index` counts rows; it never reaches a table."""

SMALL_BYTES = 1 << 20
"""Stored. Up to that, decoding a range twice costs less than the queries that would spare it."""

See: TypeAlias = Callable[[str], TableState]


class SparkWork:
    """`ports.Work` on Spark."""

    def __init__(
        self, spark: SparkSession, store: Store, config: LoaderConfig, targets: Sequence[DeltaTarget], clock: Clock
    ) -> None:
        self._spark = spark
        self._store = store
        self._config = config
        self._clock = clock
        self._main = targets[0]
        self._targets = {target.name: target for target in targets}
        self._format = resolve_format(config.format)
        prefixes = config.prefixes()
        self._handle = FetchHandle(store, config.max_batch_bytes, config.fetch_attempts, clock, prefixes)
        self._cores = max(1, spark.sparkContext.defaultParallelism)
        self.sizes = BatchSizes(store, config.data_path_prefix)
        self._digest = digest(config, self._format, {target.name: target.place for target in targets})
        self._older_digest = older_digest(config, self._format)
        self._routing = Routing(config, self._format.evolving, self._added)
        self._tries = Tries()
        self._rules_known: bool | None = None
        """Whether a table for records has rules of its own; None: nobody has looked."""

    @property
    def digest(self) -> str:
        return self._digest

    @property
    def known_digests(self) -> tuple[str, ...]:
        return self._digest, self._older_digest

    def main_alone(self) -> SparkWork:
        config = self._config.replace(route_by=None, routes={}, dead_letters=None, dlq_strategy=None)
        return SparkWork(self._spark, self._store, config, [self._main], self._clock)

    @cached_property
    def _layout(self) -> RowLayout:
        """The names of the provenance columns. A table that an earlier release made keeps `_metadata`."""
        columns = self._config.columns
        layout = RowLayout.renamed(columns)
        schema = None if {"_entry_metadata", FORMER_METADATA} & columns.keys() else self._main.schema()
        if schema is None or layout.metadata in schema.names or FORMER_METADATA not in schema.names:
            return layout
        is_ours = schema[FORMER_METADATA].dataType == BinaryType()
        return replace(layout, metadata=FORMER_METADATA) if is_ours else layout

    @contextmanager
    def prepare(self, part: Group, seen: See) -> Iterator[Mapping[str, Rows]]:
        """The rows of each table that gets some, and of the main one. With several tables, everything is decoded here,
        once; twice, where a table would refuse some of the rows: the second time they are dead letters."""
        if len(self._config.tables()) == 1:
            rows: Rows = self._tried_alone(part, seen) or self._rows(part, seen)
            if self._config.transform is not None:
                rows = FrameRows(self._routing.transformed(rows.frame()))
            yield self._completed({self._config.table: rows}, seen)
            return
        has_dead_letters = self._config.dead_letters is not None
        if has_dead_letters:
            part = self._without(part, Refused(part.quarantined))
        found = self._parted(part, seen)
        if found is not None:
            yield self._completed(found, seen)
            return
        with self._cached(part, seen, traced=has_dead_letters) as frame:
            parts = self._routing.filled(frame)
            refused = self._refused(parts, seen) if has_dead_letters else Refused()
            if not refused:
                if has_dead_letters:
                    parts |= {name: self._untraced(parts[name]) for name, _ in self._by_name() if name in parts}
                yield self._completed(_as_rows(parts), seen)
                return
        with self._cached(self._without(part, refused), seen, traced=False) as frame:
            yield self._completed(_as_rows(self._routing.filled(frame)), seen)

    def probe(self, part: Group, seen: See) -> list[Failure]:
        found: list[Failure] = []
        form = self._format
        if form.evolving:
            found += self._probed(part, CanDiscover(form))
            form = self._format_for(_without(part, found), lambda: seen(self._main.name))
        has_dead_letters = self._config.dead_letters is not None
        has_place = has_dead_letters or form.rescued_column is not None
        largest = None if has_dead_letters else self._config.max_entry_bytes
        can_parse = CanParse(form.within(self._config.max_batch_bytes), has_place, largest)
        found += self._probed(_without(part, found), can_parse)
        if not has_dead_letters and any(target.rules(seen(name)) != TableRules() for name, target in self._by_name()):
            rest = _without(part, found)
            locations = {d.sequence: d.location for d in rest.descriptors}
            refused = self._refused(self._routing.routed(self._decoded(rest, seen, traced=True)), seen)
            found += [Failure(number, locations[number], error, "data") for number, error in refused.batches.items()]
            single = listed(refused.entries)
            found += [Failure(number, locations[number], error, "data", index) for number, index, error in single]
        return found

    def count(self, descriptor: BatchDescriptor) -> int:
        """By the batch's footer, where the store can tell: decoding it may end the process."""
        told = self._handle.count(descriptor)
        return tasks.count(self._spark, self._handle, descriptor) if told is None else told

    def trouble(self, error: Exception) -> Trouble:
        return Trouble(brief(error), fault_of(error))

    # Reading

    def _decoded(self, part: Group, seen: See, *, traced: bool = False) -> DataFrame:
        return self._rows(part, seen, traced=traced).frame()

    def _rows(self, part: Group, seen: See, *, traced: bool = False, form: Format | None = None) -> TaskRows:
        """The rows of a part, lazily. `traced`: they tell the entry that they are from, whatever `_index` counts.

        `form`: with these columns, whatever the part brings.
        """
        form = form or self._format_for(part, lambda: seen(self._main.name))
        layout = self._layout
        if traced and form.many_rows and self._config.transform is None:
            layout = replace(layout, entry=unused_name(ENTRY, [*form.schema.names, *self._added()]))
        policy = policy_for(form, layout, dead_letters=self._config.dead_letters is not None)
        decoder = RowDecoder(form, layout, policy, self._config.max_entry_bytes)
        groups = in_groups(self._groups(part.descriptors), part)
        return TaskRows(
            self._spark, tasks.DecodeTask(self._handle, decoder), groups, decoder.schema, variants=form.variants
        )

    @contextmanager
    def _cached(self, part: Group, seen: See, *, traced: bool) -> Iterator[DataFrame]:
        frame = self._decoded(part, seen, traced=traced).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            yield frame
        finally:
            frame.unpersist()

    def _probed(self, part: Group, check: Check) -> list[Failure]:
        groups = in_groups(self._groups(part.descriptors), part)
        return [self._unless_only_unseen(failure) for failure in tasks.probe(self._spark, self._handle, groups, check)]

    def _unless_only_unseen(self, failure: Failure) -> Failure:
        """A batch that the executors cannot find but the driver can is not lost: their set-up is wrong."""
        if failure.kind != "missing":
            return failure
        try:
            self._store.head(failure.location)
        except ObjectNotFound:
            return failure
        error = f"the driver sees this batch, the executors do not; give them the same store: {failure.error}"
        log.warning("%s: %s", failure.location, error)
        return replace(failure, kind="infra", error=error)

    def _groups(self, descriptors: Sequence[BatchDescriptor]) -> list[list[BatchDescriptor]]:
        sizes = self.sizes.look_up(descriptors)
        return group(descriptors, sizes, self._config.target_file_bytes, self._cores)

    def _format_for(self, part: Group, see_main: Callable[[], TableState]) -> Format:
        """The format with its columns settled: those of the table, and those that this range brings."""
        if not self._format.evolving:
            return self._format
        found = tasks.discover(self._spark, self._handle, self._groups(part.descriptors), self._format, part)
        merged = merge_schemas(None, found, max_columns=self._format.max_columns)
        seen = see_main()
        form = settle(self._format, seen.schema, merged, self._added())
        if self._config.transform is not None or self._config.route_by is not None:
            return form  # what they compute of a column must not change with its type: 5 would become 5.000
        wide = settle(self._format, seen.schema, merged, self._added(), may_widen=True)
        return wide if wide.schema != form.schema and self._may_widen(wide, seen) else form

    def _may_widen(self, form: Format, seen: TableState) -> bool:
        return self._main.may_widen(spark_schema(form.schema, form.variants), seen)

    def _added(self) -> list[str]:
        """The names of the provenance columns."""
        return [field.name for field in self._layout.arrow_fields()]

    # What tables refuse

    def _refused(self, parts: Mapping[str, DataFrame], seen: See) -> Refused:
        """The entries with rows that their table would refuse, as far as rows tell which entry they are from."""
        found: list[DataFrame] = []
        for name, target in self._by_name():
            if name not in parts:
                continue
            keys = self._keys(parts[name])
            refused = target.refused(parts[name], keys, seen(name)) if keys is not None else None
            found += [] if refused is None else [refused]
        return collected(found)

    def _without(self, part: Group, refused: Refused) -> Group:
        """The part with more of it set aside; batches that are too large for a dead letter are kept first."""
        ours = [d for d in part.descriptors if self._handle.refusal(d) is None]  # what is not the queue's stays there
        return part.without(keep_whole(self._store, ours, refused.batches), refused.entries)

    def _keys(self, rows: DataFrame) -> tuple[str, str] | None:
        """The columns that tell a row's batch and entry; None if there are none."""
        index = rows.columns[-1] if self._is_traced(rows) else None if self._format.many_rows else self._layout.index
        sequence = self._layout.sequence
        if index is None or sequence is None or not {index, sequence} <= set(rows.columns):
            return None
        return sequence, index

    def _is_traced(self, rows: DataFrame) -> bool:
        """Of rows that were asked for with a trace: it is their last column, unless they have a better one anyway."""
        return self._format.many_rows and self._config.transform is None and rows.columns[-1].startswith(ENTRY)

    def _untraced(self, rows: DataFrame) -> DataFrame:
        return rows.drop(rows.columns[-1]) if self._is_traced(rows) else rows

    def _by_name(self) -> list[tuple[str, DeltaTarget]]:
        """The tables for records, without the dead letters."""
        return [(name, target) for name, target in self._targets.items() if name != self._config.dead_letters]

    def _completed(self, parts: dict[str, Rows], seen: See) -> dict[str, Rows]:
        """With null in the columns that a table needs and no record of this range has, and numbers of their own where
        the transform may have made several rows of one: only now, for so far `_index` tells whose fault a row is."""
        sequence, index = self._layout.sequence, self._layout.index
        if self._routing.numbers_rows and sequence is not None and index is not None:
            names = [name for name, _ in self._by_name() if name in parts]
            parts = parts | {name: FrameRows(numbered(parts[name].frame(), sequence, index)) for name in names}
        if not self._format.evolving:
            return parts
        complete = {n: target.complete(parts[n], seen(n)) for n, target in self._by_name() if n in parts}
        return parts | complete

    # Which rows go where

    def _parted(self, part: Group, seen: See) -> dict[str, Rows] | None:
        """The rows of the tables that get some, and of the main one, told apart in the tasks: without a query and a
        cache. None: only a query can tell them apart, or it costs less."""
        if self._config.transform is not None or callable(self._config.route_by):
            return None
        sizes = self.sizes.look_up(part.descriptors)
        is_small = sum(sizes.values()) <= SMALL_BYTES
        if self._has_rules([self._main.name], seen) or not (is_small or self._main.last_sink() is not None):
            return None
        found = self._tried(part, seen) or self._told_apart(self._rows(part, seen))
        # They may have got rules since the last range, and these rows will be held against them.
        return None if found is None or self._has_rules(found, seen, now=True) else found

    def _tried_alone(self, part: Group, seen: See) -> Rows | None:
        """The rows of the only table, if trying has shown that it has all columns for them. None: nobody knows."""
        if self._config.transform is not None or not self._format.evolving or self._main.last_sink() is None:
            return None
        found = self._tried(part, seen)
        return found[self._config.table] if found is not None else None

    def _tried(self, part: Group, seen: See) -> dict[str, Rows] | None:
        """As `_told_apart` where columns follow the data, with those that the table has: one pass instead of two.

        None: there is no table, it was in vain, or not worth a try.
        """
        if not self._format.evolving or not self._format.rescues_all_new or not self._tries.is_due():
            return None
        columns = seen(self._main.name).schema
        if columns is None:
            return None
        form = settle(self._format, columns, pa.schema([]), self._added())
        found = self._told_apart(self._rows(part, seen, form=form), watched=form.rescued_column)
        self._tries.tell(right=found is not None)
        return found

    def _told_apart(self, rows: TaskRows, watched: str | None = None) -> dict[str, Rows] | None:
        """The rows of each table, written where it is known into what. None: only a query tells them apart, or there
        is something in the column that is `watched`."""
        parting = self._routing.parting(rows.columns)
        if parting is None or rows.variants:  # which only a query makes
            return None
        columns = {name: spark_schema(parting.columns(name, rows.columns)) for name in self._targets}
        guesses = {name: target.last_sink(columns[name]) for name, target in self._targets.items()}
        known = {name: sink for name, sink in guesses.items() if sink is not None}
        found = parted(rows, parting, known, watched)
        return dict(found) if found is not None else None

    def _has_rules(self, names: Iterable[str], seen: See, *, now: bool = False) -> bool:
        """Whether a row may become a dead letter for what its table says; as it was known before, or as it is now.

        Only of tables that get rows: a plan keeps the rules of all that were looked at, and a replay compares them.
        """
        if self._config.dead_letters is None:
            return False
        if now or self._rules_known is None:
            asked = [(name, target) for name, target in self._by_name() if name in names]
            found = any(target.rules(seen(name)) != TableRules() for name, target in asked)
            self._rules_known = found or bool(self._rules_known)
        return self._rules_known


def _without(part: Group, found: Sequence[Failure]) -> Group:
    """The part without what failed: batches that cannot be read are not in it at all."""
    batches = {failure.sequence for failure in found if failure.index is None}
    rest = part.share([d for d in part.descriptors if d.sequence not in batches])
    return rest.without({}, entries.of((f.sequence, f.index, f.error) for f in found if f.index is not None))


def _as_rows(parts: Mapping[str, DataFrame]) -> dict[str, Rows]:
    return {name: FrameRows(frame) for name, frame in parts.items()}
