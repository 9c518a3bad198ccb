"""Reading a Delta table by hand: the rows in queue order, and commits that no loader may make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.crash.delta_files import DeltaFiles


def _commit(table: Path, version: int, txn: int | None, sequences: list[int], **more: Any) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    name = f"part {version}.parquet"
    rows = {"id": sequences, "_sequence": sequences, "_index": [0] * len(sequences)}
    pq.write_table(
        pa.table(rows, pa.schema([("id", pa.int64()), ("_sequence", "int64"), ("_index", "int32")])), table / name
    )
    actions: list[dict[str, Any]] = [{"add": {"path": name.replace(" ", "%20")}}] if sequences else []
    actions += [{"txn": {"appId": "app", "version": txn}}] if txn is not None else []
    actions += [{kind: value} for kind, value in more.items()]
    (log / f"{version:020d}.json").write_text("\n".join(json.dumps(action) for action in actions))


def test_should_read_what_came_since_the_last_look(tmp_path: Path) -> None:
    table = DeltaFiles(tmp_path, ["id"])
    table.refresh()
    assert table.rows().num_rows == 0
    _commit(tmp_path, 0, None, [], metaData={})
    _commit(tmp_path, 1, 2, [2, 0, 1])
    table.refresh()
    _commit(tmp_path, 2, 3, [])
    _commit(tmp_path, 3, 5, [4, 5])
    table.refresh()
    assert table.rows()["id"].to_pylist() == [0, 1, 2, 4, 5]
    assert (table.commits, table.txn, table.violations) == (4, {"app": 5}, [])
    assert table.repeated_positions() == 0


def test_should_report_ranges_that_overlap(tmp_path: Path) -> None:
    """What two loaders would leave behind without a plan: 0..2 as 2, and 0..4 as 4."""
    _commit(tmp_path, 0, 2, [0, 1, 2])
    _commit(tmp_path, 1, 4, [0, 1, 2, 3, 4])
    table = DeltaFiles(tmp_path, ["id"])
    table.refresh()
    assert [violation for violation in table.violations if "has rows of [0, 1, 2]" in violation]
    assert table.repeated_positions() == 3


def test_should_report_commits_that_no_loader_makes(tmp_path: Path) -> None:
    _commit(tmp_path, 0, 2, [0, 1, 2])
    _commit(tmp_path, 1, 2, [])
    _commit(tmp_path, 2, None, [3])
    _commit(tmp_path, 3, 3, [3], remove={"path": "part%200.parquet"})
    table = DeltaFiles(tmp_path, ["id"])
    table.refresh()
    expected = ["is transaction 2, after 2", "adds rows under 0 transactions", "removes files"]
    assert all(any(text in violation for violation in table.violations) for text in expected), table.violations
