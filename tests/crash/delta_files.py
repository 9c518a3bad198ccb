"""A Delta table read by hand, from its log and its Parquet files: cheap, and no part of what is being tested.

Only what the loader writes is understood: appends to a path on local files, whose log was never cleaned up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

PROVENANCE = ("_sequence", "_index")


@dataclass
class DeltaFiles:
    """`refresh` reads the commits that came since the last look; `rows` are all of them."""

    path: Path
    columns: Sequence[str] = ()
    """Besides the provenance."""
    commits: int = 0
    violations: list[str] = field(default_factory=list)
    txn: dict[str, int] = field(default_factory=dict)
    """The last version of each app."""
    _parts: list[pa.Table] = field(default_factory=list)

    def refresh(self) -> None:
        while (entry := self.path / "_delta_log" / f"{self.commits:020d}.json").exists():
            actions = [json.loads(line) for line in entry.read_text().splitlines()]
            self._commit([(kind, value) for action in actions for kind, value in action.items()])
            self.commits += 1

    def _commit(self, actions: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """A commit that adds rows must move its app on, and hold rows of the range it claims and of no other."""
        version = f"version {self.commits} of {self.path.name}"
        adds = [value["path"] for kind, value in actions if kind == "add"]
        if any(kind == "remove" for kind, _ in actions):
            self.violations.append(f"{version} removes files")
        ranges = [self._move_on(version, value) for kind, value in actions if kind == "txn"]
        if adds and len(ranges) != 1:
            self.violations.append(f"{version} adds rows under {len(ranges)} transactions")
        for name in adds:
            part = pq.read_table(self.path / unquote(name), columns=[*self.columns, *PROVENANCE])
            expected = ranges[0] if ranges else range(0)
            strangers = {sequence for sequence in part["_sequence"].to_pylist() if sequence not in expected}
            if strangers:
                self.violations.append(f"{version} is for {expected}, but has rows of {sorted(strangers)[:10]}")
            self._parts.append(part)

    def _move_on(self, version: str, txn: dict[str, Any]) -> range:
        before = self.txn.get(txn["appId"], -1)
        if txn["version"] <= before:
            self.violations.append(f"{version} is transaction {txn['version']}, after {before}")
        self.txn[txn["appId"]] = txn["version"]
        return range(before + 1, txn["version"] + 1)

    def rows(self) -> pa.Table:
        """All rows, in queue order."""
        if not self._parts:
            return pa.table({name: [] for name in (*self.columns, *PROVENANCE)})
        self._parts = [pa.concat_tables(self._parts).combine_chunks()]
        return self._parts[0].sort_by([(name, "ascending") for name in PROVENANCE])

    def repeated_positions(self) -> int:
        """Rows whose `(_sequence, _index)` another row has as well."""
        rows = self.rows()
        return int(rows.num_rows - rows.group_by(list(PROVENANCE)).aggregate([]).num_rows)
