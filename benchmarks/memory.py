"""How much memory a format takes at most for entries of hostile shapes: `python -m benchmarks.memory [--mib 64]`.

Each line is a process of its own: entries of one shape and size, discovered and parsed piece by piece, as the
loader's tasks do. `peak` is what the process grew by besides the entries themselves. It must grow no faster than
the size: names times rows would grow with its square.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from itertools import count

import pyarrow as pa

MIB = 1 << 20
CHUNK_BYTES, CHUNK_ROWS = 8 * MIB, 64 * 1024  # as in buffer_delta.decode.rows


def map_of_ids(size: int) -> Iterator[bytes]:
    """Records with a map whose keys are all different."""
    yield from _until(size, lambda i: json.dumps({"id": i, "by_user": {f"{i * 7919:032x}": i}}).encode())


def new_names(size: int) -> Iterator[bytes]:
    """Every record has a field that no other one has."""
    yield from _until(size, lambda i: json.dumps({"id": i, f"k{i}": i}).encode())


def one_record(size: int) -> Iterator[bytes]:
    """One record, all of whose fields differ."""
    yield b"{" + b",".join(f'"k{i}":1'.encode() for i in range(size // 12)) + b"}"


def one_array(size: int) -> Iterator[bytes]:
    """One record, an array of objects with a field each."""
    yield b'{"l":[' + b",".join(f'{{"k{i}":1}}'.encode() for i in range(size // 14)) + b"]}"


def empty_objects(size: int) -> Iterator[bytes]:
    """After a record with a thousand columns, empty ones."""
    yield json.dumps({f"k{i}": i for i in range(1000)}).encode()
    yield from _until(size, lambda _: b"{}")


def empty_elements(size: int) -> Iterator[bytes]:
    """After an array of objects with a thousand fields, empty ones."""
    yield json.dumps({"l": [{f"k{i}": i for i in range(990)}]}).encode()
    yield from _until(size, lambda _: b'{"l":[' + b"{}," * 300 + b"{}]}")


def ordinary(size: int) -> Iterator[bytes]:
    yield from _until(size, lambda i: json.dumps({"id": i, "name": f"n{i}", "at": {"x": 1.5}, "l": [1, 2]}).encode())


SHAPES: dict[str, Callable[[int], Iterator[bytes]]] = {
    shape.__name__: shape
    for shape in (ordinary, map_of_ids, new_names, one_record, one_array, empty_objects, empty_elements)
}


def _until(size: int, make: Callable[[int], bytes]) -> Iterator[bytes]:
    total = 0
    for number in count():
        if total >= size:
            return
        entry = make(number)
        total += len(entry) + 4
        yield entry


def measure(shape: str, mib: int) -> tuple[int, int, float]:
    """Bytes of the entries, bytes that the process grew by, and seconds."""
    from buffer_delta.formats import JsonFormat

    entries = _as_array(SHAPES[shape](mib * MIB))
    form = JsonFormat()
    warm = pa.array([b'{"a":1}'], pa.binary())
    form.with_schema(form.discover(warm)).parse(warm)
    pa.default_memory_pool().release_unused()
    before, started = _resident(), time.perf_counter()
    settled = form.with_schema(form.discover(entries))
    rows = 0
    for _, piece in settled.pieces(entries, CHUNK_BYTES, CHUNK_ROWS):
        parsed = settled.parse(piece)
        rows += parsed.rows.num_rows + len(parsed.bad)
    assert rows == len(entries), f"{rows} rows of {len(entries)} entries"
    return entries.nbytes, max(0, _resident() - before), time.perf_counter() - started


def _as_array(entries: Iterator[bytes]) -> pa.BinaryArray:
    """Without objects for all of them: they would count as memory that is free to use later."""
    values, offsets = bytearray(), array("i", [0])
    for entry in entries:
        values += entry
        offsets.append(len(values))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description="Peak memory of formats.")
    parser.add_argument("--mib", type=int, default=64, help="the largest size")
    parser.add_argument("--shape", choices=tuple(SHAPES), action="append", help="default: all")
    options = parser.parse_args()
    sizes = [mib for mib in (1, 4, 16, 64) if mib <= options.mib]
    print(f"{'shape':<16}{'entries':>10}{'peak':>12}{'factor':>8}{'seconds':>9}")
    spawn = multiprocessing.get_context("spawn")
    for shape in options.shape or SHAPES:
        for mib in sizes:
            with spawn.Pool(1) as pool:
                size, peak, seconds = pool.apply(measure, (shape, mib))
            facts = f"{size / MIB:>6.1f} MiB{peak / MIB:>8.0f} MiB{peak / size:>8.1f}{seconds:>9.1f}"
            print(f"{shape:<16}{facts}", flush=True)


if __name__ == "__main__":
    main()
