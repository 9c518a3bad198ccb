"""Two drivers, each a process with a JVM of its own, and tables on a real S3 server: Arrow's files there, with keys
from either side, and what becomes of two commits of one version."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from obstore.store import S3Store

from tests.fault_proxy import Fault, FaultProxy, Request
from tests.nets import HANGS_S
from tests.servers import S3Server
from tests.spark.processes import LoaderProcess
from tests.spark.queues import numbered, produce

pytestmark = [pytest.mark.spark, pytest.mark.thorough]


@dataclass
class Gate:
    """Puts of one object wait here until they are let through, one by one."""

    place: str | None = None
    fault: Fault | None = None
    """What becomes of the next one that is let through."""
    waiting: queue.Queue[threading.Event] = field(default_factory=queue.Queue)

    def arrival(self) -> threading.Event:
        """The next put that has come; `set` lets it through."""
        return self.waiting.get(timeout=HANGS_S)

    def __call__(self, request: Request) -> Fault | None:
        path = request.path.partition("?")[0]
        if request.method != "PUT" or self.place is None or not path.endswith(self.place):
            return None
        passes = threading.Event()
        self.waiting.put(passes)
        assert passes.wait(HANGS_S), f"nobody let it through to {self.place}"
        fault, self.fault = self.fault, None
        return fault


@dataclass(frozen=True)
class Drivers:
    a: LoaderProcess
    b: LoaderProcess
    server: S3Server
    gate: Gate
    bucket: str
    loads: dict[str, Any]
    """What a session gets that goes through the gate, too."""

    def table(self, path: str) -> DeltaTable:
        given = self.server.options
        options = {"AWS_ENDPOINT_URL": given["endpoint"], "AWS_ALLOW_HTTP": "true", "AWS_REGION": given["region"]}
        keys = {f"AWS_{name.upper()}": given[name] for name in ("access_key_id", "secret_access_key")}
        return DeltaTable(f"s3://{self.bucket}/{path}", storage_options=options | keys)

    def config(self, queue: str, table: str, **settings: Any) -> dict[str, Any]:
        return {
            "store": f"s3://{self.bucket}/{queue}",
            "store_options": self.server.options,
            "table": f"s3a://{self.bucket}/{table}",
            "format": {"type": "json", "schema": "id BIGINT, name STRING"},
            "gc_enabled": False,
            "retry_max_s": 0.1,
            **settings,
        }

    def fill(self, queue: str, start: int, batches: int = 1) -> None:
        produce(f"s3://{self.bucket}/{queue}", numbered(batches, start=start), store_options=self.server.options)


@pytest.fixture(scope="module")
def drivers(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    gate = Gate()
    bucket = s3_server.new_bucket()
    folder = tmp_path_factory.mktemp("drivers")
    with FaultProxy(s3_server.endpoint, watch=gate) as proxy:
        # Spark goes through the proxy, and so knows no other address; what is read in Python does not.
        loads = {
            "store": f"s3://{bucket}/queue",
            "store_options": {**s3_server.options, "endpoint": proxy.endpoint},
            "table": f"s3a://{bucket}/t",
        }
        processes = [LoaderProcess(folder, loads=loads) for _ in range(2)]
        try:
            for process in processes:
                process.wait_for("ready")
            yield Drivers(processes[0], processes[1], s3_server, gate, bucket, loads)
            secret = s3_server.options["secret_access_key"]
            assert not [process.log for process in processes if secret in process.log.read_text()]
        finally:
            for process in processes:
                process.kill()


def ids(table: DeltaTable) -> list[int]:
    return sorted(table.to_pyarrow_table(columns=["id"])["id"].to_pylist())


def commit(drivers: Drivers, table: str, version: int) -> dict[str, Any]:
    """The actions of one version, by their kinds; of several of a kind the last."""
    store = S3Store(drivers.bucket, **drivers.server.options)
    lines = bytes(obstore.get(store, f"{table}/_delta_log/{version:020d}.json").bytes()).decode().splitlines()
    return {kind: value for line in lines for kind, value in json.loads(line).items()}


def makers(drivers: Drivers, path: str) -> list[bool]:
    """Of each data file, whether Arrow wrote it."""
    store = S3Store(drivers.bucket, **drivers.server.options)
    files = [item["path"] for page in obstore.list(store, prefix=path) for item in page]
    data = [bytes(obstore.get(store, name).bytes()) for name in files if "/part-" in name]
    return ["arrow" in pq.read_metadata(pa.BufferReader(each)).created_by for each in data]


def test_should_write_files_to_s3_with_keys_from_either_side(drivers: Drivers) -> None:
    drivers.fill("either/queue", 0)
    config = drivers.config("either/queue", "either/table", writer="arrow")
    drivers.a.start(config | {"table_options": drivers.server.options})
    assert drivers.a.finish()["done"]["rows"] == 10
    drivers.fill("either/queue", 10, batches=2)
    drivers.b.start(config)  # by Spark's own fs.s3a settings, which a session gets from the queue's store
    assert drivers.b.finish()["done"]["rows"] == 20
    table = drivers.table("either/table")
    assert ids(table) == list(range(30))
    assert set(makers(drivers, "either/table")) == {True}


def test_should_not_write_where_the_table_is_not(drivers: Drivers) -> None:
    """Options may name another place. What finds no log there must not put files there."""
    drivers.fill("place/queue", 0)
    config = drivers.config("place/queue", "place/table", writer="spark")
    drivers.a.start(config)
    assert drivers.a.finish()["done"]["rows"] == 10
    drivers.fill("place/queue", 10)
    wrong = {**drivers.server.options, "secret_access_key": "of somebody else"}
    drivers.a.start(config | {"writer": "arrow", "table_options": wrong})
    ended = drivers.a.finish()
    assert ended["error"] == "InvalidConfig"
    assert "does not find version 1 of its log" in ended["message"]
    assert "of somebody else" not in ended["message"]
    drivers.a.start(config | {"writer": "auto", "table_options": wrong})
    assert drivers.a.finish()["done"]["rows"] == 10
    assert set(makers(drivers, "place/table")) == {False}


def test_should_keep_both_commits_where_arrow_puts_them(drivers: Drivers) -> None:
    """Two drivers put the same version, neither having seen the other's: the store refuses the second."""
    assert _put_at_once(drivers, "kept", writer="arrow") == list(range(30))
    table = drivers.table("kept/table")
    history = {entry["version"]: entry for entry in table.history()}
    assert sorted(history) == [0, 1, 2, 3]
    assert {table.transaction_version(json.loads(history[at]["userMetadata"])["app_id"]) for at in (2, 3)} == {0}
    drivers.fill("kept/a", 30)
    drivers.b.start(drivers.config("kept/a", "kept/table", writer="spark"))  # Spark's own commits go on from there
    assert drivers.b.finish()["done"]["rows"] == 10
    assert ids(drivers.table("kept/table")) == list(range(40))


