"""Where a table is, in one spelling: two names for one place are one table. And what is a path, what a name."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

_SAME = {"s3a": "s3", "s3n": "s3", "abfs": "abfss", "wasb": "wasbs"}
"""Schemes that differ in the driver, not in the place."""


def one_spelling(place: str) -> str:
    """The URL of a table's files, with links on this machine followed and one scheme for each kind of store.

    A name that is not a URL, of a table that the catalog does not know yet, stays as it is.
    """
    scheme, found, rest = place.partition(":")
    if not found or "." in scheme or "/" in scheme:
        return place
    scheme = scheme.lower()
    if scheme == "file":
        return "file:" + os.path.realpath(_path(rest))
    parts = urlsplit(f"{_SAME.get(scheme, scheme)}:{rest}")
    return parts._replace(netloc=parts.netloc, path=_collapsed(parts.path)).geturl()


def _path(rest: str) -> str:
    """Of a file URL with one, two or three slashes. Hadoop does not escape its paths; others do."""
    path = "/" + rest.lstrip("/")
    return path if os.path.lexists(path) else unquote(path) if os.path.lexists(unquote(path)) else path


def _collapsed(path: str) -> str:
    return "/" + "/".join(part for part in path.split("/") if part)


def path_of(name_or_path: str) -> str | None:
    """The path, where the name is one; None for a catalog name."""
    quoted = re.fullmatch(r"delta\.`(.+)`", name_or_path.strip(), re.IGNORECASE | re.DOTALL)
    if quoted:
        return quoted[1].replace("``", "`")
    return name_or_path if "/" in name_or_path or name_or_path.startswith(".") else None
