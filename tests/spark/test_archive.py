"""The class archive: found where it fits, left alone where it does not, used by the JVM that runs these tests."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from buffer_delta.spark import archive, jars


@pytest.fixture
def ivy(tmp_path: Path) -> Path:
    (tmp_path / "buffer-delta").mkdir()
    return tmp_path


@pytest.fixture
def known(tmp_path: Path) -> list[Path]:
    jar = tmp_path / "delta.jar"
    jar.write_bytes(b"classes")
    return [jar]


def made(ivy: Path, known: list[Path], content: bytes = b"archive") -> Path:
    path = archive.archive_file(ivy, known)
    assert path is not None
    draft = path.with_suffix(".draft")
    draft.write_bytes(content)
    archive.keep(draft, path)
    return path


def test_should_use_an_archive_that_was_made_for_these_jars(ivy: Path, known: list[Path]) -> None:
    assert archive.using_options(ivy, known) == []

    path = made(ivy, known)

    assert archive.using_options(ivy, known)[0] == f"-XX:SharedArchiveFile={path}"


def test_should_not_use_it_for_jars_that_changed(ivy: Path, known: list[Path]) -> None:
    made(ivy, known)

    known[0].write_bytes(b"other classes")

    assert archive.using_options(ivy, known) == []


def test_should_not_use_it_for_a_spark_that_was_installed_again(
    ivy: Path, known: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the same place, in the same version: Java goes by the times of the files, and starts without it."""
    spark = tmp_path / "spark"
    spark.mkdir()
    jar = spark / "spark-core.jar"
    jar.write_bytes(b"classes")
    monkeypatch.setattr(jars, "spark_jars", lambda: spark)
    path = made(ivy, known)

    os.utime(jar, ns=(0, 0))

    assert archive.using_options(ivy, known) == []
    assert made(ivy, known) != path
    assert not path.exists(), "nobody will use it again"


def test_should_not_use_it_with_another_java(ivy: Path, known: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    made(ivy, known)

    monkeypatch.setenv("JAVA_HOME", str(ivy / "another"))

    assert archive.using_options(ivy, known) == []


def test_should_not_use_one_that_was_cut_short(ivy: Path, known: list[Path]) -> None:
    path = made(ivy, known)

    os.truncate(path, 3)

    assert not archive.is_whole(path)
    assert archive.using_options(ivy, known) == []


def test_should_not_use_one_whose_maker_died_before_it_was_noted(ivy: Path, known: list[Path]) -> None:
    path = made(ivy, known)

    path.with_name(f"{path.name}.json").write_text('{"byt')

    assert archive.using_options(ivy, known) == []


def test_should_remove_archives_of_installations_that_are_gone(ivy: Path, known: list[Path]) -> None:
    gone = ivy / "buffer-delta" / "0123456789abcdef.jsa"
    gone.write_bytes(b"old")
    note = gone.with_name(f"{gone.name}.json")
    note.write_text(json.dumps({"bytes": 3, "spark": str(ivy / "deleted"), "jars": "none"}))

    path = made(ivy, known)

    assert not gone.exists()
    assert not note.exists()
    assert archive.is_whole(path)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads what a process has mapped from /proc")
def test_should_be_mapped_by_a_running_session_if_there_is_one(spark: SparkSession) -> None:
    known = jars.known_jars(jars.ivy_folder({}), [jars.delta_package()])
    assert known is not None, "the session of these tests has fetched them"
    path = archive.archive_file(jars.ivy_folder({}), known)
    assert path is not None
    given = spark.sparkContext.getConf().get("spark.driver.defaultJavaOptions", "")
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()

    is_mapped = str(path) in Path(f"/proc/{pid}/maps").read_text()

    assert is_mapped == (str(path) in given)
