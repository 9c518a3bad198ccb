"""The loader's work on Spark: a planned range of batches into one DataFrame for each table.

Where a record goes is a pure function of its bytes, of the configuration behind `digest` and of the tables' own rules,
which the plan keeps too: a range that is replayed by another process must go where it went before.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark import StorageLevel
from pyspark.sql import functions
from pyspark.sql.types import BinaryType

from buffer.clock import Clock
from buffer.consume.fetch import FetchHandle
from buffer.errors import InvalidConfig, ObjectNotFound
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
from buffer_delta.load.ports import Failure, Trouble
from buffer_delta.spark import tasks
from buffer_delta.spark.blame import brief, fault_of
from buffer_delta.spark.frames import dead_rows, good_rows, may_multiply, numbered
from buffer_delta.spark.rows import TaskRows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

ROUTE = "_route"
"""The column that holds a row's route while the rows of all tables travel together, unless the data has one like it."""

ENTRY = "_entry"
"""The column that says which entry a row is from, where `_index` counts rows; it never reaches a table."""

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
        self._digest = _digest(config, self._format, {target.name: target.place for target in targets})
        self._older_digest = _older_digest(config, self._format)
        self._numbers_rows = False
        """The transform may make several rows of one."""

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
            rows: Rows = self._rows(part, seen)
            if self._config.transform is not None:
                rows = FrameRows(self._transformed(rows.frame()))
            yield self._completed({self._config.table: rows}, seen)
            return
        has_dead_letters = self._config.dead_letters is not None
        if has_dead_letters:
            ours = [
                d for d in part.descriptors if self._handle.refusal(d) is None
            ]  # what is not the queue's stays there
            part = part.without(keep_whole(self._store, ours, part.quarantined), {})
        with self._cached(part, seen, traced=has_dead_letters) as frame:
            parts = self._filled(frame)
            refused = self._refused(parts, seen) if has_dead_letters else {}
            if not refused:
                if has_dead_letters:
                    parts = {name: self._untraced(rows) for name, rows in parts.items()}
                yield self._completed(_as_rows(parts), seen)
                return
        with self._cached(part.without({}, refused), seen, traced=False) as frame:
            yield self._completed(_as_rows(self._filled(frame)), seen)

    def probe(self, part: Group, seen: See) -> list[Failure]:
        found: list[Failure] = []
        form = self._format
        if form.evolving:
            found += self._probed(part, CanDiscover(form))
            form = self._format_for(_without(part, found), lambda: seen(self._main.name).schema)
        has_dead_letters = self._config.dead_letters is not None
        has_place = has_dead_letters or form.rescued_column is not None
        found += self._probed(_without(part, found), CanParse(form.within(self._config.max_batch_bytes), has_place))
        if not has_dead_letters and any(target.rules(seen(name)) != TableRules() for name, target in self._by_name()):
            rest = _without(part, found)
            locations = {d.sequence: d.location for d in rest.descriptors}
            refused = listed(self._refused(self._routed(self._decoded(rest, seen, traced=True)), seen))
            found += [Failure(number, locations[number], error, "data", index) for number, index, error in refused]
        return found

    def count(self, descriptor: BatchDescriptor) -> int:
        return tasks.count(self._spark, self._handle, descriptor)

    def trouble(self, error: Exception) -> Trouble:
        return Trouble(brief(error), fault_of(error))

    # Reading

    def _decoded(self, part: Group, seen: See, *, traced: bool = False) -> DataFrame:
        return self._rows(part, seen, traced=traced).frame()

    def _rows(self, part: Group, seen: See, *, traced: bool = False) -> TaskRows:
        """The rows of a part, lazily. `traced`: they tell the entry that they are from, whatever `_index` counts."""
        form = self._format_for(part, lambda: seen(self._main.name).schema)
        layout = self._layout
        if traced and form.many_rows and self._config.transform is None:
            layout = replace(layout, entry=unused_name(ENTRY, [*form.schema.names, *self._added()]))
        policy = policy_for(form, layout, dead_letters=self._config.dead_letters is not None)
        decoder = RowDecoder(form, layout, policy)
        groups = in_groups(self._groups(part.descriptors), part)
        return TaskRows(self._spark, tasks.DecodeTask(self._handle, decoder), groups, decoder.schema)

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

    def _format_for(self, part: Group, columns: Callable[[], StructType | None]) -> Format:
        """The format with its columns settled: those of the table, and those that this range brings."""
        if not self._format.evolving:
            return self._format
        found = tasks.discover(self._spark, self._handle, self._groups(part.descriptors), self._format, part)
        merged = merge_schemas(None, found, max_columns=self._format.max_columns)
        return settle(self._format, columns(), merged, self._added())

    def _added(self) -> list[str]:
        """The names of the provenance columns."""
        return [field.name for field in self._layout.arrow_fields()]

    # What tables refuse

    def _refused(self, parts: Mapping[str, DataFrame], seen: See) -> dict[int, dict[str, str]]:
        """The entries with rows that their table would refuse, as far as rows tell which entry they are from."""
        found: list[tuple[int, int, str]] = []
        for name, target in self._by_name():
            if name not in parts:
                continue
            keys = self._keys(parts[name])
            refused = target.refused(parts[name], keys, seen(name)) if keys is not None else None
            if refused is not None:
                columns = refused.toArrow().to_pydict()
                found += zip(columns["sequence"], columns["index"], columns["reason"], strict=True)
        if found:
            log.warning("%d rows break the rules of their tables; the first: %s", len(found), found[0])
        return entries.of(found)

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
        if self._numbers_rows and sequence is not None and index is not None:
            names = [name for name, _ in self._by_name() if name in parts]
            parts = parts | {name: FrameRows(numbered(parts[name].frame(), sequence, index)) for name in names}
        if not self._format.evolving:
            return parts
        complete = {n: target.complete(parts[n], seen(n)) for n, target in self._by_name() if n in parts}
        return parts | complete

    # Which rows go where

    def _transformed(self, frame: DataFrame) -> DataFrame:
        if self._config.transform is None:
            return frame
        made: DataFrame = self._config.transform(frame)
        missing = [field.name for field in self._layout.arrow_fields() if field.name not in made.columns]
        if missing:
            raise InvalidConfig(
                f"transform dropped {missing}: it must keep the provenance columns (leave one out with columns=…)",
                key="transform",
                value=_name_of(self._config.transform),
            )
        self._numbers_rows = may_multiply(frame, made)
        return made

    def _routed(self, frame: DataFrame) -> dict[str, DataFrame]:
        """The rows of every table, also of those that get none."""
        config = self._config
        good, route = self._tagged(frame)
        parts: dict[str, DataFrame] = {}
        if config.dead_letters is not None:
            parts[config.dead_letters] = dead_rows(frame).coalesce(1)  # few: one file is enough
        if route is None:
            return {config.table: good, **parts}
        for value, table in config.routes.items():
            parts[table] = good.where(good[route] == value).drop(route)
        elsewhere = good[route].isNull() | ~good[route].isin(list(config.routes))
        parts[config.table] = good.where(elsewhere).drop(route)
        return parts

    def _filled(self, frame: DataFrame) -> dict[str, DataFrame]:
        """The rows of the tables that get some, and of the main one.

        Asking which ones do reads everything, which fills the cache: an unreadable batch fails before any commit.
        """
        config, parts = self._config, self._routed(frame)
        counts: dict[str, int] = {}
        if config.dead_letters is not None:
            counts[config.dead_letters] = frame.agg(functions.count(frame.columns[-1])).collect()[0][0]
        good, route = self._tagged(frame)
        if route is not None:
            found = [functions.count(functions.when(good[route] == value, 1)) for value in config.routes]
            counts |= dict(zip(config.routes.values(), good.agg(*found).collect()[0], strict=True))
        return {name: rows for name, rows in parts.items() if counts.get(name) != 0}

    def _tagged(self, frame: DataFrame) -> tuple[DataFrame, str | None]:
        """The good rows, transformed; with several tables for them, the column that holds each one's route."""
        good = self._transformed(good_rows(frame) if self._config.dead_letters is not None else frame)
        if self._config.route_by is None:
            return good, None
        name = unused_name(ROUTE, good.columns)
        return good.withColumn(name, self._route(good).cast("string")), name

    def _route(self, frame: DataFrame) -> Column:
        route = self._config.route_by
        if callable(route):
            column: Column = route(frame)
            return column
        if route in frame.columns:
            return frame[route]
        if self._format.evolving:
            return functions.lit(None)  # no record of this range has it: as if each had a null there
        raise InvalidConfig(
            f"route_by={route!r} is not a column; there are {', '.join(frame.columns)}",
            key="route_by",
            value=route,
        )


