"""What a loader's settings refuse, before Spark is started for them."""

from __future__ import annotations

from typing import Any

import pytest

from buffer.errors import InvalidConfig
from buffer_delta.config import LoaderConfig


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"columns": {"sequence": "x"}}, "no 'sequence' to rename"),
        ({"columns": {"_sequence": ""}}, "new names"),
        ({"columns": "x"}, "columns='x' is not allowed"),
        ({"routes": "x"}, "routes='x' is not allowed"),
        ({"table_properties": ["x"]}, "table_properties"),
        ({"gc_grace_s": 5}, "gc_grace_s=5 is not allowed"),
        ({"fetch_attempts": 1000}, "fetch_attempts=1000 is not allowed"),
        ({"dead_letters": "t"}, "dead_letters='t' is not allowed"),
        ({"routes": {"a": "t"}, "route_by": "kind"}, "routes"),
        ({"dlq_strategy": "skip"}, "needs dead_letters"),
        ({"adopt": True}, "needs app_id"),
        ({"retry_attempts": 0}, "retry_attempts=0 is not allowed"),
    ],
    ids=str,
)
def test_should_refuse(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        LoaderConfig(store="memory://x", table="t", **settings)
    assert says in str(raised.value)


def test_should_hand_its_settings_to_the_consumer_inside() -> None:
    config = LoaderConfig(store="memory://x", table="t", manifest_path="orders/manifest", cas_timeout_s=7)
    consumer = config.consumer()
    assert (consumer.manifest_path, consumer.data_path_prefix, consumer.cas_timeout_s) == (
        "orders/manifest",
        "orders",
        7,
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"table": "s3a://AKIA-hidden:hu/sh@bucket/t"},
        {"table": "./t", "dead_letters": "s3a://AKIA-hidden:hush@bucket/t"},
        {"table": "s3a:AKIA-hidden:hush@bucket"},
        {"table": "./t", "dead_letters": "AKIA-hidden:hush@bucket"},
        {"table": "delta.`s3a://AKIA-hidden:hush@bucket`"},
        {"table": "./t", "route_by": "a", "routes": {"x": "wasbs://c:hush@account/t"}},
    ],
)
def test_should_refuse_keys_in_the_url_of_a_table_without_repeating_them(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match="has a user or a key in it") as raised:
        LoaderConfig(store="./q", **settings)
    assert "hu" not in f"{raised.value!r} {raised.value.value!r}".replace("hush", "hu")
    LoaderConfig(store="./q", table="abfss://container@account.dfs.core.windows.net/t")
