"""Which records have fields without a place, told without a look at each of them: by counting.

Arrow's parser may pass over the fields that it was given no column for. (Were it to infer columns for them, each
name would be a column as long as the chunk: memory would grow with names times rows, gigabytes from a megabyte.) So
the fields that are written in a record are counted from its bytes, and those that arrived from the columns:

    written    colons with a quote or a blank before them and no `null` after them. In valid JSON every field with a
               value has such a colon. A string may have them too: then there seem to be more than there are.
    arrived    values in columns, and in the structs inside of them, that are not null

`arrived` is at most `written`. Where they are equal, no field with a value was passed over. Where they are not, the
record is looked at singly. A name that is there twice is one too many as well, unless both are null.

No record can make up for another one. So where as many fields arrived of all records together as were written, or even
as there are colons, this holds for each of them, and nobody has to count by record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from buffer_delta.formats.entries import Indices, bytes_of, offsets_of

_COLON = 0x3A


def has_stray(entries: pa.BinaryArray, table: pa.Table) -> npt.NDArray[np.bool_]:
    """Which entries may have fields that are not in the table, which the parser made of them, a row for each."""
    parts = list(_parts(table))
    total = sum(int(part.sum()) if isinstance(part, np.ndarray) else part * len(entries) for part in parts)
    offsets, region = offsets_of(entries), bytes_of(entries)
    found = np.zeros(len(entries), bool)
    if np.count_nonzero(region == _COLON) == total:
        return found
    colons = _field_colons(region)
    if len(colons) == total:
        return found
    filled = colons[~_is_null(region, colons)]
    if len(filled) == total:
        return found
    arrived = np.zeros(len(entries), np.int64)
    for part in parts:
        arrived += part
    found |= counts_in(filled, offsets) != arrived
    return found


def _parts(table: pa.Table) -> Iterator[npt.NDArray[Any] | int]:
    """How many fields of each row arrived, in parts to be added up; a number: as many of every row."""
    for column in table.columns:
        for chunk in column.chunks:  # one, as long as the table
            yield _valid(chunk)
            inside = _inside(chunk)
            if inside is not None:
                yield inside


def _field_colons(region: npt.NDArray[np.uint8]) -> Indices:
    """The colons after a name, and perhaps a few inside of strings."""
    colons = np.flatnonzero(region[:-1] == _COLON)  # the last byte is no colon: `}`, or a blank
    before = region[np.maximum(colons, 1) - 1]
    found: Indices = colons[(before == 0x22) | (before <= 0x20)]  # the quote that ends the name, or blanks after it
    return found


def _is_null(region: npt.NDArray[np.uint8], colons: Indices) -> npt.NDArray[np.bool_]:
    """Which of them have a `null` after them, as far as one blank at most lets see it."""
    after = region[colons + 1]
    blank = after == 0x20
    after[blank] = region[np.minimum(colons[blank] + 2, len(region) - 1)]
    found: npt.NDArray[np.bool_] = after == 0x6E
    return found


def counts_in(places: Indices, offsets: npt.NDArray[np.int32]) -> Indices:
    """How many of these places, counted from the first entry's begin, lie in each entry."""
    found: Indices = np.diff(np.searchsorted(places, offsets - offsets[0]))
    return found


def _valid(column: pa.Array) -> npt.NDArray[np.bool_] | int:
    if not column.null_count:
        return 1
    valid: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _inside(column: pa.Array) -> Indices | None:
    """How many fields there are inside of each value. None: no such type."""
    kind = column.type
    if pa.types.is_struct(kind):
        found = np.zeros(len(column), np.int64)
        for values in column.flatten():  # with the struct's own nulls
            found += _valid(values)
            inside = _inside(values)
            if inside is not None:
                found += inside
        return found
    if pa.types.is_list(kind):
        inside = _inside(column.values)
        if inside is None:
            return None
        total = np.concatenate([np.zeros(1, np.int64), np.cumsum(inside)])
        offsets = column.offsets.to_numpy()
        sums: Indices = total[offsets[1:]] - total[offsets[:-1]]
        return sums
    return None
