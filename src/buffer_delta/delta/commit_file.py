"""The next version of a table's log, put by the driver itself on the condition that nobody has put it yet. No Spark.

For tables on S3, where Spark's log store looks whether a version is there and then puts it without a condition: of two
drivers that do so at the same moment, the second replaces the first one's commit. Here the store decides, and of two
one is told that it has lost. Only an append is put this way, with the app's position and perhaps with new columns.

    why_not_trusted(store, clock)                                # None: the server keeps its word on conditions
    actions = append_actions(txn, files, …)                      # lines of JSON, the commit's own mark among them
    version = put_commit(store, after=41, actions=…, app_id=…)   # 42, or later if others came first

What happens if …
    somebody else has that version   it is read: what moves the same app's position, or changes the table's columns,
                                     rules or protocol, is a conflict (Overtaken), and nothing of ours is in the table.
                                     Any other commit does not touch an append: ours is tried as the version after it
    the reply is lost                the version is read back. Our own bytes, which no other commit has, are our commit;
                                     others are somebody else's; none, and the same put is sent again
    the put lands late               as long as nobody has that version it is the very commit that was to be made; once
                                     somebody has, it is refused. So a version is skipped only when it is taken
    the log is another one by then   the version that it was begun on is read first. If it is gone, or is not the very
                                     commit that was looked at, ours would land in a hole or in a table that nobody has
                                     looked at, with files that are not there: Overtaken
    nobody can tell                  StorageError, and it may have landed: as after every commit, the caller looks, and
                                     a later commit of the same app meets it as a conflict
    an older process wakes up        it goes through every version since the one it has seen, and finds the app moved
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from buffer.backoff import Backoff
from buffer.clock import Clock
from buffer.errors import InvalidInput, ObjectNotFound, StorageError, Unsupported
from buffer.store.base import CanDelete, CanGetRange, CanHead, CanSwap, Lost, Unknown, Won
from buffer_delta.delta.txn import Txn

REBASES_MAX = 1000  # versions that others put meanwhile; then looking again is cheaper
PUTS = Backoff(first_s=0.05, max_s=2.0, attempts_max=8)
_CHANGES = ("metaData", "protocol")
_ENGINE = "buffer-delta"
_SCRATCH = "_buffer_checks"  # beside the log and not in it; every reader and VACUUM pass over such a name


class LogStore(CanSwap, CanHead, Protocol):
    """What a commit needs of the table's store."""


class ScratchStore(CanSwap, CanDelete, Protocol):
    """What trying it out needs."""


class Overtaken(Exception):
    """Somebody else's commit came first, and ours must not follow it. Nothing of ours is in the table."""


def append_actions(
    txn: Txn, adds: Sequence[str], *, read_version: int, metrics: Mapping[str, int], changes: Sequence[str], now_ms: int
) -> tuple[str, ...]:
    """The lines of one commit. `adds` and `changes` (of `metaData` and `protocol`) are actions as JSON."""
    info = {
        "timestamp": now_ms,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": "[]"},
        "readVersion": read_version,
        "isolationLevel": "Serializable",
        "isBlindAppend": True,
        "operationMetrics": {name: str(count) for name, count in metrics.items()},
        "userMetadata": txn.to_note(),
        "engineInfo": _ENGINE,
        "txnId": str(uuid.uuid4()),  # tells this very commit from every other
    }
    position = {"appId": txn.app_id, "version": txn.last, "lastUpdated": now_ms}
    return (json.dumps({"commitInfo": info}), *changes, json.dumps({"txn": position}), *adds)


def why_not_trusted(store: ScratchStore, clock: Clock) -> str | None:
    """Why no commit may be put there on a condition: the server knows none, or takes it and does not obey. None: it
    does as it is told. Found out on an object of our own, which is deleted again.

    Raises StorageError where replies are lost, and where the server refuses for another reason (keys that ran out, no
    bucket): that says nothing about conditions, and asking again tells.
    """
    cause: Exception | None = None
    for _ in PUTS.attempts(clock):
        location = f"{_SCRATCH}/{clock.new_ulid()}"
        try:
            first, second = (store.put_if_absent(location, data) for data in (b"1", b"2"))
            cause = next((outcome.cause for outcome in (first, second) if isinstance(outcome, Unknown)), None)
            kept = store.get(location).data
        except ObjectNotFound:  # neither has landed, or not yet
            continue
        except Unsupported as error:
            return str(error)
        finally:
            store.delete_many([location])
        if kept == b"1" and isinstance(second, Lost):
            return None
        if not isinstance(first, Unknown) and (kept != b"1" or isinstance(second, Won)):
            return "its server takes the condition that an object is not there yet, and writes over one that is"
    if isinstance(cause, Unsupported):  # after others, which the client repeated by itself
        return str(cause)
    raise StorageError(
        f"nobody can tell whether the store keeps its word on conditional writes: {cause}",
        location=_SCRATCH,
        url=None,
        retryable=True,
    ) from cause


