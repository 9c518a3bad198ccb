"""Clients that mean harm to a web server, one small function per kind. They hold on to up to a thousand connections."""

from __future__ import annotations

import random
import socket
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

HELD_MAX = 1000
CONNECT_S = 5.0
BURSTS = (1, 10, 300)
LOCAL = b"Host: localhost\r\n"
RESET = struct.pack("ii", 1, 0)  # closed by a reset, not by a farewell


def _silent(client: socket.socket) -> None:
    """Connects, and says nothing."""


def _slow(client: socket.socket) -> None:
    """A byte now, another in `Hostile.round`."""
    client.sendall(b"G")


def _long_path(client: socket.socket) -> None:
    client.sendall(b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + LOCAL + b"\r\n")


def _endless_headers(client: socket.socket) -> None:
    client.sendall(b"GET / HTTP/1.1\r\n" + LOCAL + b"X-Header: 1\r\n" * 200)


def _nonsense(client: socket.socket) -> None:
    client.sendall(b"\x00\xff" * 4500)


def _large_body(client: socket.socket) -> None:
    client.sendall(b"POST /api/status HTTP/1.1\r\n" + LOCAL + b"Content-Length: 99999999999\r\n\r\n" + b"x" * 50_000)


def _deaf(client: socket.socket) -> None:
    """Asks for the largest answer there is, and does not take it."""
    client.sendall(b"GET /api/history HTTP/1.1\r\n" + LOCAL + b"\r\n")


def _reset(client: socket.socket) -> None:
    client.sendall(b"GET /metrics HTTP/1.1\r\n" + LOCAL + b"\r\n")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.close()


KINDS: dict[str, Callable[[socket.socket], None]] = {
    "silent": _silent,
    "slow": _slow,
    "long path": _long_path,
    "endless headers": _endless_headers,
    "nonsense": _nonsense,
    "large body": _large_body,
    "deaf": _deaf,
    "reset": _reset,
}


class Hostile:
    """Attacks one port of this machine. `counts`: connections of each kind; `most`: held at one moment."""

    def __init__(self, port: int, chance: random.Random) -> None:
        self._port = port
        self._chance = chance
        self._held: list[socket.socket] = []
        self._drips: list[socket.socket] = []
        self.counts: Counter[str] = Counter()
        self.most = 0

    def round(self) -> None:
        """Some more of them, a byte from each of the slow ones, and now and then one less."""
        for _ in range(self._chance.choice(BURSTS)):
            self._attack(self._chance.choice(list(KINDS)))
        for client in list(self._drips):
            try:
                client.sendall(b"E")
            except OSError:  # thrown out by the server, as it should be
                self._drips.remove(client)
        self.most = max(self.most, len(self._held))
        while len(self._held) >= HELD_MAX or (self._held and self._chance.random() < 0.5):
            self._held.pop(self._chance.randrange(len(self._held))).close()

    def _attack(self, kind: str) -> None:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(CONNECT_S)
        with suppress(OSError):  # a server that hangs up on them is right: whether it answers others is asked elsewhere
            client.connect(("127.0.0.1", self._port))
            self.counts[kind] += 1
            KINDS[kind](client)
        self._held.append(client)
        if kind == "slow":
            self._drips.append(client)

    def close(self) -> None:
        for client in self._held:
            client.close()
        self._held.clear()
        self._drips.clear()
