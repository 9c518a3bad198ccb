"""Endpoints, regions and keys that obstore would choke on: it panics, with a native traceback, at each request. Pure.

The value is never repeated: it may hold a key, or be one that stands under the wrong name.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Any

from buffer.errors import InvalidConfig

_ENDPOINT = re.compile(
    r"https?://(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?(/[A-Za-z0-9._~/+-]*)?"
)
_REGION = re.compile(r"[A-Za-z0-9._-]{1,32}")
_FROM_ENVIRONMENT = {
    "s3": ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
    "az": ("AZURE_ENDPOINT", "AZURE_STORAGE_ENDPOINT"),
}
_OTHERS_FROM_ENVIRONMENT = {
    "s3": ("AWS_METADATA_ENDPOINT", "AWS_ENDPOINT_URL_STS"),
    "az": ("AZURE_AUTHORITY_HOST", "AZURE_STORAGE_AUTHORITY_HOST", "AZURE_MSI_ENDPOINT", "IDENTITY_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
}
"""Of servers besides the store's own."""
_WORDS = {
    "s3": (
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_TOKEN"),
        *("AWS_REGION", "AWS_DEFAULT_REGION"),
    ),
    "az": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_TOKEN", "AZURE_TENANT_ID", "AZURE_STORAGE_TENANT_ID"),
}
"""What goes into a header or a URL as it is."""
_WORD_ENDS = ("access_key_id", "secret_access_key", "token", "region", "account_name", "tenant_id")
_NO_WORD = re.compile(r"[\x00-\x20\x7f]")
_NO_SECRET = re.compile(r"[\x00-\x1f\x7f]")
"""A secret is not sent, only signed with: servers of one's own may let it have spaces."""


def check_endpoints(kind: str, options: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Raise InvalidConfig, naming the option or the variable, if an endpoint, a region or a key cannot be one."""
    for name, value in options.items():
        lowered = str(name).lower()
        if not isinstance(value, str):
            continue
        if ("endpoint" in lowered or lowered.endswith(("base_url", "authority_host"))) and not is_endpoint(value):
            raise _refuse(f"the store option {name}")
        if lowered.endswith(_WORD_ENDS) and not _is_word(lowered, value):
            raise _no_word(f"the store option {name}")
        if lowered.endswith("region") and not _REGION.fullmatch(value):
            raise InvalidConfig(f"the store option {name} is not the name of a region", key="store_options")
    given = any("endpoint" in str(name).lower() for name in options)
    for name in [
        *(() if given else _named(_FROM_ENVIRONMENT, kind, environment)),
        *_named(_OTHERS_FROM_ENVIRONMENT, kind, environment),
    ]:
        if not is_endpoint(environment[name]):
            raise _refuse(f"the environment variable {name}")
    for name in _named(_WORDS, kind, environment):
        end = next(end for end in _WORD_ENDS if name.lower().endswith(end))
        overridden = any(str(option).lower().endswith(end) for option in options)
        if not overridden and not _is_word(end, environment[name]):
            raise _no_word(f"the environment variable {name}")


def _is_word(name: str, value: str) -> bool:
    return not (_NO_SECRET if name.endswith("secret_access_key") else _NO_WORD).search(value)


def is_endpoint(value: str) -> bool:
    """`http://host:port/path` in ASCII, without a user, a query or a fragment."""
    found = _ENDPOINT.fullmatch(value)
    if not found or int(found["port"] or 0) > 65535:
        return False
    host = found["host"]
    try:
        if host.startswith("["):
            ipaddress.IPv6Address(host[1:-1])
        elif host.rstrip(".").rpartition(".")[2].isdigit() or host.rpartition(".")[2].lower().startswith("0x"):
            ipaddress.IPv4Address(host)  # to a URL parser a name whose last part is a number is an address
        elif "xn--" in host.lower():
            host.encode().decode("idna")
    except ValueError:
        return False
    labels = host.strip("[]").removesuffix(".").split(".")
    return host.startswith("[") or all(0 < len(label) < 64 for label in labels)


def _named(known: Mapping[str, tuple[str, ...]], kind: str, environment: Mapping[str, str]) -> Iterator[str]:
    """The variables, in either case, that obstore takes such a value of this kind of store from."""
    wanted = known.get("az" if kind == "abfss" else kind, ())
    return (name for name in environment if name.upper() in wanted)


def _no_word(what: str) -> InvalidConfig:
    return InvalidConfig(
        f"{what} has a space, a line's end or a control character in it, which no key, token, region or account has: "
        "take it out (a file's last newline, say)",
        key="store_options",
    )


def _refuse(what: str) -> InvalidConfig:
    return InvalidConfig(
        f"{what} is not an endpoint: write it like http://localhost:9000 or https://host/path, without a user, a "
        "query or a fragment",
        key="store_options",
    )
