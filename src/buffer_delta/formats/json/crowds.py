"""Entries in pieces whose rows take a bounded number of cells (see `cells`), told from their bytes before parsing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from buffer_delta.formats.cells import DENSE, all_allowed_cells, element_cells, row_cells, rows_per_piece
from buffer_delta.formats.entries import Indices, chunks, offsets_of
from buffer_delta.formats.json.stray import counts_in

_BYTES_PER_CELL = 4  # that a cell counts for in a piece's bytes, of which there are 8 MiB


class Crowds:
    """What rows of some columns may take."""

    def __init__(self, columns: pa.Schema) -> None:
        self._row = max(1, row_cells(columns))
        self._element = max((element_cells(field.type) for field in columns), default=0)

    def pieces(self, entries: pa.BinaryArray, max_bytes: int, max_rows: int) -> Iterator[tuple[int, pa.BinaryArray]]:
        """As `Format.pieces`."""
        most = min(max_rows, rows_per_piece(self._row))
        if self._element <= DENSE:
            return chunks(entries, max_bytes, most)
        cells = np.minimum(self._needed(entries), _allowed(entries))
        return chunks(entries, max_bytes, most, cells * _BYTES_PER_CELL)

    def crowded(self, entries: pa.BinaryArray) -> Indices:
        """The entries whose arrays and maps may need more cells than they get."""
        if self._element <= DENSE:
            return np.zeros(0, np.int64)
        return np.flatnonzero(self._needed(entries) > _allowed(entries))

    def _needed(self, entries: pa.BinaryArray) -> Indices:
        return elements(entries) * self._element


def _allowed(entries: pa.BinaryArray) -> Indices:
    return all_allowed_cells(np.diff(offsets_of(entries)).astype(np.int64))


def elements(entries: pa.BinaryArray) -> Indices:
    """How many elements the arrays and maps of each entry have at most."""
    offsets = offsets_of(entries)
    values = entries.buffers()[2] if len(entries) else None
    if values is None:
        return np.zeros(len(entries), np.int64)
    region = np.frombuffer(values, np.uint8)[offsets[0] : offsets[-1]]
    begun = np.flatnonzero((region == 0x7B) | (region == 0x2C) | (region == 0x5B))  # { , [
    return counts_in(begun, offsets)
