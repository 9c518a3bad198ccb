"""Where a table's files are, by its URL and Hadoop's settings; and that no key is ever shown."""

from __future__ import annotations

import pickle
import traceback
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from buffer_delta.delta.files import FileRules, write_files
from buffer_delta.delta.table_store import NoStore, TableStore, table_store
from tests.servers import AzureServer, S3Server, StoreAddress

KEYS = {"fs.s3a.access.key": "AKIA-x", "fs.s3a.secret.key": "hush-hush"}
PROVIDER = "fs.s3a.aws.credentials.provider"
HADOOP = "org.apache.hadoop.fs.s3a."


def options(location: str, conf: dict[str, str], table_options: dict[str, Any] | None = None) -> Any:
    found = table_store(location, conf, table_options)
    assert isinstance(found, TableStore), found
    return found.options


def reason(location: str, conf: dict[str, str], table_options: dict[str, Any] | None = None) -> str:
    found = table_store(location, conf, table_options)
    assert isinstance(found, NoStore), found
    return found.reason


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("/data/t", "/data/t"),
        ("data/t", "./data/t"),
        ("./data/t", "./data/t"),
        ("file:/data/t", "/data/t"),
        ("file:///data/a b#%41é", "/data/a b#%41é"),
        ("s3a://bucket/a/t", "s3://bucket/a/t"),
        ("s3://bucket/t/", "s3://bucket/t"),
        ("s3n://bucket", "s3://bucket"),
        ("S3A://bucket/a b%41", "s3://bucket/a b%41"),
        ("gs://bucket/t", "gs://bucket/t"),
        ("abfss://box@account.dfs.core.windows.net/t", "az://box/t"),
        ("wasbs://box@account.blob.core.windows.net/t", "az://box/t"),
    ],
)
def test_should_find_the_store_of_a_url(location: str, url: str) -> None:
    found = table_store(location, {"fs.azure.account.key.account.dfs.core.windows.net": "a2V5"})
    assert isinstance(found, TableStore)
    assert found.url == url
    assert found.open().url
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("location", "conf", "told"),
    [
        ("hdfs://name/t", {}, "hdfs://"),
        ("dbfs:/mnt/t", {}, "dbfs:"),
        ("dbfs://mnt/t", {}, "dbfs://"),
        ("/data/t", {"fs.defaultFS": "hdfs://name"}, "default file system"),
        ("abfss://box@account.example.org/t", {}, "abfss://container@account"),
        ("abfss://box@account.dfs.core.windows.net/t", {"fs.azure.account.auth.type": "Custom"}, "Custom"),
        ("s3a:///t", {}, "no bucket"),
        ("s3a://user:key@bucket/t", {}, "user or a key"),
        ("s3a://b/t", {PROVIDER: "com.example.Own"}, "Own"),
        ("s3a://b/t", {PROVIDER: f"{HADOOP}auth.AssumedRoleCredentialProvider"}, "AssumedRole"),
        ("s3a://b/t", {PROVIDER: f"{HADOOP}SimpleAWSCredentialsProvider"}, "settings do not have"),
        ("s3a://b/t", {"fs.s3a.assumed.role.arn": "arn:x"}, "assumed role"),
        ("s3a://b/t", {"fs.s3a.encryption.algorithm": "SSE-C"}, "encryption"),
        ("s3a://b/t", {"fs.s3a.proxy.host": "proxy"}, "proxy"),
        ("s3a://b/t", {"hadoop.security.credential.provider.path": "jceks://x"}, "credential store"),
        ("s3a://b/t", {"fs.s3a.endpoint": "not an endpoint"}, "not an endpoint"),
        ("gs://b/t", {"fs.gs.auth.type": "USER_CREDENTIALS"}, "USER_CREDENTIALS"),
        ("gs://b/t", {"fs.gs.auth.service.account.private.key": "k"}, "private.key"),
        ("gs://b/t", {"google.cloud.auth.service.account.json.keyfile": "/no/such/file"}, "does not open"),
        ("/data/t", {}, "table_options"),
    ],
)
def test_should_say_why_there_is_none(location: str, conf: dict[str, str], told: str) -> None:
    given = {"region": "x"} if told == "table_options" else None
    assert told in reason(location, conf, given)


