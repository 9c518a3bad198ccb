"""Sessions: the one that runs, Java that is missing or too old, JARs from an earlier start."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from buffer_delta.errors import JavaMissing, SparkUnusable
from buffer_delta.spark import jars, session
from buffer_delta.spark.session import check_delta, check_java, java_major, spark_session
from tests.nets import HANGS_S


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


def test_should_not_start_java_to_learn_its_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "it was started", code=1)
    monkeypatch.setenv("JAVA_HOME", str(home))
    (home / "release").write_text('IMPLEMENTOR="X"\nJAVA_VERSION="17.0.15"\n')
    check_java()
    (home / "release").write_text('JAVA_VERSION="1.8.0_402"\n')  # then it is asked, for the words of the error
    with pytest.raises(JavaMissing, match="it was started"):
        check_java()


def a_jar(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as jar:
        jar.writestr("x", "y")
    return folder / name


def test_should_use_jars_of_an_earlier_start_only_if_all_are_whole(tmp_path: Path) -> None:
    packages = [jars.delta_package()]
    names = ["io.delta_delta-spark_4.2_2.13-4.4.0.jar", "io.delta_delta-storage-4.4.0.jar"]
    files = [a_jar(tmp_path / "jars", name) for name in names]
    assert jars.known_jars(tmp_path, packages) is None, "no start has fetched them"
    jars.remember_jars(tmp_path, packages, [f"file://{file}" for file in files])
    assert jars.known_jars(tmp_path, packages) == files
    assert jars.known_jars(tmp_path, [*packages, "org.x:y:1"]) is None, "of other packages nothing is known"
    whole = files[0].read_bytes()
    for damaged in (whole[:20], b"x" * len(whole)):  # another start is copying it at this moment
        files[0].write_bytes(damaged)
        assert jars.known_jars(tmp_path, packages) is None
    files[0].write_bytes(whole)
    assert jars.known_jars(tmp_path, packages) == files
    (listed,) = (tmp_path / "buffer-delta").glob("*.json")
    listed.write_text(listed.read_text()[:30])  # the machine stopped in the middle of a write
    assert jars.known_jars(tmp_path, packages) is None


def test_should_fetch_jars_in_one_process_at_a_time(tmp_path: Path) -> None:
    lock = tmp_path / "buffer-delta" / "fetching"
    with jars.fetching(tmp_path), lock.open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with lock.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_should_keep_what_spark_ships_off_the_class_path(tmp_path: Path) -> None:
    """Two versions of one library are a matter of luck, also where a package brings one in spite of the excludes."""
    shipped = next((Path(pyspark.__file__).parent / "jars").glob("netty-buffer-4*.jar")).name
    ours, theirs = "software.amazon.awssdk_s3-2.35.4.jar", f"io.netty_{shipped.replace('4.', '4.1.9', 1)}"
    for name in (ours, theirs):
        a_jar(tmp_path / "jars", name)
    jars.remember_jars(tmp_path, ["p"], [ours, theirs])
    assert [jar.name for jar in jars.known_jars(tmp_path, ["p"]) or []] == [ours]


LAPTOP = {
    "spark.driver.bindAddress",
    "spark.databricks.delta.snapshotPartitions",
    "spark.ui.enabled",
    "spark.driver.extraJavaOptions",
}


@pytest.mark.parametrize("master", ["yarn", "spark://host:7077", "k8s://https://host", "localhost-by-name"])
def test_should_leave_a_cluster_its_own_settings(master: str) -> None:
    cluster = session._launch_settings(master, None, [jars.delta_package()], None, {})
    assert cluster["spark.jars.packages"].startswith("io.delta:delta-spark_")
    assert "org.apache.hadoop:hadoop-client-api" in cluster["spark.jars.excludes"]
    assert not cluster.keys() & {*LAPTOP, "spark.driver.memory", "spark.sql.shuffle.partitions"}
    assert session._launch_settings(master, "4g", ["p"], None, {})["spark.driver.memory"] == "4g"
    assert session._launch_settings(master, None, ["p"], True, {}).keys() >= LAPTOP - {"spark.driver.bindAddress"}


def test_should_give_the_executors_of_a_local_cluster_their_jars(tmp_path: Path) -> None:
    """They are processes of their own, which the driver's class path does not reach."""
    ivy = {"spark.jars.ivy": str(tmp_path)}
    jars.remember_jars(tmp_path, ["p"], [a_jar(tmp_path / "jars", "p_p-1.jar").name])
    one = session._launch_settings("local[2]", None, ["p"], None, ivy)
    assert "spark.jars.packages" not in one
    several = session._launch_settings("local-cluster[2,1,1024]", None, ["p"], None, ivy)
    assert several["spark.jars.packages"] == "p"
    assert "spark.driver.extraClassPath" not in several
    assert several.keys() >= LAPTOP, "it is one machine all the same"


def test_should_fetch_packages_where_jars_cannot_be_used_directly(tmp_path: Path) -> None:
    empty = {"spark.jars.ivy": str(tmp_path)}
    more = session._launch_settings("local[2]", "4g", [jars.delta_package(), "org.x:y:1"], None, empty)
    logging = more["spark.driver.extraJavaOptions"].partition("configurationFile=file://")[2].split()[0]
    assert Path(logging).is_file(), "it moves with the module"
    assert more["spark.jars.packages"].endswith(",org.x:y:1")
    assert more["spark.driver.memory"] == "4g"
    given = session._launch_settings("local[2]", None, ["p"], None, {"spark.jars": "/x.jar"})
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


@pytest.mark.thorough
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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANGS_S, check=False)
    assert "REFUSED no Delta Lake True" in done.stdout, done.stderr[-2000:]
