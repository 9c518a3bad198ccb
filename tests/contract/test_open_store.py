"""From URL to store: which one, with which options, and what is said about a URL that cannot be right."""

from __future__ import annotations

import pickle
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import pytest

from buffer.config import ConsumerConfig
from buffer.errors import InvalidConfig, InvalidInput, StorageError
from buffer.store import CloudStore, LocalStore, Unknown, open_store
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


# Keys that are not repeated

SECRET = "hush/hush+Q=="
WITH_KEYS = [
    f"s3://AKIA-hidden:{SECRET}@bucket/q",
    "s3://AKIA-hidden:hu/sh@bucket/q",
    "s3a://AKIA-hidden:hush%2Fhush@bucket/q",
    "s3://AKIA-hidden%3Ahush%40bucket/q",
    "s3://hush@bucket/q",
    "s3:AKIA-hidden:hush@b",
    "s3:/AKIA-hidden:hush@b",
    "s3:///AKIA-hidden:hush@b",
    "S3:AKIA-hidden:hush@b",
    "s3//AKIA-hidden:hush@b",
    "s3;AKIA-hidden:hush@b",
    "//AKIA-hidden:hush@b",
    "//AKIA-hidden:hu/sh@b/q",
    "AKIA-hidden:hush@bucket",
    "AKIA-hidden:hush@bucket://q",
    "https://AKIA-hidden:hu/sh@host/b",
    "gs://AKIA-hidden:hush@bucket",
    "az://account:hush==@container/x",
    "abfss://AKIA-hidden:hu/sh@c@acc.dfs.core.windows.net/x",
    "abfss://c@acc.dfs.core.windows.net:hush@h/x",
    "memory://AKIA-hidden:hush@x",
    "file://AKIA-hidden:hush@h",
    "file://AKIA-hidden:hu/sh@h/p",
    "file:////AKIA-hidden:hush@h/p",
    "file:AKIA-hidden:hush@h",
    "s3://bucket/x?sig=hush",
    "s3://bucket/AKIA-hidden:hush@x",
    "s3://[hush/x",
    "file://[hush/x",
]


@pytest.mark.parametrize("url", WITH_KEYS)
def test_should_accept_no_key_in_a_url_however_it_is_spelled(url: str) -> None:
    for attempt in (lambda: open_store(url), lambda: ConsumerConfig(store=url)):
        with pytest.raises(InvalidConfig) as raised:
            attempt()
        told = f"{raised.value!r} {raised.value.value!r}" + "".join(traceback.format_exception(raised.value)[-1:])
        assert "hu" not in told.replace("hush", "hu")
        assert "AKIA" not in told


@pytest.mark.parametrize("path", ["/data/a:b@c", "./a:b@c", "a@b", "a:b", "~/x:y@z"])
def test_should_take_a_path_for_a_path(path: str) -> None:
    assert isinstance(open_store(path), LocalStore)


@pytest.mark.parametrize(
    "options",
    [
        {"virtual_hosted_style_request": f"two\n{SECRET}"},
        {"conditional_put": SECRET},
        {"client_options": {"timeout": SECRET}},
        {"client_options": {"allow_http": f'"{SECRET}\\'}},
        {"client_options": SECRET},
        {"retry_config": SECRET},
        {"endpoint": SECRET},
        {"endpoint": f"http://AKIA-hidden:{SECRET}@host"},
        {"aws_endpoint_url": "http://AKIA-hidden:hush@host:9000"},
        {"region": SECRET},
        {"no_such_option": [SECRET]},
        {"client_options": {"no_such": {"deeper": SECRET}}},
    ],
    ids=ascii,
)
def test_should_not_repeat_the_value_of_an_option(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig) as raised:
        open_store("s3://bucket/q", **options)
    told = f"{raised.value!r} {raised.value.value!r}"
    assert "hush" not in told
    assert "AKIA" not in told


@pytest.mark.parametrize("store", [{"url": "s3://b", "secret": "hush"}, ["hush"], b"hush", 7, None, ("s3://b", "hush")])
def test_should_not_repeat_what_is_no_url_at_all(store: Any) -> None:
    for attempt in (lambda: open_store(store), lambda: ConsumerConfig(store=store)):
        with pytest.raises(InvalidConfig, match="a URL, a path or an open store") as raised:
            attempt()
        assert "hush" not in f"{raised.value!r} {raised.value.value!r}"


def test_should_not_repeat_a_secret_that_stands_under_a_wrong_key() -> None:
    with pytest.raises(InvalidConfig, match="secret_access_key") as raised:
        ConsumerConfig.from_dict({"store": "s3://b/q", "secret_access_key": "hush"})
    assert "hush" not in f"{raised.value!r} {raised.value.value!r}"


# Endpoints

