"""A loader in a process of its own, driven line by line, so that tests can stop, wake and kill it anywhere.

Reads one JSON command a line from stdin and answers with JSON lines on stdout:

    {"config": {...}, "pause_at": [...], "die_at": "…"}   run Loader(config).run(available_now=True)

    {"loaders": [{"config": {...}}, …]}                   run them all at once, each in a thread of its own

While it runs it says {"at": step}; of several each says its place in the list besides: {"at": step, "loader": 0}. At a
step in `pause_at` it waits for a line "go"; at `die_at` it kills itself with SIGKILL. At the end it says {"done": …} or
{"error": class, "message": …} and takes the next command.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from typing import Any

from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from buffer_delta.spark.session import spark_session

SESSION = "LOADER_PROCESS_SESSION"
"""In the environment, where only this user can read it: what the session is for, and its settings."""

_one_line = threading.Lock()


def say(**message: Any) -> None:
    with _one_line:
        sys.__stdout__.write(json.dumps(message) + "\n")
        sys.__stdout__.flush()


def run_all(spark: Any, commands: list[dict[str, Any]]) -> None:
    threads = [
        threading.Thread(target=run, args=(spark, command, {"loader": place})) for place, command in enumerate(commands)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run(spark: Any, command: dict[str, Any], name: dict[str, Any]) -> None:
    pauses = list(command.get("pause_at", ()))

    def reached(step: str) -> None:
        say(at=step, **name)
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
        say(error=type(error).__name__, message=str(error), **name)
    else:
        say(done=progress.to_dict() if progress else None, **name)


def main() -> None:
    sys.stdout = sys.stderr  # whatever else prints must not mix with the answers
    # It does not live long enough for the optimising compiler to pay.
    options = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    loads, config = json.loads(os.environ.get(SESSION, "[null, {}]"))
    spark = spark_session(
        "loader-process", config=options | config, loads=LoaderConfig(**loads) if loads is not None else None
    )
    say(ready=os.getpid())
    for line in sys.stdin:
        command = json.loads(line)
        if "loaders" in command:
            run_all(spark, command["loaders"])
        else:
            run(spark, command, {})
    spark.stop()


if __name__ == "__main__":
    main()
