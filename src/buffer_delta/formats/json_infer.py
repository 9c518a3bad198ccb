"""Which columns some JSON records would need: the evolving half of the format `json`.

Numbers are BIGINT or DOUBLE, text is STRING even where it looks like a time: a column must not change its mind
when one record comes that does not look like it. Fields that were null so far are not there yet.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from buffer_delta.formats import json_fast
from buffer_delta.formats.base import MAX_COLUMNS
from buffer_delta.formats.json_records import BadRecord, load
from buffer_delta.formats.plain import invalid_utf8
from buffer_delta.formats.schemas import Room, merge_schemas, merge_types

_INT64_MAX = 2**63 - 1


def infer(entries: pa.BinaryArray, max_columns: int = MAX_COLUMNS) -> pa.Schema:
    """The columns of these records. Those that are bad are passed over."""
    bad = {index for index, _ in invalid_utf8(entries)}
    odd = [index for index in json_fast.suspects(entries).tolist() if index not in bad]
    rest = np.setdiff1d(np.arange(len(entries)), [*bad, *odd])
    found = _infer_many(entries.take(pa.array(rest)) if len(rest) < len(entries) else entries, max_columns)
    found += [_infer_one(entries[index].as_py(), max_columns) for index in odd]
    return merge_schemas(None, found, max_columns=max_columns)


def _infer_many(entries: pa.BinaryArray, max_columns: int) -> list[pa.Schema]:
    if len(entries) == 0:
        return []
    try:
        read = json_fast.read(entries, None, infer=True)
    except (pa.ArrowInvalid, json_fast.TooMany):  # they contradict each other
        return [_infer_one(entry, max_columns) for entry in entries.to_pylist()]
    found = [_infer_one(entries[index].as_py(), max_columns) for index in read.left.tolist()]
    if read.table is not None:
        found.insert(0, pa.schema([pa.field(f.name, _plain(f.type)) for f in read.table.schema]))
    return found


def _infer_one(entry: bytes, max_columns: int) -> pa.Schema:
    try:
        record = load(entry)
    except BadRecord:
        return pa.schema([])
    return pa.schema([pa.field(name, type_of(value, max_columns)) for name, value in record.items()])


def type_of(value: Any, max_columns: int = MAX_COLUMNS) -> pa.DataType:
    """The type a JSON value suggests. Null: none. The elements of a list are merged, within `max_columns`."""
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if -_INT64_MAX - 1 <= value <= _INT64_MAX else pa.float64()
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, dict):
        return pa.struct([pa.field(name, type_of(inner, max_columns)) for name, inner in value.items()])
    if isinstance(value, list):
        element, room = pa.null(), Room(max_columns)
        for inner in value:
            element = merge_types(element, type_of(inner, max_columns), room)
        return pa.list_(element)
    return pa.null()


def _plain(kind: pa.DataType) -> pa.DataType:
    """What Arrow inferred, in our terms: it takes some text for timestamps."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _plain(f.type)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    return kind
