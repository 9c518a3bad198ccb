"""The gauges of a status. Pure."""

from __future__ import annotations

from buffer_delta.metrics import Readings
from buffer_delta.serve.status import STATES, Status


def readings_of(status: Status) -> Readings | None:
    """None for a queue without a name: it is nobody's."""
    if status.name is None:
        return None
    loader = status.loader
    return Readings(
        queue=status.name,
        state=status.state,
        states=STATES,
        healthy=status.is_healthy,
        lag_batches=status.lag_batches,
        lag_seconds=status.lag_seconds,
        backlog_bytes=status.backlog_bytes,
        seconds_since_commit=loader.seconds_without_commit if loader else None,
        attempts=status.attempts,
        epoch=status.queue.epoch if status.queue else None,
        next_sequence=status.queue.next_sequence if status.queue else None,
        positions={table.table: table.committed for table in status.tables if table.committed is not None},
    )