def test_should_translate_keys_in_the_order_of_hadoop() -> None:
    plain = {"access_key_id": "AKIA-x", "secret_access_key": "hush-hush"}
    assert options("s3a://b/t", KEYS) == plain
    assert options("s3a://b/t", {f"spark.hadoop.{key}": value for key, value in KEYS.items()}) == plain
    token = {**KEYS, "fs.s3a.session.token": "tok-en"}
    assert options("s3a://b/t", token) == {**plain, "session_token": "tok-en"}
    simple = {**token, PROVIDER: f"{HADOOP}SimpleAWSCredentialsProvider"}
    assert options("s3a://b/t", simple) == plain
    both = (
        f"{HADOOP}TemporaryAWSCredentialsProvider, software.amazon.awssdk.auth.credentials.ContainerCredentialsProvider"
    )
    assert options("s3a://b/t", {**KEYS, PROVIDER: both}) == {}
    assert options("s3a://b/t", {}) == {}
    anonymous = {**KEYS, PROVIDER: f"{HADOOP}AnonymousAWSCredentialsProvider"}
    assert options("s3a://b/t", anonymous) == {"skip_signature": True}


def test_should_prefer_the_settings_of_the_bucket() -> None:
    own = {**KEYS, "fs.s3a.bucket.b.access.key": "own", "fs.s3a.bucket.b.endpoint.region": "eu-west-1"}
    assert options("s3a://b/t", own)["access_key_id"] == "own"
    assert options("s3a://b/t", own)["region"] == "eu-west-1"
    assert options("s3a://other/t", own) == {"access_key_id": "AKIA-x", "secret_access_key": "hush-hush"}


@pytest.mark.parametrize(
    ("conf", "wanted"),
    [
        ({"endpoint": "s3.eu-west-1.amazonaws.com"}, {"region": "eu-west-1"}),
        ({"endpoint": "s3.amazonaws.com", "endpoint.region": "us-west-2"}, {"region": "us-west-2"}),
        (
            {"endpoint": "http://127.0.0.1:9000"},
            {"endpoint": "http://127.0.0.1:9000", "region": "us-east-1", "client_options": {"allow_http": True}},
        ),
        (
            {"endpoint": "minio:9000", "connection.ssl.enabled": "false", "path.style.access": "true"},
            {"endpoint": "http://minio:9000", "region": "us-east-1", "client_options": {"allow_http": True}},
        ),
        (
            {"endpoint": "objects.example.org", "endpoint.region": "r1"},
            {"endpoint": "https://b.objects.example.org", "region": "r1", "virtual_hosted_style_request": True},
        ),
    ],
)
def test_should_translate_endpoints(conf: dict[str, str], wanted: dict[str, Any]) -> None:
    found = options("s3a://b/t", {**KEYS, **{f"fs.s3a.{name}": value for name, value in conf.items()}})
    assert {name: value for name, value in found.items() if "key" not in name} == wanted


