"""Commits that the driver puts itself: each one once, none overwritten, conflicts found, whatever replies are lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from buffer.clock import SystemClock
from buffer.errors import StorageError, StoreUnusable, Unsupported
from buffer.store import open_store
from buffer.store.base import Lost, Outcome, Store, Unknown, Won
from buffer.testing.clock import ManualClock
from buffer_delta.delta.commit_file import (
    Overtaken,
    append_actions,
    conflict,
    location_of,
    put_commit,
    why_not,
    why_not_trusted,
)
from buffer_delta.delta.files import FileRules, write_files
from buffer_delta.delta.txn import Txn
from buffer_delta.delta.writers.arrow import ArrowWriter
from tests.crash.s3 import through
from tests.fault_proxy import Fault, FaultProxy
from tests.servers import Reply, S3Server, ScriptedServer, StoreAddress

METADATA = json.dumps({"metaData": {"id": "t", "configuration": {}}})


def actions(app: str, last: int, *, changes: tuple[str, ...] = ()) -> tuple[str, ...]:
    add = json.dumps({"add": {"path": f"{app}-{last}.parquet"}})
    return append_actions(
        Txn(app, last, last, 1), [add], read_version=0, metrics={"numFiles": 1}, changes=changes, now_ms=7
    )


def put(store: Store, app: str, last: int, after: int, changes: tuple[str, ...] = ()) -> int:
    made = actions(app, last, changes=changes)
    return put_commit(store, after=after, actions=made, app_id=app, clock=SystemClock())


def added(store: Store, count: int) -> list[str]:
    """What the first versions of the log add, in order."""
    lines = [line for at in range(count) for line in store.get(location_of(at)).data.decode().split("\n") if line]
    return [json.loads(line)["add"]["path"] for line in lines if line.startswith('{"add"')]


def test_should_put_the_version_after_the_one_it_was_decided_on(memory: Store) -> None:
    assert put(memory, "app", 1, after=-1) == 0
    info, txn, add = (json.loads(line) for line in memory.get(location_of(0)).data.decode().splitlines())
    assert Txn.from_note(info["commitInfo"]["userMetadata"]) == Txn("app", 1, 1, 1)
    assert info["commitInfo"]["operationMetrics"] == {"numFiles": "1"}
    assert txn == {"txn": {"appId": "app", "version": 1, "lastUpdated": 7}}
    assert add["add"]["path"] == "app-1.parquet"


def test_should_be_a_commit_like_any_other_to_readers(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    DeltaTable.create(str(tmp_path), schema)
    store, txn = open_store(str(tmp_path)), Txn("app", 3, 5, 1)
    files = write_files([pa.RecordBatch.from_pydict({"id": [1, 2]}, schema)], FileRules(schema), store)
    adds = [json.dumps({"add": file.to_add()}) for file in files]
    metrics = {"numFiles": 1, "numOutputRows": 2}
    lines = append_actions(txn, adds, read_version=0, metrics=metrics, changes=(), now_ms=SystemClock().now_ms())
    assert put_commit(store, after=0, actions=lines, app_id="app", clock=SystemClock()) == 1
    table = DeltaTable(str(tmp_path))
    assert table.to_pyarrow_table().to_pydict() == {"id": [1, 2]}
    assert (table.version(), table.transaction_version("app")) == (1, 5)
    assert (info := table.history(1)[0])["operation"] == "WRITE"
    assert Txn.from_note(info["userMetadata"]) == txn
    write_deltalake(table, pa.table({"id": [3]}), mode="append")
    assert put(store, "bystander", 1, after=1) == 3, "after what others have put, too"


def test_should_spell_paths_as_delta_rs_does_when_it_removes_them(tmp_path: Path) -> None:
    """A `remove` takes a file out of the table for Spark only if it is spelled as the `add` was."""
    schema = pa.schema([("part", pa.string()), ("id", pa.int64())])
    parts = [f"x{chr(code)}y" for code in range(0x20, 0x7F)]
    parts += ["ü", "e\u0301", "日本", "\U0001f600", "a\u2028b", "\x80"]
    DeltaTable.create(str(tmp_path), schema, partition_by=["part"])
    store, ids = open_store(str(tmp_path)), list(range(len(parts)))
    rows = pa.RecordBatch.from_pydict({"part": parts, "id": ids}, schema)
    files = write_files([rows], FileRules(schema, partition_by=("part",)), store)
    adds = [json.dumps({"add": file.to_add()}) for file in files]
    lines = append_actions(Txn("app", 0, 0, 1), adds, read_version=0, metrics={}, changes=(), now_ms=1)
    assert put_commit(store, after=0, actions=lines, app_id="app", clock=SystemClock()) == 1
    table = DeltaTable(str(tmp_path))
    assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == ids
    table.delete()
    actions = [json.loads(line) for line in store.get(location_of(2)).data.decode().split("\n") if line]
    assert {a["remove"]["path"] for a in actions if "remove" in a} == {file.path for file in files}


def test_should_follow_others_and_stop_at_a_conflict(memory: Store) -> None:
    put(memory, "other", 1, after=-1)
    put(memory, "app", 1, after=0)
    assert put(memory, "app", 2, after=1) == 2
    assert put(memory, "other", 2, after=0) == 3, "a bystander's commits are passed over"
    with pytest.raises(Overtaken, match="version 1 moves app to 1"):
        put(memory, "app", 1, after=0)
    with pytest.raises(Overtaken, match=r"version 3 came before a change"):
        put(memory, "app", 3, after=2, changes=(METADATA,))
    assert put(memory, "app", 3, after=3, changes=(METADATA,)) == 4
    with pytest.raises(Overtaken, match=r"version 4 changes the table's columns"):
        put(memory, "other", 3, after=3)
    assert added(memory, 5) == [f"{name}.parquet" for name in ("other-1", "app-1", "app-2", "other-2", "app-3")]


def test_should_read_text_that_holds_other_ends_of_lines() -> None:
    line = json.dumps({"commitInfo": {"userMetadata": "a\u2028b\x85"}}, ensure_ascii=False)
    assert conflict(f"{line}\n".encode(), "app", changes=False) is None


class Doubtful:
    """A store whose next puts end as told; the others as they do."""

    def __init__(self, store: Store, *ends: Callable[[Callable[[], Outcome]], Outcome]) -> None:
        self._store = store
        self._ends = list(ends)
        self.puts = 0

    def put_if_absent(self, location: str, data: bytes) -> Outcome:
        self.puts += 1
        do = lambda: self._store.put_if_absent(location, data)  # noqa: E731
        return self._ends.pop(0)(do) if self._ends else do()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def unknown_after(do: Callable[[], Outcome]) -> Outcome:
    do()
    return Unknown(TimeoutError("no reply"))


def unknown_before(_do: Callable[[], Outcome]) -> Outcome:
    return Unknown(TimeoutError("no reply"))


def lost_after(do: Callable[[], Outcome]) -> Outcome:
    """A client's own repetition of a put that has landed."""
    assert isinstance(do(), Won)
    return Lost()


