"""The processes of the demo: producers that log what is durable, and a loader that can be killed at a chosen step.

    python -m buffer_delta.cli.demo_worker produce|load '{…}'

They talk to the demo in JSON lines on stdout. Nothing here is special to the demo's data but the events' schema:
it is `Producer` and `Loader` as anybody would use them.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn

from buffer.config import ProducerConfig
from buffer.produce.producer import Producer
from buffer_delta.config import LoaderConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from buffer_delta.load.progress import Progress

SCHEMA = "id BIGINT, producer STRING, at TIMESTAMP, amount DOUBLE, note STRING"
NOTES = ("order placed", "order paid", "order shipped", "order returned", "cart left")

LAST_ROWS = 5
WARM_UP_COMMITS = 3  # the first makes the table, the second is the first append, the third has nothing new left
WARM_UP_EVENTS = 1000


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message, default=str) + "\n")
    sys.stdout.flush()


# Producing


def produce(store: str, name: str, events: int, calls: int, seconds: float, log: str) -> None:
    """Produce numbered events; every range of numbers goes to the log once it is durable, and not before."""
    chance = random.Random(name)
    edges = [events * call // calls for call in range(calls + 1)]
    started_s = time.monotonic()
    with Path(log).open("w") as durable, Producer(ProducerConfig(store=store)) as producer:
        for call, (first, end) in enumerate(pairwise(edges)):
            time.sleep(max(0.0, started_s + seconds * call / calls - time.monotonic()))
            handle = producer.produce([_event(n, name, chance) for n in range(first, end)], metadata=name.encode())
            producer.flush()  # a batch for each call, so that there is something to commit in several goes
            handle.watcher.await_durable()
            durable.write(f"{first} {end - 1}\n")
    say(done=name)


def _event(number: int, name: str, chance: random.Random) -> bytes:
    event = {
        "id": number,
        "producer": name,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "amount": round(chance.uniform(1, 500), 2),
        "note": chance.choice(NOTES),
    }
    return json.dumps(event).encode()


# Loading


def load(config: dict[str, Any], logs: list[str], stop_at: str | None, stop_count: int, stands_by: bool) -> None:
    """Load until SIGTERM, then check the table against the logs. At the chosen step it waits to be killed.

    One that stands by claims nothing until it is told to; if whoever would tell it is gone, it goes, too.
    """
    from buffer_delta.load.loader import Loader
    from buffer_delta.spark.session import spark_session

    # Code that lives for seconds: the optimising compiler would only take the cores away from it.
    options = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    spark = spark_session("buffer-delta demo", memory="1g", config=options)
    _warm_up(spark, config)
    say(ready=True)
    if stands_by and not sys.stdin.readline():
        return
    settings = LoaderConfig(**config)
    Loader(spark, settings, on_progress=_tell, reached=_stopper(stop_at, stop_count)).run()
    say(result=check(spark, settings.table, logs))
    spark.stop()


def _warm_up(spark: SparkSession, config: dict[str, Any]) -> None:
    """Load a few events of another queue into a table that is thrown away: what is slow once, like Spark's first plan
    and the first Python workers, happens while the real queue fills."""
    from buffer_delta.load.loader import Loader

    with TemporaryDirectory(prefix="buffer-delta-warm-up-") as folder:
        chance = random.Random(0)
        with Producer(ProducerConfig(store=f"{folder}/queue")) as producer:
            for _ in range(WARM_UP_COMMITS):
                producer.produce([_event(n, "warm-up", chance) for n in range(WARM_UP_EVENTS)])
                producer.flush()
        settings = {**config, "store": f"{folder}/queue", "table": f"{folder}/events", "max_batches_per_commit": 1}
        Loader(spark, LoaderConfig(**settings)).run(available_now=True)


def _tell(progress: Progress) -> None:
    say(progress=progress.to_dict(), text=str(progress))


def _stopper(stop_at: str | None, stop_count: int) -> Callable[[str], None]:
    left = stop_count

    def reached(step: str) -> None:
        nonlocal left
        if stop_at is None or step.partition(" ")[0] != stop_at:
            return
        left -= 1
        if left == 0:
            say(at=step)
            _wait_to_be_killed()

    return reached


def _wait_to_be_killed() -> NoReturn:
    while True:
        time.sleep(60)


# Checking


def check(spark: SparkSession, table: str, logs: list[str]) -> dict[str, Any]:
    """Is every event that a producer logged as durable in the table, exactly once, and nothing else?"""
    frame = spark.read.format("delta").load(table)
    frame.createOrReplaceTempView("events")
    ranges = [(Path(log).stem, *map(int, line.split())) for log in logs for line in Path(log).read_text().splitlines()]
    spark.createDataFrame(ranges, "producer STRING, first BIGINT, last BIGINT").createOrReplaceTempView("durable")
    events = spark.sql(
        """
        WITH expected AS (SELECT producer, explode(sequence(first, last)) AS id, 1 AS wanted FROM durable),
             found AS (SELECT producer, id, count(*) AS times FROM events GROUP BY producer, id)
        SELECT sum(wanted) AS produced, sum(times) AS loaded, sum(times - 1) AS duplicates,
               count_if(times IS NULL) AS missing, count_if(wanted IS NULL) AS unexpected
        FROM expected FULL OUTER JOIN found USING (producer, id)
        """
    ).first()
    places = spark.sql(
        """
        SELECT sum(times - 1) AS repeated_positions, count(DISTINCT _sequence) AS batches
        FROM (SELECT _sequence, _index, count(*) AS times FROM events GROUP BY _sequence, _index)
        """
    ).first()
    history = spark.sql(f"DESCRIBE HISTORY delta.`{table}`").collect()
    return {
        **_counts(events),
        **_counts(places),
        "commits": sum(row.operation == "WRITE" for row in history),
        "rows": _rows(frame),
        "history": [_commit(row) for row in history],
    }


def _counts(row: Row | None) -> dict[str, int]:
    assert row is not None, "an aggregate has one row"
    return {name: int(value or 0) for name, value in row.asDict().items()}


def _commit(row: Row) -> dict[str, Any]:
    return {
        "version": row.version,
        "timestamp": str(row.timestamp)[:19],
        "operation": row.operation,
        "rows": (row.operationMetrics or {}).get("numOutputRows"),
        "userMetadata": row.userMetadata,
    }


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    newest = frame.orderBy(frame["_sequence"].desc(), frame["_index"].desc()).limit(LAST_ROWS)
    columns = ["_sequence", "_index", "id", "producer", "at", "amount", "note"]
    return [row.asDict() for row in newest.select(*columns).collect()]


def main(args: list[str]) -> None:
    role, options = args[0], json.loads(args[1])
    roles: dict[str, Callable[..., None]] = {"produce": produce, "load": load}
    roles[role](**options)


if __name__ == "__main__":
    main(sys.argv[1:])
