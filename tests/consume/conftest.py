"""What every test of a consumer leaves behind: no thread."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.consume.consumer_support import fetchers
from tests.nets import wait_until


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    if fetchers():
        gc.collect()  # an iterator that was dropped ends its threads
        wait_until(lambda: fetchers() == 0)
