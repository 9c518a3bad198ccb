"""A served queue with a loader whose facts the test decides, and a small client."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from buffer.config import ConsumerConfig
from buffer.errors import Fenced
from buffer.manifest import Manifest
from buffer.model import Metadata
from buffer.store import Store
from buffer.testing import ManualClock
from buffer_delta.load.progress import Progress
from buffer_delta.serve.facts import LoaderFacts, Recorder, TableFacts
from buffer_delta.serve.server import StatusServer
from buffer_delta.serve.status import Limits
from tests.consume.consumer_support import fill
from tests.nets import HANGS_S

TABLE = "/lake/events"
LIMITS = Limits(stuck_s=600, max_lag_s=None)


class FakeLoader:
    """The recorder that real loaders tell, told by a test."""

    def __init__(self, clock: ManualClock) -> None:
        self.recorder = Recorder(clock, dead_letter_table="/lake/bad")
        self.known: Manifest | None = None

    def facts(self) -> LoaderFacts:
        return self.recorder.facts()

    def known_manifest(self) -> Manifest | None:
        return self.known

    def open(self, epoch: int = 0) -> None:
        self.recorder.opened("buffer/01TEST", epoch, [TableFacts(TABLE, None, None)])

    def commit(self, first: int, last: int, *, rows: int = 10, dead: int = 0, lag: int = 0) -> None:
        self.recorder.planned(first, last, 1)
        done = Progress(first, last, rows, dead, 1000 * rows, 1, 0.5, lag, 0.0, 1)
        self.recorder.committed(done, [TableFacts(TABLE, last, 3)])


@contextmanager
def served(
    store: Store, clock: ManualClock, loader: FakeLoader | None = None, *, limits: Limits = LIMITS, **more: Any
) -> Iterator[StatusServer]:
    """Looked at once; a test looks again with `server.watch.look()`."""
    config = ConsumerConfig(store=store, gc_enabled=False)
    server = StatusServer("127.0.0.1:0", store, config, loader=loader, limits=limits, clock=clock, **more)
    server.watch.look()
    # Its own thread would look once more, at any moment of the test; looking is for one thread.
    server.watch.start = lambda look_s=0.0: None  # type: ignore[method-assign]
    server.start()
    try:
        yield server
    finally:
        server.close()


def filled(store: Store, clock: ManualClock, batches: int = 3) -> None:
    fill(store, batches, metadata=[Metadata(0, clock.now_ms(), b"")])


def get(server: StatusServer, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=HANGS_S)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def get_json(server: StatusServer, path: str) -> tuple[int, Any]:
    code, _, body = get(server, path)
    return code, json.loads(body)


def scrape(server: StatusServer) -> dict[str, float]:
    """`name{labels}` -> value, without the labels of OpenTelemetry's own."""
    from prometheus_client.parser import text_string_to_metric_families

    code, _, body = get(server, "/metrics")
    assert code == 200
    found = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if not k.startswith("otel_scope")}
            found[f"{sample.name}{json.dumps(labels, sort_keys=True)}"] = sample.value
    return found


def fenced() -> Fenced:
    return Fenced("another consumer claimed the queue")
