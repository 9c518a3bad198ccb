"""What tests of formats share."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from buffer_delta.formats import Format, Parsed, settle


def parse(form: Format, *entries: bytes | str) -> Parsed:
    return form.parse(binary(*entries))


def binary(*entries: bytes | str) -> pa.BinaryArray:
    return pa.array([e.encode() if isinstance(e, str) else e for e in entries], pa.binary())


def by_entry(parsed: Parsed, count: int) -> dict[int, dict[str, Any] | str]:
    """What became of each entry: its row or its error. Fails if an entry has both, none, or two."""
    entries = np.arange(parsed.rows.num_rows) if parsed.entries is None else parsed.entries
    found: dict[int, dict[str, Any] | str] = {}
    for index, row in [*zip(entries.tolist(), parsed.rows.to_pylist(), strict=True), *parsed.bad]:
        assert index not in found
        found[index] = row
    assert sorted(found) == list(range(count))
    return found


def stream(table: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def evolve(form: Format, table: Any, *entries: bytes | str) -> Format:
    """The format with its columns settled for a table (a StructType, or None) and these entries."""
    return settle(form, table, form.discover(binary(*entries)), ["_sequence", "_index"])


_POOLS: list[pa.MemoryPool] = []  # what they gave may be freed at any time later, so they must stay


def peak_bytes(work: Callable[[], Any]) -> int:
    """What Arrow and Python allocate at most while the work is done. Counted, so the machine does not matter."""
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)
    _POOLS.append(counted)
    pa.set_memory_pool(counted)
    tracemalloc.start()
    try:
        work()
        return int(counted.max_memory() or 0) + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(usual)
