"""The loader's work on Spark: a planned range of batches into one DataFrame for each table.

Where a record goes is a pure function of its bytes and of the configuration behind `digest`: a range that is
replayed by another process must go where it went before.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.sql import functions

from buffer.clock import Clock
from buffer.errors import InvalidConfig, ObjectNotFound
from buffer.fetch import FetchHandle
from buffer.model import BatchDescriptor
from buffer.store.base import Store
from buffer_delta import rows
from buffer_delta.config import LoaderConfig
from buffer_delta.contracts import Failure
from buffer_delta.dead_letters import dead_rows, good_rows, keep_whole, unused_name
from buffer_delta.formats import Format, merge_schemas, resolve_format, settle
from buffer_delta.grouping import group
from buffer_delta.table import DeltaTarget

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger(__name__)

ROUTE = "_route"
"""The column that holds a row's route while the rows of all tables travel together, unless the data has one like it."""

SIZES_KEPT_MAX = 100_000  # then they are looked up again: a listing is cheap, a leak is not


class SparkWork:
    """`contracts.Work` on Spark."""

    def __init__(
        self, spark: SparkSession, store: Store, config: LoaderConfig, main: DeltaTarget, clock: Clock
    ) -> None:
        self._spark = spark
        self._store = store
        self._config = config
        self._main = main
        self._format = resolve_format(config.format)
        self._layout = rows.RowLayout.renamed(config.columns)
        self._handle = FetchHandle(store, config.max_batch_bytes, config.fetch_attempts, clock)
        self._cores = max(1, spark.sparkContext.defaultParallelism)
        self._sizes: dict[str, int] = {}
        self._digest = _digest(config, self._format)

    @property
    def digest(self) -> str:
        return self._digest

    def look_up_sizes(self, descriptors: Sequence[BatchDescriptor]) -> dict[str, int]:
        """Stored bytes of each batch, by location, from one listing if any of them is new."""
        if any(d.location not in self._sizes for d in descriptors):
            if len(self._sizes) > SIZES_KEPT_MAX:
                self._sizes.clear()
            for info in self._store.list(self._config.data_path_prefix):
                self._sizes[info.location] = info.size
        return {d.location: self._sizes.get(d.location, 0) for d in descriptors}

    @contextmanager
    def prepare(
        self, descriptors: Sequence[BatchDescriptor], quarantined: Mapping[int, str]
    ) -> Iterator[Mapping[str, DataFrame]]:
        """One DataFrame for each table. With several tables, everything is decoded here, once."""
        groups = self._groups(descriptors)
        several = len(self._config.tables()) > 1
        split = self._config.dead_letters is not None
        if split:
            quarantined = keep_whole(self._store, descriptors, quarantined)
        frame = rows.decode(
            self._spark,
            self._handle,
            groups,
            self._format_for(groups, quarantined),
            self._layout,
            split=split,
            quarantined=quarantined,
        )
        if not several:
            yield {self._config.table: self._transformed(frame)}
            return
        frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            frame.foreachPartition(_nothing)  # fills the cache: an unreadable batch fails before any commit
            yield self._split(frame)
        finally:
            frame.unpersist()

    def probe(self, descriptors: Sequence[BatchDescriptor]) -> list[Failure]:
        groups = self._groups(descriptors)
        failures = rows.probe(self._spark, self._handle, groups)
        if self._config.dead_letters is None and self._format.rescued_column is None:
            # A bad record has nowhere to go either: its batch is to blame as a whole.
            unread = {failure.sequence for failure in failures}
            rest = [kept for group in groups if (kept := [d for d in group if d.sequence not in unread])]
            failures += rows.probe(self._spark, self._handle, rest, self._format_for(rest, {})) if rest else []
        return [self._unless_only_unseen(failure) for failure in failures]

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
        return dataclasses.replace(failure, kind="infra", error=error)

    def _groups(self, descriptors: Sequence[BatchDescriptor]) -> list[list[BatchDescriptor]]:
        sizes = self.look_up_sizes(descriptors)
        return group(descriptors, sizes, self._config.target_file_bytes, self._cores)

    def _format_for(self, groups: Sequence[Sequence[BatchDescriptor]], quarantined: Mapping[int, str]) -> Format:
        """The format with its columns settled: those of the table, and those that this range brings."""
        if not self._format.evolving:
            return self._format
        found = rows.discover(self._spark, self._handle, groups, self._format, quarantined)
        taken = [field.name for field in self._layout.arrow_fields()]
        merged = merge_schemas(None, found, max_columns=self._format.max_columns)
        return settle(self._format, self._main.schema(), merged, taken)

    def _transformed(self, frame: DataFrame) -> DataFrame:
        if self._config.transform is None:
            return frame
        made = self._config.transform(frame)
        missing = [field.name for field in self._layout.arrow_fields() if field.name not in made.columns]
        if missing:
            raise InvalidConfig(
                f"transform dropped {missing}: it must keep the provenance columns (leave one out with columns=…)",
                key="transform",
                value=_name_of(self._config.transform),
            )
        return made

    def _split(self, frame: DataFrame) -> dict[str, DataFrame]:
        config = self._config
        parts: dict[str, DataFrame] = {}
        if config.dead_letters is not None:
            parts[config.dead_letters] = dead_rows(frame).coalesce(1)  # few, or none: one file is enough
            frame = good_rows(frame)
        frame = self._transformed(frame)
        if config.route_by is None:
            return {config.table: frame, **parts}
        name = unused_name(ROUTE, frame.columns)
        routed = frame.withColumn(name, self._route(frame).cast("string"))
        for value, table in config.routes.items():
            parts[table] = routed.where(routed[name] == value).drop(name)
        elsewhere = routed[name].isNull() | ~routed[name].isin(list(config.routes))
        parts[config.table] = routed.where(elsewhere).drop(name)
        return parts

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


def _nothing(_rows: Any) -> None:
    """For `foreachPartition`: reading the partition is all that is wanted."""


def _digest(config: LoaderConfig, fmt: Format) -> str:
    """A name for everything that decides where a record goes and what becomes of it."""
    facts = {
        "format": fmt.digest(),
        "columns": dict(config.columns),
        "transform": _name_of(config.transform),
        "transform_version": config.transform_version,
        "route_by": config.route_by if isinstance(config.route_by, str) else _name_of(config.route_by),
        "routes": dict(config.routes),
        "tables": config.tables(),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


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
