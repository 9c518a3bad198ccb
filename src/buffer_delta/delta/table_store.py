"""From a table's URL, as Spark users write it, to the store that Arrow writes its files through. Pure.

Spark reaches a table with Hadoop's drivers and their settings (`fs.s3a.access.key`, …); Arrow's writer reaches the same
folder with the store of `buffer.store`. So Hadoop's settings are translated, or `table_options` given in their place.
What cannot be translated for certain is no guess: `NoStore` says why, and Spark writes the table.

A setting counts in the order that Hadoop has it: for one bucket (`fs.s3a.bucket.NAME.…`) before that for all. Where a
driver would look for keys in the environment or ask the machine's own role, the store does too, in its own order.
Settings arrive with or without Spark's `spark.hadoop.` before them. Values are never repeated in a reason or a `repr`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from buffer.errors import InvalidInput
from buffer.store import Store, open_store
from buffer.store.linked import LinkedStore
from buffer.urls import local_path, public_url

_SPARK = "spark.hadoop."
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_S3 = ("s3", "s3a", "s3n")
_AZURE = ("abfs", "abfss", "wasb", "wasbs")
_AZURE_HOST = re.compile(r"(?P<container>[^@/]+)@(?P<account>[a-z0-9]{3,24})\.(?P<kind>dfs|blob)\.core\.windows\.net")

_TEMPORARY = "TemporaryAWSCredentialsProvider"
_KEYS_GIVEN = (_TEMPORARY, "SimpleAWSCredentialsProvider", "BasicAWSCredentialsProvider")
_ANONYMOUS = ("AnonymousAWSCredentialsProvider", "AnonymousCredentialsProvider")
_AMBIENT = (
    "EnvironmentVariableCredentialsProvider",
    "IAMInstanceCredentialsProvider",
    "InstanceProfileCredentialsProvider",
    "ContainerCredentialsProvider",
    "EC2ContainerCredentialsProviderWrapper",
    "WebIdentityTokenCredentialsProvider",
    "WebIdentityTokenFileCredentialsProvider",
)
"""Where a provider looks that the store's own search looks at too. Others, of files and of AssumeRole say, it lacks."""

_DEFAULT_PROVIDERS = (*_KEYS_GIVEN[:2], *_AMBIENT[:2])
"""What S3A tries where nothing is set."""


@dataclass(frozen=True, slots=True)
class TableStore:
    """Where a table's files are: `open_store(url, **options)` opens it. Pickles, with the keys."""

    url: str
    options: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def is_remote(self) -> bool:
        return "://" in self.url

    def open(self) -> Store:
        """A local one goes through partitions that are links, to other disks say: Spark's writer does, too."""
        path = None if self.is_remote else local_path(self.url)
        return open_store(self.url if path is None else LinkedStore(path), **self.options)


@dataclass(frozen=True, slots=True)
class NoStore:
    """There is none, and why: the end of a sentence about the table."""

    reason: str


Found: TypeAlias = TableStore | NoStore


def table_store(location: str, conf: Mapping[str, str], table_options: Mapping[str, Any] | None = None) -> Found:
    """The store of the folder at `location`, by Hadoop's settings `conf`, or by `table_options` alone if given.

    `location` is as Hadoop prints a path: nothing in it is percent-encoded. A path without a scheme is local only if
    Hadoop's default file system is (`fs.defaultFS`).
    """
    settings = _Settings(conf)
    found = _SCHEME.match(location)
    scheme = found[1].lower() if found else ""
    if not scheme:
        default = _SCHEME.match(settings.get("fs.defaultFS", "file:///"))
        if default is None or default[1].lower() != "file":
            return NoStore("its path has no scheme, and Hadoop's default file system is not the local one")
        return _local(location, table_options)
    rest = location[len(scheme) + 1 :]
    if scheme == "file":
        return _local("/" + rest.lstrip("/"), table_options)
    if not rest.startswith("//"):
        return NoStore(f"{public_url(location)!r} is not a URL that a native store understands")
    if scheme in _S3:
        found_store = _s3(rest[2:], settings, table_options)
    elif scheme in _AZURE:
        found_store = _azure(rest[2:], settings, table_options)
    elif scheme == "gs":
        found_store = _gcs(rest[2:], settings, table_options)
    else:
        return NoStore(f"there is no native store for {scheme}://")
    return _checked(found_store)


class _Settings:
    """Hadoop's settings by name, with a way to prefer those of one bucket."""

    def __init__(self, conf: Mapping[str, str]) -> None:
        self._conf = {key.removeprefix(_SPARK): value for key, value in conf.items() if key.startswith(_SPARK)}
        self._conf.update({key: value for key, value in conf.items() if not key.startswith(_SPARK)})

    def get(self, name: str, default: str = "") -> str:
        return str(self._conf.get(name) or default).strip()

    def s3(self, bucket: str, name: str, default: str = "") -> str:
        """`fs.s3a.<name>`: the bucket's own, else that of all."""
        own = self.get(f"fs.s3a.bucket.{bucket}.{name}")
        return own or self.get(f"fs.s3a.{name}", default)

    def names(self, prefix: str) -> list[str]:
        return [key for key in self._conf if key.startswith(prefix)]


