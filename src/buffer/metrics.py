"""Every instrument of the core, by its public name, over opentelemetry-api.

The API alone records nothing: without an SDK each instrument is a placeholder whose `add`, `record` and `set`
are one attribute test. An SDK that is configured later, even after this import, takes them over. Callers write
`metrics.acks.add(1)`; nothing here reads a clock or a store, and no instrument carries a label except `role`
(producer or consumer) on the manifest pair and `verb` on the leases' durations: a process never grows new time series.
"""

from __future__ import annotations

from opentelemetry.metrics import get_meter

_SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""From a local file to a store in trouble; OpenTelemetry's own defaults are meant for milliseconds."""

_meter = get_meter("buffer")

# Producer

batches_flushed = _meter.create_counter("buffer.batches_flushed", "{batch}", "Batches that became durable")
entries_flushed = _meter.create_counter("buffer.entries_flushed", "{entry}", "Entries in those batches")
bytes_flushed = _meter.create_counter(
    "buffer.bytes_flushed", "By", "Bytes of those entries, as they were handed to produce"
)
bytes_written = _meter.create_counter(
    "buffer.bytes_written", "By", "Bytes of the batch objects uploaded, after compression"
)
flush_duration_seconds = _meter.create_histogram(
    "buffer.flush_duration_seconds",
    "s",
    "From closing a batch until it was durable",
    explicit_bucket_boundaries_advisory=_SECONDS_BUCKETS,
)

# Both sides: counted through `queue.manifest_observer`, which adds the role

manifest_writes = _meter.create_counter(
    "buffer.manifest_writes", "{write}", "Conditional writes of the manifest that won"
)
manifest_conflicts = _meter.create_counter(
    "buffer.manifest_conflicts",
    "{write}",
    "Conditional writes of the manifest that did not win: lost races, throttled or unanswered ones",
)

# Consumer

batches_collected = _meter.create_counter("buffer.batches_collected", "{batch}", "Batches fetched")
entries_collected = _meter.create_counter(
    "buffer.entries_collected", "{entry}", "Entries in the batches that were fetched and decoded"
)
bytes_collected = _meter.create_counter("buffer.bytes_collected", "By", "Bytes of the batch objects fetched")
fetch_duration_seconds = _meter.create_histogram(
    "buffer.fetch_duration_seconds",
    "s",
    "One fetch, its retries and its decoding included",
    explicit_bucket_boundaries_advisory=_SECONDS_BUCKETS,
)
consumer_lag_seconds = _meter.create_gauge(
    "buffer.consumer_lag_seconds", "s", "Age of the oldest entry that was not acked yet; 0 when there is none"
)
queue_length = _meter.create_gauge("buffer.queue_length", "{batch}", "Batches in the queue that were not acked yet")
acks = _meter.create_counter("buffer.acks", "{batch}", "Batches acked")
descriptors_handed_out = _meter.create_counter(
    "buffer.descriptors_handed_out", "{batch}", "Batches handed out, by next_batch or next_descriptors"
)

# Leases: depth and the like as the last consume saw them

leases_depth = _meter.create_gauge("buffer.leases_depth", "{batch}", "Batches that are not finished")
leases_in_flight = _meter.create_gauge("buffer.leases_in_flight", "{batch}", "Batches under a lease")
leases_holes = _meter.create_gauge("buffer.leases_holes", "{hole}", "Gaps among the finished batches")
leases_blocked = _meter.create_gauge("buffer.leases_blocked", "{batch}", "Batches that wait for an operator")
leases_produced = _meter.create_counter("buffer.leases_produced", "{batch}", "Batches that workers put in")
leases_consumed = _meter.create_counter("buffer.leases_consumed", "{batch}", "Deliveries")
leases_acked = _meter.create_counter("buffer.leases_acked", "{ack}", "Acks, of batches or parts of them")
leases_nacked = _meter.create_counter("buffer.leases_nacked", "{batch}", "Batches given back as failed")
leases_expired = _meter.create_counter(
    "buffer.leases_expired", "{batch}", "Leases that ran out, as the next consume found"
)
leases_parked = _meter.create_counter("buffer.leases_parked", "{batch}", "Batches put into the dead-letter queue")
leases_handle_errors = _meter.create_counter(
    "buffer.leases_handle_errors", "{handle}", "Handles that did not hold any more"
)
leases_duration_seconds = _meter.create_histogram(
    "buffer.leases_duration_seconds",
    "s",
    "One call of a verb, its retries included; not the waiting for something to deliver",
    explicit_bucket_boundaries_advisory=_SECONDS_BUCKETS,
)

# Collector

gc_files_deleted = _meter.create_counter("buffer.gc_files_deleted", "{file}", "Batch objects deleted")
gc_files_failed = _meter.create_counter(
    "buffer.gc_files_failed", "{file}", "Deletes of batch objects that failed and will be tried again"
)
gc_duration_seconds = _meter.create_histogram(
    "buffer.gc_duration_seconds",
    "s",
    "One cycle of the collector",
    explicit_bucket_boundaries_advisory=_SECONDS_BUCKETS,
)
