"""A small web server for a few pages, on one thread, that hostile clients do not disturb.

Whoever is called at night must get an answer, and the loader beside it must not feel who asks. So all is bounded:

    connections    `CONNECTIONS_MAX`; one more takes the place of the one that has dawdled longest, so that a probe
                   gets through however many slow clients hold on
    a request      `HEAD_BYTES_MAX`, within `REQUEST_S`; only GET and HEAD, no body, one per connection
    an answer      must be taken within `ANSWER_S`; it is made from what is in memory, never by asking a store
    threads        one, with non-blocking sockets: a thousand clients are a thousand entries of a selector

What an answer may hold is decided by `Handler`. Every answer forbids the browser whatever the page does not need.
A server on a loopback address answers only requests that name one: else a web page elsewhere could have a browser read
it by a name that it points here.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import urlsplit

from buffer.clock import SystemClock
from buffer.errors import InvalidConfig

_CLOCK = SystemClock()

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 128
HEAD_BYTES_MAX = 8192
REQUEST_S = 5.0
ANSWER_S = 10.0
NO_DESCRIPTOR_S = 0.1  # the rest of the process has them all: do not spin
ACCEPTS_PER_TURN = 32  # then those that are connected get their turn

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Answer:
    body: bytes
    content_type: str = "application/json"
    status: HTTPStatus = HTTPStatus.OK


Handler = Callable[[str], Answer | None]
"""A path, without its query, to what stands there; None if nothing does. It must not wait for anything."""


def parse_address(text: str) -> tuple[str, int]:
    """`9464`, `:9464`, `0.0.0.0:9464` or `[::1]:9464`. Without a host 127.0.0.1: being seen must be asked for."""
    host, _, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    is_port = re.fullmatch(r"[0-9]{1,5}", port) and int(port) <= 65535
    if not is_port or not host.isprintable() or " " in host or host == "*":  # that is this machine alone to the system
        raise InvalidConfig(
            f"serve={text!r} is not allowed: write HOST:PORT, like 127.0.0.1:9464; 0.0.0.0 is every address, "
            "port 0 a free one",
            key="serve",
            value=text,
        )
    return host, int(port)


@dataclass(slots=True, eq=False)
class _Client:
    """One connection: first its request comes in, then the answer goes out."""

    sock: socket.socket
    deadline_s: float
    received: bytearray = field(default_factory=bytearray)
    answer: memoryview | None = None
    draining: bool = False


class HttpServer:
    """Serves until `close`. It is bound when it is made, so the address is known at once."""

    def __init__(self, address: str, handler: Handler) -> None:
        host, port = parse_address(address)
        self._handler = handler
        self._listener = _bind(host, port)
        found = self._listener.getsockname()
        self.host, self.port = host, int(found[1])
        self._local_only = ipaddress.ip_address(found[0].partition("%")[0]).is_loopback
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = socket.socketpair()
        self._clients: dict[_Client, None] = {}
        """In the order in which they came: the first has dawdled longest."""
        self._thread = threading.Thread(target=self._run, name="buffer-delta-serve", daemon=True)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/"

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop, and let every socket go. Closed again, it does nothing."""
        if self._thread.is_alive():
            with suppress(OSError):
                self._wake_w.send(b"x")
            self._thread.join()
        for sock in (self._listener, self._wake_r, self._wake_w):
            sock.close()

    def connections(self) -> int:
        return len(self._clients)

    # The one thread

    def _run(self) -> None:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_r, selectors.EVENT_READ)
        try:
            while True:
                for key, _ in self._selector.select(self._patience_s()):
                    if key.fileobj is self._wake_r:
                        return
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.data in self._clients:  # not thrown out a moment ago
                        self._serve(key.data)
                self._throw_out_the_late()
        finally:
            for client in list(self._clients):
                self._drop(client)
            self._selector.close()

    def _patience_s(self) -> float | None:
        if not self._clients:
            return None
        return max(0.0, min(client.deadline_s for client in self._clients) - _CLOCK.monotonic_s())

    def _throw_out_the_late(self) -> None:
        now_s = _CLOCK.monotonic_s()
        for client in [client for client in self._clients if client.deadline_s <= now_s]:
            self._drop(client)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # no descriptor left, or the client is gone already
                log.debug("a connection was not accepted: %s", error)
                if self._clients:
                    self._drop(next(iter(self._clients)))
                else:
                    _CLOCK.sleep(NO_DESCRIPTOR_S)
                return
            if len(self._clients) >= CONNECTIONS_MAX:
                self._drop(next(iter(self._clients)))
            sock.setblocking(False)
            client = _Client(sock, _CLOCK.monotonic_s() + REQUEST_S)
            self._clients[client] = None
            self._selector.register(sock, selectors.EVENT_READ, client)

    def _serve(self, client: _Client) -> None:
        try:
            if client.answer is not None:
                self._send(client)
            elif client.draining:
                if not client.sock.recv(HEAD_BYTES_MAX):
                    self._drop(client)
            else:
                self._receive(client)
        except BlockingIOError:
            return
        except OSError:  # reset, or timed out by the system: the client's affair
            self._drop(client)

    def _receive(self, client: _Client) -> None:
        data = client.sock.recv(HEAD_BYTES_MAX)
        if not data:
            self._drop(client)
            return
        client.received += data
        end = client.received.find(b"\r\n\r\n")
        if 0 <= end <= HEAD_BYTES_MAX:
            self._reply(client, self._answer(bytes(client.received[:end])))
        elif len(client.received) > HEAD_BYTES_MAX:
            self._reply(client, _encoded(_plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)))

    def _reply(self, client: _Client, answer: bytes) -> None:
        client.answer = memoryview(answer)
        client.received.clear()
        client.deadline_s = _CLOCK.monotonic_s() + ANSWER_S
        self._selector.modify(client.sock, selectors.EVENT_WRITE, client)
        self._send(client)

    def _send(self, client: _Client) -> None:
        assert client.answer is not None
        with suppress(BlockingIOError):
            client.answer = client.answer[client.sock.send(client.answer) :]
        if client.answer:
            return
        # Not closed at once: a client that is still sending would get a reset instead of its answer.
        client.answer, client.draining = None, True
        client.deadline_s = min(client.deadline_s, _CLOCK.monotonic_s() + 1.0)
        client.sock.shutdown(socket.SHUT_WR)
        self._selector.modify(client.sock, selectors.EVENT_READ, client)

    def _drop(self, client: _Client) -> None:
        if self._clients.pop(client, self) is None:
            self._selector.unregister(client.sock)
            client.sock.close()

    # What is asked for

    def _answer(self, head: bytes) -> bytes:
        line, _, rest = head.decode("latin-1").partition("\r\n")
        words = line.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _encoded(_plain(HTTPStatus.BAD_REQUEST))
        method, target, _ = words
        if method not in ("GET", "HEAD"):
            return _encoded(_plain(HTTPStatus.METHOD_NOT_ALLOWED), extra="Allow: GET, HEAD\r\n")
        if self._local_only and not _names_this_machine(_host(rest)):
            return _encoded(_plain(HTTPStatus.MISDIRECTED_REQUEST))
        try:
            answer = self._handler(target.partition("?")[0].partition("#")[0]) or _plain(HTTPStatus.NOT_FOUND)
        except Exception:
            log.exception("no answer for a request")
            answer = _plain(HTTPStatus.INTERNAL_SERVER_ERROR)
        return _encoded(answer, with_body=method == "GET")


def _plain(status: HTTPStatus) -> Answer:
    return Answer(f"{status.value} {status.phrase}\n".encode(), "text/plain; charset=utf-8", status)


def _encoded(answer: Answer, *, with_body: bool = True, extra: str = "") -> bytes:
    """The request is never repeated in it: nothing that a client sent comes back."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
    head = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\nContent-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\nConnection: close\r\n{extra}{lines}\r\n"
    )
    return head.encode("latin-1") + (answer.body if with_body else b"")


def _host(headers: str) -> str | None:
    """Of the header `Host`; None if it is missing or there are two."""
    found = [line.partition(":")[2].strip() for line in headers.split("\r\n") if line.lower().startswith("host:")]
    return found[0] if len(found) == 1 else None


def _names_this_machine(host: str | None) -> bool:
    if not host:
        return False
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(CONNECTIONS_MAX)
        except BaseException:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:  # the latter: of a host that cannot be a name
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise InvalidConfig(
            f"cannot serve on '{host}:{port}': {why}; choose another address, or port 0",
            key="serve",
            value=f"{host}:{port}",
        ) from error
    return listener
