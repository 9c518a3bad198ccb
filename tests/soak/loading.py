"""A loader that runs until its standard input ends, and tells of every step, every commit and its JVM's memory.

python -m tests.soak.loading '{"config": {…}}'
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from typing import Any

from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from buffer_delta.spark.session import spark_session
from tests.crash.processes import on_end_of_input, say

HEAP_EVERY_S = 15.0
HEAP = "512m"
# A heap that is there as a whole from the start: what grows then is a leak, and not the garbage between two
# collections. A leak inside the heap shows after a collection.
JVM_OPTIONS = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms{HEAP} -XX:+AlwaysPreTouch"


def main(options: dict[str, Any]) -> None:
    spark = spark_session("soak", master="local[2]", memory=HEAP, config={"spark.driver.extraJavaOptions": JVM_OPTIONS})
    ended = threading.Event()
    loader = Loader(
        spark,
        LoaderConfig(**options["config"]),
        on_progress=lambda progress: say(progress=progress.to_dict()),
        reached=lambda step: say(at=step),
    )
    on_end_of_input(loader.stop)
    heap = threading.Thread(target=_tell_heap, args=(spark, ended), name="heap", daemon=True)
    heap.start()
    say(ready=os.getpid())
    try:
        loader.run()
    except Exception as error:  # noqa: BLE001 - whoever started this decides which errors are right
        traceback.print_exc()
        say(error=type(error).__name__, message=str(error)[:1000])
    else:
        say(done=True)
    ended.set()
    heap.join()
    spark.stop()


def _tell_heap(spark: Any, ended: threading.Event) -> None:
    """What is in use after a collection, every now and then. After two: the first tells Spark what it may drop."""
    while not ended.wait(HEAP_EVERY_S):
        runtime = spark._jvm.java.lang.Runtime.getRuntime()
        spark._jvm.java.lang.System.gc()
        ended.wait(1.0)
        spark._jvm.java.lang.System.gc()
        say(heap_bytes=runtime.totalMemory() - runtime.freeMemory())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