def _without(part: Group, found: Sequence[Failure]) -> Group:
    """The part without what failed: batches that cannot be read are not in it at all."""
    batches = {failure.sequence for failure in found if failure.index is None}
    rest = part.share([d for d in part.descriptors if d.sequence not in batches])
    return rest.without({}, entries.of((f.sequence, f.index, f.error) for f in found if f.index is not None))


def _as_rows(parts: Mapping[str, DataFrame]) -> dict[str, Rows]:
    return {name: FrameRows(frame) for name, frame in parts.items()}


def _digest(config: LoaderConfig, fmt: Format, places: Mapping[str, str]) -> str:
    """A name for everything that decides where a record goes and what becomes of it.

    Tables by where they are, not by how they are spelled; not the main one, which the ledger binds anyway.
    """
    return _named(
        {
            **_facts(config, fmt),
            "routes": {value: places[table] for value, table in config.routes.items()},
            "dead_letters": places[config.dead_letters] if config.dead_letters is not None else None,
        }
    )


def _older_digest(config: LoaderConfig, fmt: Format) -> str:
    """What the release before called the same configuration."""
    return _named({**_facts(config, fmt), "routes": dict(config.routes), "tables": config.tables()})


def _named(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _facts(config: LoaderConfig, fmt: Format) -> dict[str, Any]:
    return {
        "format": fmt.digest(),
        "columns": dict(config.columns),
        "transform": _name_of(config.transform),
        "transform_version": config.transform_version,
        "route_by": config.route_by if isinstance(config.route_by, str) else _name_of(config.route_by),
    }


def _name_of(function: Any) -> str | None:
    """A function by its name and its text: editing it is noticed, what it calls is not (`transform_version`)."""
    if function is None:
        return None
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):  # made in a shell, or not in Python: only its name is left
        text = ""
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
    return f"{name}:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
