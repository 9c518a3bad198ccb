"""Settings as data: frozen, checked when made, units in their names.

Each class takes keyword arguments, a dict (`from_dict`) or a TOML file (`from_toml`). A wrong key or value is
an `InvalidConfig` that names it and says what is allowed. `Config` is also the base of the loader's settings.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from buffer.errors import InvalidConfig
from buffer.store.base import Store

MIB = 1 << 20
GIB = 1 << 30

DEFAULT_MANIFEST_PATH = "ingest/manifest"

YEAR_S = 365 * 24 * 3600
"""No time to wait is longer: far beyond it the machine's timers overflow, and the thread that waits would die."""

FLUSH_INTERVAL_MAX_MS = 24 * 3600 * 1000

GC_GRACE_MIN_S = 600
"""Below this a slow producer's upload could be collected before its append lands."""


def reject(key: str, value: object, allowed: str) -> InvalidConfig:
    """The error for a setting with a value that is not allowed."""
    return InvalidConfig(f"{key}={value!r} is not allowed: {key} must be {allowed}", key=key, value=value)


def read_toml(path: str | Path) -> dict[str, Any]:
    """A whole TOML file. Raises InvalidConfig if it cannot be read or is not TOML."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfig(
            f"cannot read the configuration file {str(path)!r}: {error.strerror}", key="path", value=str(path)
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
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
        for key in values:
            if key not in cls.setting_names():
                near = difflib.get_close_matches(str(key), cls.setting_names(), n=1)
                hint = f"; did you mean {near[0]!r}?" if near else "."
                raise InvalidConfig(
                    f"{cls.__name__} has no setting {key!r}{hint} Allowed: {', '.join(cls.setting_names())}",
                    key=str(key),
                    value=values[key],
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

    def _check_path(self, key: str) -> None:
        value = getattr(self, key)
        if (
            not isinstance(value, str)
            or not value.strip("/")
            or value.startswith("/")
            or value.endswith("/")
            or "//" in value
            or {".", ".."} & set(value.split("/"))
        ):
            raise reject(key, value, "a path inside the store, like 'ingest', with no '/' at either end and no '..'")


@dataclass(frozen=True, kw_only=True)
class QueueConfig(Config):
    """Where a queue lies."""

    store: str | Store = field()
    """URL (`s3://bucket/path`, `file:///var/buffer`, `./folder`, `memory://name`) or an open store."""

    store_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Passed on to obstore: endpoint, region, keys, client_options. Never printed."""

    manifest_path: str = DEFAULT_MANIFEST_PATH

    data_path_prefix: str = ""
    """Folder of the batches; the manifest's own unless given (`ingest` for `ingest/manifest`).

    It belongs to one queue: a collector deletes every old batch in it that its own manifest does not name. So two
    manifests need two folders, and one without a folder needs this to be given.
    """

    def __post_init__(self) -> None:
        if not isinstance(self.store, str | Store) or self.store == "":
            raise reject("store", self.store, "a URL, a path or an open store")
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
        return self.manifest_path.rpartition("/")[0]

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
    append_timeout_s: float = 60.0
    """How long one append to the manifest may keep trying."""
    gc_grace_s: float = GC_GRACE_MIN_S
    """The collector's grace period: a batch that waited half of it is uploaded under a new name."""

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


@dataclass(frozen=True, kw_only=True)
class GcConfig(QueueConfig):
    TOML_TABLE: ClassVar[str] = "gc"

    gc_interval_s: float = 300.0
    gc_grace_s: float = GC_GRACE_MIN_S
    """An object younger than this is never deleted. Clocks may differ by up to half of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_number("gc_interval_s", 0.001)
        self._check_number("gc_grace_s", GC_GRACE_MIN_S)


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
    gc_interval_s: float = 300.0
    gc_grace_s: float = GC_GRACE_MIN_S

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_int("max_batch_bytes", 1)
        self._check_int("fetch_attempts", 1, 100)
        self._check_number("cas_timeout_s", 0.001)
        self._check_bool("gc_enabled")
        self._check_number("gc_interval_s", 0.001)
        self._check_number("gc_grace_s", GC_GRACE_MIN_S)

    def gc(self) -> GcConfig:
        """The settings of the collector that runs beside this consumer."""
        shared = {f.name: getattr(self, f.name) for f in dataclasses.fields(GcConfig)}
        return GcConfig(**shared)
