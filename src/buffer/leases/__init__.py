"""Many workers on one queue: leases, delivery counts, dead letters, and the loop that works them off.

from buffer.leases import LeaseConfig, LeaseQueue, worker
"""

from buffer.config import LeaseConfig
from buffer.leases.queue import LeaseQueue
from buffer.leases.retry import Again, Exponential, Fixed, PerException, RetryPolicy, Untouched
from buffer.leases.values import Delivered, LeasedBatch, LeaseStats, Peeked
from buffer.leases.worker import WorkerReport, worker
from buffer.ledger.lease_rules import Ack, Nack
from buffer.ledger.leases import Handle

__all__ = [
    "Ack",
    "Again",
    "Delivered",
    "Exponential",
    "Fixed",
    "Handle",
    "LeaseConfig",
    "LeaseQueue",
    "LeaseStats",
    "LeasedBatch",
    "Nack",
    "Peeked",
    "PerException",
    "RetryPolicy",
    "Untouched",
    "WorkerReport",
    "worker",
]
