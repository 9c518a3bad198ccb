"""What callers may pass as entries, brought into the two shapes that `buffer.batch` encodes.

A run is a list of few or large entries, which are cheapest to copy from where they are, or a Binary or LargeBinary
array without nulls. Runs are never empty. Nothing here works in Python per entry, but for large ones in a list.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from buffer.errors import InvalidInput

Entries: TypeAlias = "Sequence[bytes] | pa.Array | pa.ChunkedArray"
Run: TypeAlias = "list[bytes] | pa.BinaryArray | pa.LargeBinaryArray"

LENGTH_BYTES: Final = 4
LARGE_MEAN_BYTES: Final = 4 << 10
"""From this size on, a Python loop over an array's records costs less than the second copy it saves."""

_LARGE_LIST_MEAN_BYTES: Final = 512  # from a list an array has to be made first, so there the loop wins earlier
_FEW_ENTRIES: Final = 64  # these are written before an array is even made
ENTRY_BYTES_MAX: Final = (1 << 32) - 1
_SMALL_ARRAY_ROWS: Final = 4 << 10  # arrays below both are put together first: each run has a cost of its own
_SMALL_ARRAY_BYTES: Final = 1 << 20
_RUN_BYTES_MAX: Final = 1 << 30  # larger arrays are split: Parquet pages and 32-bit offsets end at 2 GiB


def runs(parts: Iterable[Entries]) -> Iterator[Run]:
    """All parts' entries, in order. Raises InvalidInput, naming the entry, for what is not bytes."""
    for is_arrow, group in itertools.groupby(parts, _is_arrow):
        if is_arrow:
            yield from _joined(chunk for part in group for chunk in _binary_chunks(part))
        else:
            lists = [_checked_sequence(part) for part in group]
            entries = lists[0] if len(lists) == 1 else list(itertools.chain.from_iterable(lists))
            yield from _list_runs(entries)


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


def _is_arrow(entries: Entries) -> bool:
    return isinstance(entries, pa.Array | pa.ChunkedArray)


def _checked_sequence(entries: Entries) -> Sequence[bytes]:
    if isinstance(entries, str | bytes | bytearray | memoryview):
        raise InvalidInput(f"entries is {type(entries).__name__}, one value; pass a list: [entry]")
    if not isinstance(entries, Sequence):
        raise InvalidInput(
            f"entries is {type(entries).__name__}; pass a list of bytes or an Arrow array of binary or string type"
        )
    return entries


def _list_runs(entries: Sequence[bytes]) -> Iterator[Run]:
    if not entries:
        return
    if (len(entries) <= _FEW_ENTRIES or _looks_large(entries)) and set(map(type, entries)) == {bytes}:
        longest = max(map(len, entries))
        if longest > ENTRY_BYTES_MAX:
            raise InvalidInput(f"an entry has {longest:,} bytes, the most is {ENTRY_BYTES_MAX:,}")
        yield entries if isinstance(entries, list) else list(entries)
        return
    try:
        converted = pa.array(entries, pa.binary())
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        _reject_entry(entries, error)
    yield from _binary_chunks(converted)  # beyond 2 GiB pyarrow answers with a chunked array


def _looks_large(entries: Sequence[bytes]) -> bool:
    """Judged by a few of them: looking at each would cost more than the choice can gain."""
    sample = entries[:: max(1, len(entries) // 16)]
    try:
        return sum(map(len, sample)) >= _LARGE_LIST_MEAN_BYTES * len(sample)
    except TypeError:
        return False  # something that is not bytes: the conversion finds it


def _reject_entry(entries: Sequence[object], cause: Exception) -> NoReturn:
    for index, entry in enumerate(entries):
        try:
            pa.array([entry], pa.binary())
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise InvalidInput(f"entry {index} is {type(entry).__name__}, it must be bytes") from cause
    raise InvalidInput(f"the entries cannot be read as bytes: {cause}") from cause


def _binary_chunks(entries: Any) -> Iterator[Any]:
    if entries.null_count:
        index = pc.index(pc.is_null(entries), True).as_py()
        raise InvalidInput(f"entry {index} is null, it must be bytes; use b'' or drop it")
    kind = entries.type
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        entries = _cast(entries)
    for chunk in entries.chunks if isinstance(entries, pa.ChunkedArray) else (entries,):
        if len(chunk):
            yield from _split(chunk)


def _split(values: Any) -> Iterator[Any]:
    """Halves until each can be handled at once; a single value may still be larger."""
    rows = len(values)
    if rows == 1 or block_bytes(values) <= _RUN_BYTES_MAX:
        yield values
    else:
        yield from _split(values[: rows // 2])
        yield from _split(values[rows // 2 :])


def _cast(entries: Any) -> Any:
    kind, types = entries.type, pa.types
    if types.is_string(kind) or types.is_fixed_size_binary(kind):
        return entries.cast(pa.binary())
    if types.is_large_string(kind) or types.is_binary_view(kind) or types.is_string_view(kind):
        # Views may share bytes, so together they can be more than 32-bit offsets reach.
        return entries.cast(pa.large_binary())
    if types.is_null(kind):
        return entries.cast(pa.binary())  # of no entries: a null would have been refused
    raise InvalidInput(f"an Arrow array of {kind} has no bytes to write; its type must be binary or string")


def _is_small(values: Any) -> bool:
    return len(values) < _SMALL_ARRAY_ROWS and block_bytes(values) < _SMALL_ARRAY_BYTES


def _joined(chunks: Iterable[Any]) -> Iterator[Any]:
    for (_, is_small), group in itertools.groupby(chunks, lambda chunk: (chunk.type, _is_small(chunk))):
        run = list(group)
        if is_small and len(run) > 1 and sum(map(block_bytes, run)) <= _RUN_BYTES_MAX:
            yield pa.concat_arrays(run)
        else:
            yield from run
