"""A record block is a Parquet page: this module lets Arrow's C++ code read and write one.

Parquet's PLAIN encoding of a BYTE_ARRAY column is `len u32 | bytes`, repeated: byte for byte a record block.

- `read_page` puts a page header in front of a block and file metadata behind it, and Arrow's Parquet reader
  takes the whole for a file with one required column. Only these few dozen bytes are Thrift, and all of them
  are written here; the block is the one thing that comes from outside, and the reader checks every length in it
  against the bytes that are left.
- `write_pages` lets Arrow's Parquet writer encode a column and keeps only its pages.

Only `buffer.codec.batch` calls this, and it checks the outcome: the reader ignores bytes after the last record.
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from buffer.codec.entries import LENGTH_BYTES, array_offsets, block_bytes

PAGE_BYTES_MAX: Final = (1 << 31) - 1
"""Page sizes are i32 in Parquet."""

PAGE_ROWS_MAX: Final = 20_000
"""After this many rows Arrow's writer starts a new page, and not every version can be told not to."""

_WRITE_PAGE_BYTES: Final = 512 << 10
"""Small enough that a page is still in the processor's cache when it is copied to its place."""

_UNCOMPRESSED: Final = 0
_ZSTD: Final = 6

_COPY_THREADS_MAX: Final = 4  # one core cannot saturate the memory; more than a few gain nothing

_SCHEMA: Final = {
    large: pa.schema([pa.field("v", pa.large_binary() if large else pa.binary(), nullable=False)])
    for large in (False, True)
}


def read_page(block: memoryview, *, size: int, count: int, zstd: bool = False) -> Any:
    """Decode the first `count` records of a block to a `pyarrow.BinaryArray`.

    `block` is the block itself, or its zstd frames, which must expand to exactly `size` bytes.
    Raises `OSError` or `pyarrow.ArrowException` if it holds fewer. More is not noticed: compare the sizes.
    """
    assert count > 0
    assert size <= PAGE_BYTES_MAX
    header = _page_header(size, len(block), count)
    file = _join(
        (
            b"PAR1" + header,
            block,
            _file_tail(
                codec=_ZSTD if zstd else _UNCOMPRESSED,
                raw_bytes=size + len(header),
                stored_bytes=len(block) + len(header),
                count=count,
            ),
        )
    )
    # Read-ahead would only copy what is in memory already, and there is one column to read.
    column = pq.ParquetFile(pa.BufferReader(file), pre_buffer=False).read(use_threads=False).column(0)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _join(pieces: Sequence[bytes | memoryview]) -> Any:
    """One Arrow buffer. Unlike `bytes.join` it copies with several cores, into memory Arrow keeps for reuse."""
    out = pa.allocate_buffer(sum(len(piece) for piece in pieces))
    with pa.FixedSizeBufferWriter(out) as writer:
        writer.set_memcopy_threads(min(_COPY_THREADS_MAX, pa.cpu_count()))
        for piece in pieces:
            writer.write(piece)
    return out


# Thrift's compact protocol: a field is one byte (step from the previous field id << 4 | type), then its value.
# Integers are zigzag varints; the ones here are never negative.


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _int(value: int) -> bytes:
    return _varint(value << 1)


def _page_header(raw_bytes: int, stored_bytes: int, count: int) -> bytes:
    return b"".join(
        (
            b"\x15" + _int(0),  # 1 type: data page
            b"\x15" + _int(raw_bytes),  # 2 uncompressed_page_size
            b"\x15" + _int(stored_bytes),  # 3 compressed_page_size
            b"\x2c",  # 5 data_page_header
            b"\x15" + _int(count),  # . 1 num_values
            b"\x15" + _int(0),  # . 2 encoding: PLAIN
            b"\x15" + _int(3),  # . 3 definition_level_encoding: RLE, though a required column has none
            b"\x15" + _int(3),  # . 4 repetition_level_encoding: likewise
            b"\x00\x00",
        )
    )