@pytest.mark.parametrize(("end", "puts"), [(unknown_after, 1), (lost_after, 1), (unknown_before, 2)])
def test_should_read_back_where_a_reply_says_nothing(memory: Store, end: Any, puts: int) -> None:
    store = Doubtful(memory, end)
    clock = ManualClock()
    assert put_commit(store, after=-1, actions=actions("app", 1), app_id="app", clock=clock) == 0
    assert store.puts == puts
    assert added(memory, 1) == ["app-1.parquet"]


def test_should_not_go_on_to_the_next_version_while_one_may_still_land(memory: Store) -> None:
    store = Doubtful(memory, *[unknown_before] * 100)
    with pytest.raises(StorageError, match="nobody can tell"):
        put_commit(store, after=-1, actions=actions("app", 1), app_id="app", clock=ManualClock())
    assert list(memory.list("_delta_log")) == []


def test_should_keep_every_commit_of_many_drivers_on_a_bad_network(s3_server: S3Server) -> None:
    """Replies are lost, the client repeats by itself, and all put the same versions at once."""
    drivers, commits = 4, 6
    direct = s3_server.new_address()
    faults = {Fault.DROP_AFTER: 0.15, Fault.ERROR_AFTER: 0.1, Fault.CUT_REPLY: 0.1, Fault.DROP_BEFORE: 0.05}
    start = threading.Barrier(drivers)
    with FaultProxy(s3_server.endpoint, faults, seed=11) as proxy:
        address: StoreAddress = through(proxy, direct, timeout="5s")

        def drive(number: int) -> list[int]:
            store, seen, found = address.open(), -1, []
            start.wait()
            for last in range(commits):
                seen = put(store, f"app{number}", last, after=seen)
                found.append(seen)
            return found

        with ThreadPoolExecutor(drivers) as pool:
            found = list(pool.map(drive, range(drivers)))
        assert proxy.counts[Fault.DROP_AFTER] > 0
    total = drivers * commits
    assert sorted(version for each in found for version in each) == list(range(total))
    wanted = [f"app{number}-{last}.parquet" for number in range(drivers) for last in range(commits)]
    assert sorted(added(direct.open(), total)) == sorted(wanted)


