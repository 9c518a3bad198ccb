"""Time, randomness and ids. The only module that asks the machine for any of them.

Everything else takes a `Clock`, so tests and the simulator decide what time it is and which id comes next.
"""

from __future__ import annotations

import os
import random
import time
from typing import Final, Protocol, runtime_checkable

from ulid import ULID

from buffer.errors import InvalidInput

_AWAKE_OR_NOT: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)
"""Linux' clock that counts a suspended machine's time too."""


@runtime_checkable
class Clock(Protocol):
    """What the rest of the code may know about time and chance."""

    def now_ms(self) -> int:
        """Wall-clock time in milliseconds since the Unix epoch. May jump."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go backwards, and go on while the machine sleeps; only differences mean anything."""
        ...

    def sleep(self, seconds: float) -> None: ...

    def new_ulid(self) -> str:
        """A fresh ULID, 26 upper-case characters, whose time is `now_ms()`."""
        ...

    def jitter(self, low: float, high: float) -> float:
        """A random number between low and high, for back-off."""
        ...


class SystemClock:
    """The machine's own clock and randomness. Stateless, so it is safe in threads and after a fork."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        # Not `time.monotonic`: on Linux it stands still while a laptop or a virtual machine is suspended, and a batch
        # would pass for young that the collector has held for old, and deleted, meanwhile.
        return time.monotonic() if _AWAKE_OR_NOT is None else time.clock_gettime(_AWAKE_OR_NOT)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def new_ulid(self) -> str:
        return make_ulid(self.now_ms(), os.urandom(10))

    def jitter(self, low: float, high: float) -> float:
        return random.uniform(low, high)

    def __repr__(self) -> str:
        return "SystemClock()"


def make_ulid(time_ms: int, randomness: bytes) -> str:
    """The ULID of 48 bits of time and 80 bits of randomness."""
    if not 0 <= time_ms < 1 << 48:
        raise InvalidInput(f"a ULID cannot hold the time {time_ms} ms: it must fit 48 bits; check the clock")
    return str(ULID.from_bytes(time_ms.to_bytes(6, "big") + randomness))
