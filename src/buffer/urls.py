"""Which URLs name a store, told without opening anything. Pure; called by `open_store`, `CloudStore` and the settings.

URLs are printed, in errors, logs and `repr`. So one that carries a key is never accepted, however it is spelled, and
of a URL that is refused only so much is repeated as cannot hold one. Keys belong into the options.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from buffer.errors import InvalidConfig
from buffer.names import check_location

SCHEMES = {
    "s3": "s3",
    "s3a": "s3",  # what Spark calls the same bucket
    "gs": "gs",
    "az": "az",
    "azure": "az",
    "abfs": "abfss",
    "abfss": "abfss",
    "memory": "memory",
}
"""Every URL scheme that is understood, and the name it goes by here."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ACCOUNT = re.compile(r"([a-z0-9$][a-z0-9-]*)@([A-Za-z0-9.-]+)")
_HARMLESS = re.compile(r"[A-Za-z0-9._/-]{0,200}")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
_WORD = re.compile(r"[^\s'\"`]+")
_SECRET_NAME = re.compile(r"(?i)secret|password|token|credential|signature|authorization|sas|key(?!_id)")
_SIGNED = re.compile(
    r"(?i)([?&;](?:[\w.%-]{0,64}(?:secret|password|token|credential|signature|authorization|key(?!_id))[\w.%-]{0,64}"
    r"|sas|sig|pwd)=)(?!…)[^\s&;'\"`]+"
)
"""A part of a query, or of a connection string, that opens a store to whoever reads it: `?sv=…&sig=…`."""
_OWN_USER = ("abfs", "abfss", "wasb", "wasbs")
"""Schemes in whose URLs a container stands before the '@'."""


def public_url(url: str) -> str:
    """So much of a URL as cannot hold a key: all of it, or only its scheme."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        found = _SCHEME.match(url)
        scheme, separator, rest = (found[1], ":", url[found.end() :]) if found else ("", "", url)
    if scheme.lower() not in (*SCHEMES, "file", "http", "https", "ftp", "hdfs", "wasb", "wasbs", "dbfs"):
        return "…" if not _HARMLESS.fullmatch(url.replace("://", "", 1)) else url
    return url if _HARMLESS.fullmatch(rest) else f"{scheme}{separator}…"


def holds_keys(url: str) -> bool:
    """Whether something in a URL can only be a user and a password, or a key: `…:…@`, a user before '@', `?sig=…`."""
    found = _SCHEME.match(url)
    if not found:
        is_path = url.startswith(("/", "./", "../", "~")) and not url.startswith("//")
        return not is_path and (_has_user(url) or _is_signed(url))
    rest = url[found.end() :].lstrip("/")
    authority = rest.partition("/")[0]
    return _has_user(rest) or _is_signed(rest) or ("@" in authority and found[1].lower() not in _OWN_USER)


def _is_signed(text: str) -> bool:
    return _SIGNED.search(text) is not None


def _has_user(text: str) -> bool:
    """Whether an '@' stands somewhere after a ':'."""
    return 0 <= text.find(":") < text.rfind("@")


def masked(text: str) -> str:
    """A message without what may be a key in it: URLs that hold one, and values of names that sound like one.

    For errors about values that stand in the wrong place: whoever writes the message does not know that it is a key.
    """
    return _WORD.sub(_masked_word, _QUOTED.sub(_masked_quoted, _SIGNED.sub(r"\1…", text)))


def _masked_quoted(found: re.Match[str]) -> str:
    mark, inside = found[0][0], found[0][1:-1]
    name, equals, value = inside.partition("=")
    if holds_keys(inside) or (equals and holds_keys(value)):
        return f"{mark}{name + '=' if equals and not holds_keys(name) else ''}…{mark}"
    if equals and value not in ("", "VALUE") and _SECRET_NAME.search(name):
        return f"{mark}{name}=…{mark}"
    return found[0]


def _masked_word(found: re.Match[str]) -> str:
    word = found[0]
    if "@" not in word:
        return word
    name, equals, value = word.partition("=")
    if equals and not holds_keys(name) and holds_keys(value):
        return f"{name}=…"
    return "…" if holds_keys(word.lstrip("([{")) else word


def parse_url(url: str) -> tuple[str, str, str]:
    """Scheme, bucket and prefix of a cloud store's URL. The prefix is used as given: nothing in it is decoded."""
    scheme, separator, rest = url.partition("://")
    kind = SCHEMES.get(scheme.lower())
    if not separator or kind is None:
        raise _refuse(
            url,
            f"its scheme must be one of {', '.join(f'{known}://' for known in ['file', *SCHEMES])}; or give a path",
        )
    bucket, _, prefix = rest.partition("/")
    if holds_keys(url):
        raise _refuse(url, "it has a user or a key in it ('…@'); pass keys and settings as options")
    if "?" in rest:
        raise _refuse(url, "it has a query ('?…'); pass keys and settings as options")
    if kind == "abfss" and not _ACCOUNT.fullmatch(bucket):
        raise _refuse(url, "write it like abfss://container@account.dfs.core.windows.net/prefix")
    if not bucket and kind != "memory":
        raise _refuse(url, f"it names no bucket; write it like {scheme}://bucket/prefix")
    if bucket and kind != "abfss" and not _BUCKET.fullmatch(bucket):
        raise _refuse(
            url, f"a bucket's name has letters, digits, '.', '_' and '-'; write it like {scheme}://bucket/prefix"
        )
    prefix = prefix.strip("/")
    if prefix:
        check_location(prefix)
    return kind, bucket, prefix


def local_path(text: str) -> Path | None:
    """The folder that a path or a file URL names; None for the URL of a cloud store. Raises InvalidConfig."""
    found = _SCHEME.match(text)
    scheme = found[1].lower() if found else ""
    if "://" in text and scheme != "file":
        return None
    if scheme in SCHEMES or (scheme == "file" and "://" not in text):
        raise _refuse(text, f"did you mean '{scheme}://…'?")
    if scheme == "file":
        return _file_path(text)
    if holds_keys(text):
        raise _refuse(
            text, "it looks as if it held a key ('…:…@', '…sig=…'); pass keys as options, and write a path as ./…"
        )
    return Path(text).expanduser()


def check_url(text: str) -> None:
    """Raise InvalidConfig if no store can be opened by this URL or path."""
    if local_path(text) is None:
        parse_url(text)


def _file_path(url: str) -> Path:
    """A file URL is percent-encoded, as every program writes it; a plain path is used as it is."""
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that do not match, say
        parts = urlsplit("file://?")
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path or parts.query or parts.fragment or path.startswith("//"):
        raise _refuse(url, "write file:///absolute/path, with '#' and '?' percent-encoded, or the plain path")
    return Path(path)


def _refuse(url: str, reason: str) -> InvalidConfig:
    shown = public_url(url)
    return InvalidConfig(f"{shown!r} is not allowed as a store: {reason}", key="store", value=shown)
