"""A producer in a process of its own: reads a job from its input, appends the locations one by one.

Prints one JSON line with the sequence each of them got.
"""

from __future__ import annotations

import json
import sys

from buffer.clock import SystemClock
from buffer.queue import QueueProducer
from buffer.store import open_store


def main() -> None:
    job = json.loads(sys.stdin.readline())  # not an argument: the options hold keys
    queue = QueueProducer(open_store(job["url"], **job["options"]), job["path"], SystemClock())
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()  # until all are ready: they are to meet
    found = {location: list(queue.append_locations([(location, ())])) for location in job["locations"]}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
