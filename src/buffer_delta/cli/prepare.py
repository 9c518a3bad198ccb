"""`buffer-delta prepare`: what a machine needs to start Spark quickly, done once, ahead of time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from buffer.cli.printing import echo
from buffer_delta.cli.spark import explaining_spark
from buffer_delta.errors import SparkUnusable

_LINES_SHOWN = 3


@click.command(short_help="Fetch Spark's JARs, and halve its start on this machine.")
@click.option("--s3", is_flag=True, help="For tables on S3, too.")
@click.option("--package", "packages", multiple=True, metavar="COORDINATES", help="Maven package to add, as for load.")
@click.option("--again", is_flag=True, help="Make the archive anew, even if there is one.")
def prepare(s3: bool, packages: Sequence[str], again: bool) -> None:
    """Make this machine ready: fetch Spark's JARs, and halve the time that Spark takes to start here.

    Java can keep the classes that a start loads in one file, a class archive; this makes it, in less than a minute.
    It lies beside the JARs in ~/.ivy2.5.2, takes about 200 MB, and is used by every session that `buffer-delta` or
    spark_session() starts on this machine. Nothing depends on it: where it is missing, or does not fit another Java
    or Spark, a start takes longer. Run it when an image is built, or once on a laptop.
    """
    with explaining_spark():
        from buffer_delta.spark import archive, jars
        from buffer_delta.spark.session import check_java

        check_java()
        extra = [*(jars.s3_packages() if s3 else ()), *packages]
        wanted, ivy = (jars.delta_package(), *extra), jars.ivy_folder({})
    if jars.known_jars(ivy, wanted) is None:
        echo("fetching Spark's JARs …", err=True)
        _work(extra)
    known = jars.known_jars(ivy, wanted)
    path = archive.archive_file(ivy, known) if known else None
    if path is None:
        raise SparkUnusable(f"the JARs were fetched, but {ivy} does not keep them: is it writable?", found=str(ivy))
    if archive.is_whole(path) and not again:
        echo(f"ready: {path}", err=True)
        return
    echo("making the class archive, half a minute …", err=True)
    draft = path.with_name(f"{path.stem}.{os.getpid()}.draft")
    try:
        _work(extra, draft)
        if not draft.exists():
            raise SparkUnusable(f"{archive.java_command()} makes no class archives; starts stay as they are", found="")
        archive.keep(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    echo(f"ready: {path}, {path.stat().st_size / 1e6:.0f} MB", err=True)


def _work(packages: Sequence[str], draft: Path | None = None) -> None:
    task = {"packages": list(packages), "draft": str(draft) if draft else None}
    command = [sys.executable, "-m", "buffer_delta.cli.prepare_worker", json.dumps(task)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        said = " | ".join(done.stderr.strip().splitlines()[-_LINES_SHOWN:])
        raise SparkUnusable(f"Spark could not be started and tried: {said}", found=str(done.returncode))
