"""Spark for the command line: its options, its start, and its errors in words."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import click

from buffer.cli.printing import echo
from buffer.cli.shell import Session
from buffer.errors import BufferQueueError
from buffer_delta.cli.java_noise import without_java_noise
from buffer_delta.errors import SparkUnusable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from buffer_delta.spark.s3a import Loads

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

SLOW_START_S = 8.0
"""A prepared start takes less, unless the machine is busy."""

SPARK_MODULES = ("pyspark", "delta", "py4j", "pandas", "numpy")


def spark_options(command: F) -> F:
    """`--master` and related options, as the keyword argument `spark_settings`. spark-submit's own settings win."""
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
            _say("starting Spark …")
        with nullcontext() if was_running or _is_debugging() else without_java_noise():
            spark = spark_session(
                app_name,
                master=master,
                memory=driver_memory,
                extra_packages=tuple(packages),
                config=conf,
                loads=loads,
                data_source=False,
                traces=_is_debugging(),
            )
        if not was_running:
            seconds = time.monotonic() - started_s
            _say(f"Spark is up, after {seconds:.1f} s")
            context = spark.sparkContext
            if hint := slow_start_hint(
                seconds, context.master, context.getConf().get("spark.driver.defaultJavaOptions", "") or ""
            ):
                _say(hint)
        try:
            yield spark
        finally:
            if not was_running:
                spark.stop()


def slow_start_hint(seconds: float, master: str, java_options: str) -> str | None:
    """What would have made this start faster: a class archive, where there is none. None: nothing of ours."""
    if seconds < SLOW_START_S or not master.startswith("local") or master.startswith("local-cluster"):
        return None
    if "-XX:SharedArchiveFile=" in java_options:
        return None
    return "hint: `buffer-delta prepare`, once on this machine, halves that"


def _say(text: str) -> None:
    """To people, off a terminal too: it takes seconds, and a log that stands still looks broken."""
    context = click.get_current_context(silent=True)
    session = context.find_object(Session) if context is not None else None
    if session is not None and session.log_format != "text":
        log.info("%s", text, extra={"event": "spark"})
    else:
        echo(text, err=True)


def _is_debugging() -> bool:
    context = click.get_current_context(silent=True)
    session = context.find_object(Session) if context is not None else None
    return session is not None and session.debug


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
