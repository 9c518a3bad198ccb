"""The loader's instruments, under the names in docs/operations.md. Without an OpenTelemetry SDK they do nothing.

Counters are told when something happens. Gauges are asked when somebody reads them, so that they are true while nothing
happens: the lag of a loader that is stuck grows. Whoever knows (`watch`) answers with `Readings`.

Every one has the label `queue`. Cardinality is bounded: `queue` has one value for each queue that this process loads or
watches, `table` one for each table of a loader's configuration, `state` one of a dozen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

_COMMIT_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 120, 300, 600)
"""From a small commit with Arrow to a gigabyte on a small cluster."""

_meter = metrics.get_meter("buffer_delta")

commits = _meter.create_counter("buffer_delta.commits", description="Ranges committed to every table")
rows = _meter.create_counter("buffer_delta.rows", description="Rows committed, by table; dead letters not counted")
bytes_loaded = _meter.create_counter("buffer_delta.bytes", unit="By", description="Stored bytes of loaded batches")
commit_duration_seconds = _meter.create_histogram(
    "buffer_delta.commit_duration_seconds",
    unit="s",
    description="From the plan to the ack of one range",
    explicit_bucket_boundaries_advisory=_COMMIT_BUCKETS,
)
retries = _meter.create_counter("buffer_delta.retries", description="Ranges tried again after a failure")
dead_letters = _meter.create_counter("buffer_delta.dead_letters", description="Records set aside")
fenced = _meter.create_counter("buffer_delta.fenced", description="Times this loader was fenced")


def begin(queue: str, tables: Iterable[str]) -> None:
    """Let every counter be there with 0: a rule on one that appears with its first failure would miss that one."""
    for counter in (commits, bytes_loaded, retries, dead_letters, fenced):
        counter.add(0, {"queue": queue})
    for table in tables:
        rows.add(0, {"queue": queue, "table": table})


@dataclass(frozen=True, slots=True)
class Readings:
    """What the gauges show of one queue. None: not known now, so no value is given."""

    queue: str
    state: str
    states: tuple[str, ...]
    """All that there are: each is a series, 1 for the one that it is in."""
    healthy: bool
    lag_batches: int | None = None
    lag_seconds: float | None = None
    backlog_bytes: int | None = None
    seconds_since_commit: float | None = None
    attempts: int | None = None
    epoch: int | None = None
    next_sequence: int | None = None
    positions: Mapping[str, int] = field(default_factory=dict)
    """Table -> the last sequence that it holds."""


class Watched(Protocol):
    """Something that knows how a queue is doing."""

    def readings(self) -> Readings | None:
        """From any thread and without waiting for anything; None once there is nothing to tell any more."""
        ...


_watched: weakref.WeakSet[Watched] = weakref.WeakSet()


def watch(source: Watched) -> None:
    """Ask this one from now on, until it is gone, says None, or is forgotten."""
    _watched.add(source)


def forget(source: Watched) -> None:
    _watched.discard(source)


def _readings() -> list[Readings]:
    return [found for source in list(_watched) if (found := source.readings()) is not None]


Value = Callable[[Readings], float | None]


def _asked(value: Value) -> Callable[[CallbackOptions], Iterator[Observation]]:
    def observe(_options: CallbackOptions) -> Iterator[Observation]:
        for found in _readings():
            number = value(found)
            if number is not None:
                yield Observation(number, {"queue": found.queue})

    return observe


def _states(_options: CallbackOptions) -> Iterator[Observation]:
    for found in _readings():
        for state in found.states:
            yield Observation(int(state == found.state), {"queue": found.queue, "state": state})


def _positions(_options: CallbackOptions) -> Iterator[Observation]:
    for found in _readings():
        for table, position in found.positions.items():
            yield Observation(position, {"queue": found.queue, "table": table})


def _gauge(name: str, description: str, value: Value, unit: str = "") -> None:
    _meter.create_observable_gauge(f"buffer_delta.{name}", [_asked(value)], unit=unit, description=description)


_gauge("lag_seconds", "Age of the oldest entry that is not loaded", lambda r: r.lag_seconds, "s")
_gauge("lag_batches", "Batches that are not loaded", lambda r: r.lag_batches)
_gauge("backlog_bytes", "Stored bytes of the batches that are not loaded", lambda r: r.backlog_bytes, "By")
_gauge("since_commit_seconds", "Since the last commit, or the start", lambda r: r.seconds_since_commit, "s")
_gauge("plan_attempts", "Attempts at the range in hand; 0 if there is none", lambda r: r.attempts)
_gauge("healthy", "1 if /healthz says 200", lambda r: int(r.healthy))
_gauge("epoch", "The epoch that holds the queue", lambda r: r.epoch)
_gauge("next_sequence", "The sequence that the next batch gets: its rate is the rate in", lambda r: r.next_sequence)
_meter.create_observable_gauge(
    "buffer_delta.state", [_states], description="1 for the state that the loader is in, 0 for the others"
)
_meter.create_observable_gauge(
    "buffer_delta.table_position", [_positions], description="The last sequence that a table holds"
)
