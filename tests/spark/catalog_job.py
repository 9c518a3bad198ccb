"""One session with a catalog that lasts (Hive's, in a Derby database), for `test_loader_catalog.py`.

Takes a folder and a list of steps as JSON: `{"load": table, "queue": …}`, with `produce` after ten more entries, or
`{"sql": …}`. Prints what each gave, as one line of JSON: the ids in the table, or the rows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from buffer_delta.config import LoaderConfig
from buffer_delta.load.loader import Loader
from buffer_delta.spark.session import spark_session
from tests.spark.queues import numbered, produce


def session(folder: Path) -> SparkSession:
    return spark_session(
        "catalog",
        master="local[1]",
        memory="1g",
        config={
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
            "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
            "spark.hadoop.hive.metastore.schema.verification": "false",
            "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dderby.system.home={folder}",
        },
    )


def load(spark: SparkSession, folder: Path, queue: str, table: str) -> list[Any]:
    config = LoaderConfig(
        store=str(folder / queue), table=table, format={"type": "json", "schema": "id BIGINT"}, gc_enabled=False
    )
    Loader(spark, config).run(available_now=True)
    found = spark.read.format("delta").load(table) if "/" in table else spark.table(table)
    return sorted(row["id"] for row in found.select("id").collect())


def main(folder: Path, steps: list[dict[str, str]]) -> None:
    spark = session(folder)
    try:
        for step in steps:
            if "load" in step:
                if start := step.get("produce"):
                    produce(folder / step["queue"], numbered(1, start=int(start)))
                found = load(spark, folder, step["queue"], step["load"])
            else:
                found = [list(row) for row in spark.sql(step["sql"]).collect()]
            print(json.dumps(found), flush=True)  # noqa: T201 - for the test
    finally:
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
