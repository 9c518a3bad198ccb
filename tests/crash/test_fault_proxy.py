"""The proxy itself: what each fault does to the server and to the client, and that signatures survive it."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from functools import partial

import pytest

from buffer.store import Won, open_store
from tests.crash.processes import await_true
from tests.fault_proxy import FAULTS, Fault, FaultProxy, evenly
from tests.nets import HANGS_S
from tests.servers import Reply, S3Server, ScriptedServer

BODY = b"0123456789" * 100


def _echo(_method: str, _path: str, _headers: dict[str, str], body: bytes) -> Reply:
    return 200, {"X-Kept": "yes"}, body or BODY


def _put(endpoint: str) -> tuple[int, bytes]:
    """Status and body of the answer. Raises OSError or IncompleteRead if there is none, or half of one."""
    request = urllib.request.Request(f"{endpoint}/a/b%20c?d=%2F", data=BODY, method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=HANGS_S) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def _was_reached(server: ScriptedServer) -> bool:
    return bool(server.requests)


@pytest.mark.parametrize(
    ("fault", "status", "reaches_server"),
    [
        (Fault.NONE, 200, True),
        (Fault.SLOW, 200, True),
        (Fault.ERROR_AFTER, 500, True),
        (Fault.THROTTLED, 429, False),
        (Fault.SLOW_DOWN, 503, False),
    ],
)
def test_should_answer_what_the_fault_says(fault: Fault, status: int, reaches_server: bool) -> None:
    with ScriptedServer(_echo) as server, FaultProxy(server.endpoint, {fault: 1.0}, slow_s=(0, 0.01)) as proxy:
        got, body = _put(proxy.endpoint)
    assert got == status
    assert [path for _, path, _ in server.requests] == (["/a/b%20c?d=%2F"] if reaches_server else [])
    assert body == BODY or status != 200
    assert proxy.counts == {fault: 1}


@pytest.mark.parametrize(
    ("fault", "reaches_server"),
    [(Fault.DROP_BEFORE, False), (Fault.DROP_AFTER, True), (Fault.CUT_REPLY, True), (Fault.LATE, True)],
)
def test_should_leave_the_client_without_an_answer(fault: Fault, reaches_server: bool) -> None:
    for seed in range(4):  # closed and reset connections
        with (
            ScriptedServer(_echo) as server,
            FaultProxy(server.endpoint, {fault: 1.0}, seed, slow_s=(0, 0.05)) as proxy,
        ):
            with pytest.raises((OSError, http.client.IncompleteRead)):
                _put(proxy.endpoint)
            if fault is Fault.LATE:
                await_true(partial(_was_reached, server), 5)
        assert bool(server.requests) is reaches_server


def test_should_give_the_server_half_of_an_upload() -> None:
    got: list[bytes] = []

    def answer(_method: str, _path: str, _headers: dict[str, str], body: bytes) -> Reply:
        got.append(body)
        return 400, {}, b""

    with ScriptedServer(answer) as server, FaultProxy(server.endpoint, {Fault.CUT_UPLOAD: 1.0}) as proxy:
        with pytest.raises(OSError):
            _put(proxy.endpoint)
        await_true(lambda: bool(got), 5)
    assert got == [BODY[:500]]


def test_should_count_what_was_done_and_not_what_was_drawn() -> None:
    """A request without a body has no upload to cut; one that found no server met no fault of ours."""
    with ScriptedServer(_echo) as server, FaultProxy(server.endpoint, {Fault.CUT_UPLOAD: 1.0}) as proxy:
        with pytest.raises((OSError, http.client.IncompleteRead)):
            urllib.request.urlopen(f"{proxy.endpoint}/a", timeout=HANGS_S).read()
        assert proxy.counts == {Fault.CUT_REPLY: 1}
        with pytest.raises(OSError):
            _put(proxy.endpoint)
        assert proxy.counts == {Fault.CUT_REPLY: 1, Fault.CUT_UPLOAD: 1}
        proxy.upstream = None
        with pytest.raises(OSError):
            _put(proxy.endpoint)
        assert (proxy.counts.total(), proxy.unanswered) == (2, 1)


def test_should_drop_requests_while_the_server_is_down_and_follow_it_to_another_port() -> None:
    with FaultProxy(None) as proxy:
        with pytest.raises(OSError):
            _put(proxy.endpoint)
        with ScriptedServer(_echo) as server:
            proxy.upstream = server.endpoint
            assert _put(proxy.endpoint) == (200, BODY)
    assert proxy.unanswered == 1


def test_should_repeat_the_faults_of_a_seed() -> None:
    def faults(seed: int) -> list[Fault]:
        proxy = FaultProxy(None, evenly(0.9), seed)
        with proxy:
            return [proxy.choose() for _ in range(300)]

    assert faults(7) == faults(7)
    assert faults(7) != faults(8)
    assert set(faults(7)) == set(Fault)


def test_should_keep_signatures_valid_for_every_operation(s3_server: S3Server) -> None:
    """Read, written and listed through the proxy under names that need escaping, on a server that checks keys."""
    address = s3_server.new_address()
    with FaultProxy(s3_server.endpoint) as proxy:
        store = open_store(f"{address.url}/ü #%2F", **{**address.options, "endpoint": proxy.endpoint})
        won = store.put_if_absent("a b", b"one")
        assert isinstance(won, Won)
        assert isinstance(store.put_if_match("a b", b"two", won.version), Won)
        store.copy("a b", "c+d")
        assert store.get("c+d").data == b"two"
        assert [item.location for item in store.list("")] == ["a b", "c+d"]
        assert store.delete_many(["a b", "c+d"]) == []
        assert list(store.list("")) == []
    assert proxy.counts.total() >= 7, "each of the operations above went through it"
    assert proxy.unanswered == 0


def test_should_know_every_fault() -> None:
    assert sum(evenly(0.5).values()) == pytest.approx(0.5)
    assert Fault.NONE not in FAULTS
