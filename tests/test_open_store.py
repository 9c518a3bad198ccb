"""From URL to store: which one, with which options, and what is said about a URL that cannot be right."""

from __future__ import annotations

import pickle
import uuid
from pathlib import Path
from typing import Any

import pytest

from buffer.errors import InvalidConfig, InvalidInput
from buffer.store import CloudStore, LocalStore, open_store
from buffer.store.open import Store

KEYS = {"access_key_id": "AKIA-hidden", "secret_access_key": "hush-hush", "region": "eu-west-1"}


@pytest.mark.parametrize(
    ("url", "options", "shown"),
    [
        ("s3://bucket", {"region": "x"}, "s3://bucket"),
        ("s3://bucket/", {"region": "x"}, "s3://bucket"),
        ("s3a://bucket/a/b/", {"region": "x"}, "s3://bucket/a/b"),
        ("S3://bucket/a#b %20 日本", {"region": "x"}, "s3://bucket/a#b %20 日本"),
        ("gs://bucket/x", {}, "gs://bucket/x"),
        ("az://container/x", {"account_name": "a"}, "az://container/x"),
        ("azure://container", {"account_name": "a"}, "az://container"),
        ("abfss://c@acc.dfs.core.windows.net/x", {}, "abfss://c@acc.dfs.core.windows.net/x"),
        ("abfs://c@acc.dfs.core.windows.net", {}, "abfss://c@acc.dfs.core.windows.net"),
        ("memory://", {}, "memory://"),
        ("memory://name/x", {}, "memory://name/x"),
    ],
)
def test_should_open_a_cloud_store_and_ask_nobody(url: str, options: dict[str, Any], shown: str) -> None:
    store = open_store(url, **options)
    assert isinstance(store, CloudStore)
    assert store.url == shown
    assert open_store(shown, **options).url == shown


def test_should_open_local_files_by_path_and_by_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mit Leerzeichen #1 %20"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    open_store(folder).put("a", b"one")
    for same in (str(folder), folder.as_uri(), f"./{folder.name}", folder.name, f"~/{folder.name}"):
        store = open_store(same)
        assert isinstance(store, LocalStore)
        assert store.get("a").data == b"one"
        assert store.url == folder.as_uri()


def test_should_return_an_open_store_as_it_is() -> None:
    store = open_store("memory://")
    assert open_store(store) is store
    with pytest.raises(InvalidConfig, match="region"):
        open_store(store, region="x")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host/x", r"'ftp://host/x'.*one of file://, s3://.*gs://.*memory://.*or give a path"),
        ("http://host/bucket", r"'http://host/bucket'.*one of"),
        ("://x", "one of"),
        ("s3:/bucket/x", "did you mean 's3://…'"),
        ("memory:", "did you mean 'memory://…'"),
        ("file:/tmp", "did you mean 'file://…'"),
        ("s3://", "'s3://' .*names no bucket"),
        ("gs:///x", "names no bucket"),
        ("abfss://container/x", "abfss://container@account"),
        ("file://host/x", "file:///absolute/path"),
        ("file://", "file:///absolute/path"),
        ("file:///a?b", "percent-encoded"),
        ("", "a URL, a path or an open store"),
        ("s3://bucket/a//b", "'a//b' is not allowed"),
        ("s3://bucket/../b", "'../b' is not allowed"),
    ],
)
def test_should_name_the_url_and_what_is_allowed(url: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIA-hidden:hush-hush@bucket/x",
        "s3://bucket/x?secret_access_key=hush-hush",
        "az://container?sig=hush-hush",
        "abfss://c:hush-hush@acc.dfs.core.windows.net/x",
        "ftp://AKIA-hidden:hush-hush@host/x?token=hush-hush",
    ],
)
def test_should_refuse_keys_in_the_url_without_repeating_them(url: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        open_store(url)
    assert "hush" not in repr(raised.value)
    assert "AKIA" not in repr(raised.value)
    assert "hush" not in str(raised.value.value)


@pytest.mark.parametrize(
    ("url", "options", "named"),
    [
        ("s3://bucket", {"no_such_option": "hush-hush"}, "no_such_option"),
        ("s3://bucket", {"client_options": {"no_such_client_option": "hush-hush"}}, "no_such_client_option"),
        ("./folder", {"region": "hush-hush"}, "region"),
        ("memory://x", {"region": "hush-hush"}, "region"),
    ],
)
def test_should_name_an_option_that_is_not_known(url: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidConfig, match=named) as raised:
        open_store(url, **options)
    assert "hush" not in str(raised.value)


def test_should_print_the_names_of_options_only() -> None:
    store = open_store("s3://bucket/x", **KEYS)
    for text in (repr(store), str(store), f"{store}", store.url):
        assert "hush" not in text
        assert "AKIA" not in text
    assert repr(store) == "CloudStore('s3://bucket/x', access_key_id=…, region=…, secret_access_key=…)"


def test_should_pickle_by_url_and_options() -> None:
    store = open_store("s3://bucket/x", **KEYS, client_options={"timeout": "5s"})
    again = pickle.loads(pickle.dumps(store))
    assert repr(again) == repr(store)
    assert again.url == "s3://bucket/x"


def test_should_say_why_memory_cannot_be_pickled() -> None:
    store = open_store(f"memory://{uuid.uuid4().hex}")
    with pytest.raises(InvalidInput, match=r"one process.*use a folder or a bucket"):
        pickle.dumps(store)


def test_should_be_stores_to_those_who_ask() -> None:
    assert isinstance(open_store("memory://"), Store)
    assert isinstance(open_store("./x"), Store)
    assert not isinstance("./x", Store)
