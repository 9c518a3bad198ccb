"""Settings as data: frozen, checked when made, units in their names.

Each class takes keyword arguments, a dict (`from_dict`) or a TOML file (`from_toml`). A wrong key or value is
an `InvalidConfig` that names it and says what is allowed. `Config` is also the base of the loader's settings.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from buffer.errors import InvalidConfig
from buffer.names import folder_of
from buffer.urls import check_url, masked

if TYPE_CHECKING:
    from buffer.store.base import Store

MIB = 1 << 20
GIB = 1 << 30

DEFAULT_MANIFEST_PATH = "ingest/manifest"

YEAR_S = 365 * 24 * 3600
"""No time to wait is longer: far beyond it the machine's timers overflow, and the thread that waits would die."""

_STORE_MEMBERS = frozenset(
    {"url", "get", "get_if_changed", "put", "put_if_absent", "put_if_match", "head", "list", "delete_many", "copy"}
)

FLUSH_INTERVAL_MAX_MS = 24 * 3600 * 1000

GC_INTERVAL_S = 300.0

QUIET_GRACE_S = 24 * 3600
"""The collector's grace period while the manifest does not change: nothing but time tells then."""

GC_GRACE_MIN_S = 600
"""Below this a slow producer's upload could be collected before its append lands."""


def reject(key: str, value: object, allowed: str) -> InvalidConfig:
    """The error for a setting with a value that is not allowed."""
    shown = masked(repr(value))  # what stands in the wrong place may be a URL with a key in it
    known = value if shown == repr(value) else None
    return InvalidConfig(f"{key}={shown} is not allowed: {key} must be {allowed}", key=key, value=known)


