"""A SparkSession that can write Delta tables, tuned for its size.

    spark = spark_session()                       # a laptop, a test, a demo: starts one
    spark = spark_session("nightly load")         # Databricks, EMR, a notebook, spark-submit: uses the one there

Where a session or its JVM runs already, it is taken as it is, and only checked: settings belong to whoever started
it. Otherwise one is started with Delta's JARs. They come from Maven the way Spark fetches any package, except that
JARs in Ivy's folder from an earlier start are used directly: that is faster and needs no network.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from buffer_delta.errors import JavaMissing, SparkUnusable
from buffer_delta.spark.source import register

if TYPE_CHECKING:
    from py4j.java_gateway import JVMView

log = logging.getLogger(__name__)

JAVA_VERSION_MIN = 17
_JAVA_CHECK_TIMEOUT_S = 60
_SCALA = "2.13"
_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

# Delta depends on what Spark ships itself, in other versions. Exact modules, not whole groups: an extra package
# such as hadoop-aws must keep its own.
_SHIPPED_BY_SPARK = (
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.parquet:parquet-hadoop",
    "com.fasterxml.jackson.core:jackson-annotations",
    "com.fasterxml.jackson.core:jackson-core",
    "com.fasterxml.jackson.core:jackson-databind",
    "com.fasterxml.jackson.datatype:jackson-datatype-jdk8",
    "com.github.luben:zstd-jni",
    "com.google.code.findbugs:jsr305",
    "io.airlift:aircompressor",
    "org.apache.logging.log4j:log4j-api",
    "org.apache.logging.log4j:log4j-core",
    "org.apache.logging.log4j:log4j-slf4j2-impl",
    "org.roaringbitmap:RoaringBitmap",
    "org.slf4j:slf4j-api",
    "org.xerial.snappy:snappy-java",
)

# What is left to load, as Ivy names the files. The version of the last two is not Delta's own.
_JARS = (
    "io.delta_delta-spark_{spark}_{scala}-{delta}.jar",
    "io.delta_delta-storage-{delta}.jar",
    "io.delta_delta-kernel-api-{delta}.jar",
    "io.delta_delta-kernel-defaults-{delta}.jar",
    "io.delta_delta-kernel-unitycatalog-{delta}.jar",
    "io.unitycatalog_unitycatalog-client-*.jar",
    "io.unitycatalog_unitycatalog-hadoop-*.jar",
)


def spark_session(
    app_name: str = "buffer-delta",
    *,
    master: str | None = None,
    memory: str | None = None,
    extra_packages: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
    small: bool = True,
) -> SparkSession:
    """The running session if there is one, else a new one with Delta. Raises JavaMissing or SparkUnusable.

    `master` defaults to `local[*]`, `memory` of the driver to 2g; `extra_packages` are Maven coordinates; `config`
    wins over everything set here. `small=False` leaves out the settings that suit one machine and small tables.
    """
    if os.environ.get("SPARK_REMOTE") or os.environ.get("SPARK_CONNECT_MODE_ENABLED"):
        raise SparkUnusable(
            "this is a Spark Connect session, which gives no access to Delta's log; the loader needs a classic "
            "driver: unset SPARK_REMOTE, or run it as a job on the cluster with spark-submit",
            found="Spark Connect",
        )
    running = _running_session()
    if running is not None:
        if master or memory or extra_packages or config:
            log.warning("a Spark session is running already: its own master, memory, packages and settings apply")
        check_delta(running)
        register(running)
        return running
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started the JVM and knows its settings
        settings = _submitted_settings()
    else:
        check_java()
        settings = _launch_settings(master or "local[*]", memory, extra_packages, small, config or {})
    settings |= {key: str(value) for key, value in (config or {}).items()}
    builder = SparkSession.builder.appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:  # whatever keeps a JVM from starting: packages that cannot be had, memory, ports
        raise SparkUnusable(
            f"Spark did not start: {error}. Its own messages are on stderr; without network access Delta's JARs "
            "must be in Ivy's folder from an earlier start, or be given with config={'spark.jars': …}",
            found=type(error).__name__,
        ) from error
    check_delta(spark)
    register(spark)
    return spark


def check_delta(spark: SparkSession) -> None:
    """Raise SparkUnusable, with the way out, if this session cannot read and write Delta tables."""
    try:
        jvm: JVMView = spark._jvm
        state = spark._jsparkSession.sessionState()
    except Exception as error:  # Spark Connect raises its own error types for both
        raise SparkUnusable(
            "this session has no JVM of its own (Spark Connect?); the loader needs a classic driver, because it "
            "reads Delta's log: run it with spark-submit, or in a notebook on a dedicated cluster",
            found=type(spark).__module__,
        ) from error
    how = (
        f"start it with --packages {_package()} --conf spark.sql.extensions={_EXTENSION} "
        f"--conf spark.sql.catalog.spark_catalog={_CATALOG}; or let buffer_delta.spark_session() start it"
    )
    try:
        jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource("delta", state.conf())
    except Exception as error:  # py4j wraps whatever the class loader says
        raise SparkUnusable(f"this Spark session lacks Delta Lake: {how}", found="no Delta Lake") from error
    if "DATABRICKS_RUNTIME_VERSION" not in os.environ and _EXTENSION not in spark.conf.get("spark.sql.extensions", ""):
        raise SparkUnusable(
            f"Delta's JARs are there, but the session runs without its SQL extension: {how}",
            found=f"spark.sql.extensions={spark.conf.get('spark.sql.extensions', '')!r}",
        )


def check_java() -> None:
    """Raise JavaMissing unless the Java that Spark would run is there and new enough."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else shutil.which("java")
    where = f"JAVA_HOME={home}" if home else "PATH"
    way_out = f"install Java {JAVA_VERSION_MIN} or later (a JRE is enough) and point JAVA_HOME to it or put it on PATH"
    if command is None:
        raise JavaMissing(
            f"Spark needs Java, and there is none: JAVA_HOME is not set and PATH has no java; {way_out}",
            found="nothing",
        )
    try:
        done = subprocess.run(
            [command, "-version"], capture_output=True, text=True, timeout=_JAVA_CHECK_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaMissing(
            f"Spark needs Java, but {command!r} (from {where}) does not run: {error}; {way_out}", found=command
        ) from error
    said = done.stderr + done.stdout
    version = java_major(said)
    if done.returncode != 0 or version is None:
        raise JavaMissing(
            f"{command!r} (from {where}) is no working Java: it said {said.strip()[:200]!r}; {way_out}",
            found=command,
        )
    if version < JAVA_VERSION_MIN:
        raise JavaMissing(
            f"Spark needs Java {JAVA_VERSION_MIN} or later; {command!r} (from {where}) is Java {version}: " + way_out,
            found=f"Java {version}",
        )


def java_major(said: str) -> int | None:
    """The major version in the output of `java -version`: 17 for "17.0.15", 8 for "1.8.0_402"."""
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(match[1]) if match else None


def _running_session() -> SparkSession | None:
    session = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if session is not None and session._sc._jsc is not None:
        return session
    # A context without a session: whatever made it (a test, an old script) owns its settings.
    return SparkSession(SparkContext._active_spark_context) if SparkContext._active_spark_context else None


def _package() -> str:
    try:
        delta = metadata.version("delta-spark")
    except metadata.PackageNotFoundError as error:
        raise SparkUnusable(
            "delta-spark is not installed; install the extra: pip install 'buffer-delta[spark]'", found="nothing"
        ) from error
    return f"io.delta:delta-spark_{_spark_line()}_{_SCALA}:{delta}"


def _spark_line() -> str:
    return ".".join(pyspark.__version__.split(".")[:2])


def _submitted_settings() -> dict[str, str]:
    """What the settings given to spark-submit leave to be added: they may name other extensions and catalogs."""
    SparkContext._ensure_initialized()
    given = SparkConf()
    extensions = [name for name in given.get("spark.sql.extensions", "").split(",") if name]
    settings = {}
    if _EXTENSION not in extensions:
        settings["spark.sql.extensions"] = ",".join([*extensions, _EXTENSION])
    if not given.contains("spark.sql.catalog.spark_catalog"):
        settings["spark.sql.catalog.spark_catalog"] = _CATALOG
    return settings


def _launch_settings(
    master: str, memory: str | None, extra_packages: Sequence[str], small: bool, config: Mapping[str, Any]
) -> dict[str, str]:
    local = master.startswith("local")
    settings = {
        "spark.master": master,
        "spark.driver.memory": memory or "2g",
        "spark.sql.extensions": _EXTENSION,
        "spark.sql.catalog.spark_catalog": _CATALOG,
    }
    if local:
        # Else Spark takes the first python3 on PATH for its workers, which may have none of our packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    if small:
        settings |= {
            # Delta's 50 and Spark's 200 make a small commit take seconds, nearly all of it empty tasks.
            "spark.databricks.delta.snapshotPartitions": "2",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
            # Kept even without the UI, up to 1,000 of each: a loader that runs for days would fill the heap with them.
            "spark.ui.retainedJobs": "50",
            "spark.ui.retainedStages": "50",
            "spark.ui.retainedTasks": "1000",
            "spark.sql.ui.retainedExecutions": "20",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_log4j_file()}",
        }
    given = {"spark.jars", "spark.jars.packages", "spark.driver.extraClassPath"} & config.keys()
    jars = cached_jars(_ivy_folder(config)) if local and not extra_packages and not given else None
    if jars:
        # Not spark.jars: in local mode each start would copy them and load Delta in a second class loader.
        settings["spark.driver.extraClassPath"] = os.pathsep.join(str(jar) for jar in jars)
    elif "spark.jars" not in given:
        settings["spark.jars.packages"] = ",".join([_package(), *extra_packages])
        settings["spark.jars.excludes"] = ",".join(_SHIPPED_BY_SPARK)
    return settings


def _log4j_file() -> str:
    return (Path(__file__).parent / "log4j2.properties").as_uri()


def _ivy_folder(config: Mapping[str, Any]) -> Path:
    return Path(str(config.get("spark.jars.ivy", Path.home() / ".ivy2.5.2")))


def cached_jars(ivy: Path) -> list[Path] | None:
    """Delta's JARs in Ivy's folder, if an earlier start has put all of them there, whole."""
    delta = _package().rsplit(":", 1)[1]
    found = []
    for pattern in _JARS:
        name = pattern.format(spark=_spark_line(), scala=_SCALA, delta=delta)
        matches = list((ivy / "jars").glob(name))
        # Two versions of one JAR: only Ivy knows which. No zip: another start is writing it at this moment.
        if len(matches) != 1 or not zipfile.is_zipfile(matches[0]):
            return None
        found += matches
    return found
