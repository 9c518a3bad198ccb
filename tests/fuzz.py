"""Feed mutated inputs to every decoder: `python -m tests.fuzz [--seed N] [--start N] [--count N]`.

Inputs come from the golden files and from batches made here, by mutations that know the formats: footers,
lengths, truncations, spliced zstd frames, bit flips. Each input must end in a value or in the decoder's own
error, and memory must stay bounded; how much it grew and the longest time are printed for each kind. On a
batch, `decode_batch` and `decode_batch_arrow` must agree, whichever
road through the codec they take: the thresholds are moved so that tiny inputs meet Arrow's Parquet reader.
Records, streams and schemas for the formats: see `tests.fuzz_formats` and `tests.fuzz_binary`; ledgers, locations and
whole queues: `tests.fuzz_queues`. A loader over whole queues is a program of its own, `tests.fuzz_loader`.

An input depends on the seed and on its number alone, so a failure is repeated with the seed, `--start` at its
number and a count of 1. (But for the ULIDs in a whole queue, which are new each time.)
"""

# ruff: noqa: T201  (a program of its own: it prints what it found)

from __future__ import annotations

import argparse
import base64
import faulthandler
import logging
import random
import resource
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import zstandard

from buffer.codec.batch import decode_batch, decode_batch_arrow, encode_batch
from buffer.errors import CorruptBatch, CorruptManifest
from buffer.manifest import Manifest
from tests.codec.batch_support import always_loops, always_pages, skippable_frame
from tests.fuzz_binary import BINARY_CHECKS, BINARY_CORPUS, BINARY_TOKENS
from tests.fuzz_formats import FORMAT_CHECKS, FORMAT_CORPUS, FORMAT_TOKENS, record, splice
from tests.fuzz_queues import LEDGER_TOKENS, LOCATION_TOKENS, LOCATIONS, QUEUE_CHECKS, ledgers, queues

GOLDEN = Path(__file__).parent / "golden"
COUNT = 1_000_000
MIB = 1 << 20
MAX_BATCH_BYTES = 8 * MIB
"""What a hostile input may make the decoders spend; the process may grow by a few times this, and no more."""
GROWTH_MAX_BYTES = 128 * MIB
INPUT_BYTES_MAX = 1 * MIB
SECONDS_MAX = 10  # of the processor, for one input; the worst take a tenth of a second
WARM_UP = 1000  # by then everything is loaded that will be
PROGRESS = 20_000

INTERESTING_U32 = (0, 1, 3, 4, 5, 7, 127, 255, 256, 65535, 1 << 20, (1 << 29) - 1, (1 << 31) - 5, (1 << 31) - 1)
INTERESTING_U32 += (1 << 31, (1 << 32) - 5, (1 << 32) - 1)

Mutation = Callable[[random.Random, bytes], bytes]


# ------------------------------------------------------------------------------------------- general mutations


