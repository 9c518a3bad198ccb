"""The examples that need no Spark, run as a reader would run them. The others are in `tests/spark`."""

from __future__ import annotations

import asyncio
import importlib
import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from buffer.consume.fetch import FetchHandle
from buffer.inspect.status import read_manifest
from buffer.store.open import open_store
from tests.nets import HANGS_S, wait_until

EXAMPLES = Path(__file__).parent.parent / "examples"
TESTED = {
    *("async_producer.py", "quickstart.py", "loader_job.py", "spark_to_delta.py", "stream_job.py", "webhook.py"),
    *("s3_to_delta.py", "webhook_app.py", "worker_pool.py"),
    *("explore.ipynb", "watch.ipynb"),
}


def run_example(name: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(EXAMPLES / name), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_should_have_a_test_for_every_example() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")} == TESTED


def test_should_produce_from_many_tasks_at_once(tmp_path: Path) -> None:
    out, err = run_example("async_producer.py", "--store", tmp_path, "--events", 500).communicate(timeout=HANGS_S)
    assert out.count("500 events are durable") == 4, err
    store = open_store(str(tmp_path))
    batches = map(FetchHandle(store).fetch, read_manifest(store, "ingest/manifest"))
    events = [json.loads(entry) for batch in batches for entry in batch.entries]
    for number in range(1, 5):
        assert [event["id"] for event in events if event["sensor"] == f"sensor-{number}"] == list(range(500))


def test_should_go_on_until_it_is_told_to_stop(tmp_path: Path) -> None:
    with run_example("async_producer.py", "--store", tmp_path, "--for-ever", "--rate", 50) as process:
        wait_until((tmp_path / "ingest/manifest").exists)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 0, err
    assert "events are durable" in out


def test_should_do_every_job_though_workers_are_killed_and_the_service_refuses_some(tmp_path: Path) -> None:
    out, err = run_example("worker_pool.py", "--store", tmp_path, "--jobs", 20, "--workers", 2).communicate(
        timeout=HANGS_S
    )
    assert "all jobs are done" in out, err
    assert "killed " in out
    assert "parked: 1" in out
    assert "redriven: 1" in out
    assert {line.split()[1] for line in out.splitlines() if line.startswith("done ")} == {f"job-{n}" for n in range(20)}


# The webhook receiver


@contextmanager
def webhook(store: Path) -> Iterator[str]:
    """A running receiver; its address. Killed at the end, as it may be at any time."""
    with run_example("webhook.py", "--store", store, "--port", 0) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            yield f"http://{said.split()[-1]}"
        finally:
            process.kill()


def post(address: str, path: str, body: bytes = b"x") -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(f"{address}/{path}", data=body, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=HANGS_S) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def received(store: Path) -> list[bytes]:
    opened = open_store(str(store))
    batches = map(FetchHandle(opened).fetch, read_manifest(opened, "ingest/manifest"))
    return [entry for batch in batches for entry in batch.entries]


def test_should_receive_each_webhook_once_across_kills(tmp_path: Path) -> None:
    with webhook(tmp_path) as address:
        assert post(address, "shop/0", b"zero") == (200, {"sequence": 0})
        assert post(address, "shop/0", b"zero") == (200, {"repeated": True})
        assert post(address, "other/7", b"seven")[0] == 200
        assert post(address, "other/9", b"nine")[0] == 200
        assert post(address, "other/8", b"eight")[0] == 409, "it was passed over"
    with webhook(tmp_path) as address:
        assert post(address, "shop/0", b"zero") == (200, {"repeated": True})
        assert post(address, "shop/1", b"one")[0] == 200
    assert received(tmp_path) == [b"zero", b"seven", b"nine", b"one"]


def test_should_share_a_sender_between_two_receivers(tmp_path: Path) -> None:
    with webhook(tmp_path) as one, webhook(tmp_path) as two:
        for number in range(4):
            assert post(one if number % 2 else two, f"shop/{number}", b"%d" % number)[0] == 200
            assert post(two if number % 2 else one, f"shop/{number}", b"%d" % number) == (200, {"repeated": True})
    assert received(tmp_path) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("path", ["", "shop", "shop/x", "/7"])
def test_should_refuse_a_webhook_without_a_number(tmp_path: Path, path: str) -> None:
    with webhook(tmp_path) as address:
        assert post(address, path)[0] == 400


@pytest.mark.parametrize(
    ("head", "answer"),
    [
        (b"Transfer-Encoding: chunked\r\n\r\n5\r\nwhole\r\n0\r\n\r\n", b"411"),
        (b"Content-Length: -1\r\n\r\nwhole", b"411"),
        (b"Content-Length: five\r\n\r\nwhole", b"411"),
        (b"Content-Length: 5\r\n\r\nwho", b""),
    ],
)
def test_should_not_take_what_it_did_not_read_for_a_webhook(tmp_path: Path, head: bytes, answer: bytes) -> None:
    """Nothing, or a half, under the number would make every repetition of the whole a "repeated"."""
    with webhook(tmp_path) as address:
        url = urllib.parse.urlsplit(address)
        with socket.create_connection((url.hostname, url.port), timeout=HANGS_S) as sock:
            sock.sendall(b"POST /shop/0 HTTP/1.0\r\n" + head)
            sock.shutdown(socket.SHUT_WR)
            got = b"".join(iter(lambda: sock.recv(4096), b""))
        assert answer in got.partition(b"\r\n")[0]
        assert bool(got) == bool(answer)
        assert post(address, "shop/0", b"whole") == (200, {"sequence": 0})
    assert received(tmp_path) == [b"whole"]


# The same as an app


class App:
    """The app in this process, started and stopped as a server would; requests go straight to it."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._runner = asyncio.Runner()

    def __enter__(self) -> App:
        self._living = self._app.router.lifespan_context(self._app)
        self._runner.run(self._living.__aenter__())
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(self._app), base_url="http://app")
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.aclose())
        self._runner.run(self._living.__aexit__(None, None, None))
        self._runner.close()

    def send(self, path: str, body: bytes = b"x", method: str = "POST") -> tuple[int, Any]:
        answer = self._runner.run(self._client.request(method, path, content=body))
        return answer.status_code, answer.json() if answer.status_code in (200, 409) else None


@pytest.fixture
def make_app(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], App]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module = importlib.import_module("webhook_app")
    return lambda store: App(module.make_app(str(store)))


def test_should_receive_each_webhook_once_in_an_app(tmp_path: Path, make_app: Callable[[Path], App]) -> None:
    with make_app(tmp_path) as app:
        assert app.send("/shop/0", b"zero") == (200, {"sequence": 0})
        assert app.send("/shop/0", b"zero") == (200, {"repeated": True})
        assert app.send("/other/9", b"nine")[0] == 200
        assert app.send("/other/8", b"eight")[0] == 409, "it was passed over"
    with make_app(tmp_path) as app:  # as after a restart
        assert app.send("/shop/0", b"zero") == (200, {"repeated": True})
        assert app.send("/shop/1", b"one")[0] == 200
    assert received(tmp_path) == [b"zero", b"nine", b"one"]


def test_should_share_a_sender_between_two_apps(tmp_path: Path, make_app: Callable[[Path], App]) -> None:
    with make_app(tmp_path) as one, make_app(tmp_path) as two:
        for number in range(4):
            first, second = (one, two) if number % 2 else (two, one)
            assert first.send(f"/shop/{number}", b"%d" % number)[0] == 200
            assert second.send(f"/shop/{number}", b"%d" % number) == (200, {"repeated": True})
    assert received(tmp_path) == [b"0", b"1", b"2", b"3"]


def test_should_refuse_what_is_no_webhook_in_an_app(tmp_path: Path, make_app: Callable[[Path], App]) -> None:
    with make_app(tmp_path) as app:
        assert [app.send(path)[0] for path in ("/", "/shop", "/shop/x", "/shop/-1")] == [404] * 4
        assert app.send("/shop/1", method="GET")[0] == 405
        assert app.send("/shop/1", bytes((1 << 20) + 1))[0] == 413
    assert not (tmp_path / "ingest").exists(), "nothing was taken"
