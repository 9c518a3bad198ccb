"""From a URL to a store: the one door that configurations, command lines and notebooks go through."""

from __future__ import annotations

import os
from typing import Any

from buffer.errors import InvalidConfig
from buffer.store.base import Store
from buffer.store.local import LocalStore
from buffer.store.objects import CloudStore
from buffer.urls import local_path


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
    text = os.fspath(url) if isinstance(url, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        kind = "''" if text == "" else type(url).__name__
        raise InvalidConfig(
            f"store={kind} is not allowed: give a URL, a path or an open store", key="store", value=kind
        )
    path = local_path(text)
    if path is None:
        return CloudStore(text, options)
    _refuse_options(repr(text), options)
    return LocalStore(path)


def _refuse_options(store: str, options: dict[str, Any]) -> None:
    if options:
        raise InvalidConfig(
            f"{store} takes no store options, but got {', '.join(sorted(options))}: leave them out",
            key="store_options",
        )