def test_should_not_land_in_a_hole_of_the_log(memory: Store) -> None:
    """The log was cleaned up, or dropped and made anew, while the files were written: no reader would see ours."""
    for version in range(41, 44):
        memory.put(location_of(version), b"")
    for after in (5, 40):
        with pytest.raises(Overtaken, match=f"version {after}, on which it was begun, is gone"):
            put(memory, "app", 1, after=after)
    assert len(list(memory.list("_delta_log"))) == 3
    assert put(memory, "app", 1, after=42) == 44


def test_should_not_follow_a_creation_that_another_one_replaced(memory: Store) -> None:
    """Creating a table is Spark's, and on S3 the second of two that create it replaces the first."""
    memory.put(location_of(0), f"{METADATA}\n".encode())
    made, clock = actions("app", 1), SystemClock()
    with pytest.raises(Overtaken, match="somebody else has created the table"):
        put_commit(memory, after=0, actions=made, app_id="app", clock=clock, table_id="mine")
    assert put_commit(memory, after=0, actions=made, app_id="app", clock=clock, table_id="t") == 1
    assert put_commit(memory, after=1, actions=actions("app", 2), app_id="app", clock=clock, table_id="t") == 2


def commit_of(n: int, **more: Any) -> bytes:
    """A commit as writers make it: what it says of itself comes first."""
    return f"{json.dumps({'commitInfo': {'txnId': f'commit {n}', **more}})}\n{METADATA}\n".encode()


def begun_on(store: Store, version: int) -> str:
    return store.get(location_of(version)).data.decode().split("\n")[0]


@pytest.mark.parametrize("after", [0, 1, 3])
def test_should_not_land_in_another_table_that_stands_there_by_now(any_store: Store, after: int) -> None:
    """The table was dropped, and another one made there, with as many versions or more, while files were written."""
    for version in range(after + 1):
        any_store.put(location_of(version), commit_of(version, text="ü" * 50))
    mark = begun_on(any_store, after)

    def commit() -> int:
        made = actions("app", 1)
        clock = SystemClock()
        return put_commit(any_store, after=after, actions=made, app_id="app", clock=clock, table_id="t", mark=mark)

    theirs = (
        commit_of(after + 10, text="ü" * 50),
        commit_of(after + 10),  # shorter than what is looked for
        commit_of(after, text="ü" * 51),  # the same up to there, almost
        f"{METADATA}\n".encode(),
        b"{}",
    )
    ours = any_store.get(location_of(after)).data
    for other in theirs:
        any_store.put(location_of(after), other)
        with pytest.raises(Overtaken, match=f"version {after}, .* is another commit now"):
            commit()
    any_store.delete_many([location_of(after)])
    with pytest.raises(Overtaken, match=f"version {after}, .* is gone"):
        commit()
    assert len(list(any_store.list("_delta_log"))) == after, "nothing of ours is there"
    for same in (ours.rstrip(b"\n"), ours):
        any_store.put(location_of(after), same)
        any_store.delete_many([location_of(after + 1)])
        assert commit() == after + 1


