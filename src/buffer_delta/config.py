"""What a loader should do: which queue, into which tables, how the bytes become rows, when to commit."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from buffer.config import GIB, MIB, ConsumerConfig, reject
from buffer.errors import InvalidConfig
from buffer.urls import holds_keys
from buffer_delta.formats.registry import check_name

DLQ_STRATEGIES = ("skip", "block", "block_and_dlq")
MAX_ENTRY_BYTES = 64 * MIB
"""In Spark's JVM a value is in memory about five times while it is read or written."""

ADDRESS = re.compile(r"(?:(?:[\w.-]+|\[[0-9A-Fa-f:.%]+\])?:)?\d{1,5}", re.ASCII)
"""`HOST:PORT`, as far as that can be told without asking the machine."""
WRITERS = ("auto", "arrow", "spark")
PROVENANCE_COLUMNS = ("_sequence", "_index", "_ingested_at", "_entry_metadata")
FORMER_METADATA = "_metadata"
"""What `_entry_metadata` was called, and still is in tables that have it: Spark has a hidden column of that name."""


@dataclass(frozen=True, kw_only=True)
class LoaderConfig(ConsumerConfig):
    """A consumer's settings, and what becomes of the batches that it reads."""

    TOML_TABLE: ClassVar[str] = "loader"

    # Where to
    table: str = field()
    """Path or catalog name of the Delta table."""
    app_id: str | None = None
    """Delta's `txnAppId`; `buffer/{queue_id}` unless given. Bound to the queue at the first start."""
    partition_by: Sequence[str] = ()
    """Columns to partition the table by, when the loader creates it."""
    cluster_by: Sequence[str] = ()
    """… or to cluster it by."""
    table_properties: Mapping[str, str] = field(default_factory=dict)
    """Delta's properties of the table, when the loader creates it."""
    merge_schema: bool = False
    """Let new columns widen the table. Always on when the JSON schema is inferred."""
    writer: str = "auto"
    """Who writes the tables' files: `arrow`, the executors themselves, which is faster; `spark`, Spark's own writer;
    `auto`, Arrow for every table that allows it, and the log says why where one does not."""
    table_options: Mapping[str, Any] | None = field(default=None, repr=False)
    """For `arrow`: options of the tables' store, as in `store_options`. Unless given they are taken from Spark's own
    settings (`fs.s3a.…` and their like)."""

    # How
    format: Any = "raw"
    """A name in `buffer_delta.formats.FORMATS`; a table `{type = "json", schema = "id BIGINT, …"}`; or a `Format`."""
    columns: Mapping[str, str | None] = field(default_factory=dict)
    """New names for the provenance columns `_sequence _index _ingested_at _entry_metadata`; None leaves one out. A
    table that has the last one as `_metadata`, from an earlier release, keeps it."""
    transform: Callable[[Any], Any] | None = None
    """`DataFrame -> DataFrame`, a pure function of the rows; it must keep the provenance columns. Where it may make
    several rows of one (explode, a join, mapInPandas), `_index` counts the rows of a batch instead of its entries."""
    transform_version: str = ""
    """Change it with what `transform` or a routing function does: it is part of the plan's digest."""

    # Several tables
    route_by: str | Callable[[Any], Any] | None = None
    """A column, or a function `DataFrame -> Column`, whose value picks the table in `routes`."""
    routes: Mapping[str, str] = field(default_factory=dict)
    """Value -> table. Rows with any other value go to `table`."""
    dead_letters: str | None = None
    """Table for records that do not parse or that their table's constraints forbid, and, under
    `dlq_strategy = "skip"`, for unreadable batches and entries that fail every time."""
    dlq_strategy: str | None = None
    """For unreadable batches, and entries that fail every time: `skip` sends them to `dead_letters` and is the default
    with it; `block` stops until `buffer-delta unblock`, and is the default without; `block_and_dlq` stops too, with bad
    records going to `dead_letters` all the same."""
    max_entry_bytes: int = MAX_ENTRY_BYTES
    """A larger record is bad, with any format and writer: whoever reads the table could hardly read it again. Of its
    bytes the dead letter has the first 16 MiB, and its batch is kept whole beside the queue."""
    max_delivery_attempts: int = 5
    """Attempts at a range before what fails in it every time is searched for and dealt with."""

    # When
    max_batches_per_commit: int = 1000
    """How many batches go into one commit at most."""
    max_bytes_per_commit: int = GIB
    """… and how many bytes of them, as stored. One larger batch still goes alone."""
    target_file_bytes: int = 128 * MIB
    """Batches are grouped into tasks of about this many stored bytes, so that a commit writes few, full files."""
    trigger_interval_s: float = 1.0
    """How often `run()` looks at a queue that has nothing to commit."""
    commit_interval_s: float | None = None
    """At most one commit begins in this time, unless a range is full; `trigger_interval_s` unless given. 0: no limit.
    With `run(available_now=True)` nothing waits."""
    min_commit_bytes: int = 0
    """Wait for this many stored bytes before a commit, as long as `max_commit_wait_s` allows."""
    max_commit_wait_s: float = 60.0
    """How long the oldest batch may wait for `min_commit_bytes`."""
    compact_every_commits: int = 0
    """Compact a table's small files (OPTIMIZE, up to `target_file_bytes`) about every so many versions, between two
    commits. 0: leave that to others."""
    retry_attempts: int = 20
    """How often in a row a range may fail for reasons that are not the data's before the loader gives up."""
    retry_max_s: float = 30.0
    """The longest pause between two such attempts."""

    # Who may look
    serve: str | None = None
    """`HOST:PORT` for `/metrics`, `/healthz`, `/readyz` and a status page while it runs; `127.0.0.1` unless a host is
    given. Needs the extra `[serve]`; nobody is asked who he is, so open it to others with care."""
    serve_show_records: bool = False
    """Show there what errors quote of a record; else it is masked."""
    serve_stuck_s: float = 600.0
    """Entries wait and nothing was committed for this long: `/healthz` and `/livez` say `stuck`."""
    serve_max_lag_s: float | None = None
    """The oldest entry has waited for this long: `/healthz` says `behind`. Without it a backlog is no fault."""
    serve_linger_s: float = 15.0
    """How long `run()` goes on serving after the loader has failed, so that whoever asks can see why."""

    # What an operator decides
    on_gap: str = "fail"
    """`skip` accepts that batches between the table and the queue are lost. Never by default."""
    adopt: bool = False
    """Take over a queue whose ledger is lost or bound elsewhere; needs `app_id`. Pass it once. With `dead_letters` it
    is refused while a range is in some tables only: put the ledger back, or pass `on_gap = "skip"` too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in (
            "max_batches_per_commit",
            "max_bytes_per_commit",
            "target_file_bytes",
            "max_entry_bytes",
            "max_delivery_attempts",
            "retry_attempts",
        ):
            self._check_int(key, 1)
        for key in ("min_commit_bytes", "compact_every_commits"):
            self._check_int(key, 0)
        for key in ("commit_interval_s", "max_commit_wait_s"):
            if getattr(self, key) is not None:
                self._check_number(key, 0)
        for key in ("trigger_interval_s", "retry_max_s", "serve_stuck_s"):
            self._check_number(key, 0.001)
        self._check_number("serve_linger_s", 0)
        if self.serve_max_lag_s is not None:
            self._check_number("serve_max_lag_s", 0.001)
        if self.serve is not None and not (isinstance(self.serve, str) and ADDRESS.fullmatch(self.serve)):
            raise reject("serve", self.serve, "HOST:PORT, like 127.0.0.1:9464; port 0 takes a free one")
        for key in ("merge_schema", "adopt", "serve_show_records"):
            self._check_bool(key)
        self._check_choice("writer", WRITERS)
        for key in ("routes", "columns", "table_properties"):
            if not isinstance(getattr(self, key), Mapping):
                raise reject(key, getattr(self, key), "a table of names and values")
        if self.table_options is not None and not isinstance(self.table_options, Mapping):  # its value may hold keys
            raise reject("table_options", type(self.table_options).__name__, "a table of options")
        self._check_columns()
        check_name(self.format)  # its options are checked when it is made: that needs its parser
        self._check_choice("on_gap", ("fail", "skip"))
        self._check_tables()
        self._check_operator_choices()

    def _check_columns(self) -> None:
        for name, new in self.columns.items():
            if name not in (*PROVENANCE_COLUMNS, FORMER_METADATA):
                raise InvalidConfig(
                    f"columns has no {name!r} to rename; the provenance columns are {', '.join(PROVENANCE_COLUMNS)}",
                    key="columns",
                    value=dict(self.columns),
                )
            if new is not None and not (isinstance(new, str) and new):
                raise reject("columns", dict(self.columns), "new names; None leaves a column out")
        if {FORMER_METADATA, "_entry_metadata"} <= self.columns.keys():
            raise reject(
                "columns", dict(self.columns), f"without {FORMER_METADATA}, the former name of _entry_metadata"
            )

    def _check_tables(self) -> None:
        for key in ("table", "dead_letters", "app_id"):
            value = getattr(self, key)
            if (value is None and key != "table") or (isinstance(value, str) and value.strip()):
                continue
            raise reject(key, value, "a name or a path" if key != "app_id" else "a name")
        for key, name in (("table", self.table), ("dead_letters", self.dead_letters), *self.routes.items()):
            if isinstance(name, str) and holds_keys(name):
                raise InvalidConfig(
                    f"the table of {key} is not allowed: it has a user or a key in it ('…:…@'); give Spark the keys as "
                    "settings (spark.hadoop.fs.…), and write a path that has such a name as ./…",
                    key=key if key in ("table", "dead_letters") else "routes",
                )
        if bool(self.routes) != (self.route_by is not None):
            raise InvalidConfig(
                "route_by and routes belong together: a column or function, and the table for each of its values",
                key="routes",
                value=dict(self.routes),
            )
        if self.dead_letters == self.table:
            raise reject("dead_letters", self.dead_letters, "another table than the records' own")
        tables = self.tables()
        if len(set(tables)) != len(tables):
            raise reject("routes", dict(self.routes), "different from each other, from table and from dead_letters")
        for key in ("partition_by", "cluster_by"):
            if isinstance(getattr(self, key), str):
                raise reject(key, getattr(self, key), "a list of column names")
        if self.partition_by and self.cluster_by:
            raise InvalidConfig(
                "partition_by and cluster_by exclude each other: Delta clusters a table or partitions it",
                key="cluster_by",
                value=list(self.cluster_by),
            )

    def _check_operator_choices(self) -> None:
        if self.dlq_strategy is not None:
            self._check_choice("dlq_strategy", DLQ_STRATEGIES)
            if self.dlq_strategy != "block" and self.dead_letters is None:
                raise InvalidConfig(
                    f"dlq_strategy={self.dlq_strategy!r} needs dead_letters, the table they go to",
                    key="dlq_strategy",
                    value=self.dlq_strategy,
                )
        if self.adopt and self.app_id is None:
            raise InvalidConfig(
                "adopt=True needs app_id: the one the table was loaded with (DESCRIBE HISTORY shows it in "
                "userMetadata), or a new one if it never was",
                key="app_id",
                value=None,
            )

    def tables(self) -> list[str]:
        """Every table this loader writes: the main one, the routes, the dead letters."""
        return [self.table, *self.routes.values(), *([self.dead_letters] if self.dead_letters else [])]

    def interval_s(self) -> float:
        """The least time between the beginnings of two commits."""
        return self.trigger_interval_s if self.commit_interval_s is None else self.commit_interval_s

    def longest_wait_s(self) -> float:
        """How long a batch may wait for its commit although nothing is wrong."""
        return max(self.interval_s(), self.max_commit_wait_s if self.min_commit_bytes else 0.0)

    def strategy(self) -> str:
        return self.dlq_strategy or ("skip" if self.dead_letters else "block")

    def consumer(self) -> ConsumerConfig:
        """The settings of the consumer inside the loader."""
        return ConsumerConfig(**{f.name: getattr(self, f.name) for f in dataclasses.fields(ConsumerConfig)})
