"""A seeded simulator: producers, consumers and collectors on one store that loses, delays and reorders, on
processes that crash, stop and wake up. The production code runs as it is, in virtual time, by the thousand.

    from buffer.testing.simulator import Trace, simulate_queue

    simulate_queue(seed=7)                  # raises Violation, saying what must never happen
    simulate_queue(seed=7, trace=Trace())   # the same run, with a line for everything that happened

`simulate_legacy` (in `legacy.py`) does the same for Ingestors and Collectors of the older format.
`buffer_delta.testing` adds loaders on a simulated Delta log. Needs `greenlet`.

A new kind of actor is a subclass of `Actor` in a small file under `actors/`, added to a world in `queues.py`; a new
promise is a check in `witness.py`, or a witness of your own (`ObjectServer.witnesses`).

Not simulated, and tested with real threads and processes instead: the threads of `Producer` around its intake and
committer (flush timer, back-pressure, close), read-ahead (`Consumer.batches`), Spark, and the stores themselves.
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
