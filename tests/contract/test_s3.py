"""S3 passes the contract on a real server, and says clearly what is wrong with a bucket or a key."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import subprocess
import sys
import traceback

import pytest

from buffer.errors import InvalidInput, ObjectNotFound, ObjectTooLarge, StorageError, StoreUnusable
from buffer.store import Store, open_store
from buffer.store.base import CanGetBounded
from buffer.testing.contract import StoreContract
from tests.contract.counting import count_up
from tests.nets import HANGS_S
from tests.servers import S3Server


class TestS3(StoreContract):
    """At the root of a bucket of its own: odd prefixes must not depend on a folder above them.

    Not of a bucket that was emptied: this server forgets a folder `a` only minutes after the last object in it, and
    until then it says of a new object `a` that it is there.
    """

    @pytest.fixture
    def store(self, s3_server: S3Server) -> Store:
        return open_store(f"s3://{s3_server.new_bucket()}", **s3_server.options)


def test_should_keep_to_its_prefix_whatever_it_is_called(s3_server: S3Server) -> None:
    address = s3_server.new_address()
    address.open().put("a#b %20 日本2/x", b"a neighbour")
    store = open_store(f"{address.url}/a#b %20 日本", **address.options)
    store.put("x/y", b"one")
    assert store.get("x/y").data == b"one"
    assert [o.location for o in store.list("")] == [o.location for o in store.list("x")] == ["x/y"]
    assert address.open().get("a#b %20 日本/x/y").data == b"one"
    assert store.delete_many(["x/y"]) == []
    assert [o.location for o in address.open().list("")] == ["a#b %20 日本2/x"]


def test_should_name_the_bucket_when_it_is_missing(s3_server: S3Server) -> None:
    store = open_store("s3://no-such-bucket/x", **s3_server.options)
    for call in (
        lambda: store.get("a"),
        lambda: store.put("a", b"x"),
        lambda: store.put_if_absent("a", b"x"),
        lambda: list(store.list("a")),
    ):
        with pytest.raises(StoreUnusable, match=r"bucket of s3://no-such-bucket/x does not exist") as raised:
            call()
        assert raised.value.url == "s3://no-such-bucket/x"
        assert not raised.value.retryable
    (failure,) = store.delete_many(["a"])
    assert isinstance(failure.cause, StoreUnusable)


def test_should_say_denied_when_the_key_may_only_read(s3_server: S3Server) -> None:
    address = s3_server.new_address()
    address.open().put("a", b"one")
    store = open_store(address.url, **s3_server.read_only_options)
    found = store.get("a")
    for call in (
        lambda: store.put("a", b"x"),
        lambda: store.put_if_absent("b", b"x"),
        lambda: store.put_if_match("a", b"x", found.version),
    ):
        with pytest.raises(StoreUnusable, match="AccessDenied"):
            call()
    assert [failure.location for failure in store.delete_many(["a", "b"])] == ["a", "b"]
    assert store.get("a") == found


def test_should_never_show_a_secret(s3_server: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    secrets = {"access_key_id": "AKIA-not-for-logs", "secret_access_key": "hush-hush", "session_token": "tok-en"}
    bucket = s3_server.new_bucket()
    shown = []
    with caplog.at_level(logging.DEBUG):
        store = open_store(f"s3://{bucket}", **{**s3_server.options, **secrets})
        shown += [repr(store), str(store), store.url]
        for call in (lambda: store.put("a", b"x"), lambda: store.get("a"), lambda: list(store.list(""))):
            with pytest.raises(StorageError) as raised:
                call()
            shown.append("".join(traceback.format_exception(raised.value)))
            shown.append(repr(pickle.loads(pickle.dumps(raised.value))))
    text = "\n".join([*shown, caplog.text])
    assert "InvalidAccessKeyId" in text
    assert "secret_access_key=…" in text
    for secret in secrets.values():
        assert secret not in text


def test_should_reopen_by_url_and_options_when_unpickled(s3_server: S3Server) -> None:
    address = s3_server.new_address()
    store = pickle.loads(pickle.dumps(address.open()))
    store.put("a", b"one")
    assert address.open().get("a").data == b"one"
    with pytest.raises(ObjectNotFound):
        store.get("b")


def test_should_refuse_a_forked_child_instead_of_hanging(s3_server: S3Server) -> None:
    address = s3_server.new_address()
    program = f"from tests.contract.counting import use_after_fork as f; f({address.url!r}, {address.options!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=HANGS_S)
    assert "'spawn' or 'forkserver'" in done.stdout


def test_should_count_right_when_processes_swap(s3_server: S3Server) -> None:
    address = s3_server.new_address()
    address.open().put("counter", b"0")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=count_up, args=(address.url, address.options, 10)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(HANGS_S)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert address.open().get("counter").data == b"20"


@pytest.mark.parametrize("length", [1_025, 5_000, 60_000])
def test_should_blame_the_location_when_no_key_can_be_so_long(s3_server: S3Server, length: int) -> None:
    store = s3_server.new_address().open()
    with pytest.raises((InvalidInput, ObjectNotFound)):
        store.get("ingest/" + "a" * length)


def test_should_refuse_a_large_object_before_it_is_read(s3_server: S3Server) -> None:
    store = s3_server.new_address().open()
    store.put("a", bytes(2_000_000))
    assert isinstance(store, CanGetBounded)
    assert len(store.get_bounded("a", 2_000_000)) == 2_000_000
    with pytest.raises(ObjectTooLarge, match="2,000,000 bytes"):
        store.get_bounded("a", 1_999_999)
