"""Zstandard frames: how large they become, and expanding them within a limit. Only `buffer.codec.batch` calls this.

A frame's header may tell its content size; the headers of its blocks bound what it can become, whatever the
frame's header claims. Both are read without expanding anything, so a small file cannot make us allocate for
a large lie. Whether the content is sound (its checksum too) is for the decoders to find.

    frame     = magic | descriptor u8 | [window u8] | [dictionary id] | [content size] | blocks | [checksum u32]
    block     = (is_last 1 bit | type 2 bits | size 21 bits) u24 | data
    skippable = magic | size u32 | data                                                     (RFC 8878)
"""

from __future__ import annotations

import io
import struct
from typing import Any, Final, NoReturn

import pyarrow as pa
import zstandard

from buffer.errors import CorruptBatch

LEVEL: Final = 3

_U32: Final = struct.Struct("<I")
_MAGIC: Final = 0xFD2FB528
_SKIPPABLE_MAGIC: Final = 0x184D2A50  # and the 15 after it
_DICTIONARY_ID_BYTES: Final = (0, 1, 2, 4)
_CONTENT_SIZE_BYTES: Final = (0, 2, 4, 8)
_BLOCK_BYTES_MAX: Final = 128 << 10
_RAW, _RLE, _COMPRESSED = 0, 1, 2
_READ_BYTES: Final = 1 << 20


def compress(block: Any) -> Any:
    """One frame with its content size, as a `pyarrow.Buffer`."""
    # A codec each time: it is cheap to make, and Arrow does not promise that threads may share one.
    return pa.Codec("zstd", compression_level=LEVEL).compress(block)


def content_bytes(frames: memoryview) -> tuple[int, bool]:
    """What all frames together say they expand to, and whether every one of them says so.

    Raises CorruptBatch if there is no frame, if the last one is cut short, or if one claims more than its
    blocks can hold.
    """
    if not frames:
        raise CorruptBatch("the batch is marked as zstd but holds no zstd frame", offset=0)
    total, all_known, position = 0, True, 0
    while position < len(frames):
        size, position = _frame(frames, position)
        if size is None:
            all_known = False
        else:
            total += size
    return total, all_known


def expand(frames: memoryview, size: int, *, asbytes: bool) -> Any:
    """Expand frames that become exactly `size` bytes. Raises CorruptBatch if they do not."""
    try:
        return pa.Codec("zstd").decompress(frames, decompressed_size=size, asbytes=asbytes)
    except (pa.ArrowException, OSError) as error:
        raise CorruptBatch(f"the batch's zstd frames are damaged: {error}") from error


def expand_bounded(frames: memoryview, limit: int) -> bytes | None:
    """Expand frames of any size. None as soon as they become more than `limit` bytes.

    The frames must have passed `content_bytes`: this does not notice a last frame that is cut short.
    """
    out = io.BytesIO()
    room = limit + 1
    try:
        with zstandard.ZstdDecompressor().stream_reader(frames, read_across_frames=True) as reader:
            while room and (piece := reader.read(min(room, _READ_BYTES))):
                room -= out.write(piece)
    except zstandard.ZstdError as error:
        raise CorruptBatch(f"the batch's zstd frames are damaged: {error}") from error
    return out.getvalue() if room else None


def _frame(frames: memoryview, start: int) -> tuple[int | None, int]:
    """The content size of the frame at `start` if it tells it, and where the frame ends."""
    end = len(frames)
    if start + 5 > end:
        _reject_truncated(start)
    (magic,) = _U32.unpack_from(frames, start)
    if magic & ~0xF == _SKIPPABLE_MAGIC:
        stop = start + 8
        if stop > end or (stop := stop + _U32.unpack_from(frames, start + 4)[0]) > end:
            _reject_truncated(start)
        return 0, stop
    if magic != _MAGIC:
        raise CorruptBatch(f"no zstd frame starts at byte {start:,} of the block", offset=start)
    descriptor = frames[start + 4]
    is_single_segment = bool(descriptor & 0x20)
    size_bytes = _CONTENT_SIZE_BYTES[descriptor >> 6] or int(is_single_segment)
    size_at = start + 5 + (not is_single_segment) + _DICTIONARY_ID_BYTES[descriptor & 3]
    blocks_at = size_at + size_bytes
    if blocks_at > end:
        _reject_truncated(start)
    bound, stop = _blocks(frames, start, blocks_at)
    if descriptor & 0x04:
        stop += 4  # the checksum
    if stop > end:
        _reject_truncated(start)
    if not size_bytes:
        return None, stop
    size = int.from_bytes(frames[size_at:blocks_at], "little") + (256 if size_bytes == 2 else 0)
    if size > bound:
        raise CorruptBatch(
            f"the zstd frame at byte {start:,} claims {size:,} bytes, but its blocks hold at most {bound:,}",
            offset=start,
        )
    return size, stop


def _blocks(frames: memoryview, frame_start: int, position: int) -> tuple[int, int]:
    """The most that the blocks at `position` can become, and where they end."""
    bound, end = 0, len(frames)
    while True:
        if position + 3 > end:
            _reject_truncated(frame_start)
        header = frames[position] | frames[position + 1] << 8 | frames[position + 2] << 16
        kind, size = header >> 1 & 3, header >> 3
        bound += size if kind in (_RAW, _RLE) else _BLOCK_BYTES_MAX
        position += 3 + (1 if kind == _RLE else size)
        if header & 1:
            return bound, position


def _reject_truncated(start: int) -> NoReturn:
    raise CorruptBatch(f"the zstd frame at byte {start:,} is cut short", offset=start)
