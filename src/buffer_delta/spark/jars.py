"""Which JARs a session needs, by the tables it writes, and which of them an earlier start has fetched already.

Spark fetches packages with Ivy, at every start, for seconds and with a look at the network. So what a fetch came to is
written down beside Ivy's JARs, one small file for each set of packages, and a later start puts those files on the
class path by itself. The list is used only if every file is still there, as long as it was, and whole.

What Spark ships itself is left out, whatever version a package asks for: two of one library on a class path is a
matter of luck.

If the process dies while it writes the list, a list that is cut short is no JSON, and the next start asks Ivy again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import pyspark

from buffer_delta.errors import SparkUnusable

log = logging.getLogger(__name__)

SCALA = "2.13"

# Delta depends on what Spark ships itself, in other versions. Exact modules, not whole groups: an extra package
# must keep its own.
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
# hadoop-aws asks for one bundle of every AWS service, 686 MB; these modules, with hadoop-aws 14 MB, are what it uses.
_AWS_BUNDLE = "software.amazon.awssdk:bundle"
_AWS_MODULES = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client", "url-connection-client")
_AWS_SHIPPED_BY_SPARK = (
    "commons-codec:commons-codec",
    "commons-logging:commons-logging",
    "org.apache.httpcomponents:httpclient",
    "org.apache.httpcomponents:httpcore",
    *(
        f"io.netty:netty-{part}"
        for part in (
            *("buffer", "codec", "codec-base", "codec-http", "codec-http2", "common", "handler", "resolver"),
            *("transport", "transport-classes-epoll", "transport-native-unix-common"),
        )
    ),
)
_AWS_SDK = {"3.5.0": "2.35.4"}
"""The version of the SDK that a version of Hadoop was built with."""


def delta_package() -> str:
    """Delta's Maven coordinates, in the version that is installed. Raises SparkUnusable."""
    try:
        delta = metadata.version("delta-spark")
    except metadata.PackageNotFoundError as error:
        raise SparkUnusable(
            "delta-spark is not installed; install the extra: pip install 'buffer-delta[spark]'", found="nothing"
        ) from error
    spark_line = ".".join(pyspark.__version__.split(".")[:2])
    return f"io.delta:delta-spark_{spark_line}_{SCALA}:{delta}"


def s3_packages() -> tuple[str, ...]:
    """What `s3a://` needs besides Spark, for the Hadoop that this Spark ships."""
    hadoop = _hadoop_version()
    sdk = _AWS_SDK.get(hadoop, max(_AWS_SDK.values()))
    return (
        f"org.apache.hadoop:hadoop-aws:{hadoop}",
        *(f"software.amazon.awssdk:{module}:{sdk}" for module in _AWS_MODULES),
    )


def excludes(packages: Iterable[str]) -> tuple[str, ...]:
    """What Ivy must not fetch along with these packages."""
    has_aws = any(package.startswith("org.apache.hadoop:hadoop-aws:") for package in packages)
    return (*_SHIPPED_BY_SPARK, *((_AWS_BUNDLE, *_AWS_SHIPPED_BY_SPARK) if has_aws else ()))


def ivy_folder(config: Mapping[str, Any]) -> Path:
    return Path(str(config.get("spark.jars.ivy", Path.home() / ".ivy2.5.2")))


@contextmanager
def fetching(ivy: Path) -> Iterator[None]:
    """One process at a time: two of Ivy's downloads of one file are in each other's way, and both starts may fail."""
    try:
        (ivy / "buffer-delta").mkdir(parents=True, exist_ok=True)
        lock = (ivy / "buffer-delta" / "fetching").open("a")
    except OSError as error:  # a home that is read-only: whoever fetches will say so
        log.info("fetching without a lock: %s", error)
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # whoever dies lets it go
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # closing alone is not enough: a child forked meanwhile has the file too


def known_jars(ivy: Path, packages: Sequence[str]) -> list[Path] | None:
    """The JARs of these packages, as an earlier start has fetched them; None if that has to be done again."""
    try:
        listed = json.loads(_list_file(ivy, packages).read_text(encoding="utf-8"))
        jars = [(ivy / "jars" / name, int(size)) for name, size in listed.items()]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError, TypeError) as error:
        log.info("fetching the JARs again: the list of the last time cannot be read: %s", error)
        return None
    # No zip: another start is writing it at this moment.
    is_whole = all(jar.is_file() and jar.stat().st_size == size and zipfile.is_zipfile(jar) for jar, size in jars)
    return [jar for jar, _ in jars] if jars and is_whole else None


def remember_jars(ivy: Path, packages: Sequence[str], fetched: Iterable[str]) -> None:
    """Write down what Ivy made of these packages. `fetched`: the files, as Spark's own settings name them."""
    folder = ivy / "jars"
    names = [name.rpartition("/")[2] for name in fetched]
    shipped = {_artifact(jar.name) for jar in spark_jars().glob("*.jar")}
    jars = [folder / name for name in names if _artifact(name.partition("_")[2] or name) not in shipped]
    path = _list_file(ivy, packages)
    try:
        listed = {jar.name: jar.stat().st_size for jar in jars}
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(listed, indent=1), encoding="utf-8")
        draft.replace(path)
    except OSError as error:  # a home that is read-only, JARs from elsewhere: only the next start is slower
        log.info("the next start will ask Ivy again: %s", error)


def _list_file(ivy: Path, packages: Sequence[str]) -> Path:
    wanted = "\n".join([pyspark.__version__, *packages, *excludes(packages)])
    return ivy / "buffer-delta" / f"{hashlib.sha256(wanted.encode()).hexdigest()[:16]}.json"


def _artifact(jar: str) -> str:
    """`netty-buffer` of `netty-buffer-4.2.13.Final.jar`."""
    return re.sub(r"-\d[\w.]*(-.*)?\.jar$", "", jar)


def spark_jars() -> Path:
    """The folder of the JARs that the installed pyspark ships."""
    return Path(pyspark.__file__).parent / "jars"


def _hadoop_version() -> str:
    found = sorted(spark_jars().glob("hadoop-client-api-*.jar"))
    return found[0].stem.removeprefix("hadoop-client-api-") if found else max(_AWS_SDK)
