"""One Spark session for all tests of a process: starting another one costs more than most tests.

Where the suite runs in several processes (`make test`), the tests that use it stay together in two of them: the
loader's in one, the others in another.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from buffer_delta.spark.session import spark_session

_SLOW_TO_START = {"spark", "pair"}
"""Fixtures that start Spark: tests that share one run in the same process."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)
            for fixture in _SLOW_TO_START & set(getattr(item, "fixturenames", ())):
                is_loader = item.path.name.startswith("test_loader")
                item.add_marker(pytest.mark.xdist_group(f"{fixture}, loader" if is_loader else fixture))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    session = spark_session(
        "buffer-delta tests",
        master="local[2]",
        memory="1g",
        config={
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
            "spark.sql.session.timeZone": "America/New_York",  # not UTC: a test must notice a shifted timestamp
            # Short-lived code: the optimising compiler would only take the cores away from the tests.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    yield session
    session.stop()
