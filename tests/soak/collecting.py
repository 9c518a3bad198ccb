"""A collector in a process of its own, until its standard input ends: `python -m tests.soak.collecting '{…}'`."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from buffer.config import GcConfig
from buffer.errors import StorageError
from buffer.gc.collector import Collector
from tests.crash.processes import on_end_of_input, say


def main(options: dict[str, Any]) -> None:
    stop = threading.Event()
    on_end_of_input(stop.set)
    config = GcConfig(**options)
    say(ready=os.getpid())
    with Collector(config) as collector:
        while not stop.wait(config.gc_interval_s):
            try:
                report = collector.collect_once()
            except StorageError as error:  # it looks again, like the collector's own thread
                sys.stderr.write(f"{error!r}\n")
                say(failed=type(error).__name__)
                continue
            say(deleted=len(report.deleted), refusal=report.refusal and report.refusal.value)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
