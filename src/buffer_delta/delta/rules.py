"""What a table itself demands of a row besides its columns' types: part of what decides where a record goes. Pure.

Delta checks all of this while it writes, and fails the write of everybody's rows for one row that breaks it. So the
loader looks first, and plans keep the digest of the rules under which they decided.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

_CHECK = "delta.constraints."


@dataclass(frozen=True, slots=True)
class TableRules:
    not_null: tuple[tuple[str, ...], ...] = ()
    """Columns that take no null, each as its path through structs."""
    checks: tuple[tuple[str, str], ...] = ()
    """CHECK constraints: name and expression. Null breaks one, as false does."""
    partition_by: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    @classmethod
    def of_metadata(cls, text: str) -> TableRules:
        """From the `metaData` action of a table's log, as JSON."""
        found = json.loads(text)["metaData"]
        properties: Mapping[str, str] = found.get("configuration") or {}
        return cls(
            not_null=tuple(_not_null(json.loads(found["schemaString"]))),
            checks=tuple(
                (key[len(_CHECK) :], value)
                for key, value in sorted(properties.items())
                if key.lower().startswith(_CHECK)  # in any case, as Delta takes it
            ),
            partition_by=tuple(found.get("partitionColumns") or ()),
        )


def digest_of(rules: Mapping[str, TableRules]) -> str:
    """Of the rules of all tables that a range goes to."""
    text = json.dumps({name: found.digest for name, found in rules.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _not_null(kind: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Of a struct. Delta does not look inside of arrays and maps."""
    for field in kind.get("fields", ()):
        if not field["nullable"]:
            yield (*path, field["name"])
        if isinstance(field["type"], dict) and field["type"].get("type") == "struct":
            yield from _not_null(field["type"], (*path, field["name"]))