def _local(path: str, table_options: Mapping[str, Any] | None) -> Found:
    if table_options:
        return NoStore("it is in a local folder, which takes no table_options")
    # An absolute path is never taken for a URL, whatever characters it has.
    return TableStore(path if path.startswith(("/", "./", "../")) else f"./{path}")


def _checked(found: Found) -> Found:
    """Without contacting anybody: what the store itself would refuse is no store."""
    if isinstance(found, TableStore):
        try:
            found.open()
        except InvalidInput as error:
            return NoStore(f"the store does not open: {error}")
    return found


# Amazon S3, and what speaks its language


def _s3(rest: str, settings: _Settings, table_options: Mapping[str, Any] | None) -> Found:
    bucket, _, prefix = rest.partition("/")
    url = f"s3://{bucket}/{prefix.strip('/')}".rstrip("/")
    if table_options is not None:
        return TableStore(url, dict(table_options))
    reason = _s3_refused(bucket, settings)
    if reason:
        return NoStore(reason)
    options: dict[str, Any] = {}
    credentials = _s3_credentials(bucket, settings)
    if isinstance(credentials, NoStore):
        return credentials
    options.update(credentials)
    endpoint = settings.s3(bucket, "endpoint")
    if endpoint and "://" not in endpoint:
        plain = settings.s3(bucket, "connection.ssl.enabled", "true").lower() == "false"
        endpoint = f"{'http' if plain else 'https'}://{endpoint}"
    region = settings.s3(bucket, "endpoint.region") or _region_of(endpoint)
    if endpoint and not _is_central(endpoint):
        path_style = settings.s3(bucket, "path.style.access", "false").lower() == "true"
        if path_style or _is_address(endpoint):
            options["endpoint"] = endpoint
        else:
            scheme, _, host = endpoint.partition("://")
            options["endpoint"] = f"{scheme}://{bucket}.{host}"
            options["virtual_hosted_style_request"] = True
        if endpoint.startswith("http://"):
            options["client_options"] = {"allow_http": True}
        region = region or "us-east-1"  # a server that is not Amazon's takes any; signing needs one
    if region:
        options["region"] = region
    return TableStore(url, options)


def _s3_refused(bucket: str, settings: _Settings) -> str | None:
    """A setting that changes what is stored or how it is reached, and that is not translated."""
    if settings.get("hadoop.security.credential.provider.path") or settings.s3(
        bucket, "security.credential.provider.path"
    ):
        return "its keys are in a Hadoop credential store, which only Hadoop reads"
    encryption = settings.s3(bucket, "encryption.algorithm") or settings.s3(bucket, "server-side-encryption-algorithm")
    if encryption:
        return "fs.s3a.encryption.algorithm is set, and its files would not be encrypted that way"
    for name, text in (
        ("proxy.host", "a proxy"),
        ("assumed.role.arn", "an assumed role"),
        ("accesspoint.arn", "an access point"),
        ("delegation.token.binding", "delegation tokens"),
        ("custom.signers", "custom signers"),
        ("canned.acl", "an access list"),
        ("acl.default", "an access list"),
        ("requester.pays.enabled", "requester pays"),
    ):
        value = settings.s3(bucket, name)
        if value and value.lower() != "false":
            return f"fs.s3a.{name} is set, and {text} is not translated; give table_options to go without it"
    return None


def _s3_credentials(bucket: str, settings: _Settings) -> dict[str, Any] | NoStore:
    names = [name.strip() for name in settings.s3(bucket, "aws.credentials.provider").split(",") if name.strip()]
    providers = [name.rpartition(".")[2].rpartition("$")[2] for name in names]
    unknown = [name for name in providers if name not in (*_KEYS_GIVEN, *_ANONYMOUS, *_AMBIENT)]
    if unknown:
        return NoStore(f"the credential provider {unknown[0]} is not translated; give table_options instead")
    keys = {
        "access_key_id": settings.s3(bucket, "access.key"),
        "secret_access_key": settings.s3(bucket, "secret.key"),
        "session_token": settings.s3(bucket, "session.token"),
    }
    for provider in providers or _DEFAULT_PROVIDERS:
        if provider in _ANONYMOUS:
            return {"skip_signature": True}
        if provider in _AMBIENT:
            return {}
        wanted = keys if provider == _TEMPORARY else {name: keys[name] for name in list(keys)[:2]}
        if all(wanted.values()):
            return dict(wanted)
    return NoStore("fs.s3a.aws.credentials.provider asks for keys that the settings do not have")


def _is_central(endpoint: str) -> bool:
    """Amazon's own: the region says it all."""
    host = endpoint.partition("://")[2].rstrip("/")
    return host == "s3.amazonaws.com" or bool(re.fullmatch(r"s3[.-][a-z0-9-]+\.amazonaws\.com(\.cn)?", host))


