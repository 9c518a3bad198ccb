"""What an operator should know before loading: settings under which exactly-once would not hold. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def retention_warnings(name: str, properties: Mapping[str, str]) -> list[str]:
    key = "delta.setTransactionRetentionDuration"
    if key not in properties:
        return []
    return [
        f"{name}: {key}={properties[key]!r} makes Delta forget a loader that pauses for longer, and what it has "
        "loaded would be loaded again; remove it: ALTER TABLE … UNSET TBLPROPERTIES"
    ]


def is_s3(location: str) -> bool:
    """Whether Spark's settings matter for `puts_blindly`: reading all of them takes a while."""
    return _scheme(location) in ("s3", "s3a", "s3n")


def puts_blindly(location: str, conf: Mapping[str, str]) -> bool:
    """Whether Spark's log store puts a new version of the log there without a condition: on S3, unless told otherwise.

    `conf` are Spark's settings.
    """
    if not is_s3(location):
        return False
    scheme = _scheme(location)
    store = conf.get(f"spark.delta.logStore.{scheme}.impl") or conf.get("spark.delta.logStore.class") or ""
    return not store or "SingleDriver" in store


def log_store_warnings(name: str, location: str, conf: Mapping[str, str]) -> list[str]:
    if not puts_blindly(location, conf):
        return []
    scheme = _scheme(location)
    return [
        f"{name}: Delta's log on {scheme}:// is safe with one Spark driver only, but for what Arrow's writer commits; "
        "if a second job, or a loader with another writer, may write to it, set "
        f"spark.delta.logStore.{scheme}.impl to io.delta.storage.S3DynamoDBLogStore"
    ]


def _scheme(location: str) -> str:
    return location.split(":", 1)[0].lower() if "://" in location or location.startswith("s3") else ""
