"""Parts for testing against buffers: a store contract, injected faults, a clock that stands still.

`buffer.testing.contract` needs pytest and is imported by itself.
"""

from buffer.testing.clock import ManualClock
from buffer.testing.faulty import Call, Fault, FaultyStore

__all__ = ["Call", "Fault", "FaultyStore", "ManualClock"]
