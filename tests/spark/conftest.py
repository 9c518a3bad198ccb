"""One Spark session for all tests of a process: starting another one costs more than most tests.

Where the suite runs in several processes (`make test`), the tests of a file stay together in one of them, and those of
other fixtures that start Spark. So every process comes to have a session, and none is left with a long tail of tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from buffer_delta.config import LoaderConfig
from buffer_delta.spark.session import spark_session
from tests.spark.cluster import Cluster, run_cluster

_SLOW_TO_START = {"pair", "cluster", "drivers"}
"""Fixtures that start more than the process's session: tests that share one run in the same process."""


@pytest.fixture(scope="session", autouse=True)
def writer(request: pytest.FixtureRequest) -> Iterator[None]:
    """`--writer` is the writer of every loader that the tests do not give one, those in other processes included."""
    defaults = LoaderConfig.__init__.__kwdefaults__
    before = defaults["writer"]
    defaults["writer"] = request.config.getoption("--writer") or before
    yield
    defaults["writer"] = before


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)
            if "spark" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group(item.path.stem))
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
            # Tiny tables: generating and compiling code for each query costs far more than interpreting it.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.adaptive.enabled": "false",
            # Short-lived code: the optimising compiler would only take the cores away from the tests.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers for jobs in processes of their own, one after the other: each takes both workers."""
    with run_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started
