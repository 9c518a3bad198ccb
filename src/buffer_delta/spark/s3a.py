"""Tables on S3: what Spark's `s3a://` file system must be told, from the options that the queue's store takes. Pure.

    endpoint, region, access_key_id, secret_access_key, session_token, virtual_hosted_style_request, skip_signature,
    client_options.allow_http

Each is set for the bucket of the table alone, so a session that also reads other buckets is left as it was there. The
keys never travel as settings of Spark, which stand on the JVM's command line for everyone to read: they are set
inside the JVM once it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from buffer.store.base import Store

S3_SCHEMES = ("s3", "s3a", "s3n")
FILE_SYSTEM = "org.apache.hadoop.fs.s3a.S3AFileSystem"

_PREFIXES = ("aws_", "s3_")
_NAMES = {
    "endpoint": "endpoint",
    "endpoint_url": "endpoint",
    "region": "endpoint.region",
    "default_region": "endpoint.region",
    "access_key_id": "access.key",
    "secret_access_key": "secret.key",
    "session_token": "session.token",
    "token": "session.token",
}
_ADDRESS_VARIABLES = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION", "AWS_REGION")
_TRUE = ("true", "1", "yes", "on")


class Loads(Protocol):
    """Tables, and the store of the queue that is loaded into them: a LoaderConfig, say."""

    @property
    def store(self) -> str | Store: ...

    @property
    def store_options(self) -> Mapping[str, Any]: ...

    def tables(self) -> list[str]: ...


@dataclass(frozen=True)
class Places:
    """The same for who has no LoaderConfig: tables that a ledger names."""

    names: tuple[str, ...]
    store: str | Store
    store_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def tables(self) -> list[str]:
        return list(self.names)


def s3_buckets(tables: Iterable[str]) -> list[str]:
    """The buckets of those tables that lie on S3, each once."""
    found = [urlsplit(_path(table)) for table in tables if "://" in table]
    return list(dict.fromkeys(url.netloc for url in found if url.scheme.lower() in S3_SCHEMES and url.netloc))


def s3a_settings(
    buckets: Iterable[str], options: Mapping[str, Any], *, given: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Hadoop's settings for these buckets, without those that are `given` as `spark.hadoop.…`, for the bucket or for
    all. Hold them like the keys that they contain."""
    given = given or {}
    settings = {f"fs.{scheme}.impl": FILE_SYSTEM for scheme in S3_SCHEMES if scheme != "s3a"}
    for bucket in buckets:
        for key, value in _translated(options).items():
            name = f"fs.s3a.bucket.{bucket}.{key}"
            if not {f"spark.hadoop.{name}", f"spark.hadoop.fs.s3a.{key}"} & given.keys():
                settings[name] = value
    return {name: value for name, value in settings.items() if f"spark.hadoop.{name}" not in given}


def store_options(loads: Loads, environment: Mapping[str, str]) -> dict[str, Any]:
    """What the queue's store was opened with, if it is on S3: its options, and the address from the environment.

    Keys in the environment are found by the file system itself.
    """
    options: dict[str, Any] = {}
    for name in _ADDRESS_VARIABLES:
        if environment.get(name):
            options[_plain(name)] = environment[name]
    url = loads.store if isinstance(loads.store, str) else loads.store.url
    is_s3 = urlsplit(url).scheme.lower() in S3_SCHEMES
    return options | (dict(loads.store_options) if is_s3 else {})


def _translated(options: Mapping[str, Any]) -> dict[str, str]:
    given = {_plain(key): value for key, value in options.items() if value is not None}
    found = {_NAMES[key]: str(value) for key, value in given.items() if key in _NAMES}
    if "endpoint" in found:
        # A server of one's own knows its buckets by path; Amazon by host, and there it is the default.
        is_hosted = str(given.get("virtual_hosted_style_request", False)).lower() in _TRUE
        found["path.style.access"] = str(not is_hosted).lower()
        found["connection.ssl.enabled"] = str(not found["endpoint"].startswith("http://")).lower()
    if str(given.get("skip_signature", False)).lower() in _TRUE:
        found["aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
    elif "access.key" in found:
        kind = "Temporary" if "session.token" in found else "Simple"
        found["aws.credentials.provider"] = f"org.apache.hadoop.fs.s3a.{kind}AWSCredentialsProvider"
    return found


def _plain(key: str) -> str:
    key = key.lower()
    for prefix in _PREFIXES:
        key = key.removeprefix(prefix)
    return key


def _path(table: str) -> str:
    """Without the `delta.` and the quotes around a path."""
    return table.strip().removeprefix("delta.").strip("`")