def test_should_add_columns_in_the_commit_that_it_puts_itself(drivers: Drivers) -> None:
    place, options = f"s3://{drivers.bucket}/columns/queue", drivers.server.options
    config = drivers.config("columns/queue", "columns/table", writer="arrow", format={"type": "json"})
    for entries in ([b'{"id": 0}'], [b'{"id": 1, "more": {"deep": "x"}}'], [b'{"id": 2}']):
        produce(place, [entries], store_options=options)
        drivers.a.start(config)
        assert drivers.a.finish()["done"]["rows"] == 1
    made = commit(drivers, "columns/table", 2)
    assert made["commitInfo"]["engineInfo"] == "buffer-delta"
    assert "more" in made["metaData"]["schemaString"]
    assert made["txn"]["version"] == 1, "columns, files and position are one commit"
    found = drivers.table("columns/table").to_pyarrow_table(columns=["id", "more"]).sort_by("id").to_pylist()
    assert found == [{"id": 0, "more": None}, {"id": 1, "more": {"deep": "x"}}, {"id": 2, "more": None}]


def test_should_recognise_its_own_commit_where_the_reply_is_lost(drivers: Drivers) -> None:
    config = drivers.config("reply/queue", "reply/table", writer="arrow")
    drivers.fill("reply/queue", 0)
    drivers.a.start(config)
    assert drivers.a.finish()["done"]["rows"] == 10
    for version, fault in enumerate((Fault.DROP_AFTER, Fault.ERROR_AFTER, Fault.CUT_REPLY), 2):
        drivers.fill("reply/queue", (version - 1) * 10)
        drivers.gate.place = f"/reply/table/_delta_log/{version:020d}.json"
        drivers.gate.fault = fault
        drivers.a.start(config)
        put = drivers.gate.arrival()
        drivers.gate.place = None  # the client's own repetition goes through
        put.set()
        assert drivers.a.finish()["done"]["rows"] == 10
        assert drivers.gate.fault is None, "it has struck"
    assert ids(drivers.table("reply/table")) == list(range(40))
    assert drivers.table("reply/table").version() == 4