def read_toml(path: str | Path) -> dict[str, Any]:
    """A whole TOML file. Raises InvalidConfig if it cannot be read or is not TOML."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfig(
            f"cannot read the configuration file {str(path)!r}: {error.strerror}", key="path", value=str(path)
        ) from error
    except RecursionError:
        raise InvalidConfig(f"{str(path)!r} is nested too deeply", key="path", value=str(path)) from None
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise InvalidConfig(f"{str(path)!r} is not valid TOML: {error}", key="path", value=str(path)) from error


@dataclass(frozen=True, kw_only=True)
class Config:
    """Base of all settings: unknown keys are named with the nearest allowed one."""

    TOML_TABLE: ClassVar[str] = ""
    """The table of a TOML file that holds these settings."""

    def __new__(cls, *_args: Any, **values: Any) -> Self:
        # Before the dataclass's own __init__, whose TypeError would not say which keys there are.
        cls._check_keys(values)
        return super().__new__(cls)

    @classmethod
    def setting_names(cls) -> list[str]:
        return [f.name for f in dataclasses.fields(cls)]

    @classmethod
    def _check_keys(cls, values: Mapping[str, Any]) -> None:
        names = cls.setting_names()
        for key in values:
            if key not in names:
                near = difflib.get_close_matches(str(key), names, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else "."
                raise InvalidConfig(  # without its value: a key of a store may stand here by mistake
                    f"{cls.__name__} has no setting {key!r}{hint} Allowed: {', '.join(names)}",
                    key=str(key),
                )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        cls._check_keys(values)  # first: a misspelt key says more than a missing one
        for f in dataclasses.fields(cls):
            optional = (f.default, f.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)
            if not optional and f.name not in values:
                raise InvalidConfig(f"{cls.__name__} needs the setting {f.name!r}: it has no default", key=f.name)
        return cls(**values)

    @classmethod
    def from_toml(cls, path: str | Path, table: str | None = None) -> Self:
        """Settings from the table of a TOML file named after the role (`[producer]`, `[consumer]`, `[gc]`)."""
        table = cls.TOML_TABLE if table is None else table
        document = read_toml(path)
        if table not in document or not isinstance(document[table], dict):
            raise InvalidConfig(
                f"{str(path)!r} has no table [{table}]; it has: {', '.join(document) or 'nothing'}",
                key="table",
                value=table,
            )
        return cls.from_dict(document[table])

    def replace(self, **changes: Any) -> Self:
        self._check_keys(changes)
        return dataclasses.replace(self, **changes)

    # Checks, for __post_init__ of the subclasses.

    def _check_int(self, key: str, low: int, high: int | None = None) -> None:
        value = getattr(self, key)
        if not isinstance(value, int) or isinstance(value, bool) or value < low or (high is not None and value > high):
            raise reject(
                key,
                value,
                f"a whole number of at least {low:,}" + (f" and at most {high:,}" if high is not None else ""),
            )

    def _check_number(self, key: str, low: float, high: float = YEAR_S) -> None:
        value = getattr(self, key)
        # Not `value < low`: a NaN is neither below nor above.
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise reject(key, value, f"a number of at least {low:g} and at most {high:,}")

    def _check_bool(self, key: str) -> None:
        if not isinstance(getattr(self, key), bool):
            raise reject(key, getattr(self, key), "true or false")

    def _check_choice(self, key: str, choices: tuple[str, ...]) -> None:
        if getattr(self, key) not in choices:
            raise reject(key, getattr(self, key), "one of " + ", ".join(repr(c) for c in choices))

    def _check_paths(self, key: str) -> None:
        """A list of paths, kept as a tuple."""
        value = getattr(self, key)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise reject(key, value, "a list of paths inside the store, like ['ingest']")
        for path in value:
            self._check_path(key, path)
        object.__setattr__(self, key, tuple(value))

    def _check_path(self, key: str, value: object = None) -> None:
        value = getattr(self, key) if value is None else value
        if (
            not isinstance(value, str)
            or not value.strip("/")
            or value.startswith("/")
            or value.endswith("/")
            or "//" in value
            or {".", ".."} & set(value.split("/"))
        ):
            raise reject(key, value, "a path inside the store, like 'ingest', with no '/' at either end and no '..'")


def _looks_like_a_store(value: object) -> bool:
    """Whether it has what `store.base.Store` asks for, which is not imported: settings lie below the stores."""
    return all(hasattr(value, name) for name in _STORE_MEMBERS)


@dataclass(frozen=True, kw_only=True)
class QueueConfig(Config):
    """Where a queue lies."""

    store: str | Store = field()
    """URL (`s3://bucket/path`, `file:///var/buffer`, `./folder`, `memory://name`) or an open store."""

    store_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Passed on to obstore: endpoint, region, keys, client_options. Never printed."""

    manifest_path: str = DEFAULT_MANIFEST_PATH
    """The object that is the queue."""

    data_path_prefix: str = ""
    """Folder of the batches; the manifest's own unless given (`ingest` for `ingest/manifest`).

    It belongs to one queue: a collector deletes every old batch in it that its own manifest does not name. So two
    manifests need two folders, and one without a folder needs this to be given.
    """

    def __post_init__(self) -> None:
        if not (self.store if isinstance(self.store, str) else _looks_like_a_store(self.store)):
            shown = self.store if isinstance(self.store, str | int | None) else type(self.store).__name__
            raise reject("store", shown, "a URL, a path or an open store")  # more than a number may hold a key
        if isinstance(self.store, str):
            check_url(self.store)  # now: the settings are printed
        if not isinstance(self.store_options, Mapping):
            raise reject("store_options", type(self.store_options).__name__, "a table of options")
        self._check_path("manifest_path")
        if self.data_path_prefix == "":
            object.__setattr__(self, "data_path_prefix", self._own_folder())
        if self.data_path_prefix == "":
            path = self.manifest_path
            raise reject(
                "manifest_path",
                path,
                f"in a folder of its own, like {path + '/manifest'!r}, where the queue's batches lie too; or give "
                "data_path_prefix, a folder for them that no other queue has",
            )
        self._check_path("data_path_prefix")

    def _own_folder(self) -> str:
        return folder_of(self.manifest_path)

    def replace(self, **changes: Any) -> Self:
        """A copy with these settings changed; a prefix that was not given follows the manifest."""
        if "manifest_path" in changes and self.data_path_prefix == self._own_folder():
            changes = {"data_path_prefix": "", **changes}
        return super().replace(**changes)


@dataclass(frozen=True, kw_only=True)
class ProducerConfig(QueueConfig):
    TOML_TABLE: ClassVar[str] = "producer"

    flush_interval_ms: int = 100
    """A batch is flushed this long after its first entry came, under any load."""
    flush_size_bytes: int = 64 * MIB
    """… or as soon as it holds this much."""
    max_buffered_inputs: int = 1000
    """Calls that may wait in batches which no upload has taken yet; then `produce` blocks."""
    max_buffered_bytes: int = 256 * MIB
    """Bytes accepted but not yet durable; then `produce` blocks. One larger call still goes through alone."""
    max_batch_bytes: int = GIB
    """No single call may hold more: readers refuse larger batches."""
    upload_concurrency: int = 4
    """Batches uploaded at once."""
    compression: str = "none"
    """Of the batches: `none` or `zstd`."""
    append_timeout_s: float = 60.0
    """How long one append to the manifest may keep trying."""
    gc_grace_s: float = GC_GRACE_MIN_S
    """The collector's grace period: a batch that waited half of it is uploaded under a new name."""
    max_depth: int = 0
    """Batches in the queue from which on `produce` refuses (`QueueFull`), as back-pressure; 0: no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_int("flush_interval_ms", 1, FLUSH_INTERVAL_MAX_MS)
        self._check_int("flush_size_bytes", 1)
        self._check_int("max_buffered_inputs", 1)
        self._check_int("max_buffered_bytes", 1)
        self._check_int("max_batch_bytes", 1, (1 << 32) - 1)
        self._check_int("upload_concurrency", 1, 64)
        self._check_choice("compression", ("none", "zstd"))
        self._check_number("append_timeout_s", 0.001)
        self._check_number("gc_grace_s", GC_GRACE_MIN_S)
        self._check_int("max_depth", 0)


@dataclass(frozen=True, kw_only=True)
class GcConfig(QueueConfig):
    TOML_TABLE: ClassVar[str] = "gc"

    gc_interval_s: float = GC_INTERVAL_S
    """How often the collector looks for batches that nobody needs any more."""
    gc_grace_s: float = GC_GRACE_MIN_S
    """An object younger than this is never deleted. Clocks may differ by up to half of it."""
    gc_foreign: bool = False
    """Delete batches of OpenData's Go producer, too, once they are acked and were written more than a day ago."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_number("gc_interval_s", 0.001)
        self._check_number("gc_grace_s", GC_GRACE_MIN_S)
        self._check_bool("gc_foreign")


