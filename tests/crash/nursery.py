"""Forks producers on local files, so that a thousand of them are cheap: the imports are paid once.

    python -m tests.crash.nursery '{"store": …, "logs": …}'

For each line `NAME` on its standard input it forks a child that produces until it is killed, and says its pid.
(Local files only: obstore does not survive a fork.) A child never ends by itself: its pid stays its own until
somebody kills it. All of them go when the standard input ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from itertools import count
from pathlib import Path
from typing import Any

from tests.crash.processes import say
from tests.crash.producing import LoggedProducer

ENTRIES_PER_CALL = 3
WINDOW = 40


def produce_until_killed(options: dict[str, Any], name: str) -> None:
    settings = {"store": options["store"], "flush_interval_ms": 1, "flush_size_bytes": 300}
    producer = LoggedProducer(name, f"{options['logs']}/{name}.log", settings)
    for call in count():
        producer.produce(call * ENTRIES_PER_CALL, (call + 1) * ENTRIES_PER_CALL - 1)
        producer.settle(window=WINDOW)


def live(options: dict[str, Any], name: str) -> None:
    try:
        produce_until_killed(options, name)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is a finding: the log tells of it
        traceback.print_exc()
        with Path(options["logs"], f"{name}.log").open("a") as log:
            log.write(f"X 0 -1 {error!r}\n")
    while True:
        signal.pause()


def main(options: dict[str, Any]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries them
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            live(options, line.strip())
        say(pid=pid)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
