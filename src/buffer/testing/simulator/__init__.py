"""A seeded simulator: producers, consumers and collectors on one store that loses, delays and reorders, on
processes that crash, stop and wake up. The production code runs as it is, in virtual time, by the thousand.

    from buffer.testing.simulator import Trace, simulate_queue

    simulate_queue(seed=7)                  # raises Violation, saying what must never happen
    simulate_queue(seed=7, trace=Trace())   # the same run, with a line for everything that happened

`buffer_delta.testing` adds loaders on a simulated Delta log. Needs `greenlet`.
"""

from buffer.testing.simulator.faults import Network, Weather
from buffer.testing.simulator.queues import simulate_collection, simulate_queue
from buffer.testing.simulator.scheduler import Process, Scheduler, Violation
from buffer.testing.simulator.store import ObjectServer, StoreClient
from buffer.testing.simulator.trace import Trace
from buffer.testing.simulator.witness import QueueWitness, Record
from buffer.testing.simulator.world import Actor, Host, World

__all__ = [
    "Actor",
    "Host",
    "Network",
    "ObjectServer",
    "Process",
    "QueueWitness",
    "Record",
    "Scheduler",
    "StoreClient",
    "Trace",
    "Violation",
    "Weather",
    "World",
    "simulate_collection",
    "simulate_queue",
]
