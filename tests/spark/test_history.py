"""What was done to a table, told from its history. Pure: no table is needed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from buffer_delta.delta import history
from buffer_delta.delta.history import find_rewrite
from buffer_delta.delta.state import Rewrite
from buffer_delta.delta.txn import Txn

APP = "buffer/01TEST"


class History:
    """Commits of a table, from version 0 on, which knows nothing older than `kept_from`."""

    def __init__(self) -> None:
        self.commits: list[dict[str, Any]] = []
        self.kept_from = 0
        self.is_partitioned = True
        self.reads = 0

    def ours(self, last: int, app_id: str = APP) -> int:
        return self.add("WRITE", {"mode": "Append"}, Txn(app_id, 0, last, epoch=1, entries=1).to_note())

    def add(self, operation: str, parameters: dict[str, Any] | None = None, note: str | None = None) -> int:
        self.commits.append(
            {
                "timestamp": 1_700_000_000_000,
                "operation": operation,
                "operationParameters": parameters or {},
                "userMetadata": note,
            }
        )
        return len(self.commits) - 1

    def restore(self, version: int) -> int:
        return self.add("RESTORE", {"version": version, "timestamp": None})

    def read(self, version: int) -> dict[str, Any] | None:
        self.reads += 1
        return self.commits[version] if version >= self.kept_from else None

    def rewrite(self, committed: int) -> Rewrite | None:
        newest = len(self.commits) - 1
        return find_rewrite(self.read, newest, APP, committed, is_partitioned=self.is_partitioned)


@pytest.fixture
def table() -> History:
    found = History()
    found.add("CREATE TABLE")
    found.ours(4)  # version 1
    found.ours(9)  # version 2
    return found


def test_should_find_nothing_where_nothing_was_done(table: History) -> None:
    assert table.rewrite(9) is None
    assert table.reads == 1, "our last commit is the newest: one look is enough"


@pytest.mark.parametrize(
    ("operation", "parameters"),
    [
        ("WRITE", {"mode": "Append"}),
        ("DELETE", {"predicate": '["true"]'}),
        ("UPDATE", {}),
        ("MERGE", {}),
        ("OPTIMIZE", {}),
        ("SET TBLPROPERTIES", {}),
        ("WRITE", {"mode": "Overwrite", "predicate": '["part = 1"]'}),
        ("WRITE", {"mode": "Overwrite", "isDynamicPartitionOverwrite": True}),
        ("RESTORE", {"version": 3, "timestamp": None}),
    ],
)
def test_should_leave_the_users_business_alone(table: History, operation: str, parameters: dict[str, Any]) -> None:
    table.add("WRITE", {"mode": "Append"}, note="a note in words")
    table.add(operation, parameters)
    assert table.rewrite(9) is None


@pytest.mark.parametrize(
    ("operation", "parameters", "named"),
    [
        ("CREATE OR REPLACE TABLE", {}, "CREATE OR REPLACE TABLE"),
        ("CREATE OR REPLACE TABLE AS SELECT", {}, "CREATE OR REPLACE TABLE AS SELECT"),
        ("REPLACE TABLE", {}, "REPLACE TABLE"),
        ("WRITE", {"mode": "Overwrite", "partitionBy": "[]"}, "overwrite"),
        ("RESTORE", {"version": 1, "timestamp": None}, "RESTORE"),
        ("RESTORE", {"version": 0, "timestamp": None}, "RESTORE"),
        ("RESTORE", {"version": None, "timestamp": "2024-01-01"}, "RESTORE"),
    ],
)
def test_should_report_what_took_rows(table: History, operation: str, parameters: dict[str, Any], named: str) -> None:
    table.add("OPTIMIZE")
    version = table.add(operation, parameters)
    table.add("WRITE", {"mode": "Append"})
    assert table.rewrite(9) == Rewrite(named, version, "2023-11-14T22:13:20Z")


def test_should_report_a_dynamic_overwrite_of_a_table_without_partitions(table: History) -> None:
    version = table.add("WRITE", {"mode": "Overwrite", "partitionBy": "[]", "isDynamicPartitionOverwrite": True})
    assert table.rewrite(9) is None
    table.is_partitioned = False
    assert table.rewrite(9) == Rewrite("overwrite", version, "2023-11-14T22:13:20Z")


def test_should_see_that_a_restore_brought_the_rows_back(table: History) -> None:
    overwritten = table.add("WRITE", {"mode": "Overwrite"})
    assert table.rewrite(9) is not None
    table.restore(2)
    assert table.rewrite(9) is None
    table.restore(overwritten)
    assert table.rewrite(9) is not None


def test_should_follow_restores_of_restores(table: History) -> None:
    lost = table.restore(1)
    table.add("OPTIMIZE")
    table.restore(lost)
    rewrite = table.rewrite(9)
    assert rewrite is not None
    assert rewrite.operation == "RESTORE"
    table.restore(2)
    assert table.rewrite(9) is None


def test_should_forget_what_came_before_our_last_commit(table: History) -> None:
    table.add("WRITE", {"mode": "Overwrite"})
    table.ours(15)
    assert table.rewrite(15) is None


def test_should_not_take_another_app_for_ours(table: History) -> None:
    table.add("WRITE", {"mode": "Overwrite"})
    table.ours(9, app_id="another")
    assert table.rewrite(9) is not None


def test_should_tell_what_it_can_where_the_log_was_cleaned_up(table: History) -> None:
    table.add("OPTIMIZE")
    table.kept_from = 3
    assert table.rewrite(9) is None
    table.add("WRITE", {"mode": "Overwrite"})
    assert table.rewrite(9) is not None


def test_should_not_look_back_without_end(
    table: History, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(history, "HISTORY_WALK_MAX", 10)
    for _ in range(20):
        table.add("OPTIMIZE")
    assert table.rewrite(9) is None
    assert table.reads == 10
    assert "not looking further back" in caplog.text


def test_should_read_the_note_that_it_writes() -> None:
    txn = Txn(APP, 10, 20, epoch=3, entries=11)
    assert json.loads(txn.to_note()) == {"app_id": APP, "first": 10, "last": 20, "epoch": 3, "entries": 11}
    assert Txn.from_note(txn.to_note()) == txn
    assert Txn.from_note(Txn(APP, 0, 0, epoch=1).to_note()) == Txn(APP, 0, 0, epoch=1, entries=None)


@pytest.mark.parametrize(
    "note",
    [
        None,
        "",
        "a note in words",
        "[1, 2]",
        "7",
        '{"app_id": "a"}',
        '{"app_id": 7, "first": 0, "last": 1, "epoch": 1}',
        '{"app_id": "a", "first": 0, "last": "1", "epoch": 1}',
        '{"app_id": "a", "first": 0, "last": true, "epoch": 1}',
        '{"app_id": "a", "first": 0, "last": 1, "epoch": 1, "entries": "all"}',
    ],
)
def test_should_not_take_other_notes_for_ours(note: str | None) -> None:
    assert Txn.from_note(note) is None
