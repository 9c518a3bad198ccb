"""Looking after tables: beside the line, one checkpoint at a time, and never in the way of a commit."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from py4j.protocol import Py4JError

from buffer_delta.delta.state import Commit, TableState
from buffer_delta.delta.upkeep import TableUpkeep, is_due
from buffer_delta.load.upkeep import Upkeep
from tests.nets import HANGS_S


class FakeTable:
    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun = threading.Event()
        self.made = 0
        self.compacted = 0
        self.broken = False

    def checkpoint_due(self, commit: Commit) -> bool:
        return True

    def checkpoint(self) -> None:
        self.begun.set()
        assert self.gate.wait(HANGS_S)
        if self.broken:
            raise Py4JError("no more disk")
        self.made += 1

    def compact_due(self, commit: Commit, every: int) -> bool:
        return commit.version is not None and is_due(every, commit.version, commit.version - 1)

    def compact(self, target_bytes: int) -> tuple[int, int]:
        if self.broken:
            raise Py4JError("a delete came between")
        self.compacted += 1
        return 3, 1


def commit(version: int) -> dict[str, Any]:
    return {"t": Commit(version, 1, 1, 1, 0.0, TableState())}


@pytest.mark.parametrize(
    ("every", "version", "before", "due"),
    [(10, 10, 9, True), (10, 11, 10, False), (10, 31, 8, True), (10, 9, 0, False), (0, 10, 9, False), (1, 5, 4, True)],
)
def test_should_come_round_by_the_version_of_the_table(every: int, version: int, before: int, due: bool) -> None:
    assert is_due(every, version, before) is due


class FakeSnapshot:
    """Of a table with checkpoints every ten versions, as the JVM shows it."""

    def __init__(self, last_checkpoint: int) -> None:
        self.log = self.java = self
        self.last_checkpoint = last_checkpoint

    def __getattr__(self, _name: str) -> Any:
        return lambda *_: self

    def checkpointInterval(self, _metadata: Any) -> int:  # its name in Scala
        return 10

    def version(self) -> int:
        return self.last_checkpoint


def due(upkeep: TableUpkeep, version: int, last_checkpoint: int) -> bool:
    after = TableState(version=version, snapshot=FakeSnapshot(last_checkpoint))
    return upkeep.checkpoint_due(Commit(version, 1, 1, 1, 0.0, after))


def table_upkeep(*, leaves_checkpoints: bool = True) -> TableUpkeep:
    spark: Any = None
    return TableUpkeep(spark, None, "t", leaves_checkpoints=leaves_checkpoints)


def test_should_make_checkpoints_though_others_take_every_tenth_version() -> None:
    upkeep = table_upkeep()
    assert [version for version in range(1, 60) if version % 10 and due(upkeep, version, -1)] == [11, 21, 31, 41, 51]
    assert not due(table_upkeep(leaves_checkpoints=False), 10, -1)


def test_should_make_no_checkpoint_where_there_is_one() -> None:
    assert [version for version in range(1000, 1025) if due(table_upkeep(), version, 1000)] == [*range(1010, 1025)]
    upkeep = table_upkeep()
    assert [version for version in range(1000, 1025) if due(upkeep, version, 1000)] == [1010, 1020], "begun is enough"
    upkeep = table_upkeep()
    assert [version for version in range(1000, 1025) if due(upkeep, version, version)] == [], "others make them"


def test_should_compact_though_others_take_the_version() -> None:
    upkeep = table_upkeep()
    found = [at for at in range(1, 30, 2) if upkeep.compact_due(Commit(at, 1, 1, 1, 0.0, TableState()), 10)]
    assert found == [11, 21]


def test_should_not_make_the_line_wait_and_make_one_checkpoint_for_all_that_became_due_meanwhile() -> None:
    table = FakeTable()
    upkeep = Upkeep({"t": table}, compact_every=0, target_bytes=1)
    upkeep.after(commit(10))
    assert table.begun.wait(HANGS_S)
    for version in (20, 30, 40):
        upkeep.after(commit(version))  # returns while the first is still being made
    assert table.made == 0
    table.gate.set()
    upkeep.close()
    assert table.made == 2
    upkeep.after(commit(50))
    upkeep.close()
    assert table.made == 3


def test_should_compact_between_commits_only_when_asked() -> None:
    table = FakeTable()
    table.gate.set()
    upkeep = Upkeep({"t": table}, compact_every=5, target_bytes=1)
    for version in range(1, 13):
        upkeep.after(commit(version))
    upkeep.close()
    assert table.compacted == 2


def test_should_go_on_when_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    table = FakeTable()
    table.gate.set()
    table.broken = True
    upkeep = Upkeep({"t": table}, compact_every=1, target_bytes=1)
    upkeep.after(commit(1))
    upkeep.close()
    assert "no more disk" in caplog.text
    assert "a delete came between" in caplog.text
    table.broken = False
    upkeep.after(commit(2))
    upkeep.close()
    assert (table.made, table.compacted) == (1, 1)
