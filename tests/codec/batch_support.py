"""Entries, frames and measures that the tests of the batch codec share."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pyarrow as pa
import pytest
import zstandard

from buffer.codec import batch
from buffer.codec.batch import decode_batch, decode_batch_arrow

MIB = 1 << 20
BOTH = pytest.mark.parametrize("decode", [decode_batch, decode_batch_arrow])
COMPRESSIONS = pytest.mark.parametrize("compression", ["none", "zstd"])


def block_of(entries: list[bytes]) -> bytes:
    """What the format says, the slow way."""
    return b"".join(struct.pack("<I", len(entry)) + entry for entry in entries)


def footer(code: int, count: int, version: int = 1) -> bytes:
    return struct.pack("<BIH", code, count, version)


def zstd_frame(content: bytes, *, level: int = 3, size: bool = True, checksum: bool = False) -> bytes:
    compressor = zstandard.ZstdCompressor(level=level, write_content_size=size, write_checksum=checksum)
    return compressor.compress(content)


def skippable_frame(content: bytes) -> bytes:
    return struct.pack("<II", 0x184D2A53, len(content)) + content


def sample(kind: str) -> list[bytes]:
    """Entries that take each road through the codec."""
    rng = random.Random(kind)
    count, low, high = {
        "none": (0, 0, 0),
        "few": (7, 0, 20),
        "small": (3000, 0, 40),
        "zero-length": (500, 0, 0),
        "medium": (900, 0, 1500),
        "large": (100, 3000, 12000),
        "many pages": (45_000, 10, 20),
    }[kind]
    return [rng.randbytes(rng.randint(low, high)) for _ in range(count)]


KINDS = pytest.mark.parametrize("kind", ["none", "few", "small", "zero-length", "medium", "large", "many pages"])


@contextmanager
def roads(loop_records_max: int, list_mean: int, arrow_mean: int) -> Iterator[None]:
    """Force one road: the thresholds change the time that coding takes, never its outcome."""
    before = batch._LOOP_RECORDS_MAX, batch._LIST_LOOP_MEAN_BYTES, batch.LARGE_MEAN_BYTES
    batch._LOOP_RECORDS_MAX, batch._LIST_LOOP_MEAN_BYTES, batch.LARGE_MEAN_BYTES = (  # type: ignore[misc]  # Final
        loop_records_max,
        list_mean,
        arrow_mean,
    )
    try:
        yield
    finally:
        batch._LOOP_RECORDS_MAX, batch._LIST_LOOP_MEAN_BYTES, batch.LARGE_MEAN_BYTES = before  # type: ignore[misc]  # Final


def always_pages() -> AbstractContextManager[None]:
    return roads(0, 1 << 40, 1 << 40)


def always_loops() -> AbstractContextManager[None]:
    return roads(1 << 40, 0, 0)


def traced_peak(work: Callable[[], object]) -> int:
    """Python's peak while at work, in bytes."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@contextmanager
def costs_nothing(limit_bytes: int = 4 * MIB) -> Iterator[None]:
    """Neither Python's nor Arrow's memory may have risen by more, not even for a moment."""
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit_bytes
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
    assert (pool.max_memory() or 0) < limit_bytes