@dataclass(frozen=True, kw_only=True)
class ConsumerConfig(QueueConfig):
    TOML_TABLE: ClassVar[str] = "consumer"

    max_batch_bytes: int = GIB
    """A batch that would expand past this is refused as corrupt."""
    fetch_attempts: int = 5
    """How often a fetch that failed for the store's reasons is tried."""
    cas_timeout_s: float = 60.0
    """How long one claim or dequeue may keep trying."""
    gc_enabled: bool = True
    """Delete batches that were acked, in the background."""
    gc_interval_s: float = GC_INTERVAL_S
    """How often the collector looks for such batches."""
    gc_grace_s: float = GC_GRACE_MIN_S
    """A batch younger than this is never deleted."""
    gc_foreign: bool = False
    """Delete batches of OpenData's Go producer, too, once they are acked and were written more than a day ago."""
    former_prefixes: Sequence[str] = ()
    """Folders besides `data_path_prefix` that batches of this queue may lie in. Others are not read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_paths("former_prefixes")
        self._check_int("max_batch_bytes", 1)
        self._check_int("fetch_attempts", 1, 100)
        self._check_number("cas_timeout_s", 0.001)
        self._check_bool("gc_enabled")
        self._check_bool("gc_foreign")
        self._check_number("gc_interval_s", 0.001)
        self._check_number("gc_grace_s", GC_GRACE_MIN_S)

    def prefixes(self) -> tuple[str, ...]:
        """Every folder that batches may lie in."""
        return (self.data_path_prefix, *self.former_prefixes)

    def gc(self) -> GcConfig:
        """The settings of the collector that runs beside this consumer."""
        shared = {f.name: getattr(self, f.name) for f in dataclasses.fields(GcConfig)}
        return GcConfig(**shared)


DLQ_STRATEGIES = ("skip", "block", "block_and_dlq")


@dataclass(frozen=True, kw_only=True)
class LeaseConfig(Config):
    """How a queue with leases treats its batches. Belongs to the queue, not to a worker: it is kept in the ledger."""

    TOML_TABLE: ClassVar[str] = "leases"

    visibility_timeout_ms: int = 30_000
    """How long a lease holds. Three times what the slowest honest work takes is a good start; `extend` helps."""
    max_delivery_attempts: int = 5
    """A batch that was leased this often and is still not acked goes the way of `dlq_strategy`."""
    dlq_strategy: str = "block"
    """`block` keeps it back until somebody decides, `skip` parks it in the dead-letter queue and goes on,
    `block_and_dlq` does both."""
    dlq: str | None = None
    """The manifest path of the dead-letter queue, in the same store. `skip` and `block_and_dlq` need one."""
    max_ack_holes: int = 1_000
    """Gaps between acked batches; no lease is granted whose ack could make more."""
    max_in_flight: int = 1_000
    """Batches under a lease at any time, over all workers."""
    max_depth: int = 0
    """Unfinished batches from which on producers are refused (`QueueFull`), whatever their own setting; 0: no limit."""
    ordering_required: bool = False
    """One batch at a time, in the queue's order: none is leased before the one ahead of it is finished."""

    def __post_init__(self) -> None:
        self._check_int("visibility_timeout_ms", 1, YEAR_S * 1000)
        self._check_int("max_delivery_attempts", 1, 1_000_000)
        self._check_choice("dlq_strategy", DLQ_STRATEGIES)
        if self.dlq is not None:
            self._check_path("dlq")
        elif self.dlq_strategy != "block":
            raise reject("dlq", None, f"the manifest path of a queue under dlq_strategy={self.dlq_strategy!r}")
        self._check_int("max_ack_holes", 1, 1_000_000)
        self._check_int("max_in_flight", 1, 1_000_000)
        self._check_int("max_depth", 0)
        self._check_bool("ordering_required")
        if self.ordering_required and self.dlq_strategy == "skip":
            raise reject(
                "dlq_strategy", "skip", "'block' or 'block_and_dlq' under ordering_required: skipping breaks the order"
            )
