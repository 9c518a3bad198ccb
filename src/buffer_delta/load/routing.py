"""Which rows go to which table: the transform, the routes and the dead letters of a configuration, on DataFrames.

`parting` says the same for rows that tell it by themselves, without a query (`decode/parting.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions

from buffer.errors import InvalidConfig
from buffer_delta.config import LoaderConfig
from buffer_delta.decode.dead_letters import unused_name
from buffer_delta.decode.parting import Parting
from buffer_delta.delta.columns import quoted
from buffer_delta.load.digests import name_of
from buffer_delta.spark.frames import dead_rows, good_rows, may_multiply

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ROUTE = "_route"
"""The column that holds a row's route while the rows of all tables travel together, unless the data has one like it."""


@dataclass
class Routing:
    """Pure functions of the configuration, but for `numbers_rows`."""

    config: LoaderConfig
    evolving: bool
    """The columns follow the data: one that is missing is as if it were null in every row."""
    added: Callable[[], Sequence[str]]
    """The names of the provenance columns."""
    numbers_rows: bool = False
    """The transform may make several rows of one. Known once it was called."""

    def transformed(self, frame: DataFrame) -> DataFrame:
        if self.config.transform is None:
            return frame
        made: DataFrame = self.config.transform(frame)
        missing = [name for name in self.added() if name not in made.columns]
        if missing:
            raise InvalidConfig(
                f"transform dropped {missing}: it must keep the provenance columns (leave one out with columns=…)",
                key="transform",
                value=name_of(self.config.transform),
            )
        self.numbers_rows = may_multiply(frame, made)
        return made

    def routed(self, frame: DataFrame) -> dict[str, DataFrame]:
        """The rows of every table, also of those that get none."""
        config = self.config
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

    def filled(self, frame: DataFrame) -> dict[str, DataFrame]:
        """The rows of the tables that get some, and of the main one.

        Asking which ones do reads everything, which fills the cache: an unreadable batch fails before any commit.
        """
        config, parts = self.config, self.routed(frame)
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
        good = self.transformed(good_rows(frame) if self.config.dead_letters is not None else frame)
        if self.config.route_by is None:
            return good, None
        name = unused_name(ROUTE, good.columns)
        return good.withColumn(name, self._route(good).cast("string")), name

    def _route(self, frame: DataFrame) -> Column:
        route = self.config.route_by
        if callable(route):
            column: Column = route(frame)
            return column
        if route is not None and route in frame.columns:
            return frame[quoted(route)]
        if self.evolving:
            return functions.lit(None)  # no record of this range has it: as if each had a null there
        raise InvalidConfig(
            f"route_by={route!r} is not a column; there are {', '.join(frame.columns)}",
            key="route_by",
            value=route,
        )

    def parting(self, columns: pa.Schema) -> Parting | None:
        """Where rows with these columns go, if they tell it by themselves."""
        config, route = self.config, self.config.route_by
        assert route is None or isinstance(route, str), "a function needs a query"
        if route is not None and route not in columns.names:
            if not self.evolving:
                return None  # it is refused there
            route = None  # no record of this range has it: as if each had a null there
        elif route is not None and not (route.isidentifier() and Parting.knows(columns.field(route).type)):
            return None
        return Parting(config.table, config.dead_letters, route, config.routes)