def flip_bits(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        if out:
            out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def set_bytes(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    at, length = _span(rng, len(out), 8)
    out[at : at + length] = rng.choice((rng.randbytes(length), b"\0" * length, b"\xff" * length))
    return bytes(out)


def set_u32(rng: random.Random, data: bytes) -> bytes:
    """Somewhere, an interesting number, or the one that is there moved a little."""
    if len(data) < 4:
        return data + b"\0"
    at = rng.randrange(len(data) - 3)
    old = int.from_bytes(data[at : at + 4], "little")
    new = rng.choice((*INTERESTING_U32, old + 1, old - 1, old + 4, old << 8))
    return data[:at] + struct.pack("<I", new & 0xFFFFFFFF) + data[at + 4 :]


def cut(rng: random.Random, data: bytes) -> bytes:
    at, length = _span(rng, len(data), 40)
    return rng.choice((data[:at], data[at:], data[:at] + data[at + length :]))


def insert(rng: random.Random, data: bytes) -> bytes:
    at, length = _span(rng, len(data), 12)
    piece = rng.choice((rng.randbytes(length), b"\0" * length, data[at : at + length] * rng.randrange(1, 4)))
    return data[:at] + piece + data[at:]


def noise(rng: random.Random, _: bytes) -> bytes:
    return rng.randbytes(rng.randrange(64))


def _span(rng: random.Random, size: int, length_max: int) -> tuple[int, int]:
    # Both ends matter most: headers are in front, footers behind.
    at = rng.choice((0, max(0, size - rng.randrange(1, 40)), rng.randrange(size + 1)))
    return min(at, size), rng.randrange(length_max + 1)


GENERAL: tuple[Mutation, ...] = (flip_bits, flip_bits, set_bytes, set_u32, set_u32, cut, insert, noise)


# --------------------------------------------------------------------------------------------- batch mutations


def batch_footer(rng: random.Random, data: bytes) -> bytes:
    body = data[:-7]
    count = int.from_bytes(data[-6:-2], "little")
    code = rng.choice((0, 0, 1, 1, 2, 255))
    count = rng.choice((*INTERESTING_U32, count, count, count + 1, count - 1, len(body) // 4)) & 0xFFFFFFFF
    return body + struct.pack("<BIH", code, count, rng.choice((1, 1, 1, 1, 0, 2, 256)))


def batch_other_compression(rng: random.Random, data: bytes) -> bytes:
    """The same footer over frames of another shape, or over the frames' content."""
    body, tail = data[:-7], data[-6:]
    block = body
    try:
        if data[-7:-6] == b"\1":
            block = zstandard.ZstdDecompressor().stream_reader(body).read(MIB)
    except zstandard.ZstdError:
        pass  # damaged by an earlier mutation: the frames are the block then
    if rng.randrange(4) == 0:
        return block + b"\0" + tail
    return frames(rng, mutate(rng, block, GENERAL) if rng.randrange(3) == 0 else block) + b"\1" + tail


def frames(rng: random.Random, block: bytes) -> bytes:
    """Zstd frames of any legal shape that together hold the block."""
    cuts = sorted(rng.randrange(len(block) + 1) for _ in range(rng.choice((0, 0, 1, 3))))
    out = []
    for start, stop in zip((0, *cuts), (*cuts, len(block)), strict=True):
        if rng.randrange(4) == 0:
            out.append(skippable_frame(rng.randbytes(rng.randrange(9))))
        compressor = zstandard.ZstdCompressor(
            level=rng.choice((-3, 1, 3, 9)),
            write_content_size=rng.randrange(3) > 0,
            write_checksum=rng.randrange(2) > 0,
        )
        out.append(compressor.compress(block[start:stop]))
    return b"".join(out)


def batch_frames_spliced(rng: random.Random, data: bytes) -> bytes:
    """Frames repeated, reordered, cut, or with a bomb among them."""
    pieces = [data[:-7], frames(rng, rng.randbytes(rng.randrange(50))), bomb(rng), data[: len(data) // 2]]
    return b"".join(rng.choices(pieces, k=rng.randrange(1, 4))) + b"\1" + data[-6:]


def bomb(rng: random.Random) -> bytes:
    """A frame of run-length blocks, each 4 bytes for up to 128 KiB, under a header that may lie."""
    blocks = rng.choice((1, 3, 80))
    each = rng.choice((0, 1, 1000, 128 << 10, (1 << 21) - 1))
    body = b"".join(struct.pack("<I", each << 3 | 2 | (i == blocks - 1))[:3] + b"\0" for i in range(blocks))
    claims = rng.choice((blocks * each, blocks * each + 1, 1 << 30, (1 << 64) - 1, 0))
    header = rng.choice((struct.pack("<BBQ", 0xC0, 0x88, claims), b"\x00\x88", b"\x00\xf8"))
    return struct.pack("<I", 0xFD2FB528) + header + body


def batch_record_lengths(rng: random.Random, data: bytes) -> bytes:
    """One record's length changed, or a record taken out, doubled or moved, in an uncompressed block."""
    body, records, at = data[:-7], [], 0
    while at + 4 <= len(body):
        end = at + 4 + int.from_bytes(body[at : at + 4], "little")
        if end > len(body):
            break
        records.append(body[at:end])
        at = end
    if not records:
        return flip_bits(rng, data)
    index = rng.randrange(len(records))
    record = records[index]
    length = rng.choice((*INTERESTING_U32, len(record) - 5, len(record) - 3, len(body) - 4)) & 0xFFFFFFFF
    records[index : index + 1] = rng.choice(
        ([struct.pack("<I", length) + record[4:]], [], [record, record], [record[:-1]], [record + b"\0"])
    )
    return b"".join(records) + data[-7:]


BATCH: tuple[Mutation, ...] = (
    *GENERAL,
    batch_footer,
    batch_footer,
    batch_other_compression,
    batch_frames_spliced,
    batch_record_lengths,
    batch_record_lengths,
)


def manifest_footer(rng: random.Random, data: bytes) -> bytes:
    if len(data) < 22:
        return insert(rng, data)
    count, sequence, epoch, version = struct.unpack("<IQQH", data[-22:])
    count = rng.choice((*INTERESTING_U32, count + 1, count - 1, count)) & 0xFFFFFFFF
    sequence = rng.choice((0, 1, sequence, sequence + 1, sequence - 1, (1 << 64) - 1)) & ((1 << 64) - 1)
    epoch = rng.choice((0, epoch, (1 << 64) - 1))
    return data[:-22] + struct.pack("<IQQH", count, sequence, epoch, rng.choice((1, 1, 1, version, 0, 2)))


MANIFEST: tuple[Mutation, ...] = (*GENERAL, manifest_footer, manifest_footer, manifest_footer)


def mutate(rng: random.Random, data: bytes, mutations: tuple[Mutation, ...]) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = rng.choice(mutations)(rng, data)
    return data[:INPUT_BYTES_MAX]


# ----------------------------------------------------------------------------------------------------- running


def outcome(decode: Callable[..., Any], data: bytes) -> list[bytes] | None:
    try:
        entries = decode(data, max_batch_bytes=MAX_BATCH_BYTES)
    except CorruptBatch:
        return None
    return entries if isinstance(entries, list) else list(entries.to_pylist())


def check_batch(data: bytes) -> bool:
    """Decode every way. True if it was accepted; raises AssertionError if the ways differ."""
    outcomes = []
    for road in (always_pages, always_loops):
        with road():
            outcomes += [outcome(decode_batch, data), outcome(decode_batch_arrow, data)]
    first = outcomes[0]
    assert all(other == first for other in outcomes), "decode_batch and decode_batch_arrow disagree"
    if first is not None and data[-7:-6] == b"\0":
        assert encode_batch(first) == data, "an accepted batch is not what its entries encode to"
    return first is not None


def check_manifest(data: bytes) -> bool:
    try:
        manifest = Manifest.from_bytes(data)
        entries = list(manifest)
    except CorruptManifest:
        return False
    assert len(entries) == len(manifest), "the manifest holds another number of entries than it says"
    assert manifest.to_bytes() == data, "an accepted manifest does not encode to the same bytes"
    return True


CHECKS: dict[str, Callable[[bytes], bool]] = {"batch": check_batch, "manifest": check_manifest}
OTHER_CHECKS = FORMAT_CHECKS | BINARY_CHECKS | QUEUE_CHECKS
RECORDS = FORMAT_CORPUS | BINARY_CORPUS
TOKENS = FORMAT_TOKENS | BINARY_TOKENS


def corpus() -> dict[str, list[bytes]]:
    rng = random.Random(0)
    made = [
        encode_batch([rng.randbytes(rng.randrange(high)) for _ in range(count)], compression)
        for count, high in ((1, 9), (5, 30), (70, 20), (300, 5), (3, 9000))
        for compression in ("none", "zstd")
    ]
    golden = sorted(path for path in GOLDEN.rglob("*") if path.is_file() and path.suffix != ".json")
    files = [(path, path.read_bytes()) for path in golden]
    is_batch = [path.suffix == ".batch" or path.name.startswith("batch_") for path, _ in files]
    # The largest ones would take all the time, and their mutants are like the others'.
    return {
        "batch": made + [data for (_, data), yes in zip(files, is_batch, strict=True) if yes and len(data) < 20_000],
        "manifest": [data for (_, data), yes in zip(files, is_batch, strict=True) if not yes and len(data) < 20_000],
    }


def resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def describe(kind: str, entries: list[bytes], seed: int, number: int) -> str:
    data = b"\n".join(entries)
    shown = base64.b64encode(data[:1500]).decode()
    return (
        f"input {number} of seed {seed}, {kind}, {len(entries)} entries of {len(data)} bytes, the first 1,500 in "
        f"base64:\n{shown}\n"
        f"repeat with: python -m tests.fuzz --seed {seed} --start {number} --count 1"
    )


@dataclass
class Tally:
    """What came out, and what the worst input of each kind took."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Of the processor, and the number of the input."""

    bytes: Counter[str] = field(default_factory=Counter)
    """By which inputs of a kind made the process's peak memory grow, all together."""

    def count(self, kind: str, accepted: bool, seconds: float, number: int) -> None:
        self.outcomes[f"{kind} {'accepted' if accepted else 'refused'}"] += 1
        self.seconds[kind] = max(self.seconds.get(kind, (0.0, 0)), (seconds, number))


FORMAT_TURNS = ("json", "arrow", "csv", "avro", "json", "ddl", "protobuf", "otlp", "json", "text", "keyvalue")


def kind_of(number: int) -> str:
    """Of 32 inputs three are for formats, which take longest, and five for what a queue has besides batches."""
    if number % 32 in (5, 13, 21):
        return FORMAT_TURNS[number // 32 % len(FORMAT_TURNS)]
    if number % 32 in (3, 9, 15, 25, 31):
        return ("ledger", "location", "ledger", "queue", "location")[number // 32 % 5]
    return "manifest" if number % 4 == 0 else "batch"


def make(rng: random.Random, kind: str, seeds: dict[str, list[bytes]]) -> list[bytes]:
    """The entries of an input; of a batch, a manifest or a schema there is one."""
    if kind in ("batch", "manifest"):
        return [mutate(rng, rng.choice(seeds[kind]), BATCH if kind == "batch" else MANIFEST)]
    if kind == "queue":
        return make_queue(rng)
    if kind in QUEUE_CHECKS:
        data, tokens = rng.choice(ledgers()), LEDGER_TOKENS
        if kind == "location":
            data, tokens = rng.choice(LOCATIONS), LOCATION_TOKENS
        data = splice(rng, data, tokens) if rng.randrange(3) else data
        return [mutate(rng, data, GENERAL) if rng.randrange(2) else data]
    made = []
    for _ in range(1 if kind == "ddl" else rng.choice((1, 2, 4, 12))):
        data = record(rng) if kind == "json" and rng.randrange(2) else rng.choice(RECORDS[kind])
        if kind in TOKENS and rng.randrange(3):
            data = splice(rng, data, TOKENS[kind])
        made.append(mutate(rng, data, GENERAL) if rng.randrange(3) == 0 else data)
    return made


def make_queue(rng: random.Random) -> list[bytes]:
    """Which queue it was, and its objects in the order of their locations, one or two of them mutated."""
    number = rng.randrange(len(queues()))
    objects = [data for _, data in sorted(queues()[number].items())]
    for _ in range(rng.choice((1, 1, 2))):
        index = rng.randrange(len(objects))
        name = sorted(queues()[number])[index]
        kinds = BATCH if name.endswith(".batch") else MANIFEST if name.endswith("manifest") else GENERAL
        objects[index] = mutate(rng, objects[index], kinds)
    return [bytes([number]), *objects]


def run(seed: int, count: int, start: int = 0, tally: Tally | None = None) -> Counter[str]:
    """Check `count` inputs, and raise what a decoder should not have."""
    seeds = corpus()
    tally = tally or Tally()
    before = 0
    for number in range(start, start + count):
        if number == start + WARM_UP:
            before = resident_bytes()
        rng = random.Random(f"{seed}/{number}")
        kind = kind_of(number)
        entries = make(rng, kind, seeds)
        started, resident = time.process_time(), resident_bytes()
        try:
            accepted = CHECKS[kind](entries[0]) if kind in CHECKS else OTHER_CHECKS[kind](rng, entries)
        except BaseException:
            print(f"FAILED on {describe(kind, entries, seed, number)}", file=sys.stderr)
            raise
        seconds = time.process_time() - started
        tally.count(kind, accepted, seconds, number)
        tally.bytes[kind] += resident_bytes() - resident
        if seconds > SECONDS_MAX:
            raise AssertionError(f"{seconds:.1f} s of the processor on {describe(kind, entries, seed, number)}")
        if before and resident_bytes() - before > GROWTH_MAX_BYTES:
            raise AssertionError(f"memory grew too far on {describe(kind, entries, seed, number)}")
    return tally.outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description="Feed mutated inputs to the decoders.")
    parser.add_argument("--seed", type=int, default=None, help="default: another one every time")
    parser.add_argument("--start", type=int, default=0, help="number of the first input")
    parser.add_argument("--count", type=int, default=COUNT)
    options = parser.parse_args()
    faulthandler.enable()
    logging.getLogger("buffer").setLevel(logging.ERROR)  # readers say what they could not read; here that is the rule
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}, {options.count:,} inputs", flush=True)
    started = time.perf_counter()
    tally = Tally()
    for start in range(options.start, options.start + options.count, PROGRESS):
        count = min(PROGRESS, options.start + options.count - start)
        run(seed, count, start, tally)
        # Were a decoder to take the whole process down, this tells how far it came.
        print(f"  {start + count:,} after {time.perf_counter() - started:.0f} s", flush=True)
    print(", ".join(f"{n:,} {what}" for what, n in sorted(tally.outcomes.items())))
    worst = (f"{kind} {s * 1000:.0f} ms (input {number})" for kind, (s, number) in sorted(tally.seconds.items()))
    print(f"longest for one input: {', '.join(worst)}")
    grown = ", ".join(f"{kind} {size >> 20} MiB" for kind, size in sorted(tally.bytes.items()))
    print(f"the peak grew by inputs of: {grown}")
    print(f"peak memory {resident_bytes() >> 20} MiB, of it Arrow {pa.default_memory_pool().max_memory() >> 20} MiB")


if __name__ == "__main__":
    main()
