"""Batch bytes <-> entries. Pure; called by the producer, by fetches and by the command line.

    batch  = record block | footer
    block  = (length u32 | bytes) repeated, as it is or compressed as one unit
    footer = compression u8 (0 none, 1 zstd) | record_count u32 | version u16 = 1        little-endian, 7 bytes

Writing: zstd is level 3, one frame, content size set. Reading is strict, and bounded before memory is spent:

- the records must fill the block exactly: a count too high or too low, a truncated record and trailing bytes
  are all `CorruptBatch`;
- a block takes at most `max_batch_bytes`. The zstd frames' own headers tell its size before a byte is expanded;
  where they do not, expansion stops at the limit. A count is believed only if 4 bytes per record fit the block.

Blocks of many small records go through Arrow's Parquet code (`parquet_page.py`), the others through a loop here.
The thresholds are measured (`benchmarks/codec.py`), and nothing but the time depends on them.
"""

from __future__ import annotations

import itertools
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias

import pyarrow as pa

from buffer.codec import zstd_frames as _zstd_frames
from buffer.codec.entries import LARGE_MEAN_BYTES, Entries, Run, array_offsets, block_bytes, runs
from buffer.codec.parquet_page import PAGE_BYTES_MAX, can_write_pages, read_page, write_pages
from buffer.errors import BatchTooLarge, CorruptBatch

VERSION: Final = 1
COMPRESSIONS: Final = ("none", "zstd")  # the position is the code in the footer
MAX_BATCH_BYTES: Final = 1 << 30
"""What a block may take when nothing else is said."""

Data: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"

_FOOTER: Final = struct.Struct("<BIH")
FOOTER_BYTES: Final = _FOOTER.size
assert FOOTER_BYTES == 7
_LENGTH: Final = struct.Struct("<I")

_LOOP_RECORDS_MAX = 64  # these are done in Python before a Parquet reader or writer is even set up
_JOIN_BYTES = 256 << 10  # list entries are joined by as much as stays in the processor's cache
_LIST_LOOP_MEAN_BYTES = 384  # a list needs a copy per record anyway, so there the loop wins earlier
_BINARY_BYTES_MAX = (1 << 31) - 1  # what 32-bit Arrow offsets can address


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """What a batch's footer says."""

    compression: str
    record_count: int
    version: int


def batch_info(data: Data) -> BatchInfo:
    """Read the footer alone. `data` is a batch or just its last 7 bytes; the records are not looked at."""
    view = memoryview(data).cast("B")
    if len(view) < _FOOTER.size:
        raise CorruptBatch(f"a batch ends with a footer of {_FOOTER.size} bytes, but this has {len(view)} in all")
    code, count, version = _FOOTER.unpack_from(view, len(view) - _FOOTER.size)
    if version != VERSION:
        raise CorruptBatch(f"batch version {version} is not known; this reader knows {VERSION}", version=version)
    if code >= len(COMPRESSIONS):
        raise CorruptBatch(f"batch compression {code} is not known; this reader knows 0 (none) and 1 (zstd)")
    return BatchInfo(COMPRESSIONS[code], count, version)


# ---------------------------------------------------------------------------------------------------- encoding


def encode_batch(entries: Entries, compression: str = "none") -> bytes:
    """One batch of these entries, in order; no entries is a valid batch too. See `encode_batch_parts`."""
    return bytes(encode_batch_parts([entries], compression))


def encode_batch_parts(parts: Iterable[Entries], compression: str = "none") -> memoryview:
    """One batch of all parts' entries, in order. A part is a list of bytes, or a Binary or LargeBinary array without
    nulls: the caller has checked that, and that all of it fits a batch.

    Lies in Arrow's memory, which is used again, where `bytes` of this size come from the kernel anew each time, page
    by page. Files and object stores take a view as they take `bytes`.
    """
    assert compression in COMPRESSIONS, compression
    planned = list(runs(parts))
    footer = _FOOTER.pack(COMPRESSIONS.index(compression), sum(map(len, planned)), VERSION)
    if compression == "zstd":
        return memoryview(b"".join((_zstd_frames.compress(_block(planned)), footer)))
    return memoryview(_block(planned, footer)).cast("B").toreadonly()


