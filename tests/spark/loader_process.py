"""A loader in a process of its own, driven line by line, so that tests can stop, wake and kill it anywhere.

Reads one JSON command a line from stdin and answers with JSON lines on stdout:

    {"config": {...}, "pause_at": [...], "die_at": "…"}   run Loader(config).run(available_now=True)

While it runs it says {"at": step}. At a step in `pause_at` it waits for a line "go"; at `die_at` it kills itself
with SIGKILL. At the end it says {"done": …} or {"error": class, "message": …} and takes the next command.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from typing import Any

from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from buffer_delta.spark.session import spark_session


def say(**message: Any) -> None:
    sys.__stdout__.write(json.dumps(message) + "\n")
    sys.__stdout__.flush()


def run(spark: Any, command: dict[str, Any]) -> None:
    pauses = list(command.get("pause_at", ()))

    def reached(step: str) -> None:
        say(at=step)
        if step == command.get("die_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        if step in pauses:
            pauses.remove(step)
            assert sys.stdin.readline().strip() == "go"

    loader = Loader(spark, LoaderConfig(**command["config"]), reached=reached)
    try:
        progress = loader.run(available_now=command.get("available_now", True))
    except Exception as error:  # noqa: BLE001  # whatever it was, the test wants to hear it
        traceback.print_exc()
        say(error=type(error).__name__, message=str(error))
    else:
        say(done=progress.to_dict() if progress else None)


def main() -> None:
    sys.stdout = sys.stderr  # whatever else prints must not mix with the answers
    # It does not live long enough for the optimising compiler to pay.
    options = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    spark = spark_session("loader-process", config=options)
    say(ready=os.getpid())
    for line in sys.stdin:
        run(spark, json.loads(line))
    spark.stop()


if __name__ == "__main__":
    main()
