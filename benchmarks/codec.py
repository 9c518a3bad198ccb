"""How fast batches are encoded and decoded, beside the struct loop that a user would write.

    python -m benchmarks.codec [--mib 64] [--runs 5] [--sizes 16,100,1024,65536] [--compression none,zstd]

Each row is one operation on records of one size, 64 MiB in all. MB/s counts the records' bytes alone, without
lengths and footer. "x loop" is the plain loop's best time divided by this one's best time: runs are interleaved,
so both meet the same noise.

The loops make `bytes` objects and use `struct` as the documentation shows it. Two kinds of encoding loop are
timed, one that joins a list and one that extends a bytearray, and the faster one counts. For zstd they add
one call of the `zstandard` package. Records are cut from JSON-like text that zstd shrinks three to five
times; the ratio to the loop falls as compression takes its share, which is the same on both sides.

Encoding is timed to `bytes` (`encode_batch`) and to a view of Arrow's memory (`encode_batch_parts`), from a list and
from an Arrow array. From an array the loop has to make `bytes` objects first: "x loop" counts that, and the
column after it compares with the loop that was given a list.

"at most" is what no codec without machine code of its own can pass, measured beside it: the one call that gathers
the list's entries or copies the array's to memory that is used again, lengths not even written; or zstd alone.
Where that is below the target, the target is out of reach and marked so.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import zstandard

from buffer.codec.batch import decode_batch, decode_batch_arrow, encode_batch, encode_batch_parts

MIB = 1 << 20

SMALL_SIZES = (16, 100)
DECODE_ARROW_SMALL_X = 10.0
ENCODE_SMALL_X = 5.0
ANY_SIZE_X = 1.0


# ------------------------------------------------------------------------------------------ what a user writes


def loop_encode_join(entries: list[bytes], compression: str) -> bytes:
    parts = []
    for entry in entries:
        parts.append(struct.pack("<I", len(entry)))
        parts.append(entry)
    if compression == "zstd":
        parts = [zstandard.ZstdCompressor(level=3).compress(b"".join(parts))]
    parts.append(struct.pack("<BIH", compression == "zstd", len(entries), 1))
    return b"".join(parts)


def loop_encode_bytearray(entries: list[bytes], compression: str) -> bytes:
    out = bytearray()
    for entry in entries:
        out += struct.pack("<I", len(entry))
        out += entry
    if compression == "zstd":
        out = bytearray(zstandard.ZstdCompressor(level=3).compress(out))
    out += struct.pack("<BIH", compression == "zstd", len(entries), 1)
    return bytes(out)


def loop_decode(data: bytes) -> list[bytes]:
    compression, count, _version = struct.unpack("<BIH", data[-7:])
    block = zstandard.ZstdDecompressor().decompress(data[:-7]) if compression else data
    entries = []
    position = 0
    for _ in range(count):
        (length,) = struct.unpack_from("<I", block, position)
        position += 4
        entries.append(block[position : position + length])
        position += length
    return entries


# ------------------------------------------------------------------------------------------------- measuring


@dataclass
class Timing:
    name: str
    run: Callable[[], object]
    target_x: float | None = None
    floor: Callable[[], object] | None = None
    """What must be done at the least."""
    is_loop: bool = False
    floor_s: float = float("inf")
    best_s: float = float("inf")


def measure(timings: list[Timing], runs: int) -> None:
    """Best of several runs each, taken in turn. What a run made is freed outside its time."""
    for _ in range(runs):
        for timing in timings:
            timing.best_s = min(timing.best_s, seconds_of(timing.run))
            if timing.floor is not None:
                timing.floor_s = min(timing.floor_s, seconds_of(timing.floor))


def seconds_of(run: Callable[[], object]) -> float:
    gc.collect()
    started = time.perf_counter()
    result = run()
    seconds = time.perf_counter() - started
    del result
    return seconds


def copy_to_buffer(block: memoryview) -> pa.Buffer:
    """Into memory that Arrow reuses, with the cores that it uses."""
    out = pa.allocate_buffer(len(block))
    with pa.FixedSizeBufferWriter(out) as writer:
        writer.set_memcopy_threads(pa.cpu_count())
        writer.write(block)
    return out


def make_entries(size: int, total_bytes: int, rng: random.Random) -> list[bytes]:
    """Records of one size, cut from JSON-like text at random places."""
    users = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9))) for _ in range(2000)]
    text = bytearray()
    while len(text) < 8 * MIB:
        text += (
            f'{{"id":{rng.getrandbits(31)},"user":"{rng.choice(users)}","event":"{rng.choice(users[:20])}",'
            f'"ts":{1_700_000_000_000 + len(text)},"value":{rng.random() * 1000:.3f}}}\n'
        ).encode()
    source = bytes(text)
    cuts = (rng.randrange(len(source) - size) for _ in range(total_bytes // size))
    return [source[cut : cut + size] for cut in cuts]


def bench(size: int, compression: str, total_bytes: int, runs: int) -> tuple[float, list[list[Timing]]]:
    entries = make_entries(size, total_bytes, random.Random(size))
    values = pa.array(entries, pa.binary())
    data = encode_batch(entries, compression)
    assert loop_encode_join(entries, "none") == loop_encode_bytearray(entries, "none") == encode_batch(entries)
    assert loop_decode(data) == entries == decode_batch(data)
    assert decode_batch_arrow(data).equals(values)
    assert loop_decode(encode_batch(values, compression)) == entries

    block = memoryview(data)[:-7]
    if compression == "zstd":
        plain = encode_batch(entries)[:-7]
        gather = copy = partial(zstandard.ZstdCompressor(level=3).compress, plain)
        expand = partial(pa.decompress, block, len(plain), "zstd")
    else:
        gather = partial(pa.array, entries, pa.binary())
        copy = expand = partial(copy_to_buffer, block)

    encode_x = ENCODE_SMALL_X if size in SMALL_SIZES else ANY_SIZE_X
    decode_x = DECODE_ARROW_SMALL_X if size in SMALL_SIZES else ANY_SIZE_X
    from_list = [
        Timing("encode: loop, join", lambda: loop_encode_join(entries, compression), is_loop=True),
        Timing("encode: loop, bytearray", lambda: loop_encode_bytearray(entries, compression), is_loop=True),
        Timing("encode: list -> bytes", lambda: encode_batch(entries, compression), encode_x, gather),
        Timing("encode: list -> view", lambda: encode_batch_parts([entries], compression), encode_x, gather),
    ]
    from_arrow = [
        Timing("encode: loop, Arrow, join", lambda: loop_encode_join(values.to_pylist(), compression), is_loop=True),
        Timing(
            "encode: loop, Arrow, bytearray",
            lambda: loop_encode_bytearray(values.to_pylist(), compression),
            is_loop=True,
        ),
        Timing("encode: Arrow -> bytes", lambda: encode_batch(values, compression), encode_x, copy),
        Timing("encode: Arrow -> view", lambda: encode_batch_parts([values], compression), encode_x, copy),
    ]
    decoding = [
        Timing("decode: loop", lambda: loop_decode(data), is_loop=True),
        Timing("decode: -> list", lambda: decode_batch(data)),
        Timing("decode: -> Arrow", lambda: decode_batch_arrow(data), decode_x, expand),
    ]
    measure([*from_list, *from_arrow], runs)
    measure(decoding, runs)
    return len(data) / (size * len(entries)), [from_list, from_arrow, decoding]


def report(size: int, compression: str, total_bytes: int, groups: list[list[Timing]]) -> int:
    """Print one row for each timing, and return how many missed their target."""
    moved_mb = total_bytes // size * size / 1e6
    list_loop_s = fastest_loop_s(groups[0])
    missed = 0
    for group in groups:
        loop_s = fastest_loop_s(group)
        for timing in group:
            ratio = loop_s / timing.best_s
            target = verdict = beside_list = limit = ""
            if timing.target_x is not None:
                limit_x = loop_s / timing.floor_s
                limit, target = f"{limit_x:.1f}x", f"{timing.target_x:.0f}x"
                is_missed = ratio < timing.target_x
                verdict = "pass" if not is_missed else "MISS" if limit_x >= timing.target_x else "out of reach"
                missed += verdict == "MISS"
            if "Arrow ->" in timing.name:
                beside_list = f"{list_loop_s / timing.best_s:.2f}x"
            print(
                f"{size:>7,}  {compression:<5} {timing.name:<31} {moved_mb / timing.best_s:>7,.0f} {ratio:>8.2f}x "
                f"{beside_list:>12} {limit:>8} {target:>7}  {verdict}",
                flush=True,
            )
    return missed


def fastest_loop_s(group: list[Timing]) -> float:
    return min(timing.best_s for timing in group if timing.is_loop)


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of the batch codec beside a plain struct loop.")
    parser.add_argument("--mib", type=int, default=64, help="bytes of records in each batch, in MiB")
    parser.add_argument("--runs", type=int, default=5, help="runs of each operation; the best one counts")
    parser.add_argument("--sizes", default="16,100,1024,65536", help="record sizes in bytes")
    parser.add_argument("--compression", default="none,zstd")
    options = parser.parse_args()

    print(f"pyarrow {pa.__version__}, zstandard {zstandard.__version__}, {os.cpu_count()} cores")
    print(f"{options.mib} MiB of records in each batch, best of {options.runs} interleaved runs\n")
    columns = f"{'MB/s':>7} {'x loop':>9} {'x list loop':>12} {'at most':>8} {'target':>7}"
    print(f"{'bytes':>7}  {'codec':<5} {'operation':<31} {columns}")
    missed = 0
    for size in map(int, options.sizes.split(",")):
        for compression in options.compression.split(","):
            stored, groups = bench(size, compression, options.mib * MIB, options.runs)
            missed += report(size, compression, options.mib * MIB, groups)
            print(f"{'':>7}  {'':<5} stored bytes per record byte: {stored:.2f}\n")
    print(f"{missed} below a target within reach" if missed else "every target within reach is reached")


if __name__ == "__main__":
    main()
