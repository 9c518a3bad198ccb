"""What a store makes of the answers that a server gives on a bad day. The client is the real one, the server is
scripted."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from buffer.errors import InvalidInput, ObjectNotFound, StorageError, StoreUnusable, Throttled
from buffer.store import Lost, Store, Unknown, Won, open_store
from tests.nets import HANGS_S
from tests.servers import Reply, ScriptedServer

ONCE = {"max_retries": 0}
TWICE = {
    "max_retries": 1,
    "backoff": {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=2), "base": 2},
}


def _error(status: int, code: str = "", message: str = "no luck") -> Reply:
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>" if code else ""
    return status, {"Content-Type": "application/xml"}, body.encode()


def _answers(*replies: Reply) -> Callable[..., Reply]:
    """One after the other; the last one again and again."""
    left = list(replies)
    return lambda *_request: left.pop(0) if len(left) > 1 else left[0]


def _s3(server: ScriptedServer, retry: dict[str, Any] = ONCE, **client: Any) -> Store:
    return open_store(
        "s3://bucket/x",
        endpoint=server.endpoint,
        region="us-east-1",
        access_key_id="AKIA-hidden",
        secret_access_key="hush-hush",
        client_options={"allow_http": True, **client},
        retry_config=retry,
    )


def _calls(store: Store) -> list[Callable[[], object]]:
    return [
        lambda: store.get("a"),
        lambda: store.get_if_changed("a", '"1"'),
        lambda: store.head("a"),
        lambda: store.put("a", b"x"),
        lambda: store.copy("a", "b"),
        lambda: list(store.list("a")),
    ]


def _swaps(store: Store) -> list[Callable[[], object]]:
    return [lambda: store.put_if_absent("a", b"x"), lambda: store.put_if_match("a", b"x", '"1"')]


@pytest.mark.parametrize("reply", [_error(429), _error(503, "SlowDown"), _error(503)])
def test_should_say_throttled_when_the_server_asks_for_less(reply: Reply) -> None:
    with ScriptedServer(_answers(reply)) as server:
        store = _s3(server)
        for call in _calls(store):
            with pytest.raises(Throttled) as raised:
                call()
            assert raised.value.retryable
        for swap in _swaps(store):
            outcome = swap()
            assert isinstance(outcome, Unknown)
            assert isinstance(outcome.cause, Throttled)
        assert all(isinstance(failure.cause, Throttled) for failure in store.delete_many(["a", "b"]))


@pytest.mark.parametrize("reply", [_error(500, "InternalError"), _error(502), _error(408), _error(416), (0, {}, b"")])
def test_should_be_retryable_when_the_server_fails(reply: Reply) -> None:
    with ScriptedServer(_answers(reply)) as server:
        store = _s3(server)
        for call in _calls(store):
            with pytest.raises(StorageError) as raised:
                call()
            assert type(raised.value) is StorageError
            assert raised.value.retryable
        for swap in _swaps(store):
            outcome = swap()
            assert isinstance(outcome, Unknown)
            assert isinstance(outcome.cause, StorageError)
            assert outcome.cause.retryable
            assert outcome.cause.location == "a"


def test_should_be_unknown_when_nobody_answers_in_time() -> None:
    given_up = threading.Event()

    def stall(*_request: object) -> Reply:
        given_up.wait(HANGS_S)
        return _error(500)

    with ScriptedServer(stall) as server:
        store = _s3(server, timeout="100ms")
        try:
            outcome = store.put_if_match("a", b"x", '"1"')
            assert isinstance(outcome, Unknown)
            assert "timeout" in str(outcome.cause)
            with pytest.raises(StorageError, match="timeout"):
                store.get("a")
        finally:
            given_up.set()


def test_should_name_the_server_when_it_cannot_be_reached() -> None:
    with ScriptedServer(_answers(_error(500))) as server:
        store = _s3(server)
        endpoint = server.endpoint
    with pytest.raises(StorageError, match=f"no answer from {endpoint}: connect, Connection refused") as raised:
        store.get("a")
    assert raised.value.retryable


@pytest.mark.parametrize("reply", [_error(403, "AccessDenied"), _error(401)])
def test_should_be_unusable_when_access_is_denied(reply: Reply) -> None:
    with ScriptedServer(_answers(reply)) as server:
        store = _s3(server)
        for call in [*_calls(store), *_swaps(store)]:
            with pytest.raises(StoreUnusable, match="check the credentials") as raised:
                call()
            assert not raised.value.retryable


def test_should_be_unusable_when_the_token_has_expired() -> None:
    with ScriptedServer(_answers(_error(400, "ExpiredToken"))) as server, pytest.raises(StoreUnusable):
        _s3(server).get("a")


def test_should_be_unusable_when_the_bucket_is_missing() -> None:
    with ScriptedServer(_answers(_error(404, "NoSuchBucket"))) as server:
        store = _s3(server)
        for call in [*_calls(store), *_swaps(store)]:
            with pytest.raises(StorageError) as raised:
                call()
            if server.requests[-1][0] == "HEAD":  # its answer has no body that could tell
                assert isinstance(raised.value, ObjectNotFound)
            else:
                assert isinstance(raised.value, StoreUnusable)
                assert "the bucket of s3://bucket/x does not exist" in str(raised.value)


def test_should_take_a_404_of_a_write_for_a_missing_bucket() -> None:
    with ScriptedServer(_answers(_error(404))) as server:
        store = _s3(server)
        with pytest.raises(StoreUnusable, match="does not exist"):
            store.put("a", b"x")
        with pytest.raises(StoreUnusable, match="does not exist"):
            store.put_if_absent("a", b"x")
        assert store.put_if_match("a", b"x", '"1"') == Lost()
        with pytest.raises(ObjectNotFound):
            store.get("a")


@pytest.mark.parametrize("reply", [_error(412, "PreconditionFailed"), _error(409, "ConditionalRequestConflict")])
def test_should_be_lost_when_the_condition_fails(reply: Reply) -> None:
    with ScriptedServer(_answers(reply)) as server:
        for swap in _swaps(_s3(server)):
            assert swap() == Lost()


def test_should_report_lost_when_the_client_repeats_a_write_that_landed() -> None:
    """Why a Lost is never taken at its word: the first request may have landed behind its 500."""
    with ScriptedServer(_answers(_error(500), _error(412, "PreconditionFailed"))) as server:
        assert _s3(server, TWICE).put_if_match("a", b"x", '"1"') == Lost()
        assert len(server.requests) == 2


def test_should_be_unknown_when_denied_only_after_a_retry() -> None:
    with ScriptedServer(_answers(_error(500), _error(403, "AccessDenied"))) as server:
        outcome = _s3(server, TWICE).put_if_absent("a", b"x")
    assert isinstance(outcome, Unknown)
    assert isinstance(outcome.cause, StoreUnusable)


def test_should_be_unknown_when_the_server_tells_no_version() -> None:
    with ScriptedServer(_answers((200, {}, b""))) as server:
        outcome = _s3(server).put_if_absent("a", b"x")
        assert isinstance(outcome, Unknown)
        assert "ETag" in str(outcome.cause)


def test_should_not_retry_when_the_request_is_wrong() -> None:
    reply = _error(400, "InvalidArgument", "There is no such thing")
    expected = pytest.raises(StorageError, match="400: InvalidArgument: There is no such thing")
    with ScriptedServer(_answers(reply)) as server, expected as raised:
        _s3(server).put("a", b"x")
    assert not raised.value.retryable


def test_should_blame_the_location_when_the_server_refuses_its_name() -> None:
    reply = _error(400, "KeyTooLongError", "Your key is too long")
    for call in (
        lambda store: store.put("a", b"x"),
        lambda store: store.put_if_absent("a", b"x"),
        lambda store: store.get("a"),
    ):
        expected = pytest.raises(InvalidInput, match=r"location 'a' is not allowed .* Your key is too long")
        with ScriptedServer(_answers(reply)) as server, expected:
            call(_s3(server))


def test_should_not_show_secrets_that_a_server_repeats() -> None:
    reply = _error(403, "SignatureDoesNotMatch", "AKIA-hidden signed hush-hush")
    with ScriptedServer(_answers(reply)) as server, pytest.raises(StoreUnusable) as raised:
        _s3(server).put("a", b"x")
    text = "".join(traceback.format_exception(raised.value))
    assert "SignatureDoesNotMatch" in text
    assert "AKIA" not in text
    assert "hush" not in text


def test_should_not_take_it_for_an_answer_that_nothing_has_changed_where_nobody_asked() -> None:
    with ScriptedServer(_answers((304, {}, b""))) as server:
        store = _s3(server)
        with pytest.raises(StorageError, match="answered 304") as raised:
            store.get("a")
        assert raised.value.retryable
        assert store.get_if_changed("a", '"1"') is None


def test_should_not_show_the_beginning_of_a_secret_that_is_longer_than_a_message() -> None:
    token = "hush" * 500
    with ScriptedServer(_answers(_error(400, "InvalidRequest", f"no such token: {token}, sorry"))) as server:
        store = open_store(
            "s3://bucket/x",
            endpoint=server.endpoint,
            region="us-east-1",
            access_key_id="AKIA-hidden",
            secret_access_key="hush-hush",
            token=token,
            client_options={"allow_http": True},
            retry_config=ONCE,
        )
        with pytest.raises(StorageError, match="no such token: …, sorry") as raised:
            store.get("a")
    assert "hush" not in str(raised.value)


def test_should_not_be_misled_by_a_location_that_looks_like_an_answer() -> None:
    with ScriptedServer(_answers(_error(500))) as server:
        location = "status: 403, <Code>NoSuchBucket<"
        with pytest.raises(StorageError) as raised:
            _s3(server).put(location, b"x")
    assert type(raised.value) is StorageError
    assert raised.value.location == location


def test_should_say_how_to_allow_plain_http() -> None:
    store = open_store(
        "s3://bucket",
        endpoint="http://127.0.0.1:9",
        region="us-east-1",
        access_key_id="a",
        secret_access_key="b",
        retry_config=ONCE,
    )
    with pytest.raises(StoreUnusable, match="allow_http"):
        store.get("a")


def test_should_say_so_when_there_are_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without keys, obstore asks the machine's metadata service; here a failing one stands in for it."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with ScriptedServer(_answers(_error(404))) as server:
        store = open_store(
            "s3://bucket",
            endpoint=server.endpoint,
            metadata_endpoint=server.endpoint,
            region="us-east-1",
            client_options={"allow_http": True},
            retry_config=ONCE,
        )
        with pytest.raises(StoreUnusable, match="no credentials were found"):
            store.get("a")


class GcsBucket:
    """As much of Google's XML API as one object needs: generations, and conditions on them."""

    def __init__(self) -> None:
        self.generation = 0
        self.data = b""

    def __call__(self, method: str, _path: str, headers: dict[str, str], body: bytes) -> Reply:
        wanted = headers.get("x-goog-if-generation-match")
        if method == "PUT":
            if wanted is not None and int(wanted) != self.generation:
                return _error(412, "PreconditionFailed")
            self.generation += 1
            self.data = body
            return 200, self._headers(), b""
        if not self.generation:
            return _error(404, "NoSuchKey")
        return 200, {**self._headers(), "Content-Length": str(len(self.data))}, self.data

    def _headers(self) -> dict[str, str]:
        # The ETag tells the content, not the write: equal bytes written twice have the same one.
        return {
            "ETag": f'"{hash(self.data)}"',
            "x-goog-generation": str(self.generation),
            "Last-Modified": "Tue, 14 Nov 2023 22:13:20 GMT",
        }


def test_should_swap_by_generation_on_gcs() -> None:
    with ScriptedServer(GcsBucket()) as server:
        store = open_store(
            "gs://bucket/x",
            base_url=server.endpoint,
            bearer_token="not-a-real-token",
            client_options={"allow_http": True},
            retry_config=ONCE,
        )
        with pytest.raises(ObjectNotFound):
            store.get("a")
        first = store.put_if_absent("a", b"one")
        assert isinstance(first, Won)
        assert store.put_if_absent("a", b"two") == Lost()
        assert store.get("a").version == store.head("a").version == first.version
        assert store.get_if_changed("a", first.version) is None
        store.put("a", b"one")  # the same bytes, and so the same ETag, but another generation
        assert store.put_if_match("a", b"two", first.version) == Lost()
        seen = store.get_if_changed("a", first.version)
        assert seen is not None, "a caller that keeps the old generation could never win again"
        assert isinstance(store.put_if_match("a", b"two", seen.version), Won)
        assert store.get("a").data == b"two"
