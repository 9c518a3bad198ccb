"""The Collector of the older format: `Claims` with a thread that keeps the claims fresh.

    with Collector(CollectorConfig(store="s3://bucket/path")) as collector:
        while (batch := collector.next_batch()) is not None:
            process(batch.entries)
            collector.ack(batch)

- Several Collectors may work on one queue. Each batch is delivered to one of them at a time, in the order of the
  queue as far as each of them sees it; one that is not acked is delivered again once its claim is stale.
- A Collector that was stopped for longer than `heartbeat_timeout_ms` may have lost its claims: `ack` says so.
- Calls may come from any thread; one at a time is served. After `close()`, or when the Collector is dropped, the
  heartbeat ends and what was not acked goes stale.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Mapping
from typing import Any, Self

from buffer.clock import Clock, SystemClock
from buffer.errors import BufferQueueError, Closed
from buffer.legacy.claims import Claims, CollectedBatch
from buffer.legacy.config import CollectorConfig
from buffer.legacy.manifests import BEATS_PER_TIMEOUT
from buffer.legacy.parked import Unreadable
from buffer.stopping import StopFlag, join_once
from buffer.store.open import open_store

log = logging.getLogger(__name__)


class Collector:
    """Takes batches of key-value pairs out of a queue of the older format."""

    def __init__(self, config: CollectorConfig, *, clock: Clock | None = None) -> None:
        """Opens the store; nothing is read before the first call."""
        self.config = config
        store = open_store(config.store, **config.store_options)
        self._claims = Claims(store, config, clock or SystemClock())
        self._lock = threading.Lock()
        self._stop = StopFlag()  # a handler may call `close`, and a destructor sets it, in the middle of anything
        self._closing: set[int] = set()
        interval_s = config.heartbeat_timeout_ms / BEATS_PER_TIMEOUT / 1000
        # The thread does not know the Collector, so a dropped one is noticed although it runs.
        self._thread = threading.Thread(
            target=_beat_until, args=(self._stop, interval_s, self._claims), name="buffer-legacy-heartbeat", daemon=True
        )
        self._thread.start()
        weakref.finalize(self, self._stop.set)

    @classmethod
    def open(cls, **settings: Any) -> Self:
        """A Collector from the settings of `CollectorConfig`: `Collector.open(store="./queue")`."""
        return cls(CollectorConfig(**settings))

    def next_batch(self) -> CollectedBatch | None:
        """Claim and read the next batch; None if there is none for now. A claim that is stale comes first.

        A batch that cannot be read is passed over; after `read_tries` claims of it, by whomever, it is parked: see
        `parked`. Raises StorageError, ContentionError, CorruptData and StateLost; nothing is lost by that.
        """
        with self._lock:
            self._check_open()
            return self._claims.next_batch()

    def ack(self, batch: CollectedBatch) -> None:
        """Say that the batch is processed: it is never delivered again.

        ClaimLost: another Collector has it now, and nothing was changed. AckOutcomeUnknown: it is done, but perhaps
        by another one. After any other error call again; until then the claim is kept.
        """
        with self._lock:
            self._check_open()
            self._claims.ack(batch)

    def release(self, batch: CollectedBatch) -> None:
        """Give up on a batch that could not be processed: it is delivered again, once its claim is stale."""
        with self._lock:
            self._check_open()
            self._claims.release(batch)

    def parked(self) -> Mapping[str, Unreadable]:
        """The batches that could not be read and are set aside, and why. They stay in both manifests."""
        with self._lock:
            self._check_open()
            return self._claims.parked()

    def unpark(self, location: str) -> None:
        """Have a parked batch tried again, after its object was repaired. Call again after an error."""
        with self._lock:
            self._check_open()
            self._claims.unpark(location)

    def close(self) -> None:
        """End the heartbeat. What is not acked goes stale. Calling it again does nothing."""
        self._stop.set()
        join_once(self._thread, self._closing)

    def _check_open(self) -> None:
        if self._stop.is_set():
            raise Closed("the Collector is closed: make a new one")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Collector(manifest_path={self.config.manifest_path!r})"


def _beat_until(stop: StopFlag, interval_s: float, claims: Claims) -> None:
    while not stop.wait(interval_s):
        try:
            lost = claims.beat()
        except BufferQueueError as error:
            log.warning("the claims could not be refreshed, again in %.1f s: %s", interval_s, error)
        except Exception:
            log.exception("a heartbeat failed in a way that nobody foresaw; the next comes in %.1f s", interval_s)
        else:
            if lost:
                log.warning("claims were taken over by another Collector: %s", ", ".join(lost))