def _block(planned: list[Run], tail: bytes = b"") -> Any:
    """The record block in Arrow's memory, with `tail` behind it."""
    out = pa.allocate_buffer(sum(map(block_bytes, planned)) + len(tail))
    with pa.FixedSizeBufferWriter(out) as writer:
        for run in planned:
            _emit(run, writer.write)
        writer.write(tail)
        assert writer.tell() == out.size
    return out


def _suits_pages(run: Run) -> bool:
    if isinstance(run, list) or len(run) <= _LOOP_RECORDS_MAX:
        return False
    return block_bytes(run) < (LARGE_MEAN_BYTES + _LENGTH.size) * len(run) and can_write_pages(run)


def _emit(run: Run, emit: Callable[[Any], object]) -> None:
    """Pass the run's record block on, piece by piece."""
    if _suits_pages(run):
        write_pages(run, emit)
        return
    step = max(1, _JOIN_BYTES * len(run) // block_bytes(run))
    for start in range(0, len(run), step):
        pieces = _pieces(run[start : start + step])
        if step > 1:
            emit(b"".join(pieces))  # while it is in the cache; fewer, larger writes
        else:
            for piece in pieces:
                emit(piece)


def _pieces(run: Run) -> list[Any]:
    """Length, record, length, record, …"""
    if isinstance(run, list):
        records: Sequence[Any] = run
    else:
        payload = memoryview(run.buffers()[2] or b"").cast("B")
        records = [payload[start:stop] for start, stop in itertools.pairwise(array_offsets(run))]
    pieces = [b""] * (2 * len(records))
    pieces[::2] = map(_LENGTH.pack, map(len, records))
    pieces[1::2] = records
    return pieces


# ---------------------------------------------------------------------------------------------------- decoding


def decode_batch(data: Data, max_batch_bytes: int = MAX_BATCH_BYTES) -> list[bytes]:
    """The entries as `bytes`. Raises CorruptBatch; the module says what is refused.

    Every entry becomes a Python object of its own, which for short ones takes several times their bytes.
    """
    body = _open(data, max_batch_bytes)
    if body.suits_a_page(_LIST_LOOP_MEAN_BYTES):
        entries: list[bytes] = body.read_as_page().to_pylist()
        return entries
    return list(_records(body.bytes_that_start_with_block(), body.block_bytes, body.count))


def decode_batch_arrow(data: Data, max_batch_bytes: int = MAX_BATCH_BYTES) -> pa.BinaryArray:
    """The entries as one Arrow array, with no Python object per entry. Raises CorruptBatch.

    A block of more than 2 GiB, which a raised `max_batch_bytes` allows, comes as a LargeBinaryArray: 32-bit
    offsets cannot address it.
    """
    body = _open(data, max_batch_bytes)
    if body.suits_a_page(LARGE_MEAN_BYTES):
        return body.read_as_page()
    block, end, count = body.block(), body.block_bytes, body.count
    is_large = end > _BINARY_BYTES_MAX
    # Lengths first, which finds whatever is wrong before anything is allocated for the records.
    lengths = map(len, _records(block, end, count))
    offsets = array("q" if is_large else "i", itertools.accumulate(lengths, initial=0))
    payload = pa.allocate_buffer(offsets[-1])
    target = memoryview(payload).cast("B")
    for lengths_before, (start, stop) in enumerate(itertools.pairwise(offsets), 1):
        shift = lengths_before * _LENGTH.size
        target[start:stop] = block[start + shift : stop + shift]
    kind = pa.large_binary() if is_large else pa.binary()
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets), payload], null_count=0)


def expanded_bytes(data: Data, max_batch_bytes: int = MAX_BATCH_BYTES) -> int:
    """What the block takes once it is expanded, told without expanding it. Raises CorruptBatch.

    Never more than `max_batch_bytes`, which nothing expands past; that too where zstd frames do not tell.
    """
    stored = memoryview(data).cast("B")[: -_FOOTER.size]
    if batch_info(data).compression != "zstd":
        return min(len(stored), max_batch_bytes)
    size, all_known = _zstd_frames.content_bytes(stored)
    return min(size, max_batch_bytes) if all_known else max_batch_bytes


