"""A proxy on loopback that treats HTTP requests as a bad network and a bad server would, chosen by a seed.

It stands in front of a real S3 server. Requests are passed on byte for byte, `Host` included: that is what their
signatures cover, so the server behind must go by the header and not by its own address. `upstream` may be changed
while it runs: a server that comes back on another port keeps its address for the clients.

No request is ever sent twice by the proxy itself. Whatever reaches the server twice was repeated by the client.
The same seed gives the same faults in the same order of requests; the order among concurrent clients is theirs.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import socketserver
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

UPSTREAM_TIMEOUT_S = 60.0
HEAD_BYTES_MAX = 64 * 1024
_HOP_HEADERS = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})
_NO_LINGER = struct.pack("ii", 1, 0)


class Fault(Enum):
    """What happens to a request. Each is told apart by what the server did and what the client learns of it."""

    NONE = "none"
    DROP_BEFORE = "dropped before"
    """The connection breaks; the server never heard of it."""
    DROP_AFTER = "dropped after"
    """The server has acted; the connection breaks without an answer."""
    ERROR_AFTER = "500 after landing"
    """The server has acted; the client is told 500."""
    THROTTLED = "429"
    SLOW_DOWN = "503 SlowDown"
    """Turned away; the server never heard of it."""
    SLOW = "slow"
    """Done and answered, some time before and after: perhaps longer than the client waits."""
    LATE = "late"
    """The connection breaks at once; the request reaches the server after all, some time later."""
    CUT_UPLOAD = "upload cut"
    """The server gets half of the request's body, and a broken connection. (No body: `CUT_REPLY`, and counted so.)"""
    CUT_REPLY = "reply cut"
    """The server has acted; the client gets half of the answer."""


FAULTS = tuple(fault for fault in Fault if fault is not Fault.NONE)


def evenly(share: float) -> dict[Fault, float]:
    """Rates under which that share of all requests meets a fault, each kind as often as the others."""
    return dict.fromkeys(FAULTS, share / len(FAULTS))


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    head: bytes
    body: bytes
    port: int
    """Of the client's end: tells which process it came from."""


@dataclass(frozen=True)
class _Reply:
    head: bytes
    body: bytes


class _ClientGone(Exception):
    """The connection to the client is of no use any more."""


class _UpstreamGone(Exception):
    """The server is down, or broke off: nobody knows whether it has acted."""


