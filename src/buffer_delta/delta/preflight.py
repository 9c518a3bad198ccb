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


def log_store_warnings(name: str, location: str, conf: Mapping[str, str]) -> list[str]:
    scheme = location.split(":", 1)[0].lower() if "://" in location or location.startswith("s3") else ""
    if scheme not in ("s3", "s3a", "s3n"):
        return []
    store = conf.get(f"spark.delta.logStore.{scheme}.impl") or conf.get("spark.delta.logStore.class") or ""
    if store and "SingleDriver" not in store:
        return []
    return [
        f"{name}: Delta's log on {scheme}:// is safe with one Spark driver only; if a second loader or job may "
        f"write to it, set spark.delta.logStore.{scheme}.impl to io.delta.storage.S3DynamoDBLogStore"
    ]
