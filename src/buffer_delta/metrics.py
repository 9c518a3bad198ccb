"""The loader's instruments, under the names in the README. Without an OpenTelemetry SDK they do nothing."""

from __future__ import annotations

from opentelemetry import metrics

_meter = metrics.get_meter("buffer_delta")

commits = _meter.create_counter("buffer_delta.commits", description="Ranges committed to every table")
rows = _meter.create_counter("buffer_delta.rows", description="Rows committed, dead letters not counted")
bytes_loaded = _meter.create_counter("buffer_delta.bytes", unit="By", description="Stored bytes of loaded batches")
commit_duration_seconds = _meter.create_histogram(
    "buffer_delta.commit_duration_seconds", unit="s", description="From the plan to the ack of one range"
)
lag_seconds = _meter.create_gauge(
    "buffer_delta.lag_seconds", unit="s", description="Age of the oldest entry that is not loaded"
)
lag_batches = _meter.create_gauge("buffer_delta.lag_batches", description="Batches that are not loaded")
retries = _meter.create_counter("buffer_delta.retries", description="Ranges tried again after a failure")
dead_letters = _meter.create_counter("buffer_delta.dead_letters", description="Records set aside")
fenced = _meter.create_counter("buffer_delta.fenced", description="Times this loader was fenced")
