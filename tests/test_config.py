"""Settings are checked when made, and every refusal names the key, the value and what is allowed."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from buffer.config import _STORE_MEMBERS, Config, ConsumerConfig, GcConfig, ProducerConfig, QueueConfig
from buffer.errors import InvalidConfig
from buffer.store import Store, open_store

ROLES = [ProducerConfig, ConsumerConfig, GcConfig]

BAD_VALUES: list[tuple[type[QueueConfig], str, list[Any]]] = [
    (ProducerConfig, "store", ["", None, 7]),
    (ProducerConfig, "store_options", ["region=x", None, [1]]),
    (ProducerConfig, "manifest_path", ["", "/a", "a/", "a//b", "a/../b", ".", None, 7, "no-folder"]),
    (ProducerConfig, "data_path_prefix", ["/", "..", None]),
    (ProducerConfig, "flush_interval_ms", [0, -1, 1.5, "100", True, None, 86_400_001, 99999999999999999999]),
    (ProducerConfig, "flush_size_bytes", [0, "64MiB"]),
    (ProducerConfig, "max_buffered_inputs", [0]),
    (ProducerConfig, "max_buffered_bytes", [0]),
    (ProducerConfig, "max_batch_bytes", [0, 1 << 32]),
    (ProducerConfig, "upload_concurrency", [0, 65]),
    (ProducerConfig, "compression", ["gzip", "", None, "ZSTD"]),
    (ProducerConfig, "append_timeout_s", [0, -1, float("nan"), float("inf"), "60", True, 1e300]),
    (ProducerConfig, "gc_grace_s", [0, 599.9]),
    (ConsumerConfig, "max_batch_bytes", [0, -1]),
    (ConsumerConfig, "fetch_attempts", [0, 101]),
    (ConsumerConfig, "cas_timeout_s", [0]),
    (ConsumerConfig, "gc_enabled", [1, "true", None]),
    (ConsumerConfig, "gc_interval_s", [0, 1e10]),
    (ConsumerConfig, "gc_grace_s", [599]),
    (GcConfig, "gc_interval_s", [0, None]),
    (GcConfig, "gc_grace_s", [1, 1e308]),
]


@pytest.mark.parametrize(
    ("cls", "key", "value"),
    [(cls, key, value) for cls, key, values in BAD_VALUES for value in values],
    ids=str,
)
def test_should_name_key_and_value_when_it_is_not_allowed(cls: type[QueueConfig], key: str, value: object) -> None:
    with pytest.raises(InvalidConfig) as raised:
        cls(**{"store": "memory://x", key: value})
    assert raised.value.key == key
    assert key in str(raised.value)
    if key != "store_options":  # which may hold keys
        assert repr(value) in str(raised.value)
        assert raised.value.value is value
    assert "must be" in str(raised.value)


@pytest.mark.parametrize("cls", ROLES)
def test_should_work_with_nothing_but_a_store(cls: type[QueueConfig]) -> None:
    config = cls(store="memory://x")
    assert config.manifest_path == "ingest/manifest"
    assert config.data_path_prefix == "ingest"


def test_should_have_the_documented_defaults() -> None:
    config = ProducerConfig(store="memory://x")
    assert (config.flush_interval_ms, config.flush_size_bytes, config.max_buffered_inputs) == (100, 64 << 20, 1000)
    assert config.compression == "none"
    gc = GcConfig(store="memory://x")
    assert (gc.gc_interval_s, gc.gc_grace_s) == (300, 600)


def test_should_suggest_the_nearest_key_when_one_is_unknown() -> None:
    with pytest.raises(InvalidConfig, match=r"no setting 'flush_interval'; did you mean 'flush_interval_ms'\? Allow"):
        ProducerConfig(store="memory://x", flush_interval=5)
    with pytest.raises(InvalidConfig, match=r"no setting 'zzz'\. Allowed: store, ") as raised:
        ConsumerConfig(store="memory://x", zzz=5)
    assert raised.value.key == "zzz"
    with pytest.raises(InvalidConfig, match="gc_graze_s"):
        GcConfig(store="memory://x").replace(gc_graze_s=700)


def test_should_check_again_when_replaced() -> None:
    config = ProducerConfig(store="memory://x")
    assert config.replace(flush_interval_ms=5).flush_interval_ms == 5
    assert config.flush_interval_ms == 100
    with pytest.raises(InvalidConfig, match="flush_interval_ms=0"):
        config.replace(flush_interval_ms=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.flush_interval_ms = 5  # type: ignore[misc]  # the point of the test


def test_should_read_the_table_of_its_role_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "buffer.toml"
    path.write_text(
        '[producer]\nstore = "s3://b/p"\nflush_interval_ms = 50\nstore_options = { region = "eu-west-1" }\n'
        '[gc]\nstore = "./folder"\ngc_grace_s = 900\n[other]\nstore = "memory://y"\n',
        encoding="utf-8",
    )
    producer = ProducerConfig.from_toml(path)
    assert (producer.store, producer.flush_interval_ms) == ("s3://b/p", 50)
    assert producer.store_options == {"region": "eu-west-1"}
    assert GcConfig.from_toml(str(path)).gc_grace_s == 900
    assert ConsumerConfig.from_toml(path, table="other").store == "memory://y"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[producer", "not valid TOML"),
        ("[other]\nx = 1\n", r"no table \[producer\]; it has: other"),
        ("producer = 1\n", r"no table \[producer\]"),
        ("[producer]\nflush = 1\n", "no setting 'flush'"),
        ('[producer]\nstore = "x"\nflush_interval_ms = "fast"\n', "flush_interval_ms='fast'"),
    ],
)
def test_should_say_what_is_wrong_with_a_toml_file(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "buffer.toml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidConfig, match=message):
        ProducerConfig.from_toml(path)


def test_should_name_the_file_when_it_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"missing\.toml.*No such file"):
        ProducerConfig.from_toml(tmp_path / "missing.toml")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfig, match="not valid TOML"):
        ProducerConfig.from_toml(binary)


def test_should_say_that_the_store_is_needed() -> None:
    for cls in ROLES:
        with pytest.raises(InvalidConfig, match="needs the setting 'store'") as raised:
            cls.from_dict({})
        assert raised.value.key == "store"


@pytest.mark.parametrize("cls", ROLES)
def test_should_survive_pickling(cls: type[QueueConfig]) -> None:
    config = cls(store="s3://b/p", store_options={"region": "x"})
    assert pickle.loads(pickle.dumps(config)) == config


def test_should_never_print_store_options() -> None:
    config = ProducerConfig(store="s3://b", store_options={"secret_access_key": "hush-hush"})
    assert "hush" not in repr(config)
    assert "hush" not in str(config)


def test_should_refuse_what_lacks_a_part_of_a_store() -> None:
    """The settings do not import the protocol, so it is compared here."""
    members = {name for name in dir(Store) if not name.startswith("_")}
    assert members == _STORE_MEMBERS
    ProducerConfig(store=SimpleNamespace(**dict.fromkeys(members, len)))  # type: ignore[arg-type]  # on purpose
    for missing in members:
        part = SimpleNamespace(**dict.fromkeys(members - {missing}, len))
        with pytest.raises(InvalidConfig, match="a URL, a path or an open store"):
            ProducerConfig(store=part)  # type: ignore[arg-type]  # on purpose


def test_should_take_an_open_store() -> None:
    store = open_store("memory://")
    assert ConsumerConfig(store=store).gc().store is store


def test_should_hand_its_settings_to_the_collector() -> None:
    config = ConsumerConfig(store="memory://x", manifest_path="m", data_path_prefix="d", gc_grace_s=700)
    gc = config.gc()
    assert (gc.store, gc.manifest_path, gc.data_path_prefix, gc.gc_grace_s) == ("memory://x", "m", "d", 700)


def test_should_be_extensible_by_other_packages() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class LoaderLike(Config):
        table: str

    assert LoaderLike(table="t").table == "t"
    with pytest.raises(InvalidConfig, match="did you mean 'table'"):
        LoaderLike(tabel="t")  # type: ignore[call-arg]  # the point of the test


def test_should_keep_the_batches_of_each_queue_apart() -> None:
    """Else the collector of one queue would delete the batches of the other."""
    assert ProducerConfig(store="memory://a").data_path_prefix == "ingest"
    assert ProducerConfig(store="memory://a", manifest_path="orders/manifest").data_path_prefix == "orders"
    assert GcConfig(store="memory://a", manifest_path="a/b/manifest").data_path_prefix == "a/b"
    assert ConsumerConfig(store="memory://a", manifest_path="a/manifest").gc().data_path_prefix == "a"


def test_should_let_the_prefix_follow_the_manifest_unless_given() -> None:
    config = ProducerConfig(store="memory://a")
    assert config.replace(manifest_path="orders/manifest").data_path_prefix == "orders"
    assert config.replace(flush_interval_ms=5).data_path_prefix == "ingest"
    assert config.replace(data_path_prefix="x").replace(manifest_path="orders/manifest").data_path_prefix == "x"


@pytest.mark.parametrize("cls", ROLES)
def test_should_refuse_a_manifest_without_a_folder_unless_the_prefix_is_given(cls: type[QueueConfig]) -> None:
    """All of them would get the same folder for their batches."""
    with pytest.raises(InvalidConfig, match=r"'orders/manifest'.*data_path_prefix") as raised:
        cls(store="memory://a", manifest_path="orders")
    assert (raised.value.key, raised.value.value) == ("manifest_path", "orders")
    with pytest.raises(InvalidConfig, match="manifest_path='orders'"):
        cls(store="memory://a").replace(manifest_path="orders")
    with pytest.raises(InvalidConfig, match="manifest_path='orders'"):
        cls.from_dict({"store": "memory://a", "manifest_path": "orders"})
    given = cls(store="memory://a", manifest_path="orders", data_path_prefix="data")
    assert given.data_path_prefix == "data"
    assert given.replace(manifest_path="clicks").data_path_prefix == "data"
    assert given.replace(manifest_path="a/manifest").data_path_prefix == "data"


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "[" * 100_000,
        "x = " + "[" * 100_000 + "]" * 100_000,
        "x = " + "{a=" * 50_000,
        "[" + "a." * 20_000 + "b]\n",
        "x = " + "9" * 5_000,
        "[producer]\nstore = " + "[" * 100_000,
    ],
    ids=["brackets", "closed brackets", "tables", "dotted", "digits", "in the table"],
)
def test_should_say_so_when_a_file_is_too_deep_or_too_long_a_number(tmp_path: Path, text: str) -> None:
    path = tmp_path / "deep.toml"
    path.write_text(text)
    with pytest.raises(InvalidConfig, match=r"deep\.toml"):
        ProducerConfig.from_toml(path)