def test_should_translate_azure_and_google() -> None:
    table, host = "abfss://box@account.dfs.core.windows.net/t", "account.dfs.core.windows.net"
    name = {"account_name": "account"}
    assert options(table, {f"fs.azure.account.key.{host}": "a2V5"}) == {**name, "account_key": "a2V5"}
    assert options(table, {"fs.azure.account.key.account.blob.core.windows.net": "a2V5"})["account_key"] == "a2V5"
    sas = {f"fs.azure.account.auth.type.{host}": "SAS", f"fs.azure.sas.fixed.token.{host}": "?sv=1&sig=2"}
    assert options(table, sas) == {**name, "sas_key": "sv=1&sig=2"}
    oauth = {
        "fs.azure.account.auth.type": "OAuth",
        "fs.azure.account.oauth.provider.type": "org.apache.hadoop.fs.azurebfs.oauth2.ClientCredsTokenProvider",
        "fs.azure.account.oauth2.client.id": "id",
        "fs.azure.account.oauth2.client.secret": "hush",
        "fs.azure.account.oauth2.client.endpoint": "https://login.microsoftonline.com/ten-ant/oauth2/token",
    }
    assert options(table, oauth) == {**name, "client_id": "id", "client_secret": "hush", "tenant_id": "ten-ant"}
    assert options(table, {}, {"account_key": "a2V5"}) == {**name, "account_key": "a2V5"}
    assert options("gs://b/t", {"fs.gs.auth.type": "UNAUTHENTICATED"}) == {"skip_signature": True}
    assert options("gs://b/t", {}, {"skip_signature": True}) == {"skip_signature": True}


def test_should_prefer_table_options_to_all_that_hadoop_has() -> None:
    given = {"region": "eu-north-1", "skip_signature": True}
    assert options("s3a://b/t", {**KEYS, "fs.s3a.proxy.host": "p"}, given) == given


def test_should_never_show_a_key() -> None:
    conf = {**KEYS, "fs.s3a.session.token": "tok-en", "fs.s3a.endpoint": "bad endpoint with hush-hush"}
    shown = [repr(table_store("s3a://b/t", KEYS)), repr(table_store("s3a://b/t", conf))]
    try:
        found = table_store("s3a://b/t", {}, {"no_such_option": "hush-hush"})
        shown.append(repr(found))
    except Exception:
        shown.append(traceback.format_exc())
        raise
    for secret in ("AKIA-x", "hush-hush", "tok-en"):
        assert all(secret not in text for text in shown)


def test_should_write_to_a_real_server_with_hadoops_settings(s3_server: S3Server) -> None:
    address = s3_server.new_address()
    conf = {
        "spark.hadoop.fs.s3a.endpoint": s3_server.endpoint,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": s3_server.options["access_key_id"],
        "spark.hadoop.fs.s3a.secret.key": s3_server.options["secret_access_key"],
    }
    found = table_store(address.url.replace("s3://", "s3a://"), conf)
    assert isinstance(found, TableStore)
    write_and_look(found, address)


def test_should_write_to_an_azure_server_at_sparks_url(azure_server: AzureServer) -> None:
    """Its key as Hadoop has it, and the rest, which only a server of one's own needs, as options."""
    address, account = azure_server.new_address(), azure_server.options["account_name"]
    place = f"abfss://{address.url.removeprefix('az://')}@{account}.dfs.core.windows.net/some/table"
    key = {f"fs.azure.account.key.{account}.dfs.core.windows.net": azure_server.options["account_key"]}
    translated = options(place, key)
    assert translated == {name: azure_server.options[name] for name in ("account_name", "account_key")}
    found = table_store(place, key, azure_server.options)
    assert isinstance(found, TableStore)
    write_and_look(found, StoreAddress(f"{address.url}/some/table", address.options))


def write_and_look(found: TableStore, address: StoreAddress) -> None:
    """What is written through one is found through the other."""
    schema = pa.schema([("k", pa.string()), ("v", pa.int64())])
    rows = pa.RecordBatch.from_pydict({"k": ["a b/é", "x"], "v": [1, 2]}, schema)
    files = write_files([rows], FileRules(schema, ("k",)), found.open())
    names = {info.location.rpartition("/")[0] for info in address.open().list("")}
    assert names == {"k=a b%2F%C3%A9", "k=x"}
    assert sorted(info.size for info in address.open().list("")) == sorted(file.size for file in files)


def test_should_write_where_a_plain_path_leads(tmp_path: Path) -> None:
    found = table_store(f"file:{tmp_path}/a b%41", {})
    assert isinstance(found, TableStore)
    found.open().put("x", b"1")
    assert (tmp_path / "a b%41" / "x").read_bytes() == b"1"
