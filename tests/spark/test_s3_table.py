"""Tables on S3: what the session is told, and the printed example on a real server, with Spark's own s3a."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from buffer_delta.config import LoaderConfig
from buffer_delta.errors import SparkUnusable
from buffer_delta.spark import jars
from buffer_delta.spark.s3a import s3_buckets, s3a_settings, store_options
from buffer_delta.spark.session import spark_session
from tests.servers import S3Server

EXAMPLE = Path(__file__).parents[2] / "examples" / "s3_to_delta.py"


def test_should_find_the_buckets_of_tables_on_s3() -> None:
    tables = [
        "s3a://lake/a",
        "s3://other.bucket/b",
        "delta.`s3a://quoted/t`",
        "s3a://lake/c",
        "events",
        "./s3/x",
        "gs://g/t",
    ]
    assert s3_buckets(tables) == ["lake", "other.bucket", "quoted"]


def test_should_translate_the_options_of_the_store_for_the_bucket_alone() -> None:
    options = {
        "aws_endpoint": "http://127.0.0.1:1",
        "AWS_REGION": "here",
        "access_key_id": "k",
        "secret_access_key": "s",
    }
    assert s3a_settings(["lake"], {**options, "client_options": {"allow_http": True}}) == {
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3n.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3a.bucket.lake.endpoint": "http://127.0.0.1:1",
        "fs.s3a.bucket.lake.endpoint.region": "here",
        "fs.s3a.bucket.lake.access.key": "k",
        "fs.s3a.bucket.lake.secret.key": "s",
        "fs.s3a.bucket.lake.path.style.access": "true",
        "fs.s3a.bucket.lake.connection.ssl.enabled": "false",
        "fs.s3a.bucket.lake.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    }
    temporary = s3a_settings(["b"], {"access_key_id": "k", "secret_access_key": "s", "session_token": "t"})
    assert temporary["fs.s3a.bucket.b.aws.credentials.provider"].endswith("TemporaryAWSCredentialsProvider")
    assert "fs.s3a.bucket.b.path.style.access" not in temporary, "Amazon's own default"
    public = s3a_settings(["b"], {"skip_signature": True})
    assert public["fs.s3a.bucket.b.aws.credentials.provider"].endswith("AnonymousAWSCredentialsProvider")


def test_should_leave_alone_what_the_caller_set() -> None:
    given = {"spark.hadoop.fs.s3a.endpoint": "x", "spark.hadoop.fs.s3a.bucket.b.access.key": "y"}
    made = s3a_settings(["b", "c"], {"endpoint": "https://e", "access_key_id": "k"}, given=given)
    assert not {"fs.s3a.bucket.b.endpoint", "fs.s3a.bucket.c.endpoint", "fs.s3a.bucket.b.access.key"} & made.keys()
    assert made["fs.s3a.bucket.c.access.key"] == "k"


def test_should_take_keys_only_from_a_store_on_s3() -> None:
    table = "s3a://lake/t"
    local = LoaderConfig(store="./queue", store_options={"access_key_id": "k"}, table=table)
    assert store_options(local, {"AWS_ENDPOINT_URL": "https://e", "AWS_SECRET_ACCESS_KEY": "s"}) == {
        "endpoint_url": "https://e"
    }
    remote = LoaderConfig(store="s3://b/q", store_options={"endpoint": "https://own"}, table=table)
    made = s3a_settings(["lake"], store_options(remote, {"AWS_ENDPOINT_URL": "https://e"}))
    assert made["fs.s3a.bucket.lake.endpoint"] == "https://own", "what was given wins over the environment"


def test_should_fetch_the_small_modules_instead_of_the_bundle() -> None:
    packages = [jars.delta_package(), *jars.s3_packages()]
    assert any(package.startswith("org.apache.hadoop:hadoop-aws:") for package in packages)
    assert "software.amazon.awssdk:bundle" in jars.excludes(packages)
    assert "software.amazon.awssdk:bundle" not in jars.excludes(packages[:1])


def test_should_say_what_a_running_session_lacks_for_s3(spark: SparkSession) -> None:
    config = LoaderConfig(store="./queue", table="s3a://lake/t")
    with pytest.raises(SparkUnusable, match=r"cannot write to S3: start it with --packages .*hadoop-aws") as caught:
        spark_session(loads=config)
    assert caught.value.found == "no s3a"


@pytest.mark.thorough
@pytest.mark.timeout(900)  # its first run fetches JARs
def test_should_load_a_queue_on_s3_into_a_table_on_s3_as_printed(s3_server: S3Server, tmp_path: Path) -> None:
    keys = {
        "AWS_ACCESS_KEY_ID": s3_server.options["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": s3_server.options["secret_access_key"],
    }
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--bucket", s3_server.new_bucket(), "--endpoint", s3_server.endpoint],
        env={**os.environ, **keys},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    assert "1000 rows, 1000 distinct" in done.stdout
    assert keys["AWS_SECRET_ACCESS_KEY"] not in said
