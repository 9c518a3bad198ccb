"""The loader's instruments, under the names in the README. Without an OpenTelemetry SDK they do nothing.

The lag is asked for when somebody reads it, not told when something was committed: of a loader that is stuck it grows.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Protocol

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

_meter = metrics.get_meter("buffer_delta")

commits = _meter.create_counter("buffer_delta.commits", description="Ranges committed to every table")
rows = _meter.create_counter("buffer_delta.rows", description="Rows committed, dead letters not counted")
bytes_loaded = _meter.create_counter("buffer_delta.bytes", unit="By", description="Stored bytes of loaded batches")
commit_duration_seconds = _meter.create_histogram(
    "buffer_delta.commit_duration_seconds", unit="s", description="From the plan to the ack of one range"
)
retries = _meter.create_counter("buffer_delta.retries", description="Ranges tried again after a failure")
dead_letters = _meter.create_counter("buffer_delta.dead_letters", description="Records set aside")
fenced = _meter.create_counter("buffer_delta.fenced", description="Times this loader was fenced")


class Lagging(Protocol):
    """Something that loads a queue."""

    def lag(self) -> tuple[int, float] | None:
        """Batches that are not loaded, and the age of the oldest, as far as it knows; None while it does not run."""
        ...


_running: weakref.WeakSet[Lagging] = weakref.WeakSet()


def watch(loader: Lagging) -> None:
    """Ask this one for its lag from now on, until it is gone or says that it does not run any more."""
    _running.add(loader)


def _lags() -> list[tuple[int, float]]:
    return [lag for loader in list(_running) if (lag := loader.lag()) is not None]


def _lag_seconds(_options: CallbackOptions) -> Iterator[Observation]:
    lags = _lags()
    if lags:
        yield Observation(max(seconds for _, seconds in lags))


def _lag_batches(_options: CallbackOptions) -> Iterator[Observation]:
    lags = _lags()
    if lags:
        yield Observation(sum(batches for batches, _ in lags))


lag_seconds = _meter.create_observable_gauge(
    "buffer_delta.lag_seconds", [_lag_seconds], unit="s", description="Age of the oldest entry that is not loaded"
)
lag_batches = _meter.create_observable_gauge(
    "buffer_delta.lag_batches", [_lag_batches], description="Batches that are not loaded"
)
