"""The transaction of one commit, as a value, and the note that it leaves in the table's history. Pure.

    DESCRIBE HISTORY … userMetadata
    {"app_id": "buffer/01J…", "first": 10, "last": 20, "epoch": 3, "entries": 11}

Written and parsed here, and nowhere else: writers put the note into the commit, `history` finds our commits by it,
the demo and the tests show it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, TypeGuard


@dataclass(frozen=True, slots=True)
class Txn:
    """One range of one app: Delta keeps `app_id` and `last`, the note keeps it all."""

    app_id: str
    first: int
    last: int
    epoch: int
    """Of the loader that commits."""
    entries: int | None = None
    """How many batches the range holds."""

    def to_note(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_note(cls, text: str | None) -> Txn | None:
        """The transaction that a commit's `userMetadata` tells of; None if it is not one of ours."""
        try:
            note = json.loads(text or "null")
        except ValueError:
            return None  # somebody else's note, in words
        if not isinstance(note, dict) or not isinstance(note.get("app_id"), str):
            return None
        first, last, epoch, entries = (note.get(key) for key in ("first", "last", "epoch", "entries"))
        if _is_int(first) and _is_int(last) and _is_int(epoch) and (entries is None or _is_int(entries)):
            return cls(note["app_id"], first, last, epoch, entries)
        return None


def _is_int(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