BAD_ENDPOINTS = [
    *("", "::", "http://", "ftp://x", "http://[::1", "localhost:9000", "http://ho st", "http://a\0b", "not a url"),
    *("http://h:99999", "http://u:p@h", "http://u@h", "http://h/?q=1", "http://h#f", "http://\x1b[31mh", "http://é"),
    *("http://exa\u202emple", "http://999.9.9.9", "http://a..b", "http://[1:2]", "http://xn--a", "http://h/<>", "//h"),
    *("http://" + "a" * 64, "http://h\n", " http://h", "http:h", "http:///h"),
]


@pytest.mark.parametrize("endpoint", BAD_ENDPOINTS)
def test_should_name_an_endpoint_that_cannot_be_one(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidConfig, match="the store option endpoint is not an endpoint: write it like http://"):
        open_store("s3://bucket/q", endpoint=endpoint)
    if "\0" not in endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(InvalidConfig, match="the environment variable AWS_ENDPOINT_URL is not an endpoint"):
            open_store("s3://bucket/q")
        open_store("s3://bucket/q", endpoint="http://localhost:9000")
        open_store("az://container/q", account_name="a")


@pytest.mark.parametrize(
    "endpoint",
    [
        *("http://localhost:9000", "https://s3.eu-west-1.amazonaws.com", "http://127.0.0.1:8333/base/path/"),
        *("http://[::1]:9000", "http://minio_1:9000", "https://xn--bcher-kva.example", "http://host."),
    ],
)
def test_should_take_every_usual_endpoint(endpoint: str) -> None:
    store = open_store("s3://bucket/q", endpoint=endpoint, region="x", client_options={"allow_http": True})
    assert isinstance(store, CloudStore)


@pytest.mark.parametrize(
    ("url", "option"),
    [
        ("s3://bucket/q", "access_key_id"),
        ("s3://bucket/q", "aws_session_token"),
        ("s3://bucket/q", "secret_access_key"),
        ("az://container/q", "account_name"),
        ("az://container/q", "bearer_token"),
        ("az://container/q", "tenant_id"),
    ],
)
def test_should_name_a_key_that_cannot_be_sent(url: str, option: str) -> None:
    with pytest.raises(InvalidConfig, match=f"the store option {option} has a space, a line's end") as raised:
        open_store(url, **{option: "hush\n"})
    assert "hush" not in str(raised.value)


def test_should_take_a_secret_with_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    open_store("s3://bucket/q", **KEYS | {"secret_access_key": "hush hush"})
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush hush")
    open_store("s3://bucket/q", access_key_id="AKIA", region="x")


def test_should_leave_a_variable_alone_that_an_option_stands_in_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "hush\n")
    open_store("s3://bucket/q", **KEYS)
    with pytest.raises(InvalidConfig, match="the environment variable AWS_ACCESS_KEY_ID has"):
        open_store("s3://bucket/q", region="x")


@pytest.mark.parametrize("variable", ["GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"])
def test_should_not_show_a_key_that_stands_where_its_file_belongs(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    key = '{"type": "service_account",\n "private_key": "hush-hush-hush"}'
    monkeypatch.setenv(variable, key.replace("\n", ""))
    with pytest.raises(InvalidConfig, match="cannot be opened") as raised:
        open_store("gs://bucket/q")
    assert "hush" not in str(raised.value)
    with pytest.raises(InvalidConfig, match="cannot be opened") as raised:
        open_store("gs://bucket/q", service_account=key)
    assert "hush" not in str(raised.value)
    monkeypatch.setenv(variable, "/no/such/folder/of/keys.json")
    with pytest.raises(InvalidConfig, match=r"/no/such/folder/of/keys\.json"):
        open_store("gs://bucket/q")


def test_should_refuse_a_number_that_cannot_be_one() -> None:
    with pytest.raises(InvalidConfig, match="cannot be opened"):
        open_store("s3://bucket/q", region="x", retry_config={"max_retries": -1})


def test_should_make_an_error_of_a_native_panic(monkeypatch: pytest.MonkeyPatch) -> None:
    """A panic comes as something outside Exception, which ends threads and programs."""

    class PanicException(BaseException):
        pass

    def panic(*_: object, **__: object) -> None:
        raise PanicException("called `Option::unwrap()` on a `None` value")

    store = open_store("memory://")
    for name in ("get", "put", "head", "delete", "list", "copy"):
        monkeypatch.setattr(obstore, name, panic)
    calls: list[Callable[[], object]] = [
        lambda: store.get("a"),
        lambda: store.put("a", b""),
        lambda: store.head("a"),
        lambda: list(store.list("a")),
        lambda: store.copy("a", "b"),
    ]
    for call in calls:
        with pytest.raises(StorageError, match="panicked"):
            call()
    assert isinstance(store.put_if_absent("a", b""), Unknown)
    assert len(store.delete_many(["a"])) == 1