@dataclass(frozen=True, slots=True)
class _Body:
    """A batch without its footer, checked as far as it can be without looking at the records."""

    data: Any
    """Something that starts with `stored`: the caller's own object, if nothing had to be expanded."""
    stored: memoryview
    is_zstd: bool
    """Whether `stored` is zstd frames, which expand to `block_bytes`; else it is the block."""
    block_bytes: int
    count: int

    def suits_a_page(self, loop_mean_bytes: int) -> bool:
        return (
            self.count > _LOOP_RECORDS_MAX
            and self.block_bytes < (loop_mean_bytes + _LENGTH.size) * self.count
            and self.block_bytes <= PAGE_BYTES_MAX
        )

    def read_as_page(self) -> Any:
        try:
            values = read_page(self.stored, size=self.block_bytes, count=self.count, zstd=self.is_zstd)
        except (pa.ArrowException, OSError) as error:
            raise CorruptBatch(
                f"the block of {self.block_bytes:,} bytes is damaged, or does not hold the {self.count:,} records "
                f"that the footer claims: {error}"
            ) from error
        records_bytes = block_bytes(values)
        if len(values) != self.count or records_bytes != self.block_bytes:
            _reject_trailing(self.count, records_bytes, self.block_bytes)
        return values

    def block(self) -> memoryview:
        if not self.is_zstd:
            return self.stored
        return memoryview(_zstd_frames.expand(self.stored, self.block_bytes, asbytes=False)).cast("B")

    def bytes_that_start_with_block(self) -> bytes:
        """Slicing `bytes` makes the entries with one copy, slicing anything else with two steps each."""
        if self.is_zstd:
            expanded: bytes = _zstd_frames.expand(self.stored, self.block_bytes, asbytes=True)
            return expanded
        return self.data if isinstance(self.data, bytes) else self.stored.tobytes()


def _open(data: Data, max_batch_bytes: int) -> _Body:
    """Check the footer and the sizes. Expands only zstd frames that do not say how large they become."""
    info = batch_info(data)
    stored = memoryview(data).cast("B")[: -_FOOTER.size]
    size, is_zstd = len(stored), False
    if info.compression == "zstd":
        size, is_zstd = _zstd_frames.content_bytes(stored)
        if not is_zstd and size <= max_batch_bytes:
            expanded = _zstd_frames.expand_bounded(stored, max_batch_bytes)
            if expanded is None:
                _reject_size(f"more than {max_batch_bytes:,}", max_batch_bytes)
            data, stored, size = expanded, memoryview(expanded), len(expanded)
    if size > max_batch_bytes:
        _reject_size(f"{size:,}", max_batch_bytes)
    if info.record_count * _LENGTH.size > size:
        raise CorruptBatch(
            f"the footer claims {info.record_count:,} records, which need {info.record_count * _LENGTH.size:,} "
            f"bytes for their lengths alone, but the block has {size:,}"
        )
    return _Body(data, stored, is_zstd, size, info.record_count)


def _records(block: bytes | memoryview, end: int, count: int) -> Iterator[Any]:
    """Slices of the block, one per record. Raises CorruptBatch unless the records end at `end` exactly.

    `block` may go on after `end`; a length read from there leads past `end` all the same.
    """
    unpack, stop = _LENGTH.unpack_from, 0
    for index in range(count):
        start = stop + 4
        try:
            stop = start + unpack(block, stop)[0]
        except struct.error:
            _reject_record(index, count, stop, end)
        if stop > end:
            _reject_record(index, count, start - 4, end)
        yield block[start:stop]
    if stop != end:
        _reject_trailing(count, stop, end)


def _reject_record(index: int, count: int, offset: int, end: int) -> NoReturn:
    raise CorruptBatch(
        f"record {index} of {count:,} starts at byte {offset:,} and runs past the end of the block at {end:,}",
        offset=offset,
    )


def _reject_trailing(count: int, records_bytes: int, size: int) -> NoReturn:
    raise CorruptBatch(
        f"the {count:,} records that the footer claims end at byte {records_bytes:,}, but the block goes on to "
        f"{size:,}",
        offset=records_bytes,
    )


def _reject_size(size: str, max_batch_bytes: int) -> NoReturn:
    raise BatchTooLarge(
        f"the batch expands to {size} bytes, but max_batch_bytes is {max_batch_bytes:,}; raise it if the batch "
        f"is genuine"
    )
