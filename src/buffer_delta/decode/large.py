"""Entries that are too large to be rows: whoever reads the table could not read them again.

Rows go through Spark's JVM, where a value is in memory several times over, and so does everybody who reads the table.
One record must not end a driver or a reader. So the limit holds on every road, that of the Arrow writer too, and where
a record goes does not depend on the writer. Used by `rows`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from buffer_delta.decode.dead_letters import BYTES_MAX
from buffer_delta.formats.entries import Indices, offsets_of

SIZE_IN_REASON = r"^it has ([0-9,]+) bytes, and max_entry_bytes is "
"""Finds in a reason how large the entry was: a dead letter that has fewer bytes is only its beginning."""


def too_large(entries: pa.BinaryArray, max_bytes: int | None) -> Indices:
    """The places of the entries that are."""
    if max_bytes is None:
        return np.zeros(0, np.int64)
    return np.flatnonzero(np.diff(offsets_of(entries)) > max_bytes).astype(np.int64)


def reason(size: int, max_bytes: int, kept: str | None = None) -> str:
    here = min(size, BYTES_MAX)
    where = f"; here are its first {here:,}, and the whole batch is kept as {kept!r}" if kept is not None else ""
    return f"it has {size:,} bytes, and max_entry_bytes is {max_bytes:,}{where}"


def shortened(payloads: pa.BinaryArray, max_bytes: int | None) -> pa.BinaryArray:
    """The payloads, of those that are too large the beginning."""
    large = too_large(payloads, max_bytes)
    if not len(large):
        return payloads
    cut = set(large.tolist())
    found = [payloads[at].as_buffer() for at in range(len(payloads))]
    return pa.array(
        [(f.slice(0, min(BYTES_MAX, f.size)) if at in cut else f).to_pybytes() for at, f in enumerate(found)],
        pa.binary(),
    )
