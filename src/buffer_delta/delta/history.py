"""What was done to a table since our last commit, from the notes that commits leave in its log. Pure.

Delta keeps an app's transaction when a table is restored, replaced or overwritten, while the rows go: the position
alone would say that they are loaded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from buffer_delta.delta.state import Rewrite
from buffer_delta.delta.txn import Txn

log = logging.getLogger(__name__)

HISTORY_WALK_MAX = 10_000  # commits read one by one, a few ms each; beyond that a start would take minutes

_PARTIAL = ("predicate", "replaceOnCond", "replaceUsingCols")
"""What Delta notes, by one of these, of an overwrite that leaves the rest of the table alone."""
_DYNAMIC = "isDynamicPartitionOverwrite"
"""The same, but only of a table that is partitioned: in a session with spark.sql.sources.partitionOverwriteMode=dynamic
it notes this of every overwrite, and replaces all of a table without partitions all the same."""

CommitInfo = Mapping[str, Any]


def find_rewrite(
    commit_info: Callable[[int], CommitInfo | None], newest: int, app_id: str, committed: int, *, is_partitioned: bool
) -> Rewrite | None:
    """The newest operation that took rows back which `app_id` had committed; None if there is none.

    `commit_info` reads one version; None from it means that the log does not reach back that far. Walks from the
    newest version to the commit that brought the table to `committed`, no further. A RESTORE is followed to the
    version it went back to: what was done between the two is undone, for better or worse.
    """
    suspects: list[tuple[int, CommitInfo]] = []
    restores: list[tuple[int, CommitInfo]] = []
    version = newest
    for _ in range(HISTORY_WALK_MAX):
        info = commit_info(version) if version >= 0 else None
        if info is None:  # the table's beginning, or the log was cleaned up from here on
            break
        ours = _last_of(info, app_id)
        if ours == committed:  # whatever RESTORE we came through led here or to a later version: our rows are there
            return _rewrite(*suspects[0]) if suspects else None
        if ours is not None:  # an older commit of ours: a RESTORE jumped the last one
            break
        restored = _restored_version(info)
        if restored is not None:
            restores.append((version, info))
            version = restored
            continue
        if _takes_rows(info, is_partitioned):
            suspects.append((version, info))
        version -= 1
    else:
        log.warning(
            "%d commits by others since the last one of %s; not looking further back for what took its rows",
            HISTORY_WALK_MAX,
            app_id,
        )
    found = max([*suspects, *restores], key=lambda pair: pair[0], default=None)
    return _rewrite(*found) if found else None


def _last_of(info: Mapping[str, Any], app_id: str) -> int | None:
    """The sequence that this commit brought the table to, if it is one of `app_id`'s."""
    txn = Txn.from_note(info.get("userMetadata"))
    return txn.last if txn is not None and txn.app_id == app_id else None


def _restored_version(info: Mapping[str, Any]) -> int | None:
    """The version that a RESTORE went back to; None for one by timestamp, which does not say."""
    version = (info.get("operationParameters") or {}).get("version")
    return int(version) if info.get("operation") == "RESTORE" and version is not None else None


def _takes_rows(info: Mapping[str, Any], is_partitioned: bool) -> bool:
    operation = str(info.get("operation", "")).upper()
    parameters = info.get("operationParameters") or {}
    if operation == "RESTORE" or "REPLACE TABLE" in operation:
        return True
    partial = (*_PARTIAL, _DYNAMIC) if is_partitioned else _PARTIAL
    is_whole = all(parameters.get(key) in (None, False, "", "false") for key in partial)
    return operation == "WRITE" and parameters.get("mode") == "Overwrite" and is_whole


def _rewrite(version: int, info: Mapping[str, Any]) -> Rewrite:
    operation = str(info["operation"])
    if operation == "WRITE":
        operation = "overwrite"
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(info.get("timestamp", 0)) / 1000))
    return Rewrite(operation=operation, version=version, timestamp=when)
