"""Entries, brought into the two shapes that `buffer.codec.batch` encodes.

A run is a list of few or large entries, which are cheapest to copy from where they are, or a Binary or LargeBinary
array without nulls. Runs are never empty. Nothing here works in Python per entry, but for large ones in a list.

Entries are checked once, where they come in (`produce/intake.py`): here they are bytes. What an array is costs
nothing to look at, so that is asserted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

import pyarrow as pa

Entries: TypeAlias = "list[bytes] | pa.BinaryArray | pa.LargeBinaryArray"
Run: TypeAlias = Entries
"""… of at least one entry, and of a size that can be handled at once."""

LENGTH_BYTES: Final = 4
LARGE_MEAN_BYTES: Final = 4 << 10
"""From this size on, a Python loop over an array's records costs less than the second copy it saves."""

_LARGE_LIST_MEAN_BYTES: Final = 512  # from a list an array has to be made first, so there the loop wins earlier
_FEW_ENTRIES: Final = 64  # these are written before an array is even made
_SMALL_ARRAY_ROWS: Final = 4 << 10  # arrays below both are put together first: each run has a cost of its own
_SMALL_ARRAY_BYTES: Final = 1 << 20
_RUN_BYTES_MAX: Final = 1 << 30  # larger arrays are split: Parquet pages and 32-bit offsets end at 2 GiB


def runs(parts: Iterable[Entries]) -> Iterator[Run]:
    """All parts' entries, in order."""
    for is_list, group in itertools.groupby(parts, lambda part: isinstance(part, list)):
        if is_list:
            lists = list(group)
            yield from _list_runs(lists[0] if len(lists) == 1 else list(itertools.chain.from_iterable(lists)))
        else:
            yield from _joined(piece for array in group if len(array) for piece in _split(array))


def block_bytes(run: Run) -> int:
    """What the run's records take in a block, lengths included."""
    if isinstance(run, list):
        return sum(map(len, run)) + LENGTH_BYTES * len(run)
    offsets = array_offsets(run)
    payload: int = offsets[len(run)] - offsets[0]
    return payload + LENGTH_BYTES * len(run)


def array_offsets(values: Any) -> memoryview:
    """The offsets that belong to this array, which may be a slice: one more than it has values."""
    width = 8 if pa.types.is_large_binary(values.type) else 4
    whole = memoryview(values.buffers()[1]).cast("B")
    own = whole[values.offset * width : (values.offset + len(values) + 1) * width]
    return own.cast("q") if width == 8 else own.cast("i")


def _list_runs(entries: list[bytes]) -> Iterator[Run]:
    if not entries:
        return
    if len(entries) <= _FEW_ENTRIES or _looks_large(entries):
        yield entries
        return
    converted = pa.array(entries, pa.binary())  # beyond 2 GiB pyarrow answers with a chunked array
    for chunk in converted.chunks if isinstance(converted, pa.ChunkedArray) else (converted,):
        yield from _split(chunk)


def _looks_large(entries: list[bytes]) -> bool:
    """Judged by a few of them: looking at each would cost more than the choice can gain."""
    sample = entries[:: max(1, len(entries) // 16)]
    return sum(map(len, sample)) >= _LARGE_LIST_MEAN_BYTES * len(sample)


def _split(values: Any) -> Iterator[Any]:
    """Halves until each can be handled at once; a single value may still be larger."""
    assert pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type), values.type
    assert values.null_count == 0, "the entries were checked"
    rows = len(values)
    if rows == 1 or block_bytes(values) <= _RUN_BYTES_MAX:
        yield values
    else:
        yield from _split(values[: rows // 2])
        yield from _split(values[rows // 2 :])


def _is_small(values: Any) -> bool:
    return len(values) < _SMALL_ARRAY_ROWS and block_bytes(values) < _SMALL_ARRAY_BYTES


def _joined(chunks: Iterable[Any]) -> Iterator[Any]:
    for (_, is_small), group in itertools.groupby(chunks, lambda chunk: (chunk.type, _is_small(chunk))):
        run = list(group)
        if is_small and len(run) > 1 and sum(map(block_bytes, run)) <= _RUN_BYTES_MAX:
            yield pa.concat_arrays(run)
        else:
            yield from run
