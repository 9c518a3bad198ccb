"""Instruments under the names users see; nothing recorded, and nothing paid, without an SDK."""

from __future__ import annotations

import subprocess
import sys
from typing import Literal

import pytest
from opentelemetry.metrics import Counter, Histogram

from buffer import metrics
from buffer.errors import StorageError, Throttled
from buffer.queue import manifest_observer
from buffer.store.base import Lost, Unknown, Won
from tests.metrics_reader import READER, points, value
from tests.nets import HANGS_S

COUNTERS = [
    "batches_flushed",
    "entries_flushed",
    "bytes_flushed",
    "bytes_written",
    "manifest_writes",
    "manifest_conflicts",
    "batches_collected",
    "entries_collected",
    "bytes_collected",
    "acks",
    "descriptors_handed_out",
    "gc_files_deleted",
    "gc_files_failed",
    *(f"leases_{what}" for what in ("produced", "consumed", "acked", "nacked", "expired", "parked", "handle_errors")),
]
HISTOGRAMS = [f"{what}_duration_seconds" for what in ("flush", "fetch", "gc", "leases")]
GAUGES = [
    "consumer_lag_seconds",
    "queue_length",
    *(f"leases_{what}" for what in ("depth", "in_flight", "holes", "blocked")),
]


@pytest.mark.parametrize("name", COUNTERS)
def test_should_count_under_the_public_name(name: str) -> None:
    counter = getattr(metrics, name)
    assert isinstance(counter, Counter)
    # manifest_writes has points with roles, so the unlabeled one is asked for
    before = value(f"buffer.{name}", {})
    counter.add(3)
    assert value(f"buffer.{name}", {}) == before + 3


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_should_record_durations_in_buckets_of_seconds(name: str) -> None:
    histogram = getattr(metrics, name)
    assert isinstance(histogram, Histogram)
    before = value(f"buffer.{name}", {})  # the leases' durations have points with a verb, too
    histogram.record(0.03)
    (point,) = points(f"buffer.{name}", {})
    assert point.count == before + 1
    assert point.explicit_bounds[0] == 0.001
    assert point.explicit_bounds[-1] == 60.0


@pytest.mark.parametrize("name", GAUGES)
def test_should_show_the_last_value_of_a_gauge(name: str) -> None:
    getattr(metrics, name).set(7)
    getattr(metrics, name).set(2)
    assert value(f"buffer.{name}", {}) == 2


def test_should_have_no_instrument_without_a_documented_name() -> None:
    documented = {f"buffer.{name}" for name in (*COUNTERS, *HISTOGRAMS, *GAUGES)}
    for name in (*COUNTERS, *HISTOGRAMS, *GAUGES):
        instrument = getattr(metrics, name)
        (getattr(instrument, "add", None) or getattr(instrument, "record", None) or instrument.set)(0)
    found = {
        metric.name
        for resource in READER.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        if scope.scope.name == "buffer"  # a loader may have been told of in this process, too
        for metric in scope.metrics
    }
    assert found == documented


@pytest.mark.parametrize("role", ["producer", "consumer"])
def test_should_count_writes_and_conflicts_of_each_role_apart(role: Literal["producer", "consumer"]) -> None:
    labels = {"role": role}
    writes, conflicts = value("buffer.manifest_writes", labels), value("buffer.manifest_conflicts", labels)
    observe = manifest_observer(role)
    observe(Won("v1"))
    observe(Lost())
    observe(Unknown(Throttled("slow down", retryable=True)))
    observe(Unknown(StorageError("connection reset", retryable=True)))
    assert value("buffer.manifest_writes", labels) == writes + 1
    assert value("buffer.manifest_conflicts", labels) == conflicts + 3


def test_should_use_placeholders_that_record_nothing_without_an_sdk() -> None:
    """In a process of its own: this one has an SDK. Where the SDK cannot even be imported, nothing changes."""
    script = """
import sys
sys.modules["opentelemetry.sdk"] = None  # an import of it would fail
from buffer import metrics
from buffer.queue import manifest_observer
from buffer.store.base import Won
from opentelemetry import metrics as api
instruments = [v for v in vars(metrics).values() if isinstance(v, api.Instrument)]
assert len(instruments) == 30, len(instruments)
for instrument in instruments:
    assert type(instrument).__module__.startswith("opentelemetry.metrics._internal"), instrument
    assert instrument._real_instrument is None, instrument
metrics.acks.add(1); metrics.queue_length.set(1); metrics.fetch_duration_seconds.record(1)
manifest_observer("consumer")(Won("v"))
assert not [m for m in sys.modules if m.startswith("opentelemetry.sdk.")]
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=HANGS_S)
