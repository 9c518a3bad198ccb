"""Programs for the processes that tests start. Top-level functions: `spawn` imports them by name."""

from __future__ import annotations

import os
import sys
from typing import Any

from buffer.errors import StoreUnusable
from buffer.store import Won, open_store


def count_up(url: str, options: dict[str, Any], times: int) -> None:
    """Add one to the object `counter`, by compare-and-swap, so many times."""
    store = open_store(url, **options)
    for _ in range(times):
        while True:
            seen = store.get("counter")
            if isinstance(store.put_if_match("counter", b"%d" % (int(seen.data) + 1), seen.version), Won):
                break


def swap_for_ever(url: str) -> None:
    """Replace the object `a` by a megabyte of one byte, then of the next, until killed."""
    store = open_store(url)
    while True:
        seen = store.get("a")
        data = bytes([(seen.data[0] + 1) % 256]) * len(seen.data)
        assert isinstance(store.put_if_match("a", data, seen.version), Won)
        store.put("b", data)
        sys.stdout.write(".")
        sys.stdout.flush()


def count_in_fork(url: str) -> None:
    """Count once here and once in a forked child, with the same open store."""
    store = open_store(url)
    for _ in range(2):
        seen = store.get("counter")
        assert isinstance(store.put_if_match("counter", b"%d" % (int(seen.data) + 1), seen.version), Won)
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            sys.exit(os.waitstatus_to_exitcode(status))


def use_after_fork(url: str, options: dict[str, Any]) -> None:
    """Use a store, fork, use it in the child (print what happens there), and use it here again."""
    store = open_store(url, **options)
    store.put("a", b"parent")
    child = os.fork()
    if child == 0:
        try:
            store.get("a")
        except StoreUnusable as error:
            sys.stdout.write(str(error))
            sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    assert store.get("a").data == b"parent"