class Careless:
    """A server that ignores `If-None-Match`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put_if_absent(self, location: str, data: bytes) -> Outcome:
        self._store.put(location, data)
        return Won("1")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def not_implemented(_do: Callable[[], Outcome]) -> Outcome:
    raise Unsupported("the server answered 501")


def test_should_find_out_whether_the_server_obeys_the_condition(any_store: Store) -> None:
    clock = SystemClock()
    assert why_not_trusted(any_store, clock) is None
    assert "writes over one" in str(why_not_trusted(Careless(any_store), clock))
    assert "501" in str(why_not_trusted(Doubtful(any_store, not_implemented), clock))
    assert list(any_store.list("")) == [], "nothing is left"


def test_should_ask_again_whether_the_server_obeys_where_replies_are_lost(memory: Store) -> None:
    clock = ManualClock()
    for ends in ([unknown_before], [unknown_after], [lost_after, unknown_before], [unknown_before] * 4):
        assert why_not_trusted(Doubtful(memory, *ends), clock) is None
    careless: Any = Careless(memory)
    for ends in ([unknown_before], [unknown_after], [lambda do: do(), unknown_after]):
        assert "writes over one" in str(why_not_trusted(Doubtful(careless, *ends), clock))
    with pytest.raises(StorageError, match="nobody can tell"):
        why_not_trusted(Doubtful(memory, *[unknown_before] * 100), clock)


def answered(status: int, code: str = "", etag: str | None = None) -> Callable[..., Reply]:
    def answer(_method: str, _path: str, _headers: dict[str, str], _body: bytes) -> Reply:
        body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode() if code else b"1"
        return status, {"ETag": etag} if etag else {}, body

    return answer


@pytest.mark.parametrize(
    ("answer", "is_reason"),
    [
        (answered(501, "NotImplemented"), True),
        (answered(501), True),
        (answered(200), True),  # and no ETag
        (answered(400, "ExpiredToken"), False),
        (answered(401), False),
        (answered(403, "AccessDenied"), False),
        (answered(403, "InvalidAccessKeyId"), False),
        (answered(404, "NoSuchBucket"), False),
        (answered(301, "PermanentRedirect"), False),
    ],
)
def test_should_call_a_server_without_conditions_only_one_that_knows_none(
    answer: Callable[..., Reply], is_reason: bool
) -> None:
    """Keys run out and are renewed; the commits after that must not go on without a condition."""
    with ScriptedServer(answer) as server:
        options: dict[str, Any] = {
            "endpoint": server.endpoint,
            "region": "r",
            "access_key_id": "k",
            "secret_access_key": "s",
        }
        options |= {"client_options": {"allow_http": True}, "retry_config": {"max_retries": 0}}
        store = open_store("s3://bucket/table", **options)
        if is_reason:
            assert why_not_trusted(store, ManualClock())
        else:
            with pytest.raises(StorageError):
                why_not_trusted(store, ManualClock())


def test_should_tell_a_server_without_conditions_after_repeated_requests(memory: Store) -> None:
    def unknown(_do: Callable[[], Outcome]) -> Outcome:
        return Unknown(Unsupported("the server answered 501 (after 2 retries)"))

    assert "501" in str(why_not_trusted(Doubtful(memory, *[unknown] * 100), ManualClock()))


def test_should_ask_again_after_a_failure_that_passes(memory: Store) -> None:
    """A writer keeps what it was told of a store, for as long as it lives."""

    class Table:
        url = "s3://bucket/table"
        store: Any = Doubtful(memory, refused)

        def open(self) -> Any:
            return self.store

    writer: Any = ArrowWriter.__new__(ArrowWriter)  # without Spark, which this is not about
    writer._tried = []
    table = Table()
    with pytest.raises(StoreUnusable):
        writer._why_not_trusted(table)
    assert writer._why_not_trusted(table) is None
    puts = table.store.puts
    assert writer._why_not_trusted(table) is None
    assert table.store.puts == puts, "an answer is kept"


def refused(_do: Callable[[], Outcome]) -> Outcome:
    raise StoreUnusable("answered 403: ExpiredToken; check the credentials", retryable=False)


@pytest.mark.parametrize(
    ("features", "properties", "reason"),
    [
        ([], {}, None),
        (["deletionVectors", "timestampNtz", "inCommitTimestamp"], {"delta.enableChangeDataFeed": "true"}, None),
        (["rowTracking"], {}, "row ids"),
        ([], {"delta.enableInCommitTimestamps": "true"}, "in-commit timestamps"),
        ([], {"delta.autoOptimize.autoCompact": "auto"}, "automatic compaction"),
        ([], {"delta.compatibility.symlinkFormatManifest.enabled": "true"}, "symlink manifests"),
        ([], {"delta.coordinatedCommits.commitCoordinator-preview": "x"}, "coordinated commits"),
    ],
)
def test_should_leave_to_delta_what_its_commit_alone_does(
    features: list[str], properties: dict[str, str], reason: str | None
) -> None:
    protocol = json.dumps({"protocol": {"writerFeatures": features}})
    assert why_not(protocol, json.dumps({"metaData": {"configuration": properties}})) == reason
