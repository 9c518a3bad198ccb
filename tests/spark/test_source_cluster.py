"""The data source on a standalone cluster of two workers: executors killed in the middle, speculation on."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path

import psutil
import pytest

from buffer.consume.fetch import FetchHandle
from buffer.inspect.status import read_manifest
from tests.fault_proxy import FaultProxy, Request
from tests.servers import S3Server
from tests.spark.cluster import Cluster, run_job
from tests.spark.queues import numbered, produce

pytestmark = pytest.mark.spark

JOB = Path(__file__).parent / "source_cluster_job.py"
BATCHES = 24
SLOW, FATAL = 0, 5
"""Batches of the first task and of the second: reading one of them takes until a twin reads it too, reading the
other is the end of an executor."""


class Disturbance:
    """Looks at the requests of the executors. Kills one of them in the middle of its read, and one of its write.

    In each of the two a request of another task waits until the same comes from a second executor, its speculative
    twin: no task can end before.
    """

    def __init__(self, cluster: Cluster, slow: str, fatal: str) -> None:
        self._cluster = cluster
        self._slow, self._fatal = slow, fatal
        self._lock = threading.Lock()
        self._twin_reads, self._twin_writes = threading.Event(), threading.Event()
        self._readers: set[int] = set()
        self._uploads: Counter[int] = Counter()
        self._slow_upload: tuple[int, bytes] | None = None
        self.killed: list[str] = []
        self.twins: list[str] = []

    def __call__(self, request: Request) -> None:
        is_read = request.method == "GET" and request.path.endswith((self._slow, self._fatal))
        is_upload = request.method == "PUT" and request.path.endswith(".batch")
        executor = self._cluster.executor_at(request.port) if is_read or is_upload else None
        if executor is None:
            return
        if is_upload:
            self._upload(executor, request.body)
        elif request.path.endswith(self._slow):
            self._read_slowly(executor)
        elif "read" not in self.killed:
            self._kill("read", executor)

    def _read_slowly(self, executor: psutil.Process) -> None:
        with self._lock:
            self._readers.add(executor.pid)
            if len(self._readers) == 2:
                self.twins.append("read")
                self._twin_reads.set()
        self._twin_reads.wait()

    def _upload(self, executor: psutil.Process, body: bytes) -> None:
        with self._lock:
            self._uploads[executor.pid] += 1
            if self._slow_upload is None:
                self._slow_upload = (executor.pid, body)
            is_slow = self._slow_upload == (executor.pid, body)
            if body == self._slow_upload[1] and not is_slow and "write" not in self.twins:
                self.twins.append("write")
                self._twin_writes.set()
            dies = "write" not in self.killed and not is_slow and self._uploads[executor.pid] == 2
        if dies:
            self._kill("write", executor)
        if is_slow:
            self._twin_writes.wait()

    def _kill(self, doing: str, executor: psutil.Process) -> None:
        self.killed.append(doing)
        executor.kill()


@pytest.mark.thorough
def test_should_read_and_write_each_row_once_when_executors_are_killed(
    cluster: Cluster, s3_server: S3Server, tmp_path: Path
) -> None:
    source, target = s3_server.new_address(), s3_server.new_address()
    produced = produce(source.url, numbered(BATCHES), store_options=source.options)
    batches = list(read_manifest(source.open(), "ingest/manifest"))
    disturbed = Disturbance(cluster, batches[SLOW].location, batches[FATAL].location)
    with FaultProxy(s3_server.endpoint, watch=disturbed) as proxy:
        options = {f"store.{key}": value for key, value in source.options.items() if isinstance(value, str)}
        options |= {"store.endpoint": proxy.endpoint, "store.client_options.allow_http": "true"}
        command = {"master": cluster.address, "source": source.url, "target": target.url, "options": options}
        log = tmp_path / "job.log"
        run_job(log, str(JOB), json.dumps(command))
    assert disturbed.killed == ["read", "write"]
    assert sorted(disturbed.twins) == ["read", "write"]
    (said,) = [json.loads(line) for line in log.read_text().splitlines() if line.startswith('{"read"')]
    assert sorted(said["read"]) == list(range(produced))
    store = target.open()
    handle, named = FetchHandle(store), list(read_manifest(store, "ingest/manifest"))
    entries = [entry for batch in named for entry in handle.fetch(batch).entries]
    assert entries == [b'{"id":%d}' % number for number in range(produced)]
    stored = [info.location for info in store.list("ingest") if info.location.endswith(".batch")]
    assert len(stored) > len(named), "what the killed one and a twin had uploaded is in no entry"
