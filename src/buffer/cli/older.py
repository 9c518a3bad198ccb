"""What `status`, `tail` and `verify` do with a queue of the older format, and how they know one.

By its content: what stands at the manifest's path tells. If nothing stands at the default path, the older format's own
default is tried. `--legacy` says so, and then nothing else will do.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from buffer.cli.interrupts import InterruptibleClock, check_interrupt
from buffer.cli.printing import (
    echo,
    is_terminal,
    print_facts,
    print_json,
    print_table,
    printable,
    printable_json,
    track,
)
from buffer.cli.shell import DONE, FAILED, describe
from buffer.config import DEFAULT_MANIFEST_PATH, ConsumerConfig
from buffer.consume.fetch import FetchHandle
from buffer.errors import BufferQueueError, ObjectNotFound
from buffer.inspect.human import human_bytes, plural
from buffer.inspect.legacy import (
    LegacyStatus,
    State,
    check_pairs,
    is_legacy_manifest,
    legacy_status,
    still_bad,
    try_pairs,
)
from buffer.legacy.config import DEFAULT_MANIFEST_PATH as OLDER_MANIFEST_PATH
from buffer.legacy.format import KeyValueEntry
from buffer.store.base import CanGet

F = TypeVar("F", bound=Callable[..., Any])

legacy_option = click.option(
    "--legacy", is_flag=True, help="The queue is of the older format, with two manifests. [default: its content tells]"
)


def older_path(store: CanGet, config: ConsumerConfig, *, legacy: bool) -> str | None:
    """The path of the producer manifest, if the queue is one of the older format. Says so on stderr if nobody did."""
    is_default = config.manifest_path == DEFAULT_MANIFEST_PATH
    if legacy:
        return OLDER_MANIFEST_PATH if is_default else config.manifest_path
    for path in (config.manifest_path, *([OLDER_MANIFEST_PATH] if is_default else [])):
        try:
            data = store.get(path).data
        except ObjectNotFound:
            continue
        if not is_legacy_manifest(data):
            return None
        echo(f"{path!r} is a queue of the older format, with two manifests", err=True)
        return path
    return None


def reader(config: ConsumerConfig, store: CanGet) -> FetchHandle:
    return FetchHandle(store, config.max_batch_bytes, config.fetch_attempts, InterruptibleClock())


# Status


def show_status(store: CanGet, path: str, *, as_json: bool) -> None:
    found = legacy_status(store, path)
    if as_json:
        print_json(found.to_dict())
    else:
        print_facts(found.facts())


# Verify


def verify_pairs(store: CanGet, config: ConsumerConfig, path: str, jobs: int, *, as_json: bool) -> int:
    seen = legacy_status(store, path)
    checks = check_pairs(reader(config, store), seen.waiting, jobs)
    checked = list(track(checks, total=len(seen.waiting), label="verifying"))
    bad = still_bad(checked, legacy_status(store, path))
    pairs, size = sum(item.pairs for item in checked), sum(item.bytes for item in checked)
    if as_json:
        listed = [
            {"location": b.location, "problem": b.problem, "parked": b.state is State.PARKED, "error": b.error}
            for b in bad
        ]
        print_json({"format": "older", "batches": len(checked), "pairs": pairs, "bytes": size, "damaged": listed})
    else:
        if bad:
            rows = [(b.problem, b.state.value, b.location, b.error) for b in bad]
            print_table(["problem", "state", "location", "error"], rows)
        batches = plural(len(checked), "batches")
        verdict = f"{len(bad):,} of {batches} damaged" if bad else f"{batches}, all fine"
        echo(f"{verdict}: {plural(pairs, 'pairs')}, {human_bytes(size)} of keys and values")
    return FAILED if bad else DONE


# Tail


def tail_pairs(
    store: CanGet, config: ConsumerConfig, path: str, count: int, *, follow_s: float | None, as_json: bool
) -> int:
    """The last pairs that wait, and with `follow_s` those to come, until Ctrl-C."""
    show = _print_json if as_json else _print_escaped if is_terminal(sys.stdout) else _print_bytes
    handle, bad = reader(config, store), set[str]()

    def pairs_of(location: str) -> list[KeyValueEntry]:
        check_interrupt()
        found = try_pairs(handle, location)
        if isinstance(found, BufferQueueError):
            echo(f"warning: {location} cannot be shown: {describe(found)}", err=True)
            bad.add(location)
            return []
        return found

    first = legacy_status(store, path)
    for location, start in _last(first, pairs_of, count):
        _show(location, pairs_of(location), start, show)
    if follow_s is not None:
        for location in _to_come(store, path, first, follow_s):
            _show(location, pairs_of(location), 0, show)
    waiting = {batch.location for batch in legacy_status(store, path).waiting} if bad else set()
    return FAILED if bad & waiting else DONE


def _last(
    status: LegacyStatus, pairs_of: Callable[[str], list[KeyValueEntry]], count: int
) -> Iterator[tuple[str, int]]:
    """The batches to begin with, and the pair in each; found backwards, and read again when they are due."""
    found: list[tuple[str, int]] = []
    for batch in reversed(status.waiting):
        if count <= 0:
            break
        pairs = len(pairs_of(batch.location))
        if pairs:
            found.append((batch.location, max(0, pairs - count)))
            count -= pairs
    yield from reversed(found)


def _to_come(store: CanGet, path: str, first: LegacyStatus, interval_s: float) -> Iterator[str]:
    """What is appended from now on. What was finished before it could be shown is not."""
    clock = InterruptibleClock()
    known = {batch.location for batch in first.waiting}
    while True:
        clock.sleep(interval_s)
        waiting = [batch.location for batch in legacy_status(store, path).waiting]
        yield from (location for location in waiting if location not in known)
        known = {*waiting}


def _show(
    location: str, pairs: list[KeyValueEntry], start: int, show: Callable[[str, int, KeyValueEntry], None]
) -> None:
    for index in range(start, len(pairs)):
        show(location, index, pairs[index])
    sys.stdout.flush()


def _print_bytes(_location: str, _index: int, pair: KeyValueEntry) -> None:
    sys.stdout.buffer.write(pair.key + b"\t" + pair.value + b"\n")


def _print_escaped(_location: str, _index: int, pair: KeyValueEntry) -> None:
    texts = (part.decode("utf-8", "backslashreplace") for part in (pair.key, pair.value))
    sys.stdout.write("\t".join(map(printable, texts)) + "\n")


def _print_json(location: str, index: int, pair: KeyValueEntry) -> None:
    line = {
        "location": location,
        "index": index,
        "key": _text(pair.key),
        "value": _text(pair.value),
        "key_base64": base64.b64encode(pair.key).decode(),
        "value_base64": base64.b64encode(pair.value).decode(),
    }
    sys.stdout.write(printable_json(json.dumps(line, ensure_ascii=False)) + "\n")


def _text(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None