def put_commit(
    store: LogStore,
    *,
    after: int,
    actions: Sequence[str],
    app_id: str,
    clock: Clock,
    table_id: str | None = None,
    mark: str | None = None,
) -> int:
    """Put the actions as the first free version after `after`, which they were decided on. Returns that version.

    `mark`: the first line of that version, as it was looked at; another one is another table's, or of a log that was
    put back. `table_id`: what the first version must say, where that is the one they were decided on: Spark's log store
    may have replaced it before the look. Raises Overtaken, and StorageError where nobody knows whether it is there.
    """
    _check_begin(store, after, table_id, mark)
    data = ("\n".join(actions) + "\n").encode()
    changes = any(_kind(line) in _CHANGES for line in actions)
    for version in range(after + 1, after + 1 + REBASES_MAX):
        theirs = _put(store, location_of(version), data, clock)
        if theirs is None:
            return version
        reason = conflict(theirs, app_id, changes=changes)
        if reason is not None:
            raise Overtaken(f"version {version} {reason}")
    raise Overtaken(f"{REBASES_MAX} others have committed meanwhile")


def _check_begin(store: LogStore, after: int, table_id: str | None, mark: str | None) -> None:
    if after < 0:
        return
    location = location_of(after)
    try:
        if mark and not _begins_with(store, location, mark):
            raise Overtaken(f"version {after}, on which it was begun, is another commit now: the table was replaced")
        if after > 0 or table_id is None:
            if not mark:
                store.head(location)
            return
        found = store.get(location).data
    except ObjectNotFound as error:
        raise Overtaken(f"version {after}, on which it was begun, is gone") from error
    found_id = next((value.get("id") for kind, value in _actions(found) if kind == "metaData"), None)
    if found_id != table_id:
        raise Overtaken(f"version {after} was replaced: somebody else has created the table, too")


def _begins_with(store: LogStore, location: str, line: str) -> bool:
    """Whether that is an object's first line. Not more of it is read, where the store can: it may be a large one."""
    wanted = line.encode()
    # Without the end of the line: the object may end there. A line of JSON is not the beginning of another one.
    found = store.get_range(location, 0, len(wanted)) if isinstance(store, CanGetRange) else store.get(location).data
    return found.startswith(wanted)


def conflict(theirs: bytes, app_id: str, *, changes: bool) -> str | None:
    """Why an append of `app_id` must not follow that commit; `changes`: whether it has columns or rules of its own."""
    for kind, value in _actions(theirs):
        if kind == "txn" and value["appId"] == app_id:
            return f"moves {app_id} to {value['version']}"
        if kind in _CHANGES:
            return "changes the table's columns, properties or protocol"
    return "came before a change of the table's columns" if changes else None


def why_not(protocol: str, metadata: str) -> str | None:
    """What of a table only Delta's own commit does; None if there is nothing. Both are actions, as JSON."""
    features = set(json.loads(protocol)["protocol"].get("writerFeatures") or ())
    properties = {
        key.lower(): str(value).lower()
        for key, value in (json.loads(metadata)["metaData"].get("configuration") or {}).items()
    }
    if features & {"rowTracking", "rowTracking-preview"}:
        return "row ids"
    if properties.get("delta.enableincommittimestamps", "false") == "true":
        return "in-commit timestamps"
    if any(properties.get(key, "false") != "false" for key in ("delta.autooptimize.autocompact", "delta.autooptimize")):
        return "automatic compaction"
    if properties.get("delta.compatibility.symlinkformatmanifest.enabled", "false") == "true":
        return "symlink manifests"
    if any(key.startswith("delta.coordinatedcommits.") for key in properties):
        return "coordinated commits"
    return None


def location_of(version: int) -> str:
    return f"_delta_log/{version:020d}.json"


def has_version(store: CanHead, version: int) -> bool:
    """Whether the log has it, as far as one look tells."""
    try:
        store.head(location_of(version))
    except (StorageError, InvalidInput):  # the latter: a link in place of the file
        return False
    return True


def _put(store: CanSwap, location: str, data: bytes, clock: Clock) -> bytes | None:
    """None: the object holds our bytes. Else what it holds."""
    cause: Exception | None = None
    for _ in PUTS.attempts(clock):
        match store.put_if_absent(location, data):
            case Won():
                return None
            case Unknown(cause=cause):
                pass
            case Lost():
                pass
        # A client's own repetition of a put that has landed is told that it lost, too.
        try:
            found = store.get(location).data
        except ObjectNotFound:
            continue  # not yet, or it never came; the same bytes again do no harm
        return None if found == data else found
    raise StorageError(
        f"nobody can tell whether {location} was written: {cause}", location=location, url=None, retryable=True
    ) from cause


def _kind(line: str) -> str:
    return str(next(iter(json.loads(line))))


def _actions(data: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in data.decode().split("\n"):  # only there: text in JSON may hold what else ends a line
        if line.strip():
            yield from json.loads(line).items()
