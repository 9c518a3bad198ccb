"""Acting as another user, for tests of what permissions forbid."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

NOBODY = 65534


@contextmanager
def as_nobody() -> Iterator[None]:
    """Permissions count, also where the tests run as root."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
