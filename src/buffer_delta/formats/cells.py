"""How much room rows take, by their columns: in cells, one for each leaf of a row's type.

A row of a thousand columns takes a thousand cells even if its entry is `{}`, and so does every `{}` in an array of
objects with a thousand fields. So rows are made in pieces whose cells are bounded too, and an entry gets, for what
its arrays and maps hold, CELLS_MIN cells or CELLS_PER_BYTE for each of its bytes, whichever is more: what does not
fit in there is rescued. A cell takes up to 8 bytes, besides the text in it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from buffer_delta.formats.entries import Indices

CELLS_MIN = 1 << 16
CELLS_PER_BYTE = 4
CELLS_PER_PIECE = 1 << 21
BYTES_PER_CELL = 4  # that a cell counts for in a piece's bytes, of which there are 8 MiB
ELEMENT_BYTES_MIN = 3  # `{},`

DENSE = CELLS_PER_BYTE * ELEMENT_BYTES_MIN
"""Elements with no more leaves than this never take too many cells."""


def leaves(kind: pa.DataType) -> int:
    """The cells of one value, without the elements of lists and maps in it."""
    if pa.types.is_struct(kind):
        return sum(leaves(field.type) for field in kind)
    return 1


def row_cells(schema: pa.Schema) -> int:
    return sum(leaves(field.type) for field in schema)


def rows_per_piece(cells: int) -> int:
    """How many rows of so many cells are made at once."""
    return max(1, CELLS_PER_PIECE // max(1, cells))


def element_cells(kind: pa.DataType) -> int:
    """The cells of the largest element of any list or map inside. 0: there is none."""
    if pa.types.is_struct(kind):
        return max((element_cells(field.type) for field in kind), default=0)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        inner = kind.value_type if pa.types.is_list(kind) else kind.item_type
        return max(leaves(inner), element_cells(inner))
    return 0


def all_element_cells(entry_bytes: Indices, element: int) -> Indices:
    """What entries of these sizes take at most for elements of so many cells, of which each takes at least a byte."""
    if element <= DENSE:
        return np.zeros(len(entry_bytes), np.int64)
    return np.minimum(all_allowed_cells(entry_bytes), element * entry_bytes)


def allowed_cells(entry_bytes: int) -> int:
    return max(CELLS_MIN, CELLS_PER_BYTE * entry_bytes)


def all_allowed_cells(entry_bytes: Indices) -> Indices:
    return np.maximum(CELLS_MIN, CELLS_PER_BYTE * entry_bytes)
