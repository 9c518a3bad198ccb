"""What the entries of a queue look like, from its first batches. Decides nothing for good: `init` proposes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from buffer.consume.fetch import FetchHandle
from buffer.errors import BufferQueueError
from buffer.manifest import Manifest

BATCHES_MAX = 3
ENTRIES_MAX = 1000  # of each batch


@dataclass(frozen=True, slots=True)
class Sample:
    """The first entries of a queue."""

    batches: int
    entries: tuple[bytes, ...]
    problem: str | None = None
    """Why a batch could not be read."""


def sample(handle: FetchHandle, manifest: Manifest) -> Sample:
    entries: list[bytes] = []
    batches = 0
    for descriptor in manifest:
        if batches == BATCHES_MAX:
            break
        try:
            found = handle.fetch_arrow(descriptor)
        except BufferQueueError as error:
            return Sample(batches, tuple(entries), str(error))
        batches += 1
        entries += found.slice(0, ENTRIES_MAX).to_pylist()
    return Sample(batches, tuple(entries))


def guess_format(entries: Sequence[bytes]) -> str | None:
    """The name of the format that fits all of them; None if there is nothing to go by."""
    if not entries:
        return None
    if all(map(_is_json_object, entries)):
        return "json"
    if all(map(_is_arrow_stream, entries)):
        return "arrow"
    return "text" if all(map(_is_text, entries)) else "raw"


def _is_json_object(entry: bytes) -> bool:
    try:
        return isinstance(json.loads(entry), dict)
    except (ValueError, RecursionError):
        return False


def _is_arrow_stream(entry: bytes) -> bool:
    try:
        pa.ipc.open_stream(entry)
    except (pa.ArrowInvalid, OSError, ValueError):
        return False
    return True


def _is_text(entry: bytes) -> bool:
    try:
        text = entry.decode()
    except UnicodeDecodeError:
        return False
    return not any(c < " " and c not in "\t\r\n" for c in text)
