"""A SparkSession that can write Delta tables, tuned for its size.

    spark = spark_session()                         # a laptop, a test, a demo: starts one
    spark = spark_session("events", loads=config)   # … that can write the tables of this LoaderConfig, on S3 too
    spark = spark_session("nightly load")           # Databricks, EMR, a notebook, spark-submit: uses the one there

Where a session or its JVM runs already, it is taken as it is, and only checked: settings belong to whoever started
it. Otherwise one is started with Delta's JARs, and with those that the tables' URLs need (`jars.py`). They come from
Maven the way Spark fetches any package, except that what an earlier start has fetched is used directly: that is faster
and needs no network. Where `buffer-delta prepare` has made a class archive (`archive.py`), a start takes half as long.

Settings that suit one machine and small tables are set where Spark runs on one machine (`local`, `local[…]`,
`local-cluster[…]`), and nowhere else: a cluster has its own.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from buffer_delta.errors import JavaMissing, SparkUnusable
from buffer_delta.spark import archive, jars
from buffer_delta.spark.s3a import FILE_SYSTEM, Loads, s3_buckets, s3a_settings, store_options
from buffer_delta.spark.source import register

if TYPE_CHECKING:
    from py4j.java_gateway import JVMView

log = logging.getLogger(__name__)

JAVA_VERSION_MIN = 17
_JAVA_CHECK_TIMEOUT_S = 60
_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

_SMALL_JVM = (
    # Memory that an idle loader does not need goes back to the system: a collection now and then shrinks the heap. G1
    # is the JVM's own choice; naming it would keep one from starting whose owner chose another (JDK_JAVA_OPTIONS).
    "-XX:G1PeriodicGCInterval=15000",
    "-XX:MinHeapFreeRatio=10",
    "-XX:MaxHeapFreeRatio=30",
    # The optimising compiler takes a third of the work of a start. Ten times later it takes only what is really hot.
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
    "-XX:+IgnoreUnrecognizedVMOptions",  # of a Java that does not know one of them
)


def spark_session(
    app_name: str = "buffer-delta",
    *,
    master: str | None = None,
    memory: str | None = None,
    extra_packages: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
    small: bool | None = None,
    loads: Loads | None = None,
    data_source: bool = True,
    traces: bool = False,
) -> SparkSession:
    """The running session if there is one, else a new one with Delta. Raises JavaMissing or SparkUnusable.

    `master` defaults to `local[*]`, `memory` of the driver to 2g on one machine and to Spark's own default on a
    cluster; `extra_packages` are Maven coordinates; `config` wins over everything set here. `small` says whether to
    use the settings for one machine and small tables; unless given, the master tells.

    `loads` is the configuration of the loader that will use it. If a table of it lies on S3, a new session gets the
    file system `s3a://`, with endpoint and keys of the queue's store for the bucket of that table, where the store is
    on S3 too (`store_options`). `data_source=False` leaves out the data source `buffer`, which costs a Python process
    at the start, for who does not use it. Of what fails on an executor a small session logs nothing: the driver raises
    it; `traces=True` logs Java's traces.
    """
    config = config or {}
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
        _make_ready(running, loads, data_source)
        return running
    buckets = s3_buckets(loads.tables()) if loads else []
    packages = (jars.delta_package(), *(jars.s3_packages() if buckets else ()), *extra_packages)
    given = {key: str(value) for key, value in config.items()}
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started the JVM and knows its settings
        spark = _started(app_name, _submitted_settings() | given)
    else:
        check_java()
        spark = _launched(app_name, master or "local[*]", memory, packages, small, given, traces)
    if buckets and loads is not None:
        # Inside the JVM, not as settings of Spark: those stand on its command line for everyone to read.
        hadoop = spark.sparkContext._jsc.hadoopConfiguration()
        for key, value in s3a_settings(buckets, store_options(loads, os.environ), given=config).items():
            hadoop.set(key, value)
    _make_ready(spark, loads, data_source)
    return spark


def _launched(
    app_name: str,
    master: str,
    memory: str | None,
    packages: Sequence[str],
    small: bool | None,
    config: Mapping[str, str],
    traces: bool,
) -> SparkSession:
    """A session in a JVM that is started for it."""

    def settings() -> dict[str, str]:
        return {**_launch_settings(master, memory, packages, small, config, traces), **config}

    asked = settings()
    if "spark.jars.packages" not in asked:
        return _started(app_name, asked)
    ivy = jars.ivy_folder(config)
    with jars.fetching(ivy):  # another process may have done it meanwhile
        asked = settings()
        spark = _started(app_name, asked)
        if "spark.jars.packages" in asked:
            fetched = spark.sparkContext.getConf().get("spark.jars", "")
            jars.remember_jars(ivy, packages, [jar for jar in fetched.split(",") if jar])
        return spark


def _started(app_name: str, settings: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:  # whatever keeps a JVM from starting: packages that cannot be had, memory, ports
        raise SparkUnusable(
            f"Spark did not start: {error}. Its own messages are on stderr; without network access the JARs "
            "must be in Ivy's folder from an earlier start, or be given with config={'spark.jars': …}",
            found=type(error).__name__,
        ) from error


def _make_ready(spark: SparkSession, loads: Loads | None, data_source: bool) -> None:
    check_delta(spark)
    if loads is not None and s3_buckets(loads.tables()):
        check_s3(spark)
    if data_source:
        register(spark)


def check_s3(spark: SparkSession) -> None:
    """Raise SparkUnusable, with the way out, if this session has no file system for tables on S3."""
    if "DATABRICKS_RUNTIME_VERSION" in os.environ:  # it has one of its own
        return
    try:
        spark._jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader().loadClass(FILE_SYSTEM)
    except Exception as error:  # py4j wraps whatever the class loader says
        packages = [jars.delta_package(), *jars.s3_packages()]
        raise SparkUnusable(
            f"this Spark session cannot write to S3: start it with --packages {','.join(packages)} "
            f"--exclude-packages {','.join(jars.excludes(packages))}; or let buffer_delta.spark_session(loads=config) "
            "start it",
            found="no s3a",
        ) from error


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
        f"start it with --packages {jars.delta_package()} --conf spark.sql.extensions={_EXTENSION} "
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
    home, command = os.environ.get("JAVA_HOME"), archive.java_command()
    where = f"JAVA_HOME={home}" if home else "PATH"
    way_out = f"install Java {JAVA_VERSION_MIN} or later (a JRE is enough) and point JAVA_HOME to it or put it on PATH"
    if command is None:
        raise JavaMissing(
            f"Spark needs Java, and there is none: JAVA_HOME is not set and PATH has no java; {way_out}",
            found="nothing",
        )
    if (known := _installed_version(Path(command))) is not None and known >= JAVA_VERSION_MIN:
        return  # asking Java itself costs as much as starting it
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


def _installed_version(command: Path) -> int | None:
    """The major version by the file `release`, which most Javas have beside their `bin`; None: ask Java."""
    try:
        text = (command.resolve(strict=True).parent.parent / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r'^JAVA_(VERSION="(?:1\.)?\d+)', text, re.MULTILINE)
    return java_major(match[1].lower().replace("=", " ")) if match else None


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
    master: str,
    memory: str | None,
    packages: Sequence[str],
    small: bool | None,
    config: Mapping[str, Any],
    traces: bool = False,
) -> dict[str, str]:
    here = is_one_machine(master)
    settings = {
        "spark.master": master,
        "spark.sql.extensions": _EXTENSION,
        "spark.sql.catalog.spark_catalog": _CATALOG,
        # In ms. Arrow's allocator gives freed memory back after 10, only to ask for it again with the next batch, or
        # with the next range. Spark ends a worker that had nothing to do for a minute.
        "spark.executorEnv.MIMALLOC_PURGE_DELAY": "5000",
    }
    if memory or here:
        settings["spark.driver.memory"] = memory or "2g"
    if here:
        # Else Spark takes the first python3 on PATH for its workers, which may have none of our packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    if is_one_process(master):
        # A task that finds no room in the heap fails, as any other. Spark's default ends the executor, which is the
        # driver here: a record of which a transform makes too much would end every start of the loader.
        settings["spark.executor.killOnFatalError.depth"] = "0"
    if here if small is None else small:
        settings |= _small_settings(traces)
    given = {"spark.jars", "spark.jars.packages", "spark.driver.extraClassPath"} & config.keys()
    if not given and is_one_process(master) and (known := jars.known_jars(jars.ivy_folder(config), packages)):
        # Not spark.jars: in local mode each start would copy them and load Delta in a second class loader.
        settings["spark.driver.extraClassPath"] = os.pathsep.join(str(jar) for jar in known)
        if options := archive.using_options(jars.ivy_folder(config), known):
            settings["spark.driver.defaultJavaOptions"] = " ".join(options)  # … to which config may add its own
    elif "spark.jars" not in given:
        settings["spark.jars.packages"] = ",".join(packages)
        settings["spark.jars.excludes"] = ",".join(jars.excludes(packages))
        settings["spark.jars.ivy"] = str(jars.ivy_folder(config))  # Java asks the system for the home, not HOME
    return settings


def is_one_machine(master: str) -> bool:
    """Whether all of Spark runs on this machine."""
    return master == "local" or master.startswith(("local[", "local-cluster["))


def is_one_process(master: str) -> bool:
    """… and in the driver's JVM: executors of a `local-cluster` are processes with a class path of their own."""
    return is_one_machine(master) and not master.startswith("local-cluster[")


def _small_settings(traces: bool) -> dict[str, str]:
    return {
        # Delta's 50 and Spark's 200 make a small commit take seconds, nearly all of it empty tasks.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.shuffle.partitions": "2",
        # VACUUM spreads what it has listed over as many tasks as this, and the default is 10,000: a minute of 2 cores.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        "spark.ui.enabled": "false",
        # Kept even without the UI, up to 1,000 of each: a loader that runs for days would fill the heap with them.
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "1000",
        "spark.sql.ui.retainedExecutions": "20",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": " ".join([f"-Dlog4j2.configurationFile={_log4j_file(traces)}", *_SMALL_JVM]),
    }


def _log4j_file(traces: bool) -> str:
    return (Path(__file__).parent / ("log4j2-traces.properties" if traces else "log4j2.properties")).as_uri()