def _is_address(endpoint: str) -> bool:
    """An IP address has no names before it: Amazon's client then puts the bucket into the path by itself."""
    return bool(re.fullmatch(r"https?://([0-9.]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?/?", endpoint))


def _region_of(endpoint: str) -> str:
    found = re.search(r"//s3[.-]([a-z0-9-]+)\.amazonaws\.com", endpoint)
    return found[1] if found else ""


# Azure


def _azure(rest: str, settings: _Settings, table_options: Mapping[str, Any] | None) -> Found:
    authority, _, prefix = rest.partition("/")
    found = _AZURE_HOST.fullmatch(authority)
    if not found:
        return NoStore("its URL is not of the form abfss://container@account.dfs.core.windows.net/path")
    container, account = found["container"], found["account"]
    url = f"az://{container}/{prefix.strip('/')}".rstrip("/")
    if table_options is not None:
        return TableStore(url, {"account_name": account, **table_options})
    hosts = [f"{account}.{kind}.core.windows.net" for kind in (found["kind"], "dfs", "blob")]

    def setting(name: str) -> str:
        own = next((value for host in hosts if (value := settings.get(f"fs.azure.{name}.{host}"))), "")
        return own or settings.get(f"fs.azure.{name}")

    credentials = _azure_credentials(setting, container, hosts, settings)
    return (
        credentials if isinstance(credentials, NoStore) else TableStore(url, {"account_name": account, **credentials})
    )


def _azure_credentials(setting: Any, container: str, hosts: list[str], settings: _Settings) -> dict[str, Any] | NoStore:
    kind = setting("account.auth.type") or "SharedKey"
    if setting("encryption.encoded.client-provided-key") or setting("account.keyprovider"):
        return NoStore("its keys or its encryption come from a Hadoop provider, which is not translated")
    wasb = next((value for host in hosts if (value := settings.get(f"fs.azure.sas.{container}.{host}"))), "")
    if kind == "SAS" or wasb:
        token = wasb or setting("sas.fixed.token")
        return {"sas_key": token.lstrip("?")} if token else NoStore("its SAS token comes from a provider of Hadoop's")
    if kind == "SharedKey":
        key = setting("account.key")
        return {"account_key": key} if key else {}
    if kind == "OAuth":
        provider = setting("account.oauth.provider.type").rpartition(".")[2]
        client, secret = setting("account.oauth2.client.id"), setting("account.oauth2.client.secret")
        endpoint = re.fullmatch(
            r"https://login\.microsoftonline\.com/([A-Za-z0-9.-]+)/oauth2(/v2\.0)?/token",
            setting("account.oauth2.client.endpoint"),
        )
        if provider == "ClientCredsTokenProvider" and client and secret and endpoint:
            return {"client_id": client, "client_secret": secret, "tenant_id": endpoint[1]}
        return NoStore(f"the OAuth provider {provider or '(none)'} is not translated; give table_options instead")
    return NoStore(f"fs.azure.account.auth.type={kind} is not translated; give table_options instead")


# Google Cloud Storage


def _gcs(rest: str, settings: _Settings, table_options: Mapping[str, Any] | None) -> Found:
    bucket, _, prefix = rest.partition("/")
    url = f"gs://{bucket}/{prefix.strip('/')}".rstrip("/")
    if table_options is not None:
        return TableStore(url, dict(table_options))
    for name in ("fs.gs.proxy.address", "fs.gs.storage.root.url", "fs.gs.encryption.key"):
        if settings.get(name):
            return NoStore(f"{name} is set, which is not translated; give table_options instead")
    kind = settings.get("fs.gs.auth.type") or settings.get("google.cloud.auth.type")
    keyfile = settings.get("fs.gs.auth.service.account.json.keyfile") or settings.get(
        "google.cloud.auth.service.account.json.keyfile"
    )
    others = [
        name
        for prefix_ in ("fs.gs.auth.", "google.cloud.auth.")
        for name in settings.names(prefix_)
        if name.endswith((".private.key", ".p12file", ".keyfile", ".refresh.token", ".impersonation.service.account"))
        and not name.endswith("service.account.json.keyfile")
    ]
    if kind not in ("", "SERVICE_ACCOUNT_JSON_KEYFILE", "APPLICATION_DEFAULT", "COMPUTE_ENGINE", "UNAUTHENTICATED"):
        return NoStore(f"the authentication {kind} is not translated; give table_options instead")
    if others and not kind:
        return NoStore(f"{others[0]} is set, which is not translated; give table_options instead")
    if kind == "UNAUTHENTICATED":
        return TableStore(url, {"skip_signature": True})
    if keyfile and kind in ("", "SERVICE_ACCOUNT_JSON_KEYFILE"):
        return TableStore(url, {"service_account": keyfile})
    return TableStore(url)
