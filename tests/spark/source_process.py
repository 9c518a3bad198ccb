"""A streaming query from a queue into a Delta table, in a process of its own, so that tests can kill it.

Reads one JSON command from stdin: {"store", "table", "checkpoint", "options", "available_now"}. Says {"ready": pid}
when the query runs, {"batch": n} now and then while it gets on, and at the end {"done": …} or {"error": …}.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from buffer_delta.spark.session import spark_session


def say(**message: Any) -> None:
    sys.__stdout__.write(json.dumps(message) + "\n")
    sys.__stdout__.flush()


def main() -> None:
    sys.stdout = sys.stderr  # whatever else prints must not mix with the answers
    command = json.loads(sys.stdin.readline())
    spark = spark_session(
        "source-process", config={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    )
    frame = spark.readStream.format("buffer").options(**command["options"]).load(command["store"])

    writer = frame.writeStream.format("delta").option("checkpointLocation", command["checkpoint"])
    trigger = {"availableNow": True} if command["available_now"] else {"processingTime": "50 milliseconds"}
    query = writer.trigger(**trigger).start(command["table"])
    say(ready=os.getpid())
    told = None
    try:
        while not query.awaitTermination(1):
            done = query.lastProgress
            if done is not None and done["batchId"] != told:
                told = done["batchId"]
                say(batch=told)
    except Exception as error:  # noqa: BLE001  # whatever it was, the test wants to hear it
        say(error=str(error))
    else:
        say(done=True)
    spark.stop()


if __name__ == "__main__":
    main()
