"""Whether a table may be written by Arrow: what it uses that only Spark's own writer does. Pure.

    why_not(protocol_json, metadata_json)   # None, or "it has CHECK constraints (positive)"

It decides by what is known to be right, never by what is known to be wrong: a feature, a property that changes files or
a type that is not listed here goes to Spark's writer.

What Arrow's writer does itself: partitions, NOT NULL, the codec, the columns with statistics. What the commit does,
which is Delta's own whoever wrote the files: row ids, in-commit timestamps, the change feed (of an append it is the
files themselves), deletion vectors (an append has none), checkpoints, clustering (OPTIMIZE clusters, an append does
not).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_FEATURES = frozenset(
    {
        "allowColumnDefaults",  # these five as long as no column or property uses them
        "checkConstraints",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "appendOnly",
        "changeDataFeed",
        "checkpointProtection",
        "clustering",
        "deletionVectors",
        "domainMetadata",
        "inCommitTimestamp",
        "rowTracking",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
_TYPES = re.compile(
    r"string|long|integer|short|byte|float|double|boolean|binary|date|timestamp|timestamp_ntz|decimal\(\d+,\s?-?\d+\)"
)
_COLUMN_FACTS = {
    "delta.generationExpression": "a generated column",
    "delta.identity.": "an identity column",
    "CURRENT_DEFAULT": "a column with a default",
    "delta.invariants": "a column with an invariant",
    "delta.columnMapping.": "column mapping",
    "delta.typeChanges": "type widening",
    "__CHAR_VARCHAR_TYPE_STRING": "a CHAR or VARCHAR column",
    "__COLLATIONS": "a column with a collation",
}
_PROPERTIES = {
    "delta.columnmapping.mode": ("column mapping", "none"),
    "delta.enabletypewidening": ("type widening", "false"),
    "delta.enableicebergcompatv1": ("Iceberg compatibility", "false"),
    "delta.enableicebergcompatv2": ("Iceberg compatibility", "false"),
    "delta.enableicebergcompatv3": ("Iceberg compatibility", "false"),
    "delta.universalformat.enabledformats": ("UniForm", ""),
    "delta.autooptimize.optimizewrite": ("optimized writes", "false"),
    "delta.randomizefileprefixes": ("random file prefixes", "false"),
    "delta.parquet.format.version": ("a Parquet version of its own", "1.0.0"),
}
"""By the property's name in lower case: what it switches on, and the value that switches it off."""
_CHECK = "delta.constraints."


def why_not(protocol: str, metadata: str) -> str | None:
    """The first thing that the table uses and Arrow's writer does not do; None if there is none.

    Both are actions of its log, as JSON.
    """
    return next(_reasons(json.loads(protocol)["protocol"], json.loads(metadata)["metaData"]), None)


def why_not_made(properties: Mapping[str, str]) -> str | None:
    """The same of a table that is to be created with these properties, as far as they tell."""
    return next(_of_properties(properties), None)


def _reasons(protocol: Mapping[str, Any], metadata: Mapping[str, Any]) -> Iterator[str]:
    yield from _of_properties(metadata.get("configuration") or {})
    yield from _of_type(json.loads(metadata["schemaString"]))
    for feature in protocol.get("writerFeatures") or ():
        name = str(feature).removesuffix("-preview")
        if name not in _FEATURES:
            yield f"the table feature {feature}"


def _of_properties(properties: Mapping[str, str]) -> Iterator[str]:
    for key, value in properties.items():
        if key.lower().startswith(_CHECK):
            yield f"CHECK constraints ({key[len(_CHECK) :]})"
        feature = key.lower().removeprefix("delta.feature.")
        if feature != key.lower() and feature not in {name.lower() for name in _FEATURES}:
            yield f"the table feature {key.removeprefix('delta.feature.')}"
        what, off = _PROPERTIES.get(key.lower(), ("", value))
        if value.strip().lower() != off.strip().lower():
            yield what


def _of_type(kind: Any) -> Iterator[str]:
    if isinstance(kind, str):
        if not _TYPES.fullmatch(kind):
            yield f"the type {kind}"
        return
    for field in kind.get("fields", ()):
        for key in field.get("metadata") or ():
            yield from (what for prefix, what in _COLUMN_FACTS.items() if key.startswith(prefix))
        yield from _of_type(field["type"])
    for key in ("elementType", "keyType", "valueType"):
        if key in kind:
            yield from _of_type(kind[key])
    if kind.get("type") not in ("struct", "array", "map"):
        yield f"the type {kind.get('type')}"
