"""Entries as Arrow holds them, one binary array, looked at and cut without a copy. Used by formats and by `decode`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Indices = npt.NDArray[np.int64]


def as_binary(entries: pa.Array | pa.ChunkedArray) -> pa.BinaryArray:
    """The entries as one binary array with 32-bit offsets."""
    if isinstance(entries, pa.ChunkedArray):
        entries = entries.combine_chunks()
    return entries if entries.type == pa.binary() else entries.cast(pa.binary())


def offsets_of(entries: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """Where each entry begins in the values buffer, and at last where the last one ends. No copy."""
    if len(entries) == 0:
        return np.zeros(1, np.int32)
    return np.frombuffer(entries.buffers()[1], np.int32)[entries.offset : entries.offset + len(entries) + 1]


def bytes_of(entries: pa.BinaryArray) -> npt.NDArray[np.uint8]:
    """The bytes of all entries, one after the other. No copy."""
    values = entries.buffers()[2] if len(entries) else None
    if values is None:
        return np.zeros(0, np.uint8)
    offsets = offsets_of(entries)
    return np.frombuffer(values, np.uint8)[offsets[0] : offsets[-1]]


def chunks(
    entries: pa.BinaryArray, max_bytes: int, max_rows: int, extra: Indices | None = None
) -> Iterator[tuple[int, pa.BinaryArray]]:
    """Slices of at most so many bytes and entries (but at least one entry), with the index of their first.

    `extra`: bytes that each entry counts for besides its own.
    """
    offsets = offsets_of(entries).astype(np.int64)
    if extra is not None:
        offsets[1:] += np.cumsum(extra)
    start = 0
    while start < len(entries):
        fits = int(np.searchsorted(offsets, offsets[start] + max_bytes, side="right")) - 1
        end = min(max(fits, start + 1), start + max_rows, len(entries))
        yield start, entries.slice(start, end - start)
        start = end


def invalid_utf8(entries: pa.BinaryArray) -> list[tuple[int, str]]:
    """The entries that are not UTF-8, and what is wrong. One fast pass where all of them are."""
    if bytes_of(entries).max(initial=0) < 0x80:  # ASCII
        return []
    try:
        entries.cast(pa.string())
    except pa.ArrowInvalid:
        pass
    else:
        return []
    bad = []
    for index, entry in enumerate(entries):
        try:
            str(entry.as_buffer(), "utf-8")
        except UnicodeDecodeError as error:
            bad.append((index, f"not UTF-8: {error.reason} at byte {error.start}"))
    return bad
