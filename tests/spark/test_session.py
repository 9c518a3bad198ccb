"""Sessions: the one that runs, Java that is missing or too old, JARs from an earlier start."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from buffer_delta.errors import JavaMissing, SparkUnusable
from buffer_delta.spark import session
from buffer_delta.spark.session import cached_jars, check_delta, check_java, java_major, spark_session


def fake_java(folder: Path, says: str, code: int = 0) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    java.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("said", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("Error: could not find libjava.so", None),
    ],
)
def test_should_read_what_java_says(said: str, major: int | None) -> None:
    assert java_major(said) == major


def test_should_say_that_there_is_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match=r"PATH has no java; install Java 17 or later") as caught:
        check_java()
    assert caught.value.found == "nothing"


def test_should_say_that_java_is_too_old_and_where_it_was_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = fake_java(tmp_path / "jdk8", 'java version "1.8.0_402"')
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(JavaMissing, match=f"JAVA_HOME={home}.* is Java 8") as caught:
        check_java()
    assert caught.value.found == "Java 8"
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", f"{home}/bin{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(JavaMissing, match=r"from PATH\) is Java 8"):
        check_java()


def test_should_say_that_java_home_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissing, match="does not run"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "broken", "cannot find libjli.so", code=127)))
    with pytest.raises(JavaMissing, match=r"no working Java: it said 'cannot find libjli\.so'"):
        check_java()


def test_should_accept_java_17(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, 'openjdk version "17.0.15" 2025-04-15')))
    check_java()


def test_should_use_jars_of_an_earlier_start_only_if_all_are_whole(tmp_path: Path) -> None:
    names = [
        pattern.format(spark=session._spark_line(), scala="2.13", delta=session._package().rsplit(":", 1)[1])
        for pattern in session._JARS
    ]
    names = [name.replace("*", "0.6.0") for name in names]
    assert cached_jars(tmp_path) is None
    (tmp_path / "jars").mkdir()
    for name in names:
        assert cached_jars(tmp_path) is None
        with zipfile.ZipFile(tmp_path / "jars" / name, "w") as jar:
            jar.writestr("x", "y")
    assert [jar.name for jar in cached_jars(tmp_path) or []] == names
    whole = (tmp_path / "jars" / names[0]).read_bytes()
    (tmp_path / "jars" / names[0]).write_bytes(whole[:20])  # another start is copying it at this moment
    assert cached_jars(tmp_path) is None
    (tmp_path / "jars" / names[0]).write_bytes(whole)
    (tmp_path / "jars" / names[-1].replace("0.6.0", "0.7.0")).write_bytes(whole)  # which of the two?
    assert cached_jars(tmp_path) is None


def test_should_fetch_packages_where_jars_cannot_be_used_directly() -> None:
    cluster = session._launch_settings("yarn", None, (), False, {})
    assert cluster["spark.jars.packages"].startswith("io.delta:delta-spark_")
    assert "org.apache.hadoop:hadoop-client-api" in cluster["spark.jars.excludes"]
    assert "spark.driver.bindAddress" not in cluster
    assert "spark.databricks.delta.snapshotPartitions" not in cluster
    more = session._launch_settings("local[2]", "4g", ["org.x:y:1"], True, {})
    logging = more["spark.driver.extraJavaOptions"].partition("configurationFile=file://")[2]
    assert Path(logging).is_file(), "it moves with the module"
    assert more["spark.jars.packages"].endswith(",org.x:y:1")
    assert more["spark.driver.memory"] == "4g"
    given = session._launch_settings("local[2]", None, (), True, {"spark.jars": "/x.jar"})
    assert not {"spark.jars.packages", "spark.driver.extraClassPath"} & given.keys()


def test_should_use_the_session_that_runs(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    assert spark_session("another name") is spark
    assert spark.sparkContext.appName == "buffer-delta tests"
    assert not caplog.records
    assert spark_session(memory="8g") is spark
    assert "its own master, memory" in caplog.text


def test_should_be_tuned_for_one_small_machine(spark: SparkSession) -> None:
    assert spark.conf.get("spark.databricks.delta.snapshotPartitions") == "2"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.sparkContext.pythonExec == os.environ["PYSPARK_PYTHON"]


def test_should_refuse_spark_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost")
    with pytest.raises(SparkUnusable, match="Spark Connect"):
        spark_session()
    with pytest.raises(SparkUnusable, match="no JVM of its own"):
        check_delta(object())  # type: ignore[arg-type]  # a Connect session has no more of a JVM than this


def test_should_say_what_a_session_without_delta_lacks() -> None:
    """In a process of its own: here a session with Delta runs."""
    script = """
from pyspark.sql import SparkSession
from buffer_delta.errors import SparkUnusable
from buffer_delta.spark.session import spark_session
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    spark_session()
except SparkUnusable as error:
    print("REFUSED", error.found, "--packages io.delta:delta-spark_" in str(error))
spark.stop()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert "REFUSED no Delta Lake True" in done.stdout, done.stderr[-2000:]
