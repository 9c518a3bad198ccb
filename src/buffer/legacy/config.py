"""Settings of the older format's two ends. All Collectors of a queue need the same `heartbeat_timeout_ms`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from buffer.config import FLUSH_INTERVAL_MAX_MS, GIB, MIB, QueueConfig

DEFAULT_MANIFEST_PATH = "ingest/manifest.json"
DEFAULT_FOLDER = "ingest"
YEAR_MS = 365 * 24 * 3600 * 1000


@dataclass(frozen=True, kw_only=True)
class LegacyConfig(QueueConfig):
    """Where a queue of the older format lies."""

    manifest_path: str = DEFAULT_MANIFEST_PATH

    def _own_folder(self) -> str:
        # Nobody deletes by a listing of the folder here, so a manifest at the top needs none of its own.
        return super()._own_folder() or DEFAULT_FOLDER


@dataclass(frozen=True, kw_only=True)
class IngestorConfig(LegacyConfig):
    TOML_TABLE: ClassVar[str] = "ingestor"

    flush_interval_ms: int = 100
    """A batch is flushed this long after its first pair came."""
    flush_size_bytes: int = 64 * MIB
    """… or as soon as it holds this much, counted as it is written (base64)."""
    max_unflushed_bytes: int = 256 * MIB
    """Bytes accepted but not yet durable; then `ingest` flushes and blocks. One larger call goes through alone."""
    append_timeout_s: float = 60.0
    """How long one append to the producer manifest may keep trying."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_int("flush_interval_ms", 1, FLUSH_INTERVAL_MAX_MS)
        self._check_int("flush_size_bytes", 1)
        self._check_int("max_unflushed_bytes", 1)
        self._check_number("append_timeout_s", 0.001)


@dataclass(frozen=True, kw_only=True)
class CollectorConfig(LegacyConfig):
    TOML_TABLE: ClassVar[str] = "collector"

    heartbeat_timeout_ms: int = 30_000
    """A claim that was not refreshed for longer is anybody's. Clocks may differ by a third of it."""
    done_cleanup_threshold: int = 100
    """So many done batches start a clean-up of both manifests and of their objects."""
    read_tries: int = 3
    """How many claims of a batch may end with it unreadable; then it is parked."""
    max_batch_bytes: int = GIB
    """A larger object is held for unreadable: memory is bounded."""
    fetch_attempts: int = 5
    """How often a read that failed for the store's reasons is repeated within one try."""
    cas_timeout_s: float = 10.0
    """How long one write to a manifest may keep trying; heartbeats wait meanwhile."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_int("heartbeat_timeout_ms", 3, YEAR_MS)
        self._check_int("done_cleanup_threshold", 1)
        self._check_int("read_tries", 1, 1000)
        self._check_int("max_batch_bytes", 1)
        self._check_int("fetch_attempts", 1, 100)
        self._check_number("cas_timeout_s", 0.001)
