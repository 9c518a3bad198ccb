"""The server takes GET, says little, and hostile clients neither stop it nor cost it more than a bounded sum."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus
from typing import NoReturn

import pytest

from buffer.config import ConsumerConfig
from buffer.errors import InvalidConfig
from buffer.store import Store
from buffer_delta.serve import http
from buffer_delta.serve import server as status_server
from buffer_delta.serve.http import Answer, HttpServer, parse_address
from buffer_delta.serve.server import StatusServer
from tests.nets import HANGS_S, wait_until


def handle(path: str) -> Answer | None:
    if path == "/fails":
        raise ValueError("on purpose")
    if path == "/large":
        return Answer(b"x" * 20_000_000)
    return Answer(path.encode(), "text/plain") if path == "/ok" else None


@pytest.fixture
def server() -> Iterator[HttpServer]:
    made = HttpServer("127.0.0.1:0", handle)
    made.start()
    yield made
    made.close()


def connect(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=HANGS_S)


def ask(server: HttpServer, request: bytes) -> bytes:
    """Send the bytes, then read until the server has closed."""
    with connect(server) as client:
        client.sendall(request)
        return read_all(client)


def read_all(client: socket.socket) -> bytes:
    found = b""
    try:
        while data := client.recv(1 << 16):
            found += data
    except ConnectionResetError:
        pass
    return found


def code(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


OK = b"GET /ok HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    ("request_", "wanted"),
    [
        (OK, 200),
        (b"GET /ok?x=1#y HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n", 200),
        (b"GET /ok HTTP/1.0\r\nhost: [::1]:9464\r\n\r\n", 200),
        (b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /<script>alert(1)</script> HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"POST /ok HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\nabc", 405),
        (b"DELETE /ok HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"GET /ok HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        (b"GET /ok HTTP/1.1\r\n\r\n", 421),
        (b"GET /ok HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 421),
        (b"GET /fails HTTP/1.1\r\nHost: localhost\r\n\r\n", 500),
        (b"GET /ok\r\n\r\n", 400),
        (b"\x00\xff\xfe\r\n\r\n", 400),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
        (b"GET /ok HTTP/1.1\r\n" + b"X-Header: 1\r\n" * 10_000, 431),
    ],
)
def test_should_answer_or_refuse_and_repeat_nothing(server: HttpServer, request_: bytes, wanted: int) -> None:
    answer = ask(server, request_)
    assert code(answer) == wanted
    assert b"Content-Security-Policy: default-src 'none'" in answer
    assert b"script>" not in answer
    assert b"on purpose" not in answer
    assert code(ask(server, OK)) == 200, "and it goes on"


def test_should_leave_the_body_out_for_head(server: HttpServer) -> None:
    answer = ask(server, OK.replace(b"GET", b"HEAD"))
    assert answer.endswith(b"\r\n\r\n")
    assert b"Content-Length: 3\r\n" in answer


def test_should_answer_through_a_thousand_connections_that_say_nothing(server: HttpServer) -> None:
    held = []
    try:
        for number in range(1000):
            client = connect(server)
            held.append(client)
            client.sendall(b"GET /ok HTTP/1.1\r\nX: ")  # and no more
            if number % 100 == 99:
                assert code(ask(server, OK)) == 200
        assert server.connections() <= http.CONNECTIONS_MAX
    finally:
        for client in held:
            client.close()
    assert code(ask(server, OK)) == 200


def test_should_not_wait_for_a_request_that_comes_slowly(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 0.2)
    with connect(server) as slow:
        slow.sendall(b"G")
        assert read_all(slow) == b"", "closed without an answer"
    monkeypatch.undo()
    assert code(ask(server, OK)) == 200


def test_should_not_wait_for_a_client_that_does_not_take_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_S", HANGS_S)
    monkeypatch.setattr(http, "ANSWER_S", 0.2)
    asked = threading.Event()

    def handle_and_say(path: str) -> Answer | None:
        asked.set()
        return handle(path)

    server = HttpServer("127.0.0.1:0", handle_and_say)
    server.start()
    try:
        with connect(server) as deaf:
            deaf.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert asked.wait(HANGS_S)
            wait_until(lambda: server.connections() == 0, "for the server to drop it")
            assert 0 < len(read_all(deaf)) < 20_000_000, "closed in the middle of it"
        monkeypatch.undo()
        assert code(ask(server, OK)) == 200
    finally:
        server.close()


def test_should_let_every_socket_go_when_closed() -> None:
    server = HttpServer("127.0.0.1:0", handle)
    server.start()
    client = connect(server)
    assert code(ask(server, OK)) == 200
    server.close()
    server.close()
    assert read_all(client) == b""
    client.close()
    HttpServer(f"127.0.0.1:{server.port}", handle).close()  # the address is free again


def test_should_refuse_an_address_that_is_taken_or_none(server: HttpServer) -> None:
    with pytest.raises(InvalidConfig, match="choose another address"):
        HttpServer(f"127.0.0.1:{server.port}", handle)
    for host in ("a" * 300, "a..b", "x" * 64 + ".example"):
        with pytest.raises(InvalidConfig, match="choose another address"):
            HttpServer(f"{host}:0", handle)
    for text in (
        "",
        "nonsense",
        "127.0.0.1:",
        "localhost:99999",
        "a b:1",
        "1.2.3.4:x",
        "localhost:" + "9" * 5000,
        "*:1",
    ):
        with pytest.raises(InvalidConfig, match="HOST:PORT"):
            parse_address(text)
    assert parse_address("9464") == parse_address(":9464") == ("127.0.0.1", 9464)
    assert parse_address("[::]:1") == ("::", 1)


def test_should_leave_nothing_behind_when_it_cannot_start(
    server: HttpServer, memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No reader of the metrics that nobody asks, and no address that is taken by nobody."""

    def no_exporter() -> NoReturn:
        raise InvalidConfig("serving needs the extra")

    monkeypatch.setattr(status_server, "_prometheus", no_exporter)
    with pytest.raises(InvalidConfig, match="choose another address"):
        StatusServer(f"127.0.0.1:{server.port}", memory, ConsumerConfig(store=memory))
    server.close()
    with pytest.raises(InvalidConfig, match="the extra"):
        StatusServer(f"127.0.0.1:{server.port}", memory, ConsumerConfig(store=memory))
    HttpServer(f"127.0.0.1:{server.port}", handle).close()


def test_should_answer_to_any_name_where_it_is_open_to_all(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_local_only", False)
    assert code(ask(server, b"GET /ok HTTP/1.1\r\nHost: loader.example\r\n\r\n")) == HTTPStatus.OK
