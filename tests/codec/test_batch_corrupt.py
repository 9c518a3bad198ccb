"""The batch codec on bad input: what it refuses, and that refusing costs nothing."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from buffer.codec import batch
from buffer.codec.batch import decode_batch, decode_batch_arrow, encode_batch
from buffer.errors import CorruptBatch
from tests import fuzz
from tests.codec.batch_support import (
    BOTH,
    COMPRESSIONS,
    MIB,
    block_of,
    costs_nothing,
    footer,
    sample,
    skippable_frame,
    zstd_frame,
)

# ------------------------------------------------------------------------------------------------- bad batches


def corrupted(kind: str) -> Iterator[tuple[str, bytes]]:
    entries = sample(kind)
    count, block = len(entries), block_of(entries)
    yield "count too high", block + footer(0, count + 1)
    yield "count too low", block + footer(0, count - 1)
    yield "count of nothing", block + footer(0, 0)
    yield "trailing byte", block + b"\0" + footer(0, count)
    yield "trailing empty record", block + b"\0\0\0\0" + footer(0, count)
    yield "truncated by one", block[:-1] + footer(0, count)
    yield "first byte missing", block[1:] + footer(0, count)
    yield "length of 2^31", b"\0\0\0\x80" + block[4:] + footer(0, count)
    yield "length of 2^32-1", b"\xff\xff\xff\xff" + block[4:] + footer(0, count)
    yield "length of 2^31-1", b"\xff\xff\xff\x7f" + block[4:] + footer(0, count)
    yield "last length too high", block_of(entries[:-1]) + struct.pack("<I", 4) + b"abc" + footer(0, count)


@BOTH
@COMPRESSIONS
@pytest.mark.parametrize("kind", ["few", "small", "medium", "large"])
def test_should_refuse_records_that_do_not_fill_the_block(
    decode: Callable[[bytes], Any], compression: str, kind: str
) -> None:
    for what, data in corrupted(kind):
        if compression == "zstd":
            data = zstd_frame(data[:-7]) + b"\1" + data[-6:]
        with pytest.raises(CorruptBatch):
            pytest.fail(f"{what} was accepted: {decode(data)!r:.100}")


@BOTH
def test_should_refuse_every_truncation(decode: Callable[[bytes], Any]) -> None:
    entries = sample("few")
    for data in (encode_batch(entries), encode_batch(entries, "zstd")):
        for end in range(len(data)):
            with pytest.raises(CorruptBatch):
                decode(data[:end] + data[-7:] if end > 7 and end < len(data) - 7 else data[:end])


@BOTH
def test_should_name_version_and_compression_it_does_not_know(decode: Callable[[bytes], Any]) -> None:
    with pytest.raises(CorruptBatch, match="batch version 7 is not known; this reader knows 1") as caught:
        decode(footer(0, 0, version=7))
    assert caught.value.version == 7
    with pytest.raises(CorruptBatch, match="batch compression 2 is not known"):
        decode(footer(2, 0))
    with pytest.raises(CorruptBatch, match="footer of 7 bytes, but this has 3"):
        decode(b"\0\0\0")


@BOTH
def test_should_say_where_a_record_breaks(decode: Callable[[bytes], Any]) -> None:
    with pytest.raises(CorruptBatch, match="record 1 of 2 starts at byte 7 and runs past the end") as caught:
        decode(block_of([b"abc"]) + b"\xff\0\0\0xy" + footer(0, 2))
    assert caught.value.offset == 7
    assert pickle.loads(pickle.dumps(caught.value)).offset == 7
    with pytest.raises(CorruptBatch, match="end at byte 7, but the block goes on to 9") as caught:
        decode(block_of([b"abc"]) + b"xy" + footer(0, 1))
    assert caught.value.offset == 7


# ------------------------------------------------------------------------------------------------ zstd frames


@BOTH
@pytest.mark.parametrize("kind", ["few", "small", "large"])
def test_should_read_all_shapes_of_zstd(decode: Callable[[bytes], Any], kind: str) -> None:
    entries = sample(kind)
    block = block_of(entries)
    middle = len(block) // 2 + 1  # not at a record
    one, two = block[:middle], block[middle:]
    bodies = {
        "level 1": zstd_frame(block, level=1),
        "level 19": zstd_frame(block, level=19),
        "level -5": zstd_frame(block, level=-5),
        "checksum": zstd_frame(block, checksum=True),
        "no size": zstd_frame(block, size=False),
        "no size, checksum": zstd_frame(block, size=False, checksum=True),
        "two frames": zstd_frame(one) + zstd_frame(two),
        "two frames, one without size": zstd_frame(one) + zstd_frame(two, size=False),
        "empty frame between": zstd_frame(one) + zstd_frame(b"") + zstd_frame(two),
        "skippable first": skippable_frame(b"hello") + zstd_frame(block),
        "skippable last": zstd_frame(block) + skippable_frame(b""),
        "skippable everywhere, no sizes": skippable_frame(b"a")
        + zstd_frame(one, size=False)
        + skippable_frame(b"bc" * 100)
        + zstd_frame(two, size=False)
        + skippable_frame(b""),
    }
    for what, body in bodies.items():
        decoded = decode(body + footer(1, len(entries)))
        assert (decoded if isinstance(decoded, list) else decoded.to_pylist()) == entries, what


@BOTH
@pytest.mark.parametrize("kind", ["few", "small", "large"])
@pytest.mark.parametrize("size", [True, False])
def test_should_refuse_damaged_zstd(decode: Callable[[bytes], Any], kind: str, size: bool) -> None:
    entries = sample(kind)
    block = block_of(entries)
    body = zstd_frame(block, size=size, checksum=True)
    bodies = {
        "cut by one": body[:-1],
        "cut in half": body[: len(body) // 2],
        "cut after the header": body[:6],
        "cut in the magic": body[:3],
        "bad checksum": body[:-1] + bytes([body[-1] ^ 1]),
        "bad magic": b"\0" + body[1:],
        "garbage after": body + b"garbage",
        "half a frame after": body + body[:9],
        "garbage before": b"garbage" + body,
        "half a skippable frame after": body + skippable_frame(b"abc")[:-1],
        "dictionary wanted": body[:4] + bytes([body[4] | 1]) + body[5:6] + b"\x07" + body[6:],
        "reserved bit": body[:4] + bytes([body[4] | 8]) + body[5:],
        "frame twice": body + body,
        "nothing": b"",
    }
    for what, damaged in bodies.items():
        with pytest.raises(CorruptBatch):
            pytest.fail(f"{what} was accepted: {decode(damaged + footer(1, len(entries)))!r:.100}")


@BOTH
def test_should_find_a_damaged_frame_in_a_batch_of_no_entries(decode: Callable[[bytes], Any]) -> None:
    empty = zstd_frame(b"", checksum=True)
    assert len(decode(empty + footer(1, 0))) == 0
    assert len(decode(skippable_frame(b"x") + footer(1, 0))) == 0
    for body in (empty[:-1] + b"\0", zstd_frame(b"x"), zstd_frame(b"x", size=False), b""):
        with pytest.raises(CorruptBatch):
            decode(body + footer(1, 0))


# ------------------------------------------------------------------------------------------------------ limits


@BOTH
def test_should_spend_nothing_on_a_tiny_file_that_claims_all_records(decode: Callable[[bytes], Any]) -> None:
    for body in (b"\5\0\0\0hello", b"\0" * 9, b"", zstd_frame(b"\0" * 9)):
        for count in (0xFFFFFFFF, 0x80000000, 1 << 29):
            with costs_nothing(), pytest.raises(CorruptBatch, match=f"claims {count:,} records"):
                decode(body + footer(int(body[:1] == b"\x28"), count))


def bomb_frame(claims: int, *, blocks: int, size_each: int = 128 << 10) -> bytes:
    """A frame whose header claims a content size, and whose blocks are one byte repeated `size_each` times."""
    rle = b"".join(struct.pack("<I", size_each << 3 | 1 << 1 | (i == blocks - 1))[:3] + b"\0" for i in range(blocks))
    return struct.pack("<IBBQ", 0xFD2FB528, 0xC0, 0x88, claims) + rle


@BOTH
def test_should_refuse_a_frame_that_claims_more_than_its_blocks_can_hold(decode: Callable[[bytes], Any]) -> None:
    for claims in (1 << 29, 1 << 40, (1 << 64) - 1):
        with costs_nothing(), pytest.raises(CorruptBatch, match=f"claims {claims:,} bytes, but its blocks hold"):
            decode(bomb_frame(claims, blocks=1) + footer(1, 100))


@BOTH
def test_should_refuse_a_genuine_bomb_before_expanding_it(decode: Callable[[bytes], Any]) -> None:
    blocks = 9000  # 36 KB that become 1.1 GiB
    data = bomb_frame(blocks << 17, blocks=blocks) + footer(1, 100)
    with costs_nothing(), pytest.raises(CorruptBatch, match="max_batch_bytes is 1,073,741,824; raise it"):
        decode(data)


@BOTH
def test_should_stop_expanding_a_frame_of_unknown_size_at_the_limit(decode: Callable[[bytes], Any]) -> None:
    bomb = zstd_frame(b"\0" * (256 * MIB), size=False)
    assert len(bomb) < 16 << 10
    with costs_nothing(limit_bytes=16 * MIB), pytest.raises(CorruptBatch, match="more than 4,194,304"):
        decode(bomb + footer(1, 100), max_batch_bytes=4 * MIB)  # type: ignore[call-arg]  # both decoders have it


@BOTH
@pytest.mark.parametrize("size", [True, False])
def test_should_count_all_frames_together(decode: Callable[[bytes], Any], size: bool) -> None:
    entries = [b"x" * 996] * 3000
    block = block_of(entries)
    third = MIB - 3
    body = b"".join(zstd_frame(block[i : i + third], size=size) for i in range(0, len(block), third))
    limited: Any = decode
    assert len(limited(body + footer(1, 3000), max_batch_bytes=len(block))) == 3000
    with costs_nothing(limit_bytes=10 * MIB), pytest.raises(CorruptBatch, match="max_batch_bytes is 2,999,999"):
        limited(body + footer(1, 3000), max_batch_bytes=len(block) - 1)


@BOTH
def test_should_refuse_plain_blocks_above_the_limit(decode: Any) -> None:
    data = encode_batch([b"x" * 96])
    assert len(decode(data, max_batch_bytes=100)) == 1
    with pytest.raises(CorruptBatch, match="expands to 100 bytes, but max_batch_bytes is 99"):
        decode(data, max_batch_bytes=99)


def test_should_answer_with_large_offsets_beyond_two_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    # A real one would take 2 GiB of the test machine: the limit is moved instead.
    monkeypatch.setattr(batch, "_BINARY_BYTES_MAX", 1000)
    monkeypatch.setattr(batch, "PAGE_BYTES_MAX", 1000)
    for kind in ("small", "large"):
        for compression in ("none", "zstd"):
            data = encode_batch(sample(kind), compression)
            array = decode_batch_arrow(data)
            assert array.type == pa.large_binary()
            array.validate(full=True)
            assert array.to_pylist() == sample(kind) == decode_batch(data)


def test_should_survive_a_short_fuzz_run() -> None:
    """`make fuzz` is the long one."""
    outcomes = fuzz.run(seed=20_261, count=3000)
    assert min(outcomes[f"{kind} {verdict}"] for kind in fuzz.CHECKS for verdict in ("accepted", "refused")) > 50
