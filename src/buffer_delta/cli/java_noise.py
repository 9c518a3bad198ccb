"""What Java says on stderr although nobody can do anything about it, left out.

A JVM writes to the stderr that it was started with, so the lines are taken out on their way there, and control
characters in the others are escaped.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from buffer.cli.printing import printable

NOISE = (b"WARNING: Using incubator modules: ",)
"""Spark asks for a module of Java's that is not final yet, in every start."""
STDERR = 2
LAST_WORDS_S = 5.0


@contextmanager
def without_java_noise() -> Iterator[None]:
    """Whatever is started in the block keeps a stderr without that, for as long as it lives."""
    real = os.dup(STDERR)
    from_child, to_us = os.pipe()
    os.dup2(to_us, STDERR)
    os.close(to_us)
    pump = threading.Thread(target=_pump, args=(from_child, real), name="stderr of Java", daemon=True)
    pump.start()
    try:
        yield
    except BaseException:
        os.dup2(real, STDERR)
        pump.join(LAST_WORDS_S)  # why it did not start is said there
        raise
    os.dup2(real, STDERR)


def _pump(source: int, target: int) -> None:
    with os.fdopen(source, "rb") as lines, os.fdopen(target, "wb", buffering=0) as out:
        for line in lines:
            if not line.startswith(NOISE):
                out.write(_harmless(line))


def _harmless(line: bytes) -> bytes:
    """As every command prints: Java's errors quote records, and what drives a terminal is escaped."""
    text = line.decode(errors="backslashreplace")
    body = text.rstrip("\r\n")
    end = "\n" if text.endswith("\n") else ""
    return ("\t".join(map(printable, body.split("\t"))) + end).encode()
