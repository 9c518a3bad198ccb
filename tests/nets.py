"""How long a test waits for what must come: long enough for a machine that is ten times too busy.

It is a net under what hangs for good, shorter than pytest's own so that the failure says what was waited for. No test
passes or fails by how fast the machine is.
"""

from __future__ import annotations

import time
from collections.abc import Callable

HANGS_S = 900.0


def wait_until(condition: Callable[[], bool], what: str = "") -> None:
    """For a sign that cannot be waited for in another way."""
    deadline_s = time.monotonic() + HANGS_S
    while not condition():
        assert time.monotonic() < deadline_s, f"gave up waiting {what}".rstrip()
        time.sleep(0.002)