def _file_tail(*, codec: int, raw_bytes: int, stored_bytes: int, count: int) -> bytes:
    """FileMetaData of one row group with one column chunk at offset 4, its length, the closing magic."""
    metadata = b"".join(
        (
            b"\x15" + _int(1),  # 1 version
            b"\x19\x2c",  # 2 schema: 2 elements
            b"\x48\x01r" + b"\x15" + _int(1) + b"\x00",  # . root: 4 name, 5 num_children
            b"\x15" + _int(6),  # . leaf: 1 type BYTE_ARRAY
            b"\x25" + _int(0),  # .       3 repetition_type: required
            b"\x18\x01v\x00",  # .       4 name
            b"\x16" + _int(count),  # 3 num_rows
            b"\x19\x1c",  # 4 row_groups: 1
            b"\x19\x1c",  # . 1 columns: 1
            b"\x26" + _int(0),  # . . 2 file_offset: unused
            b"\x1c",  # . . 3 meta_data
            b"\x15" + _int(6),  # . . . 1 type BYTE_ARRAY
            b"\x19\x15" + _int(0),  # . . . 2 encodings: PLAIN
            b"\x19\x18\x01v",  # . . . 3 path_in_schema
            b"\x15" + _int(codec),  # . . . 4 codec
            b"\x16" + _int(count),  # . . . 5 num_values
            b"\x16" + _int(raw_bytes),  # . . . 6 total_uncompressed_size, page header included
            b"\x16" + _int(stored_bytes),  # . . . 7 total_compressed_size, likewise
            b"\x26" + _int(4),  # . . . 9 data_page_offset
            b"\x00\x00",
            b"\x16" + _int(raw_bytes),  # . 2 total_byte_size
            b"\x16" + _int(count),  # . 3 num_rows
            b"\x00\x00",
        )
    )
    return metadata + struct.pack("<I", len(metadata)) + b"PAR1"


def can_write_pages(array: Any) -> bool:
    """Whether `write_pages` can do it: no page becomes too large, and this Arrow's writer works as expected."""
    return block_bytes(array) <= PAGE_BYTES_MAX and _writer_works()


def write_pages(array: Any, emit: Callable[[bytes], object]) -> None:
    """Emit the record block of a Binary or LargeBinary array without nulls, piece by piece."""
    rows = len(array)
    step = max(1, min(rows, PAGE_ROWS_MAX, _WRITE_PAGE_BYTES * rows // block_bytes(array)))
    offsets = array_offsets(array)
    sizes = [
        offsets[stop] - offsets[start] + LENGTH_BYTES * (stop - start)
        for start, stop in itertools.pairwise((*range(0, rows, step), rows))
    ]
    _write_pages(array, step, sizes, emit)


def _write_pages(array: Any, step: int, sizes: list[int], emit: Callable[[bytes], object]) -> None:
    schema = _SCHEMA[pa.types.is_large_binary(array.type)]
    sink = _PageSink(sizes, emit)
    with pq.ParquetWriter(
        pa.PythonFile(sink, mode="w"),
        schema,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        store_schema=False,
        data_page_version="1.0",
        data_page_size=PAGE_BYTES_MAX,
        write_batch_size=step,  # the writer ends a page only between batches, and grows its buffer once per batch
    ) as writer:
        writer.write_table(pa.Table.from_arrays([array], schema=schema), row_group_size=step)
    sink.check_complete()


@functools.cache
def _writer_works() -> bool:
    """Whether this Arrow's writer makes the calls `_PageSink` relies on. Tried once, on a small array."""
    array = pa.array([b"", b"a", b"bc", b"def"], pa.binary())
    pieces: list[bytes] = []
    try:
        _write_pages(array, 3, [15, 7], pieces.append)
    except _UnexpectedWrite:
        return False
    return pieces == [b"\0\0\0\0\1\0\0\0a\2\0\0\0bc", b"\3\0\0\0def"]


class _UnexpectedWrite(RuntimeError):
    """Arrow's Parquet writer wrote something else than one page per row group."""


class _PageSink:
    """The file that a Parquet writer writes to: it passes the pages on and drops the rest.

    The writer makes one call for the magic, two for each row group (page header, page), then some for the
    file metadata. Every page's size is known beforehand, and checked.
    """

    closed = False

    def __init__(self, sizes: Sequence[int], emit: Callable[[bytes], object]) -> None:
        self._sizes = sizes
        self._emit = emit
        self._calls = 0
        self._pages = 0
        self._position = 0

    def write(self, data: bytes) -> int:
        is_page = self._calls > 0 and self._calls % 2 == 0 and self._pages < len(self._sizes)
        self._calls += 1
        self._position += len(data)
        if is_page:
            if len(data) != self._sizes[self._pages]:
                raise _UnexpectedWrite(f"page {self._pages} has {len(data)} bytes, not {self._sizes[self._pages]}")
            self._pages += 1
            self._emit(data)
        return len(data)

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        self.closed = True

    def check_complete(self) -> None:
        if self._pages != len(self._sizes):
            raise _UnexpectedWrite(f"{self._pages} pages came, not {len(self._sizes)}")