@pytest.mark.parametrize("lands", ["before it dies", "after it died"])
def test_should_load_once_where_a_driver_dies_with_its_commit_on_the_way(
    drivers: Drivers, tmp_path: Path, lands: str
) -> None:
    """… and where that commit lands while its successor is about to put the same version."""
    folder = lands.replace(" ", "-")
    drivers.fill(f"{folder}/queue", 0)
    config = drivers.config(f"{folder}/queue", f"{folder}/table", writer="arrow")
    drivers.a.start(config)
    assert drivers.a.finish()["done"]["rows"] == 10
    drivers.fill(f"{folder}/queue", 10)
    drivers.gate.place = f"/{folder}/table/_delta_log/{2:020d}.json"
    victim = LoaderProcess(tmp_path, loads=drivers.loads)
    try:
        victim.wait_for("ready")
        victim.start(config)
        late = drivers.gate.arrival()
        if lands == "before it dies":
            drivers.gate.fault = Fault.DROP_AFTER
            drivers.gate.place = None
            late.set()
            _wait_for_version(drivers, f"{folder}/table", 2)
    finally:
        victim.kill()
    drivers.b.start(config)
    if lands == "after it died":
        own = drivers.gate.arrival()
        drivers.gate.place = None
        late.set()
        _wait_for_version(drivers, f"{folder}/table", 2)
        own.set()
    ended = drivers.b.finish()
    assert "done" in ended, ended
    assert ids(drivers.table(f"{folder}/table")) == list(range(20))
    assert drivers.table(f"{folder}/table").version() == 2


def _wait_for_version(drivers: Drivers, table: str, version: int) -> None:
    deadline_s = time.monotonic() + HANGS_S
    while drivers.table(table).version() < version:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_should_warn_that_sparks_log_store_overwrites_a_commit(drivers: Drivers) -> None:
    """It asks whether a version is there, then puts it without a condition. So the second of two drivers that have both
    asked replaces the commit of the first, and those rows are lost though both were content."""
    assert _put_at_once(drivers, "lost", writer="spark") == [*range(10), *range(20, 30)]
    for driver in (drivers.a, drivers.b):
        assert "is safe with one Spark driver only" in driver.log.read_text()


def _put_at_once(drivers: Drivers, folder: str, writer: str) -> list[int]:
    """Two loaders, two queues, one table, one version: what the table holds when both say that they are done."""
    for number, name in enumerate(("first", "a", "b")):
        drivers.fill(f"{folder}/{name}", number * 10)
    drivers.a.start(drivers.config(f"{folder}/first", f"{folder}/table"))
    assert drivers.a.finish()["done"]["rows"] == 10
    drivers.gate.place = f"/{folder}/table/_delta_log/{2:020d}.json"
    puts = []
    for driver, name in ((drivers.a, "a"), (drivers.b, "b")):
        driver.start(drivers.config(f"{folder}/{name}", f"{folder}/table", writer=writer))
        puts.append(drivers.gate.arrival())
    drivers.gate.place = None  # those two; whatever is repeated goes through
    ends = []
    for driver, put in zip((drivers.a, drivers.b), puts, strict=True):
        put.set()
        ends.append(driver.finish())
    assert [end["done"]["rows"] for end in ends] == [10, 10], json.dumps(ends)
    return ids(drivers.table(f"{folder}/table"))
