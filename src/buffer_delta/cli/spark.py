"""Spark for the command line: its options, its start, and its errors in words."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from buffer.cli.printing import echo
from buffer.errors import BufferQueueError
from buffer_delta.errors import SparkUnusable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from buffer_delta.spark.s3a import Loads

F = TypeVar("F", bound=Callable[..., Any])

SPARK_MODULES = ("pyspark", "delta", "py4j", "pandas", "numpy")


def spark_options(command: F) -> F:
    """`--master` and its kin, as the keyword argument `spark_settings`. spark-submit's own settings win."""
    options = [
        click.option("--master", help="Spark master. [default: local[*], or spark-submit's]"),
        click.option("--driver-memory", metavar="SIZE", help="[default: 2g on one machine, else Spark's]"),
        click.option("--package", "packages", multiple=True, metavar="COORDINATES", help="Maven package to add."),
        click.option("--spark-conf", multiple=True, metavar="KEY=VALUE", help="Any other Spark setting."),
    ]
    for decorate in reversed(options):
        command = decorate(command)
    return command


@contextmanager
def running_spark(
    app_name: str,
    *,
    master: str | None,
    driver_memory: str | None,
    packages: Sequence[str],
    spark_conf: Sequence[str],
    loads: Loads | None = None,
) -> Iterator[SparkSession]:
    """A session for the block, with what the tables of `loads` need. Raises SparkUnusable.

    One that this process did not start is left running.
    """
    conf = {}
    for pair in spark_conf:
        key, equals, value = pair.partition("=")
        if not equals:
            raise click.BadParameter("--spark-conf: write KEY=VALUE, with no space around the '='")
        conf[key] = value
    with explaining_spark():
        from pyspark import SparkContext

        from buffer_delta.spark.session import spark_session

        was_running = SparkContext._active_spark_context is not None
        started_s = time.monotonic()
        if not was_running:
            echo("starting Spark …", err=True)
        spark = spark_session(
            app_name,
            master=master,
            memory=driver_memory,
            extra_packages=tuple(packages),
            config=conf,
            loads=loads,
            data_source=False,
        )
        if not was_running:
            echo(f"Spark runs, after {time.monotonic() - started_s:.1f} s", err=True)
        try:
            yield spark
        finally:
            if not was_running:
                spark.stop()


@contextmanager
def explaining_spark() -> Iterator[None]:
    """Turn what Java said into one line, and a missing package into the way to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in SPARK_MODULES:
            raise
        raise SparkUnusable(
            f"this command needs Spark, and {error.name} is not installed: pip install 'buffer-delta[spark]'",
            found="nothing",
        ) from error
    except Exception as error:
        said = _java_said(error)
        if said is None:
            raise
        raise BufferQueueError(f"Spark failed: {said}") from error


def _java_said(error: BaseException) -> str | None:
    """The first line of the innermost cause that has one; None if this is no error of Java's."""
    java = getattr(error, "java_exception", None)
    said = None
    while java is not None:
        text = str(java.toString()).strip()
        said = text.splitlines()[0] if text else said
        java = java.getCause()
    return said
