"""From a URL to a store: the one door that configurations, command lines and notebooks go through."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from buffer.errors import InvalidConfig
from buffer.store.base import Store
from buffer.store.failures import public_url
from buffer.store.local import LocalStore
from buffer.store.objects import SCHEMES, CloudStore

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def open_store(url: str | os.PathLike[str] | Store, /, **options: Any) -> Store:
    """Open the store at `url`. Nothing is contacted: what is missing is reported at first use.

    ======================================  ====================================================================
    `./folder`, `/folder`, `file:///…`      local files; created by the first write; takes no options
    `s3://bucket/prefix` (also `s3a://`)    S3 and what speaks it: `endpoint`, `region`, `access_key_id`, …
    `gs://bucket/prefix`                    Google Cloud Storage
    `az://container/prefix` (`azure://`)    Azure Blob Storage: `account_name`, `account_key`, …
    `abfss://container@account…/prefix`     the same, as Spark writes it
    `memory://name`                         shared by all who open that name in this process
    `memory://`                             a new one, nobody else's
    ======================================  ====================================================================

    Options go to obstore unchanged; `client_options` and `retry_config` replace our defaults key by key and
    altogether. An open store is returned as it is. Raises InvalidConfig for a URL or an option that cannot be
    right; keys in the URL are refused, for URLs are printed.
    """
    if isinstance(url, Store) and not isinstance(url, str):
        _refuse_options(repr(url), options)
        return url
    text = os.fspath(url)
    if not isinstance(text, str) or not text:
        raise InvalidConfig(
            f"store={url!r} is not allowed: give a URL, a path or an open store", key="store", value=url
        )
    found = _SCHEME.match(text)
    scheme = found[1].lower() if found else ""
    if "://" in text and scheme != "file":
        if scheme not in SCHEMES:
            shown = public_url(text)
            raise InvalidConfig(
                f"{shown!r} is not allowed as a store: its scheme must be one of "
                f"{', '.join(f'{known}://' for known in ['file', *SCHEMES])}; or give a path",
                key="store",
                value=shown,
            )
        return CloudStore(text, options)
    if scheme in SCHEMES or (scheme == "file" and "://" not in text):
        raise InvalidConfig(
            f"{text!r} is not allowed as a store: did you mean '{scheme}://…'?", key="store", value=text
        )
    _refuse_options(repr(text), options)
    return LocalStore(_file_path(text) if scheme == "file" else Path(text).expanduser())


def _file_path(url: str) -> Path:
    """A file URL is percent-encoded, as every program writes it; a plain path is used as it is."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path or parts.query or parts.fragment:
        raise InvalidConfig(
            f"{url!r} is not allowed as a store: write file:///absolute/path, with '#' and '?' percent-encoded, "
            "or the plain path",
            key="store",
            value=url,
        )
    return Path(path)


def _refuse_options(store: str, options: dict[str, Any]) -> None:
    if options:
        raise InvalidConfig(
            f"{store} takes no store options, but got {', '.join(sorted(options))}: leave them out",
            key="store_options",
        )