@dataclass
class FaultProxy:
    """Use it in `with`. `counts` says what was done how often; `calm()` passes everything on from now on."""

    upstream: str | None
    """`http://host:port` of the server; None while it is down: then every request is dropped."""
    rates: Mapping[Fault, float] = field(default_factory=dict)
    seed: int = 0
    slow_s: tuple[float, float] = (0.05, 0.5)
    """How long `SLOW` and `LATE` take."""
    counts: Counter[Fault] = field(default_factory=Counter)
    unanswered: int = 0
    """Requests that were dropped because the server did not answer."""
    watch: Callable[[Request], Fault | None] | None = None
    """Called with every request before anything becomes of it, in the thread of its connection: it may wait, and name
    the fault that the request meets."""

    def __post_init__(self) -> None:
        assert sum(self.rates.values()) <= 1.0, "rates are shares of all requests"
        self._random = random.Random(self.seed)
        self._lock = threading.Lock()
        self._calm = False
        self._closed = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._surprises: list[BaseException] = []
        self._server = _Server(self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="fault-proxy", daemon=True
        )

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def calm(self) -> None:
        """No more faults. Requests that are late still arrive."""
        self._calm = True

    def storm(self) -> None:
        """Faults again."""
        self._calm = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Break all connections. Raises what went wrong in the proxy itself, unless an error is on its way."""
        self._closed.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        with self._lock:
            for each in self._sockets:
                with suppress(OSError):  # it may be broken already
                    each.shutdown(socket.SHUT_RDWR)
        if self._surprises and error is None:
            raise self._surprises[0]

    # For the connections

    def choose(self) -> Fault:
        """The next fault by the seed. It counts once it has struck: see `note`."""
        with self._lock:
            point = self._random.random()
            chosen = Fault.NONE
            if not self._calm:
                for fault, rate in self.rates.items():
                    if point < rate:
                        chosen = fault
                        break
                    point -= rate
            return chosen

    def note(self, fault: Fault) -> None:
        """What was done to a request, which need not be what was drawn for it."""
        with self._lock:
            self.counts[fault] += 1

    def pause(self) -> None:
        with self._lock:
            seconds = self._random.uniform(*self.slow_s)
        self._closed.wait(seconds)

    def flip(self) -> bool:
        with self._lock:
            return self._random.random() < 0.5

    def note_unanswered(self) -> None:
        with self._lock:
            self.unanswered += 1

    def note_surprise(self, error: BaseException) -> None:
        self._surprises.append(error)

    @contextmanager
    def tracked(self, connection: socket.socket) -> Iterator[None]:
        """Known to `__exit__`, which breaks it: a thread that waits for its client must end too."""
        with self._lock:
            self._sockets.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._sockets.discard(connection)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", 0), _Connection)

    def handle_error(self, _request: object, _client: object) -> None:
        """Whatever a connection raised has been noted by it."""


class _Connection(socketserver.StreamRequestHandler):
    """One client's connection, in a thread of its own, with at most one connection to the server behind."""

    server: _Server
    disable_nagle_algorithm = True

    def handle(self) -> None:
        proxy = self.server.proxy
        self._upstream: tuple[str, socket.socket] | None = None
        with proxy.tracked(self.connection):
            try:
                while (request := self._read_request()) is not None:
                    named = proxy.watch(request) if proxy.watch is not None else None
                    self._serve(request, named or proxy.choose())
            except (_ClientGone, OSError):
                pass  # the client, or `break_off`, ended it: that is what this proxy is for
            except _UpstreamGone:
                proxy.note_unanswered()
                self._break_off()
            except BaseException as error:
                proxy.note_surprise(error)
                raise
            finally:
                self._drop_upstream()

    def _serve(self, request: Request, fault: Fault) -> None:
        """Each fault is noted once the server's part is done, before the client can learn of it."""
        note = self.server.proxy.note
        if fault is Fault.CUT_UPLOAD and not request.body:
            fault = Fault.CUT_REPLY
        match fault:
            case Fault.NONE:
                reply = self._pass_on(request)
                note(fault)
                self._answer(reply)
            case Fault.DROP_BEFORE:
                note(fault)
                self._end()
            case Fault.DROP_AFTER:
                self._pass_on(request)
                note(fault)
                self._end()
            case Fault.ERROR_AFTER:
                self._pass_on(request)
                note(fault)
                self._answer(_refusal(request, 500, "Internal Server Error", "InternalError"))
            case Fault.THROTTLED:
                note(fault)
                self._answer(_refusal(request, 429, "Too Many Requests", "TooManyRequests"))
            case Fault.SLOW_DOWN:
                note(fault)
                self._answer(_refusal(request, 503, "Slow Down", "SlowDown"))
            case Fault.SLOW:
                self._pause()
                reply = self._pass_on(request)
                note(fault)
                self._pause()
                self._answer(reply)
            case Fault.LATE:
                self._break_off()
                self._pause()
                self._pass_on(request)
                note(fault)
                raise _ClientGone
            case Fault.CUT_UPLOAD:
                self._send_upstream(request.head + request.body[: len(request.body) // 2])
                note(fault)
                self._end()
            case Fault.CUT_REPLY:
                reply = self._pass_on(request)
                whole = reply.head + reply.body
                keep = len(reply.head) + len(reply.body) // 2 if reply.body else len(reply.head) // 2
                note(fault)
                self.connection.sendall(whole[:keep])
                self._end()

    def _pause(self) -> None:
        self.server.proxy.pause()

    # The client's side

    def _read_request(self) -> Request | None:
        """The next request, or None when the client is done. It is passed on only once it is here as a whole."""
        head = bytearray()
        while not head.endswith(b"\r\n\r\n"):
            line = self.rfile.readline(HEAD_BYTES_MAX)
            head += line
            if not line or len(head) > HEAD_BYTES_MAX:
                return None
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        assert "transfer-encoding" not in headers, f"{first}: bodies of unknown length are not passed on"
        length = int(headers.get("content-length") or 0)
        if headers.get("expect", "").lower() == "100-continue":  # the client waits for that with its body
            self.connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = self.rfile.read(length)
        method, path, _ = first.split(" ", 2)
        return Request(method, path, bytes(head), body, self.client_address[1]) if len(body) == length else None

    def _answer(self, reply: _Reply) -> None:
        self.connection.sendall(reply.head + reply.body)

    def _end(self) -> None:
        self._break_off()
        raise _ClientGone

    def _break_off(self) -> None:
        """Close the client's connection, or reset it: clients meet both."""
        with suppress(OSError):  # gone already
            if self.server.proxy.flip():
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            else:
                self.connection.shutdown(socket.SHUT_RDWR)
        self.wfile.close()
        self.rfile.close()  # the socket is closed, and thereby reset, with the last of its files
        self.connection.close()

    # The server's side

    def _pass_on(self, request: Request) -> _Reply:
        upstream = self._send_upstream(request.head + request.body)
        try:
            response = http.client.HTTPResponse(upstream, method=request.method)
            with contextlib.closing(response):
                response.begin()
                body = response.read()
                must_close = response.will_close
        except (OSError, http.client.HTTPException) as error:
            raise _UpstreamGone from error
        if must_close:
            self._drop_upstream()
        return _Reply(_reply_head(response, request.method, len(body)), body)

    def _send_upstream(self, data: bytes) -> socket.socket:
        address = self.server.proxy.upstream
        if address is None:
            raise _UpstreamGone
        try:
            if self._upstream is None or self._upstream[0] != address:
                self._drop_upstream()
                parts = urlsplit(address)
                connection = socket.create_connection((parts.hostname, parts.port), UPSTREAM_TIMEOUT_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._upstream = (address, connection)
            connection = self._upstream[1]
            connection.sendall(data)
        except OSError as error:
            raise _UpstreamGone from error
        return connection

    def _drop_upstream(self) -> None:
        if self._upstream is not None:
            self._upstream[1].close()
            self._upstream = None


def _reply_head(response: http.client.HTTPResponse, method: str, length: int) -> bytes:
    """The server's answer as it was, but of known length: a chunked body was read to its end."""
    lines = [f"HTTP/1.1 {response.status} {response.reason}"]
    lines += [f"{name}: {value}" for name, value in response.getheaders() if name.lower() not in _HOP_HEADERS]
    if method == "HEAD" or response.status in (204, 304):
        told = response.getheader("content-length")  # of the body that is not sent
        lines += [f"Content-Length: {told}"] if told is not None else []
    else:
        lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _refusal(request: Request, status: int, reason: str, code: str) -> _Reply:
    body = f"<Error><Code>{code}</Code><Message>the proxy says so</Message></Error>".encode()
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    return _Reply(head.encode(), b"" if request.method == "HEAD" else body)
